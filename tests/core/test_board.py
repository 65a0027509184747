"""The board: it is sparse, immutable to readers, and equal to itself after storing and restoring."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import SENDS, Program, Router
from pregel_async.channels import (
    MISSING,
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
    UntrackedValue,
)
from pregel_async.errors import EmptyChannelError
from pregel_async.types import Send
from tests.core.scripted import SCOPE, Script, begin, drive, node, plan, program, run, stored, write


def test_only_a_channel_with_a_value_has_a_version() -> None:
    """P10, `board`: an empty channel has no version, and its entry in versions_seen is removed."""
    graph = program(
        node("a", "e", lambda seen: {"x": 1}), node("b", "x"), e=EphemeralValue(), x=LastValue(), never=LastValue()
    )
    board = begin(graph, {"e": 1})
    assert board.versions == {"e": 1}
    write(graph, board, ("x", 1), by=plan(graph, board))
    assert (board.versions, board.seen) == ({"x": 2}, {})
    assert set(board.channels) == {"e", "x"}, "channels that were never written are not made"


def test_versions_rise_for_a_channel_that_was_emptied() -> None:
    """`board`: a channel that is written again gets a version above all others, so removing its seen versions loses
    nothing."""
    ran: list[int] = []
    graph = program(
        node("a", "e", lambda seen: ran.append(seen["e"]) or ({"e": seen["e"] + 1} if seen["e"] < 5 else None)),
        e=EphemeralValue(),
    )
    script = run(graph, {"e": 0})
    assert ran == [0, 1, 2, 3, 4, 5]
    assert [step.versions.get("e") for step in script.steps] == [2, 3, 4, 5, 6, None]


def test_a_boards_size_follows_its_values() -> None:
    """P10: neither versions nor versions_seen grow with the number of nodes or supersteps."""
    length = 60
    nodes = [node(f"n{index}", f"c{index}", sends=[f"c{index + 1}"]) for index in range(length)]
    graph = program(*nodes, keys=(), **{f"c{index}": EphemeralValue() for index in range(length + 1)})
    script = run(graph, {"c0": 1})
    assert max(len(step.versions) for step in script.steps) == 1
    assert max(len(step.seen) for step in script.steps) == 0


def everything() -> Program:
    return program(
        node("a", "x"),
        x=LastValue(),
        y=LastValue(),
        r=BinaryOperatorAggregate(list, operator.add),
        u=BinaryOperatorAggregate(int | str, operator.add),
        t=Topic(),
        b=NamedBarrierValue(str, {"a"}),
    )


def test_input_has_the_available_channels_only() -> None:
    """A node's input lacks keys that were never written; a reducer key whose type has an empty value is always
    present."""
    graph = everything()
    board = begin(graph, {"x": 1})
    assert board.input_of(node("n", "x", reads=tuple("xyrutb"))) == {"x": 1, "r": []}


def test_input_after_writes() -> None:
    """A node's input contains the written values; a complete barrier shows None."""
    graph = everything()
    board = begin(graph, {"x": 1, "y": None, "r": [1], "u": "a", "t": [1, 2], "b": "a"})
    assert board.input_of(node("n", "x", reads=tuple("xyrutb"))) == {
        "x": 1,
        "y": None,
        "r": [1],
        "u": "a",
        "t": [1, 2],
        "b": None,
    }


def test_input_of_a_node_that_reads_some_keys() -> None:
    """PregelNode: a node's input contains the channels that it reads, and no others."""
    graph = everything()
    board = begin(graph, {"x": 1, "y": 2})
    assert board.input_of(node("n", "x", reads=("y", "r"))) == {"y": 2, "r": []}


def test_input_of_a_node_that_reads_one_channel_bare() -> None:
    """A node built with `subscribe_only` gets the bare value, and None counts as a value."""
    graph = everything()
    board = begin(graph, {"x": None})
    assert board.input_of(node("n", "x", reads="x")) is None
    with pytest.raises(EmptyChannelError, match="'y'"):
        board.input_of(node("n", "x", reads="y"))


