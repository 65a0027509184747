"""Start the drain when the shutdown signal arrives.

A server runs the end of the lifespan only after its connections are closed, and connections of streams close only after
their runs have stopped. A drain in the lifespan would therefore wait for itself. So the service handles the signal too,
before the server does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .._runtime.platform.event_loops import on_asyncio
from .service import Service

SIGNALS: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
if sys.platform == "win32":
    SIGNALS = (*SIGNALS, signal.SIGBREAK)  # the only one that another process can send there: Ctrl-Break


class _SignalHandler:
    """Notifies a service of a signal, then calls the handler that was installed before.

    Attributes:
        should_exit: True after the signal. sse-starlette finds uvicorn's server by the `__self__` of the installed
            handler, and reads this attribute of it. This object stands in the server's place, so it has the attribute
            too.
        detached: True after the service has ended. A service that started later may have saved this handler as its
            previous one, and may install it again when it ends: then this handler only calls the one before it.
    """

    def __init__(self, previous: Any, on_signal: Callable[[], object]) -> None:
        self.should_exit = False
        self.detached = False
        self._previous = previous
        self._on_signal = on_signal

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal, in the main thread between any two of its instructions.

        Args:
            number: the signal's number.
            frame: the interrupted stack frame.
        """
        self.should_exit = True
        if not self.detached:
            self._on_signal()
        self._previous(number, frame)


@contextmanager
def on_exit_signal(service: Service) -> Generator[None, None, None]:
    """Drain a service when its process is asked to stop, before the server acts on the signal.

    Does nothing outside the main thread, where signal handlers cannot be installed, and for signals that the server
    does not handle. There the service drains when the lifespan ends.

    Args:
        service: the service to drain.

    Yields:
        None, once the handlers are installed. They are removed when the context ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    call_soon = _call_soon()

    def on_signal() -> None:
        # A signal handler may interrupt the event loop anywhere, and setting an anyio event there is not safe. Set the
        # flag now, so that runs stop at once, and leave the event to the loop.
        service.control.request_drain()
        call_soon(service.drain)

    previous = {number: signal.getsignal(number) for number in SIGNALS}
    # SIG_DFL and SIG_IGN are not callable: without a server's handler, the process is to end as it would.
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
            # Another handler may have been installed since. Restoring the previous one would remove that too.
            if signal.getsignal(number) == handler.handle:
                signal.signal(number, callables[number])


def _call_soon() -> Callable[[Callable[[], object]], object]:
    """Return a function that has the running event loop call another one; signal handlers may call it."""
    if on_asyncio():
        return asyncio.get_running_loop().call_soon_threadsafe
    import trio

    token = trio.lowlevel.current_trio_token()
    return lambda call: token.run_sync_soon(call, idempotent=True)
