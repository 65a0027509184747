"""`custom`: the chunks that nodes write to the stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ...._core.isolation import isolate
from ...._core.ownership import own
from ...._core.task import Task
from ..parts import RawPart
from .mode import Mode


class Custom(Mode):
    """Each chunk as it was written, at once, in the order of the calls."""

    name: ClassVar[str] = "custom"

    def wrote(self, task: Task, chunk: Any) -> Iterable[RawPart]:
        # Copied: the node may change the chunk after writing it, and the reader may change it too.
        yield self.part_of(task, isolate(own(chunk)))
