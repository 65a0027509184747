"""List the checkpoints of a thread, for the command `history`. No stored value is decoded unless a graph is given."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.deltas import read_record, timestamp
from checkpoint_savers.history import walk

from ..types import START, RunnableConfig, StateSnapshot
from .database import Database
from .formatting import MAX_TEXT, as_json, count_names, escape, format_columns, print_json
from .state_values import state_values
from .target import Target, attach

HEAD = ("step", "source", "ran", "next", "time", "checkpoint", "notes", "values")


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints to list.

    Attributes:
        thread: the thread's id.
        limit: how many checkpoints at most; None for all.
        metadata: entries of the checkpoints' metadata, all of which must be equal.
        checkpoint: begin with this one; None for the newest.
        configurable: further keys of the config, such as `checkpoint_ns`.
        values: read the states, too.
    """

    thread: str
    limit: int | None = None
    metadata: dict[str, Any] = {}
    checkpoint: str | None = None
    configurable: dict[str, Any] = {}
    values: bool = False


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, as the command prints it.

    Attributes:
        step: the number of its superstep.
        source: why it was made, as in its metadata.
        ran: the nodes of its superstep, in plan order.
        next: the nodes that run in the next superstep; None if no graph was given to compute them.
        time: when it was made.
        checkpoint_id: its id.
        parent_id: the id of the checkpoint before; None for the first.
        recorded: how many tasks of the next superstep were recorded before that superstep ended.
        errors: the failures of the next superstep, as (node, error).
        metadata: the caller's own keys, and the run's id.
        values: the state; None if it was not asked for.
    """

    step: int
    source: str
    ran: tuple[str, ...]
    next: tuple[str, ...] | None
    time: str
    checkpoint_id: str
    parent_id: str | None
    recorded: int
    errors: tuple[tuple[str, str], ...]
    metadata: dict[str, Any]
    values: Any = None


def read_history(target: Target | None, query: HistoryQuery, database: Database) -> list[HistoryRow]:
    """Read a thread's checkpoints, newest first.

    Args:
        target: the graph that computes the nodes that run next, and reads values as objects of its classes; None to
            leave them out, and to read objects as their fields.
        query: which checkpoints.
        database: where they are.

    Returns:
        A row for each checkpoint.

    Raises:
        NotStoredError: there is no such database.
        UsageError: the target is a function that does not return a graph.
        PregelError: the database cannot be read, or its content is invalid.
    """
    return database.run(lambda saver: _read_rows(saver, target, query))


async def _read_rows(saver: BaseCheckpointSaver, target: Target | None, query: HistoryQuery) -> list[HistoryRow]:
    rows: list[HistoryRow] = []
    snapshots: dict[str, StateSnapshot[Any]] = {}
    if target is not None:
        config: RunnableConfig = {"configurable": {**query.configurable, "thread_id": query.thread}}
        limit = query.limit if query.checkpoint is None else None
        found = attach(target, saver).aget_state_history(config, filter=query.metadata or None, limit=limit)
        async for each in found:
            snapshots[each.config.get("configurable", {})["checkpoint_id"]] = each
    ns = str(query.configurable.get("checkpoint_ns", ""))
    limit = query.limit if query.checkpoint is None else None
    async for header, reader, records in walk(saver, query.thread, ns, limit=limit, filter=query.metadata or None):
        if query.checkpoint is not None and not rows and header.checkpoint_id != query.checkpoint:
            continue
        state = reader.state(header.checkpoint_id)
        entries = [read_record(record, query.thread) for record in records]
        snapshot = snapshots.get(header.checkpoint_id)
        values: Any = None
        if query.values:
            values = state_values(state, saver.codec) if snapshot is None else snapshot.values
        rows.append(
            HistoryRow(
                step=header.step,
                source=str(header.metadata.get("source", "")),
                ran=tuple(name for name in state.ran if name != START),
                next=None if target is None else _next(snapshot),
                time=timestamp(state.ts),
                checkpoint_id=header.checkpoint_id,
                parent_id=header.parent_id,
                recorded=sum(entry.error is None and entry.routed for entry in entries),
                errors=tuple((entry.name, ": ".join(entry.error[:2])) for entry in entries if entry.error),
                metadata={k: v for k, v in header.metadata.items() if k not in ("source", "step", "parents")},
                values=values,
            )
        )
        if len(rows) == query.limit:
            break
    return rows


def _next(snapshot: StateSnapshot[Any] | None) -> tuple[str, ...]:
    return () if snapshot is None else tuple(name for name in snapshot.next if name != START)


def print_rows(rows: list[HistoryRow], *, as_json: bool, with_values: bool = False) -> None:
    """Print checkpoints on standard output: as a table on a terminal, as aligned columns elsewhere.

    Args:
        rows: the checkpoints, newest first.
        as_json: print JSON instead.
        with_values: print the states, too.
    """
    if as_json:
        # Without the key `values`, which would be null, if the states were not read.
        shown = [{name: getattr(row, name) for name in row.__struct_fields__ if name != "values"} for row in rows]
        print_json(rows if with_values else shown, indent=2)
        return
    with_next = any(row.next is not None for row in rows)
    closed = {row.parent_id for row in rows}
    head = [name for name in HEAD if (with_next or name != "next") and (with_values or name != "values")]
    cells = [[_cell(row, name, is_open=row.checkpoint_id not in closed) for name in head] for row in rows]
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        print("\n".join(format_columns(head, cells)))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(name, no_wrap=name in ("step", "checkpoint"), justify="right" if name == "step" else "left")
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)


def _cell(row: HistoryRow, name: str, *, is_open: bool) -> str:
    match name:
        case "step":
            return str(row.step)
        case "source":
            return row.source
        case "ran":
            return count_names(row.ran)
        case "next":
            return count_names(row.next or ())
        case "time":
            return datetime.fromisoformat(row.time).astimezone().isoformat(" ", "seconds")
        case "checkpoint":
            return row.checkpoint_id
        case "values":
            return _short(row.values)
        case _:
            notes = [f"{node}: {error}" if node else error for node, error in row.errors]
            if row.recorded and is_open:
                notes.append(f"{row.recorded} recorded")
            return " ".join("; ".join(notes).split())


def _short(values: Any) -> str:
    text = json.dumps(as_json(values))
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
