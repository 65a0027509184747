"""`print_mode=`, `debug=` and `subgraphs=` of calls that return their output: chunks are printed, and nothing changes."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph, interrupt
from pregel_async.errors import ConfigError, InPlaceChangeWarning

pytestmark = pytest.mark.anyio

UPDATES = ["[updates] {'one': {'log': ['one']}}", "[updates] {'two': {'log': ['two']}}"]
VALUES = ["[values] {'log': []}", "[values] {'log': ['one']}", "[values] {'log': ['one', 'two']}"]


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def one(state: State) -> State:
    return {"log": ["one"]}


def two(state: State) -> State:
    return {"log": ["two"]}


def graph(saver: Any = None, **options: Any) -> Any:
    return StateGraph(State).add_sequence([one, two]).add_edge(START, "one").compile(saver, **options)


def outer() -> Any:
    return StateGraph(State).add_node("sub", graph()).add_edge(START, "sub").compile()


@pytest.mark.parametrize("stored", [False, True])
async def test_print_mode_prints_and_returns_the_same(stored: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Each mode of `print_mode` is printed as its chunks come; output, chunks and what is stored stay the same."""
    saver = InMemorySaver() if stored else None
    result = await graph(saver).ainvoke({"log": []}, "t", print_mode="updates")
    assert result == {"log": ["one", "two"]}
    assert capsys.readouterr().out.splitlines() == UPDATES
    chunks = await graph(saver).ainvoke({"log": []}, "u", stream_mode="updates", print_mode=["values"])
    assert chunks == [{"one": {"log": ["one"]}}, {"two": {"log": ["two"]}}]
    assert capsys.readouterr().out.splitlines() == VALUES
    output = await graph(saver).ainvoke({"log": []}, "v", version="v2", print_mode=())
    assert output.value == {"log": ["one", "two"]}
    assert capsys.readouterr().out == ""


async def test_astream_prints_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The reader of a stream gets the modes that it asked for, and no others."""
    stream = graph().astream({"log": []}, stream_mode="values", print_mode="updates", output_keys="log")
    assert [chunk async for chunk in stream] == [[], ["one"], ["one", "two"]]
    assert capsys.readouterr().out.splitlines() == ["[updates] {'one': ['one']}", "[updates] {'two': ['two']}"]


async def test_debug_prints_updates_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    """`debug=True` prints the chunks of "updates" and "values" in order, for one call or for a graph; a call's False
    overrides the graph's."""
    both = [VALUES[0], UPDATES[0], VALUES[1], UPDATES[1], VALUES[2]]
    await graph().ainvoke({"log": []}, debug=True)
    assert capsys.readouterr().out.splitlines() == both
    await graph(debug=True).ainvoke({"log": []}, print_mode="updates")
    assert capsys.readouterr().out.splitlines() == both
    await graph(debug=True).ainvoke({"log": []}, debug=False)
    assert capsys.readouterr().out == ""


def test_sync_calls_print_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`invoke` prints what `ainvoke` prints."""
    assert graph().invoke({"log": []}, print_mode="updates") == {"log": ["one", "two"]}
    assert capsys.readouterr().out.splitlines() == UPDATES


async def test_debug_of_a_call_names_changes_in_place() -> None:
    """It also turns on the warning of `compile(debug=True)`."""

    def changes(state: State) -> None:
        state["log"].append("lost")

    graph = StateGraph(State).add_node(changes).add_edge(START, "changes").compile()
    await graph.ainvoke({"log": []})
    with pytest.warns(InPlaceChangeWarning):
        await graph.ainvoke({"log": []}, debug=True)


async def test_subgraphs_of_a_call_that_returns_chunks(capsys: pytest.CaptureFixture[str]) -> None:
    """`subgraphs=True` returns and prints the chunks of subgraphs, with their namespaces; an output stays the same."""
    chunks: Any = await outer().ainvoke({"log": []}, stream_mode="updates", subgraphs=True)
    [(inner, _), _, (root, last)] = chunks
    assert inner[0].startswith("sub:") and root == ()
    assert last == {"sub": {"log": ["one", "two"]}}
    assert [chunk for _, chunk in chunks[:2]] == [{"one": {"log": ["one"]}}, {"two": {"log": ["two"]}}]
    labelled: Any = await outer().ainvoke({"log": []}, stream_mode=["updates"], subgraphs=True)
    assert [mode for _, mode, _ in labelled] == ["updates"] * 3
    parts: Any = await outer().ainvoke({"log": []}, stream_mode="updates", subgraphs=True, version="v2")
    assert [len(part["ns"]) for part in parts] == [1, 1, 0]
    assert await outer().ainvoke({"log": []}, subgraphs=True, print_mode="updates") == {"log": ["one", "two"]}
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("[updates] [graph=('sub:") and printed[0].endswith("{'one': {'log': ['one']}}")
    assert printed[2] == "[updates] {'sub': {'log': ['one', 'two']}}"
    await outer().ainvoke({"log": []}, print_mode="updates")
    assert capsys.readouterr().out.splitlines() == printed[2:]


async def test_events_that_are_kept_are_those_of_the_reader(capsys: pytest.CaptureFixture[str]) -> None:
    """Printing stores nothing: a reader that reconnects gets the modes of its stream."""
    made = graph(InMemorySaver())
    options: dict[str, Any] = {"stream_mode": "updates", "version": "v2", "print_mode": "values"}
    async with made.astream({"log": []}, "t", keep_events=True, **options) as stream:
        first = await anext(stream)
        await stream.finish()
    assert capsys.readouterr().out.splitlines() == VALUES
    again = made.astream(None, "t", after=first["cursor"], **options)
    assert [part["data"] async for part in again] == [{"two": {"log": ["two"]}}]
    assert capsys.readouterr().out == ""


async def test_questions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A question is printed with the state, as `astream` shows it."""

    def ask(state: State) -> State:
        return {"log": [interrupt("well?")]}

    made = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(InMemorySaver())
    await made.ainvoke({"log": []}, "t", print_mode="updates")
    assert "[updates] {'__interrupt__': (Interrupt(value='well?'" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["nothing", ["values", "values"], 3])
async def test_unknown_modes_are_refused(wrong: Any) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match="print_mode"):
        await graph().ainvoke({"log": []}, print_mode=wrong)
