"""Updating: how a superstep's writes become the next board."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import permutations
from typing import Any, Self

import pytest

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import SENDS, Program
from pregel_async.channels import (
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    Missing,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
)
from pregel_async.errors import EmptyChannelError, InvalidUpdateError
from pregel_async.types import Send
from tests.core.scripted import Script, begin, drive, node, plan, program, run, write


def appended(current: list[Any], update: Any) -> list[Any]:
    return [*current, update]


def log() -> BinaryOperatorAggregate[Any]:
    return BinaryOperatorAggregate(list, appended)


class LoggedChannel(BaseChannel[Any, Any, Any]):
    """A channel that appends to a list when it is folded."""

    folded: list[tuple[str, list[Any]]]

    def __init__(self, folded: list[tuple[str, list[Any]]]) -> None:
        super().__init__()
        self.folded = folded
        self.value: Any = Missing.MISSING

    def get(self) -> Any:
        if self.value is Missing.MISSING:
            raise EmptyChannelError(self.key)
        return self.value

    def update(self, values: Sequence[Any]) -> bool:
        self.folded.append((self.key, list(values)))
        if not values:
            return False
        self.value = values[-1]
        return True

    def from_checkpoint(self, stored: Any) -> Self:
        twin = type(self)(self.folded)
        twin.key, twin.value = self.key, stored
        return twin


def test_channels_are_folded_in_name_order() -> None:
    """P2: channels are folded in alphabetical order, whatever the order of nodes and writes."""
    folded: list[tuple[str, list[Any]]] = []
    graph = program(
        node("a", "x", lambda seen: [("q", 1), ("m", 2), ("z", 3)]),
        node("b", "x", lambda seen: [("z", 4), ("b", 5), ("m", 6)]),
        x=LastValue(),
        **{name: LoggedChannel(folded) for name in ("z", "m", "q", "b")},
    )
    run(graph, {"x": 1})
    assert folded == [("b", [5]), ("m", [2, 6]), ("q", [1]), ("z", [3, 4])]


def mixed_program() -> Program:
    """Triggered nodes a, b, c, and three sends to b and a, which all write one log."""
    return program(
        *(
            node(
                name,
                "x",
                lambda seen, name=name: {"log": f"{name} triggered" if isinstance(seen, dict) else f"{name} {seen}"},
            )
            for name in ("c", "a", "b")
        ),
        x=LastValue(),
        log=log(),
    )


@pytest.mark.parametrize("order", list(permutations(range(5)))[::7])
def test_a_channels_writes_are_folded_in_plan_order(order: tuple[int, ...]) -> None:
    """P2: triggered nodes by name, then sends by index, and never in completion order."""
    graph = mixed_program()
    board = begin(graph, {"x": 1})
    write(graph, board, ("x", 2), (SENDS, Send("b", "sent")), (SENDS, Send("a", "sent")))
    script = Script(graph, lambda count: order if count == 5 else range(count))
    board_after = drive_once(graph, board, script)
    assert script.finished == [["a", "b", "c", "b", "a"][place] for place in order]
    assert board_after.values["log"] == ["a triggered", "b triggered", "c triggered", "b sent", "a sent"]


def drive_once(graph: Program, board: Board, script: Script) -> Board:
    """Run one superstep of a program through a script."""
    tasks = plan(graph, board)
    outcomes = drive(script.execute(board, tasks))
    superstep.update(graph, board, tasks, superstep.collect(tasks, outcomes))
    return board


def test_the_writes_of_one_task_keep_their_order() -> None:
    """P2: every write of a task is applied, in the order in which the task wrote them."""
    graph = program(node("a", "x", lambda seen: [("log", 1), ("log", 2), ("log", 3)]), x=LastValue(), log=log())
    assert run(graph, {"x": 1}).steps[-1].values["log"] == [1, 2, 3]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_any_value_keeps_the_last_in_plan_order(order: tuple[int, int]) -> None:
    """Rule 3: a channel that keeps the last of many writes keeps the last in plan order, not the last to finish."""
    graph = program(
        node("a", "x", lambda seen: {"v": "a"}), node("b", "x", lambda seen: {"v": "b"}), x=LastValue(), v=AnyValue()
    )
    script = run(graph, {"x": 1}, port=Script(graph, lambda count: order[:count]))
    assert script.steps[-1].values["v"] == "b"


def test_twelve_sends_fold_by_number_and_not_by_text() -> None:
    """P2: sends are ordered by index as a number: the tenth follows the ninth."""
    graph = program(node("a", "x", lambda value: {"log": value}), x=LastValue(), log=log())
    board = write(graph, Board(graph), *((SENDS, Send("a", number)) for number in range(12)))
    board = drive_once(graph, board, Script(graph, lambda count: reversed(range(count))))
    assert board.values["log"] == list(range(12))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_writes_are_invisible_within_their_superstep(order: tuple[int, int]) -> None:
    """P1: a task sees no write of a sibling, whichever runs first."""
    read: dict[str, Any] = {}

    def reader(name: str) -> Any:
        def call(seen: Any) -> dict[str, Any]:
            read[name] = seen.get("log", "nothing")
            return {"log": name}

        return call

    graph = program(
        node("a", "x", reader("a"), reads=("log", "x")),
        node("b", "x", reader("b"), reads=("log", "x")),
        x=LastValue(),
        log=log(),
    )
    run(graph, {"x": 1}, port=Script(graph, lambda count: order[:count]))
    assert read == {"a": [], "b": []}


def test_the_board_does_not_change_while_tasks_run() -> None:
    """Rule 2: executing tasks does not change the board; only `update` does."""
    graph = program(node("a", "x", lambda seen: {"log": 1}), x=LastValue(), log=log())
    board = begin(graph, {"x": 1})
    before = (board.step, board.clock, dict(board.versions), dict(board.values))
    drive(Script(graph).execute(board, plan(graph, board)))
    assert before == (board.step, board.clock, board.versions, board.values)


def test_writes_from_outside_do_not_pass_a_superstep() -> None:
    """An update without tasks empties no ephemeral channel and finishes no channel."""
    graph = program(
        node("a", "x"),
        node("late", "d"),
        x=LastValue(),
        e=EphemeralValue(),
        t=Topic(),
        v=AnyValue(),
        d=LastValueAfterFinish(),
    )
    board = begin(graph, {"e": 1, "t": 1, "v": 1, "d": 1})
    write(graph, board, ("x", 1))
    assert (board.values["e"], board.values["t"], board.values["v"]) == (1, [1], 1)
    assert board.changed == ("x",)
    assert not board.channels["d"].is_available()


def test_an_input_that_discards_tasks_does_pass_a_superstep() -> None:
    """An input that discards tasks counts as a superstep: their triggers are consumed and ephemeral channels
    emptied."""
    graph = program(node("a", "e"), e=EphemeralValue(), x=LastValue())
    board = begin(graph, {"e": 1})
    assert [task.node.name for task in plan(graph, board)] == ["a"]
    begin(graph, {"x": 1}, board)
    assert (plan(graph, board), "e" in board.values, board.step) == ([], False, 0)


def test_an_input_discards_pending_sends() -> None:
    """A new input discards all pending tasks, sends included."""
    graph = program(node("a", "x"), x=LastValue(), y=LastValue())
    board = write(graph, Board(graph), (SENDS, Send("a", 1)))
    begin(graph, {"y": 1}, board)
    assert plan(graph, board) == []


@pytest.mark.parametrize(
    ("channel", "after"),
    [
        (EphemeralValue(), {}),
        (AnyValue(), {}),
        (Topic(), {}),
        (Topic(accumulate=True), {"c": [1]}),
        (LastValue(), {"c": 1}),
        (BinaryOperatorAggregate(int, operator.add), {"c": 1}),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else type(value).__name__,
)
def test_a_superstep_without_a_write(channel: BaseChannel[Any, Any, Any], after: dict[str, Any]) -> None:
    """In a superstep that ran tasks, every available channel without a write gets `update([])`."""
    graph = program(node("a", "x", lambda seen: {"y": 1}), x=LastValue(), y=LastValue(), c=channel)
    board = begin(graph, {"x": 1, "c": 1})
    write(graph, board, ("y", 1), by=plan(graph, board))
    assert {name: value for name, value in board.values.items() if name == "c"} == after
    assert ("c" in board.changed) == (not after)


def test_ephemeral_lives_for_one_superstep() -> None:
    """An EphemeralValue lives for one superstep, whether or not it was read."""
    seen: list[Any] = []
    graph = program(
        node("a", "x", lambda value: {"e": 1, "y": 1}),
        node("b", "y", lambda value: {"z": 1}),
        node("c", "z", lambda value: seen.append(value), reads=("e", "z")),
        **{name: LastValue() for name in "xyz"},
        e=EphemeralValue(),
    )
    steps = run(graph, {"x": 1}).steps
    assert ["e" in step.values for step in steps] == [True, False, False]
    assert seen == [{"z": 1}]


def test_any_value_is_cleared_by_a_superstep_without_a_write() -> None:
    """An AnyValue is cleared by a superstep without a write."""
    graph = program(
        node("a", "x", lambda value: {"v": 1, "y": 1}),
        node("b", "y", lambda value: {"v": 2, "z": 1}),
        node("c", "z"),
        **{name: LastValue() for name in "xyz"},
        v=AnyValue(),
    )
    assert [step.values.get("v") for step in run(graph, {"x": 1}).steps] == [1, 2, None]


class Ticks(BaseChannel[int, int, int]):
    """A user-defined channel that counts supersteps without a write."""

    def __init__(self) -> None:
        super().__init__(int)
        self.count = 0

    def get(self) -> int:
        return self.count

    def update(self, values: Sequence[int]) -> bool:
        self.count = values[-1] if values else self.count + 1
        return True

    def from_checkpoint(self, stored: int | Missing) -> Self:
        twin = type(self)()
        twin.key = self.key
        if not isinstance(stored, Missing):
            twin.count = stored
        return twin


def test_a_users_channel_is_updated_in_every_superstep() -> None:
    """Every available channel without a write gets `update([])`, also one that was never written."""
    graph = program(
        node("a", "x", lambda seen: {"x": seen["x"] + 1} if seen["x"] < 3 else None), x=LastValue(), ticks=Ticks()
    )
    assert [step.values["ticks"] for step in run(graph, {"x": 1}).steps] == [1, 2, 3]


def test_a_users_channel_that_was_written_is_updated_in_every_superstep() -> None:
    """A user-defined channel class is updated like a built-in one."""
    graph = program(
        node("a", "x", lambda seen: {"x": seen["x"] + 1} if seen["x"] < 3 else None), x=LastValue(), ticks=Ticks()
    )
    assert [step.values["ticks"] for step in run(graph, {"x": 1, "ticks": 10}).steps] == [11, 12, 13]


def loop_with_barrier(rounds: int) -> tuple[Program, list[Any]]:
    """a and b both go to j through a barrier; j starts them again."""
    runs: list[Any] = []

    def join(seen: Any) -> dict[str, Any]:
        runs.append("j")
        return {"go": len(runs)} if len(runs) < rounds else {}

    graph = program(
        node("a", "go", lambda seen: {"both": "a"}),
        node("b", "go", lambda seen: {"both": "b"}),
        node("j", "both", join),
        go=EphemeralValue(),
        both=NamedBarrierValue(str, {"a", "b"}),
        keys=(),
    )
    return graph, runs


def test_barriers_work_in_loops() -> None:
    """A barrier resets when its node has run, and works again in the next round."""
    graph, runs = loop_with_barrier(4)
    script = run(graph, {"go": 0})
    assert len(runs) == 4
    assert [step.ran for step in script.steps] == [("a", "b"), ("j",)] * 4


def test_a_barrier_is_consumed_before_the_writes_of_its_superstep() -> None:
    """Names written in the superstep in which the barrier's node runs count for the next round."""
    graph = program(
        node("a", "go", lambda seen: {"both": "a"}),
        node("j", "both"),
        go=LastValue(),
        both=NamedBarrierValue(str, {"a", "b"}),
    )
    board = write(graph, Board(graph), ("both", "a"), ("both", "b"), ("go", 1))
    tasks = plan(graph, board)
    assert [task.node.name for task in tasks] == ["a", "j"]
    write(graph, board, ("both", "a"), by=tasks)
    assert plan(graph, board) == []
    write(graph, board, ("both", "b"))
    assert [task.node.name for task in plan(graph, board)] == ["j"]


