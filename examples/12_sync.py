"""Call a graph without `async`: in scripts, Flask, Django, the interactive prompt.

Each method runs its async twin on a background loop, which the process's first call starts, and waits for it. Any
number of threads may call at the same time. In a thread with a running event loop these methods block the loop: use the
async methods there.

python examples/12_sync.py
"""

from __future__ import annotations

import operator
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

from checkpoint_savers import SqliteSaver
from pregel_async import START, Command, StateGraph, interrupt, open_sync


class Input(TypedDict):
    name: str


class State(Input):
    log: Annotated[list[str], operator.add]


def greet(state: State) -> dict[str, Any]:
    return {"log": [f"hello {state['name']}"]}


async def ask(state: State) -> dict[str, Any]:  # nodes may be async or plain, for both kinds of calls
    return {"log": [interrupt("How are you?")]}


builder = StateGraph(State, input_schema=Input).add_node("greet", greet).add_node("ask", ask)
builder.add_edge(START, "greet").add_edge("greet", "ask")


def main(db: Path) -> None:
    with open_sync(SqliteSaver.from_conn_string(db)) as saver:
        graph = builder.compile(saver)

        with graph.stream({"name": "Ada"}, "ada") as chunks:  # lazy: a slow reader slows the run
            for chunk in chunks:
                print(chunk)
        print(graph.invoke(Command(resume="fine"), "ada")["log"])

        graph.update_state("ada", {"log": ["goodbye"]}, as_node="ask")
        print(graph.get_state("ada").values["log"])
        print([len(state.values["log"]) for state in graph.get_state_history("ada")])

        with ThreadPoolExecutor() as threads:
            done = threads.map(lambda name: graph.invoke({"name": name}, name), ["Bob", "Eve"])
            print([result["log"] for result in done])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "sync.db"))
