"""The port for clock, ids and randomness: every input of a run that differs when the same work runs again."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

import anyio


class Environment(Protocol):
    """Inputs of a run besides its graph, input and thread. Tests and simulations replace it."""

    def now(self) -> float:
        """Return the time in unix seconds."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment. They never decrease, so differences measure durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after a number of seconds, as measured by `monotonic`."""
        ...

    def new_id(self) -> str:
        """Return a unique id for a run."""
        ...

    def entropy(self) -> int:
        """Return 62 random bits for the id of a checkpoint."""
        ...

    def jitter(self) -> float:
        """Return a random number from 0 to 1."""
        ...


class _Entropy(threading.local):
    """A buffer of the operating system's random bytes, one for each thread, so that it needs no lock."""

    # Buffered, because a system call for each id costs more than the id.

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0
        self._process = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, and never the same ones again."""
        at = self._at
        # After a fork the child must not use the rest of its parent's buffer: both would make the same ids.
        if at + size > len(self._bytes) or self._process != os.getpid():
            self._bytes, self._process, at = os.urandom(4096), os.getpid(), 0
        self._at = at + size
        return self._bytes[at : at + size]


class SystemEnvironment:
    """The real clock, and the operating system's randomness."""

    def __init__(self) -> None:
        self._entropy = _Entropy()

    now = staticmethod(time.time)  # the C functions themselves, because each superstep calls them
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def new_id(self) -> str:
        # A UUID of version 4 (RFC 9562, 5.4), without an object for it.
        digits = self._entropy.take(16).hex()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    def entropy(self) -> int:
        return int.from_bytes(self._entropy.take(8), "big") >> 2

    def jitter(self) -> float:
        import random

        return random.random()
