"""Keys that no schema has: refused by default, dropped by `unknown_keys="ignore"`, for a graph or for a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, NodeBuilder, Pregel, StateGraph, set_defaults
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import GraphValidationError, InvalidInputError, InvalidUpdateError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    text: str


def write(state: State) -> Any:
    return {"text": "written", "txet": "a typo"}


def graph(node: Any = write, **options: Any) -> Any:
    return StateGraph(State).add_node("write", node).add_edge(START, "write").compile(InMemorySaver(), **options)


def channels(**options: Any) -> Any:
    node = NodeBuilder().subscribe_to("a").do(lambda given: given["a"]).write_to("b")
    declared: Any = {"a": EphemeralValue(str), "b": LastValue(str)}
    return Pregel(nodes={"n": node}, channels=declared, input_channels=["a"], output_channels="b", **options)


@pytest.fixture
def ignored() -> Iterator[None]:
    set_defaults(unknown_keys="ignore")
    try:
        yield
    finally:
        set_defaults(unknown_keys="error")


async def test_the_error_says_how_to_drop_them() -> None:
    """A typo is an error by default. It names the option of the graph, and that of the whole program."""
    say = r"\(unknown_keys='ignore'\) drops such keys, set_defaults\(unknown_keys='ignore'\) in all graphs"
    with pytest.raises(InvalidUpdateError, match=f"'txet'.*compile{say}"):
        await graph().ainvoke({"text": ""}, "t")
    with pytest.raises(InvalidInputError, match=f"'txet'.*compile{say}"):
        await graph().ainvoke({"txet": ""}, "t")
    with pytest.raises(InvalidUpdateError, match=f"'txet'.*compile{say}"):
        await graph().aupdate_state("t", {"txet": ""}, as_node="write")
    with pytest.raises(InvalidInputError, match=f"'c'.*Pregel{say}"):
        await channels().ainvoke({"a": "x", "c": "y"})


async def test_a_graph_drops_them() -> None:
    """In inputs, updates, commands and edits; what is known is kept."""
    made = graph(unknown_keys="ignore")
    assert await made.ainvoke({"text": "", "txet": 1}, "t") == {"text": "written"}
    command = graph(lambda state: Command(update={"text": "c", "txet": 1}), unknown_keys="ignore")
    assert await command.ainvoke({}, "t") == {"text": "c"}
    await made.aupdate_state("t", {"text": "edited", "txet": 1}, as_node="write")
    assert (await made.aget_state("t")).values == {"text": "edited"}
    assert await channels(unknown_keys="ignore").ainvoke({"a": "x", "c": "y"}) == "x"


@pytest.mark.usefixtures("ignored")
async def test_a_program_drops_them() -> None:
    """`set_defaults` sets it for graphs that are compiled from then on; a graph's own option overrides it."""
    assert await graph().ainvoke({"txet": 1}, "t") == {"text": "written"}
    assert await graph(unknown_keys=None).ainvoke({"txet": 1}, "t") == {"text": "written"}
    assert await channels().ainvoke({"a": "x", "c": "y"}) == "x"
    with pytest.raises(InvalidInputError):
        await graph(unknown_keys="error").ainvoke({"txet": 1}, "t")


async def test_wrong_values_are_refused() -> None:
    """And nothing is set then."""
    with pytest.raises(GraphValidationError, match="unknown_keys is 'error' or 'ignore', not 'drop'"):
        graph(unknown_keys="drop")
    wrong: Any = "drop"
    with pytest.raises(GraphValidationError):
        set_defaults(unknown_keys=wrong)
    set_defaults(validate_input=True)
    with pytest.raises(InvalidInputError):
        await graph().ainvoke({"txet": 1}, "t")
