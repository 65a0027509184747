"""Savers for tests: one that passes everything on, and `FaultySaver`, which fails or crashes where it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.durations import read_seconds
from checkpoint_savers.errors import StorageError
from checkpoint_savers.records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Claim,
    Commit,
    EventKey,
    EventRow,
    Header,
    Owner,
    Rewrite,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)
from checkpoint_savers.saver_port import PAGE

T = TypeVar("T")

SaverVerb: TypeAlias = Literal[
    "claim",
    "renew",
    "commit",
    "record",
    "release",
    "rewrite",
    "update_thread",
    "load",
    "erase",
    "read",
    "segment",
    "scan",
    "events",
    "threads",
    "dump",
    "heads",
    "delete",
]
"""What a saver is asked to do; see `checkpoint_savers.BaseCheckpointSaver`."""

WRITES: frozenset[SaverVerb] = frozenset(
    ("claim", "renew", "commit", "record", "release", "rewrite", "update_thread", "load", "erase", "delete")
)
"""The verbs that change something."""


class PassingSaver(BaseCheckpointSaver):
    """A saver that passes everything on to another. Subclasses say in `around` what happens around the verbs.

    Args:
        inner: the other.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(codec=inner.codec, clock=inner.clock)
        self.inner = inner

    async def around(self, verb: SaverVerb, call: Callable[[], Awaitable[T]]) -> T:
        """Do one operation: `call` does it on the saver inside, and gives what that returned."""
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

    async def hear(self, thread_id: str) -> None:
        await self.inner.hear(thread_id)

    async def rewrite(self, claim: Claim, change: Rewrite) -> None:
        await self.around("rewrite", lambda: self.inner.rewrite(claim, change))

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        await self.around("update_thread", lambda: self.inner.update_thread(thread_id, changes))

    async def load(self, claim: Claim, dump: ThreadDump) -> None:
        await self.around("load", lambda: self.inner.load(claim, dump))

    async def erase(self, claim: Claim) -> None:
        await self.around("erase", lambda: self.inner.erase(claim))

    async def drop(self, claim: Claim) -> None:
        await self.around("erase", lambda: self.inner.drop(claim))

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        return await self.around("read", lambda: self.inner.read(thread_id, ns, checkpoint_id))

    async def segment(
        self, thread_id: str, ns: str, base_id: CheckpointId
    ) -> tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]:
        return await self.around("segment", lambda: self.inner.segment(thread_id, ns, base_id))

    async def scan(
        self,
        thread_id: str | None,
        ns: str | None,
        *,
        before: CheckpointId | None = None,
        limit: int = PAGE,
        filter: Mapping[str, Any] | None = None,
    ) -> tuple[Header, ...]:
        return await self.around(
            "scan", lambda: self.inner.scan(thread_id, ns, before=before, limit=limit, filter=filter)
        )

    async def events(self, thread_id: str, *, since: EventKey | None = None, limit: int = PAGE) -> tuple[EventRow, ...]:
        return await self.around("events", lambda: self.inner.events(thread_id, since=since, limit=limit))

    async def threads(
        self, *, after: str | None = None, limit: int = PAGE, filter: Mapping[str, Any] | None = None
    ) -> tuple[ThreadHeader, ...]:
        return await self.around("threads", lambda: self.inner.threads(after=after, limit=limit, filter=filter))

    async def heads(self, thread_id: str, ns: str | None = None) -> dict[str, CheckpointId]:
        return await self.around("heads", lambda: self.inner.heads(thread_id, ns))

    async def dump(self, thread_id: str) -> ThreadDump | None:
        return await self.around("dump", lambda: self.inner.dump(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        await self.around("delete", lambda: self.inner.adelete_thread(thread_id))


class Crash(BaseException):
    """The process is dead, as far as its storage can tell: nothing that it does is stored any more.

    No `Exception`, so that no node and no library takes it for a failure that it could deal with.
    """


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong with a saver.

    Attributes:
        how: "fail" raises a `StorageError`; "lose", too, and so do the operations after it, as if the connection were
            gone; "slow" waits first, by the clock; "crash": the process dies there.
        at: which operation, counted from 1, among those that `on` names.
        on: a verb; "write" for all that change something; "any" for all.
        when: "before" anything was stored; or "after", when it was stored, and nobody is told.
        operations: how many fail, for "lose".
        seconds: how long it waits, for "slow".
        error: what is raised instead of a `StorageError`: a class or an instance of an exception.

    Raises:
        ValueError: `at` or `operations` is below 1, or `seconds` below 0.
    """

    how: Literal["fail", "lose", "slow", "crash"]
    at: int = 1
    on: SaverVerb | Literal["write", "any"] = "write"
    when: Literal["before", "after"] = "before"
    operations: int = 1
    seconds: float = 0.0
    error: BaseException | type[BaseException] | None = None

    def __post_init__(self) -> None:
        if self.at < 1 or self.operations < 1:
            raise ValueError(f"operations are counted from 1: at={self.at!r}, operations={self.operations!r}")
        read_seconds("seconds", self.seconds, zero=True)

    def __str__(self) -> str:
        what = {"fail": "fails", "lose": f"fails {self.operations} times", "crash": "kills the process"}
        how = what.get(self.how, f"takes {self.seconds:g} s")
        return f"{self.on} {self.at} {how}" + (f" {self.when} it is stored" if self.how in ("fail", "crash") else "")

    def concerns(self, verb: SaverVerb) -> bool:
        """Whether operations of this kind are counted."""
        return self.on in (verb, "any") or (self.on == "write" and verb in WRITES)


class SupportsSleep(Protocol):
    """What a slow saver waits by: a `VirtualClock`, or another `World`."""

    async def sleep(self, seconds: float) -> None: ...


class FaultySaver(PassingSaver):
    """A saver around another, with faults.

        saver = FaultySaver(InMemorySaver(), Fault(how="fail", on="commit", at=2))

    After a crash every operation raises `Crash`: the process is dead. `restart` is the next process, which finds what
    was stored, and no claim that would still be held.

    Args:
        inner: where things are stored.
        faults: what goes wrong.
        clock: what slow operations wait by.

    Attributes:
        operations: the verbs so far, of this process and those before it.
        happened: the faults that have come to pass, in order.
        crashed: the process is dead.
    """

    def __init__(self, inner: BaseCheckpointSaver, *faults: Fault, clock: SupportsSleep | None = None) -> None:
        super().__init__(inner)
        if clock is None and any(fault.how == "slow" for fault in faults):
            raise ValueError("a slow saver needs a clock to wait by: FaultySaver(..., clock=VirtualClock())")
        self.operations: list[SaverVerb] = []
        self.happened: list[Fault] = []
        self.crashed = False
        self._clock = clock
        self._faults = list(faults)
        self._counts = [0] * len(faults)
        self._held: dict[str, Claim] = {}

    def add(self, *faults: Fault) -> None:
        """More faults. Their operations are counted from now on."""
        if self._clock is None and any(fault.how == "slow" for fault in faults):
            raise ValueError("a slow saver needs a clock to wait by: FaultySaver(..., clock=VirtualClock())")
        self._faults += faults
        self._counts += [0] * len(faults)

    def crash(self) -> None:
        """The process dies now."""
        self.crashed = True

    async def restart(self) -> None:
        """A new process: what was stored is there, and the claims of the dead one are not (its host knows it gone)."""
        self.crashed = False
        for claim in self._held.values():
            await self.inner.release(claim)
        self._held.clear()

    async def claim(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Claim:
        async def claim_inner() -> Claim:
            claim = await self.inner.claim(thread_id, owner, now=now, expires_at=expires_at)
            self._held[thread_id] = claim
            return claim

        return await self.around("claim", claim_inner)

    async def around(self, verb: SaverVerb, call: Callable[[], Awaitable[T]]) -> T:
        if self.crashed:
            raise Crash(f"{verb}: the process is dead")
        self.operations.append(verb)
        due = self._due(verb) if self._faults else []
        for fault in due:
            if fault.how == "slow" and self._clock is not None:
                self.happened.append(fault)
                await self._clock.sleep(fault.seconds)
        for fault in due:
            if fault.how != "slow" and fault.when == "before":
                raise self._error(fault, verb)
        if self.crashed:  # while it was slow
            raise Crash(f"{verb}: the process is dead")
        result = await call()
        for fault in due:
            if fault.how != "slow" and fault.when == "after":
                raise self._error(fault, verb)
        return result

    def _due(self, verb: SaverVerb) -> list[Fault]:
        due: list[Fault] = []
        for place, fault in enumerate(self._faults):
            if fault.concerns(verb):
                self._counts[place] += 1
                last = fault.at + (fault.operations if fault.how in ("lose", "slow") else 1)
                if fault.at <= self._counts[place] < last:
                    due.append(fault)
        return due

    def _error(self, fault: Fault, verb: SaverVerb) -> BaseException:
        self.happened.append(fault)
        if fault.how == "crash":
            self.crashed = True
            return Crash(f"{fault.when} {verb} {fault.at}")
        if fault.error is not None:
            return fault.error() if isinstance(fault.error, type) else fault.error
        gone = "the connection is gone" if fault.how == "lose" else "the database refuses"
        return StorageError(f"{gone} ({fault.when} a {verb}, as its test says)")
