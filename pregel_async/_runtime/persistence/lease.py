"""A run's hold on its thread: the claim, kept alive while the run goes on, and given up at its end.

All graphs of one run share it: the root graph's, and those that its nodes run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from msgspec.structs import replace

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import CheckpointError, StorageError, StorageReplacedError, ThreadBusyError, annotate
from checkpoint_savers.holding import CLAIM_SECONDS, release, take
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import CheckpointId, Claim, Commit, EventRow, Owner, TaskRecord
from checkpoint_savers.scopes import is_done

from ...types import Durability, OnConflict
from ..observing.error_text import with_notes
from ..platform.companions import accompanied_if_long, beside
from ..platform.environment import World, checkpoint_id
from ..platform.event_loops import Loop, loop, wait_out
from .spending import Amounts, SpentBy

T = TypeVar("T")

_NO_SHIELD = contextlib.nullcontext()


class Apart:
    """Work that goes on in a task of its own, which no scope cancels.

    Attributes:
        over: set when it has ended.
    """

    def __init__(self, loop: Loop, work: Callable[[], Awaitable[None]]) -> None:
        self.over = loop.event()
        self._loop = loop
        self._work: Callable[[], Awaitable[None]] | None = work
        self._error: BaseException | None = None
        self._begin()

    def _begin(self) -> None:
        self._task = self._loop.start(self._do, "storing", self._done)

    def _done(self, _: object) -> None:
        if self._work is not None:
            self._begin()  # cancelled before it began

    async def _do(self) -> None:
        """Do it, and keep what it raises for those who wait."""
        work, self._work = self._work, None
        assert work is not None
        try:
            await work()
        except BaseException as error:
            self._error = error
        finally:
            self.over.set()

    async def wait(self) -> None:
        """Wait until it has ended. Raises what it raised."""
        await self.over.wait()
        self.tell()

    async def wait_out(self) -> None:
        """The same, however often the waiter is cancelled."""
        try:
            await wait_out(self.over)
        finally:
            self.tell()

    def tell(self) -> None:
        """Raise what it raised."""
        if self._error is not None:
            raise self._error


class Hold:
    """A claimed thread. Use it in `async with`, which gives it up.

    Attributes:
        claim: what every write shows to the saver.
        durability: when supersteps are stored.
        metadata: what the next commit gives the thread's own metadata, where they lack it; nothing once it has.
        broken: what the first transaction raised that failed; None while none has. Nothing is written after it, and
            no node is to start.
        fresh: the thread held nothing when it was claimed.
        released: the claim was given up, with the last commit.
        lingers: the claim is not given up with the last commit, as something is left to do then.
        tips: namespace -> the checkpoint at which the state of a subgraph stands that keeps it from call to call, on
            the branch that this run is on.
        moved: those of them that changed since the root graph's last commit.
        visited: the namespaces that this run has written.
        spent_inside: what graphs that nodes run have spent since they were called, until the graph around counts that
            as the node's.
        askers: question id -> the tasks whose result depends on the answer: the one that asked, and those that called
            it. Of all questions of the root graph's open superstep whose record says so.
        kept: by namespace of a subgraph that keeps its state from call to call: the checkpoint and the task that ran it
            last, and whether it is running.
        events_stored: called with rows of events once they are stored; None where no events are kept.
    """

    def __init__(self, saver: BaseCheckpointSaver, world: World, claim: Claim, durability: Durability = "sync") -> None:
        self.saver = saver
        self.world = world
        self.claim = claim
        self.durability: Durability = durability
        self.metadata: dict[str, Any] | None = None
        self.broken: BaseException | None = None
        self.fresh = claim.newest is None
        self.released = False
        self.lingers = False
        self.tips: dict[str, CheckpointId] = {}
        self.moved: dict[str, CheckpointId] = {}
        self.visited: set[str] = set()
        self.spent_inside: dict[SpentBy, Amounts] = {}
        self.askers: dict[str, tuple[str, ...]] = {}
        self.kept: dict[str, tuple[tuple[str | None, str], bool]] = {}
        self.events_stored: Callable[[Sequence[EventRow]], None] | None = None
        self._newest = claim.newest
        self._loop = loop()
        self._begun: list[Apart] = []

    @classmethod
    async def take(
        cls,
        saver: BaseCheckpointSaver,
        world: World,
        thread_id: str,
        on_conflict: OnConflict,
        durability: Durability = "sync",
    ) -> Hold:
        """Claim a thread for one run.

        Raises:
            ThreadBusyError: another run owns it, and `on_conflict` is "reject".
            StorageError
        """
        # The caller may have chosen the run's id, and may choose it twice: what tells owners apart is made here.
        return cls(saver, world, await _claim(saver, world, thread_id, world.new_id(), on_conflict), durability)

    @property
    def thread_id(self) -> str:
        return self.claim.thread_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See what was begun to its end, and give the thread up."""
        try:
            while begun := [apart.over for apart in self._begun if not apart.over.is_set()]:
                await wait_out(*begun)
        finally:
            await self._give_up(error)

    async def _give_up(self, error: BaseException | None) -> None:
        """What fails in that becomes a note of the error that is on its way, if there is one."""
        if self.released:
            return
        self.released = True
        try:
            # Apart: no shield keeps `Task.cancel()` off, and the thread would stay claimed until the claim lapses.
            await self.start(partial(self._release, adds=error is None)).wait_out()
        except CheckpointError as second:
            if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            annotate(error, f"and its thread could not be given up: {with_notes(second)}")

    async def _release(self, *, adds: bool) -> None:
        """Release the claim.

        Args:
            adds: with metadata that are left for the thread, as the run has recorded something, and committed nothing.
        """
        if not (adds and self.metadata and self.broken is None and self._newest is not None):
            await self.saver.release(self.claim)
            return
        last = Commit(rows=(), expected_head=None, expires_at=self.expiry(), releases=True)
        try:
            cancelled = await self.commit(last)
        except ThreadBusyError:
            return  # lost meanwhile: there is nothing to release
        except CheckpointError:
            with contextlib.suppress(CheckpointError):  # the first is the one to report
                await self.saver.release(self.claim)
            raise
        if cancelled is not None:
            raise cancelled

    def beside(self, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Work while the claim is kept alive, however long it takes. The work's own error leaves as it is, in no
        group."""
        return accompanied_if_long(self.world, CLAIM_SECONDS / 3, self._renew, work)

    async def _renew(self) -> None:
        while True:
            try:
                await self.saver.renew(self.claim, expires_at=self.expiry())
            except ThreadBusyError:
                return  # lost: the next commit is refused, and says so
            except StorageReplacedError as error:
                self.fail(error)
                return
            except StorageError:
                pass  # the next commit meets it too, if it lasts
            except Exception as error:
                self.fail(error)
                return
            await self.world.sleep(CLAIM_SECONDS / 3)

    def start(self, work: Callable[[], Awaitable[None]]) -> Apart:
        """Begin work that ends before the run does, whatever becomes of the run."""
        apart = Apart(self._loop, work)
        self._begun = [one for one in self._begun if not one.over.is_set()]
        self._begun.append(apart)
        return apart

    async def commit(self, commit: Commit) -> BaseException | None:
        """Store a transaction, unless one of the run's has failed: then raise what that raised. What is begun is
        finished, whatever the saver makes of a cancellation.

        Returns:
            A native cancellation that came meanwhile, when the transaction was stored: the caller notes that, and then
            raises it. Else the run's next transaction would be compared with a head that is not the head any more.
        """
        if self.broken is not None:
            raise self.broken
        metadata, self.metadata = self.metadata, None
        if metadata:
            commit = replace(commit, metadata=metadata)
        try:
            with _NO_SHIELD if self.saver.commit_is_shielded else anyio.CancelScope(shield=True):
                await self.saver.commit(self.claim, commit)
        except BaseException as error:
            if is_done(error):
                return error
            self.fail(error)
            raise
        return None

    async def record(self, records: Sequence[TaskRecord]) -> None:
        """Store records of tasks. As `commit`."""
        if self.broken is not None:
            raise self.broken
        try:
            with anyio.CancelScope(shield=True):
                await self.saver.record(self.claim, records, expires_at=self.expiry())
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Storage has failed: nothing is written any more, no node starts, and nothing is tried again or handled."""
        if not isinstance(error, anyio.get_cancelled_exc_class()):  # else it was stored, or the run ends anyhow
            self.broken = self.broken or error

    def expiry(self) -> float:
        """When a claim that is renewed now lapses, in unix seconds."""
        return self.world.now() + CLAIM_SECONDS

    def next_id(self) -> CheckpointId:
        """A checkpoint id greater than all of the thread, of any namespace."""
        self._newest = checkpoint_id(self.world, self._newest)
        return self._newest


async def _claim(
    saver: BaseCheckpointSaver, world: World, thread_id: str, owner_id: str, on_conflict: OnConflict
) -> Claim:
    owner = this_process(owner_id)
    try:
        return await _take(saver, world, thread_id, owner)
    except ThreadBusyError:
        if on_conflict == "reject":
            raise
    pause = 0.02
    while True:
        claim = await _take_or_pause(saver, world, thread_id, owner, pause * (0.5 + world.jitter()))
        if claim is not None:
            return claim
        pause = min(pause * 1.5, 1.0)


async def _take_or_pause(
    saver: BaseCheckpointSaver, world: World, thread_id: str, owner: Owner, pause: float
) -> Claim | None:
    """Take the claim; or, when the thread is busy, wait until it may have been given up, or for `pause` seconds."""
    claim: Claim | None = None
    asleep = anyio.CancelScope()

    async def hear() -> None:
        await saver.hear(thread_id)
        asleep.cancel()

    async def attempt() -> None:
        nonlocal claim
        with contextlib.suppress(ThreadBusyError):
            claim = await _take(saver, world, thread_id, owner)
            return
        with asleep:
            await world.sleep(pause)

    try:
        # Who listens first, and tries then, misses nothing that is given up after he has tried.
        await beside(hear, attempt)
    except BaseException:
        if claim is not None:
            await release(saver, claim)
        raise
    return claim


async def _take(saver: BaseCheckpointSaver, world: World, thread_id: str, owner: Owner) -> Claim:
    now = world.now()
    return await take(saver, thread_id, owner, now=now, expires_at=now + CLAIM_SECONDS)
