"""Hearing of a shutdown when it begins.

A server runs the lifespan's end only when its connections are closed, and connections of streams close when their runs
have stopped. So the signal itself is listened to, beside the server.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .._runtime.platform.event_loops import on_asyncio
from .service import Service

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _SignalHandler:
    """Stands in front of a server's handler of a signal.

    Attributes:
        should_exit: the signal has come. sse-starlette looks for it where it looks for uvicorn's server.
        over: the service has ended. One that began later may stand before this listener, and bring it back.
    """

    def __init__(self, previous: Any, on_signal: Callable[[], object]) -> None:
        self.should_exit = False
        self.detached = False
        self._previous = previous
        self._on_signal = on_signal

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True
        if not self.detached:
            self._on_signal()
        self._previous(number, frame)


@contextmanager
def on_exit_signal(service: Service) -> Generator[None, None, None]:
    """Drain a service when the process is told to stop, before its server acts on that.

    Only where a server handles the signal, and in the main thread; elsewhere the service drains when the lifespan ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    call_soon = _call_soon()

    def on_signal() -> None:
        # In a signal handler, which may interrupt anything: a flag now, and the rest in the event loop's turn.
        service.control.request_drain()
        call_soon(service.drain)

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    callables = {
        number: previous_handler for number, previous_handler in previous.items() if callable(previous_handler)
    }
    handlers = {number: _SignalHandler(previous_handler, on_signal) for number, previous_handler in callables.items()}
    for number, handler in handlers.items():
        signal.signal(number, handler.handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            handler.detached = True
            if signal.getsignal(number) == handler.handle:
                signal.signal(number, callables[number])


def _call_soon() -> Callable[[Callable[[], object]], object]:
    """How to have something called by the running event loop, from a signal handler."""
    if on_asyncio():
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    token = trio.lowlevel.current_trio_token()
    return lambda call: token.run_sync_soon(call, idempotent=True)
