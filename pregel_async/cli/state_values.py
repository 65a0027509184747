"""The state of a thread at a checkpoint, and the differences between two, for the commands that show values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader, EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import timestamp
from checkpoint_savers.patches import data_of
from checkpoint_savers.records import CheckpointId, is_checkpoint_id

from .formatting import Json, as_json
from .target import NotStoredError

INTERNAL = ("__", "branch:to:", "join:")
"""How the names of channels begin that are no keys of the state."""


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, as the commands print it.

    Attributes:
        checkpoint_id: its id.
        parent_id: the id of the checkpoint before; None for the first.
        step: the number of its superstep.
        source: why it was made, as in its metadata.
        time: when it was made.
        values: the state.
    """

    checkpoint_id: str
    parent_id: str | None
    step: int
    source: str
    time: str
    values: dict[str, Any]


def state_values(state: EncodedState, codec: Codec) -> dict[str, Any]:
    """Return the keys of a state, for display. Objects of classes that the codec does not have become `StoredObject`s.

    Args:
        state: the state.
        codec: decodes the values.

    Raises:
        CorruptCheckpointError: a value is damaged.
    """
    return {
        name: codec.decode_stored(data_of(value), channel=name)
        for name, value in sorted(state.values.items())
        if not name.startswith(INTERNAL)
    }


async def read_checkpoint(saver: BaseCheckpointSaver, thread_id: str, checkpoint_id: str | None) -> CheckpointView:
    """Read a checkpoint of a thread's root graph. No code of the graph is needed.

    Args:
        saver: stores the thread.
        thread_id: the thread.
        checkpoint_id: the checkpoint; None for the newest one of the current branch.

    Raises:
        NotStoredError: there is no such checkpoint.
        CorruptCheckpointError: stored bytes are damaged.
    """
    missing = f"thread {thread_id!r} has no checkpoint" + ("" if checkpoint_id is None else f" {checkpoint_id!r}")
    if checkpoint_id is not None and not is_checkpoint_id(checkpoint_id):
        raise NotStoredError(missing)
    chain = await saver.read(thread_id, "", None if checkpoint_id is None else CheckpointId(checkpoint_id))
    if chain is None:
        raise NotStoredError(missing)
    row = chain.rows[-1]
    state = ChainReader(thread_id, "", chain.rows).state(row.checkpoint_id)
    return CheckpointView(
        checkpoint_id=row.checkpoint_id,
        parent_id=row.parent_id,
        step=row.step,
        source=str(row.metadata.get("source", "")),
        time=timestamp(state.ts),
        values=state_values(state, saver.codec),
    )


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place at which two states differ.

    Attributes:
        path: the keys, and positions in lists from 0, that lead to the place.
        before: the value in the first state; unset if the place is missing there.
        after: the value in the second state; unset if the place is missing there.
    """

    path: tuple[str | int, ...]
    before: Json | msgspec.UnsetType = msgspec.UNSET
    after: Json | msgspec.UnsetType = msgspec.UNSET


def differences(before: Any, after: Any) -> list[Difference]:
    """Return the places at which two states differ, inside of mappings and lists.

    Args:
        before: the first state.
        after: the second state.
    """
    return list(_differences((), as_json(before), as_json(after)))


def _differences(path: tuple[str | int, ...], before: Json, after: Json) -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _at((*path, key), before.get(key, msgspec.UNSET), after.get(key, msgspec.UNSET))
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            was = before[index] if index < len(before) else msgspec.UNSET
            now = after[index] if index < len(after) else msgspec.UNSET
            yield from _at((*path, index), was, now)
    elif before != after or type(before) is not type(after):
        yield Difference(path=path, before=before, after=after)


def _at(
    path: tuple[str | int, ...], before: Json | msgspec.UnsetType, after: Json | msgspec.UnsetType
) -> Iterator[Difference]:
    if before is msgspec.UNSET or after is msgspec.UNSET:
        yield Difference(path=path, before=before, after=after)
    else:
        yield from _differences(path, before, after)
