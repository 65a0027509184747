"""Open supersteps and breakpoints, without an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pregel_async._core import superstep
from pregel_async._core.amending import amend
from pregel_async._core.board import Board
from pregel_async._core.ids import interrupt_id
from pregel_async._core.program import PARENT, SENDS, Program
from pregel_async._core.stop import Breakpoints
from pregel_async._core.task import Cancelled, Failed, Finished, Outcome, Paused, Task
from pregel_async.channels import BinaryOperatorAggregate, EphemeralValue, LastValue
from pregel_async.errors import GraphRecursionError, InvalidUpdateError, ParentCommand
from pregel_async.types import Command, Interrupt, Send
from tests.core.scripted import SCOPE, Script, begin, drive, node, plan, program, stored

ASKED = Paused((Interrupt("?", "0" * 32),))
DONE = Finished([])
FAILED = Failed(ValueError("oops"))
LEAVES = Finished([(PARENT, Command(graph="outer"))], ends_graph=True)


class FixedOutcomes(Script):
    """A port that returns given outcomes instead of running tasks."""

    def __init__(self, program: Program, **outcomes: Outcome) -> None:
        super().__init__(program)
        self.outcomes = outcomes

    async def execute(self, board: Board, tasks: Sequence[Task]) -> Sequence[Outcome]:
        self.calls.append("execute")
        return [self.outcomes.get(task.node.name, DONE) for task in tasks]


def pair(**outcomes: Outcome) -> tuple[FixedOutcomes, Any]:
    """`a` and `b` in one superstep, then `c`."""
    made = program(
        node("a", "in", sends=["go"]),
        node("b", "in"),
        node("c", "go"),
        **{"in": EphemeralValue(int), "go": EphemeralValue(int)},
    )
    port = FixedOutcomes(made, **outcomes)
    return port, superstep.run(made, begin(made, {"in": 1}), port, scope=SCOPE, limit=10)


@pytest.mark.parametrize(
    ("outcomes", "open"),
    [
        ([DONE, DONE], False),
        ([DONE, ASKED], True),
        ([ASKED, ASKED], True),
        ([LEAVES, DONE], True),
        ([ASKED, FAILED], False),
        ([FAILED, LEAVES], False),
        ([ASKED, Cancelled()], False),
        ([Paused(())], True),
        ([], False),
    ],
)
def test_which_outcomes_leave_a_superstep_open(outcomes: list[Outcome], open: bool) -> None:
    """Rules 4 and 7: a question or a parent command leaves the superstep open; a failure takes precedence over a
    question."""
    assert superstep.stays_open(outcomes) is open


def test_a_question_ends_the_run_before_the_update() -> None:
    """Rule 4: with a question open the superstep is not folded and no superstep follows; the run reports that it is not
    done."""
    port, run = pair(a=ASKED)
    assert drive(run) is False
    assert port.calls == ["execute", "pause 0"]


def test_a_failure_with_an_open_question() -> None:
    """P9, rule 4: the failure is raised, and the port gets it together with the question."""
    port, run = pair(a=ASKED, b=FAILED)
    with pytest.raises(ValueError, match="oops"):
        drive(run)
    assert [outcomes for _, outcomes, _ in port.given_up] == [(ASKED, FAILED)]


def test_a_parent_command_ends_the_graph() -> None:
    """A parent command ends its graph with the superstep open; an open question takes precedence."""
    port, run = pair(a=LEAVES)
    with pytest.raises(ParentCommand) as caught:
        drive(run)
    assert caught.value.commands == (Command(graph="outer"),)
    assert port.calls == ["execute", "pause 0"]
    port, run = pair(a=LEAVES, b=ASKED)
    assert drive(run) is False


@pytest.mark.parametrize(
    ("breakpoints", "resumed", "steps"),
    [
        (Breakpoints(before=frozenset("a")), False, 0),
        (Breakpoints(before=frozenset("b")), False, 1),
        (Breakpoints(after=frozenset("a")), False, 1),
        (Breakpoints(before=frozenset("a")), True, 2),
        (Breakpoints(before=frozenset("b")), True, 1),
        (Breakpoints(after=frozenset("b")), False, 2),
    ],
)
def test_breakpoints(breakpoints: Breakpoints, resumed: bool, steps: int) -> None:
    """A run stops before or after the named nodes, after the superstep is stored; a run that continues from a stop does
    not stop there again."""
    made = program(
        node("a", "in", sends=["go"]), node("b", "go"), **{"in": EphemeralValue(int), "go": EphemeralValue(int)}
    )
    port = Script(made)
    done = drive(
        superstep.run(
            made, begin(made, {"in": 1}), port, scope=SCOPE, limit=10, breakpoints=breakpoints, resumed=resumed
        )
    )
    assert len(port.steps) == steps
    assert done is (steps == 2 and not breakpoints.after)


def test_a_breakpoint_comes_before_the_limit() -> None:
    """P14: a run that stops at a breakpoint has not reached its recursion limit."""
    made = program(
        node("a", "in", sends=["go"]), node("b", "go"), **{"in": EphemeralValue(int), "go": EphemeralValue(int)}
    )
    stop = Breakpoints(before=frozenset("b"))
    board = begin(made, {"in": 1})
    assert drive(superstep.run(made, board, Script(made), scope=SCOPE, limit=1, breakpoints=stop)) is False
    with pytest.raises(GraphRecursionError):
        drive(superstep.run(made, board, Script(made), scope=SCOPE, limit=0, breakpoints=stop, resumed=True))


def add(left: int, right: int) -> int:
    return left + right


def amendable() -> tuple[Program, Board]:
    """`a` is triggered, `w` is sent to twice; `x` is idle."""
    channels = {name: EphemeralValue(int, guard=False) for name in ("in", "go", "x")}

    def sends(value: Any) -> Any:
        return [("go", 1), (SENDS, Send("w", "first")), (SENDS, Send("w", "second"))]

    made = program(
        node("s", "in", sends),
        node("a", "go"),
        node("x", "x"),
        node("w", ()),
        note=LastValue(str),
        total=BinaryOperatorAggregate(int, add),
        **channels,
    )
    port = Script(made)
    board = begin(made, {"in": 1})
    with pytest.raises(GraphRecursionError):
        drive(superstep.run(made, board, port, scope=SCOPE, limit=1))
    return made, board


def ids(made: Program, board: Board) -> dict[Any, str]:
    return {(task.node.name, task.send, task.arg): task.id for task in plan(made, board)}


@pytest.mark.parametrize("reload", [False, True])
def test_amending_an_open_superstep(reload: bool) -> None:
    """P2: an update passed to a call changes the state but neither the planned tasks nor their ids; its triggers and
    sends join them, after sends that are pending. A reloaded board is amended to the same."""
    made, board = amendable()
    before = ids(made, board)
    if reload:
        board = stored(made, board)
        assert ids(made, board) == before
    amend(made, board, [("note", "n"), ("total", 2), ("x", None), (SENDS, Send("w", "third"))], scope=SCOPE, number=0)
    amend(made, board, [("note", "m"), ("total", 3)], scope=SCOPE, number=1)
    after = ids(made, board)
    assert [key for key in after if key not in before] == [("x", -1, None), ("w", 2, "third")]
    assert {key: after[key] for key in before} == before
    assert (board.values["note"], board.values["total"], board.step) == ("m", 5, 0)
    tasks = plan(made, board)
    superstep.update(made, board, tasks, [[] for _ in tasks])
    assert {"note", "total"} <= set(board.changed)
    assert (board.values["note"], board.values["total"], plan(made, board)) == ("m", 5, [])


def test_an_amendment_that_cannot_be_folded() -> None:
    """Two values in one call for a key that holds one value are refused."""
    made, board = amendable()
    with pytest.raises(InvalidUpdateError):
        amend(made, board, [("note", "n"), ("note", "m")], scope=SCOPE, number=0)


def test_ids_of_questions() -> None:
    """P8: a question id is 32 hex digits, distinct by task and number, and always the same."""
    made, board = amendable()
    several = {interrupt_id(task.id, index) for task in plan(made, board) for index in range(10)}
    assert len(several) == 30
    assert all(len(each) == 32 and set(each) <= set("0123456789abcdef") for each in several)
    assert interrupt_id(plan(made, board)[0].id, 0) == "376781555f12e36e55b0da442acaa87f"
