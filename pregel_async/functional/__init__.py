"""The functional API: a workflow as one function, its steps as tasks."""

from .entrypoint import CompiledEntrypoint, entrypoint
from .task import TaskFunction, TaskFuture, task

__all__ = ["CompiledEntrypoint", "TaskFunction", "TaskFuture", "entrypoint", "task"]
