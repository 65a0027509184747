"""The run loop: the calls to its port, when it ends, and what it does when a superstep fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import Program
from pregel_async._core.task import Cancelled, Failed, Finished, Outcome, Task
from pregel_async.channels import BinaryOperatorAggregate, EphemeralValue, LastValue
from pregel_async.errors import ErrorCode, GraphRecursionError
from tests.core.scripted import SCOPE, Script, begin, drive, node, program, run


def chain(length: int, *, hidden_first: bool = False) -> Program:
    """n0 -> n1 -> ... through ephemeral channels."""
    nodes = [
        node(
            f"n{index}",
            f"c{index}",
            sends=[f"c{index + 1}"] if index + 1 < length else [],
            hidden=hidden_first and index == 0,
        )
        for index in range(length)
    ]
    return program(*nodes, keys=(), **{f"c{index}": EphemeralValue() for index in range(length)})


def test_execute_update_checkpoint_in_turn() -> None:
    """Rule 6: the phases run in this order, and a superstep starts only after the previous one is stored."""
    assert run(chain(3), {"c0": 1}).calls == [
        "execute 0",
        "checkpoint 0",
        "execute 1",
        "checkpoint 1",
        "execute 2",
        "checkpoint 2",
    ]


def test_the_next_superstep_waits_for_the_checkpoint() -> None:
    """Rule 6: until `checkpoint` returns, the loop makes no further call to the port."""

    class Slow(Script):
        async def checkpoint(
            self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
        ) -> None:
            await super().checkpoint(board, ran, outcomes, upcoming)
            await Pause()
            self.calls.append("stored")

    graph = chain(2)
    port = Slow(graph)
    coroutine = superstep.run(graph, begin(graph, {"c0": 1}), port, scope=SCOPE, limit=9)
    coroutine.send(None)
    assert port.calls == ["execute 0", "checkpoint 0"]
    coroutine.send(None)
    assert port.calls == ["execute 0", "checkpoint 0", "stored", "execute 1", "checkpoint 1"]
    with pytest.raises(StopIteration):
        coroutine.send(None)


class Pause:
    """An awaitable that suspends once, visibly to a driver by hand."""

    def __await__(self) -> Any:
        yield "paused"


def test_checkpoint_gets_the_next_tasks() -> None:
    """P3: the next tasks belong to the superstep's transaction; the last superstep has none."""
    assert [step.upcoming for step in run(chain(3), {"c0": 1}).steps] == [("n1",), ("n2",), ()]


def test_a_board_without_triggered_nodes_ends_the_run() -> None:
    """Without triggered nodes the run ends without a superstep or a checkpoint."""
    graph = program(node("a", "x"), x=LastValue(), y=LastValue())
    script = run(graph, {"y": 1})
    assert script.calls == []


def test_run_returns_the_last_board() -> None:
    """Rule 2: `update` alone makes the next board, and may reuse the one passed to it; `run` returns the last one."""
    graph = program(node("a", "x", lambda seen: {"y": 2}), x=LastValue(), y=LastValue())
    board = begin(graph, {"x": 1})
    assert drive(superstep.run(graph, board, Script(graph), scope=SCOPE, limit=9)), "all is done"
    assert (board.values, board.step, board.ran) == ({"x": 1, "y": 2}, 0, ("a",))


def test_step_numbers() -> None:
    """The input is step -1; the supersteps count from 0."""
    graph = chain(3)
    assert begin(graph, {"c0": 1}).step == -1
    assert [step.number for step in run(graph, {"c0": 1}).steps] == [0, 1, 2]


def test_step_numbers_go_on_in_the_next_run() -> None:
    """A second input gets the next step number, and its supersteps count on from there."""
    graph = chain(2)
    board = begin(graph, {"c0": 1})
    drive(superstep.run(graph, board, Script(graph), scope=SCOPE, limit=9))
    assert begin(graph, {"c0": 1}, board).step == 2
    script = Script(graph)
    drive(superstep.run(graph, board, script, scope=SCOPE, limit=9))
    assert [step.number for step in script.steps] == [3, 4]


