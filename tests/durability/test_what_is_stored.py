"""Which data of a call a thread stores, and which it does not: the list at the top of docs/promises.md."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, Command, Runtime, StateGraph, interrupt
from pregel_async.channels import UntrackedValue

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class State(TypedDict, total=False):
    kept: str
    untracked: Annotated[str, UntrackedValue]


class Context(TypedDict):
    token: str


class DetailedError(Exception):
    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


def begins(state: State, runtime: Runtime[Context]) -> State:
    assert runtime.context["token"] == "from-the-context"
    return {"kept": "from-the-node", "untracked": "not-tracked"}


def asks(state: State) -> State:
    answer = interrupt("from-the-question")
    raise DetailedError(f"from-the-error, {answer}", "not-in-the-message")


async def stored(saver: BaseCheckpointSaver) -> str:
    """Return all bytes of the thread as text."""
    return repr(await saver.dump("t"))


async def test_which_data_of_a_call_is_stored(saver: BaseCheckpointSaver) -> None:
    """Strings, numbers and booleans of `metadata` and `configurable` are stored; other settings, the context and
    untracked keys are not: a secret in one of these is in no byte of the thread."""
    graph = StateGraph(State, context_schema=Context).add_sequence([begins, asks]).add_edge(START, "begins")
    compiled = graph.compile(saver)
    configurable = {
        "thread_id": "t",
        "tenant": "from-configurable",
        "__key": "not-by-name",
        "keys": {"k": "not-nested"},
    }
    config: Any = {"configurable": configurable, "metadata": {"user": "from-metadata", "parts": ["not-in-a-list"]}}
    context: Context = {"token": "from-the-context"}
    await compiled.ainvoke({"kept": "from-the-input"}, config, context=context)
    with pytest.raises(DetailedError):
        await compiled.ainvoke(Command(resume="from-the-answer"), config, context=context)
    text = await stored(saver)
    for name in ("configurable", "metadata", "the-input", "the-node", "the-question", "the-answer", "the-error"):
        assert f"from-{name}" in text, name
    for word in ("not-by-name", "not-nested", "not-in-a-list", "not-tracked", "not-in-the-message", "from-the-context"):
        assert word not in text, word
