"""The names that a program imports, from this project or from LangGraph, and the scripted models that programs call.

A program in this folder takes a `library` and gets all its names from it, so changing `library` is changing the program's
imports. Each test states one expected outcome, and it holds for both libraries unless the test says otherwise.
"""

from __future__ import annotations

import importlib
import threading
from types import SimpleNamespace
from typing import Any

NAMES = {
    "langgraph.graph": ("pregel_async", "START END StateGraph MessagesState add_messages"),
    "langgraph.types": (
        "pregel_async",
        "Command Send Interrupt interrupt Overwrite RetryPolicy CachePolicy TimeoutPolicy",
    ),
    "langgraph.func": ("pregel_async", "entrypoint task"),
    "langgraph.config": ("pregel_async", "get_config get_store get_stream_writer"),
    "langgraph.runtime": ("pregel_async", "Runtime get_runtime"),
    "langgraph.managed": ("pregel_async", "IsLastStep RemainingSteps"),
    "langgraph.pregel": ("pregel_async", "Pregel NodeBuilder"),
    "langgraph.channels": (
        "pregel_async.channels",
        "AnyValue BinaryOperatorAggregate EphemeralValue LastValue Topic UntrackedValue",
    ),
    "langgraph.errors": (
        "pregel_async.errors",
        "EmptyInputError GraphRecursionError InvalidUpdateError NodeError NodeTimeoutError",
    ),
    "langgraph.checkpoint.memory": ("checkpoint_savers", "InMemorySaver"),
    "langgraph.store.memory": ("checkpoint_savers", "InMemoryStore"),
    "langgraph.cache.memory": ("checkpoint_savers.caches", "InMemoryCache"),
}
"""For each module of LangGraph the module that has the same names here."""


def load(name: str) -> Any:
    """Import all of `NAMES` from `name`, which is "langgraph" or "pregel_async", as attributes of one object."""
    found: dict[str, Any] = {"name": name, "is_langgraph": name == "langgraph"}
    for theirs, (ours, names) in NAMES.items():
        module = importlib.import_module(theirs if name == "langgraph" else ours)
        found.update({each: getattr(module, each) for each in names.split()})
    return SimpleNamespace(**found)


def text_of(message: Any) -> str:
    """Return the text of a message: `add_messages` keeps dicts as they are, and LangGraph's makes objects of them."""
    return str(message["content"] if isinstance(message, dict) else message.content)


def role_of(message: Any) -> str:
    """Return who said a message: "user", "assistant", "system" or "tool"."""
    if isinstance(message, dict):
        return str(message["role"])
    return {"human": "user", "ai": "assistant"}.get(message.type, message.type)


def said(messages: list[Any]) -> list[tuple[str, str]]:
    """Return messages of either library as pairs of role and text."""
    return [(role_of(message), text_of(message)) for message in messages]


class ScriptedModel:
    """A chat model that answers from a script: the first entry whose key the prompt contains.

    An entry with a list gives its answers one after another. An answer may be text or a structured object.
    """

    def __init__(self, script: dict[str, Any]) -> None:
        self.script = script
        self.prompts: list[str] = []
        self._turns: dict[str, int] = {}
        self._lock = threading.Lock()  # plain nodes of one superstep run in threads

    def invoke(self, prompt: str) -> Any:
        """Return the scripted answer to a prompt."""
        with self._lock:
            self.prompts.append(prompt)
            for key, answer in self.script.items():
                if key in prompt:
                    if not isinstance(answer, list):
                        return answer
                    turn = self._turns.get(key, 0)
                    self._turns[key] = turn + 1
                    return answer[turn]
        raise LookupError(f"the script has no answer to {prompt!r}")

    async def ainvoke(self, prompt: str) -> Any:
        """Return the scripted answer to a prompt, as a coroutine."""
        return self.invoke(prompt)
