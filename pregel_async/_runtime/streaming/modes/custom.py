"""`custom`: what nodes themselves write to the stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ...._core.isolation import isolate, own
from ...._core.task import Task
from ..parts import RawPart
from .mode import Mode


class Custom(Mode):
    """Each chunk as it was written, in the order of its writer's code, at once."""

    name: ClassVar[str] = "custom"

    def wrote(self, task: Task, chunk: Any) -> Iterable[RawPart]:
        yield self.part_of(task, isolate(own(chunk)))