def test_a_barrier_completed_again_by_its_own_superstep_runs_again() -> None:
    """If all names are written while the barrier's node runs, the node runs again next."""
    graph = program(node("j", "both"), both=NamedBarrierValue(str, {"a", "b"}))
    board = write(graph, Board(graph), ("both", "a"), ("both", "b"))
    write(graph, board, ("both", "b"), ("both", "a"), by=plan(graph, board))
    assert [task.node.name for task in plan(graph, board)] == ["j"]


def test_a_name_twice_before_completion_changes_nothing() -> None:
    """Writing a name twice has no effect; a name that the barrier does not have raises an error."""
    graph = program(node("j", "both"), both=NamedBarrierValue(str, {"a", "b"}))
    board = write(graph, Board(graph), ("both", "a"))
    write(graph, board, ("both", "a"))
    assert (board.changed, board.clock) == ((), 1)
    with pytest.raises(InvalidUpdateError, match="'stranger'"):
        write(graph, board, ("both", "stranger"))


def test_a_barrier_waits_over_many_supersteps() -> None:
    """The names of a barrier may be written in different supersteps; a partial barrier is stored and has a version."""
    graph = program(
        node("a", "x", lambda seen: {"both": "a", "y": 1}),
        node("b", "y", lambda seen: {"z": 1}),
        node("c", "z", lambda seen: {"both": "b"}),
        node("j", "both"),
        **{name: LastValue() for name in "xyz"},
        both=NamedBarrierValue(str, {"a", "b"}),
    )
    script = run(graph, {"x": 1})
    assert [step.ran for step in script.steps] == [("a",), ("b",), ("c",), ("j",)]
    assert ["both" in step.versions for step in script.steps] == [True, True, True, False]


