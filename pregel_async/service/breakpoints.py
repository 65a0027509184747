"""Whether a run that was taken over had stopped at a breakpoint, and only its end was not stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader

from .._api.compiled import Graph
from .call import StoredCall


async def is_at_breakpoint(
    saver: BaseCheckpointSaver, graph: Graph[Any, Any], call: StoredCall, thread_id: str, run_id: str
) -> bool:
    """Return True if a run's newest checkpoint is one at which it stops.

    A resume passes the breakpoint at which the thread stopped. So it must not be made for a run that has reached that
    breakpoint itself.

    Args:
        saver: stores the thread.
        graph: the graph of the run.
        call: the call of the run.
        thread_id: the thread.
        run_id: the run.
    """
    before = _names(graph.interrupt_before_nodes if call.interrupt_before is None else call.interrupt_before)
    after = _after(graph, call)
    chain = await saver.read(thread_id) if before or after else None
    if chain is None or chain.rows[-1].metadata.get("run_id") != run_id:
        return False  # the run has made no checkpoint: it is to pass the breakpoint of an earlier run
    newest = chain.rows[-1].checkpoint_id
    upcoming = (await graph.aget_state({"configurable": {"thread_id": thread_id}})).next
    ran = ChainReader(thread_id, "", chain.rows).state(newest).ran
    return bool(upcoming) and (_meets(before, upcoming) or _meets(after, ran))


def stops_after_nodes(graph: Graph[Any, Any], call: StoredCall) -> bool:
    """Return True if a run may stop at a breakpoint after a node, also after the last one.

    Args:
        graph: the graph of the run.
        call: the call of the run.
    """
    return bool(_after(graph, call))


def _after(graph: Graph[Any, Any], call: StoredCall) -> tuple[str, ...]:
    return _names(graph.interrupt_after_nodes if call.interrupt_after is None else call.interrupt_after)


def _names(nodes: str | Collection[str]) -> tuple[str, ...]:
    return (nodes,) if isinstance(nodes, str) else tuple(nodes)


def _meets(breakpoints: Collection[str], nodes: Collection[str]) -> bool:
    return bool(nodes) and ("*" in breakpoints or not set(breakpoints).isdisjoint(nodes))
