"""Keep the values of untracked keys out of stored sends, inputs and events.

The value of an untracked key is never stored (a connection, a secret), and a send may carry it to the node:
`Send("work", {**state, "item": item})`. A mark is stored instead of the value. A run that is resumed in another process
finds the mark, and takes the value that its own state has for the key.

An input is stored before the superstep that writes it to the state. No mark is stored there: the state of a run that is
resumed lacks untracked keys in any case. A stored event has no mark either: a reader that reconnects gets the chunk
without the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from checkpoint_savers.sharing import parts_of, with_parts

from ..types import START, Send
from .board import Board
from .program import Program, Write


class NotStored(msgspec.Struct, frozen=True):
    """Replaces the value of an untracked key in a stored send.

    Attributes:
        key: the key.
    """

    key: str


def storable(send: Send, untracked: frozenset[str]) -> Send:
    """Return a send as it is stored: with a mark for each value of an untracked key in its argument.

    Args:
        send: the send.
        untracked: the graph's untracked keys.
    """
    found = {name: NotStored(name) for name, value in parts_of(send.arg) if name in untracked and value is not None}
    return msgspec.structs.replace(send, arg=with_parts(send.arg, found)) if found else send


def storable_input(given: Any, untracked: frozenset[str]) -> Any:
    """Return a call's input as it is stored: without its untracked keys.

    Args:
        given: the start channel's value. If it is no mapping, it has no keys and is returned as it is.
        untracked: the graph's untracked keys.
    """
    if not isinstance(given, dict) or untracked.isdisjoint(given):
        return given
    return {key: value for key, value in given.items() if key not in untracked}


def without_untracked(value: Any, untracked: frozenset[str]) -> Any:
    """Return a state or a node's input as a stored event has it: without the values of untracked keys.

    Args:
        value: a mapping; or an object of the state's class, whose fields become None.
        untracked: the graph's untracked keys.
    """
    if isinstance(value, dict):
        return {key: item for key, item in dict.items(value) if key not in untracked}
    held = {name: None for name, item in parts_of(value) if name in untracked and item is not None}
    return with_parts(value, held) if held else value


def missing(arg: Any) -> list[str]:
    """Return the keys of a send's argument that have a mark instead of a value, sorted."""
    return sorted(name for name, value in parts_of(arg) if type(value) is NotStored)


def filled(arg: Any, values: Mapping[str, Any]) -> Any:
    """Return a send's argument with the marks replaced, each by the value of its name."""
    return with_parts(arg, values)


def refill(program: Program, board: Board, writes: Sequence[Write]) -> None:
    """Put the untracked values of an input on the board of a run that continues from a stored state.

    A subgraph continues with the state that an earlier attempt at its node stored, and the node passes the input again:
    the stored state lacks the untracked values, the input has them.

    Args:
        program: the graph.
        board: the restored board; changed in place. Keys that hold a value keep it.
        writes: the writes of the input, or of a command that is the input; owned.
    """
    start = program.nodes.get(START)
    given: dict[str, Any] = {}
    for name, item in writes:
        # The hidden start's own reading, so that the keys get the values of the first run: None, too. The value of
        # another channel has no keys of the state.
        parts = [(name, item)] if start is None or name != START else start.writes(item)
        given.update({key: part for key, part in parts if key in program.untracked})
    for name, value in given.items():
        if name not in board.values:
            channel = board.channels[name] = program.channels[name].fresh()
            channel.update([value])
            # Without an entry in `updated`: nodes that the key triggers have run in the earlier attempt.
            board.versions[name] = board.clock
            board.values[name] = channel.get()
