"""Make a board of a stored state, with the graph's current code.

A stored key that the code does not have any more stays stored, with one warning. A new key starts unwritten. A state
that does not fit the code is refused before anything runs.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, get_origin

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import SENDS
from checkpoint_savers.errors import StoredTypeChangedError, UnknownTypeError
from checkpoint_savers.patches import data_of, decode
from checkpoint_savers.sharing import filled_sends

from ..._core.board import Board
from ..._core.fits import fits
from ..._core.program import BRANCH, JOIN, Program
from ...channels import BaseChannel, LastValue
from ...channels.reduced import ReducedValue
from ...errors import GraphChangedError, UnknownStoredKeyWarning
from ...types import END, RESERVED, START

UNFIT = "[~]"
"""Follows the kind of a channel whose value does not fit its annotation.

Nodes' writes are not checked against annotations, so such a value may be stored. Without the mark, it would look as if
the graph had changed.
"""


def kind_of(channel: BaseChannel[Any, Any, Any], value: Any = None) -> str:
    """Return a channel's kind as it is stored. A reducer's includes the type that it folds into, if that is built in.

    Args:
        channel: the channel.
        value: the channel's value.
    """
    if type(channel) is LastValue:
        fitting = type(value) is channel.typ or fits(channel.typ, value)
        return channel.kind if fitting else channel.kind + UNFIT
    if isinstance(channel, ReducedValue):
        kind = get_origin(channel.typ) or channel.typ
        if isinstance(kind, type) and kind.__module__ == "builtins":
            return f"{channel.kind}[{kind.__qualname__}]"
    return channel.kind


def restore(program: Program, state: EncodedState, step: int, codec: Codec, *, thread_id: str) -> Board:
    """Return the board of a stored state.

    Args:
        program: the graph.
        state: the stored state.
        step: the superstep that made it.
        codec: decodes the values.
        thread_id: the thread, for messages.

    Raises:
        GraphChangedError: a channel's kind or type has changed, or the node of a pending task does not exist any more.
        StoredTypeChangedError: a stored object does not fit its class any more.
        CorruptCheckpointError: a value cannot be decoded.
    """
    stored: dict[str, Any] = {}
    for name, data in state.values.items():
        channel = program.channels.get(name)
        if channel is None:
            if name.startswith(BRANCH):
                node = name.removeprefix(BRANCH)
                raise GraphChangedError(
                    thread_id, node, f"a task of node {node!r} is pending, and there is no such node"
                )
            if name.startswith(JOIN) and _is_complete(name, decode(data, codec, channel=name)):
                node = name.rpartition(":")[2]
                raise GraphChangedError(
                    thread_id, node, f"a task of node {node!r} is pending, through edges that do not exist any more"
                )
            warn_of_unknown(program, name, thread_id)
            continue
        kind = state.kinds.get(name, "")
        if kind != channel.kind and not _same_kind(kind, kind_of(channel)):
            reason = f"channel {name!r} was a {kind or None} and is a {kind_of(channel)}"
            raise GraphChangedError(thread_id, name, reason)
        try:
            value = decode(data, codec, channel=name)  # no copy needed: readers of a board get isolated values
        except (StoredTypeChangedError, UnknownTypeError) as error:
            error.add_note(f"channel {name!r} of thread {thread_id!r} holds it")
            raise
        if type(channel) is LastValue and not kind.endswith(UNFIT) and not fits(channel.typ, value):
            reason = f"channel {name!r} holds a {type(value).__name__}, which does not fit {_named(channel.typ)}"
            raise GraphChangedError(thread_id, name, reason)
        stored[name] = value
    if stored.get(SENDS):

        def value_of(name: str) -> Any:
            """Return a channel's value, also if the graph does not have the channel any more."""
            return stored[name] if name in stored else decode(state.values[name], codec, channel=name)

        stored[SENDS] = filled_sends(stored[SENDS], value_of, f"thread {thread_id!r}")
    for send in stored.get(SENDS, ()):
        if send.node not in program.nodes:
            reason = f"a send to node {send.node!r} is pending, and there is no such node"
            raise GraphChangedError(thread_id, send.node, reason)
    return Board.restore(
        program,
        step=step,
        clock=state.clock,
        stored=stored,
        versions=state.versions,
        seen=state.seen,
        ran=state.ran,
    )


def is_unknown(program: Program, name: str) -> bool:
    """Return True if a stored channel is a state key that the graph does not have any more."""
    # Not state keys: the channels of removed edges, and the empty name that separates two updates (`BETWEEN`).
    if not name or name in program.channels or name in (START, END) or name in RESERVED:
        return False
    return not name.startswith((BRANCH, JOIN, "__pregel_"))


def warn_of_unknown(program: Program, name: str, thread_id: str) -> None:
    """Warn about a stored key that the graph does not have, once per graph and key."""
    if is_unknown(program, name) and name not in program.warned:
        program.warned.add(name)
        warnings.warn(UnknownStoredKeyWarning(thread_id, program.name, name), stacklevel=2)


def unknown_values(program: Program, state: EncodedState, codec: Codec) -> dict[str, Any]:
    """Return the stored values of keys that the graph does not have, decoded as far as their classes are known.

    Raises:
        CorruptCheckpointError: a value is damaged.
    """
    return {
        name: codec.decode_stored(data_of(value), channel=name)
        for name, value in state.values.items()
        if is_unknown(program, name)
    }


def _same_kind(stored: str, now: str) -> bool:
    """Return True if a stored kind is the channel's. Types are compared only if both kinds include one."""
    (kind, _, type_then), (other, _, type_now) = stored.partition("["), now.partition("[")
    return kind == other and (not type_then or not type_now or type_then == type_now)


def _is_complete(name: str, stored: Any) -> bool:
    """Return True if a barrier has seen all nodes in its name."""
    # The names are joined with a plus; a plus in a node's name is escaped with a backslash.
    listed = name.removeprefix(JOIN).rpartition(":")[0]
    waits_for = 1 + len(re.findall(r"(?<!\\)(?:\\\\)*\+", listed))
    names = stored[0] if isinstance(stored, tuple) else stored
    return isinstance(names, list) and len(names) == waits_for


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)
