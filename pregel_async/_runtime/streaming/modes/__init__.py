"""Stream modes: each a view of the run's log of events, one small file each.

A mode overrides the methods of the events that it shows; an event that no mode in use overrides is never built.
"""

from __future__ import annotations

from .checkpoints import Checkpoints
from .custom import Custom
from .debug import Debug
from .messages import Messages
from .mode import Mode, View
from .tasks import Tasks
from .updates import Updates
from .values import Values

MODES: dict[str, type[Mode]] = {
    mode.name: mode for mode in (Custom, Messages, Updates, Values, Tasks, Checkpoints, Debug)
}
"""By name, as `stream_mode` takes them; in the order in which they show one event."""

__all__ = ["MODES", "Checkpoints", "Custom", "Debug", "Messages", "Mode", "Tasks", "Updates", "Values", "View"]
