"""The checked options of a call are kept with its graph: equal calls share them, and no call gets those of another."""

from __future__ import annotations

import gc
import weakref
from typing import Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, StateGraph
from pregel_async._api import calls
from pregel_async.errors import ConfigError

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class State(TypedDict):
    x: int
    y: int


def graph_of() -> Any:
    builder = StateGraph(State)
    builder.add_node("a", lambda state: {"x": state["x"] + 1, "y": 0})
    builder.add_node("b", lambda state: {"x": state["x"] * 2})
    builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    return builder.compile(blocking=False)


async def chunks(graph: Any, **options: Any) -> list[Any]:
    async with graph.astream({"x": 1}, **options) as stream:
        return [chunk async for chunk in stream]


async def test_equal_calls_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with lists, which cannot be keys as they are."""
    checks: list[object] = []
    check = calls.names_of_modes
    monkeypatch.setattr(calls, "names_of_modes", lambda modes: checks.append(modes) or check(modes))
    graph = graph_of()
    for _ in range(3):
        assert await chunks(graph, stream_mode=["updates"]) == [
            ("updates", {"a": {"x": 2, "y": 0}}),
            ("updates", {"b": {"x": 4}}),
        ]
        assert await graph.ainvoke({"x": 1}) == {"x": 4, "y": 0}
        assert await chunks(graph, stream_mode=("updates",), output_keys="x") == [
            ("updates", {"a": 2}),
            ("updates", {"b": 4}),
        ]
    assert checks == [["updates"], "values", ("updates",)]


async def test_each_call_prints_what_it_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Also the second of equal calls, and none that asks for nothing."""
    graph = graph_of()
    updates = ["[updates] {'a': {'x': 2, 'y': 0}}", "[updates] {'b': {'x': 4}}"]
    for options, lines in [({}, []), ({"print_mode": "updates"}, updates), ({"print_mode": "custom"}, [])] * 2:
        assert await graph.ainvoke({"x": 1}, **options) == {"x": 4, "y": 0}
        assert capsys.readouterr().out.splitlines() == lines
    graph.debug = True
    for options, count in [({}, 5), ({"debug": False}, 0)] * 2:
        await graph.ainvoke({"x": 1}, **options)
        assert len(capsys.readouterr().out.splitlines()) == count


@pytest.mark.parametrize("refused", [{"capacity": True}, {"capacity": 1.0}, {"capacity": 0}, {"version": 1}])
async def test_an_option_that_equals_a_checked_one(refused: dict[str, Any]) -> None:
    """1, 1.0 and True are equal, and the checks accept only one of them as a capacity."""
    graph = graph_of()
    assert len(await chunks(graph, capacity=1)) == len(await chunks(graph, version="v1"))
    for _ in range(2):
        with pytest.raises(ConfigError):
            graph.astream({"x": 1}, **refused)


async def test_options_that_may_change() -> None:
    """A list or a mapping of the caller counts as it is at the call."""
    graph = graph_of()
    keys, overflow, budgets = ["x"], {"updates": "block"}, dict[str, Any]()
    options = {"stream_mode": "updates", "output_keys": keys, "overflow": overflow, "budgets": budgets}
    assert await chunks(graph, **options) == [{"a": {"x": 2}}, {"b": {"x": 4}}]
    keys.append("y")
    assert await chunks(graph, **options) == [{"a": {"x": 2, "y": 0}}, {"b": {"x": 4}}]
    overflow["updates"] = "never"
    with pytest.raises(ConfigError, match="overflow 'never' is not known"):
        await chunks(graph, **options)


async def test_an_attribute_that_is_set_between_equal_calls() -> None:
    graph = graph_of()
    copy = graph.with_config({"metadata": {"kept": True}})
    for each in (graph, copy):
        assert await chunks(each, stream_mode="updates") == [{"a": {"x": 2, "y": 0}}, {"b": {"x": 4}}]
        assert len(await chunks(each)) == 2
    graph.stream_channels = "x"
    assert await chunks(graph, stream_mode="updates") == [{"a": 2}, {"b": 4}]
    graph.interrupt_before_nodes = ["b"]
    assert await chunks(graph, stream_mode="updates") == [{"a": 2}, {"__interrupt__": ()}]
    graph.stream_mode = ["values"]
    assert (await chunks(graph))[0] == ("values", 1)
    graph.config = {"recursion_limit": 1}
    assert await chunks(graph, stream_mode="updates") == [{"a": 2}, {"__interrupt__": ()}]
    graph.checkpointer = InMemorySaver()
    with pytest.raises(ConfigError, match="needs a thread"):
        await graph.ainvoke({"x": 1})
    assert await chunks(copy, stream_mode="updates") == [{"a": {"x": 2, "y": 0}}, {"b": {"x": 4}}]


async def test_calls_of_nodes_depend_on_their_node() -> None:
    """A call in a node has the options of the node's run, also after an equal call outside, and the other way round."""
    inner = StateGraph(State).add_node("n", lambda state, runtime: {"x": runtime.context or 0})
    graph: Any = inner.add_edge(START, "n").compile(blocking=False)

    async def call(state: State) -> Any:
        return await graph.ainvoke({"x": 1})

    outer: Any = StateGraph(State).add_node("call", call).add_edge(START, "call").compile()
    for _ in range(2):
        assert await graph.ainvoke({"x": 1}) == {"x": 0}
        assert await outer.ainvoke({"x": 1}, context=7) == {"x": 7}
        assert await graph.ainvoke({"x": 1}, context=8) == {"x": 8}


async def test_few_records_are_kept() -> None:
    """However many different options a program makes up."""
    graph = graph_of()
    for capacity in range(1, 200):
        graph.astream({"x": 1}, capacity=capacity)
    assert 0 < len(graph._definition.checked) <= 64


class Context:
    """A caller's own object."""


async def test_objects_of_the_caller_are_not_kept() -> None:
    graph, context = graph_of(), Context()
    left = weakref.ref(context)
    await graph.ainvoke({"x": 1}, context=context)
    await chunks(graph, context=context)
    await anyio.lowlevel.checkpoint()  # the task of the stream's run is released
    del context
    gc.collect()
    assert left() is None


async def test_values_that_differ_in_each_call_make_no_records() -> None:
    """Not even contexts that could be keys, such as the ids of users."""
    builder: Any = StateGraph(State).add_node("n", lambda state, runtime: {"x": runtime.context})
    graph = builder.add_edge(START, "n").compile(blocking=False)
    for number in range(20):
        assert await graph.ainvoke({}, context=number) == {"x": number}
    assert len(graph._definition.checked) == 1
