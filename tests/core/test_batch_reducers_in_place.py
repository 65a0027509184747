"""P1 for a `DeltaChannel`: its reducer may change the value and the writes in place without affecting other objects."""

from __future__ import annotations

from typing import Any

from pregel_async._core import superstep
from pregel_async._core.task import Finished
from pregel_async.channels import DeltaChannel, LastValue
from tests.core.scripted import Script, begin, drive, node, plan, program


def mark_all(current: list[Any], updates: list[Any]) -> list[Any]:
    for update in updates:
        current.extend(update)
        update.clear()
    updates.clear()
    for item in current:
        item["marked"] = True
    return current


def test_a_batch_reducer_affects_no_other_object() -> None:
    """A reducer that works in place leaves earlier reads, the earlier value and the task's writes as they were, and
    folds to the same result as on copies."""
    returned = [{"n": 2}]
    graph = program(
        node("a", "x", lambda seen: {"v": returned}, reads=("v", "x")), x=LastValue(), v=DeltaChannel(mark_all, list)
    )
    board = begin(graph, {"x": 1, "v": [{"n": 1}]})
    got, value = board.read("v"), board.values["v"]
    assert value == [{"n": 1, "marked": True}]
    del value[0]["marked"]
    tasks = plan(graph, board)
    (outcome,) = drive(Script(graph).execute(board, tasks))
    assert isinstance(outcome, Finished)
    superstep.update(graph, board, tasks, superstep.collect(tasks, [outcome]))
    assert got == value == [{"n": 1}]
    assert outcome.writes == [("v", [{"n": 2}])]
    assert returned == [{"n": 2}]
    assert board.values["v"] == [{"n": 1, "marked": True}, {"n": 2, "marked": True}]
