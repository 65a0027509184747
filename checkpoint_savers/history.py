"""Listings of checkpoints, for `BaseCheckpointSaver.alist` and the runtime, over the methods of any saver."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from .chain import ChainReader
from .codec import Codec
from .deltas import SENDS, TaskResult, questions_of, read_record
from .errors import CorruptCheckpointError
from .listing import GapFinder, check_gaps, is_listed
from .metadata import id_text, metadata_matches
from .records import (
    Checkpoint,
    CheckpointId,
    CheckpointMetadata,
    CheckpointRow,
    CheckpointTuple,
    Header,
    TaskId,
    TaskRecord,
    is_checkpoint_id,
)
from .saver_port import PAGE, SaverPort
from .sharing import filled_sends


async def list_checkpoints(
    saver: SaverPort,
    config: Mapping[str, Any] | str | None,
    filter: Mapping[str, Any] | None,
    before: Mapping[str, Any] | None,
    limit: int | None,
    codec: Codec,
) -> AsyncGenerator[CheckpointTuple, None]:
    """List checkpoints, newest first. See `BaseCheckpointSaver.alist`.

    Args:
        saver: stores the threads.
        config: a thread or a checkpoint; None for all threads.
        filter: metadata entries, all of which must be equal; None for no filter.
        before: a config with a `checkpoint_id`; list only older ones; None for no bound.
        limit: maximum number of checkpoints; None for all.
        codec: decodes the values.

    Yields:
        Each checkpoint.

    Raises:
        ValueError: the id in `before` is not a valid checkpoint id.
    """
    thread_id, ns, checkpoint_id = (None, None, None) if config is None else address(config)
    bound = address(before)[2] if before is not None else None
    if bound is not None and not is_checkpoint_id(bound):
        raise ValueError(f"before names {bound!r}, and a checkpoint's id is a UUID in lower case")
    if checkpoint_id is not None:
        if not is_checkpoint_id(checkpoint_id):
            return
        bound = min(bound or _after(checkpoint_id), _after(checkpoint_id))  # start the listing at the checkpoint itself
    found = walk(saver, thread_id, ns, before=bound, limit=limit, filter=filter)
    async with aclosing(found):
        async for header, reader, records in found:
            if checkpoint_id is not None and header.checkpoint_id < checkpoint_id:
                return
            if checkpoint_id is None or header.checkpoint_id == checkpoint_id:
                yield tuple_of(reader, reader.rows[header.checkpoint_id], records, codec)


async def walk(
    saver: SaverPort,
    thread_id: str | None,
    ns: str | None,
    *,
    before: CheckpointId | None = None,
    limit: int | None = None,
    filter: Mapping[str, Any] | None = None,
) -> AsyncGenerator[tuple[Header, ChainReader, tuple[TaskRecord, ...]], None]:
    """List headers, newest first, each with a reader that can restore its state, and with its records.

    Headers of one namespace share a reader, so that a listing decodes each row once.

    Args:
        saver: stores the threads.
        thread_id: only this thread; None for all.
        ns: only this namespace; None for all.
        before: list only ids strictly smaller than this.
        limit: maximum number of headers; None for all.
        filter: metadata entries, all of which must be equal.

    Yields:
        Header, reader and records of each checkpoint.

    Raises:
        CorruptCheckpointError: a row's parent is missing, or a namespace's head.
    """
    if limit is not None and limit <= 0:
        return
    left = limit
    gaps = GapFinder()
    if thread_id is not None:
        for name, head in (await saver.heads(thread_id, ns)).items():
            if before is None or head < before:
                gaps.expect_head(thread_id, name, head)
    readers: dict[tuple[str, str], _NamespaceRows] = {}
    # A copy of a thread has the same checkpoint ids. So the next page begins at the last id again, and not after it,
    # and the rows that were listed before are skipped.
    seen: set[tuple[str, str, CheckpointId]] = set()
    while left is None or left > 0:
        size = (PAGE if left is None or filter else min(PAGE, left)) + len(seen)
        # The filter is applied here and not by `scan`: rows that do not match are needed to detect that one is missing.
        page = await saver.scan(thread_id, ns, before=before, limit=size)
        for header in page:
            if (header.thread_id, header.ns, header.checkpoint_id) in seen:
                continue
            await check_gaps(saver, gaps.add(header))
            if not metadata_matches(header.metadata, filter):
                continue
            key = (header.thread_id, header.ns)
            listed = readers.get(key)
            # A listing of many threads must not retain all their rows: at most eight namespaces, of a bounded number of
            # rows each, stay in memory. A dropped one is read again when needed.
            if listed is None or len(listed.reader.rows) > 16 * PAGE:
                while len(readers) >= 8:
                    del readers[next(iter(readers))]
                listed = readers[key] = _NamespaceRows(ChainReader(*key, (), keeps_states=True), {}, set())
            if header.base_id not in listed.bases:
                await _fetch(saver, listed, header.base_id)
            reader, records = listed.reader, tuple(listed.records.get(header.checkpoint_id, ()))
            if header.checkpoint_id not in reader.rows:
                # The row was deleted after the page was read, or pruning has given it another base.
                chain = await saver.read(*key, header.checkpoint_id)
                if chain is None:
                    if await is_listed(saver, *key, header.checkpoint_id):
                        where = f"thread {key[0]!r}, namespace {key[1]!r}, checkpoint {header.checkpoint_id}"
                        raise CorruptCheckpointError(where, "it is listed, and its key finds nothing")
                    continue
                reader, records = ChainReader(*key, chain.rows), chain.records
            left = None if left is None else left - 1
            yield header, reader, records
            if left == 0:
                await _check_behind(saver, gaps, header.checkpoint_id)
                return
        if len(page) < size:
            break
        before = _after(page[-1].checkpoint_id)
        seen = {(one.thread_id, one.ns, one.checkpoint_id) for one in page if one.checkpoint_id < before}

    await check_gaps(saver, gaps.end())


async def _check_behind(saver: SaverPort, gaps: GapFinder, last: CheckpointId) -> None:
    """Check at the end of a limited listing that the expected rows follow it: the next page does not know them.

    Args:
        saver: stores the threads.
        gaps: has the rows that are expected.
        last: the last listed row. Heads that are older belong to a later page, which expects them too.
    """
    for gap in gaps.end():
        if gap.checkpoint_id is None and gap.parent_id < last:
            continue
        found = await saver.scan(gap.thread_id, gap.ns, before=_after(gap.parent_id), limit=1)
        if not found or found[0].checkpoint_id != gap.parent_id:
            await check_gaps(saver, [gap])


async def _fetch(saver: SaverPort, listed: _NamespaceRows, base_id: CheckpointId) -> None:
    """Read all rows of a base, and the rows that the base itself is read with."""
    reader = listed.reader
    listed.bases.add(base_id)
    rows, records = await saver.segment(reader.thread_id, reader.ns, base_id)
    if base_id not in reader.rows and all(row.checkpoint_id != base_id for row in rows):
        # The base is a snapshot: its chain has the snapshots before it too.
        chain = await saver.read(reader.thread_id, reader.ns, base_id)
        if chain is None:
            return  # it was pruned meanwhile: no row has this base any more
        reader.add(chain.rows)
    reader.add(rows)
    for record in records:
        listed.records.setdefault(record.checkpoint_id, []).append(record)


class _NamespaceRows(NamedTuple):
    """The rows of a namespace that a listing has read, their records, and the bases whose rows are complete."""

    reader: ChainReader
    records: dict[CheckpointId, list[TaskRecord]]
    bases: set[CheckpointId]


def _after(checkpoint_id: CheckpointId) -> CheckpointId:
    """Return the next UUID: a bound before which this checkpoint is listed, and no greater one."""
    digits = f"{int(checkpoint_id.replace('-', ''), 16) + 1:032x}"
    return CheckpointId("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def named(config: Mapping[str, Any] | str) -> tuple[str, str, CheckpointId | None]:
    """Return thread, namespace and checkpoint of a config that must name a thread.

    Args:
        config: a config, or a thread id.

    Returns:
        The thread's id, the namespace ("" if the config has none), and the checkpoint's id or None.

    Raises:
        ValueError: the config has no thread id.
    """
    thread_id, ns, checkpoint_id = address(config)
    if thread_id is None:
        raise ValueError("config has no thread_id: pass {'configurable': {'thread_id': ...}} or the thread's id")
    return thread_id, ns or "", checkpoint_id


def address(config: Mapping[str, Any] | str) -> tuple[str | None, str | None, CheckpointId | None]:
    """Return thread, namespace and checkpoint that a config names; None for each that it does not.

    Args:
        config: a config, or a thread id.
    """
    if isinstance(config, str):
        return id_text(config), None, None
    known = config.get("configurable") or {}
    thread_id, ns, checkpoint_id = known.get("thread_id"), known.get("checkpoint_ns"), known.get("checkpoint_id")
    return None if thread_id is None else id_text(thread_id), ns, checkpoint_id


ERROR = "__error__"
"""The channel under which pending writes show a task's failure."""

