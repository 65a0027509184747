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


class _Listener:
    """Stands in front of a server's handler of a signal.

    Attributes:
        should_exit: the signal has come. sse-starlette looks for it where it looks for uvicorn's server.
        over: the service has ended. One that began later may stand before this listener, and bring it back.
    """

    def __init__(self, before: Any, heard: Callable[[], object]) -> None:
        self.should_exit = False
        self.over = False
        self._before = before
        self._heard = heard

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True
        if not self.over:
            self._heard()
        self._before(number, frame)


@contextmanager
def on_exit_signal(service: Service) -> Generator[None, None, None]:
    """Drain a service when the process is told to stop, before its server acts on that.

    Only where a server handles the signal, and in the main thread; elsewhere the service drains when the lifespan ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    call_soon = _call_soon()

    def heard() -> None:
        # In a signal handler, which may interrupt anything: a flag now, and the rest in the event loop's turn.
        service.control.request_drain()
        call_soon(service.drain)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    listeners = {number: _Listener(handler, heard) for number, handler in handled.items()}
    for number, listener in listeners.items():
        signal.signal(number, listener.handle)
    try:
        yield
    finally:
        for number, listener in listeners.items():
            listener.over = True
            if signal.getsignal(number) == listener.handle:
                signal.signal(number, handled[number])


def _call_soon() -> Callable[[Callable[[], object]], object]:
    """How to have something called by the running event loop, from a signal handler."""
    if on_asyncio():
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    token = trio.lowlevel.current_trio_token()
    return lambda call: token.run_sync_soon(call, idempotent=True)
