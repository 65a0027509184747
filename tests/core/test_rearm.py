"""What a superstep leaves pending: tasks of the plan that do not run in it, and are pending after it as before."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import pytest

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import SENDS, Program
from pregel_async._core.task import Task
from pregel_async.channels import (
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    Topic,
)
from pregel_async.types import Send
from tests.core.scripted import begin, node, plan, program, stored


def log() -> BinaryOperatorAggregate[Any]:
    return BinaryOperatorAggregate(list, operator.add)


def beside(graph: Program, name: str, board: Board) -> Task:
    """A task that is not of the plan."""
    return Task(graph.nodes[name], board.step + 1, -1, ("thread", ""))


def fold(graph: Program, board: Board, ran: Sequence[Task], *writes: Any, left: Sequence[Task]) -> list[str]:
    """Update, and say what is pending: the same in memory as when it was stored and loaded."""
    superstep.update(graph, board, ran, [list(each) for each in writes], left=left)
    pending = plan(graph, board)
    again = plan(graph, stored(graph, board))
    assert [(t.id, t.node.name, t.arg) for t in again] == [(t.id, t.node.name, t.arg) for t in pending]
    return [task.node.name for task in pending]


def test_an_ephemeral_trigger_is_kept() -> None:
    """An update as any other node re-arms what was pending, with what it was to see."""
    graph = program(node("a", "go"), node("x", "never"), go=EphemeralValue(int), never=LastValue(int), log=log())
    board = begin(graph, {"go": 7})
    pending = plan(graph, board)
    assert fold(graph, board, [beside(graph, "x", board)], [("log", ["x"])], left=pending) == ["a"]
    (task,) = plan(graph, board)
    assert board.input_of(task.node) == {"go": 7}
    assert fold(graph, board, [task], [("log", ["a"])], left=[]) == []
    assert board.values["log"] == ["x", "a"]


def test_what_ran_is_not_triggered_again() -> None:
    """P5, rule 5: of two nodes that one channel triggers, the one that has run does not run again."""
    for channel in (EphemeralValue(int), Topic(int), LastValue(int)):
        graph = program(node("a", "go"), node("b", "go"), go=channel)
        board = begin(graph, {"go": 7})
        ran, left = plan(graph, board)
        assert fold(graph, board, [ran], [], left=[left]) == ["b"]
        assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_two_that_wait_for_one_guarded_channel() -> None:
    """Several tasks that one channel triggers stay pending, each once, on the value as it is."""
    graph = program(
        node("a", "go"), node("b", "go"), node("x", "never"), go=EphemeralValue(int), never=EphemeralValue(int)
    )
    board = begin(graph, {"go": 7})
    assert fold(graph, board, [beside(graph, "x", board)], [], left=plan(graph, board)) == ["a", "b"]
    assert board.values["go"] == 7


def test_a_topic_is_not_doubled() -> None:
    """What waits sees each value of its topic once, and what was added after them."""
    graph = program(node("a", "t"), node("b", "t"), node("x", "never"), t=Topic(int), never=EphemeralValue(int))
    board = begin(graph, {"t": [1, 2]})
    assert fold(graph, board, [beside(graph, "x", board)], [], left=plan(graph, board)) == ["a", "b"]
    assert board.values["t"] == [1, 2]
    assert fold(graph, board, [beside(graph, "x", board)], [("t", 3)], left=plan(graph, board)) == ["a", "b"]
    assert board.values["t"] == [1, 2, 3]


def test_a_new_value_wins() -> None:
    """What is written in the superstep takes the place of what was there, guarded or not."""
    for guard in (True, False):
        graph = program(node("a", "go"), node("x", "never"), go=EphemeralValue(int, guard), never=EphemeralValue(int))
        board = begin(graph, {"go": 7})
        assert fold(graph, board, [beside(graph, "x", board)], [("go", 8)], left=plan(graph, board)) == ["a"]
        assert board.values["go"] == 8


def test_sends_are_sent_again() -> None:
    """Pending sends stay pending, before those that the superstep adds; the one that ran is gone."""
    graph = program(node("w", "never"), never=EphemeralValue(int))
    board = Board(graph)
    superstep.update(graph, board, (), [[(SENDS, Send("w", number)) for number in range(3)]])
    first, ran, last = plan(graph, board)
    assert fold(graph, board, [ran], [(SENDS, Send("w", 9))], left=[first, last]) == ["w", "w", "w"]
    assert [task.arg for task in plan(graph, board)] == [0, 2, 9]


@pytest.mark.parametrize("after", [0, 1])
def test_a_barrier(after: int) -> None:
    """A barrier that is half complete stays so; one that is complete triggers its node as before."""
    names = ["a", "b"]
    graph = program(node("j", "both"), node("x", "never"), both=NamedBarrierValue(str, names), never=LastValue(int))
    board = begin(graph, {"both": names[after]})
    assert fold(graph, board, [beside(graph, "x", board)], [], left=plan(graph, board)) == []
    assert fold(graph, board, [beside(graph, "x", board)], [("both", names[1 - after])], left=[]) == ["j"]
    assert fold(graph, board, [beside(graph, "x", board)], [], left=plan(graph, board)) == ["j"]
    assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_a_barrier_that_two_share() -> None:
    """P5: the one that runs does not use up what triggers the other."""
    graph = program(node("j", "both"), node("k", "both"), both=NamedBarrierValue(str, ["a"]))
    board = begin(graph, {"both": "a"})
    ran, left = plan(graph, board)
    assert fold(graph, board, [ran], [], left=[left]) == ["k"]
    assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_what_was_put_off_stays_so() -> None:
    """Deferred nodes come at a tentative end, and while a task is pending there is none."""
    for channel, go in ((NamedBarrierValue(str, ["a"]), "a"), (LastValue(str), "a"), (EphemeralValue(str), "a")):
        graph = program(
            node("d", "end"), node("j", "go"), node("x", "never"),
            end=LastValueAfterFinish(int), go=channel, never=LastValue(int),
        )  # fmt: skip
        board = begin(graph, {"go": go, "end": 1})
        assert fold(graph, board, [beside(graph, "x", board)], [], left=plan(graph, board)) == ["j"]
        assert fold(graph, board, plan(graph, board), [], left=[]) == ["d"]
        assert fold(graph, board, [beside(graph, "x", board)], [], left=plan(graph, board)) == ["d"]
        assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_what_is_put_off_again() -> None:
    """A deferred node that was due, and is triggered again beside something else, is put off again."""
    graph = program(
        node("a", "go"), node("d", "end"), node("x", "never"),
        end=LastValueAfterFinish(int), go=EphemeralValue(int), never=LastValue(int),
    )  # fmt: skip
    board = begin(graph, {"end": 1})
    assert fold(graph, board, [beside(graph, "x", board)], [], left=[]) == ["d"]
    assert fold(graph, board, [beside(graph, "x", board)], [("end", 2), ("go", 3)], left=plan(graph, board)) == ["a"]
    assert fold(graph, board, plan(graph, board), [], left=[]) == ["d"]
    assert board.values["end"] == 2


def test_nobody_runs() -> None:
    """An update that changes nothing leaves all that is pending, of every kind."""
    graph = program(
        node("a", "go"), node("j", "both"), node("t", "topic"), node("w", "never"),
        go=EphemeralValue(int), both=NamedBarrierValue(str, ["a"]), topic=Topic(int), never=LastValue(int),
    )  # fmt: skip
    board = begin(graph, {"go": 1, "both": "a", "topic": 5, SENDS: Send("w", 2)})
    assert fold(graph, board, (), [], left=plan(graph, board)) == ["a", "j", "t", "w"]
    assert board.values == {"go": 1, "both": None, "topic": [5]}
