"""P15: stored keys that the graph does not have stay stored, are shown separately, and cause one warning each."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, Codec, StoredObject
from checkpoint_savers.upkeep import copy_thread
from pregel_async import START, StateGraph, interrupt
from pregel_async.errors import UnknownStoredKeyWarning
from pregel_async.types import Command
from tests.savers.upkeep_graphs import opened

pytestmark = pytest.mark.anyio


@dataclass
class Item:
    name: str


@dataclass
class Cart:
    items: list[Item]


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str
    cart: Cart
    text: str
    notes: Annotated[list[str], operator.add]


class New(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    customer: str


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


def graph(schema: Any, saver: Any, first: Any = None, name: str = "orders") -> Any:
    """`first` and `second` run in one superstep; `second` asks a question."""

    def second(state: Any) -> Any:
        return {"log": [interrupt("?")]}

    made: Any = StateGraph(schema).add_node("first", first or (lambda state: {"log": ["first"]})).add_node(second)
    return made.add_edge(START, "first").add_edge(START, "second").compile(saver, blocking=False, name=name)


GIVEN = {"name": "ann", "cart": Cart([Item("pen")]), "text": "x" * 1000, "notes": ["a"]}
CART = StoredObject(f"{__name__}.Cart", {"items": [StoredObject(f"{__name__}.Item", {"name": "pen"})]})
UNKNOWN = {"name": "ann", "cart": CART, "text": "x" * 1000, "notes": ["a"]}


def unknown_keys(caught: list[warnings.WarningMessage]) -> list[str]:
    found = [each.message for each in caught]
    return [each.key for each in found if isinstance(each, UnknownStoredKeyWarning)]


async def test_unknown_keys_stay_and_are_shown(saver: BaseCheckpointSaver) -> None:
    """P15: they stay through resumes, new inputs, edits, forks, copies and many supersteps, with one warning for
    each key."""
    await graph(Old, saver).ainvoke(GIVEN, "t")
    new = graph(New, saver)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state = await new.aget_state("t")
        assert (state.values, state.unknown) == ({"log": []}, UNKNOWN)
        await new.ainvoke(Command(resume="second"), "t")
        assert (await new.aget_state("t")).values == {"log": ["first", "second"]}
        edited = await new.aupdate_state("t", {"customer": state.unknown["name"]}, "first")
        await new.aupdate_state(state.config, {"log": ["forked"]}, "first")
        assert (await new.aget_state("t")).unknown == UNKNOWN
        await copy_thread(saver, "t", "copy")
        for turn in range(33):  # more supersteps than between two keyframes
            await new.ainvoke({"log": [str(turn)]}, "copy", interrupt_before=["first"])
        assert (await new.aget_state("copy")).unknown == UNKNOWN
        assert (await new.aget_state(edited)).unknown == UNKNOWN
        history = [state async for state in new.aget_state_history("t")]
        assert [state.unknown for state in history[:-1]] == [UNKNOWN] * 4  # the first holds the input
    assert unknown_keys(caught) == ["cart", "name", "notes", "text"]
    values = (await graph(Old, saver).aget_state("copy")).values
    assert {key: values[key] for key in GIVEN} == GIVEN


async def test_recorded_writes_to_unknown_keys_are_kept(saver: BaseCheckpointSaver) -> None:
    """P15: a finished task's recorded write to a missing key replaces the stored value; if the key had a reducer,
    which is unknown now, the stored value stays."""

    def first(state: Old) -> Old:
        return {"name": "bob", "text": "y" * 1000, "notes": ["b"], "log": ["first"]}

    old = graph(Old, saver, first)
    await old.ainvoke({"log": [], "notes": ["a"], "name": "ann"}, "t")
    with pytest.warns(UnknownStoredKeyWarning):
        new = graph(New, saver)
        assert (await new.ainvoke(Command(resume="second"), "t"))["log"] == ["first", "second"]
    assert (await new.aget_state("t")).unknown == {"name": "bob", "text": "y" * 1000, "notes": ["a"]}
    assert (await old.aget_state("t")).values["name"] == "bob"


async def test_a_failed_router_keeps_unknown_keys(saver: BaseCheckpointSaver) -> None:
    """P15, P3: a task whose router has to run again keeps its recorded writes to a missing key."""

    def built(schema: Any, route: Any, writes: Any) -> Any:
        made: Any = StateGraph(schema).add_node("n", lambda state: writes).add_edge(START, "n")
        return made.add_conditional_edges("n", route, ["n", "__end__"]).compile(saver, blocking=False)

    def fails(state: Any) -> str:
        raise RuntimeError("no route")

    with pytest.raises(RuntimeError):
        await built(Old, fails, {"name": "ann", "log": ["n"]}).ainvoke({"log": []}, "t")
    with pytest.warns(UnknownStoredKeyWarning), pytest.raises(RuntimeError):
        await built(New, fails, {}).ainvoke(None, "t")
    with pytest.warns(UnknownStoredKeyWarning):
        new = built(New, lambda state: "__end__", {})
        assert await new.ainvoke(None, "t") == {"log": ["n"]}
    assert (await new.aget_state("t")).unknown == {"name": "ann"}


async def test_an_update_of_an_open_superstep(saver: BaseCheckpointSaver) -> None:
    """P15: so does an update that a call made to a missing key while the superstep was open."""
    old = graph(Old, saver)
    await old.ainvoke({"log": []}, "t")
    await old.ainvoke(Command(update={"name": "ann"}), "t")
    await old.ainvoke(Command(update={"log": ["x"]}), "t")
    with pytest.warns(UnknownStoredKeyWarning):
        new = graph(New, saver)
        await new.ainvoke(Command(resume="second"), "t")
    assert (await new.aget_state("t")).unknown == {"name": "ann"}


@pytest.mark.one_loop
async def test_unknown_keys_in_subgraphs_and_warnings_as_errors(saver: BaseCheckpointSaver) -> None:
    """P15: the same holds in subgraphs; where the warning is an error, no node runs."""

    def around(inner: Any) -> Any:
        made: Any = StateGraph(New).add_node("inner", inner).add_edge(START, "inner")
        return made.compile(saver)

    await around(graph(Old, None, lambda state: {"name": "ann"}, name="inner")).ainvoke({"log": []}, "t")
    renamed = around(graph(New, None, name="inner"))
    with pytest.raises(UnknownStoredKeyWarning) as raised:
        await renamed.ainvoke(Command(resume="second"), "t")
    assert (raised.value.thread_id, raised.value.graph, raised.value.key) == ("t", "inner", "name")
    (task,) = (await renamed.aget_state("t", subgraphs=True)).tasks
    assert len(task.state.interrupts) == 1
    await renamed.ainvoke(None, "t")  # the answer was recorded


def test_objects_without_their_classes_are_data() -> None:
    """If asked for stored data, a codec reads objects without their classes as data."""
    shelf: Any = sys.modules[__name__]
    written = Codec().with_types(shelf.Cart)
    data = written.encode([Cart([Item("pen")]), {1}], channel="k")
    assert Codec().decode_stored(data, channel="k") == [CART, {1}]
    assert written.decode_stored(data, channel="k") == [Cart([Item("pen")]), {1}]
    only = Codec().with_types(Item)
    assert only.decode_stored(data, channel="k") == [StoredObject(f"{__name__}.Cart", {"items": [Item("pen")]}), {1}]
