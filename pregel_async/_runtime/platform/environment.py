"""The one port for clock, ids and randomness. Whatever differs between two runs of the same work comes through here."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

import anyio

from checkpoint_savers.records import CheckpointId


class World(Protocol):
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
        """62 random bits for a checkpoint's id."""
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


class SystemWorld:
    """The real clock, and the operating system's randomness."""

    def __init__(self) -> None:
        self._entropy = _Entropy()

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

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


_COUNTED = (1 << 60) - 1  # 48 bits of milliseconds and 12 of their fraction


def checkpoint_id(world: World, after: CheckpointId | None) -> CheckpointId:
    """A new id, greater than `after` even when the clock went back.

    A UUID of version 7: 48 bits of milliseconds, 12 of their fraction, the rest random; so it sorts by creation, as a
    string too. If the clock is not past `after`, the id counts on from there.

    Source: RFC 9562, 5.7 and 6.2 (method 3).
    """
    ticks = int(world.now() * 4_096_000)  # 1/4096 ms
    if after is not None:
        ticks = max(ticks, _ticks_of(after) + 1)
    ticks &= _COUNTED
    number = (ticks >> 12) << 80 | 0x7 << 76 | (ticks & 0xFFF) << 64 | 0b10 << 62 | world.entropy()
    text = f"{number:032x}"
    return CheckpointId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")


def _ticks_of(given: CheckpointId) -> int:
    return int(given[:8] + given[9:13] + given[15:18], 16)
