"""Ids of tasks: made of where the work stands in the graph and in time, and of nothing else.

The same work has the same id on every attempt, replay, resume and fork, and after the thread was moved to another
database, because neither a checkpoint's id nor a clock goes into it. The thread's id does, so that an id can serve as
an idempotency key towards a service that many threads call.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

from checkpoint_savers.records import TaskId

PULL = "__pregel_pull"
PUSH = "__pregel_push"

Path: TypeAlias = "tuple[str | int | bool | Path, ...]"
"""`(PULL, node)` of a triggered node, `(PUSH, index, False)` of a send, `(PUSH, path of the caller, index, True)` of a
call that a task makes; and any of these with "error" behind it, of the error handler that runs in a task's place."""


def task_id(scope: str, ns: str, step: int, node: str, path: Path) -> TaskId:
    """32 hex digits.

    Args:
        scope: the thread's id; the run's id when it has no thread.
        ns: the namespace, "" for the root graph.
        step: the number of the superstep that runs the task.
    """
    # repr() of a tuple of strings and numbers: no two different tuples have the same.
    key = repr((scope, ns, step, node, path)).encode("utf-8", "surrogatepass")
    return TaskId(blake2b(key, digest_size=16).hexdigest())


def outside_id(scope: str, ns: str, step: int, edit: int = 0) -> str:
    """Return 32 hex digits for what no task has written: a thread's input, or an edit.

    Not the id of the checkpoint that it makes, which has the time in it: two identical runs would differ by it.

    Args:
        scope, ns: as in `task_id`.
        step: the number of the superstep that it makes.
        edit: which of the updates to that superstep it is, from 1, when it is one to a superstep that is open; else 0.
    """
    key = repr((scope, ns, step, "outside", edit)).encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=16).hexdigest()


def interrupt_id(task: TaskId, index: int) -> str:
    """32 hex digits.

    Args:
        index: the question's place among those that one attempt of the task asks, from 0.
    """
    return blake2b(f"{task} asks {index}".encode(), digest_size=16).hexdigest()
