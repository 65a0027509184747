"""Timeouts of attempts and supersteps."""

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
    """Cancels work when its time is up. Pauses do not count; see `paused`.

    Args:
        environment: the clock that measures the time.
        expire: called when the time is up, before the work is cancelled.
        run: seconds from the start; None for no limit.
        idle: seconds from the start or the last `reset_idle`; None for no limit.

    Attributes:
        expired: True once the time is up.
        kind: the limit that was exceeded.
        elapsed: the time until then, in seconds.
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
        )  # when each limit began to count
        self._scope = anyio.CancelScope()
        self._pauses = 0
        self._paused_at = 0.0
        self._resumed = anyio.Event()  # set at the end of the last overlapping pause

    async def run(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run the work, and return its result, or None if its time was up. The work has ended when this returns.

        Args:
            work: the work; it is awaited in the calling task.
        """
        done: list[T | None] = []

        async def run_work() -> None:
            done.append(await self._run_in_scope(work))

        try:
            await run_with_companion(self._tick, run_work)
        except anyio.get_cancelled_exc_class():
            # Work that ended while it was being cancelled has an outcome, as it would without a timeout. On trio the
            # task group raises the cancellation, which comes again at the next checkpoint, so dropping it here is safe.
            # asyncio's own comes once, and must be raised.
            if not done or on_asyncio():
                raise
        return done.pop()

    async def _run_in_scope(self, work: Callable[[], Awaitable[T]]) -> T | None:
        result: T | None = None
        with self._scope:
            result = await work()
        # Work that swallowed its cancellation and returned is late nevertheless.
        return None if self.expired else result

    def reset_idle(self) -> None:
        """Restart the idle time. May be called in any thread."""
        self._since["idle"] = self._environment.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Stop the clock while the work waits for something that it does not cause, such as a slow reader."""
        # Counted, because several coroutines of the work may wait at once.
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
        """Wait until the time is up, then cancel the work."""
        # Deadlines move with pauses and activity, so this sleeps until the nearest one and checks again. The deadline
        # of a cancel scope would not do: it can be moved on the event loop's thread only, and ignores the environment's
        # clock.
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
            # In this order: code that swallows the cancellation is already detached from the run.
            self._expire()
            self._scope.cancel()
            return


class AttemptTimeout(Timeout):
    """The timeout of one attempt at a task, by the policy of its node."""

    def __init__(self, task: Task, environment: Environment, expire: Callable[[], None]) -> None:
        policy = task.timeout
        assert policy is not None
        super().__init__(environment, expire=expire, run=policy.run_seconds, idle=policy.idle_seconds)
        self._policy = policy
        self._node = task.node.name

    def record_activity(self) -> None:
        """Restart the idle time after a write, call or graph run, unless the policy counts only heartbeats."""
        if self._policy.refresh_on == "auto":
            self.reset_idle()

    @property
    def error(self) -> NodeTimeoutError:
        """The error of the attempt, once its time is up."""
        return NodeTimeoutError(
            self._node,
            kind=self.kind,
            elapsed=self.elapsed,
            run_timeout=self._policy.run_seconds,
            idle_timeout=self._policy.idle_seconds,
        )
