"""The old code meets each form that the new code stores: it refuses, or continues without loss; then the new code continues."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, stored_type
from checkpoint_savers.errors import TypeVersionError
from pregel_async import START, Command, Send, StateGraph
from pregel_async.errors import GraphChangedError, UnknownStoredKeyWarning
from pregel_async.types import Renamed, Retyped
from tests.upgrades.graphs import Log, asks, built, failed, failing, of, ran, says

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pregel_async.errors.UnknownStoredKeyWarning"),
]


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str
    n: int


class New(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    customer: Annotated[str, Renamed("name")]
    n: Annotated[str, Retyped(str)]


PAIR: list[Any] = [(START, "a"), (START, "b")]


def pair(schema: Any, saver: Any, **update: Any) -> Any:
    return built(schema, {"a": says("a", update), "b": asks("b")}, PAIR, saver)


async def test_keys(saver: BaseCheckpointSaver) -> None:
    """P15: the old code warns of a renamed key and keeps it; a retyped key it refuses, unless the input replaces it."""
    old, new = pair(Old, saver), pair(New, saver)
    await old.ainvoke({"name": "Ada", "n": 1}, "t")
    await new.ainvoke({}, "t")
    ran.clear()
    state = await old.aget_state("t")
    assert (state.unknown, of(state)) == ({"customer": "Ada"}, [("key", "n", "all")])
    for value in (None, {}, Command(resume="yes"), {"name": "Bob"}):
        with pytest.raises(GraphChangedError, match="'n'"):
            await old.ainvoke(value, "t")
    assert ran == []
    assert await old.ainvoke({"n": 2}, "t") == {
        "log": [],
        "n": 2,
        "__interrupt__": [*(await old.aget_state("t")).interrupts],
    }
    assert (await new.ainvoke(Command(resume="yes"), "t")) == {"log": ["b: yes"], "customer": "Ada", "n": "2"}


async def test_records_of_renamed_keys(saver: BaseCheckpointSaver) -> None:
    """P15: a sibling's result that the new code has recorded reaches the new code through a superstep of the old one."""
    old, new = pair(Old, saver), pair(New, saver, customer="Bob")
    await failed(old, "a", given={"name": "Ada"})
    await new.ainvoke(None, "t")
    ran.clear()
    with pytest.warns(UnknownStoredKeyWarning, match=r"Renamed\('customer'\).*removed=\('customer',\)"):
        done = await pair(Old, saver).ainvoke(Command(resume="yes"), "t")
    assert done == {"log": ["b: yes"], "name": "Ada"} and ran == ["b"]
    assert (await new.aget_state("t")).values == {"log": ["b: yes"], "customer": "Bob"}


async def test_nodes(saver: BaseCheckpointSaver) -> None:
    """P15: tasks, sends and recorded edges of a renamed node are refused by the old code, and a new input is not."""

    def graph(name: str, target: str, **was: Any) -> Any:
        builder = StateGraph(Log).add_node("a", says("a")).add_edge(START, "a")
        builder.add_node(name, asks("x"), **({"was": was["x"]} if was else {}))
        builder.add_node(target, says("y"), **({"was": was["y"]} if was else {}))
        places = [name, Send(target, {})]
        return builder.add_conditional_edges("a", lambda state: places, [name, target]).compile(saver, blocking=False)

    old, new = graph("x", "y"), graph("x2", "y2", x="x", y="y")
    failing.add("y")
    await failed(new, "y", given={})
    ran.clear()
    state = await old.aget_state("t")
    assert of(state) == [("node", "x2", "resume"), ("node", "y2", "resume")]
    for value in (None, Command(resume="yes")):
        with pytest.raises(GraphChangedError, match="x2"):
            await old.ainvoke(value, "t")
    assert ran == []
    await saver.acopy_thread("t", "copy")
    assert (await old.ainvoke({}, "t"))["log"] == ["a", "a"]
    state = await new.aget_state("t")
    assert state.changed == () and sorted(state.next) == ["x2"]
    assert (await new.ainvoke(Command(resume="yes"), "t"))["log"] == ["a", "a", "x: yes", "y"]
    await new.ainvoke(None, "copy")
    assert (await new.ainvoke(Command(resume="yes"), "copy"))["log"] == ["a", "x: yes", "y"]


async def test_stored_types(saver: BaseCheckpointSaver) -> None:
    """P15: objects of a later version of a class are refused by the old code; the new code continues."""

    @stored_type("downgraded")
    @dataclass
    class First:
        cents: int

    @stored_type("downgraded", version=2, upcast={1: lambda fields: {"price": fields["cents"] / 100}})
    @dataclass
    class Second:
        price: float

    schema: Any = TypedDict
    old = pair(schema("One", {"item": First, "log": Annotated[list[str], operator.add]}, total=False), saver)
    new = pair(schema("Two", {"item": Second, "log": Annotated[list[str], operator.add]}, total=False), saver)
    await old.ainvoke({"item": First(120)}, "t")
    assert (await new.aget_state("t")).values["item"] == Second(1.2)
    await new.ainvoke({"item": Second(3.5)}, "t")
    ran.clear()
    for value in (None, {}, Command(resume="yes")):
        with pytest.raises(TypeVersionError):
            await old.ainvoke(value, "t")
    assert ran == []
    assert (await new.ainvoke(Command(resume="yes"), "t"))["item"] == Second(3.5)
