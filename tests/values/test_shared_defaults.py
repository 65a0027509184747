"""Defaults of a state's class: each node gets its own copy (P1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, StateGraph

pytestmark = pytest.mark.anyio

SHARED: list[Any] = [[1]]


def shared() -> list[Any]:
    return SHARED


@dataclasses.dataclass
class Data:
    x: int = 0
    tags: list[Any] = dataclasses.field(default_factory=shared)
    later: list[Any] = dataclasses.field(init=False, default_factory=shared)


@dataclasses.dataclass(slots=True, frozen=True)
class Slotted:
    x: int = 0
    tags: list[Any] = dataclasses.field(default_factory=shared)


class Struct(msgspec.Struct):
    x: int = 0
    tags: list[Any] = msgspec.field(default_factory=shared)


class FrozenStruct(msgspec.Struct, frozen=True):
    x: int = 0
    tags: list[Any] = msgspec.field(default_factory=shared)


class Model(pydantic.BaseModel):
    x: int = 0
    tags: list[Any] = pydantic.Field(default_factory=shared)
    _notes: list[Any] = pydantic.PrivateAttr(default_factory=shared)


@pytest.mark.parametrize("schema", [Data, Slotted, Struct, FrozenStruct, Model])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_default_of_a_factory_is_each_nodes_own(schema: Any, stored: bool) -> None:
    """P1: a change in place of a default that the factory returns each time reaches no other thread or user."""
    seen: list[Any] = []

    def spoil(state: Any) -> Any:
        for name in ("tags", "later", "_notes"):
            mine = getattr(state, name, None)
            if mine is not None:
                seen.append([[*mine[0]], len(mine)])
                mine[0].append("spoiled")
                mine.append("spoiled")
        return {"x": 1}

    def look(state: Any) -> str:
        spoil(state)
        return END

    builder = StateGraph(schema).add_node("a", spoil).add_node("b", spoil).add_conditional_edges("b", look)
    graph = builder.add_edge(START, "a").add_edge("a", "b").compile(InMemorySaver() if stored else None)
    for thread in ("t", "u"):
        await graph.ainvoke({"x": 0}, thread)
    assert [[1], 1] in seen and all(each == [[1], 1] for each in seen)
    assert SHARED == [[1]]


async def test_what_a_node_makes_of_a_default_counts_when_it_is_returned() -> None:
    """P1: a node's change to a default counts only if the node returns it."""

    def extend(state: Data) -> Any:
        state.tags.append(2)
        return {"tags": state.tags}

    graph = StateGraph(Data).add_node("a", extend).add_edge(START, "a").compile()
    assert (await graph.ainvoke({"x": 0}))["tags"] == [[1], 2]
    assert SHARED == [[1]]


@dataclasses.dataclass
class Indexed:
    x: int = 0
    rows: list[Any] = dataclasses.field(default_factory=shared)

    def __post_init__(self) -> None:
        self.first = self.rows[0]


async def test_what_an_object_makes_of_its_defaults_is_of_them() -> None:
    """P1: `__post_init__` and the node see the same object in a default field."""

    def extend(state: Indexed) -> Any:
        state.first.append(2)
        return {"rows": state.rows}

    graph = StateGraph(Indexed).add_node("a", extend).add_edge(START, "a").compile()
    assert (await graph.ainvoke({"x": 0}))["rows"] == [[1, 2]]
    assert SHARED == [[1]]
