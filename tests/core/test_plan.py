"""Planning: which tasks run next, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import SENDS
from pregel_async.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from pregel_async.types import Send
from tests.core.scripted import SCOPE, begin, node, plan, program, run, write


def names(tasks: list[Any]) -> list[str]:
    return [task.node.name for task in tasks]


def test_nothing_is_planned_on_an_empty_board() -> None:
    """A node runs when a trigger is newer than the version it saw; on an empty board no trigger is."""
    graph = program(node("a", "x"), x=LastValue(), y=BinaryOperatorAggregate(list, lambda a, b: a + b))
    assert plan(graph, Board(graph)) == []


def test_nodes_are_planned_by_name() -> None:
    """P2: triggered nodes are planned in alphabetical order, whatever the order of registration."""
    for order in (("c", "a", "b"), ("b", "c", "a")):
        graph = program(*(node(name, "x") for name in order), x=LastValue())
        assert names(plan(graph, begin(graph, {"x": 1}))) == ["a", "b", "c"]


def test_triggered_nodes_come_before_sends_in_the_plan() -> None:
    """P2: the plan lists triggered nodes by name, then sends by index."""
    graph = program(node("z", "x"), node("b", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    write(graph, board, (SENDS, Send("z", 0)), (SENDS, Send("b", 1)), ("x", 2))
    tasks = plan(graph, board)
    assert [(task.node.name, task.send) for task in tasks] == [("b", -1), ("z", -1), ("z", 0), ("b", 1)]
    assert [task.index for task in tasks] == [0, 1, 2, 3]


def test_next_lists_sends_first() -> None:
    """P2: `next`, as users see it, lists sends by index, then triggered nodes by name."""
    graph = program(node("z", "x"), node("b", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    write(graph, board, (SENDS, Send("z", 0)), (SENDS, Send("b", 1)), ("x", 2))
    assert superstep.names_of(plan(graph, board)) == ("z", "b", "b", "z")


def test_one_run_however_many_triggers_fired() -> None:
    """A node runs at most once per superstep, however many of its triggers fired."""
    graph = program(node("a", ["x", "y", "z"]), x=LastValue(), y=LastValue(), z=Topic())
    assert names(plan(graph, begin(graph, {"x": 1, "y": 2, "z": 3}))) == ["a"]


def test_each_send_is_a_task() -> None:
    """Two equal sends are two tasks with different paths."""
    graph = program(node("a", "x"), x=LastValue())
    board = write(graph, Board(graph), (SENDS, Send("a", "same")), (SENDS, Send("a", "same")))
    first, second = plan(graph, board)
    assert (first.path, second.path) == (("__pregel_push", 0, False), ("__pregel_push", 1, False))
    assert first.id != second.id


def test_paths() -> None:
    """The path of a triggered node is `("__pregel_pull", name)`, of a send `("__pregel_push", index, False)`."""
    graph = program(node("a", "x"), x=LastValue())
    board = write(graph, Board(graph), ("x", 1), (SENDS, Send("a", None)))
    assert [task.path for task in plan(graph, board)] == [("__pregel_pull", "a"), ("__pregel_push", 0, False)]


def test_a_node_runs_again_only_for_a_newer_version() -> None:
    """A node whose triggers were not written since it ran does not run again."""
    graph = program(node("a", "x", lambda seen: {"y": 1}), x=LastValue(), y=LastValue())
    script = run(graph, {"x": 1})
    assert [step.ran for step in script.steps] == [("a",)]


def test_a_write_of_an_equal_value_triggers_too() -> None:
    """Triggering compares versions, never values."""
    count = iter(range(10))
    graph = program(
        node("a", "x", lambda seen: {"x": seen["x"]} if next(count) < 3 else None),
        x=LastValue(),
    )
    assert len(run(graph, {"x": 1}).steps) == 4


def test_seen_is_noted_for_a_tasks_own_triggers_alone() -> None:
    """`versions_seen` of a task is updated only for the channels in its trigger list, not for others that it reads."""
    graph = program(
        node("a", "x", reads=("x", "y")), node("b", "y", reads=("x", "y")), x=LastValue(), y=LastValue(), z=LastValue()
    )
    board = begin(graph, {"x": 1, "y": 2, "z": 3})
    write(graph, board, by=plan(graph, board))
    assert board.seen == {"x": {"a": 1}, "y": {"b": 1}}


def test_seen_is_the_version_before_the_steps_own_writes() -> None:
    """A superstep's writes are newer than the versions its tasks saw, so that a loop continues."""
    graph = program(node("a", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    write(graph, board, ("x", 2), by=plan(graph, board))
    assert (board.seen, board.versions) == ({"x": {"a": 1}}, {"x": 2})
    assert names(plan(graph, board)) == ["a"]


def test_a_send_sees_nothing() -> None:
    """A send consumes none of its node's triggers."""
    graph = program(node("a", "x"), x=LastValue())
    board = write(graph, Board(graph), (SENDS, Send("a", 1)))
    (task,) = plan(graph, board)
    assert task.triggers == ()
    write(graph, board, ("x", 1), by=[task])
    assert names(plan(graph, board)) == ["a"], "the triggered run is still to come"


def test_all_channels_of_a_superstep_get_one_version() -> None:
    """All channels changed in one superstep get the same new version, above all others."""
    graph = program(node("a", "x"), x=LastValue(), y=LastValue(), z=LastValue())
    board = begin(graph, {"z": 0})
    write(graph, board, ("x", 1), ("y", 1))
    assert board.versions == {"z": 1, "x": 2, "y": 2}
    write(graph, board, ("z", 1))
    assert board.versions == {"z": 3, "x": 2, "y": 2}


def test_versions_are_ordered_integers() -> None:
    """Versions are ordered integers."""
    graph = program(node("a", "x", lambda seen: {"x": 1} if seen["x"] < 1 else {"y": 1}), x=LastValue(), y=LastValue())
    script = run(graph, {"x": 0})
    assert all(type(version) is int for step in script.steps for version in step.versions.values())
    assert [step.versions for step in script.steps] == [{"x": 2}, {"x": 2, "y": 3}]


def test_a_superstep_that_changes_nothing_makes_no_version() -> None:
    """A superstep without changes leaves the version counter unchanged."""
    graph = program(node("a", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    write(graph, board, by=plan(graph, board))
    assert (board.clock, board.step, board.changed) == (1, 0, ())


def test_an_emptied_channel_triggers_no_node() -> None:
    """A channel that an update empties does not count as updated, and triggers no node."""
    graph = program(node("a", "e"), node("b", "t"), node("c", "any"), e=EphemeralValue(), t=Topic(), any=AnyValue())
    board = begin(graph, {"e": 1, "t": 1, "any": 1})
    tasks = plan(graph, board)
    assert names(tasks) == ["a", "b", "c"]
    write(graph, board, by=tasks)
    assert board.changed == ("any", "e", "t")
    assert (list(board.updated), plan(graph, board)) == ([], [])


def test_an_incomplete_barrier_triggers_no_node() -> None:
    """A barrier triggers its node only when every name has been written."""
    graph = program(node("j", "b"), b=NamedBarrierValue(str, {"one", "two"}))
    board = write(graph, Board(graph), ("b", "one"))
    assert plan(graph, board) == []
    write(graph, board, ("b", "two"))
    assert names(plan(graph, board)) == ["j"]


def test_plan_changes_nothing() -> None:
    """Rule 2: planning does not change the board; planning twice gives the same tasks."""
    graph = program(node("a", "x"), node("b", "x"), x=LastValue())
    board = write(graph, Board(graph), ("x", 1), (SENDS, Send("b", [1])))
    before = (board.step, board.clock, dict(board.versions), dict(board.seen), list(board.updated), board.values.copy())
    first, second = plan(graph, board), plan(graph, board)
    assert [(task.id, task.path, task.step, task.arg) for task in first] == [
        (task.id, task.path, task.step, task.arg) for task in second
    ]
    assert before == (board.step, board.clock, board.versions, board.seen, list(board.updated), board.values)


def test_work_of_planning_does_not_grow_with_the_graph() -> None:
    """Planning looks only at changed channels, never at all nodes or channels."""
    graph = program(
        *(node(f"n{index}", f"c{index}") for index in range(50)), **{f"c{index}": LastValue() for index in range(50)}
    )
    board = begin(graph, {"c7": 1})
    looked: list[str] = []

    class Watched(dict[str, Any]):
        def __contains__(self, key: object) -> bool:
            looked.append(str(key))
            return super().__contains__(key)

        def __getitem__(self, key: str) -> Any:
            looked.append(key)
            return super().__getitem__(key)

    board.channels = Watched(board.channels)
    assert names(plan(graph, board)) == ["n7"]
    assert looked == [SENDS]


@pytest.mark.parametrize("kind", [LastValue, UntrackedValue, EphemeralValue, AnyValue, Topic])
def test_every_kind_triggers(kind: Any) -> None:
    """An update of any kind of channel runs the nodes that subscribe to it."""
    graph = program(node("a", "x"), x=kind())
    assert names(plan(graph, begin(graph, {"x": 1}))) == ["a"]


def test_two_nodes_see_the_same_write_each_once() -> None:
    """Several nodes may subscribe to one channel; each runs once per write."""
    graph = program(node("a", "x"), node("b", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    tasks = plan(graph, board)
    write(graph, board, by=tasks)
    assert (names(tasks), plan(graph, board)) == (["a", "b"], [])
    assert board.seen == {"x": {"a": 1, "b": 1}}


def test_a_node_that_ran_on_an_old_write_runs_on_a_new_one() -> None:
    """Seen versions are stored per node: a write after one node's run triggers that node again, and the others."""
    graph = program(node("a", "x"), node("b", ["x", "y"]), x=LastValue(), y=LastValue())
    board = begin(graph, {"y": 1})
    assert names(plan(graph, board)) == ["b"]
    write(graph, board, ("x", 1), by=plan(graph, board))
    assert names(plan(graph, board)) == ["a", "b"]


def test_tasks_know_the_superstep_that_they_run_in() -> None:
    """P2: a task's superstep number is the board's plus one."""
    graph = program(node("a", "x"), x=LastValue())
    board = begin(graph, {"x": 1})
    assert (board.step, [task.step for task in superstep.plan(graph, board, SCOPE)]) == (-1, [0])
