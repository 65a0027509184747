"""Get from a source to its items: await it, enter it, iterate it, and close it in the end.

Reading consumes a source. It is closed however reading ends, so no other code may continue to read it.
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
from .recognise import check_source

CLOSE_SECONDS: Final = 10.0
"""Seconds that closing a stream may take. A cancellation does not cut this short: a connection must be given back."""

_END: Final = object()

_Close: TypeAlias = Callable[[BaseException | None], Awaitable[None]]
_CloseSync: TypeAlias = Callable[[BaseException | None], None]


@asynccontextmanager
async def open_source(source: Any) -> AsyncGenerator[AsyncIterator[Any]]:
    """Open a source in async code, and close it at the end. Sync sources are read in worker threads.

    Args:
        source: an async or sync iterable of items, or an awaitable or a context manager that gives one.

    Yields:
        An async iterator over the items.

    Raises:
        InvalidSourceError: the source cannot be a stream; nothing has been read.
    """
    closers: list[_Close] = []
    try:
        yield await _find_items(source, closers)
    except BaseException as error:
        await _close_all(closers, error)
        raise
    else:
        await _close_all(closers, None)


async def _find_items(source: Any, closers: list[_Close]) -> AsyncIterator[Any]:
    """Await and enter the source until an iterator is found. Each step appends its clean-up to `closers`."""
    candidate: Any = source
    entered: Any = None
    while True:
        check_source(candidate, name="stream_message", also_async=True)
        # The streams of SDKs are both iterable and context managers. Their close() does the work of their exit, so an
        # object with close() is iterated directly; an object without it is entered first.
        if hasattr(candidate, "__aiter__") and (
            _can_close(candidate) or not hasattr(candidate, "__aenter__") or candidate is entered
        ):
            closers.append(_stream_closer(candidate))
            iterator: AsyncIterator[Any] = aiter(candidate)
            if iterator is not candidate:
                closers.append(_stream_closer(iterator))
            return iterator
        if hasattr(candidate, "__aenter__") and candidate is not entered:
            entered = candidate
            candidate = await entered.__aenter__()
            closers.append(_manager_closer(entered))
        elif inspect.isawaitable(candidate):
            candidate = await candidate
        elif isinstance(candidate, (list, tuple)):
            return _AsyncIterator(iter(candidate), in_thread=False)  # in memory: nothing can block
        elif hasattr(candidate, "__iter__") and (
            _can_close(candidate) or not hasattr(candidate, "__enter__") or candidate is entered
        ):
            closers.append(_stream_closer(candidate, in_thread=True))
            iterated = await to_thread.run_sync(iter, candidate)
            if iterated is not candidate:
                closers.append(_stream_closer(iterated, in_thread=True))
            return _AsyncIterator(iterated, in_thread=True)
        elif hasattr(candidate, "__enter__") and candidate is not entered:
            entered = candidate
            candidate = await to_thread.run_sync(entered.__enter__)
            closers.append(_manager_closer(entered, in_thread=True))
        else:
            raise InvalidSourceError(type(candidate).__name__, "was entered, and cannot be iterated")


async def _close_all(closers: list[_Close], error: BaseException | None) -> None:
    """Call the closers, the last one first. An error in one of them does not hide the error that ended the reading."""
    failed = error
    while closers:
        close = closers.pop()
        try:
            await close(failed)
        except BaseException as closing:  # also a cancellation: the remaining ones must still be closed
            failed = _primary_error(failed, closing)
    if failed is not None and failed is not error:
        raise failed


def _primary_error(failed: BaseException | None, closing: BaseException) -> BaseException:
    """Return the error to raise: the first one, with the other as a note.

    A cancellation replaces an ordinary exception: if it were only a note, it would be lost.
    """
    if failed is None or failed is closing:
        return closing
    if isinstance(failed, Exception) and not isinstance(closing, Exception):
        return closing
    annotate(failed, f"closing its stream failed as well: {with_notes(closing)}")
    return failed


def _can_close(candidate: Any) -> bool:
    return hasattr(candidate, "aclose") or hasattr(candidate, "close")


def _stream_closer(stream: Any, in_thread: bool = False) -> _Close:
    """Return a function that closes a stream even if its reader is cancelled."""

    async def close(error: BaseException | None) -> None:
        if not _can_close(stream):
            return
        method = stream.aclose if hasattr(stream, "aclose") else stream.close
        # A shield is safe here: unlike a context manager around a body, a stream cannot have a cancel scope of its own
        # open, which would have to be the innermost one.
        # A thread cannot be interrupted: without `abandon_on_cancel`, a blocked close() would outlast the time limit.
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            closed = await to_thread.run_sync(method, abandon_on_cancel=True) if in_thread else method()
            if inspect.isawaitable(closed):
                await closed

    return close


def _manager_closer(manager: Any, in_thread: bool = False) -> _Close:
    """Return a function that exits a context manager with the error, and ignores its wish to suppress that error.

    Suppressing would return half a message as if it were complete.
    """

    # Without a shield: the manager may hold a cancel scope or a task group, which must be the innermost scope when it
    # exits. Its clean-up handles cancellation itself, as in any `async with`.
    async def close(error: BaseException | None) -> None:
        if in_thread:
            await to_thread.run_sync(manager.__exit__, *_exc_info(error))
        else:
            await manager.__aexit__(*_exc_info(error))

    return close


def _exc_info(error: BaseException | None) -> tuple[Any, Any, Any]:
    """Return the arguments of `__exit__` for an error or None."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


