"""How long an attempt may take, and a superstep: a watch that stops the work when its time is up."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Literal, TypeVar

import anyio

from ..._core.task import Task
from ...errors import NodeTimeoutError
from ..platform.companions import beside
from ..platform.environment import World

T = TypeVar("T")


class Stopwatch:
    """Stops work when its time is up. Time in which it waits for what is not its own affair does not count.

    Args:
        world: whose clock counts.
        run: seconds from the beginning; None for any time.
        idle: seconds from the beginning, or from the last sign of life; None for any time.
        expire: called when the time is up, before the work is cancelled.

    Attributes:
        expired: which of the two limits it was; None while there is time.
        elapsed: how long it took then, in seconds.
    """

    def __init__(
        self,
        world: World,
        *,
        run: float | None,
        idle: float | None = None,
        expire: Callable[[], None] | None = None,
    ) -> None:
        self.expired: Literal["run", "idle"] | None = None
        self.elapsed = 0.0
        self._world = world
        self._run = run
        self._idle = idle
        self._expire = expire
        self._began = self._sign = world.monotonic()
        self._scope = anyio.CancelScope()
        self._pauses = 0
        self._paused_at = 0.0
        self._goes_on: anyio.Event | None = None

    async def over(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What the work gives; None when its time was up before that. It has ended then, whatever it did about it."""
        return await beside(self._tick, lambda: self._within(work))

    async def _within(self, work: Callable[[], Awaitable[T]]) -> T | None:
        result: T | None = None
        with self._scope:
            result = await work()
        return None if self.expired else result

    def sign(self) -> None:
        """The work has given a sign of life. Any thread may say so."""
        self._sign = self._world.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """The work waits for what is not its own affair."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self._world.monotonic()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                waited = self._world.monotonic() - self._paused_at
                self._began += waited
                self._sign += waited
                if self._goes_on is not None:
                    self._goes_on.set()

    async def _tick(self) -> None:
        while True:
            if self._pauses:
                self._goes_on = anyio.Event()
                await self._goes_on.wait()
                continue
            now = self._world.monotonic()
            left, which, since = min(self._limits(now))
            if left > 0:
                await self._world.sleep(left)
                continue
            self.expired, self.elapsed = which, now - since
            if self._expire is not None:
                self._expire()
            self._scope.cancel()
            return

    def _limits(self, now: float) -> Generator[tuple[float, Literal["run", "idle"], float]]:
        """Seconds that are left, of which limit, and from when it counts."""
        if self._run is not None:
            yield self._began + self._run - now, "run", self._began
        if self._idle is not None:
            yield self._sign + self._idle - now, "idle", self._sign


class AttemptWatch(Stopwatch):
    """The watch of one attempt at a task that has a timeout."""

    def __init__(self, task: Task, world: World, expire: Callable[[], None]) -> None:
        policy = task.timeout
        assert policy is not None
        super().__init__(world, run=policy.run_seconds, idle=policy.idle_seconds, expire=expire)
        self._policy = policy
        self._node = task.node.name

    def show(self) -> None:
        """It has shown, called or run something: a sign of life, unless only heartbeats are."""
        if self._policy.refresh_on == "auto":
            self.sign()

    @property
    def error(self) -> NodeTimeoutError:
        """What the attempt has failed with."""
        assert self.expired is not None
        return NodeTimeoutError(
            self._node,
            kind=self.expired,
            elapsed=self.elapsed,
            run_timeout=self._policy.run_seconds,
            idle_timeout=self._policy.idle_seconds,
        )
