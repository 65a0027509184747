"""Early parts: followers in other processes see parts of a superstep in progress, and without them nothing is paid."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from checkpoint_savers.errors import StorageError
from pregel_async import START, StateGraph
from pregel_async._runtime.streaming.event_recorder import EventRecorder
from pregel_async.runtime import get_stream_writer, interrupt
from pregel_async.service import RunService, Worker, following
from pregel_async.service import opened as opened_service
from pregel_async.service.early_parts import EarlyParts
from tests.helpers.each_saver import SAVERS, Open, opener
from tests.helpers.postgres_tools import made_schema, unsynced

from .graphs import TOKENS, Gate, Log, talking

pytestmark = pytest.mark.anyio

MODES: Any = ["custom", "updates"]
EARLY, ALL = list(range(TOKENS)), list(range(2 * TOKENS))


@pytest.fixture(params=SAVERS)
def open_saver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with opener(request.param, tmp_path) as open_saver:
        yield open_saver


@pytest.fixture
async def elsewhere(open_saver: Open) -> AsyncIterator[BaseCheckpointSaver]:
    async with open_saver() as saver:
        yield saver


@pytest.fixture
async def saver(open_saver: Open) -> AsyncIterator[BaseCheckpointSaver]:
    async with open_saver() as saver:
        yield saver


def data_of(parts: list[Any]) -> list[Any]:
    return [part["data"] for part in parts if part["type"] == "custom"]


def reader(service: RunService, run: Any, how: str) -> Any:
    if how == "run":
        return service.follow(run.run_id, stream_mode=MODES)
    return service.follow_thread("t", stream_mode=MODES)


@pytest.mark.parametrize(("how", "durability"), [("run", "sync"), ("thread", "async")])
async def test_while_a_node_waits(
    how: str, durability: Any, saver: BaseCheckpointSaver, elsewhere: BaseCheckpointSaver
) -> None:
    """A follower elsewhere sees parts while their node waits, each once, with the cursors of a reader that comes later."""
    gate = Gate()
    async with (
        RunService({"agent": talking(gate)}, saver),
        RunService({"agent": talking(Gate())}, elsewhere, work=False) as web,
    ):
        run = await web.start("agent", {}, thread_id="t", stream_mode=MODES, durability=durability)
        seen: list[Any] = []
        async with reader(web, run, how) as parts:
            async for part in parts:
                seen.append(part)
                if data_of(seen) == EARLY:
                    assert not gate.opened.is_set()
                    gate.opened.set()
        assert data_of(seen) == ALL
        async with reader(web, run, how) as parts:
            stored = [part async for part in parts]
    cursors = [part["cursor"] for part in seen]
    assert cursors == sorted(set(cursors))
    keys = ("type", "data", "seq", "cursor")
    assert [[part[key] for key in keys] for part in seen] == [[part[key] for key in keys] for part in stored]
    assert "superstep_restarted" not in {part["type"] for part in seen}


class Counted:
    """Counts the transactions of a worker, and its looks at the runs that it executes."""

    def __init__(self, saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
        assert saver.runs is not None
        self.writes = self.early = 0
        self.looked = anyio.Event()
        self.saver = saver
        self.patch = monkeypatch
        for of, name in ((saver, "commit"), (saver, "record"), (saver.runs, "transact")):
            self._count(of, name)
        get_runs: Any = saver.runs.get_runs
        flush = EventRecorder.flush_early

        async def looked(run_ids: Any) -> Any:
            found = await get_runs(run_ids)
            self.looked.set()
            return found

        async def flushed(recorder: EventRecorder) -> None:
            self.early += 1
            await flush(recorder)

        monkeypatch.setattr(saver.runs, "get_runs", looked)
        monkeypatch.setattr(EventRecorder, "flush_early", flushed)

    def follow(self, saver: BaseCheckpointSaver) -> None:
        """Set `followed` when a follower looks at its run for the first time."""
        self.followed = anyio.Event()
        runs: Any = saver.runs
        wait = runs.wait_for_thread

        async def waited(*args: Any) -> int:
            number: int = await wait(*args)
            self.followed.set()
            return number

        self.patch.setattr(runs, "wait_for_thread", waited)

    def _count(self, of: Any, name: str) -> None:
        call = getattr(of, name)

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.writes += 1
            return await call(*args, **kwargs)

        self.patch.setattr(of, name, counted)


@pytest.mark.parametrize("modes", [["custom"], ["updates"]])
async def test_without_a_follower(
    modes: Any, saver: BaseCheckpointSaver, elsewhere: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No transaction is made for a run without a follower elsewhere that shows such parts, or with one in its process."""
    counts: dict[str, tuple[int, int]] = {}
    for who in ("none", "here", "elsewhere"):
        gate = Gate()
        with monkeypatch.context() as patch:
            counted = Counted(saver, patch)
            counted.follow(saver if who == "here" else elsewhere)
            async with (
                RunService({"agent": talking(gate)}, saver) as worker,
                RunService({"agent": talking(Gate())}, elsewhere, work=False) as web,
                anyio.create_task_group() as group,
            ):
                # Elsewhere: a worker's own start may take the run, too, or not.
                run = await web.start("agent", {}, thread_id=who, stream_mode=MODES)
                shown = anyio.Event()

                async def read(service: RunService, shown: anyio.Event = shown, run_id: str = run.run_id) -> None:
                    async with service.follow(run_id, stream_mode=modes) as parts:
                        async for _ in parts:
                            shown.set()

                await gate.begun.wait()
                if who != "none":
                    group.start_soon(read, worker if who == "here" else web)
                    await counted.followed.wait()
                if who == "elsewhere" and modes == ["custom"]:
                    await shown.wait()
                for _ in range(3):
                    counted.looked = anyio.Event()
                    worker._require_open().look_for_cancellations()
                    await counted.looked.wait()
                gate.opened.set()
                await worker.join(run.run_id)
            counts[who] = counted.writes, counted.early
    assert counts["none"] == counts["here"]
    assert counts["none"][1] == 0
    if modes == ["custom"]:
        assert counts["elsewhere"][0] > counts["none"][0]
    else:
        assert counts["elsewhere"] == counts["none"]


