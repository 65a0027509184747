"""Tracebacks of failed runs: the user's frames, without the runtime's between them."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest

from pregel_async import START, StateGraph, interrupt
from pregel_async._api.compiled import Graph
from pregel_async.errors import ConfigError, NodeTimeoutError, OutsideRunError

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[2]


class State(TypedDict, total=False):
    n: int


def graph_of(*nodes: Callable[..., Any], **options: Any) -> Graph[Any, Any]:
    builder = StateGraph(State)
    for node in nodes:
        builder.add_node(node, **options).add_edge(START, node.__name__)
    return builder.compile()


def deep() -> None:
    raise ValueError("in the node")


async def fails(state: State) -> None:
    deep()


def blocks(state: State) -> None:
    deep()


async def fails_late(state: State) -> None:
    try:
        await anyio.sleep(0)
        deep()
    except ValueError as error:
        raise KeyError("late") from error


def names(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


async def ainvoke(graph: Graph[Any, Any]) -> None:
    await graph.ainvoke({})


async def astream(graph: Graph[Any, Any]) -> None:
    async with graph.astream({}) as chunks:
        async for _ in chunks:
            pass


async def abatch(graph: Graph[Any, Any]) -> None:
    await graph.abatch([{}])


async def invoke(graph: Graph[Any, Any]) -> None:
    await anyio.to_thread.run_sync(lambda: graph.invoke({}))


async def stream(graph: Graph[Any, Any]) -> None:
    await anyio.to_thread.run_sync(lambda: list(graph.stream({})))


CALLS: dict[Callable[..., Any], list[str]] = {
    ainvoke: [],
    astream: ["__anext__", "raise_failure"],
    abatch: ["abatch", "batch"],
    invoke: ["invoke", "_run_verb"],
    stream: [],
}
"""Each way to call a graph, with the frames of the runtime that its traceback may have: those of the call itself."""


@pytest.mark.parametrize("node", [fails, blocks])
@pytest.mark.parametrize("call", CALLS)
async def test_only_the_users_frames(call: Callable[..., Any], node: Callable[..., Any]) -> None:
    """P9: between the caller's frames and the node's, a traceback has no frame of the runtime but those of the call."""
    with pytest.raises(ValueError, match="in the node") as caught:
        await call(graph_of(node))
    shown = names(caught.value)
    assert shown[-2:] == [node.__name__, "deep"]
    own = [
        entry.name for entry in caught.traceback if str(entry.frame.f_globals["__name__"]).startswith("pregel_async.")
    ]
    assert own == CALLS[call]
    assert "in node" in caught.value.__notes__[-1]


async def test_nested_graphs() -> None:
    """A traceback through a graph in a node's code shows the node, and the inner graph's node after it."""
    inner = graph_of(fails)

    async def outer(state: State) -> None:
        await inner.ainvoke({})

    with pytest.raises(ValueError, match="in the node") as caught:
        await graph_of(outer).ainvoke({})
    assert names(caught.value)[-3:] == ["outer", "fails", "deep"]


async def test_groups_and_causes() -> None:
    """The exceptions of a group are shortened too, and causes stay whole, with their own tracebacks."""
    with pytest.raises(ExceptionGroup) as caught:
        await graph_of(fails_late, fails).ainvoke({}, on_failure="finish")
    assert names(caught.value)[-1] == "test_groups_and_causes"
    first, second = caught.value.exceptions
    assert names(first) == ["fails", "deep"]
    assert names(second) == ["fails_late"]
    assert isinstance(second.__cause__, ValueError)
    assert names(second.__cause__) == ["fails_late", "deep"]


async def test_errors_of_the_runtime_show_where_they_are_raised() -> None:
    """Frames after the user's last frame stay: an error of the runtime itself says where it was raised."""

    async def asks(state: State) -> None:
        interrupt("?")

    async def late(state: State) -> None:
        await anyio.sleep_forever()

    for graph, kind in ((graph_of(asks), Exception), (graph_of(late, timeout=0.01), NodeTimeoutError)):
        with pytest.raises(kind) as caught:
            await graph.ainvoke({})
        assert "site-packages" in caught.traceback[-1].path.as_posix() or "pregel_async" in str(
            caught.traceback[-1].path
        )
    with pytest.raises(OutsideRunError) as outside:
        interrupt("?")
    assert names(outside.value)[-1] != "test_errors_of_the_runtime_show_where_they_are_raised"
    with pytest.raises(ConfigError) as wrong:
        await graph_of(fails).ainvoke({}, {"nonsense": 1})
    assert len(names(wrong.value)) > 2


async def test_classes_that_refuse_attributes() -> None:
    """A user's exception class that refuses attributes is shortened like others, and is not replaced by an error."""

    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError("frozen")

    async def node(state: State) -> None:
        raise Frozen

    with pytest.raises(Frozen) as caught:
        await graph_of(node).ainvoke({})
    assert names(caught.value)[-2:] == ["test_classes_that_refuse_attributes", "node"]


@pytest.mark.parametrize("full", [False, True])
def test_what_python_prints(full: bool, tmp_path: Path) -> None:
    """Python prints the short traceback; with PREGEL_TRACEBACKS=full in the environment, the runtime's frames too."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from typing import TypedDict\n"
        "from pregel_async import START, StateGraph\n"
        "class State(TypedDict):\n"
        "    n: int\n"
        "async def node(state: State) -> None:\n"
        "    1 / state['n']\n"
        "graph = StateGraph(State).add_node(node).add_edge(START, 'node').compile()\n"
        "asyncio.run(graph.ainvoke({'n': 0}))\n",
        "utf-8",
    )
    env = {"PYTHONPATH": f"{ROOT}", **({"PREGEL_TRACEBACKS": "full"} if full else {})}
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=env)
    assert "ZeroDivisionError: division by zero" in ran.stderr
    assert "in node 'node'" in ran.stderr
    assert f'"{program}", line 7, in node' in ran.stderr
    own = [line for line in ran.stderr.splitlines() if "pregel_async/" in line]
    assert bool(own) is full
