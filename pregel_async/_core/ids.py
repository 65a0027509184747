"""Make the ids of questions, and of writes from outside of any task.

Like task ids (`task.task_id`), they are derived only from the position of the work in the graph and its superstep.
"""

from __future__ import annotations

from hashlib import blake2b

from checkpoint_savers.records import TaskId


def outside_id(scope: str, ns: str, step: int, edit: int = 0) -> str:
    """Return an id, 32 hex digits, for writes from outside of any task: a thread's input, or an edit.

    Args:
        scope, ns: as in `task_id`.
        step: the number of the superstep that the writes make.
        edit: for an update to an open superstep, its number among them, from 1; else 0.
    """
    # Not the id of the checkpoint, which contains the time: two identical runs would get different ids.
    key = repr((scope, ns, step, "outside", edit)).encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=16).hexdigest()


def interrupt_id(task: TaskId, index: int) -> str:
    """Return a question's id, 32 hex digits.

    Args:
        task: the task that asks.
        index: the question's number among those of one attempt at the task, from 0.
    """
    return blake2b(f"{task} asks {index}".encode(), digest_size=16).hexdigest()