async def test_a_run_that_is_handed_over(saver: BaseCheckpointSaver, elsewhere: BaseCheckpointSaver) -> None:
    """Parts of an attempt that was cut off are reported as void, and the parts of the next one come early, too."""
    gates = Gate(), Gate()
    seen: list[Any] = []
    async with RunService({"agent": talking(Gate())}, elsewhere, work=False) as web, anyio.create_task_group() as group:
        run = await web.start("agent", {}, thread_id="t", stream_mode=MODES)
        shown = anyio.Event(), anyio.Event()

        async def read() -> None:
            async with web.follow(run.run_id, stream_mode=MODES) as parts:
                async for part in parts:
                    seen.append(part)
                    if data_of(seen) == EARLY:
                        shown[0].set()
                    if data_of(seen) == EARLY + EARLY:
                        shown[1].set()

        group.start_soon(read)
        async with RunService({"agent": talking(gates[0])}, saver, work=Worker(grace=0)):
            await shown[0].wait()
        async with RunService({"agent": talking(gates[1])}, saver) as worker:
            await shown[1].wait()
            assert (await web.get_run(run.run_id)).stalls == 1  # early parts are no progress
            gates[1].opened.set()
            await worker.join(run.run_id)
    assert [part["data"] for part in seen if part["type"] == "custom"] == EARLY + ALL
    (restarted,) = [at for at, part in enumerate(seen) if part["type"] == "superstep_restarted"]
    assert data_of(seen[:restarted]) == EARLY
    assert [each["name"] for each in seen[restarted]["data"]["tasks"]] == ["talk"]
    cursors = [part["cursor"] for part in seen]
    assert cursors == sorted(set(cursors))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_worker_that_is_killed(kind: str, tmp_path: Path) -> None:
    """A follower sees the early parts of another process, that they are void once it is killed, and the next ones."""
    with made_schema() as schema:
        place = str(tmp_path / "threads.db") if kind == "sqlite" else schema
        saver: BaseCheckpointSaver = SqliteSaver(place) if kind == "sqlite" else PostgresSaver(unsynced(), schema=place)
        async with saver, RunService({"agent": talking(Gate())}, saver, work=False) as web:
            run = await web.start("agent", {}, thread_id="t", stream_mode=MODES)
            command = [sys.executable, "-m", "tests.service.early_worker", kind, place, unsynced()]
            seen: list[Any] = []
            gate = Gate()
            gate.opened.set()
            async with await anyio.open_process(command, stdout=None, stderr=None) as child:
                async with web.follow(run.run_id, stream_mode=MODES) as parts, anyio.create_task_group() as group:
                    async for part in parts:
                        seen.append(part)
                        if data_of(seen) == EARLY and child.returncode is None:
                            child.kill()
                            await child.wait()

                            async def work() -> None:
                                async with RunService({"agent": talking(gate)}, saver) as worker:
                                    await worker.join(run.run_id)

                            group.start_soon(work)
    types = [part["type"] for part in seen if part["type"] != "updates"]
    assert types == ["custom"] * TOKENS + ["superstep_restarted"] + ["custom"] * 2 * TOKENS
    assert data_of(seen) == EARLY + ALL