def test_another_trigger_leaves_a_half_full_barrier_alone() -> None:
    """A node that runs because of another trigger does not consume an incomplete barrier."""
    graph = program(node("j", ["both", "x"]), both=NamedBarrierValue(str, {"a", "b"}), x=LastValue())
    board = write(graph, Board(graph), ("both", "a"), ("x", 1))
    write(graph, board, by=plan(graph, board))
    write(graph, board, ("both", "b"))
    assert [task.node.name for task in plan(graph, board)] == ["j"]


def test_a_deferred_node_waits_until_nothing_else_is_left() -> None:
    """`finish` is called when no updated channel triggers a node, and the run continues with the nodes that become
    triggered."""
    graph = program(
        node("a", "x", lambda seen: {"y": 1, "late": None}),
        node("b", "y", lambda seen: {"z": 1, "late": None}),
        node("c", "z"),
        node("d", "late"),
        **{name: LastValue() for name in "xyz"},
        late=LastValueAfterFinish(),
        keys="xyz",
    )
    assert [step.ran for step in run(graph, {"x": 1}).steps] == [("a",), ("b",), ("c",), ("d",)]


def test_deferred_nodes_run_at_every_tentative_end() -> None:
    """A deferred node that starts another round runs again at the end of that round."""
    rounds: list[int] = []

    def late(seen: Any) -> dict[str, Any]:
        rounds.append(1)
        return {"x": 1} if len(rounds) < 3 else {}

    graph = program(
        node("a", "x", lambda seen: {"late": None, "y": 1}),
        node("b", "y"),
        node("d", "late", late),
        x=EphemeralValue(),
        y=EphemeralValue(),
        late=LastValueAfterFinish(),
        keys=(),
    )
    assert [step.ran for step in run(graph, {"x": 1}).steps] == [("a",), ("b",), ("d",)] * 3


