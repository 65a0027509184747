"""How a run leaves its thread, as the rows of the run and of the thread show it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from checkpoint_savers.records import Lease
from checkpoint_savers.runs.decisions import RunOutcome
from checkpoint_savers.runs.rows import RunError, RunStatus, ThreadStatus

from .._api.json_encoder import JsonEncoder
from .._runtime.streaming.event_recorder import MAX_POSITION
from .._runtime.streaming.parts import Cursor
from ..types import Interrupt, StateSnapshot

MAX_SUMMARY = 16 * 1024
"""Bytes of JSON that a thread's row holds of its state. Keys whose values do not fit are left out."""

_FAILED: Final = frozenset[RunStatus](("error", "timeout"))

_JSON = JsonEncoder()


def outcome_of(
    state: StateSnapshot[Any],
    status: RunStatus,
    lease: Lease,
    error: RunError | None = None,
    *,
    was_refused: bool = False,
    first_event: str = "",
    route: str = "",
) -> RunOutcome:
    """Return how a run ended, and how it left its thread.

    Args:
        state: the thread's state after the run.
        status: the run's final status.
        lease: the lease under which it ran.
        error: why it failed; None if it did not.
        was_refused: it has failed and left the thread as it was: its input or its answer was refused, say.
        first_event, route: see `RunOutcome`.
    """
    rest: ThreadStatus = "interrupted" if state.next else "idle"
    if status in _FAILED and not (was_refused and state.metadata is not None):
        rest = "error"
    at = state.config.get("configurable", {}).get("checkpoint_id", "")
    return RunOutcome(
        status=status,
        rest=rest,
        error=error,
        values=_summary(state),
        interrupts=_questions(state),
        first_event=first_event,
        last_event=after_all(at, lease),
        route=route,
    )


def after_all(at: str, lease: Lease) -> str:
    """Return a cursor after all events under a lease. Those under the next lease come after it.

    Args:
        at: the thread's newest checkpoint; "" for none.
        lease: the lease.
    """
    return str(Cursor(at, lease.epoch, MAX_POSITION))


def _summary(state: StateSnapshot[Any]) -> dict[str, Any]:
    """Return a state as JSON values, without keys for which there is no room."""
    values = state.values if isinstance(state.values, dict) else {"value": state.values}
    room, summary = MAX_SUMMARY, dict[str, Any]()
    for key, value in values.items():
        data = _JSON(value)
        if len(data) <= room:
            room -= len(data)
            summary[str(key)] = msgspec.json.decode(data)
    return summary


def _questions(state: StateSnapshot[Any]) -> dict[str, Any]:
    """Return the open questions as JSON values, by task id."""
    asked = {task.id: [_question(each) for each in task.interrupts] for task in state.tasks if task.interrupts}
    return {task_id: msgspec.json.decode(_JSON(questions)) for task_id, questions in asked.items()}


def _question(asked: Interrupt) -> dict[str, Any]:
    schema = {} if asked.response_schema is None else {"response_schema": asked.response_schema}
    return {"id": asked.id, "value": asked.value, **schema}
