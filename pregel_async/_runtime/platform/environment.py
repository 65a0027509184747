"""The one port for clock, ids and randomness. Whatever differs between two runs of the same work comes through here."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

import anyio


class Environment(Protocol):
    """What a run asks for that is not in its graph, input and thread."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment, which never go back: for how long something takes."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return when so many seconds have passed by `monotonic`."""
        ...

    def new_id(self) -> str:
        """A unique id (of a run)."""
        ...

    def entropy(self) -> int:
        """62 random bits for the ids of checkpoints."""
        ...

    def jitter(self) -> float:
        """A random number from 0 to 1."""
        ...


class _Entropy(threading.local):
    """The operating system's random bytes, asked for in large pieces: a system call for each id costs more than the id.

    Each thread has its own. A process that was forked does not go on with its parent's: it would make the same ids.
    """

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0
        self._process = 0

    def take(self, size: int) -> bytes:
        """The next `size` bytes; nobody gets them again."""
        at = self._at
        if at + size > len(self._bytes) or self._process != os.getpid():
            self._bytes, self._process, at = os.urandom(4096), os.getpid(), 0
        self._at = at + size
        return self._bytes[at : at + size]


class SystemEnvironment:
    """The real clock, and the operating system's randomness."""

    def __init__(self) -> None:
        self._entropy = _Entropy()

    now = staticmethod(time.time)  # C's own: each superstep asks
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
