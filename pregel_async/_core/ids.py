"""Ids of what tasks ask, and of what no task has written.

Like task ids (`task.task_id`) they are derived only from the position of the work in the graph and in time.
"""

from __future__ import annotations

from hashlib import blake2b

from checkpoint_savers.records import TaskId


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
