"""What a run does goes one straight path: few tests for None, few calls in a superstep, objects that keep to themselves.

Raise a bound with the reason in the commit, as a cost that was weighed.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import msgspec
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph
from tests.architecture.source import ROOT, RUNTIME, code_lines, modules, none_tests

NONE_TESTS = 20
"""Tests for None per 1000 lines of code in the runtime: at most."""

GRAPH_RUN = 200
"""Lines of code of the module of a graph's run: at most."""

SUPERSTEP = (60, 20)
"""Functions and files that a superstep of one node enters, with a saver in memory: at most."""

COMMIT = (28, 9, 4)
"""From a superstep's checkpoint to the saver's commit: calls, files between the two, and frames between them, at most."""

COMPREHENSIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}


def nodes(folder: Path) -> Iterator[tuple[str, ast.AST]]:
    for name, source in modules(folder).items():
        for node in ast.walk(ast.parse(source)):
            yield name, node


def test_what_counts_as_a_test_for_none() -> None:
    """A comparison, a pattern, and a truth test of what is annotated as perhaps None."""
    source = """
class A:
    x: int | None = None
    def f(self, a: int | None, b: int) -> None:
        if a is None or self.x:
            return
        while b and not a:
            match a:
                case None:
                    pass
"""
    assert sorted(none_tests(source)) == [5, 5, 7, 9]


def test_few_tests_for_none() -> None:
    """What may be absent is an empty tuple, an object that does nothing or one that compares as nothing."""
    sources = modules(RUNTIME)
    found = {name: lines for name, source in sources.items() if (lines := none_tests(source))}
    code = sum(len(code_lines(source)) for source in sources.values())
    assert 1000 * sum(map(len, found.values())) / code <= NONE_TESTS, found


def test_the_length_of_a_graphs_run() -> None:
    """The port that the algorithm asks can be read at once."""
    assert len(code_lines(modules(RUNTIME)["pregel_async/_runtime/engine/graph_run.py"])) <= GRAPH_RUN


def test_no_object_reaches_into_another() -> None:
    """Private attributes are their object's own, also among objects of one class."""
    found = [
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, node in nodes(RUNTIME / "persistence")
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    ]
    assert found == []


def test_nothing_is_set_or_read_behind_an_object() -> None:
    """No object loses an attribute at its end, and no frame's locals are read: what an object has, its class says."""
    found = [
        f"{name}:{node.lineno}"
        for folder in ("_core", "_runtime", "_api", "_checks", "graph", "functional")
        for name, node in nodes(ROOT / "pregel_async" / folder)
        if (isinstance(node, ast.Attribute) and node.attr == "f_locals")
        or (isinstance(node, ast.Delete) and any(isinstance(target, ast.Attribute) for target in node.targets))
    ]
    assert found == []


# ---- a superstep ------------------------------------------------------------------------------------------------------


class State(TypedDict):
    x: int


async def increment(state: State) -> State:
    return {"x": state["x"] + 1}


AROUND = ("run", "GraphRun.run", "_run_stored", "_run_with_timer", "invoke", "Graph.ainvoke")


class Call(msgspec.Struct, frozen=True):
    """A Python function of the product that was entered, and those that it was called from, in the product."""

    file: str
    function: str
    frames: tuple[str, ...]


async def calls_of_a_superstep() -> list[Call]:
    """What the superstep of b alone enters in a chain a -> b, in memory, the second time that the graph is called: from
    where the algorithm asks for its execution to where it has its checkpoint."""
    builder = StateGraph(State)
    builder.add_node("a", increment).add_node("b", increment).add_edge(START, "a").add_edge("a", "b")
    graph = builder.compile(InMemorySaver(), blocking=False)
    entered: list[Call] = []
    executions = 0

    def note(frame: types.FrameType, event: str, _: object) -> None:
        nonlocal executions
        code = frame.f_code
        if code.co_qualname == "GraphRun.execute" and event == "call":
            executions += 1
        elif code.co_qualname == "GraphRun.checkpoint" and event == "return" and executions == 3:
            executions += 1  # it is over
        if event == "call" and executions == 3 and code.co_name not in COMPREHENSIONS and _is_product(code):
            entered.append(Call(code.co_filename, code.co_qualname, tuple(_frames(frame))))

    await graph.ainvoke({"x": 0}, "warm")
    sys.setprofile(note)
    try:
        await graph.ainvoke({"x": 0}, "t")
    finally:
        sys.setprofile(None)
    assert executions == 4, "the hidden start, a, b, and the end of b"
    # A coroutine that is resumed is entered again; those around the superstep are resumed for it.
    return [call for call in entered if call.function not in AROUND]


def _is_product(code: types.CodeType) -> bool:
    path = Path(code.co_filename)
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("pregel_async", "checkpoint_savers")


def _frames(frame: types.FrameType) -> Iterator[str]:
    """The functions that a frame was called from, from the inside out, up to the superstep's own."""
    outer = frame.f_back
    while outer is not None and outer.f_code.co_name != "run":
        yield outer.f_code.co_qualname
        outer = outer.f_back


@pytest.mark.one_loop
@pytest.mark.anyio
async def test_what_a_superstep_enters() -> None:
    """A reader who follows a superstep of one node reads so many functions, in so many files."""
    calls = await calls_of_a_superstep()
    functions, files = {(call.file, call.function) for call in calls}, {call.file for call in calls}
    assert (len(functions) <= SUPERSTEP[0], len(files) <= SUPERSTEP[1]) == (True, True), (
        len(functions),
        len(files),
        sorted(functions),
    )


@pytest.mark.one_loop
@pytest.mark.anyio
async def test_the_path_of_a_commit() -> None:
    """From the checkpoint of a superstep to the saver's commit of it, the way is short and goes once."""
    calls = await calls_of_a_superstep()
    names = [call.function for call in calls]
    between = calls[names.index("GraphRun.checkpoint") + 1 : names.index("InMemorySaver.commit")]
    ends = {calls[names.index(name)].file for name in ("GraphRun.checkpoint", "InMemorySaver.commit")}
    frames = calls[names.index("InMemorySaver.commit")].frames
    assert len(between) <= COMMIT[0], between
    assert len({call.file for call in between} - ends) <= COMMIT[1], between
    assert frames.index("GraphRun.checkpoint") <= COMMIT[2], frames
