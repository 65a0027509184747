"""A saver that passes everything on, for tests that come between a run and its storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Claim,
    Commit,
    EventRow,
    Header,
    Owner,
    TaskRecord,
)

T = TypeVar("T")

WRITES = frozenset(("claim", "renew", "commit", "record", "release"))
"""The verbs that change something."""


class Through(BaseCheckpointSaver):
    """A saver that passes everything on. Subclasses say what happens around the verbs."""

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(codec=inner.codec, clock=inner.clock)
        self.inner = inner

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def claim(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Claim:
        return await self.around("claim", lambda: self.inner.claim(thread_id, owner, now=now, expires_at=expires_at))

    async def renew(self, claim: Claim, *, expires_at: float) -> None:
        await self.around("renew", lambda: self.inner.renew(claim, expires_at=expires_at))

    async def commit(self, claim: Claim, commit: Commit) -> None:
        await self.around("commit", lambda: self.inner.commit(claim, commit))

    async def record(self, claim: Claim, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self.around("record", lambda: self.inner.record(claim, records, expires_at=expires_at))

    async def release(self, claim: Claim) -> None:
        await self.around("release", lambda: self.inner.release(claim))

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        return await self.around("read", lambda: self.inner.read(thread_id, ns, checkpoint_id))

    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        return await self.around("segment", lambda: self.inner.segment(thread_id, ns, base_id))

    async def scan(self, thread_id: str | None, ns: str | None, **limits: Any) -> tuple[Header, ...]:
        return await self.around("scan", lambda: self.inner.scan(thread_id, ns, **limits))

    async def events(self, thread_id: str, **limits: Any) -> tuple[EventRow, ...]:
        return await self.around("events", lambda: self.inner.events(thread_id, **limits))

    async def adelete_thread(self, thread_id: str) -> None:
        await self.inner.adelete_thread(thread_id)
