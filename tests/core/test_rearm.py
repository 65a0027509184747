"""Tasks of the plan that a superstep does not run stay pending after it."""

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


def unplanned_task(graph: Program, name: str, board: Board) -> Task:
    """Return a task that is not part of the plan."""
    return Task(graph.nodes[name], board.step + 1, -1, ("thread", ""))


def fold(graph: Program, board: Board, ran: Sequence[Task], *writes: Any, left: Sequence[Task]) -> list[str]:
    """Update the board and return the names of pending tasks, the same in memory as after storing and loading."""
    superstep.update(graph, board, ran, [list(each) for each in writes], left=left)
    pending = plan(graph, board)
    again = plan(graph, stored(graph, board))
    assert [(t.id, t.node.name, t.arg) for t in again] == [(t.id, t.node.name, t.arg) for t in pending]
    return [task.node.name for task in pending]


def test_an_ephemeral_trigger_is_kept() -> None:
    """An update as another node re-arms the pending tasks with the input they were to get."""
    graph = program(node("a", "go"), node("x", "never"), go=EphemeralValue(int), never=LastValue(int), log=log())
    board = begin(graph, {"go": 7})
    pending = plan(graph, board)
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [("log", ["x"])], left=pending) == ["a"]
    (task,) = plan(graph, board)
    assert board.input_of(task.node) == {"go": 7}
    assert fold(graph, board, [task], [("log", ["a"])], left=[]) == []
    assert board.values["log"] == ["x", "a"]


def test_what_ran_is_not_triggered_again() -> None:
    """P5, rule 5: of two nodes with a common trigger, the one that has run does not run again."""
    for channel in (EphemeralValue(int), Topic(int), LastValue(int)):
        graph = program(node("a", "go"), node("b", "go"), go=channel)
        board = begin(graph, {"go": 7})
        ran, left = plan(graph, board)
        assert fold(graph, board, [ran], [], left=[left]) == ["b"]
        assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_several_pending_tasks_of_one_channel() -> None:
    """Several tasks triggered by one channel stay pending, each once, and read its current value."""
    graph = program(
        node("a", "go"), node("b", "go"), node("x", "never"), go=EphemeralValue(int), never=EphemeralValue(int)
    )
    board = begin(graph, {"go": 7})
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=plan(graph, board)) == ["a", "b"]
    assert board.values["go"] == 7


def test_a_topic_is_not_doubled() -> None:
    """A pending task sees each value of its topic once, followed by values added later."""
    graph = program(node("a", "t"), node("b", "t"), node("x", "never"), t=Topic(int), never=EphemeralValue(int))
    board = begin(graph, {"t": [1, 2]})
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=plan(graph, board)) == ["a", "b"]
    assert board.values["t"] == [1, 2]
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [("t", 3)], left=plan(graph, board)) == ["a", "b"]
    assert board.values["t"] == [1, 2, 3]


def test_a_new_value_wins() -> None:
    """A value written in the superstep replaces the earlier one, guarded or not."""
    for guard in (True, False):
        graph = program(node("a", "go"), node("x", "never"), go=EphemeralValue(int, guard), never=EphemeralValue(int))
        board = begin(graph, {"go": 7})
        assert fold(graph, board, [unplanned_task(graph, "x", board)], [("go", 8)], left=plan(graph, board)) == ["a"]
        assert board.values["go"] == 8


def test_sends_are_sent_again() -> None:
    """Pending sends stay pending, before sends that the superstep adds; the send that ran is removed."""
    graph = program(node("w", "never"), never=EphemeralValue(int))
    board = Board(graph)
    superstep.update(graph, board, (), [[(SENDS, Send("w", number)) for number in range(3)]])
    first, ran, last = plan(graph, board)
    assert fold(graph, board, [ran], [(SENDS, Send("w", 9))], left=[first, last]) == ["w", "w", "w"]
    assert [task.arg for task in plan(graph, board)] == [0, 2, 9]


@pytest.mark.parametrize("after", [0, 1])
def test_a_barrier(after: int) -> None:
    """A half-complete barrier stays so; a complete one triggers its node as before."""
    names = ["a", "b"]
    graph = program(node("j", "both"), node("x", "never"), both=NamedBarrierValue(str, names), never=LastValue(int))
    board = begin(graph, {"both": names[after]})
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=plan(graph, board)) == []
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [("both", names[1 - after])], left=[]) == ["j"]
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=plan(graph, board)) == ["j"]
    assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_a_barrier_that_two_share() -> None:
    """P5: a node that runs does not consume the barrier that also triggers another, pending node."""
    graph = program(node("j", "both"), node("k", "both"), both=NamedBarrierValue(str, ["a"]))
    board = begin(graph, {"both": "a"})
    ran, left = plan(graph, board)
    assert fold(graph, board, [ran], [], left=[left]) == ["k"]
    assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_deferred_nodes_wait_for_pending_tasks() -> None:
    """Deferred nodes run at a tentative end, and there is none while a task is pending."""
    for channel, go in ((NamedBarrierValue(str, ["a"]), "a"), (LastValue(str), "a"), (EphemeralValue(str), "a")):
        graph = program(
            node("d", "end"), node("j", "go"), node("x", "never"),
            end=LastValueAfterFinish(int), go=channel, never=LastValue(int),
        )  # fmt: skip
        board = begin(graph, {"go": go, "end": 1})
        assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=plan(graph, board)) == ["j"]
        assert fold(graph, board, plan(graph, board), [], left=[]) == ["d"]
        assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=plan(graph, board)) == ["d"]
        assert fold(graph, board, plan(graph, board), [], left=[]) == []


def test_a_due_deferred_node_is_deferred_again() -> None:
    """A deferred node that was due and is triggered again together with another node is deferred again."""
    graph = program(
        node("a", "go"), node("d", "end"), node("x", "never"),
        end=LastValueAfterFinish(int), go=EphemeralValue(int), never=LastValue(int),
    )  # fmt: skip
    board = begin(graph, {"end": 1})
    assert fold(graph, board, [unplanned_task(graph, "x", board)], [], left=[]) == ["d"]
    assert fold(
        graph, board, [unplanned_task(graph, "x", board)], [("end", 2), ("go", 3)], left=plan(graph, board)
    ) == ["a"]
    assert fold(graph, board, plan(graph, board), [], left=[]) == ["d"]
    assert board.values["end"] == 2


def test_an_update_without_tasks_keeps_all_pending() -> None:
    """An update that changes nothing leaves all pending tasks of every kind."""
    graph = program(
        node("a", "go"), node("j", "both"), node("t", "topic"), node("w", "never"),
        go=EphemeralValue(int), both=NamedBarrierValue(str, ["a"]), topic=Topic(int), never=LastValue(int),
    )  # fmt: skip
    board = begin(graph, {"go": 1, "both": "a", "topic": 5, SENDS: Send("w", 2)})
    assert fold(graph, board, (), [], left=plan(graph, board)) == ["a", "j", "t", "w"]
    assert board.values == {"go": 1, "both": None, "topic": [5]}