class _AsyncIterator:
    """Read a sync iterator from async code. A class, because an async generator would have to be closed itself."""

    def __init__(self, iterator: Iterator[Any], in_thread: bool) -> None:
        self._iterator = iterator
        self._in_thread = in_thread

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._in_thread:
            # A thread that waits for a token cannot be interrupted: a cancellation takes effect at the next token.
            item = await to_thread.run_sync(next, self._iterator, _END)
        else:
            item = next(self._iterator, _END)
        if item is _END:
            raise StopAsyncIteration
        return item


@contextmanager
def open_source_sync(source: Any) -> Generator[Iterator[Any]]:
    """Open a source in a plain function, and close it at the end.

    Args:
        source: an iterable of items, or a context manager that gives one.

    Yields:
        An iterator over the items.

    Raises:
        InvalidSourceError: the source cannot be a stream, or can only be read in async code; nothing has been read.
    """
    closers: list[_CloseSync] = []
    try:
        yield _find_items_sync(source, closers)
    except BaseException as error:
        _close_all_sync(closers, error)
        raise
    else:
        _close_all_sync(closers, None)


def _find_items_sync(source: Any, closers: list[_CloseSync]) -> Iterator[Any]:
    """Enter the source until an iterator is found. Each step appends its clean-up to `closers`."""
    candidate: Any = source
    entered: Any = None
    while True:
        check_source(candidate, name="stream_message_sync", also_async=False)
        if hasattr(candidate, "__iter__") and (
            _can_close(candidate) or not hasattr(candidate, "__enter__") or candidate is entered
        ):
            closers.append(_stream_closer_sync(candidate))
            iterator: Iterator[Any] = iter(candidate)
            if iterator is not candidate:
                closers.append(_stream_closer_sync(iterator))
            return iterator
        if candidate is entered:
            raise InvalidSourceError(type(candidate).__name__, "was entered, and cannot be iterated")
        entered = candidate
        candidate = entered.__enter__()
        closers.append(_manager_closer_sync(entered))


def _stream_closer_sync(stream: Any) -> _CloseSync:
    def close(error: BaseException | None) -> None:
        if hasattr(stream, "close"):
            stream.close()

    return close


def _manager_closer_sync(manager: Any) -> _CloseSync:
    def close(error: BaseException | None) -> None:
        manager.__exit__(*_exc_info(error))

    return close


def _close_all_sync(closers: list[_CloseSync], error: BaseException | None) -> None:
    """Do the same as `_close_all`, in a plain function."""
    failed = error
    while closers:
        close = closers.pop()
        try:
            close(failed)
        except BaseException as closing:
            failed = _primary_error(failed, closing)
    if failed is not None and failed is not error:
        raise failed
