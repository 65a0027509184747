"""Recognise runnables of langchain-core that are passed as functions: chains, models, tools, graphs of LangGraph."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import anyio.to_thread

from .._runtime.platform.event_loops import on_asyncio
from .._runtime.tasks.injection import name_of_call
from ..types import RunnableConfig


def is_runnable(given: Any) -> bool:
    """Return True if an object is run by its `ainvoke` instead of being called."""
    if callable(given):
        # Some runnables can be called too, in an older way that takes no config.
        known = sys.modules.get("langchain_core.runnables")
        return known is not None and isinstance(given, known.Runnable)
    return callable(getattr(given, "ainvoke", None)) and callable(getattr(given, "invoke", None))


def name_of_action(given: Any) -> str:
    """Return the name of a function, of the class of a callable object, or of a runnable."""
    if not is_runnable(given):
        return name_of_call(given)
    get_name = getattr(given, "get_name", None)
    return str(get_name()) if callable(get_name) else type(given).__name__


def as_function(given: Any) -> Any:
    """Return a function that runs a runnable with the config of its node. Anything else is returned as it is."""
    return RunnableAction(given) if is_runnable(given) else given


class RunnableAction:
    """Runs a runnable as a node, a router, or a step of a node.

    Args:
        runnable: an object with the methods of langchain-core's `Runnable`.
    """

    def __init__(self, runnable: Any) -> None:
        self.runnable = runnable
        self.__name__ = name_of_action(runnable)
        known = sys.modules.get("langchain_core.runnables")
        is_sequence = known is not None and isinstance(runnable, known.RunnableSequence)
        # As in LangGraph, callbacks see the steps of a sequence directly inside the node's run.
        self._steps: list[Any] = list(runnable.steps) if is_sequence else [runnable]

    async def __call__(self, value: Any, config: RunnableConfig | None = None) -> Any:
        for position, step in enumerate(self._steps, 1):
            given = config if position == 1 else _at_step(config, position)
            if on_asyncio():
                value = await step.ainvoke(value, given)
            else:
                # langchain-core awaits with asyncio only, so on trio its sync methods are used.
                value = await anyio.to_thread.run_sync(partial(step.invoke, value, given))
        return value

    def __repr__(self) -> str:
        return f"RunnableAction({self.runnable!r})"


def _at_step(config: Any, position: int) -> Any:
    """Return a config whose callbacks see what is called with it as the step of a sequence, counted from 1."""
    callbacks = None if config is None else config.get("callbacks")
    if callbacks is None:
        return config
    callbacks = callbacks.copy()
    callbacks.tags = [tag for tag in callbacks.tags if not tag.startswith("seq:step:")]
    callbacks.add_tags([f"seq:step:{position}"], False)
    return {**config, "callbacks": callbacks}
