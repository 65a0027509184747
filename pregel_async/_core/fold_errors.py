"""What the error of a fold says of the superstep: in which channel it was, and which nodes wrote to it."""

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
    """Add to an error where the fold failed: a note; and to one of several writes, the names of the writers."""
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
    """How often each node wrote to a channel; in plan order."""
    found = Counter[str]()
    for by, written in zip(chain((repr(task.node.name) for task in tasks), repeat("the input")), writes, strict=False):
        found[by] += sum(name == channel for name, _ in written)
    return +found
