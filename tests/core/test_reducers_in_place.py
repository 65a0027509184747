"""P1 for folds: a reducer or a user-defined channel may change its arguments in place without affecting other
objects."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Self

import pytest

from pregel_async._core import superstep
from pregel_async._core.ownership import own
from pregel_async._core.program import Program
from pregel_async._core.task import Finished
from pregel_async.channels import MISSING, BaseChannel, BinaryOperatorAggregate, LastValue, Missing
from pregel_async.errors import EmptyChannelError
from tests.core.scripted import SCOPE, Script, begin, drive, node, plan, program, write


def extend(current: list[Any], update: list[Any]) -> list[Any]:
    current.extend(update)
    return current


def extend_update(current: list[Any], update: list[Any]) -> list[Any]:
    update[:0] = current
    return update


def mark_all(current: list[Any], update: list[Any]) -> list[Any]:
    for item in [*current, *update]:
        item["marked"] = True
    return [*current, *update]


def merge(current: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    for key, value in update.items():
        current.setdefault(key, []).extend(value)
    return current


REDUCERS: dict[str, tuple[Any, Callable[[Any, Any], Any], Any, Any]] = {
    "changes current": (list, extend, [{"n": 1}], [{"n": 2}]),
    "changes update": (list, extend_update, [{"n": 1}], [{"n": 2}]),
    "changes elements": (list, mark_all, [{"n": 1}], [{"n": 2}]),
    "changes deep": (dict, merge, {"a": [1]}, {"a": [2], "b": [3]}),
    "operator.iadd": (list, operator.iadd, [{"n": 1}], [{"n": 2}]),
    "operator.ior": (dict, operator.ior, {"a": [1]}, {"b": [2]}),
}


class Case(NamedTuple):
    kind: Any
    reducer: Callable[[Any, Any], Any]
    first: Any
    second: Any


@pytest.fixture(params=REDUCERS)
def case(request: pytest.FixtureRequest) -> Case:
    """Return a reducer, and fresh values to fold."""
    kind, reducer, first, second = REDUCERS[request.param]
    return Case(kind, reducer, deepcopy(first), deepcopy(second))


def folding(case: Case) -> Program:
    return program(
        node("a", "x", lambda seen: {"v": case.second}, reads=("v", "x")),
        x=LastValue(),
        v=BinaryOperatorAggregate(case.kind, case.reducer),
    )


def test_what_was_read_before_stays(case: Case) -> None:
    """P1: a fold does not change values that nodes, chunks or snapshots got before it."""
    graph = folding(case)
    board = begin(graph, {"x": 1, "v": case.first})
    got, value = board.read("v"), board.values["v"]
    shown, before = repr(got), repr(value)
    write(graph, board, ("v", own(case.second)), by=plan(graph, board))
    assert (repr(got), repr(value)) == (shown, before)
    assert board.values["v"] is not value


def test_what_a_task_wrote_stays(case: Case) -> None:
    """P1, P3: a reducer that changes its update in place does not change the task's recorded result."""
    graph = folding(case)
    board = begin(graph, {"x": 1, "v": case.first})
    tasks = plan(graph, board)
    (outcome,) = drive(Script(graph).execute(board, tasks))
    assert isinstance(outcome, Finished)
    before = repr(outcome.writes)
    superstep.update(graph, board, tasks, superstep.collect(tasks, [outcome]))
    assert repr(outcome.writes) == before


def test_what_the_node_keeps_stays_its_own(case: Case) -> None:
    """P1: a reducer that changes its update in place does not change the object that the node returned or the caller
    passed."""
    graph = folding(case)
    given, returned = repr(case.first), repr(case.second)
    drive(superstep.run(graph, begin(graph, {"x": 1, "v": case.first}), Script(graph), scope=SCOPE, limit=9))
    assert (repr(case.first), repr(case.second)) == (given, returned)


def test_the_fold_is_the_same_as_on_copies(case: Case) -> None:
    """Isolation changes no result: a fold gives what the reducer gives on copies."""
    graph = folding(case)
    board = begin(graph, {"x": 1, "v": case.first})
    write(graph, board, ("v", own(case.second)), ("v", own(case.second)), by=plan(graph, board))
    value = case.kind()
    for update in (case.first, case.second, case.second):
        value = case.reducer(deepcopy(value), deepcopy(update))
    assert board.values["v"] == value


class InPlaceChannel(BaseChannel[list[Any], Any, list[Any]]):
    """A user-defined channel that breaks the contract: it changes its value in place."""

    def __init__(self) -> None:
        super().__init__(list)
        self.held: list[Any] = []

    def get(self) -> list[Any]:
        if not self.held:
            raise EmptyChannelError(self.key)
        return self.held

    def update(self, values: Sequence[Any]) -> bool:
        self.held.extend(values)
        return bool(values)

    def from_checkpoint(self, stored: list[Any] | Missing) -> Self:
        twin = type(self)()
        twin.key = self.key
        if stored is not MISSING:
            twin.held = list(stored)
        return twin


def test_a_users_channel_that_changes_in_place() -> None:
    """P1, `program`: a value read from a user-defined channel is copied, as the channel may change it in place
    later."""
    graph = program(node("a", "x"), x=LastValue(), v=InPlaceChannel())
    board = begin(graph, {"x": 1, "v": {"n": 1}})
    got, value = board.read("v"), board.values["v"]
    got[0]["n"] = "changed"
    write(graph, board, ("v", {"n": 2}), by=plan(graph, board))
    assert value == [{"n": 1}]
    assert board.read("v") == [{"n": 1}, {"n": 2}]
