"""Give ids to messages without one in a fold, derived from the task that wrote them. See `_message_ids`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from .._message_ids import FOLD, derive_message_id, fingerprint
from ..channels import BaseChannel
from ..messages import messages_without_id
from .ids import outside_id
from .program import Write
from .task import Task

Written = tuple[Callable[[], str], Sequence[Write]]
"""Writes, and a function that returns the base of the ids of messages in them.

A function, because most folds meet no message without an id, and the base is a hash.
"""


class FoldMessageIds:
    """Gives ids to messages without one in a superstep's fold, which folds one channel after the other."""

    # A reducer gets two values and may be any function that calls `add_messages`, for example one that trims the list,
    # or that gets all writes of a superstep at once. So `add_messages` cannot know the writer of a message. Messages
    # are found by their content instead: of equal ones, the first written in plan order is the first folded. The id of
    # a message that no task has written (the reducer made it, or the list had it) is derived from the superstep.

    __slots__ = ("_channel", "_contents", "_extra", "_otherwise", "_waiting", "_written")

    def __init__(self, written: Sequence[Written], otherwise: Callable[[], str]) -> None:
        """Begin a fold.

        Args:
            written: the writes, in plan order.
            otherwise: returns the base of the ids of messages that no task has written.
        """
        self._written = written
        self._otherwise = otherwise
        # Of the channel that is being folded:
        self._channel = ""
        self._waiting: dict[str, deque[str]] | None = None  # by content, the ids of written messages not folded yet
        self._contents: dict[int, str] = {}  # by the `id()` of a written message, its content: computed once
        self._extra = Counter[str]()  # by content, the number of messages that no task has written

    def fold(self, channel: BaseChannel[Any, Any, Any], values: Sequence[Any]) -> bool:
        """Fold values into a channel. Return True if the channel has changed."""
        self._channel = channel.key
        self._waiting = None
        self._contents = {}
        self._extra = Counter()
        token = FOLD.set(self)
        try:
            return channel.update(values)
        finally:
            FOLD.reset(token)

    def message_id(self, message: Any) -> str:
        if self._waiting is None:
            self._waiting = self._names()
        content = self._contents.get(id(message))
        if content is None:
            content = fingerprint(message)
        names = self._waiting.get(content)
        if names:
            return names.popleft()
        self._extra[content] += 1
        return derive_message_id(self._otherwise(), self._channel, -self._extra[content], 0, content)

    def _names(self) -> dict[str, deque[str]]:
        """Return the ids for all messages that were written to the channel without one, by content."""
        names: dict[str, deque[str]] = {}
        for base, writes in self._written:
            nth = 0
            for channel, value in writes:
                if channel != self._channel:
                    continue
                for position, item, message in messages_without_id(value):
                    content = fingerprint(message)
                    if (
                        message is item
                    ):  # otherwise `messages_without_id` made it just now, and its address may be reused
                        self._contents[id(item)] = content
                    made = derive_message_id(base(), channel, nth, position, content)
                    names.setdefault(content, deque()).append(made)
                nth += 1
        return names


def fold_message_ids(
    tasks: Sequence[Task], writes: Sequence[Sequence[Write]], scope: tuple[str, str], step: int, edit: int = 0
) -> FoldMessageIds:
    """Return the ids for the messages in a superstep's fold.

    Args:
        tasks, writes: as in `superstep.update`.
        scope, step, edit: as in `ids.outside_id`.
    """
    outside = partial(outside_id, *scope, step, edit)
    # Writes beyond those of the tasks are an input's or an edit's.
    bases: list[Callable[[], str]] = [*(task.written_as for task in tasks), *repeat(outside, len(writes) - len(tasks))]
    return FoldMessageIds(list(zip(bases, writes, strict=False)), outside)
