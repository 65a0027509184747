"""Callbacks for pauses and resumes of graphs, in the form of `langgraph.callbacks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from .._runtime.platform.event_loops import on_asyncio
from ..types import Interrupt

__all__ = ["GraphCallbackHandler", "GraphInterruptEvent", "GraphResumeEvent"]

# Imported by name, and so untyped: type-checking this package must not require langchain-core.
_callbacks: Final[Any] = import_module("langchain_core.callbacks")
_manager: Final[Any] = import_module("langchain_core.callbacks.manager")

GraphStatus: TypeAlias = Literal["pending", "interrupt_before", "interrupt_after"]
"""Why a graph paused: a node asked a question, or it reached a breakpoint. A graph resumes as "pending"."""


@dataclass(frozen=True)
class GraphInterruptEvent:
    """A run has paused.

    Attributes:
        run_id: the id of the run of the callbacks; None if it is not known.
        status: why it paused.
        checkpoint_id: the checkpoint from which a call continues; "" if nothing is stored.
        checkpoint_ns: the namespace of the graph, in parts; empty for the graph that was called.
        interrupts: the open questions, those of subgraphs too; empty at a breakpoint.
    """

    run_id: UUID | None
    status: GraphStatus
    checkpoint_id: str
    checkpoint_ns: tuple[str, ...]
    interrupts: tuple[Interrupt, ...]


@dataclass(frozen=True)
class GraphResumeEvent:
    """A graph continues from stored state, and its next node is about to run.

    Attributes:
        run_id, checkpoint_ns: as in `GraphInterruptEvent`.
        status: "pending".
        checkpoint_id: the checkpoint from which the graph continues; "" if nothing is stored.
    """

    run_id: UUID | None
    status: GraphStatus
    checkpoint_id: str
    checkpoint_ns: tuple[str, ...]


class GraphCallbackHandler(_callbacks.BaseCallbackHandler):  # type: ignore[misc]  # a class without types, see above
    """A callback handler that also receives pauses and resumes. Subclass it, and pass it in a config's `callbacks`.

    The methods may be coroutine functions. Their exceptions are logged, unless `raise_error` is True.
    """

    def on_interrupt(self, event: GraphInterruptEvent) -> Any:
        """Receive the pause of the graph that was called.

        Args:
            event: the pause.

        Returns:
            Nothing that is used.
        """

    def on_resume(self, event: GraphResumeEvent) -> Any:
        """Receive that a graph, or a subgraph of it, continues.

        Args:
            event: the resume.

        Returns:
            Nothing that is used.
        """


async def dispatch(handlers: Sequence[Any], event: GraphInterruptEvent | GraphResumeEvent) -> None:
    """Pass an event to those handlers that have a method for it."""
    name = "on_interrupt" if isinstance(event, GraphInterruptEvent) else "on_resume"
    concerned = [handler for handler in handlers if hasattr(handler, name)]
    if concerned and on_asyncio():
        await _manager.ahandle_event(concerned, name, None, event)
    elif concerned:
        _manager.handle_event(concerned, name, None, event)
