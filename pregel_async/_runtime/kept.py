"""Events that are kept with a run's commits, so that a reader who was away misses nothing.

While a superstep is open its events are held here; when they grow heavy they are spilled to storage, where they are
void until the superstep closes. The transaction that closes it stores the rest (the *tail*), and the first events of
the next checkpoint (its *head*: what that very commit let out). So what is read back is what was committed, in the
order in which it was shown, and a superstep that was cut off has no tail.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Any, Literal

import anyio
import msgspec

from checkpoint_savers.abc import PAGE, BaseCheckpointSaver
from checkpoint_savers.codec import Codec, seal, unseal
from checkpoint_savers.errors import CorruptCheckpointError, UnstorableValueError
from checkpoint_savers.records import CheckpointId, EventRow

from .._core.isolation import own
from ..errors import InvalidCursorError
from .described import text
from .part import END, RESTARTED, Cursor, Part
from .thread import Thread

HEAVY = 256 * 1024
"""Bytes of events that are held before they are spilled."""

OVERFULL = 8 * 2**20
"""Bytes of events that may be held at most."""

MANY = 256
"""Events that are held before they are spilled."""


class _Event(msgspec.Struct, array_like=True, frozen=True):
    """A part as it is kept. New fields go to the end, with a default."""

    mode: str
    ns: tuple[str, ...]
    step: int
    data: bytes
    interrupts: bytes = b""
    bare: bool = False  # the state in it was shown as a mapping, and not as the schema's own object


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Event]).decode


class Keeper:
    """Keeps the events of one run.

    Args:
        thread: the called graph's, which commits.
        codec: knows the types of the graph and of those inside.
    """

    def __init__(self, thread: Thread, codec: Codec) -> None:
        self._thread = thread
        self._codec = codec
        self._at = thread.tip or ""
        self._epoch = thread.hold.claim.epoch
        self._position = 0
        self._events: list[_Event] = []  # held
        self._size = 0
        self._spilled = False
        self._lock = anyio.Lock()
        self._ahead = thread.hold.durability != "sync"  # events are shown on checkpoints that are not stored yet

    @property
    def is_heavy(self) -> bool:
        """Whether the events that are held are to be spilled."""
        return self._size > HEAVY or len(self._events) > MANY

    @property
    def is_overfull(self) -> bool:
        """Whether no more can be held: whoever brings events has not waited for them to be spilled."""
        return self._size > OVERFULL

    @property
    def place(self) -> Cursor:
        """Of the last event."""
        return Cursor(self._at, self._epoch, self._position)

    def begin(self) -> None:
        """The run begins on the checkpoint on which its thread stands."""
        self._at = self._thread.tip or ""

    def keep(self, part: Part) -> None:
        """Take an event, and give it its place.

        Raises:
            UnstorableValueError: it cannot be stored.
        """
        event = _Event(
            part.mode,
            part.ns,
            part.step,
            self._encoded(part),
            self._codec.encode(own(part.interrupts), channel="interrupt()") if part.interrupts else b"",
            part.coerce is None,
        )
        self._position += 1
        since: str | None = None
        if self._ahead and self._at != (stored := self._thread.stored or ""):
            since = stored
        part.cursor = Cursor(self._at, self._epoch, self._position, part.seq, since)
        self._events.append(event)
        self._size += len(event.data)

    def _encoded(self, part: Part) -> bytes:
        data, where = own(_storable(part)), f"the {part.mode!r} stream"
        try:
            return self._codec.encode(data, channel=where)
        except UnstorableValueError:
            if part.mode in ("custom", "messages"):
                raise  # in the node that wrote it
        # A state may hold what is never stored (in an `UntrackedValue`): it is not kept with the others.
        return self._codec.encode(self._without_unstorable(data), channel=where)

    def _without_unstorable(self, value: Any) -> Any:
        """A mapping without the entries that cannot be stored, at any depth of mappings; None for anything else."""
        if not isinstance(value, dict):
            return None
        left: dict[Any, Any] = {}
        for key, item in value.items():
            try:
                self._codec.encode(item, channel=str(key))
            except UnstorableValueError:
                if isinstance(item, dict):
                    left[key] = self._without_unstorable(item)
            else:
                left[key] = item
        return left

    def close(self, tip: CheckpointId) -> None:
        """A superstep closes: its events go with the transaction that makes this checkpoint."""
        self._stage("tail")
        self._at, self._position = tip, 0
        self._spilled = False

    def stage_head(self) -> None:
        """What is held now are the first events on the new checkpoint, and go with the transaction that makes it."""
        self._stage("head")

    def drop(self) -> None:
        """What is held is void, and is not to be stored."""
        self._events, self._size = [], 0

    def rest(self) -> None:
        """The run comes to rest on the open superstep: its events go with the next transaction."""
        self._stage("tail")

    def _stage(self, kind: Literal["head", "tail"]) -> None:
        if self._events or (self._spilled and kind == "tail"):
            self._thread.events.append(self._row(kind, self._events))
            self._events, self._size = [], 0

    async def spill(self) -> None:
        """Store what is held; it is void until its superstep closes."""
        async with self._lock:
            if self.is_heavy:
                self._thread.events.append(self._row("part", self._events))
                self._events, self._size, self._spilled = [], 0, True
                await self._thread.spill()

    def held(self, last: Cursor | None) -> list[Part]:
        """The events that are in nobody's hands but this process's: those of a transaction under way too.

        Args:
            last: the place of the last that was shown. Those behind it are shown when they are stored.
        """
        rows = [*self._thread.events, self._row("part", self._events)]
        return [
            _part(event, cursor, self._codec)
            for row in rows
            for at, event in enumerate(_events(row, self._thread.thread_id), row.position)
            if last is not None and (cursor := Cursor(row.checkpoint_id, row.epoch, at)).place <= last.place
        ]

    def attempts(self) -> set[tuple[str, int]]:
        """The checkpoint and the epoch of what is not closed yet, or whose closing is not stored yet."""
        return {(self._at, self._epoch), *((row.checkpoint_id, row.epoch) for row in self._thread.events)}

    def _row(self, kind: Literal["head", "part", "tail"], events: Sequence[_Event]) -> EventRow:
        return EventRow(
            checkpoint_id=CheckpointId(self._at),
            epoch=self._epoch,
            position=self._position - len(events) + 1,
            kind=kind,
            frame=seal(_encode(list(events))),
        )


def _storable(part: Part) -> Any:
    """The payload, with the text of a live exception in its place."""
    data = part.data
    if part.mode == "tasks":
        return _told(data)
    if part.mode == "debug":
        return {**data, "payload": _told(data["payload"])}
    return data


def _told(payload: dict[str, Any]) -> dict[str, Any]:
    error = payload.get("error")
    if isinstance(error, BaseException):
        return {**payload, "error": f"{type(error).__name__}: {text(error)}"}
    return payload


def _part(event: _Event, cursor: Cursor, codec: Codec) -> Part:
    asked: Any = codec.decode(event.interrupts, channel="interrupt()") if event.interrupts else ()
    return Part(
        mode=event.mode,
        ns=event.ns,
        data=codec.decode(event.data, channel=f"the {event.mode!r} stream"),
        step=event.step,
        interrupts=asked,
        cursor=cursor,
        uncoerced=not event.bare,
    )


# ---- reading back ----------------------------------------------------------------------------------------------------


async def read_kept(
    saver: BaseCheckpointSaver,
    thread_id: str,
    after: Cursor,
    codec: Codec,
    *,
    live: Collection[tuple[str, int]] = (),
    again: bool = False,
) -> AsyncGenerator[Part, None]:
    """The events after a place, of the branch that the thread stands on, as far as they are committed.

    Where the place is in an attempt that was cut off, a part comes first that says that what was shown of it is void;
    it has no cursor. It is to be told before anything of a later attempt, unless that says so itself.

    Args:
        live: the attempts (checkpoint, epoch) of a run that goes on in this process: what is stored of them counts.
        again: begin with all events of the attempt that the place is in.

    Raises:
        InvalidCursorError: the place is not on that branch.
        CorruptCheckpointError, StorageError
    """
    path, forked = await _path(saver, thread_id, after.checkpoint_id)
    tails = set(live)
    mine = (after.checkpoint_id, after.epoch)
    head = 0  # how many events came with the commit that made the checkpoint of the place
    async with aclosing(_rows(saver, thread_id, after)) as rows:
        async for row in rows:
            key = (row.checkpoint_id, row.epoch)
            if row.kind == "tail":
                # A superstep that was closed led elsewhere, where the way forks from the checkpoint under it.
                if row.checkpoint_id not in forked or _events(row, thread_id)[-1].mode == END:
                    tails.add(key)
            elif row.kind == "head" and key == mine:
                shown = [event for event in _events(row, thread_id) if event.mode != END]
                head = max(head, row.position + len(shown) - 1 if shown else 0)
    if mine not in tails and after.position > head:
        yield restarted(path[after.checkpoint_id] + 1, after.checkpoint_id)
    async with aclosing(_rows(saver, thread_id, after)) as rows:
        async for row in rows:
            key = (row.checkpoint_id, row.epoch)
            if row.checkpoint_id not in path or (row.kind != "head" and key not in tails) or key < mine:
                continue
            for at, event in enumerate(_events(row, thread_id), row.position):
                if again or key != mine or at > after.position:
                    part = _part(event, Cursor(row.checkpoint_id, row.epoch, at), codec)
                    part.committed = max(path.values())
                    yield part


def restarted(step: int, checkpoint_id: str) -> Part:
    """What voids what was shown of a superstep."""
    return Part(mode=RESTARTED, ns=(), data={"step": step, "checkpoint_id": checkpoint_id}, step=step)


async def _path(saver: BaseCheckpointSaver, thread_id: str, since: str) -> tuple[dict[str, int], set[str]]:
    """The checkpoints from one to the head, and the superstep that made each; and those that the way forks from."""
    chain = await saver.read(thread_id)
    parents: dict[str, str | None] = {}
    steps: dict[str, int] = {}
    forks: set[str] = set()
    before: CheckpointId | None = None
    while chain is not None:
        page = await saver.scan(thread_id, "", before=before, limit=PAGE)
        for header in page:
            parents[header.checkpoint_id] = header.parent_id
            steps[header.checkpoint_id] = header.step
            if header.metadata.get("source") == "fork":
                forks.add(header.checkpoint_id)
        if len(page) < PAGE or page[-1].checkpoint_id < since:
            break
        before = page[-1].checkpoint_id
    path: dict[str, int] = {}
    forked: set[str] = set()
    at: str | None = None if chain is None else chain.head
    while at is not None and at in parents and at >= since:
        path[at] = steps[at]
        parent = parents[at]
        if at in forks and parent is not None:
            forked.add(parent)
        at = parent
    if since == "":
        path[""] = -2
    if since not in path:
        raise InvalidCursorError(
            f"thread {thread_id!r} does not stand on the branch of checkpoint {since!r} any more: read it from its "
            "state (aget_state), and follow a new run"
        )
    return path, forked


async def _rows(saver: BaseCheckpointSaver, thread_id: str, after: Cursor) -> AsyncGenerator[EventRow, None]:
    since = (CheckpointId(after.checkpoint_id), 0, 0)
    while True:
        page = await saver.events(thread_id, since=since, limit=PAGE)
        for row in page:
            yield row
        if len(page) < PAGE:
            return
        last = page[-1]
        since = (last.checkpoint_id, last.epoch, last.position + 1)


def _events(row: EventRow, thread_id: str) -> list[_Event]:
    where = f"thread {thread_id!r}, the events on checkpoint {row.checkpoint_id}"
    try:
        return _decode(unseal(row.frame, where))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(where, f"its frame cannot be read ({error})") from error
