"""P2 under every schedule: random programs whose tasks end in an order that hypothesis chooses."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pregel_async._core import superstep
from pregel_async._core.board import Board
from pregel_async._core.program import Program
from pregel_async._core.task import Failed
from pregel_async.channels import MISSING
from pregel_async.errors import GraphRecursionError, InvalidUpdateError
from tests.core.programs import RandomGraph, RandomProgram, random_graphs, random_programs
from tests.core.scripted import SCOPE, Script, Step, begin, drive, outcome_of, run, stored

MANY = settings(
    max_examples=settings().max_examples * 6 // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LIMIT = 12

Trace = tuple[list[Step], Any]
"""The supersteps, and how it ended."""


def trace(graph: Program, given: Any, script: Script | None = None) -> Trace:
    script = Script(graph) if script is None else script
    try:
        run(graph, given, port=script, limit=LIMIT)
    except (ValueError, InvalidUpdateError, GraphRecursionError, ExceptionGroup) as error:
        return script.steps, describe_error(error)
    return script.steps, "the end"


def describe_error(error: BaseException) -> Any:
    notes = tuple(getattr(error, "__notes__", ()))
    if isinstance(error, BaseExceptionGroup):
        return str(error), [describe_error(inner) for inner in error.exceptions], notes
    return type(error), str(error), notes


def any_order(data: st.DataObject) -> Any:
    return lambda count: data.draw(st.permutations(range(count))) if count > 1 else range(count)


@MANY
@given(made=random_programs(), data=st.data())
def test_programs_do_not_depend_on_the_schedule(made: RandomProgram, data: st.DataObject) -> None:
    """P2: every order of completion gives the same values, versions, task ids and
    errors."""
    graph = made.build()
    expected = trace(graph, made.input())
    assert trace(graph, made.input(), Script(graph, any_order(data))) == expected


@MANY
@given(made=random_graphs(), data=st.data())
def test_state_graphs_do_not_depend_on_the_schedule(made: RandomGraph, data: st.DataObject) -> None:
    """P2, rule 3: state graphs with reducers, joins, deferred nodes, routers, sends and loops give the same result in
    every order of completion."""
    graph = made.build()
    expected = trace(graph, {"log": ["in"]})
    assert trace(graph, {"log": ["in"]}, Script(graph, any_order(data))) == expected


@MANY
@given(made=random_programs(), order=st.lists(st.integers(0, 99), min_size=3, max_size=9))
def test_programs_do_not_depend_on_the_order_of_registration(made: RandomProgram, order: list[int]) -> None:
    """P2: registration order has no effect: the same parts in any order are the same program."""
    assert trace(made.build(order), made.input()) == trace(made.build(), made.input())


@MANY
@given(made=random_graphs(), order=st.lists(st.integers(0, 99), min_size=3, max_size=9))
def test_state_graphs_do_not_depend_on_the_order_of_registration(made: RandomGraph, order: list[int]) -> None:
    """P2: nodes, edges, joins and routers may be added in any order."""
    assert trace(made.build(order), {"log": []}) == trace(made.build(), {"log": []})


class RestoringRun(Script):
    """Runs superstep by superstep, and stores and restores the board after the chosen supersteps."""

    def run_with_stops(self, given: Any, stops: set[int]) -> Trace:
        board = begin(self.program, given)
        try:
            for count in range(LIMIT + 1):
                if count in stops:
                    board = stored(self.program, board)
                tasks = superstep.plan(self.program, board, SCOPE)
                if not tasks:
                    return self.steps, "the end"
                if count == LIMIT:
                    raise GraphRecursionError(LIMIT, board.step, superstep.names_of(tasks))
                outcomes = drive(self.execute(board, tasks))
                superstep.update(self.program, board, tasks, superstep.collect(tasks, outcomes))
                drive(self.checkpoint(board, tasks, outcomes, superstep.plan(self.program, board, SCOPE)))
        except (ValueError, InvalidUpdateError, GraphRecursionError, ExceptionGroup) as error:
            return self.steps, describe_error(error)
        raise AssertionError


@MANY
@given(made=random_programs(), stops=st.sets(st.integers(0, LIMIT), min_size=1))
def test_programs_do_not_depend_on_where_they_were_stopped(made: RandomProgram, stops: set[int]) -> None:
    """P2: a board that is stored and restored between any two supersteps gives the same run."""
    graph = made.build()
    assert RestoringRun(graph).run_with_stops(made.input(), stops) == trace(graph, made.input())


@MANY
@given(made=random_programs(), data=st.data())
def test_tasks_leave_the_board_as_it_is(made: RandomProgram, data: st.DataObject) -> None:
    """Rules 1, 2 and 4: running any subset of tasks in any order changes nothing that the others see."""
    graph = made.build()
    board = begin(graph, made.input())
    for _ in range(4):
        tasks = superstep.plan(graph, board, SCOPE)
        if not tasks:
            return
        alone = [describe(outcome_of(graph, board, task)) for task in tasks]
        for place in data.draw(st.lists(st.integers(0, len(tasks) - 1), max_size=6)):
            assert describe(outcome_of(graph, board, tasks[place])) == alone[place]
        outcomes = [outcome_of(graph, board, task) for task in tasks]
        if any(isinstance(outcome, Failed) for outcome in outcomes):
            return
        try:
            superstep.update(graph, board, tasks, superstep.collect(tasks, outcomes))
        except InvalidUpdateError:
            return


def describe(outcome: Any) -> Any:
    return describe_error(outcome.error) if isinstance(outcome, Failed) else outcome


@MANY
@given(made=random_programs())
def test_boards_are_sparse_and_consistent(made: RandomProgram) -> None:
    """`board`: in every superstep, only channels that hold a value have versions, no version is above the counter, no
    seen version is newer than its channel's, and nodes read what their channels show."""
    graph = made.build()

    class Checking(Script):
        async def checkpoint(self, board: Board, ran: Any, outcomes: Any, upcoming: Any) -> None:
            await super().checkpoint(board, ran, outcomes, upcoming)
            holding = {name for name, channel in board.channels.items() if channel.checkpoint() is not MISSING}
            assert set(board.versions) == holding
            assert all(0 < version <= board.clock for version in board.versions.values())
            for name, seen in board.seen.items():
                assert name in holding
                assert all(version <= board.versions[name] for version in seen.values())
            for name in graph.keys:
                channel = board.channels.get(name, graph.channels[name])
                assert (name in board.values) == channel.is_available()
                if channel.is_available():
                    assert board.values[name] == channel.get()

    trace(graph, made.input(), Checking(graph))
