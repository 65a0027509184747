"""A real notebook: its cells run in a thread with a running event loop, and call sync and async verbs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CELLS = [
    """
    import asyncio, operator, os, signal, warnings
    from typing import Annotated, Any, TypedDict
    from checkpoint_savers import SqliteSaver
    from pregel_async import START, Command, StateGraph, interrupt, open_sync
    from pregel_async.errors import BlockingCallWarning, SyncCallError

    warnings.simplefilter("error", BlockingCallWarning)  # there is to be none

    class State(TypedDict, total=False):
        log: Annotated[list[Any], operator.add]

    async def first(state: State) -> State:
        await asyncio.sleep(0)
        return {"log": ["first"]}

    def asks(state: State) -> State:
        return {"log": [interrupt("Sure?")]}

    saver = open_sync(SqliteSaver.from_conn_string("threads.db")).__enter__()
    graph = StateGraph(State).add_sequence([first, asks]).add_edge(START, "first").compile(saver)
    print(asyncio.get_running_loop().is_running())
    """,
    """
    print(graph.invoke({}, "t")["__interrupt__"][0].value)
    for chunk in graph.stream(Command(resume="yes"), "t"):
        print(chunk)
    """,
    """
    print((await graph.aget_state("t")).values, graph.get_state("t").values)
    print(len(graph.batch([{}, {}], ["u", "v"])), len(list(graph.get_state_history("t"))))
    """,
    """
    async def calls(state: State) -> Any:
        return graph.invoke({}, "w")

    try:
        StateGraph(State).add_node(calls).add_edge(START, "calls").compile().invoke({})
    except SyncCallError as error:
        print(error.node)
    """,
    """
    ended = []

    async def interrupted(state: State) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # what the button "interrupt the kernel" does
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("ended")

    try:
        StateGraph(State).add_node(interrupted).add_edge(START, "interrupted").compile().invoke({})
    except KeyboardInterrupt:
        print(ended)
    """,
    """
    print(graph.invoke({}, "x")["log"])
    """,
    """
    graph.get_state("t")
    """,
    """
    graph.stream({}, "never")
    """,
    """
    from pregel_async.errors import ConfigError
    ConfigError("<wrong>")
    """,
    """
    def divides(state: State) -> None:
        1 / 0

    StateGraph(State).add_node(divides).add_edge(START, "divides").compile().invoke({})
    """,
]

RUN = """
import json, sys, warnings
warnings.simplefilter("ignore")  # the tools' own
import nbformat
from nbclient import NotebookClient
cells = [nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
def shown(out):
    return out.get("text") or out.get("data", {}).get("text/html") or "\\n".join(out.get("traceback", ()))
print(json.dumps(["".join(map(shown, cell.outputs)) for cell in notebook.cells]))
"""


def test_the_cells_of_a_notebook(tmp_path: Path) -> None:
    """`graph.invoke()`, `stream()` and the others work in cells, without a warning, next to `await` in other cells; an
    interrupted cell cancels its run, and the next cell runs."""
    for tool in ("nbclient", "ipykernel"):
        if find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed here: pip install nbclient ipykernel")
    ran = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([textwrap.dedent(cell) for cell in CELLS]),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "JUPYTER_RUNTIME_DIR": str(tmp_path)},
    )
    assert ran.returncode == 0, ran.stderr
    *texts, state, stream, error, failed = json.loads(ran.stdout)
    assert "<td" in state and "yes" in state and "changed from" in state and "[&#x27;first&#x27;]" in state
    assert "not started" in stream
    assert "ConfigError: &lt;wrong&gt;" in error
    assert "ZeroDivisionError" in failed and "divides" in failed
    assert "superstep.py" not in failed and "anyio" not in failed
    assert texts == [
        "True\n",
        "Sure?\n{'asks': {'log': ['yes']}}\n",
        "{'log': ['first', 'yes']} {'log': ['first', 'yes']}\n2 4\n",
        "calls\n",
        "['ended']\n",
        "['first']\n",
    ]
