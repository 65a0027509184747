"""Limits of an endpoint: body size, concurrent requests, timeouts."""

from __future__ import annotations

import math

import msgspec

from ..errors import ConfigError
from .failures import Refusal


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one endpoint. None lifts a limit.

    Attributes:
        body: bytes of a request's body. A larger body is answered with 413, with or without a `Content-Length`.
        concurrency: number of requests that are answered at the same time. Runs whose readers have disconnected count.
            A request above the limit is answered with 503.
        read: seconds in which a request must arrive, `thread=` and `context=` included. After that it is answered with
            408.
        run: seconds that a run may take from its start, including the time that it waits for its thread. After that the
            run is cancelled with status "timeout". Its stored supersteps stay, and the thread can be resumed.
        write: seconds in which a reader must accept a chunk. After that the reader counts as disconnected.
        heartbeat: seconds between two comments that keep the connection open; 0 sends none.

    Raises:
        ConfigError: a limit is not a number, or is out of its range.
    """

    body: int | None = 1024 * 1024
    concurrency: int | None = 2000
    read: float | None = 30.0
    run: float | None = 3600.0
    write: float | None = 30.0
    heartbeat: float = 5.0

    def __post_init__(self) -> None:
        for name, count in (("body", self.body), ("concurrency", self.concurrency)):
            if count is not None and (type(count) is not int or count < 1):
                raise ConfigError(f"Limits({name}={count!r}): a whole number of at least 1, or None for no limit")
        for name, seconds in (("read", self.read), ("run", self.run), ("write", self.write)):
            if seconds is not None and not (_is_number(seconds) and seconds > 0):
                raise ConfigError(f"Limits({name}={seconds!r}): seconds, more than 0, or None for no limit")
        if not (_is_number(self.heartbeat) and self.heartbeat >= 0):
            raise ConfigError(f"Limits(heartbeat={self.heartbeat!r}): seconds, or 0 for none")


def _is_number(value: object) -> bool:
    """Return True for an int or float, except bools, NaN, and ints beyond the range of a float."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


class RequestLimiter:
    """Limits how many requests are answered at the same time. Enter it with `with` around each request.

    Entering raises `Refusal` (503) when the limit is reached; requests do not queue.

    Args:
        limit: number of requests; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._active = 0

    def __enter__(self) -> None:
        if self._limit is not None and self._active >= self._limit:
            raise Refusal(503, "Busy", "the service is at its limit: try again soon", {"retry-after": "1"})
        # Neither method awaits, so that no lock is needed.
        self._active += 1

    def __exit__(self, *_: object) -> None:
        self._active -= 1
