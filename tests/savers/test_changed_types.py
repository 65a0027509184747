"""P11, P15: an object that the present version of its class does not accept is not reported as damage."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, Codec
from checkpoint_savers.codec.frame import seal, unseal
from checkpoint_savers.errors import CorruptCheckpointError, StoredTypeChangedError
from checkpoint_savers.stores import SqliteStore
from pregel_async import START, StateGraph
from pregel_async.errors import PregelError
from tests.savers.upkeep_graphs import opened

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


def item(*fields: Any) -> Any:
    """A class `Item` of this module, in one version or another."""
    return dataclasses.make_dataclass("Item", fields, namespace={"__module__": __name__})


Then = item(("name", str))
Now = item(("name", str), ("vat", int))
Fixed = item(("name", str), ("vat", int, dataclasses.field(default=19)))


def graph(cls: Any, saver: Any, **settings: Any) -> Any:
    schema: Any = TypedDict("schema", {"items": list[cls], "n": int}, total=False)
    made: Any = StateGraph(schema).add_node("count", lambda state: {"n": len(state["items"])})
    return made.add_edge(START, "count").compile(saver, blocking=False, **settings)


async def test_a_changed_nested_class(saver: BaseCheckpointSaver) -> None:
    """P15: the error on reading and running names the class, the field, the key, the thread and what to do; nothing
    is changed, and a default or functions of the user's own let the thread continue."""
    old = graph(Then, saver)
    await old.ainvoke({"items": [Then("pen")]}, "t")
    new = graph(Now, saver)
    with pytest.raises(StoredTypeChangedError) as raised:
        await new.aget_state("t")
    error = raised.value
    assert (error.field, error.type_name, error.tag) == ("vat", f"{__name__}.Item", f"{__name__}.Item")
    assert str(error).startswith(
        f"channel 'items': a stored object of type '{__name__}.Item' (version 1) lacks field 'vat', which Item needs now: "
        "the class has changed since. Nothing is damaged: give the field a default, or Codec().with_types(Item, "
        f"tag='{__name__}.Item', version=2, upcast={{1: ...}})."
    )
    assert error.__notes__ == ["channel 'items' of thread 't' holds it"]
    assert isinstance(error, PregelError) and not isinstance(error, CorruptCheckpointError)
    with pytest.raises(StoredTypeChangedError):
        await new.ainvoke({"items": []}, "t")
    history = [state async for state in new.aget_state_history("t")]
    with pytest.raises(StoredTypeChangedError):
        _ = history[0].values
    assert (await old.aget_state("t")).values["items"] == [Then("pen")]
    assert (await graph(Fixed, saver).ainvoke({"n": 0}, "t"))["items"] == [Fixed("pen", 19)]


@pytest.mark.one_loop
async def test_an_item_of_a_store(tmp_path: Path) -> None:
    """P15: the error also occurs for items of stores, and names the item."""
    path = tmp_path / "items.db"
    async with SqliteStore.from_conn_string(path, codec=Codec().with_types(Then)) as store:
        await store.aput(("a",), "k", {"item": Then("pen")})
    async with SqliteStore.from_conn_string(path, codec=Codec().with_types(Now)) as store:
        with pytest.raises(StoredTypeChangedError, match=r"item 'k' of namespace \('a',\): a stored object .* 'vat'"):
            await store.aget(("a",), "k")


def reread_as(cls: Any, other: Any, value: Any) -> Any:
    """Encode a value, and decode it with a codec that has another class under the tag."""
    data = Codec().with_types(cls, tag="T").encode(value, channel="k")
    return Codec().with_types(other, tag="T").decode(data, channel="k")


class Color(enum.Enum):
    RED = 1


class Struct(msgspec.Struct):
    name: str


class Model(pydantic.BaseModel):
    name: str


def test_the_error_names_the_class_and_the_part() -> None:
    """P15: the error names missing fields, missing members, classes of another kind, and what a user's function
    raised, each with what to do."""
    with pytest.raises(StoredTypeChangedError, match="is member 'RED'.*renamed={'RED': ...}") as raised:
        reread_as(Color, enum.Enum("Color", ["BLUE"]), Color.RED)
    assert raised.value.field == "RED"
    for one, other, value in [(Then, Color, Then("a")), (Color, Struct, Color.RED), (Color, Model, Color.RED)]:
        with pytest.raises(StoredTypeChangedError, match="does not fit .*with_types"):
            reread_as(one, other, value)

    def decode(state: Any) -> Any:
        return Now(**state)

    assert reread_as(Struct, Model, Struct("a")) == Model(name="a")
    assert reread_as(Model, Then, Model(name="a")) == Then("a")
    stored = Codec().with_types(Then, tag="T").encode(Then("pen"), channel="k")
    with pytest.raises(StoredTypeChangedError, match="'vat'") as caught:
        Codec().with_type(Now, tag="T", encode=dataclasses.asdict, decode=decode).decode(stored, channel="k")
    assert (caught.value.field, type(caught.value.__cause__)) == (None, TypeError)
    upcast = Codec().with_type(Now, tag="T", encode=dataclasses.asdict, decode=lambda state: decode({"vat": 7} | state))
    assert upcast.decode(stored, channel="k") == Now("pen", 7)


def test_damage_is_still_damage() -> None:
    """P11: no change of a byte of a frame makes damage look like a changed class."""
    frame = seal(Codec().with_types(Then, tag="T").encode([Then("pen"), "x" * 20], channel="k"))
    now = Codec().with_types(Now, tag="T")
    with pytest.raises(StoredTypeChangedError):
        now.decode(unseal(frame, "it"), channel="k")
    for place in range(len(frame)):
        for bit in (1, 16, 128):
            damaged = bytearray(frame)
            damaged[place] ^= bit
            with pytest.raises(PregelError) as raised:
                now.decode(unseal(bytes(damaged), "it"), channel="k")
            assert not isinstance(raised.value, StoredTypeChangedError)
    for size in range(len(frame)):
        with pytest.raises(CorruptCheckpointError):
            now.decode(unseal(frame[:size], "it"), channel="k")
