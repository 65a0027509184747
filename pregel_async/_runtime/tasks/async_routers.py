"""Await an async router, and store its node's writes before the router continues after its first wait."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio

from ..persistence.shielded_task import ShieldedTask
from ..persistence.unstored import NoLease
from .context import GraphContext

T = TypeVar("T")


class Recording(Protocol):
    """The progress of the attempt that runs the router.

    Attributes:
        recording: True while the node's writes are being stored, so that an error is a failure of storage.
    """

    recording: bool


async def await_router(
    answer: Awaitable[T], graph: GraphContext, record: Callable[[], Awaitable[None]], progress: Recording
) -> tuple[T, bool]:
    """Await a router of a node whose writes are not stored yet.

    A router that returns without waiting needs no transaction of its own: its node's writes are stored with the
    superstep, or with the task's result if siblings are running. A router that waits may take long, and if the process
    dies meanwhile, the node must not run again. So its writes are stored first.

    Args:
        answer: what the router returned; it has not been awaited.
        record: stores the node's writes.
        progress: its `recording` is True while `record` runs.

    Returns:
        The router's answer, and True if the node's writes are stored.
    """
    coroutine = answer if isinstance(answer, types.CoroutineType) else _as_coroutine(answer)
    lease = graph.run.lease
    if isinstance(lease, NoLease) or not graph.persistence.is_stored:
        return await coroutine, False
    if graph.events.publisher.units.are_stored:
        # The events of a router belong to a unit of their own, from its first statement on. A resume would show them
        # again if the record of the node's writes closed them together with the node's events.
        try:
            await _wait_for_storage(record(), progress)
        except BaseException:
            coroutine.close()  # Python warns of a coroutine that is dropped before its start
            raise
        return await coroutine, True
    storing: list[ShieldedTask] = []
    result = await _store_on_first_wait(coroutine, partial(lease.start, record), storing, progress)
    return result, bool(storing)


async def _wait_for_storage(storing: Awaitable[None], progress: Recording) -> None:
    progress.recording = True
    await storing
    progress.recording = False


@types.coroutine
def _store_on_first_wait(
    coroutine: Coroutine[Any, Any, T],
    start: Callable[[], ShieldedTask],
    storing: list[ShieldedTask],
    progress: Recording,
) -> Generator[Any, Any, T]:
    """Run a coroutine in place. When it first waits, start to store; let it continue when that has finished.

    Args:
        start: starts the task that stores.
        storing: receives that task. It stays empty if the coroutine returns without waiting.
    """
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    while True:
        try:
            yielded = step(sent)
        except StopIteration as stop:
            result: T = stop.value
            return result
        is_first = not storing
        if is_first:
            # In a task of its own, while this one yields the coroutine's future or trap to the event loop. Awaiting the
            # storage here would yield another one first: the loop would later resume a task that waits for something
            # else, which breaks trio's accounting and leaves an asyncio future without its waiter.
            storing.append(start())
        try:
            sent = yield yielded
            step = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            sent, step = error, coroutine.throw
        if is_first:
            try:
                yield from _wait_for_storage(storing[0].wait_out(), progress).__await__()
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                if not isinstance(error, anyio.get_cancelled_exc_class()):
                    coroutine.close()  # storage has failed: the router must neither handle that nor continue
                    raise
                progress.recording = False
                sent, step = error, coroutine.throw


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    return await awaitable
