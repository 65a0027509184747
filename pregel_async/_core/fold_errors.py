"""Add to the error of a fold the channel, the superstep, and the nodes that wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, repeat

from checkpoint_savers.errors import annotate

from ..errors import ConcurrentUpdateError, InvalidUpdateError, PregelError
from .program import Write
from .task import Task


def annotate_fold_error(
    error: Exception, channel: str, tasks: Sequence[Task], writes: Sequence[Sequence[Write]], step: int
) -> None:
    """Add a note to a fold's error: the channel, the superstep and the writers.

    A `ConcurrentUpdateError` also gets the writers' names, and an `InvalidUpdateError` the channel.

    Args:
        error: the error.
        channel: the channel whose fold failed.
        tasks: the superstep's tasks.
        writes: their writes, followed by writes from outside.
        step: the superstep's number.
    """
    by = _writers(channel, tasks, writes)
    if isinstance(error, ConcurrentUpdateError):
        error.name_writers(by)
    if isinstance(error, InvalidUpdateError) and error.channel is None:
        error.channel = channel
    what = "" if isinstance(error, PregelError) else "the reducer of "
    annotate(
        error,
        f"raised by {what}channel {channel!r} in superstep {step}, on writes of {', '.join(by)}. "
        "The superstep was not applied.",
    )


def _writers(channel: str, tasks: Sequence[Task], writes: Sequence[Sequence[Write]]) -> Counter[str]:
    """Return how often each node wrote to a channel, in plan order."""
    found = Counter[str]()
    for by, written in zip(chain((repr(task.node.name) for task in tasks), repeat("the input")), writes, strict=False):
        found[by] += sum(name == channel for name, _ in written)
    return +found  # without the nodes that did not write to it
