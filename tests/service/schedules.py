"""Tools for tests of services: a clock that can be set forward, and workers that stop before chosen writes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.records import Commit, Lease
from checkpoint_savers.runs.port import RunStore

Stop: TypeAlias = Callable[[str], Awaitable[object]]
"""Called before each write of a worker with its name: "take", "begin", "commit", "rewrite", "end" or "give_back"."""

WRITES = {
    "acquire_and_take": "take",
    "start_and_take": "take",
    "begin": "begin",
    "end": "end",
    "give_back": "give_back",
}


class Clock:
    """The system's clock, which can be set forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def stopping(saver: BaseCheckpointSaver, stop: Stop) -> Any:
    """Return a saver of the same threads, which calls `stop` before each write of a worker.

    Args:
        saver: an open saver.
        stop: see `Stop`.
    """
    kind: Any = type(saver)
    runs = saver.runs
    assert runs is not None

    class StoppingSaver(kind):
        @property
        def runs(self) -> Any:
            return self.stopping_runs

        async def commit(self, lease: Lease, commit: Commit) -> None:
            await stop("commit")
            await super().commit(lease, commit)

        async def rewrite(self, lease: Lease, change: Any) -> None:
            await stop("rewrite")
            await super().rewrite(lease, change)

    copy: Any = object.__new__(StoppingSaver)
    copy.__dict__.update(saver.__dict__)
    copy.stopping_runs = _StoppingRuns(runs, stop)
    return copy


class _StoppingRuns:
    def __init__(self, runs: RunStore, stop: Stop) -> None:
        self._runs = runs
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._runs, name)
        if name not in WRITES:
            return method

        async def stopped(*args: Any, **kwargs: Any) -> Any:
            await self._stop(WRITES[name])
            return await method(*args, **kwargs)

        return stopped