def test_all_deferred_nodes_of_one_end_run_together() -> None:
    """All deferred nodes run in one superstep, by name."""
    graph = program(
        node("a", "x", lambda seen: {"l2": None, "l1": None}),
        node("d2", "l2"),
        node("d1", "l1"),
        x=EphemeralValue(),
        l1=LastValueAfterFinish(),
        l2=LastValueAfterFinish(),
    )
    assert [step.ran for step in run(graph, {"x": 1}).steps] == [("a",), ("d1", "d2")]


def test_sends_are_work_that_is_left() -> None:
    """Pending sends delay a deferred node."""
    graph = program(
        node("a", "x", lambda seen: [("late", None), (SENDS, Send("b", 1))]),
        node("b", "never"),
        node("d", "late"),
        x=EphemeralValue(),
        never=LastValue(),
        late=LastValueAfterFinish(),
    )
    assert [step.ran for step in run(graph, {"x": 1}).steps] == [("a",), ("b",), ("d",)]


def test_a_deferred_barrier_needs_its_names_and_the_end() -> None:
    """An edge of several starts into a deferred node fires when all starts have run *and* no other work is left."""
    graph = program(
        node("a", "x", lambda seen: {"both": "a", "y": 1}),
        node("b", "x", lambda seen: {"both": "b"}),
        node("c", "y", lambda seen: {"z": 1}),
        node("c2", "z"),
        node("d", "both"),
        x=EphemeralValue(),
        y=EphemeralValue(),
        z=EphemeralValue(),
        both=NamedBarrierValueAfterFinish(str, {"a", "b"}),
    )
    assert [step.ran for step in run(graph, {"x": 1}).steps] == [("a", "b"), ("c",), ("c2",), ("d",)]


