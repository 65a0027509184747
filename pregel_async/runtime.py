"""Functions for the code of nodes: ask questions, push messages, count spending, and access config, store and stream.

Each function finds the running node by a context variable, and so works at any call depth, in tasks that the node
starts, and in worker threads.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

from checkpoint_savers import ports

from ._runtime.persistence.spending import Amount
from ._runtime.tasks.context import ExecutionInfo, Runtime, current
from ._runtime.tasks.control import RunControl
from .messages import messages_in, with_own_id
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
    "patched",
    "push_message",
    "spend",
]

AnswerT = TypeVar("AnswerT")
ContextT = TypeVar("ContextT")


@overload
def interrupt(value: Any, *, response_schema: type[AnswerT]) -> AnswerT: ...
@overload
def interrupt(value: Any, *, response_schema: Any = None) -> Any: ...
def interrupt(value: Any, *, response_schema: Any = None) -> Any:
    """Pause the run to ask its caller a question, and return the answer once the run is resumed.

    Without an answer, the call raises `GraphInterrupt`, which ends the run. The question is stored with the thread and
    is in the result of the run, under "__interrupt__". Call the graph with `Command(resume=answer)` to resume: the node
    runs again from its start, and this call returns the answer. So put work that must not be done twice after this
    call, or in a task (`pregel_async.task`), whose result is recorded.

    A node may ask several questions. Each has an id, derived from the order in which the node asks. In tasks that the
    node starts itself (in a task group), where the event loop decides the order, the id is derived from the question's
    value: another value on the next attempt is another question. Do not catch `GraphInterrupt`: it is a
    `BaseException`, so that `except Exception` does not.

    Args:
        value: the question: any value that can be stored.
        response_schema: the type of the answer (a pydantic model, a TypedDict, a dataclass, `int`), or a JSON schema.
            Callers see it as the JSON schema `Interrupt.response_schema`. An answer is checked against a type, and
            converted to it, when the node reaches this call. A JSON schema is only shown. A type is checked by
            pydantic if it is installed and knows the type, else by msgspec.

    Returns:
        The answer: the `resume` of the command, or the value for this question's id in it.

    Raises:
        GraphInterrupt: the question has no answer yet.
        NoCheckpointerError: the called graph has no checkpointer, so no answer could ever come.
        QuestionChangedError: the recorded answer belongs to another question.
        InvalidAnswerError: the answer does not fit the type. The question is open again, and nothing of the answer is
            kept.
        ConfigError: `response_schema` is neither a JSON schema nor a type that can be checked.
        OutsideRunError: called outside a run.
    """
    return current("interrupt()").ask(value, response_schema)


def patched(name: str) -> bool:
    """Return True if the running node may use changed code, False if it must repeat what earlier code has recorded.

    Use it to change the calls or questions of a node of which threads may have recorded some:

        if patched("audit-first"):
            await audit(order)
        await charge(order)

    A node gets False until its superstep closes if an earlier run has recorded a call, a question, a failure or a
    subgraph of it, and no decision: the node began without the change. All other nodes get True. The decision is
    recorded under its name, and does not depend on where or how often the node asks: tasks that the node calls, its
    routers and its error handler get the same one, in each attempt and on each process. Nodes of a subgraph decide for
    themselves. The decision is stored together with the next record. Without a checkpointer it is always
    True.

    Args:
        name: the name of the change. Each change of a node needs a name of its own, which must never be used again.

    Returns:
        True to run the changed code, False to run the code as it was.

    Raises:
        TypeError: the name is not a string.
        CallsChangedError: an earlier call of the node was refused with this error.
        OutsideRunError: called outside a run.
    """
    from ._runtime.tasks.calls import decide_patch  # few nodes ask

    if not isinstance(name, str):
        raise TypeError(f"patched() takes the name of a change, not {name!r}")
    return decide_patch(current("patched()"), name)


def push_message(message: Any, *, state_key: str | None = "messages") -> Any:
    """Show a message to readers of the stream mode "messages" at once, and write it to the state.

    The message becomes part of the state with the node's result, before what the node returns; of a node that fails or
    asks a question nothing is written. It is shown once: not again when the node has finished or returns it too. The
    call does not wait for slow readers; the node waits for them at its next await.

    Args:
        message: a message, or a value that represents one, as for `add_messages`. Removals are not shown.
        state_key: the key that the message is written to; None to show it only.

    Returns:
        The message with its id. A message without an id gets one derived from the task, which is the same on a retry.

    Raises:
        InvalidMessageError: the value is no message.
        InvalidUpdateError: the graph has no such key, or a called task pushes: its caller writes the state.
        OutsideRunError: called outside a run.
    """
    attempt = current("push_message()")
    attempt.check("push_message()")
    pushed = with_own_id(message)
    if state_key is not None:
        from ._runtime.tasks.pushed_writes import push_write  # few nodes push

        push_write(attempt, "push_message()", state_key, pushed)
    if any(True for _ in messages_in(pushed)):
        attempt.writer.message(pushed)
    return pushed


def spend(name: str, amount: Amount) -> None:
    """Count an amount that the running node spends: tokens, money, calls of a service.

    The amount is stored with the task's result and counted once, however often the thread is resumed. Amounts of a
    failed attempt count too, and are stored with its failure. The limits, set by `StateGraph.compile(budgets=)`, are
    checked at the next barrier, between two supersteps.

    Args:
        name: the name of a budget that the graph was compiled with.
        amount: an int or a finite Decimal, at least 0, in the unit of the budget. No floats: sums must be exact.

    Raises:
        UnknownBudgetError: there is no such budget.
        TypeError: the amount is neither an int nor a Decimal.
        ValueError: the amount is negative or not finite.
        OutsideRunError: called outside a run.
    """
    current("spend()").spend(name, amount)


@overload
def get_runtime(context_schema: type[ContextT]) -> Runtime[ContextT]: ...
@overload
def get_runtime(context_schema: None = None) -> Runtime[Any]: ...
def get_runtime(context_schema: type[Any] | None = None) -> Runtime[Any]:
    """Return the runtime of the running node: its context, store, stream writer and execution info.

    Args:
        context_schema: the type of the context, for type checkers and readers only. It is not checked.

    Returns:
        The runtime, which the node also gets as a parameter named `runtime`.

    Raises:
        OutsideRunError: called outside a run.
    """
    return current("get_runtime()").runtime


def get_config() -> RunnableConfig:
    """Return the config of the running node: the call's config, with the node's thread, checkpoint and namespace.

    Returns:
        The config.

    Raises:
        OutsideRunError: called outside a run.
    """
    return current("get_config()").config


def get_store() -> ports.BaseStore | None:
    """Return the store that the graph, or an enclosing graph, was compiled with.

    Returns:
        The store; None if there is none.

    Raises:
        OutsideRunError: called outside a run.
    """
    store: ports.BaseStore | None = current("get_store()").store
    return store


def get_stream_writer() -> StreamWriter:
    """Return the writer to the `custom` stream of the run.

    Returns:
        The writer. If no reader asked for the stream, it drops what is written.

    Raises:
        OutsideRunError: called outside a run.
    """
    return current("get_stream_writer()").writer
