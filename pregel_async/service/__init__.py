"""Runs that outlive their caller: accepted, stored, and executed by some worker, on one machine or many."""

from typing import TYPE_CHECKING

from checkpoint_savers.errors import IdempotencyConflictError, RunNotFoundError, RunOverError
from checkpoint_savers.lazily import exported
from checkpoint_savers.runs.queries import Page
from checkpoint_savers.runs.rows import RunError

from .assistants import Assistant
from .dispatch import Dispatcher, RowDispatcher
from .errors import ServiceBusyError, ServiceDrainingError, UnknownGraphError
from .runs import Run, RunResult, ThreadInfo
from .service import RunService
from .worker import Worker

if TYPE_CHECKING:
    # Not in `__all__`: it needs an extra, and `import *` must work without it.
    from .dispatch.procrastinate import ProcrastinateDispatcher as ProcrastinateDispatcher

__all__ = [
    "Assistant",
    "Dispatcher",
    "IdempotencyConflictError",
    "Page",
    "RowDispatcher",
    "Run",
    "RunError",
    "RunNotFoundError",
    "RunOverError",
    "RunResult",
    "RunService",
    "ServiceBusyError",
    "ServiceDrainingError",
    "ThreadInfo",
    "UnknownGraphError",
    "Worker",
]

__getattr__ = exported(__name__, {"ProcrastinateDispatcher": ".dispatch.procrastinate"})
