"""What the checks share: the fixtures, and short ways to make rows and claims."""

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
    Claim,
    Commit,
    EventKind,
    EventRow,
    Header,
    Owner,
    RecordKind,
    TaskId,
    TaskRecord,
    ThreadDump,
    ThreadHeader,
)

Work = Callable[[], Awaitable[None]]

OpenSaver = Callable[[], AbstractAsyncContextManager[BaseCheckpointSaver]]

NOW = 4_000_000_000.0
"""The checks' time, in unix seconds. In the year 2096: a claim that is live then is so by any real clock."""

LATER = NOW + 30.0
"""When the checks' claims expire."""


VERBS: Final = ("rewrite", "load", "erase", "threads", "update_thread", "dump", "hear")
"""The verbs of the port that a saver may lack."""

MANY = 10_000
"""A limit that no check reaches."""

C = TypeVar("C", bound=Callable[..., object])


def needs(*verbs: str) -> Callable[[C], C]:
    """Mark a clause with the verbs without which it cannot be asked."""

    def mark(clause: C) -> C:
        clause.__dict__["needed"] = verbs
        return clause

    return mark


class Suite:
    """The fixtures of all checks.

    Attributes:
        lacks: what the saver does not offer, with the reason: one of `VERBS`, or the name of a clause
            (`{"erase": "the log is kept for a year, by law"}`). What needs it is skipped, and the reason is told.
        needed: of `VERBS`, those that all clauses of the class need, where they are written.
    """

    pytestmark = pytest.mark.anyio

    lacks: Mapping[str, str] = {}
    needed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
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
        """Skips what the saver says that it lacks."""
        self.skip_what_is_lacking(request.node)

    def skip_what_is_lacking(self, item: Any) -> None:
        for name in required(type(self), item):
            if name in self.lacks:
                pytest.skip(f"{name}: {self.lacks[name]}")

    @pytest.fixture
    def open_saver(self) -> OpenSaver:
        """A function that opens a saver, as an async context manager; within one test always on the same storage."""
        raise NotImplementedError("override the fixture open_saver")

    @pytest.fixture
    async def saver(self, open_saver: OpenSaver) -> AsyncIterator[BaseCheckpointSaver]:
        async with open_saver() as saver:
            yield saver

    @pytest.fixture
    def dead_owner(self) -> Owner:
        """A run in a process of this machine that has been killed."""
        return _killed_owner()


def clauses(suite: type) -> dict[str, type]:
    """The names of a suite's clauses, each with the class that has written it."""
    return {name: one for one in reversed(suite.__mro__) for name in vars(one) if name.startswith("test_")}


def required(suite: type[Suite], item: Any) -> list[str]:
    """What a saver must not lack for one of pytest's items: the clause itself, and the verbs that it needs."""
    name: str = item.function.__name__
    author = clauses(suite).get(name, suite)
    callspec = getattr(item, "callspec", None)
    scenario = None if callspec is None else callspec.params.get("scenario")
    asked = () if scenario is None else (scenario.verb,)
    return [name, *vars(author).get("needed", ()), *getattr(item.function, "needed", ()), *asked]


@cache
def _killed_owner() -> Owner:
    """Made once: it stays dead."""
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
    """A run in this process."""
    return this_process(run)


def elsewhere(run: str) -> Owner:
    """A run on another machine, about which nothing can be known."""
    return Owner(host=f"not-{socket.gethostname()}", boot="", pid=1, started="", run_id=run)


def cid(number: int) -> CheckpointId:
    """Checkpoint ids in order."""
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
    """A checkpoint; without `base`, one that holds everything."""
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
    """A record of a task planned on a checkpoint."""
    return TaskRecord(ns=ns, checkpoint_id=cid(number), task_id=TaskId(task), index=index, kind=kind, frame=frame)


