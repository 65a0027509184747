"""Await an async router, and store its node's writes before the router continues after its first wait."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
import anyio.lowlevel

from ..persistence.shielded_task import ShieldedWork
from ..persistence.unstored import NoLease
from ..platform.event_loops import on_asyncio
from ..platform.first_wait import call_on_first_wait
from .context import AttemptContext
from .node_record import NodeRecord

T = TypeVar("T")


class Recording(Protocol):
    """The progress of the attempt that runs the router.

    Attributes:
        recording: True if an error that is raised now is a failure to store the node's writes.
    """

    recording: bool


async def await_router(
    answer: Awaitable[T], attempt: AttemptContext, record: Callable[[], Awaitable[None]], progress: Recording
) -> tuple[T, bool]:
    """Await a router of a node whose writes are not stored yet.

    A router that returns without waiting needs no transaction of its own: its node's writes are stored with the
    superstep, or with the task's result if siblings are running. A router that waits may take long, and if the process
    dies meanwhile, the node must not run again. So its writes are stored first. They are also stored before a task that
    the router calls, or a graph that it runs: a node that ran again might return other writes, and the router would
    then make other calls than the recorded ones.

    Args:
        answer: what the router returned; it has not been awaited.
        attempt: the attempt that runs the router.
        record: stores the node's writes.
        progress: its `recording` is True when a failure of `record` is raised.

    Returns:
        The router's answer, and True if the node's writes are stored.
    """
    coroutine = answer if isinstance(answer, types.CoroutineType) else _as_coroutine(answer)
    lease = attempt.graph.run.lease
    if isinstance(lease, NoLease) or not attempt.graph.persistence.is_stored:
        return await coroutine, False
    if attempt.publisher.units.are_stored:
        # The events of a router belong to a unit of their own, from its first statement on. A resume would show them
        # again if the record of the node's writes closed them together with the node's events.
        progress.recording = True
        try:
            await record()
        except BaseException:
            coroutine.close()  # Python warns of a coroutine that is dropped before its start
            raise
        progress.recording = False
        return await coroutine, True
    if attempt.node_record is None:
        attempt.node_record = NodeRecord(lease, record)
    node_record = attempt.node_record
    node_record.scope = anyio.CancelScope()
    answers: list[T] = []  # empty if the scope was cancelled: then `raise_failure` raises
    try:
        with node_record.scope:
            # Storing has a task of its own, which runs while the router waits. The router continues after its end.
            answers.append(await call_on_first_wait(coroutine, lambda: (_wait_for_storage(node_record.begin()),)))
    finally:
        # Also if the router has handled the cancellation and returned: the failure of the storage is the outcome.
        progress.recording = True
        node_record.raise_failure()
        progress.recording = False
    return answers.pop(), node_record.is_stored


async def _wait_for_storage(storing: ShieldedWork) -> None:
    """Wait until the node's writes are stored. If that has failed, raise the cancellation of the router."""
    try:
        await storing.wait_out()
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException:
        # The router's scope is cancelled, because a router must neither handle the error nor continue. Closing its
        # coroutine would not do: its task groups and `finally` blocks may have to wait. On trio the cancellation comes
        # at the router's next checkpoint: the wait has ended, and a nursery or a lock relies on its result.
        if on_asyncio():
            await anyio.lowlevel.checkpoint_if_cancelled()


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
