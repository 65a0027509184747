"""Interpret the task records of an open superstep, for runs, readers and editors of a thread.

Each task has at most one record (`TaskResult`): its result, its failure, or its questions and their answers. Three
reserved ids do not name tasks: `SUPERSTEP`, `AMENDED` and `MIGRATED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import Delta, TaskResult, as_stored, questions_of, read_delta, write_delta
from checkpoint_savers.patches import as_incremental
from checkpoint_savers.records import TaskId

from ..._core.amending import amend
from ..._core.board import Board
from ..._core.program import RETURN, SENDS, Program, Write
from ..._core.task import Task
from ...types import Interrupt

SUPERSTEP = TaskId("")
"""The reserved task id for a failure of the superstep itself."""

AMENDED = TaskId("__input__")
"""The reserved task id for updates that calls made to the state of an open superstep."""

BETWEEN = ""
"""The channel of the write that separates two such updates. Each update is folded by itself."""

MIGRATED = TaskId("__migrated__")
"""The reserved task id for what declared rules have made of the state of an open superstep; see `migrated_state`."""

OF_STATE: Final = (AMENDED, MIGRATED)
"""The records that are a part of the state, and not of the superstep's tasks. A new branch takes them."""


NOT_RECORDED: Final = TaskResult(name="", routed=False)
"""The record of a task that has no record."""


def is_result(result: TaskResult) -> bool:
    """Return True if a record is the result of a planned task, which history shows."""
    # The result of a called task is its return value alone.
    return result.finished and not (result.writes and result.writes[0][0] == RETURN)


def handler_of(task: Task, result: TaskResult) -> Task | None:
    """Return the error handler's task if the record says that it runs in the task's place; else None."""
    # The handler may have been removed from the code since the record was made: then the node runs again.
    handler = task.node.handler
    return task.handling(handler) if result.handled and handler is not None else None


def open_questions(result: TaskResult, codec: Codec) -> Iterator[Interrupt]:
    """Yield a task's unanswered questions."""
    for key, data in result.interrupts or ():
        if key not in result.answers:
            yield _question(result, key, data, codec)


def all_questions(result: TaskResult, codec: Codec) -> Iterator[Interrupt]:
    """Yield all questions of a task, answered ones first."""
    for key, data in questions_of(result):
        yield _question(result, key, data, codec)


def _question(result: TaskResult, key: str, data: bytes, codec: Codec) -> Interrupt:
    schema = result.schemas.get(key)
    described: Any = None if schema is None else codec.decode(schema, channel="response_schema")
    return Interrupt(codec.decode(data, channel="interrupt()"), key, described)


def amend_again(program: Program, board: Board, result: TaskResult, codec: Codec, scope: tuple[str, str]) -> None:
    """Fold the recorded updates of an open superstep into a loaded board.

    Args:
        program: the graph.
        board: the loaded board.
        result: the `AMENDED` record.
        codec: decodes the writes.
        scope: the scope of the ids of messages in the updates.
    """
    # Each update by itself and with its number: folded as one, a reducer could give another value, and messages
    # without an id would get other ids than the calls gave them.
    writes: list[Write] = []
    number = 0
    for channel, data in (*result.writes, (BETWEEN, b"")):
        if channel in program.channels:
            value: Any = codec.decode(data, channel=channel)
            # A send to a node that does not exist is left out, like an edge to one. `of_records` reports both.
            if channel != SENDS or value.node in program.nodes:
                writes.append((channel, value))
        elif channel == BETWEEN and writes:
            amend(program, board, writes, scope=scope, number=number)
            writes = []
            number += 1


def migrated_result(delta: Delta, version: int) -> TaskResult:
    """Return the `MIGRATED` record, which `migrated_state` reads.

    Args:
        delta: what declared rules have changed in the state that the checkpoint's row stores.
        version: the version of the graph that declares them; 0 for none.
    """
    frame = write_delta(as_stored(delta, {}))
    return TaskResult(name="", writes=((BETWEEN, frame),), version=version)


def migrated_state(state: EncodedState, result: TaskResult, where: str) -> tuple[EncodedState, set[str]]:
    """Return the state of an open superstep as `amigrate_threads` has stored it, and the names of what was changed.

    The row is not written again, because the tasks' ids, their records and the states of subgraphs refer to its
    checkpoint. The next superstep stores the changed channels in its row, as those of an update of the open superstep.

    Args:
        state: the state of the checkpoint, as its row stores it; not changed.
        result: the `MIGRATED` record.
        where: the checkpoint, for errors.

    Raises:
        CorruptCheckpointError: the record is damaged.
    """
    made = state.copy()
    names: set[str] = set()
    for _, frame in result.writes:
        delta = read_delta(frame, where)
        values = {name: as_incremental(data) for name, data in delta.values.items() if isinstance(data, bytes)}
        made.apply(delta, values)
        names.update(delta.emptied, values)
    return made, names
