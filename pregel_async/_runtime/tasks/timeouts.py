"""How long an attempt may take, and a superstep: a watch that stops the work when its time is up."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from typing import Literal, TypeAlias, TypeVar

import anyio

from ..._core.task import Task
from ...errors import NodeTimeoutError
from ..platform.companions import run_with_companion
from ..platform.environment import Environment
from ..platform.event_loops import on_asyncio

T = TypeVar("T")

LimitKind: TypeAlias = Literal["run", "idle"]


class Timeout:
    """Stops work when its time is up. Time in which it waits for what is not its own affair does not count.

    Args:
        environment: whose clock counts.
        expire: called when the time is up, before the work is cancelled.
        run: seconds from the beginning; None for any time.
        idle: seconds from the beginning, or from the last sign of life; None for any time.

    Attributes:
        expired: the time is up.
        kind: which of the two limits it was then.
        elapsed: how long it took then, in seconds.
    """

    def __init__(
        self, environment: Environment, *, expire: Callable[[], None], run: float | None, idle: float | None = None
    ) -> None:
        self.expired = False
        self.kind: LimitKind = "run"
        self.elapsed = 0.0
        self._environment = environment
        self._expire = expire
        limits: tuple[tuple[LimitKind, float | None], ...] = (("idle", idle), ("run", run))
        self._limits: list[tuple[LimitKind, float]] = [
            (kind, seconds) for kind, seconds in limits if seconds is not None
        ]
        self._since: dict[LimitKind, float] = dict.fromkeys(
            ("run", "idle"), environment.monotonic()
        )  # from when each counts
        self._scope = anyio.CancelScope()
        self._pauses = 0
        self._paused_at = 0.0
        self._resumed = anyio.Event()  # the last of the pauses is over

    async def run(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What the work gives; None when its time was up before that. It has ended then, whatever it did about it."""
        done: list[T | None] = []

        async def within() -> None:
            done.append(await self._run_in_scope(work))

        try:
            await run_with_companion(self._tick, within)
        except anyio.get_cancelled_exc_class():
            # What has ended while it was being cancelled has its outcome, as it has without a watch. On trio the group
            # around it notices the cancellation, which comes again at the next checkpoint; asyncio's own comes once.
            if not done or on_asyncio():
                raise
        return done.pop()

    async def _run_in_scope(self, work: Callable[[], Awaitable[T]]) -> T | None:
        result: T | None = None
        with self._scope:
            result = await work()
        return None if self.expired else result

    def reset_idle(self) -> None:
        """The work has given a sign of life. Any thread may say so."""
        self._since["idle"] = self._environment.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """The work waits for what is not its own affair."""
        self._pauses += 1
        if self._pauses == 1:
            self._paused_at = self._environment.monotonic()
            self._resumed = anyio.Event()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                waited = self._environment.monotonic() - self._paused_at
                for kind in self._since:
                    self._since[kind] += waited
                self._resumed.set()

    async def _tick(self) -> None:
        while True:
            if self._pauses:
                await self._resumed.wait()
                continue
            now = self._environment.monotonic()
            kind, seconds = min(self._limits, key=lambda limit: self._since[limit[0]] + limit[1])
            left = self._since[kind] + seconds - now
            if left > 0:
                await self._environment.sleep(left)
                continue
            self.expired, self.kind, self.elapsed = True, kind, now - self._since[kind]
            self._expire()
            self._scope.cancel()
            return


class AttemptTimeout(Timeout):
    """The watch of one attempt at a task that has a timeout."""

    def __init__(self, task: Task, environment: Environment, expire: Callable[[], None]) -> None:
        policy = task.timeout
        assert policy is not None
        super().__init__(environment, expire=expire, run=policy.run_seconds, idle=policy.idle_seconds)
        self._policy = policy
        self._node = task.node.name

    def record_activity(self) -> None:
        """It has shown, called or run something: a sign of life, unless only heartbeats are."""
        if self._policy.refresh_on == "auto":
            self.reset_idle()

    @property
    def error(self) -> NodeTimeoutError:
        """What the attempt has failed with, once its time is up."""
        return NodeTimeoutError(
            self._node,
            kind=self.kind,
            elapsed=self.elapsed,
            run_timeout=self._policy.run_seconds,
            idle_timeout=self._policy.idle_seconds,
        )
