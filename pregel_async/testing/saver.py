"""Savers for tests: `PassingSaver`, which delegates to another saver, and `FaultySaver`, which injects faults."""

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
    Commit,
    EventKey,
    EventRow,
    Header,
    Lease,
    Owner,
    Rewrite,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)
from checkpoint_savers.saver_port import PAGE

T = TypeVar("T")

SaverVerb: TypeAlias = Literal[
    "acquire",
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
"""The storage operations of a saver; see `checkpoint_savers.BaseCheckpointSaver`."""

WRITES: frozenset[SaverVerb] = frozenset(
    ("acquire", "renew", "commit", "record", "release", "rewrite", "update_thread", "load", "erase", "delete")
)
"""The operations that change what is stored."""


class PassingSaver(BaseCheckpointSaver):
    """A saver that delegates every operation to another one. Subclasses override `around` to wrap the operations.

    Args:
        inner: the saver that executes the operations. Its codec and clock are used.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(codec=inner.codec, clock=inner.clock)
        self.inner = inner
        self.commits_others = inner.commits_others

    async def around(self, verb: SaverVerb, call: Callable[[], Awaitable[T]]) -> T:
        """Execute one operation. Override this to act before or after it, or instead of it.

        `drop` counts as the verb "erase". `hear` does not pass through here: it reads and writes nothing.

        Args:
            verb: the name of the operation.
            call: executes the operation on the inner saver.

        Returns:
            What the operation returns.
        """
        return await call()

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        return await self.around(
            "acquire", lambda: self.inner.acquire(thread_id, owner, now=now, expires_at=expires_at)
        )

    async def renew(self, lease: Lease, *, expires_at: float) -> None:
        await self.around("renew", lambda: self.inner.renew(lease, expires_at=expires_at))

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await self.around("commit", lambda: self.inner.commit(lease, commit))

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        await self.around("record", lambda: self.inner.record(lease, records, expires_at=expires_at))

    async def release(self, lease: Lease) -> None:
        await self.around("release", lambda: self.inner.release(lease))

    async def wait_for_release(self, thread_id: str) -> None:
        await self.inner.wait_for_release(thread_id)

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        await self.around("rewrite", lambda: self.inner.rewrite(lease, change))

    async def update_thread(self, thread_id: str, changes: Mapping[str, Any]) -> None:
        await self.around("update_thread", lambda: self.inner.update_thread(thread_id, changes))

    async def load(self, lease: Lease, dump: ThreadDump) -> None:
        await self.around("load", lambda: self.inner.load(lease, dump))

    async def erase(self, lease: Lease) -> None:
        await self.around("erase", lambda: self.inner.erase(lease))

    async def drop(self, lease: Lease) -> None:
        await self.around("erase", lambda: self.inner.drop(lease))

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
    """The simulated death of a process: from now on, none of its operations is stored.

    A `BaseException`, so that neither nodes nor libraries handle it as a failure.
    """


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a saver.

    Attributes:
        how: "fail" makes one operation raise a `StorageError`; "lose" makes several in a row raise it, as a lost
            connection does; "slow" delays operations by the clock; "crash" kills the process at the operation.
        at: the number of the first affected operation, counted from 1 among those that `on` names.
        on: a verb, "write" for all verbs that change what is stored, or "any" for all verbs.
        when: "before" raises before anything is stored, "after" when the operation's effect is stored.
        operations: the number of operations affected, for "lose" and "slow".
        seconds: the delay of each operation in seconds, for "slow".
        error: an exception, or its class, to raise instead of a `StorageError`.

    Raises:
        ValueError: `at` or `operations` is below 1, or `seconds` is negative.
        TypeError: `seconds` is neither a number nor a timedelta.
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
        """Return True if operations of this verb are counted by the fault.

        Args:
            verb: the name of the operation.

        Returns:
            True if `on` names the verb, or a group of verbs with it.
        """
        return self.on in (verb, "any") or (self.on == "write" and verb in WRITES)


class SupportsSleep(Protocol):
    """A clock that a slow saver can sleep on: a `VirtualClock`, or another `Environment`."""

    async def sleep(self, seconds: float) -> None:
        """Sleep on the clock.

        Args:
            seconds: how long, in seconds of the clock.
        """
        ...


class FaultySaver(PassingSaver):
    """A saver that injects faults into the operations of another.

        saver = FaultySaver(InMemorySaver(), Fault(how="fail", on="commit", at=2))

    After a crash every operation raises `Crash`. `restart` starts the next process, which finds what was stored and can
    lease each thread.

    Args:
        inner: the saver that stores.
        faults: the faults to inject.
        clock: the clock on which slow operations sleep.

    Attributes:
        operations: the verbs of all operations so far, over all processes.
        happened: the injected faults, in order.
        crashed: True between a crash and `restart`.

    Raises:
        ValueError: there is a fault "slow" and no clock.
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
        self._held: dict[str, Lease] = {}

    def add(self, *faults: Fault) -> None:
        """Add faults, which count operations from now on.

        Args:
            faults: the faults to inject.

        Raises:
            ValueError: there is a fault "slow", and the saver has no clock.
        """
        if self._clock is None and any(fault.how == "slow" for fault in faults):
            raise ValueError("a slow saver needs a clock to wait by: FaultySaver(..., clock=VirtualClock())")
        self._faults += faults
        self._counts += [0] * len(faults)

    def crash(self) -> None:
        """Kill the process now: every operation raises `Crash` until `restart`."""
        self.crashed = True

    async def restart(self) -> None:
        """Start a new process, which finds what was stored."""
        self.crashed = False
        # As on a real host: a saver recognises leases of a process that has died and need not wait for their expiry.
        for lease in self._held.values():
            await self.inner.release(lease)
        self._held.clear()

    async def acquire(self, thread_id: str, owner: Owner, *, now: float, expires_at: float) -> Lease:
        async def claim_inner() -> Lease:
            lease = await self.inner.acquire(thread_id, owner, now=now, expires_at=expires_at)
            self._held[thread_id] = lease
            return lease

        return await self.around("acquire", claim_inner)

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
        if self.crashed:  # crash() was called while the operation was slow
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
