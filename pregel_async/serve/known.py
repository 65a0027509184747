"""What is known of a run that somebody comes back to, from the metadata of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from checkpoint_savers.records import RUN

from ..types import StreamMode

GRAPH, ATTEMPT, MODES, SUBGRAPHS = "graph", "attempt", "stream_mode", "stream_subgraphs"
BEFORE, AFTER = "interrupt_before", "interrupt_after"
CONTEXT = "has_context"

Stops = str | list[str] | None
"""Nodes to stop at, "*" for all; None for those that the graph was compiled with."""


class Known(msgspec.Struct, kw_only=True):
    """What an endpoint knows of a run: it is stored with the run's checkpoints, for whoever goes on with it.

    Attributes:
        run_id: "" where it is not known.
        graph: its name; "" of a run that no endpoint has started.
        attempt: 1, and one more each time that it is gone on with.
        modes: what is shown of it, and kept; with "messages-tuple".
        subgraphs: the graphs inside are shown too.
        interrupt_before, interrupt_after: where its client wants it to stop.
        context: its nodes have a context, which is not stored.
    """

    run_id: str = ""
    graph: str = ""
    attempt: int = 1
    modes: list[str] = []
    subgraphs: bool = False
    interrupt_before: Stops = None
    interrupt_after: Stops = None
    context: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Known:
        """Of a checkpoint that the run has made; with the defaults, if it was not started here."""
        run_id, metadata = str(metadata.get("run_id") or ""), _own(metadata)
        attempt, modes = metadata.get(ATTEMPT), metadata.get(MODES)
        return cls(
            run_id=run_id,
            graph=str(metadata.get(GRAPH) or ""),
            attempt=attempt if isinstance(attempt, int) else 1,
            modes=modes.split(",") if isinstance(modes, str) else [],
            subgraphs=metadata.get(SUBGRAPHS) is True,
            interrupt_before=_stops(metadata.get(BEFORE)),
            interrupt_after=_stops(metadata.get(AFTER)),
            context=metadata.get(CONTEXT) is True,
        )

    def metadata(self, graph: str) -> dict[str, Any]:
        """To be stored with its checkpoints, apart from the user's keys, and instead of what a client says there."""
        own = {
            GRAPH: graph,
            ATTEMPT: self.attempt,
            MODES: ",".join(self.modes),
            SUBGRAPHS: self.subgraphs,
            CONTEXT: self.context,
            # Names of nodes may have commas in them.
            BEFORE: _text(self.interrupt_before),
            AFTER: _text(self.interrupt_after),
        }
        return {RUN: own}


def _own(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an endpoint has stored of a run."""
    own = metadata.get(RUN)
    return cast("dict[str, Any]", own) if isinstance(own, dict) else {}


def _text(stops: Stops) -> str | None:
    return None if stops is None else msgspec.json.encode(stops).decode()


def _stops(stored: Any) -> Stops:
    try:
        return msgspec.json.decode(stored, type=Stops) if isinstance(stored, str) else None
    except msgspec.MsgspecError:
        return None  # not an endpoint's


def modes_of(shown: Sequence[str]) -> list[StreamMode]:
    """As `astream` knows them."""
    return [cast("StreamMode", mode.removesuffix("-tuple")) for mode in shown]
