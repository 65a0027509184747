"""What is known of a run that somebody comes back to, from the metadata of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from checkpoint_savers.records import RUN

from ..types import StreamMode

GRAPH, ATTEMPT, MODES, SUBGRAPHS = "graph", "attempt", "stream_mode", "stream_subgraphs"
INTERRUPT_BEFORE, INTERRUPT_AFTER = "interrupt_before", "interrupt_after"
CONTEXT = "has_context"

Breakpoints = str | list[str] | None
"""Nodes to stop at, "*" for all; None for those that the graph was compiled with."""


class RunMetadata(msgspec.Struct, kw_only=True):
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
    interrupt_before: Breakpoints = None
    interrupt_after: Breakpoints = None
    has_context: bool = False

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> RunMetadata:
        """Of a checkpoint that the run has made; with the defaults, if it was not started here."""
        run_id, metadata = str(metadata.get("run_id") or ""), _endpoint_metadata(metadata)
        attempt, modes = metadata.get(ATTEMPT), metadata.get(MODES)
        return cls(
            run_id=run_id,
            graph=str(metadata.get(GRAPH) or ""),
            attempt=attempt if isinstance(attempt, int) else 1,
            modes=modes.split(",") if isinstance(modes, str) else [],
            subgraphs=metadata.get(SUBGRAPHS) is True,
            interrupt_before=_decode_breakpoints(metadata.get(INTERRUPT_BEFORE)),
            interrupt_after=_decode_breakpoints(metadata.get(INTERRUPT_AFTER)),
            has_context=metadata.get(CONTEXT) is True,
        )

    def to_metadata(self, graph: str) -> dict[str, Any]:
        """To be stored with its checkpoints, apart from the user's keys, and instead of what a client says there."""
        own = {
            GRAPH: graph,
            ATTEMPT: self.attempt,
            MODES: ",".join(self.modes),
            SUBGRAPHS: self.subgraphs,
            CONTEXT: self.has_context,
            # Names of nodes may have commas in them.
            INTERRUPT_BEFORE: _encode_breakpoints(self.interrupt_before),
            INTERRUPT_AFTER: _encode_breakpoints(self.interrupt_after),
        }
        return {RUN: own}


def _endpoint_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an endpoint has stored of a run."""
    own = metadata.get(RUN)
    return cast("dict[str, Any]", own) if isinstance(own, dict) else {}


def _encode_breakpoints(breakpoints: Breakpoints) -> str | None:
    return None if breakpoints is None else msgspec.json.encode(breakpoints).decode()


def _decode_breakpoints(stored: Any) -> Breakpoints:
    try:
        return msgspec.json.decode(stored, type=Breakpoints) if isinstance(stored, str) else None
    except msgspec.MsgspecError:
        return None  # not an endpoint's


def runtime_modes(served_modes: Sequence[str]) -> list[StreamMode]:
    """As `astream` knows them."""
    return [cast("StreamMode", mode.removesuffix("-tuple")) for mode in served_modes]
