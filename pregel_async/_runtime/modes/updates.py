"""`updates`: what each task wrote, as it finishes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ..._core.isolation import isolate
from ..._core.program import Write
from ..._core.task import Finished, Task
from .mode import Mode


class Updates(Mode):
    """`{node: update}`; a result that was recorded earlier carries `"__metadata__": {"cached": True}`."""

    name: ClassVar[str] = "updates"

    def finished(self, task: Task, outcome: Finished) -> Iterable[Any]:
        if task.node.hidden:
            return
        chunk: dict[str, Any] = {task.node.name: as_update(outcome.writes, self.view.shown)}
        if outcome.replayed:
            chunk["__metadata__"] = {"cached": True}
        yield chunk


def as_update(writes: Sequence[Write], shown: str | tuple[str, ...]) -> Any:
    """A task's writes as the update that its node returned.

    Returns:
        The bare value when one channel is shown; else a mapping of the channels written, a list of one-entry mappings
        when a channel was written more than once, or None when none of them was written.
    """
    if isinstance(shown, str):
        values = [isolate(value) for name, value in writes if name == shown]
        return values if len(values) > 1 else values[0] if values else None
    mine = [(name, isolate(value)) for name, value in writes if name in shown]
    update = dict(mine)
    if len(update) < len(mine):
        return [{name: value} for name, value in mine]
    return update or None
