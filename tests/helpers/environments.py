"""An environment whose time, ids and randomness a test determines."""

from __future__ import annotations

import random

from pregel_async._runtime.platform.environment import SystemEnvironment


class SeededEnvironment(SystemEnvironment):
    """An environment whose clock advances by a millisecond per read and by explicit steps; ids and randomness have a
    seed."""

    def __init__(self, start: float = 4_000_000_000.0, seed: int = 0) -> None:
        super().__init__()
        self.time = start
        self.random = random.Random(seed)

    def now(self) -> float:
        self.time += 0.001
        return self.time

    def new_id(self) -> str:
        return f"run-{self.random.getrandbits(64):016x}"

    def entropy(self) -> int:
        return self.random.getrandbits(62)

    def jitter(self) -> float:
        return self.random.random()
