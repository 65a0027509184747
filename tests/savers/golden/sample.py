"""Fixed data for golden files: each kind of frame with all of its fields set, and threads and cached values of these.
A change of a format's layout shows as other bytes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from checkpoint_savers.codec import seal
from checkpoint_savers.deltas import Picked, StoredDelta, Tail, TaskResult, write_delta, write_record
from checkpoint_savers.patches import DictPatch, ListPatch
from checkpoint_savers.records import (
    CheckpointId,
    CheckpointRow,
    Commit,
    EventRow,
    Owner,
    TaskId,
    TaskRecord,
    ThreadDump,
)
from checkpoint_savers.sharing import Shared
from pregel_async import Command, Interrupt, Overwrite, Send
from pregel_async._api.stored_types import with_runtime_types
from pregel_async._runtime.streaming.event_rows import PendingEvent, StoredEvent, write_row
from pregel_async._runtime.streaming.parts import Unit
from tests.savers.golden.engine_graphs import VALUES, codec

NOW = 1_790_000_000.0
"""When everything was stored, in unix seconds."""

OWNER = Owner(host="a host", boot="a boot", pid=7, started="1234", run_id="run-1")
THREADS = ("held", "loaded 日本語")

CODEC = with_runtime_types(codec(), ())
OBJECTS: list[Any] = [
    *VALUES,
    {"rate": Decimal("1e-7"), "range": range(1, 9, 2), "slice": slice(1, None), "raw": bytearray(b"\x00\xff")},
    Send("work", {"i": 1}),
    Command(resume="yes"),
    Overwrite([1]),
    Interrupt(value="ok?", id="i" * 32),
    Shared("log", 2, [{"n": 1}]),
]


def encoded(value: Any) -> bytes:
    data: bytes = CODEC.encode(value, channel="sample")
    return data


LIST = ListPatch(((0, 2), encoded(["three"]), (4, 5)))
FULL = StoredDelta(
    keyframe=True,
    ts=NOW + 0.5,
    clock=3,
    values={"log": encoded(["one", "two"]), "notes": encoded({"a": 1})},
    emptied=("branch:to:a",),
    kinds={"log": "BinaryOperatorAggregate", "notes": "LastValue"},
    versions={"notes": 2},
    seen={"branch:to:a": {"a": 2}},
    ran=("a", "b"),
    results={"task-1": (("log", encoded(["two"])), ("notes", None))},
    tips={"inner": "000001-checkpoint"},
    spent={"tokens": "12", "usd": "1.50d"},
)
GROWN = StoredDelta(
    keyframe=False,
    ts=NOW + 1.0,
    clock=4,
    values={"log": LIST, "notes": DictPatch(encoded(["a"]), ((encoded("b"), LIST),), encoded(["c", 3]))},
    emptied=(),
    kinds={},
    versions={},
    seen={},
    ran=("c",),
    results={"task-2": (("log", Tail(0, 1)), ("notes", Picked((encoded("c"),))))},
    since="000001-checkpoint",
)
TASK = TaskResult(
    name="a",
    writes=(("log", encoded(["three"])),),
    routed=False,
    error=("ValueError", "no", NOW),
    interrupts=(("i" * 32, encoded("ok?")),),
    answers={"j" * 32: encoded("yes")},
    handled=True,
    spent={"usd": "0.25d"},
    subgraphs_spent=(("task-3", "a:task-3", {"tokens": "3"}),),
    askers={"i" * 32: ("task-1", "task-3")},
    call=b"\x01" + bytes(12),
    asked=(("j" * 32, encoded("sure?")),),
)
UNIT = Unit("task-1", ("inner:task-1",), "a")
EVENT = StoredEvent("updates", ("inner:task-1",), 1, encoded({"a": 1}), encoded(()), True)


def cid(number: int) -> CheckpointId:
    return CheckpointId(f"0193a1b2-0000-7000-8000-{number:012d}")


EVENTS = write_row(
    cid(2), 1, "head", [PendingEvent(3, UNIT, EVENT), PendingEvent(5, None, EVENT)], closes=["task-0"], opens=[UNIT]
)

FRAMES: dict[str, bytes] = {
    "a checkpoint that holds everything": write_delta(FULL),
    "a checkpoint that changes another": write_delta(GROWN),
    "a record of a task": write_record(TASK),
    "a row of events": EVENTS.frame,
    **{f"value {at}": seal(encoded(value)) for at, value in enumerate(OBJECTS)},
}


def row(number: int, parent: int | None, base: int, frame: bytes, ns: str = "", **more: Any) -> CheckpointRow:
    return CheckpointRow(
        ns=ns,
        checkpoint_id=cid(number),
        parent_id=None if parent is None else cid(parent),
        base_id=cid(base),
        step=number - 2,
        metadata={"source": "loop", "step": number - 2, "parents": {}, "run_id": "run-1", **more},
        frame=frame,
        pinned=number == 3,
    )


def record(number: int, task: str, kind: Any, ns: str = "") -> TaskRecord:
    return TaskRecord(
        ns=ns, checkpoint_id=cid(number), task_id=TaskId(task), index=number, kind=kind, frame=write_record(TASK)
    )


DUMP = ThreadDump(
    heads={"": cid(3), "inner": cid(9)},
    rows=(
        row(1, None, 1, write_delta(FULL)),
        row(2, 1, 1, write_delta(GROWN), user="ann"),
        row(3, 2, 1, write_delta(GROWN), __thread__="other"),
        CheckpointRow(
            ns="inner",
            checkpoint_id=cid(9),
            parent_id=None,
            base_id=cid(9),
            step=0,
            metadata={"step": "text", "rate": 1.5},
            frame=write_delta(FULL),
        ),
    ),
    records=(record(2, "task-2", "result"), record(3, "", "error"), record(3, "task-1", "interrupt")),
    events=(EVENTS, EventRow(checkpoint_id=cid(3), epoch=2, position=1, kind="tail", frame=EVENTS.frame)),
    metadata={"user": "日本\u0001'\"\\", "n": 1, "f": 1.0, "yes": True},
)


async def fill(saver: Any) -> None:
    """Store one thread by a commit, under a lease that is still held, and one as a dump."""
    held, loaded = THREADS
    lease = await saver.acquire(held, OWNER, now=NOW, expires_at=NOW + 30)
    rows = tuple([one for one in DUMP.rows if not one.ns and not one.pinned])
    await saver.commit(
        lease,
        Commit(
            rows=rows,
            expected_head=None,
            records=(record(2, "task-2", "result"), record(2, "", "error")),
            expires_at=NOW + 60,
            events=(EVENTS,),
            metadata={"user": "ann"},
        ),
    )
    inner = row(4, None, 4, write_delta(FULL), ns="inner:task-2|deep")
    await saver.commit(lease, Commit(rows=(inner,), expected_head=None, expires_at=NOW + 60))
    lease = await saver.acquire(loaded, OWNER, now=NOW, expires_at=NOW + 30)
    await saver.load(lease, DUMP)
    await saver.release(lease)
    getattr(
        saver, "_held_leases", {}
    ).clear()  # as if the process was killed; otherwise closing the saver would release the lease


CACHED: dict[Any, tuple[bytes, float | None]] = {
    (("tasks", "a\x00b"), "key"): (b"value", None),
    (("tasks",), "日本語"): (bytes(range(256)), 60.0),
    ((), ""): (b"", None),
}
"""The cache's entries: value and seconds until it expires."""
