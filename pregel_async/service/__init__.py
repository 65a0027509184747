"""Runs that outlive their caller: accepted, stored, and executed by some worker, on one machine or many."""

from checkpoint_savers.runs.queries import Page

from checkpoint_savers.errors import IdempotencyConflictError, RunNotFoundError, RunOverError
from checkpoint_savers.runs.rows import RunError

from .errors import ServiceBusyError, ServiceDrainingError, UnknownGraphError
from .runs import Run, RunResult, ThreadInfo
from .service import RunService
from .worker import Worker

__all__ = [
    "IdempotencyConflictError",
    "Page",
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