@pytest.mark.parametrize("length", [1, 2, 3, 10])
def test_n_nodes_need_a_limit_of_n(length: int) -> None:
    """P14: n chained nodes need a limit of n, and no more."""
    assert len(run(chain(length), {"c0": 1}, limit=length).steps) == length
    with pytest.raises(GraphRecursionError):
        run(chain(length), {"c0": 1}, limit=length - 1)


def test_the_hidden_start_does_not_count() -> None:
    """P14: the hidden start superstep does not count."""
    assert len(run(chain(3, hidden_first=True), {"c0": 1}, limit=2).steps) == 3
    with pytest.raises(GraphRecursionError):
        run(chain(3, hidden_first=True), {"c0": 1}, limit=1)


def test_the_error_comes_only_when_work_is_left() -> None:
    """P14: a run that has no work left at its limit ends without an error."""
    assert [step.ran for step in run(chain(1), {"c0": 1}, limit=1).steps] == [("n0",)]


def test_what_the_error_says() -> None:
    """P14: the error has its code, the limit, the last step and the next tasks; the steps before it are stored."""
    graph = chain(5)
    script = Script(graph)
    with pytest.raises(GraphRecursionError, match="limit of 2") as caught:
        run(graph, {"c0": 1}, port=script, limit=2)
    error = caught.value
    assert isinstance(error, RecursionError)
    assert (error.limit, error.step, error.pending) == (2, 1, ("n2",))
    assert error.code is ErrorCode.GRAPH_RECURSION_LIMIT
    assert script.calls[-1] == "checkpoint 1"
    assert script.given_up == []


def test_a_run_that_reached_its_limit_can_be_resumed() -> None:
    """P14: the limit counts the supersteps of one run, fresh or resumed."""
    graph = chain(5)
    board, script = begin(graph, {"c0": 1}), Script(graph)
    for _ in range(2):
        with pytest.raises(GraphRecursionError):
            drive(superstep.run(graph, board, script, scope=SCOPE, limit=2))
    drive(superstep.run(graph, board, script, scope=SCOPE, limit=1))
    assert [step.ran for step in script.steps] == [("n0",), ("n1",), ("n2",), ("n3",), ("n4",)]


class Oops(Exception):
    """A user-defined exception."""


def failing(*bad: str) -> Program:
    def call(name: str) -> Any:
        def run_node(seen: Any) -> dict[str, Any]:
            if name in bad:
                raise Oops(name)
            return {"log": [name]}

        return run_node

    return program(
        *(node(name, "x", call(name)) for name in "abc"),
        x=LastValue(),
        log=BinaryOperatorAggregate(list, lambda current, update: current + update),
    )


def test_one_failure_is_raised_as_it_is() -> None:
    """P9: if exactly one task fails, its own exception is raised."""
    graph = failing("b")
    script = Script(graph)
    with pytest.raises(Oops, match="b"):
        run(graph, {"x": 1}, port=script)
    assert script.calls == ["execute 0", "give up 0"]


def test_writes_of_a_failed_superstep_are_not_applied() -> None:
    """P3: if a node raises, no writes of the superstep are applied, those of its siblings included."""
    graph = failing("b")
    board = begin(graph, {"x": 1})
    before = (board.step, board.clock, dict(board.values), dict(board.versions), dict(board.seen))
    with pytest.raises(Oops):
        drive(superstep.run(graph, board, Script(graph), scope=SCOPE, limit=9))
    assert before == (board.step, board.clock, board.values, board.versions, board.seen)
    assert [task.node.name for task in superstep.plan(graph, board, SCOPE)] == ["a", "b", "c"]


def test_the_port_gets_every_outcome_of_a_failed_superstep() -> None:
    """P3, P5: the port gets the results of finished tasks together with the failure, so that they can be recorded."""
    graph = failing("b")
    script = Script(graph)
    with pytest.raises(Oops) as caught:
        run(graph, {"x": 1}, port=script)
    ((names, outcomes, error),) = script.given_up
    assert names == ("a", "b", "c")
    assert [type(outcome) for outcome in outcomes] == [Finished, Failed, Finished]
    assert error is caught.value