INTERRUPT = "__interrupt__"
"""The channel under which pending writes show the questions that a task has asked."""


def tuple_of(reader: ChainReader, row: CheckpointRow, records: Sequence[TaskRecord], codec: Codec) -> CheckpointTuple:
    """Return a checkpoint as users get it.

    Args:
        reader: can restore its state.
        row: its row.
        records: its records.
        codec: decodes the values.

    Raises:
        CorruptCheckpointError: a row, a record or a value is damaged.
        UnknownTypeError: a value's type is not registered.
    """
    state = reader.state(row.checkpoint_id)
    checkpoint: Checkpoint = state.decode(row.checkpoint_id, codec)
    where, values = f"thread {reader.thread_id!r}, checkpoint {row.checkpoint_id}", checkpoint["channel_values"]
    writes: list[tuple[TaskId, str, Any]] = []
    for record in records:
        result = read_record(record, reader.thread_id)
        for channel, data in result.writes:
            value = codec.decode(data, channel=channel)
            if channel == SENDS:
                (value,) = filled_sends([value], values.__getitem__, where)
            writes.append((record.task_id, channel, value))
        if result.error is not None:
            kind, message, _ = result.error
            writes.append((record.task_id, ERROR, f"{kind}({message!r})"))
        if asked := questions_of(result):
            writes.append((record.task_id, INTERRUPT, [_question(result, key, data, codec) for key, data in asked]))

    def config(checkpoint_id: CheckpointId) -> dict[str, Any]:
        return {
            "configurable": {"thread_id": reader.thread_id, "checkpoint_ns": row.ns, "checkpoint_id": checkpoint_id}
        }

    metadata: CheckpointMetadata = row.metadata  # type: ignore[assignment]  # a stored dict, checked when written
    return CheckpointTuple(
        config=config(row.checkpoint_id),
        checkpoint=checkpoint,
        metadata=metadata,
        parent_config=None if row.parent_id is None else config(row.parent_id),
        pending_writes=tuple(writes),
    )


def _question(result: TaskResult, key: str, data: bytes, codec: Codec) -> object:
    schema = result.schemas.get(key)
    fields = {
        "value": codec.decode(data, channel="interrupt()"),
        "id": key,
        "response_schema": None if schema is None else codec.decode(schema, channel="response_schema"),
    }
    return codec.runtime_object("pregel_async.Interrupt", fields)
