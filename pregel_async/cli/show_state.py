"""Print a checkpoint, its state, or how two states differ, for `threads show`."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from checkpoint_savers import BaseCheckpointSaver

from .database import Database
from .formatting import escape, print_json, print_value
from .state_values import CheckpointView, Difference, differences, read_checkpoint


def print_checkpoint(
    database: Database, thread_id: str, checkpoint_id: str | None, *, values: bool, as_json: bool
) -> None:
    """Print a checkpoint on standard output.

    Args:
        database: where it is.
        thread_id: its thread.
        checkpoint_id: its id; None for the newest.
        values: with its state.
        as_json: print JSON.

    Raises:
        NotStoredError: there is no such checkpoint.
    """
    found = database.run(lambda saver: read_checkpoint(saver, thread_id, checkpoint_id))
    fields = {name: getattr(found, name) for name in found.__struct_fields__ if values or name != "values"}
    if as_json:
        print_json(fields, indent=2)
        return
    state: Any = fields.pop("values", None)
    for name, value in fields.items():
        print(f"{name.replace('_', ' ')}: {escape(str(value))}")
    if values:
        print_value(state)


def print_differences(database: Database, thread_id: str, pair: tuple[str, str], *, as_json: bool) -> None:
    """Print the places at which the states of two checkpoints differ: added, removed and changed values.

    Args:
        database: where they are.
        thread_id: their thread.
        pair: the two checkpoints.
        as_json: print JSON: a list of objects with `path`, `before` and `after`.

    Raises:
        NotStoredError: there is no such checkpoint.
    """

    async def read(saver: BaseCheckpointSaver) -> tuple[CheckpointView, CheckpointView]:
        return await read_checkpoint(saver, thread_id, pair[0]), await read_checkpoint(saver, thread_id, pair[1])

    before, after = database.run(read)
    found = differences(before.values, after.values)
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found], indent=2)
        return
    for each in found:
        print(_line(each))


def _line(found: Difference) -> str:
    path = escape(".".join(map(str, found.path)))
    if found.before is msgspec.UNSET:
        return f"+ {path}: {json.dumps(found.after)}"
    if found.after is msgspec.UNSET:
        return f"- {path}: {json.dumps(found.before)}"
    return f"~ {path}: {json.dumps(found.before)} -> {json.dumps(found.after)}"