def test_a_failing_fold_fails_the_superstep() -> None:
    """Rule 4: a superstep that cannot be folded has failed: the port is notified, and no checkpoint follows."""

    def reducer(current: Any, update: Any) -> Any:
        raise Oops("reducer")

    graph = program(node("a", "x", lambda seen: {"s": 1}), x=LastValue(), s=BinaryOperatorAggregate(int, reducer))
    script = Script(graph)
    with pytest.raises(Oops, match="reducer"):
        run(graph, {"x": 1}, port=script)
    assert script.calls == ["execute 0", "give up 0"]
    assert [type(outcome) for outcome in script.given_up[0][1]] == [Finished]


def test_a_failure_to_store_is_not_a_failed_superstep() -> None:
    """P4: if storage fails, the run stops at that barrier with that error, and the superstep does not count as
    failed."""

    class Broken(Script):
        async def checkpoint(
            self, board: Board, ran: Sequence[Task], outcomes: Sequence[Outcome], upcoming: Sequence[Task]
        ) -> None:
            raise OSError("disk full")

    graph = chain(2)
    port = Broken(graph)
    with pytest.raises(OSError, match="disk full"):
        run(graph, {"c0": 1}, port=port)
    assert port.calls == ["execute 0"]


def tasks(count: int) -> list[Task]:
    return [Task(node(f"n{index}", "x"), 3, index, SCOPE) for index in range(count)]


def test_collect_gives_the_writes_in_plan_order() -> None:
    """Rule 3: writes are collected in plan order."""
    outcomes: list[Outcome] = [Finished([("x", index)]) for index in range(3)]
    assert superstep.collect(tasks(3), outcomes) == [[("x", 0)], [("x", 1)], [("x", 2)]]


def test_several_failures_come_as_a_group_in_plan_order() -> None:
    """P9, P2: several failed tasks raise an `ExceptionGroup` of their exceptions in plan order."""
    first, second = Oops("first"), ValueError("second")
    outcomes: list[Outcome] = [Cancelled(), Failed(first), Finished([]), Failed(second)]
    with pytest.raises(ExceptionGroup) as caught:
        superstep.collect(tasks(4), outcomes)
    assert caught.value.exceptions == (first, second)
    assert "2 of 4 tasks of superstep 3 failed" in str(caught.value)


def test_cancelled_siblings_are_no_failures() -> None:
    """P9: siblings cancelled because of a failure do not count as failures."""
    error = Oops()
    with pytest.raises(Oops) as caught:
        superstep.collect(tasks(3), [Cancelled(), Failed(error), Cancelled()])
    assert caught.value is error


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_exceptions_that_end_a_process_take_precedence(kind: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit end the run, even if other tasks failed as well."""
    ending = kind()
    with pytest.raises(kind) as caught:
        superstep.collect(tasks(2), [Failed(Oops()), Failed(ending)])
    assert caught.value is ending


class Stop(BaseException):
    """A BaseException that is no Exception and unknown to Python."""


def test_a_group_with_a_base_exception_is_no_exception_group() -> None:
    """P9: a BaseException is not hidden in an `ExceptionGroup`, which `except Exception` would catch."""
    with pytest.raises(BaseExceptionGroup) as caught:
        superstep.collect(tasks(2), [Failed(Oops()), Failed(Stop())])
    assert not isinstance(caught.value, ExceptionGroup)


def test_a_superstep_with_a_task_that_did_not_end_is_not_collected() -> None:
    """Rules 4 and 7: no writes are applied of a superstep with a task that neither finished nor failed."""
    with pytest.raises(BaseException):  # noqa: B017  # whatever it is, it must not pass for a finished superstep
        superstep.collect(tasks(2), [Finished([]), Cancelled()])


def test_every_outcome_is_one_of_three() -> None:
    """Rule 7: an outcome is exactly one of finished, failed and cancelled, and immutable."""
    for outcome in (Finished([]), Failed(Oops()), Cancelled()):
        with pytest.raises(AttributeError):
            outcome.writes = []
