"""From what was given to its items: awaited, entered, iterated, and closed in the end.

A source is used up. It is closed however its reading ends, and nobody else is to read on.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeAlias

import anyio
from anyio import to_thread

from checkpoint_savers.errors import annotate

from .._runtime.observing.error_text import with_notes
from .errors import InvalidSourceError
from .recognise import refuse

CLOSING: Final = 10.0
"""Seconds for closing a stream, which no cancellation cuts short: a connection is given back, or broken off."""

_END: Final = object()

_Leave: TypeAlias = Callable[[BaseException | None], Awaitable[None]]
_LeaveSync: TypeAlias = Callable[[BaseException | None], None]


@asynccontextmanager
async def opened(source: Any) -> AsyncGenerator[AsyncIterator[Any]]:
    """The items of a source, in async code. What is not async in it runs in worker threads.

    Raises:
        InvalidSourceError: it cannot be a stream; nothing was read.
    """
    leave: list[_Leave] = []
    try:
        yield await _begin(source, leave)
    except BaseException as error:
        await _leave(leave, error)
        raise
    else:
        await _leave(leave, None)


async def _begin(source: Any, leave: list[_Leave]) -> AsyncIterator[Any]:
    given: Any = source
    entered: Any = None
    while True:
        refuse(given, name="stream_message", also_async=True)
        if hasattr(given, "__aiter__") and (_closes(given) or not hasattr(given, "__aenter__") or given is entered):
            leave.append(_closing(given))
            iterator: AsyncIterator[Any] = aiter(given)
            if iterator is not given:
                leave.append(_closing(iterator))
            return iterator
        if hasattr(given, "__aenter__") and given is not entered:
            entered = given
            given = await entered.__aenter__()
            leave.append(_leaving(entered))
        elif inspect.isawaitable(given):
            given = await given
        elif isinstance(given, (list, tuple)):
            return _Advanced(iter(given), in_thread=False)
        elif hasattr(given, "__iter__") and (_closes(given) or not hasattr(given, "__enter__") or given is entered):
            leave.append(_closing(given, in_thread=True))
            iterated = await to_thread.run_sync(iter, given)
            if iterated is not given:
                leave.append(_closing(iterated, in_thread=True))
            return _Advanced(iterated, in_thread=True)
        elif hasattr(given, "__enter__") and given is not entered:
            entered = given
            given = await to_thread.run_sync(entered.__enter__)
            leave.append(_leaving(entered, in_thread=True))
        else:
            raise InvalidSourceError(type(given).__name__, "was entered, and cannot be iterated")


async def _leave(leave: list[_Leave], error: BaseException | None) -> None:
    """Close all, the last one first. What fails there does not hide why we leave."""
    failed = error
    while leave:
        close = leave.pop()
        try:
            await close(failed)
        except BaseException as closing:  # a cancellation too: the others are closed all the same
            failed = _worse(failed, closing)
    if failed is not None and failed is not error:
        raise failed


def _worse(failed: BaseException | None, closing: BaseException) -> BaseException:
    """Which of two is raised: the first, but for a cancellation, which must not get lost. It notes the other one."""
    if failed is None or failed is closing:
        return closing
    if isinstance(failed, Exception) and not isinstance(closing, Exception):
        return closing
    annotate(failed, f"closing its stream failed as well: {with_notes(closing)}")
    return failed


def _closes(given: Any) -> bool:
    return hasattr(given, "aclose") or hasattr(given, "close")


def _closing(stream: Any, in_thread: bool = False) -> _Leave:
    """Close a stream, whatever happens to its reader meanwhile."""

    async def close(error: BaseException | None) -> None:
        if not _closes(stream):
            return
        method = stream.aclose if hasattr(stream, "aclose") else stream.close
        # No scope of the stream's own can be open here, as it could around a context manager's body.
        with anyio.move_on_after(CLOSING, shield=True):
            closed = await to_thread.run_sync(method, abandon_on_cancel=True) if in_thread else method()
            if inspect.isawaitable(closed):
                await closed

    return close


def _leaving(manager: Any, in_thread: bool = False) -> _Leave:
    """Leave a context manager. It is told the error, and not asked whether to go on: half a message is none.

    Not under a shield. It may hold a cancel scope or a task group, which has to be the innermost scope when it ends;
    its clean-up is its own matter, as in any `async with`.
    """

    async def leave(error: BaseException | None) -> None:
        if in_thread:
            await to_thread.run_sync(manager.__exit__, *_told(error))
        else:
            await manager.__aexit__(*_told(error))

    return leave


def _told(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


class _Advanced:
    """A sync iterator as an async one. No generator, which would have to be closed itself."""

    def __init__(self, iterator: Iterator[Any], in_thread: bool) -> None:
        self._iterator = iterator
        self._in_thread = in_thread

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._in_thread:
            # A thread that waits for a token cannot be interrupted: a cancellation takes effect with the next one.
            item = await to_thread.run_sync(next, self._iterator, _END)
        else:
            item = next(self._iterator, _END)
        if item is _END:
            raise StopAsyncIteration
        return item


@contextmanager
def opened_sync(source: Any) -> Generator[Iterator[Any]]:
    """The items of a source, in a thread.

    Raises:
        InvalidSourceError: it cannot be a stream, or only in async code; nothing was read.
    """
    leave: list[_LeaveSync] = []
    try:
        yield _begin_sync(source, leave)
    except BaseException as error:
        _leave_sync(leave, error)
        raise
    else:
        _leave_sync(leave, None)


def _begin_sync(source: Any, leave: list[_LeaveSync]) -> Iterator[Any]:
    given: Any = source
    entered: Any = None
    while True:
        refuse(given, name="stream_message_sync", also_async=False)
        if hasattr(given, "__iter__") and (_closes(given) or not hasattr(given, "__enter__") or given is entered):
            leave.append(_closing_sync(given))
            iterator: Iterator[Any] = iter(given)
            if iterator is not given:
                leave.append(_closing_sync(iterator))
            return iterator
        if given is entered:
            raise InvalidSourceError(type(given).__name__, "was entered, and cannot be iterated")
        entered = given
        given = entered.__enter__()
        leave.append(_leaving_sync(entered))


def _closing_sync(stream: Any) -> _LeaveSync:
    def close(error: BaseException | None) -> None:
        if hasattr(stream, "close"):
            stream.close()

    return close


def _leaving_sync(manager: Any) -> _LeaveSync:
    def leave(error: BaseException | None) -> None:
        manager.__exit__(*_told(error))

    return leave


def _leave_sync(leave: list[_LeaveSync], error: BaseException | None) -> None:
    """`_leave`, in a thread."""
    failed = error
    while leave:
        close = leave.pop()
        try:
            close(failed)
        except BaseException as closing:
            failed = _worse(failed, closing)
    if failed is not None and failed is not error:
        raise failed