def event(
    number: int, position: int = 1, kind: EventKind = "head", *, epoch: int = 1, frame: bytes | None = None
) -> EventRow:
    """A row of events of the superstep planned on a checkpoint."""
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
) -> Commit:
    """A commit that expects checkpoint `head` to be the head, and `moves` a namespace's head to a stored checkpoint."""
    return Commit(
        rows=rows,
        expected_head=None if head is None else cid(head),
        records=tuple(records),
        clears=tuple((one.ns, one.checkpoint_id, one.task_id) for one in clears),
        expires_at=expires_at,
        releases=releases,
        head=None if moves is None else (moves[0], cid(moves[1])),
        events=tuple(events),
        metadata=metadata or {},
    )


async def take(saver: BaseCheckpointSaver, thread: str = "t", run: str = "run-1") -> Claim:
    """A live claim."""
    return await saver.claim(thread, here(run), now=NOW, expires_at=LATER)


async def refused(attempt: Awaitable[object]) -> ThreadBusyError:
    """What a verb says under a claim that is lost; it fails if the verb does not say so."""
    with pytest.raises(ThreadBusyError) as caught:
        await attempt
    assert caught.value.lost
    return caught.value


async def written(
    saver: BaseCheckpointSaver, *rows: CheckpointRow, thread: str = "t", metadata: dict[str, Any] | None = None
) -> None:
    """A thread in which rows have been stored, one commit each, and nobody's claim; with metadata of its own."""
    claim = await take(saver, thread, "run-setup")
    heads: dict[str, int] = {}
    for one in rows:
        number = one.step + 1
        await saver.commit(claim, commit(one, head=heads.get(one.ns), metadata=metadata))
        heads[one.ns] = number
    await saver.release(claim)


async def head_of(saver: BaseCheckpointSaver, thread: str = "t", ns: str = "") -> CheckpointId | None:
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
    """All that can be read."""
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
    """All that can be read, claims and pins too, by all verbs that the saver has."""
    seen = await everything(saver)
    headers, dumps = None, None
    if offers(saver, "threads"):
        headers = await saver.threads(limit=MANY)
    if offers(saver, "dump"):
        dumps = [await saver.dump(thread) for thread in sorted({one.thread_id for one in seen[0]})]
    return seen, headers, dumps


def offers(saver: BaseCheckpointSaver, verb: str) -> bool:
    """Whether a saver has a verb of its own, and not only the port's word that there is one."""
    return getattr(type(saver), verb, None) is not getattr(BaseCheckpointSaver, verb)


def loops() -> tuple[str, ...]:
    """The event loops that are installed."""
    return ("asyncio", "trio") if find_spec("trio") else ("asyncio",)


async def in_a_loop_each(enter: Work, use: Work, leave: Work) -> None:
    """Run one after the other, each on an event loop that is gone before the next begins; `enter` on the one kind, and
    the others on the other."""

    async def nothing() -> None:
        pass

    await in_threads(enter)
    await in_threads(nothing, use)  # the second thread runs the other kind of loop
    await in_threads(nothing, leave)


async def cancelled_natively(work: Awaitable[object], turns: int, again: int) -> None:
    """Await something in a task of asyncio's, and cancel that after some turns of the loop, and so many times again: it
    ends as cancelled, unless it was done by then."""
    task = asyncio.ensure_future(work)  # noqa: TID251  # what is cancelled here is a task of asyncio's own
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    for _ in range(again):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is not ended


async def in_threads(*works: Work) -> None:
    """Run each in an OS thread with an event loop of its own, asyncio and trio in turn; all at once."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(work: Work, backend: str) -> None:
        began = False

        async def main() -> None:
            nonlocal began
            gate.wait()
            began = True
            await work()

        try:
            anyio.run(main, backend=backend)
        except BaseException as error:
            if not began:  # else the others have passed it too, but for the last of the way
                gate.abort()
            errors.append(error)

    def run_all() -> None:
        kinds = loops()
        threads = [
            threading.Thread(target=run, args=(work, kinds[number % len(kinds)])) for number, work in enumerate(works)
        ]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)  # the interpreter lets threads take turns as often as it can
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
    return [partial(work, number) for number in range(times)]
