"""Run a runnable of langchain-core as a node. Imported by the first one that a graph gets."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import anyio.to_thread

from ...types import RunnableConfig
from ..platform.event_loops import on_asyncio


class RunnableAction:
    """Runs a runnable as a node, a router, or a step of a node.

    Args:
        runnable: an object with the methods of langchain-core's `Runnable`.
        name: its name.
    """

    def __init__(self, runnable: Any, name: str) -> None:
        self.runnable = runnable
        self.__name__ = name
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
    if config is None or config.get("callbacks") is None:
        return config
    callbacks = config["callbacks"].copy()
    callbacks.tags = [tag for tag in callbacks.tags if not tag.startswith("seq:step:")]
    callbacks.add_tags([f"seq:step:{position}"], False)
    return {**config, "callbacks": callbacks}
