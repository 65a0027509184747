"""What a node's code calls: questions, and what the node was called with, from however deep inside.

Each finds the running node by a context variable, in the node's own tasks and worker threads too.
"""

from __future__ import annotations

from typing import Any

from checkpoint_savers import ports

from ._runtime.persistence.spending import Amount
from ._runtime.tasks.context import ExecutionInfo, Runtime, current
from ._runtime.tasks.control import RunControl
from .types import RunnableConfig, StreamWriter

__all__ = [
    "ExecutionInfo",
    "RunControl",
    "Runtime",
    "get_config",
    "get_runtime",
    "get_store",
    "get_stream_writer",
    "interrupt",
    "spend",
]


def interrupt(value: Any) -> Any:
    """Ask whoever runs the graph, and wait for the answer, however long.

    The run stops, with the question in its result under "__interrupt__" and stored with the thread. It goes on when the
    thread is called with `Command(resume=answer)`: the node runs again from its start, and this call returns the
    answer. So put after it what must not be done twice, or do it in a task (`pregel_async.task`), whose result is kept.

    A node may ask several times; each question has an id of its own, by the order in which the node asks. In tasks that
    the node has started beside it (a task group of its own), whose order is the event loop's, a question is known by
    its value: one that says something else when the node runs again is another question. Let what this raises through:
    `except Exception` does.

    Args:
        value: the question: anything that can be stored.

    Raises:
        GraphInterrupt: nobody has answered yet.
        NoCheckpointerError: the graph that was called has no checkpointer, so that no answer could ever come.
        OutsideRunError: called outside of a run.
    """
    return current("interrupt()").ask(value)


def spend(name: str, amount: Amount) -> None:
    """Count what the running node spends: tokens, money, calls of a service.

    It is stored with the task's result, and counted once, however often the thread is resumed. What a failed attempt
    has spent is spent too, and stored with its failure. Limits are checked at the next barrier:
    `StateGraph.compile(budgets=)`.

    Args:
        name: of a budget that the graph was compiled with.
        amount: an int or a Decimal, not below zero: sums are exact.

    Raises:
        UnknownBudgetError: there is no such budget.
        TypeError, ValueError: it is no amount.
        OutsideRunError: called outside of a run.
    """
    current("spend()").spend(name, amount)


def get_runtime(context_schema: type[Any] | None = None) -> Runtime[Any]:
    """What the running node was called with.

    Args:
        context_schema: what `context` is taken for; only for readers of the code.

    Raises:
        OutsideRunError: called outside of a run.
    """
    return current("get_runtime()").runtime


def get_config() -> RunnableConfig:
    """The call's config, and where the running node stands: its thread, checkpoint and namespace.

    Raises:
        OutsideRunError: called outside of a run.
    """
    return current("get_config()").config


def get_store() -> ports.BaseStore | None:
    """The store that the graph was compiled with, or one around it; None without.

    Raises:
        OutsideRunError: called outside of a run.
    """
    store: ports.BaseStore | None = current("get_store()").store
    return store


def get_stream_writer() -> StreamWriter:
    """Writes to the `custom` stream; what it writes is dropped when nobody reads that.

    Raises:
        OutsideRunError: called outside of a run.
    """
    return current("get_stream_writer()").writer
