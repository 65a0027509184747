"""Stream modes: each turns a run's events into parts of its own, in a module of its own.

A mode overrides the methods of the events that it shows. No part is made of an event that no subscribed mode shows.
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
"""The modes by name, as in `stream_mode`, in the order in which they show one event."""

__all__ = ["MODES", "Checkpoints", "Custom", "Debug", "Messages", "Mode", "Tasks", "Updates", "Values", "View"]
