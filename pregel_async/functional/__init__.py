"""The functional API: `@entrypoint` makes a function a workflow, and `@task` makes functions its steps."""

from .entrypoint import CompiledEntrypoint, entrypoint
from .task import TaskFunction, TaskFuture, task

__all__ = ["CompiledEntrypoint", "TaskFunction", "TaskFuture", "entrypoint", "task"]
