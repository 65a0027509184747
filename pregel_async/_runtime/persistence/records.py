"""What is recorded of a superstep that is open, as runs, readers and editors of its thread understand it.

A record is kept by task (`TaskResult`): its result, its failure, or its questions and what was answered. Two ids are no
task's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import TaskResult
from checkpoint_savers.records import TaskId

from ..._core.amending import amend
from ..._core.board import Board
from ..._core.program import RETURN, Program, Write
from ..._core.task import Task
from ...types import Interrupt

SUPERSTEP = TaskId("")
"""The task id under which a failure of the superstep itself is recorded."""

AMENDED = TaskId("__input__")
"""The task id under which the updates are recorded that calls made to the state of an open superstep."""

BETWEEN = ""
"""The channel of the write that stands between two such updates: each is folded by itself."""


NOT_RECORDED: Final = TaskResult(name="", routed=False)
"""In the place of the record of a task that has none."""


def is_result(result: TaskResult) -> bool:
    """Whether a record is what history shows of a task of the plan."""
    return result.finished and not (result.writes and result.writes[0][0] == RETURN)


def handler_of(task: Task, result: TaskResult) -> Task | None:
    """The task of the error handler that runs in a task's place, by the task's record; None when none does."""
    handler = task.node.handler
    return task.handling(handler) if result.handled and handler is not None else None


def open_questions(result: TaskResult, codec: Codec) -> Iterator[Interrupt]:
    """What a task has asked and nobody has answered."""
    for key, data in result.interrupts or ():
        if key not in result.answers:
            yield Interrupt(codec.decode(data, channel="interrupt()"), key)


def amend_again(program: Program, board: Board, result: TaskResult, codec: Codec, scope: tuple[str, str]) -> None:
    """Make the updates that calls made to the state of an open superstep, each by itself, as they made them."""
    writes: list[Write] = []
    number = 0
    for channel, data in (*result.writes, (BETWEEN, b"")):
        if channel in program.channels:
            writes.append((channel, codec.decode(data, channel=channel)))
        elif channel == BETWEEN and writes:
            amend(program, board, writes, scope=scope, number=number)
            writes = []
            number += 1
