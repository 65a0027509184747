"""Makes one entry of the corpus, with the code of the version whose format it is to keep. See README.md.

    PYTHONPATH=<checkout of that version> python tests/savers/corpus/make.py NAME

It is run once for each entry. What it has made is never made again.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


async def main(name: str) -> None:
    sys.path[:0] = [str(HERE), str(HERE / name)]
    corpus: Any = importlib.import_module(f"{name}_graphs")
    told: Any = importlib.import_module("corpus_told")
    from checkpoint_savers import SqliteSaver

    database = HERE / name / "threads.db"
    if database.exists():
        raise SystemExit(f"{database} is there already. It is never made again: give a new entry a new name.")
    async with SqliteSaver.from_conn_string(database, codec=corpus.codec()) as saver:
        await corpus.fill(saver)
    async with SqliteSaver.from_conn_string(database, codec=corpus.codec()) as saver:
        expected: dict[str, Any] = {
            "threads": {thread: await told.tell_thread(graph, thread) for thread, graph in corpus.graphs(saver).items()}
        }
        if hasattr(corpus, "more"):
            expected["more"] = await corpus.more(saver)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(database, folder))
        async with SqliteSaver.from_conn_string(copy, codec=corpus.codec()) as saver:
            finished = await corpus.finish(saver)
    expected["finished"] = {thread: told.tell(value) for thread, value in finished.items()}
    text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    (HERE / name / "expected.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