def test_a_deferred_barrier_that_is_incomplete_ends_the_run() -> None:
    """P14: an incomplete barrier stays as it is at the end, and the run ends."""
    graph = program(
        node("a", "x", lambda seen: {"both": "a"}),
        node("d", "both"),
        x=EphemeralValue(),
        both=NamedBarrierValueAfterFinish(str, {"a", "b"}),
    )
    script = run(graph, {"x": 1})
    assert [step.ran for step in script.steps] == [("a",)]
    assert "both" in script.steps[-1].versions


def test_a_write_that_triggers_no_node_delays_no_deferred_node() -> None:
    """A write to a channel without subscribers does not delay the end."""
    graph = program(
        node("a", "x", lambda seen: {"late": None, "y": 1}),
        node("d", "late"),
        x=EphemeralValue(),
        y=LastValue(),
        late=LastValueAfterFinish(),
    )
    assert [step.ran for step in run(graph, {"x": 1}).steps] == [("a",), ("d",)]


def test_a_channel_that_finish_makes_available_gets_the_supersteps_version() -> None:
    """A channel that becomes available at the end gets the version of the superstep that ended."""
    graph = program(node("a", "x"), node("d", "late"), x=EphemeralValue(), late=LastValueAfterFinish())
    board = write(graph, Board(graph), ("x", 1), ("late", None))
    write(graph, board, by=plan(graph, board))
    assert (board.versions, board.clock, board.updated) == ({"late": 2}, 2, ("late",))


def test_two_writers_of_a_last_value() -> None:
    """Bad input: two writes to a LastValue in one superstep raise an error that names the channel."""
    graph = program(
        node("a", "x", lambda seen: {"y": 1}), node("b", "x", lambda seen: {"y": 1}), x=LastValue(), y=LastValue()
    )
    with pytest.raises(InvalidUpdateError, match="'y'") as caught:
        run(graph, {"x": 1})
    assert caught.value.channel == "y"
    assert any("superstep 0" in note for note in caught.value.__notes__)


def test_a_reducer_that_raises_is_named() -> None:
    """P9: a reducer's own exception is raised, with a note that names channel and superstep."""

    class Odd(Exception):
        pass

    def odd(current: Any, update: Any) -> Any:
        raise Odd(update)

    graph = program(node("a", "x", lambda seen: {"sum": 5}), x=LastValue(), sum=BinaryOperatorAggregate(int, odd))
    with pytest.raises(Odd) as caught:
        run(graph, {"x": 1})
    (note,) = caught.value.__notes__
    assert "'sum'" in note
    assert "superstep 0" in note


def test_a_write_to_an_unknown_channel() -> None:
    """Bad input: a write to a channel that the graph does not have raises an error that names both."""
    graph = program(node("a", "x", lambda seen: {"nowhere": 1}), x=LastValue())
    with pytest.raises(InvalidUpdateError, match="'nowhere'.*'scripted'") as caught:
        run(graph, {"x": 1})
    assert caught.value.channel == "nowhere"


def test_the_first_update_of_a_reducer_without_a_start() -> None:
    """If a reducer channel is empty and its type has no empty value, the first update is stored unchanged."""
    called: list[Any] = []

    def keep(current: Any, update: Any) -> Any:
        called.append((current, update))
        return update

    graph = program(
        node("a", "x", lambda seen: [("r", 1), ("r", 2)]), x=LastValue(), r=BinaryOperatorAggregate(int | str, keep)
    )
    assert run(graph, {"x": 1}).steps[-1].values["r"] == 2
    assert called == [(1, 2)]