def test_control_channels_are_read_when_named() -> None:
    """A control channel holds no state, but a node that names it reads it."""
    graph = program(node("a", "x"), x=LastValue(), c=EphemeralValue(), keys="x")
    board = begin(graph, {"x": 1, "c": [2]})
    assert board.values == {"x": 1}
    assert board.input_of(node("n", "x", reads=("x", "c"))) == {"x": 1, "c": [2]}


def test_show() -> None:
    """One output channel is shown as a bare value (None when empty), several as a mapping of those that hold a
    value."""
    graph = everything()
    board = begin(graph, {"x": 1})
    assert board.show("x") == 1
    assert board.show("y") is None
    assert board.show(("x", "y", "r")) == {"x": 1, "r": []}


def test_every_read_is_isolated() -> None:
    """P1: a change in place of a value read from the board reaches no channel and no other reader."""
    graph = program(node("a", "x"), x=LastValue(), c=EphemeralValue(), keys="x")
    board = begin(graph, {"x": {"deep": [1]}, "c": {"deep": [1]}})
    readers: list[Callable[[], Any]] = [
        lambda: board.read("x"),
        lambda: board.read("c"),
        lambda: board.show("x"),
        lambda: board.show(("x", "c"))["x"],
        lambda: board.show(("x", "c"))["c"],
        lambda: board.input_of(node("n", "x", reads="x")),
        lambda: board.input_of(node("n", "x", reads=("x", "c")))["x"],
        lambda: board.input_of(node("n", "x", reads=("x", "c")))["c"],
    ]
    for read in readers:
        got = read()
        got["deep"].append("changed")
        got["new"] = 1
    assert all(read() == {"deep": [1]} for read in readers)


def router(*reads: str, whole: bool = False) -> Router:
    return Router(name="r", call=lambda value: None, reads=reads, whole=whole, shape=None, route=lambda answer: [])


@pytest.mark.parametrize("whole", [False, True])
def test_a_router_sees_its_own_nodes_writes(whole: bool) -> None:
    """A router sees the state plus its own node's writes, folded as the barrier will fold them."""
    graph = program(
        node("a", "x"),
        x=LastValue(),
        r=BinaryOperatorAggregate(list, operator.add),
        y=LastValue(),
        c=EphemeralValue(),
        keys="xry",
    )
    board = begin(graph, {"x": 1, "r": [1]})
    view = board.view_of(router("x", "r", "y", whole=whole), graph, [("r", [2]), ("y", 5), ("r", [3]), ("c", 1)])
    assert view == {"x": 1, "r": [1, 2, 3], "y": 5}
    assert board.values == {"x": 1, "r": [1]}, "rule 2: the board is as it was"
    assert board.channels["r"].get() == [1]


def test_a_router_with_its_own_schema_sees_only_that() -> None:
    """A router with a private schema sees the keys of this schema, and none of its node's other writes."""
    graph = program(node("a", "x"), x=LastValue(), y=LastValue())
    board = begin(graph, {"x": 1})
    assert board.view_of(router("x"), graph, [("y", 5)]) == {"x": 1}


def test_a_routers_view_is_isolated() -> None:
    """P1: a router's view is isolated from the board and from its node's writes."""
    graph = program(node("a", "x"), x=LastValue(), y=LastValue())
    board = begin(graph, {"x": {"n": [1]}})
    writes = [("y", {"n": [2]})]
    view = board.view_of(router("x", "y"), graph, writes)
    view["x"]["n"].append("changed")
    view["y"]["n"].append("changed")
    assert board.read("x") == {"n": [1]}
    assert writes == [("y", {"n": [2]})]


def big_program() -> Program:
    """A program with every kind of channel, a loop, a barrier, sends and a deferred end."""

    def a(seen: Any) -> Any:
        count = seen["n"] + 1
        return [
            ("n", count),
            ("log", [f"a{count}"]),
            ("any", count),
            ("topic", count),
            ("kept", count),
            ("both", "a"),
            ("late", None),
            *([("go", 1), (SENDS, Send("b", count))] if count < 3 else []),
        ]

    return program(
        node("a", "go", a, reads=("n",)),
        node("b", "never", lambda value: [("log", [f"b{value}"]), ("both", "b")]),
        node("j", "both", lambda seen: {"log": ["j"]}),
        node("d", "late", lambda seen: {"log": ["d"]}),
        go=EphemeralValue(),
        never=LastValue(),
        n=LastValue(),
        log=BinaryOperatorAggregate(list, operator.add),
        any=AnyValue(),
        topic=Topic(),
        kept=Topic(accumulate=True),
        both=NamedBarrierValue(str, {"a", "b"}),
        both2=NamedBarrierValueAfterFinish(str, {"a"}),
        late=LastValueAfterFinish(),
    )


