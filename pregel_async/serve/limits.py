"""How much a service takes on: bytes, requests at once, seconds."""

from __future__ import annotations

import math

import msgspec

from ..errors import ConfigError
from .failures import Refusal


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint takes on. None lifts a limit.

    Attributes:
        body: bytes of a request's body. More is answered with 413, however it is sent.
        concurrency: requests that are being answered at once; runs whose readers have left count. One more is answered
            with 503.
        read: seconds that a request may take to arrive, and to be given its thread. Then: 408.
        run: seconds that a run may take from its start, queues included. Then it is cancelled, with status "timeout";
            what is stored stays, and the thread can be gone on with.
        write: seconds that a reader may take to accept something. Then it counts as gone.
        heartbeat: seconds between two comments that keep a connection open; 0 sends none.
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
    """Return True for what can be counted in: no flag, no NaN, and no whole number beyond the range of a float."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    except OverflowError:
        return False


class RequestLimiter:
    """The requests that are being answered. Use it in `with`, around each."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._active = 0

    def __enter__(self) -> None:
        if self._limit is not None and self._active >= self._limit:
            raise Refusal(503, "Busy", "the service is at its limit: try again soon", {"retry-after": "1"})
        self._active += 1

    def __exit__(self, *_: object) -> None:
        self._active -= 1
