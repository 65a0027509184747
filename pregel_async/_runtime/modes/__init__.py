"""Stream modes: each a view of the run's log of events, one small file each.

A mode overrides the methods of the events that it shows; an event that no mode in use overrides is never built.
"""

from __future__ import annotations

from .mode import Mode, View
from .tasks import Tasks
from .updates import Updates
from .values import Values

CUSTOM = "custom"
"""What nodes themselves write to the stream: no view of the log, so that it is no mode of these."""

MODES: dict[str, type[Mode]] = {mode.name: mode for mode in (Updates, Values, Tasks)}
"""By name, as `stream_mode` takes them; in the order in which they show one event."""

__all__ = ["CUSTOM", "MODES", "Mode", "Tasks", "Updates", "Values", "View"]