async def test_the_end_between_two_looks(
    saver: BaseCheckpointSaver, elsewhere: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A superstep that is stored after the look at the rows and before the look at the branch makes no part void."""
    gates = Gate(), Gate()

    async def talk(state: Log) -> dict[str, Any]:
        for at, gate in enumerate(gates):
            get_stream_writer()(at)
            await gate.wait()
        return {"log": ["talk"]}

    graph = StateGraph(Log).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", "last")
    graph.add_node("last", lambda state: {"log": ["last"]})
    seen: list[Any] = []
    async with (
        RunService({"agent": graph.compile()}, saver) as worker,
        RunService({"agent": graph.compile()}, elsewhere, work=False) as web,
    ):
        run = await web.start("agent", {}, thread_id="t", stream_mode=MODES)
        heads: Any = elsewhere.heads

        async def late(*args: Any) -> Any:
            if gates[0].opened.is_set() and not gates[1].opened.is_set():
                gates[1].opened.set()
                await worker.join(run.run_id)
            return await heads(*args)

        monkeypatch.setattr(elsewhere, "heads", late)
        async with web.follow(run.run_id, stream_mode=MODES) as parts:
            async for part in parts:
                seen.append(part)
                gates[0].opened.set()
    assert data_of(seen) == [0, 1]
    assert [part["type"] for part in seen] == ["custom"] * 2 + ["updates"] * 2


@pytest.mark.parametrize("ends", ["returns", "asks", "raises"])
async def test_a_row_in_progress(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a superstep waits for the early row that is being stored, however it ends."""
    saver, storing, overtaken, done = InMemorySaver(), anyio.Event(), anyio.Event(), anyio.Event()

    async def talk(state: Log) -> dict[str, Any]:
        get_stream_writer()("part")
        await storing.wait()
        if ends == "asks":
            interrupt("sure?")
        if ends == "raises":
            raise ValueError("no")
        return {"log": ["talk"]}

    builder = StateGraph(Log).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", "last")
    graph = builder.add_node("last", lambda state: {"log": ["last"]}).compile()
    commit: Any = saver.commit
    transact: Any = saver.runs.transact

    async def stored(lease: Any, commit_: Any) -> None:
        if commit_.events and not (commit_.rows or commit_.records or storing.is_set()):
            storing.set()
            with anyio.move_on_after(0.1):  # a transaction that does not wait would come now
                await overtaken.wait()
            await commit(lease, commit_)
            done.set()
            return
        await overtake()
        await commit(lease, commit_)

    async def overtake() -> None:
        if storing.is_set():
            overtaken.set()
            await done.wait()

    async def transacted(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("lease") is not None:
            await overtake()
        return await transact(*args, **kwargs)

    monkeypatch.setattr(saver, "commit", stored)
    monkeypatch.setattr(saver.runs, "transact", transacted)
    async with RunService({"agent": graph}, saver), RunService({"agent": graph}, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t", stream_mode=MODES)
        async with web.follow(run.run_id, stream_mode=MODES) as parts:
            seen = [part async for part in parts]
        found = await web.get_run(run.run_id)
    assert data_of(seen) == ["part"]
    assert found.status == {"returns": "success", "asks": "interrupted", "raises": "error"}[ends]
    assert found.attempt == 1
    assert found.error is None or found.error.message == "no"


async def test_a_note_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower renews its note although nothing changes, and makes none when it has left."""
    monkeypatch.setattr(following, "FOLLOWED_FOR", 0.03)
    monkeypatch.setattr(opened_service, "FOLLOWED_FOR", 0.03)
    saver, gate, notes = InMemorySaver(), Gate(), 0
    follow: Any = saver.runs.follow
    renewed = anyio.Event()

    async def noted(*args: Any) -> None:
        nonlocal notes
        notes += 1
        await follow(*args)
        if notes == 4:
            renewed.set()

    monkeypatch.setattr(saver.runs, "follow", noted)
    async with RunService({"agent": talking(gate)}, saver) as worker:
        async with RunService({"agent": talking(Gate())}, saver, work=False) as web:
            run = await web.start("agent", {}, thread_id="t", stream_mode=MODES)
            async with web.follow(run.run_id, stream_mode=MODES), anyio.create_task_group():
                await renewed.wait()
        before = notes
        gate.opened.set()
        await worker.join(run.run_id)
        assert notes == before


class Stream:
    """A stream whose parts are stored, in a time that passes only while one sleeps."""

    def __init__(self) -> None:
        self.has_ended = False
        self.now = 100.0
        self.stored: list[float] = []
        self.error: Exception | None = None

    async def store_early(self) -> None:
        self.stored.append(self.now)
        if self.error is not None:
            raise self.error

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_how_often() -> None:
    """Parts are stored at most every 20 ms, until the note is too old, the run has ended or storage has failed."""
    stream: Any = Stream()
    early = EarlyParts(stream, lambda: stream.now, stream.sleep)
    assert not early.extend(0.0)
    assert not early.extend(stream.now)
    assert early.extend(stream.now + 1)
    assert not early.extend(stream.now + 2), "it is being started"
    await early.store()
    assert 102 - 0.05 <= stream.stored[-1] < 102
    assert all(later - at >= 0.02 for at, later in pairwise(stream.stored))
    before = len(stream.stored)
    stream.has_ended = True
    assert early.extend(stream.now + 1)
    await early.store()
    assert len(stream.stored) == before
    stream.has_ended, stream.error = False, StorageError("the database is gone")
    assert early.extend(stream.now + 1)
    await early.store()
    assert len(stream.stored) == before + 1


async def test_part_by_part() -> None:
    """A follower sees each part of one node before the node publishes the next one."""
    saver, gates, seen = InMemorySaver(), [Gate() for _ in range(4)], list[Any]()

    async def talk(state: Log) -> dict[str, Any]:
        for at, gate in enumerate(gates):
            get_stream_writer()(at)
            await gate.wait()
        return {}

    graph = StateGraph(Log).add_node("talk", talk).add_edge(START, "talk").compile()
    async with RunService({"agent": graph}, saver), RunService({"agent": graph}, saver, work=False) as web:
        run = await web.start("agent", {}, thread_id="t", stream_mode=MODES)
        async with web.follow(run.run_id, stream_mode="custom") as parts:
            async for part in parts:
                seen.append(part["data"])
                gates[seen[-1]].opened.set()
    assert seen == [0, 1, 2, 3]


async def test_durability_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With durability "exit" no part is stored before the run ends, also if it is followed."""
    saver, gate = InMemorySaver(), Gate()
    counted = Counted(saver, monkeypatch)
    async with RunService({"agent": talking(gate)}, saver), RunService({"agent": talking(gate)}, saver) as web:
        run = await web.start("agent", {}, thread_id="t", stream_mode=MODES, durability="exit")
        await gate.begun.wait()
        row = await saver.runs.get_run(run.run_id)
        assert row is not None
        await saver.runs.follow(row, 60)
        with anyio.fail_after(30):
            while counted.early < 2:
                await anyio.lowlevel.checkpoint()
        assert all(row.kind != "part" for row in await saver.events("t"))
        gate.opened.set()
        await web.join(run.run_id)
