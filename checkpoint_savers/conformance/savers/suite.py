"""The base class of all suites for savers: fixtures, and short ways to make rows and leases."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, ClassVar, Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
import pytest

from ...abc import BaseCheckpointSaver
from ...errors import ThreadBusyError
from ...owner import this_process
from ...records import (
    Chain,
    CheckpointId,
    CheckpointRow,
    Commit,
    EventKind,
    EventRow,
    Header,
    Lease,
    NamespaceChange,
    Owner,
    RecordKind,
    TaskId,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)

AsyncWork = Callable[[], Awaitable[None]]

OpenSaver = Callable[[], AbstractAsyncContextManager[BaseCheckpointSaver]]
"""Opens a saver; each call opens the same threads."""

NOW = 4_000_000_000.0
"""The time of the clauses, in unix seconds. It lies in 2096: a lease that is live then is live by any real clock."""

LATER = NOW + 30.0
"""The time at which the clauses' leases expire, in unix seconds."""


VERBS: Final = ("rewrite", "load", "erase", "threads", "update_thread", "dump", "wait_for_release", "commits_others")
"""The verbs of the port that a saver need not offer, and `commits_others` for commits of several namespaces."""

MANY = 10_000
"""A limit that no clause reaches, in rows."""

C = TypeVar("C", bound=Callable[..., object])


def needs(*verbs: str) -> Callable[[C], C]:
    """Skip a clause on savers that lack one of these verbs.

    Args:
        verbs: names from `VERBS`.

    Returns:
        A decorator for the clause.
    """

    def mark(clause: C) -> C:
        clause.__dict__["needed"] = verbs
        return clause

    return mark


class Suite:
    """The base class of all suites for savers.

    Attributes:
        lacks: verbs of `VERBS` and names of clauses that the saver does not support, each with the reason
            (`{"erase": "the log is kept for a year, by law"}`). Clauses that need one are skipped with that reason.
        needed: the verbs of `VERBS` that all clauses defined in the class need; subclasses do not inherit it.
    """

    pytestmark = pytest.mark.anyio

    lacks: Mapping[str, str] = {}
    needed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Of two clauses with one name, one would hide the other, which would never run.
        authors: dict[str, type] = {}
        for base in cls.__bases__:
            for name, author in clauses(base).items():
                if authors.setdefault(name, author) is not author:
                    raise TypeError(f"{author.__name__} and {authors[name].__name__} both have a clause {name}")
        unknown = [name for name in cls.lacks if name not in VERBS and not hasattr(cls, name)]
        if unknown:
            raise TypeError(f"{cls.__name__}.lacks names {unknown}, and there is no such verb or clause")

    @pytest.fixture(autouse=True)
    def offered(self, request: pytest.FixtureRequest) -> None:
        """Skip a clause that needs a verb which the saver lacks."""
        self.skip_what_is_lacking(request.node)

    def skip_what_is_lacking(self, item: Any) -> None:
        """Skip a test if its clause, or a verb that the clause needs, is in `lacks`.

        Args:
            item: pytest's item for the test.
        """
        for name in required(type(self), item):
            if name in self.lacks:
                pytest.skip(f"{name}: {self.lacks[name]}")

    @pytest.fixture
    def open_saver(self) -> OpenSaver:
        """Return a function that opens a saver, as an async context manager. Override it.

        Within one test, all savers that it opens must share one storage; each test needs an empty one.
        """
        raise NotImplementedError("override the fixture open_saver")

    @pytest.fixture
    async def saver(self, open_saver: OpenSaver) -> AsyncIterator[BaseCheckpointSaver]:
        async with open_saver() as saver:
            yield saver

    @pytest.fixture
    def dead_owner(self) -> Owner:
        """Return the owner of a run in a process of this host that has been killed."""
        return _killed_owner()


def clauses(suite: type) -> dict[str, type]:
    """Find the clauses of a suite.

    Args:
        suite: a class.

    Returns:
        The class that defines each clause, by the clause's name.
    """
    return {name: one for one in reversed(suite.__mro__) for name in vars(one) if name.startswith("test_")}


