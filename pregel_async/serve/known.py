"""What is known of a run that somebody comes back to, from the metadata of its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ..types import StreamMode

GRAPH, ATTEMPT, MODES, SUBGRAPHS = "graph", "attempt", "stream_mode", "stream_subgraphs"


class Known(msgspec.Struct, kw_only=True):
    """A run.

    Attributes:
        run_id: "" where it is not known.
        attempt: the first, or the how-manieth after it was cut off.
        modes: what is shown of it, and kept; with "messages-tuple".
        subgraphs: the graphs inside are shown too.
    """

    run_id: str = ""
    attempt: int = 1
    modes: list[str] = []
    subgraphs: bool = False

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Known:
        """Of a checkpoint that the run has made; with the defaults, if it was not started here."""
        attempt, modes = metadata.get(ATTEMPT), metadata.get(MODES)
        return cls(
            run_id=str(metadata.get("run_id") or ""),
            attempt=attempt if isinstance(attempt, int) else 1,
            modes=modes.split(",") if isinstance(modes, str) else [],
            subgraphs=metadata.get(SUBGRAPHS) is True,
        )

    def metadata(self, graph: str) -> dict[str, Any]:
        """To be stored with its checkpoints."""
        return {GRAPH: graph, ATTEMPT: self.attempt, MODES: ",".join(self.modes), SUBGRAPHS: self.subgraphs}


def modes_of(shown: Sequence[str]) -> list[StreamMode]:
    """As `astream` knows them."""
    return [cast("StreamMode", mode.removesuffix("-tuple")) for mode in shown]