@pytest.mark.parametrize("stop", range(1, 7))
def test_a_run_from_a_restored_board_is_the_same(stop: int) -> None:
    """P2: a run that continues from a stored board makes the same supersteps as an uninterrupted run."""
    graph = big_program()
    whole = run(graph, {"go": 1, "n": 0}).steps
    board, script = begin(graph, {"go": 1, "n": 0}), Script(graph)
    while plan(graph, board):
        if len(script.steps) == stop:
            board = stored(graph, board)
        tasks = plan(graph, board)
        outcomes = drive(script.execute(board, tasks))
        superstep.update(graph, board, tasks, superstep.collect(tasks, outcomes))
        drive(script.checkpoint(board, tasks, outcomes, superstep.plan(graph, board, SCOPE)))
    assert script.steps == whole
    assert len(whole) >= 5


def test_the_order_of_keys_is_the_same_after_a_restore() -> None:
    """P2: the keys of a node's input have the same order after a restore, so a prompt made by `json.dumps(state)` does
    not change."""
    graph = program(node("a", "x", lambda seen: {"b": 1}), node("n", "b"), x=LastValue(), c=LastValue(), b=LastValue())
    board = begin(graph, {"x": 1, "c": 1})
    write(graph, board, ("b", 1), by=plan(graph, board))
    reader = graph.nodes["n"]
    whole = node("n", "b", reads=("c", "x", "b"))
    assert list(board.input_of(reader)) == list(stored(graph, board).input_of(reader))
    assert list(board.input_of(whole)) == list(stored(graph, board).input_of(whole))
    assert list(board.show(("x", "c", "b"))) == list(stored(graph, board).show(("x", "c", "b")))
    shown = program(node("n", "x", reads=("x", "c", "b")), x=LastValue(), c=LastValue(), b=LastValue()).nodes["n"]
    assert shown.whole
    assert list(board.input_of(shown)) == list(stored(graph, board).input_of(shown))


def test_a_restored_board_has_no_untracked_values() -> None:
    """UntrackedValue is excluded from checkpoints: a restored board starts without it."""
    graph = program(node("a", "x"), x=LastValue(), u=UntrackedValue())
    board = begin(graph, {"x": 1, "u": object()})
    back = stored(graph, board)
    assert (back.values, back.versions) == ({"x": 1}, {"x": 1})


def test_a_reducer_that_was_never_written_is_not_stored() -> None:
    """P10: the empty value that an unwritten reducer channel shows is not stored, and is shown again after a
    restore."""
    graph = program(node("a", "x"), x=LastValue(), r=BinaryOperatorAggregate(list, operator.add))
    board = begin(graph, {"x": 1})
    assert board.stored_value("r") is MISSING
    assert stored(graph, board).values == {"x": 1, "r": []}


def test_initial_values_are_not_shared_between_boards() -> None:
    """P13: two boards of one program share no initial value, so one program serves concurrent runs."""
    graph = program(node("a", "x"), x=LastValue(), r=BinaryOperatorAggregate(list, operator.add))
    one, other = Board(graph), Board(graph)
    one.read("r").append("changed")
    write(graph, one, ("r", [1]))
    assert (one.read("r"), other.read("r"), Board(graph).read("r")) == ([1], [], [])


def test_a_program_shares_no_channel_with_its_builder() -> None:
    """`compile` never changes the builder: channels are copied."""
    given = LastValue(int)
    graph = program(node("a", "x"), x=given)
    begin(graph, {"x": 1})
    assert not given.is_available()
    assert graph.channels["x"] is not given
    assert not graph.channels["x"].is_available()
