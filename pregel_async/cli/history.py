"""List the checkpoints of a thread, for the command `history`. No stored value is decoded unless a graph is given."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
from rich.console import Console
from rich.table import Table

from checkpoint_savers import SqliteSaver
from checkpoint_savers.deltas import read_record, timestamp
from checkpoint_savers.history import walk

from ..types import START
from .formatting import count_names, escape, format_columns, print_json
from .target import Target, attach

HEAD = ("step", "source", "ran", "next", "time", "checkpoint", "notes")


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


def read_history(target: Target | None, *, thread: str, db: str, limit: int | None) -> list[HistoryRow]:
    """Read a thread's checkpoints, newest first.

    Args:
        target: the graph that computes the nodes that run next; None to leave them out.
        thread: the thread's id.
        db: the SQLite file.
        limit: how many checkpoints at most; None for all.

    Returns:
        A row for each checkpoint.

    Raises:
        UsageError: the target is a function that does not return a graph.
        PregelError: the database cannot be read, or its content is invalid.
    """
    return anyio.run(_read_rows, target, thread, db, limit)


async def _read_rows(target: Target | None, thread: str, db: str, limit: int | None) -> list[HistoryRow]:
    rows: list[HistoryRow] = []
    async with SqliteSaver.from_conn_string(db) as saver:
        upcoming: dict[str, tuple[str, ...]] = {}
        if target is not None:
            async for snapshot in attach(target, saver).aget_state_history(thread, limit=limit):
                shown = tuple(name for name in snapshot.next if name != START)
                upcoming[snapshot.config.get("configurable", {})["checkpoint_id"]] = shown
        async for header, reader, records in walk(saver, thread, "", limit=limit):
            state = reader.state(header.checkpoint_id)
            entries = [read_record(record, thread) for record in records]
            rows.append(
                HistoryRow(
                    step=header.step,
                    source=str(header.metadata.get("source", "")),
                    ran=tuple(name for name in state.ran if name != START),
                    next=None if target is None else upcoming.get(header.checkpoint_id, ()),
                    time=timestamp(state.ts),
                    checkpoint_id=header.checkpoint_id,
                    parent_id=header.parent_id,
                    recorded=sum(entry.error is None and entry.routed for entry in entries),
                    errors=tuple((entry.name, ": ".join(entry.error[:2])) for entry in entries if entry.error),
                    metadata={k: v for k, v in header.metadata.items() if k not in ("source", "step", "parents")},
                )
            )
    return rows


def database_exists(db: str) -> bool:
    """Return True if a database exists, without opening it, because opening would create it.

    Args:
        db: the path of an SQLite file, or a `file:` URI.

    Returns:
        Whether the file exists. Every URI counts as existing.
    """
    return db.startswith("file:") or Path(db).exists()


def print_rows(rows: list[HistoryRow], *, as_json: bool) -> None:
    """Print checkpoints on standard output: as a table on a terminal, as aligned columns elsewhere.

    Args:
        rows: the checkpoints, newest first.
        as_json: print JSON instead.
    """
    if as_json:
        print_json(rows, indent=2)
        return
    with_next = any(row.next is not None for row in rows)
    closed = {row.parent_id for row in rows}
    head = [name for name in HEAD if with_next or name != "next"]
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
        case _:
            notes = [f"{node}: {error}" if node else error for node, error in row.errors]
            if row.recorded and is_open:
                notes.append(f"{row.recorded} recorded")
            return " ".join("; ".join(notes).split())
