"""What an endpoint stores about a run in the metadata of its checkpoints, and reads to resume the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from checkpoint_savers.records import RUN

from ..types import StreamMode

GRAPH, ATTEMPT, MODES, SUBGRAPHS = "graph", "attempt", "stream_mode", "stream_subgraphs"
INTERRUPT_BEFORE, INTERRUPT_AFTER = "interrupt_before", "interrupt_after"
CONTEXT = "has_context"

BreakpointNames = str | list[str] | None
"""Nodes to stop at, "*" for all; None for the breakpoints that the graph was compiled with."""


class RunMetadata(msgspec.Struct, kw_only=True):
    """What an endpoint must know about a run to resume it. It is stored with the run's checkpoints.

    Attributes:
        run_id: the run's id; "" if unknown.
        graph: the graph's name; "" if no endpoint started the run.
        attempt: 1 for the first attempt, one more for each resume.
        modes: the stream modes whose events are kept, with "messages-tuple" among them if the client asked for that.
        subgraphs: True if the events of subgraphs are kept too.
        interrupt_before: the breakpoints that the client asked for, before nodes.
        interrupt_after: the breakpoints that the client asked for, after nodes.
        has_context: True if the run's nodes were given a context. The context itself is not stored.
    """

    run_id: str = ""
    graph: str = ""
    attempt: int = 1
    modes: list[str] = []
    subgraphs: bool = False
    interrupt_before: BreakpointNames = None
    interrupt_after: BreakpointNames = None
    has_context: bool = False

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> RunMetadata:
        """Read the metadata of a checkpoint that the run made.

        Args:
            metadata: the checkpoint's metadata, the user's keys included.

        Returns:
            What an endpoint stored there. Every field but `run_id` has its default if no endpoint started the run.
        """
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
        """Return the metadata to store with the run's checkpoints.

        Args:
            graph: the graph's name.

        Returns:
            A dict with one reserved key. Merge it last, so that it replaces a value that a client sent under that key.
        """
        own = {
            GRAPH: graph,
            ATTEMPT: self.attempt,
            MODES: ",".join(self.modes),
            SUBGRAPHS: self.subgraphs,
            CONTEXT: self.has_context,
            # JSON, and not joined with commas as the modes are: names of nodes may contain commas.
            INTERRUPT_BEFORE: _encode_breakpoints(self.interrupt_before),
            INTERRUPT_AFTER: _encode_breakpoints(self.interrupt_after),
        }
        return {RUN: own}


def _endpoint_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an endpoint stored in a checkpoint's metadata; an empty mapping if there is nothing."""
    own = metadata.get(RUN)
    return cast("dict[str, Any]", own) if isinstance(own, dict) else {}


def _encode_breakpoints(breakpoints: BreakpointNames) -> str | None:
    return None if breakpoints is None else msgspec.json.encode(breakpoints).decode()


def _decode_breakpoints(stored: Any) -> BreakpointNames:
    try:
        return msgspec.json.decode(stored, type=BreakpointNames) if isinstance(stored, str) else None
    except msgspec.MsgspecError:
        return None  # no endpoint wrote this value


def runtime_modes(served_modes: Sequence[str]) -> list[StreamMode]:
    """Translate an endpoint's stream modes to those of `astream`: "messages-tuple" is its "messages".

    Args:
        served_modes: modes of an endpoint's stream.

    Returns:
        The modes, in the same order.
    """
    return [cast("StreamMode", mode.removesuffix("-tuple")) for mode in served_modes]
