"""`messages`: chunks of messages while models generate them, and the messages that nodes return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ...._core.board import Board
from ...._core.isolation import isolate
from ...._core.ownership import own
from ...._core.program import RETURN
from ...._core.task import Finished, Task
from ...._message_ids import derive_message_id, fingerprint
from ....channels.reduced import ReducedValue
from ....messages import id_of, messages_in, with_id
from ....types import TAG_NOSTREAM
from ..parts import RawPart
from .mode import Mode, View
from .tasks import metadata_of


class Messages(Mode):
    """Parts `(message or chunk, metadata)`.

    Messages that a node emits are shown at once. Messages that it returns are shown when it has finished, unless any
    graph of the run has shown a message with the same id before, or the graph's state contains one: each message is
    shown once.
    """

    name: ClassVar[str] = "messages"

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._known = set[Any]()  # ids of the state's and the input's messages, and of a node's input: not new
        self._state_is_known = False

    def planned(self, board: Board, tasks: Sequence[Task]) -> Iterable[RawPart]:
        # Only now, after the input was folded: the fold turns strings and pairs into messages, and gives them ids.
        if not self._state_is_known and not tasks[0].node.hidden:
            self._state_is_known = True
            self._known.update(id_of(message) for value in board.values.values() for _, message in messages_in(value))
        return ()

    def began(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        return self.finished(task, outcome)  # adds the input's messages to the known ones

    def emitted(self, task: Task, message: Any, metadata: Mapping[str, Any]) -> Iterable[RawPart]:
        shown_metadata = self._metadata(task, metadata)
        if TAG_NOSTREAM in shown_metadata.get("tags", ()):
            return
        self.view.shown_messages.add(id_of(message))
        yield self.part_of(task, (isolate(own(message)), shown_metadata))

    def finished(self, task: Task, outcome: Finished) -> Iterable[RawPart]:
        known, shown_messages = self._known, self.view.shown_messages
        if task.send >= 0:
            known.update(id_of(message) for _, message in messages_in(task.arg))
        replayed = outcome.replayed and not self.view.reconnects  # a reader that reconnects has discarded it as void
        silent = task.node.hidden or replayed or TAG_NOSTREAM in task.node.tags
        writes = Counter[str]()  # the number of writes to each channel so far
        for channel, value in outcome.writes:
            appends, repeats = self._appends(channel), Counter[str]()
            for index, message in messages_in(value):
                key = id_of(message)
                contents: tuple[str, ...] = ()
                if key is None:
                    content = fingerprint(message)
                    contents = (content,)
                    if appends and not silent and self._was_shown_by_inner(task, content):
                        continue
                    if appends:
                        key = derive_message_id(task.written_as(), channel, writes[channel], index, content)
                    else:
                        key = content if not repeats[content] else f"{content}-{repeats[content] + 1}"
                        repeats[content] += 1
                    message = with_id(message, key)
                if silent:
                    known.add(key)
                elif key not in known and key not in shown_messages:
                    shown_messages.add(key)
                    shown_messages.update(
                        (source, content) for content in contents for source in self._outer_sources(task)
                    )
                    yield self.part_of(task, (isolate(message), self._metadata(task, {})))
            writes[channel] += 1

    # A message without an id is shown with the id that the fold will give it. A channel that appends gives each message
    # an id of its own; but a message that a subgraph or called task of the node has shown, and the node returns, is not
    # shown again. A channel that replaces its value gives no ids. There the content identifies a message, so that a
    # node that returns the state's messages does not show them again.

    def _appends(self, channel: str) -> bool:
        return channel == RETURN or isinstance(self.view.program.channels.get(channel), ReducedValue)

    def _outer_sources(self, task: Task) -> Iterator[tuple[str, Any]]:
        """Yield the callers and outer tasks of a task, as keys of `shown_messages`."""
        if task.is_called:
            yield self.view.checkpoint_ns, task.caller
        parts = self.view.checkpoint_ns.split("|") if self.view.checkpoint_ns else []
        for at in range(len(parts)):
            yield "|".join(parts[: at + 1]), None

    def _was_shown_by_inner(self, task: Task, content: str) -> bool:
        ns = self.view.checkpoint_ns
        namespaces = [task.namespace, task.node.identity]  # without the task's id, for a subgraph that keeps its state
        sources: list[Any] = [(ns, task.path), *((f"{ns}|{each}" if ns else each, None) for each in namespaces)]
        return any((source, content) in self.view.shown_messages for source in sources)

    def _metadata(self, task: Task, metadata: Mapping[str, Any]) -> dict[str, Any]:
        own_ns = task.namespace
        ns = f"{self.view.checkpoint_ns}|{own_ns}" if self.view.checkpoint_ns else own_ns
        mine = metadata_of(task, self.view.metadata)
        given = isolate(own(dict(metadata)))
        # Callbacks of models repeat the tags of the call.
        tags = list(dict.fromkeys([*mine.get("tags", ()), *given.get("tags", ())]))
        return {
            "langgraph_step": task.step,
            "langgraph_node": task.node.name,
            "langgraph_triggers": task.triggers,
            "langgraph_path": task.path,
            "langgraph_checkpoint_ns": ns,
            "checkpoint_ns": ns,
            "thread_id": self.view.thread_id,
            **mine,
            **given,
            **({"tags": tags} if tags else {}),
        }
