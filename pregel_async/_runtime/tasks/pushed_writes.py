"""Writes that a node's code makes while it runs, besides its result: `push_write`."""

from __future__ import annotations

import threading
from typing import Any, Final

from ..._core.ownership import own
from ...errors import InvalidUpdateError
from .context import AttemptContext

_PUSHING: Final = threading.Lock()
"""Held while an attempt appends to `AttemptContext.pushed`. One for all, as it is held for a moment only."""


def push_write(attempt: AttemptContext, what: str, key: str, value: Any) -> None:
    """Write a value to a state key, before the writes of the node's result. A failed attempt writes nothing.

    Args:
        attempt: the running attempt.
        what: names the operation in messages.
        key: the state key.
        value: the value.

    Raises:
        InvalidUpdateError: the graph has no such key, or a called task is running, whose caller writes the state.
    """
    node, program = attempt.task.node.name, attempt.graph.program
    advice = "pass state_key=None to show it only"
    if attempt.task.is_called:
        raise InvalidUpdateError(
            f"{what} was called in task {node!r}, which writes no state: its caller gets what it returns. Return the "
            f"message and let the node write it, or {advice}",
            node=node,
        )
    if key not in program.keys:
        raise InvalidUpdateError(
            f"{what} in node {node!r} writes the key {key!r}, and graph {program.name!r} has no such key; it has "
            f"{', '.join(sorted(program.keys))}. Name one of them as state_key=, or {advice}",
            channel=key,
            node=node,
        )
    write = key, own(value, key)
    with _PUSHING:  # worker threads of the node may push at the same time
        attempt.pushed = (*attempt.pushed, write)
