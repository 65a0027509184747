"""Rare cases: channels that an update empties, tuples with attributes, deep nesting, reserved channel names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkpoint_savers.deltas import SENDS
from pregel_async import NodeBuilder, Pregel
from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.isolation import isolate
from pregel_async._core.ownership import own
from pregel_async._core.program import Node, Program, Router, build_program
from pregel_async.channels import MISSING, BaseChannel, EphemeralValue, LastValue
from pregel_async.errors import EmptyChannelError, GraphValidationError, InvalidUpdateError

SCOPE = ("t", "")


class Toggle(BaseChannel[int, int, Any]):
    """A channel that holds a positive number; a negative one empties it. `finish` changes it without making it
    available."""

    __slots__ = ("value",)

    def __init__(self, typ: Any = int) -> None:
        super().__init__(typ)
        self.value: Any = MISSING

    def get(self) -> int:
        if self.value is MISSING:
            raise EmptyChannelError(self.key)
        return int(self.value)

    def update(self, values: Sequence[int]) -> bool:
        if not values:
            return False
        self.value = values[-1] if values[-1] > 0 else MISSING
        return True

    def from_checkpoint(self, stored: Any) -> Toggle:
        made = Toggle(self.typ)
        made.key, made.value = self.key, stored
        return made

    def checkpoint(self) -> Any:
        return self.value

    def finish(self) -> bool:
        changed = self.value is not MISSING
        self.value = MISSING
        return changed


def program(*routers: Router) -> Program:
    node = Node(
        name="n",
        triggers=("go",),
        reads=("k",),
        call=lambda value: value,
        flavour="inline",
        writes=lambda result: [],
        routers=routers,
    )
    channels: dict[str, BaseChannel[Any, Any, Any]] = {"go": EphemeralValue(), "k": Toggle()}
    return build_program(
        name="g",
        nodes=[node],
        channels=channels,
        keys=["k"],
        inputs="go",
        outputs="k",
        shown="k",
        read_input=lambda given: [],
        read_command=lambda command: [],
    )


def test_a_router_sees_that_its_node_emptied_a_key() -> None:
    """A router sees that a write of its own node emptied a channel."""
    router = Router(name="r", call=lambda state: None, reads=("k",), shape=None, route=lambda answer: [])
    graph = program(router)
    board = Board(graph)
    superstep.update(graph, board, [], [[("k", 1), ("go", None)]])
    assert board.view_of(graph.nodes["n"].routers[0], graph, [("k", -1)]) == {}
    assert board.values == {"k": 1}


def test_a_channel_that_finishing_empties_triggers_nothing() -> None:
    """`finish` may change a channel without making it available, and then triggers no node."""
    graph = program()
    board = Board(graph)
    superstep.update(graph, board, [], [[("k", 1), ("go", None)]])
    tasks = superstep.plan(graph, board, SCOPE)
    assert repr(tasks[0]) == "<task 'n' of superstep 0, path ('__pregel_pull', 'n')>"
    superstep.update(graph, board, tasks, [[]])
    assert "k" not in board.values
    assert "k" not in board.versions
    assert superstep.plan(graph, board, SCOPE) == []


def test_a_tuple_with_attributes_keeps_them() -> None:
    """P1: a tuple subclass is data and keeps its attributes."""

    class Tagged(tuple[Any, ...]):
        tag: str

    value = Tagged(([1],))
    value.tag = "x"
    copied = own(value)
    assert (type(copied), copied, copied.tag) == (Tagged, ([1],), "x")
    assert copied[0] is not value[0]


def test_an_object_that_a_node_inserts_is_not_copied() -> None:
    """P1: only values handed out by the runtime are isolated, not those that their holder inserts."""
    mine: list[int] = []
    taken: Any = isolate({"a": [1]})
    taken["b"] = mine
    taken["c"] = mine
    assert taken["b"] is mine
    assert taken["c"] is mine


def test_a_value_nested_too_deeply_is_refused() -> None:
    """Bad input: a value that is nested too deeply raises an error that names the channel, and does not crash."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidUpdateError, match="channel 'k': the value contains itself, or is nested too deeply"):
        own(deep, "k")


def test_the_channel_of_sends_is_reserved() -> None:
    """Compiling refuses another kind of channel under the name of the channel of sends."""
    node = NodeBuilder().subscribe_only("a").do(len).write_to("a")
    with pytest.raises(GraphValidationError, match="reserved for pending sends"):
        Pregel(
            nodes={"n": node}, channels={"a": LastValue(), SENDS: LastValue()}, input_channels="a", output_channels="a"
        )


def test_elements_that_c_code_moved_are_isolated() -> None:
    """P1: an element that was handed out stays a copy wherever C code moves it within its container."""
    origin = {"a": [1]}
    taken: Any = isolate(origin)
    dict.__setitem__(taken, "z", dict.__getitem__(taken, "a"))
    taken["z"].append(2)
    assert origin == {"a": [1]}
