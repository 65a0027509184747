"""Write the file langgraph_checkpoints.sqlite, which the default suite reads: `python -m tests.from_langgraph.golden`.

It needs LangGraph. The file has three threads of `programs.review`: "asks" waits for an answer, "fork" has two branches,
and "hand" was only updated by hand.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.from_langgraph.programs import Names, review

FILE = Path(__file__).parent / "langgraph_checkpoints.sqlite"


def write() -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver

    FILE.unlink(missing_ok=True)
    with closing(sqlite3.connect(FILE, check_same_thread=False)) as connection:
        connection.execute("PRAGMA page_size = 512")  # a small file
        graph = review(Names(langgraph=True)).compile(SqliteSaver(connection))

        def config(thread: str) -> dict[str, Any]:
            return {"configurable": {"thread_id": thread}, "metadata": {"user": "ada"}}

        graph.invoke({"topic": "owls"}, config("asks"))
        graph.invoke({"topic": "owls"}, config("fork"))
        graph.invoke(None, list(graph.get_state_history(config("fork")))[1].config)
        graph.update_state(config("hand"), {"log": ["by hand"]}, as_node="beside")


if __name__ == "__main__":
    write()
