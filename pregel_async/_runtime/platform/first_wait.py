"""Run a coroutine in place, and notice when it first waits."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def call_on_first_wait(
    coroutine: Coroutine[Any, Any, T], waits: Callable[[], Iterable[Awaitable[None]]]
) -> Generator[Any, Any, T]:
    """Await a coroutine in place, and call `waits` the first time that it suspends, if it does.

    Args:
        coroutine: runs in the current task.
        waits: returns what else has to end before the coroutine continues. An exception of that, as well as one of the
            coroutine's own wait, is thrown into the coroutine.
    """
    step: Callable[..., Any] = coroutine.send
    sent: Any = None
    has_waited = False
    while True:
        try:
            yielded = step(sent)
        except StopIteration as stop:
            result: T = stop.value
            return result
        others: Iterable[Awaitable[None]] = ()
        if not has_waited:
            has_waited = True
            others = waits()
        try:
            # First what the coroutine yields, then the others. Awaiting them before would yield something else to the
            # event loop, which would later resume a task that waits for that: it breaks trio's accounting, and leaves
            # an asyncio future without its waiter.
            sent = yield yielded
            step = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            sent, step = error, coroutine.throw
        for other in others:
            try:
                yield from other.__await__()
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                sent, step = error, coroutine.throw