def required(suite: type[Suite], item: Any) -> list[str]:
    """Find what a saver must support for a test to run.

    Args:
        suite: the class of the test.
        item: pytest's item for the test.

    Returns:
        The clause's name and the verbs that it needs: as a class, by `needs`, and by the scenario that it is run with.
    """
    name: str = item.function.__name__
    author = clauses(suite).get(name, suite)
    callspec = getattr(item, "callspec", None)
    scenario = None if callspec is None else callspec.params.get("scenario")
    asked = () if scenario is None else (scenario.verb,)
    return [name, *vars(author).get("needed", ()), *getattr(item.function, "needed", ()), *asked]


@cache
def _killed_owner() -> Owner:
    """Start a process and kill it. One is enough for a test session, so the result is cached."""
    code = (
        "import msgspec, sys; from checkpoint_savers.owner import this_process; "
        "sys.stdout.buffer.write(msgspec.json.encode(this_process('run-gone')) + b'\\n'); "
        "sys.stdout.flush(); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        owner = msgspec.json.decode(process.stdout.readline(), type=Owner)
        process.kill()
    return owner


def here(run: str) -> Owner:
    """Return the owner of a run in this process."""
    return this_process(run)


def elsewhere(run: str) -> Owner:
    """Return the owner of a run on another host, whose process cannot be checked from this one."""
    return Owner(host=f"not-{socket.gethostname()}", boot="", pid=1, started="", run_id=run)


def cid(number: int) -> CheckpointId:
    """Return a checkpoint id. Ids of greater numbers sort after those of smaller ones."""
    return CheckpointId(f"{number:08d}-0000-7000-8000-000000000000")


def row(
    number: int,
    parent: int | None = None,
    *,
    base: int | None = None,
    ns: str = "",
    metadata: dict[str, Any] | None = None,
    frame: bytes | None = None,
) -> CheckpointRow:
    """Make the row of a checkpoint.

    Args:
        number: the number of the checkpoint's id; the step is less by one.
        parent: the number of the parent; None for a root.
        base: the number of the row that the frame builds on; None for a keyframe, which is its own base.
        ns: the checkpoint namespace.
        metadata: the metadata; None for a source and the step.
        frame: the bytes of the row; None for bytes that name the namespace and the number.
    """
    return CheckpointRow(
        ns=ns,
        checkpoint_id=cid(number),
        parent_id=None if parent is None else cid(parent),
        base_id=cid(number if base is None else base),
        step=number - 1,
        metadata={"source": "loop", "step": number - 1} if metadata is None else metadata,
        frame=f"frame {ns} {number}".encode() if frame is None else frame,
    )


def record(
    number: int, task: str, index: int = 0, kind: RecordKind = "result", *, ns: str = "", frame: bytes = b"record"
) -> TaskRecord:
    """Make the record of a task that was planned on a checkpoint.

    Args:
        number: the number of the checkpoint.
        task: the task's id; "" for the record of the superstep itself.
        index: the task's position in plan order.
        kind: the kind of the record.
        ns: the checkpoint namespace.
        frame: the bytes of the record.
    """
    return TaskRecord(ns=ns, checkpoint_id=cid(number), task_id=TaskId(task), index=index, kind=kind, frame=frame)


def event(
    number: int, position: int = 1, kind: EventKind = "head", *, epoch: int = 1, frame: bytes | None = None
) -> EventRow:
    """Make a row of stream events of the superstep that was planned on a checkpoint.

    Args:
        number: the number of the checkpoint.
        position: the position of the row's first event.
        kind: the kind of the row.
        epoch: the epoch of the lease under which the events were shown.
        frame: the bytes of the row; None for bytes that name the key.
    """
    return EventRow(
        checkpoint_id=cid(number),
        epoch=epoch,
        position=position,
        kind=kind,
        frame=f"events {number} {epoch} {position}".encode() if frame is None else frame,
    )


def commit(
    *rows: CheckpointRow,
    head: int | None = None,
    records: Sequence[TaskRecord] = (),
    clears: Sequence[TaskRecord] = (),
    releases: bool = False,
    expires_at: float = LATER,
    moves: tuple[str, int] | None = None,
    events: Sequence[EventRow] = (),
    metadata: dict[str, Any] | None = None,
    others: Sequence[NamespaceChange] = (),
) -> Commit:
    """Make a commit.

    Args:
        rows: the checkpoints to store, of one namespace.
        head: the number of the checkpoint that the commit expects as the namespace's head; None for no head.
        records: the records to store.
        clears: the records to delete; only their keys count.
        releases: whether the commit releases the lease.
        expires_at: the lease's new expiry, in unix seconds.
        moves: a namespace and the number of a stored checkpoint that becomes the namespace's head.
        events: the rows of events to store.
        metadata: defaults for the thread's metadata.
        others: the changes of other namespaces.
    """
    own = change(*rows, head=head, moves=moves)
    return Commit(
        rows=own.rows,
        expected_head=own.expected_head,
        head=own.head,
        records=tuple(records),
        clears=tuple((one.ns, one.checkpoint_id, one.task_id) for one in clears),
        expires_at=expires_at,
        releases=releases,
        events=tuple(events),
        metadata=metadata or {},
        others=tuple(others),
    )


def change(*rows: CheckpointRow, head: int | None = None, moves: tuple[str, int] | None = None) -> NamespaceChange:
    """Make the part of a commit that changes a namespace. For the arguments see `commit`."""
    return NamespaceChange(
        rows=rows,
        expected_head=None if head is None else cid(head),
        head=None if moves is None else (moves[0], cid(moves[1])),
    )


async def take(saver: BaseCheckpointSaver, thread: str = "t", run: str = "run-1") -> Lease:
    """Acquire a live lease for a run of this process.

    Args:
        saver: the saver.
        thread: the thread's id.
        run: the run's id.
    """
    return await saver.acquire(thread, here(run), now=NOW, expires_at=LATER)


async def refused(attempt: Awaitable[object]) -> ThreadBusyError:
    """Check that a verb refuses a lost lease.

    Args:
        attempt: the call of the verb.

    Returns:
        The error that the verb raised.
    """
    with pytest.raises(ThreadBusyError) as caught:
        await attempt
    assert caught.value.lost
    return caught.value


async def written(
    saver: BaseCheckpointSaver, *rows: CheckpointRow, thread: str = "t", metadata: dict[str, Any] | None = None
) -> None:
    """Store rows in a thread, one commit for each, and release the lease.

    Args:
        saver: the saver.
        rows: the rows; each becomes the head of its namespace.
        thread: the thread's id.
        metadata: the thread's own metadata.
    """
    lease = await take(saver, thread, "run-setup")
    heads: dict[str, int] = {}
    for one in rows:
        number = one.step + 1
        await saver.commit(lease, commit(one, head=heads.get(one.ns), metadata=metadata))
        heads[one.ns] = number
    await saver.release(lease)


async def head_of(saver: BaseCheckpointSaver, thread: str = "t", ns: str = "") -> CheckpointId | None:
    """Return the head of a namespace; None if nothing is stored there."""
    chain = await saver.read(thread, ns)
    return None if chain is None else chain.head


async def everything(
    saver: BaseCheckpointSaver,
) -> tuple[
    tuple[Header, ...],
    list[Chain | None],
    list[tuple[tuple[CheckpointRow, ...], tuple[TaskRecord, ...]]],
    list[tuple[EventRow, ...]],
]:
    """Read everything that a saver stores, by the verbs that every saver has.

    Returns:
        All headers, the chain of each namespace, each segment, and the events of each thread.
    """
    headers = await saver.scan(None, None, limit=MANY)
    spaces = sorted({(one.thread_id, one.ns) for one in headers})
    bases = sorted({(one.thread_id, one.ns, one.base_id) for one in headers})
    threads = sorted({one.thread_id for one in headers})
    return (
        headers,
        [await saver.read(*space) for space in spaces],
        [await saver.segment(*base) for base in bases],
        [await saver.events(thread, limit=MANY) for thread in threads],
    )


async def stored(
    saver: BaseCheckpointSaver,
) -> tuple[object, tuple[ThreadHeader, ...] | None, list[ThreadDump | None] | None]:
    """Read everything that a saver stores, leases and pins too, by all verbs that the saver has.

    Returns:
        The result of `everything`, and those of `threads` and `dump`; None for a verb that the saver lacks.
    """
    seen = await everything(saver)
    headers, dumps = None, None
    if offers(saver, "threads"):
        headers = await saver.threads(limit=MANY)
    if offers(saver, "dump"):
        dumps = [await saver.dump(thread) for thread in sorted({one.thread_id for one in seen[0]})]
    return seen, headers, dumps


def offers(saver: BaseCheckpointSaver, verb: str) -> bool:
    """Return True if a saver implements a verb that it need not offer.

    Args:
        saver: the saver.
        verb: the verb; the port's own method, which only raises, does not count.
    """
    return getattr(type(saver), verb, None) is not getattr(BaseCheckpointSaver, verb)


def loops() -> tuple[str, ...]:
    """Return the event loops that are installed."""
    return ("asyncio", "trio") if find_spec("trio") else ("asyncio",)


async def in_a_loop_each(enter: AsyncWork, use: AsyncWork, leave: AsyncWork) -> None:
    """Run three functions in turn, each on an event loop that has ended before the next one starts.

    Args:
        enter: runs on asyncio.
        use: runs on trio if trio is installed.
        leave: runs like `use`.
    """

    async def nothing() -> None:
        pass

    await in_threads(enter)
    await in_threads(nothing, use)  # the first function takes asyncio, the second trio
    await in_threads(nothing, leave)


async def cancelled_natively(work: Awaitable[object], turns: int, again: int) -> None:
    """Run an awaitable in a task of asyncio, and cancel the task with `Task.cancel()`.

    The task must end as cancelled unless it was done when it was first cancelled.

    Args:
        work: the awaitable.
        turns: turns of the event loop before the first cancellation.
        again: further cancellations, one per turn of the event loop.
    """
    task = asyncio.ensure_future(work)  # noqa: TID251  # the clause needs a task that asyncio itself cancels
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    for _ in range(again):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is not ended


async def in_threads(*works: AsyncWork) -> None:
    """Run each function in an OS thread with its own event loop, all at once; asyncio and trio alternate.

    Args:
        works: the functions. All begin together, behind a barrier.

    Raises:
        BaseExceptionGroup: the exceptions of those that failed, after all have ended.
    """
    errors: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(work: AsyncWork, backend: str) -> None:
        began = False

        async def main() -> None:
            nonlocal began
            gate.wait()
            began = True
            await work()

        try:
            anyio.run(main, backend=backend)
        except BaseException as error:
            # A thread that fails before the barrier must break it, or the others wait forever. After the barrier it
            # must not: some threads may still be waking up in `wait`, and would fail, too.
            if not began:
                gate.abort()
            errors.append(error)

    def run_all() -> None:
        kinds = loops()
        threads = [
            threading.Thread(target=run, args=(work, kinds[number % len(kinds)])) for number, work in enumerate(works)
        ]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # switch threads as often as possible, so that races show
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)

    await anyio.to_thread.run_sync(run_all)
    if errors:
        raise BaseExceptionGroup("in threads", errors)


def repeated(work: Callable[[int], Awaitable[None]], times: int) -> list[Callable[[], Awaitable[None]]]:
    """Bind a function to the numbers from 0 on.

    Args:
        work: a function of a number.
        times: the number of functions to make.
    """
    return [partial(work, number) for number in range(times)]
