"""Describe where a graph is called from: from outside the run, or by a task of an outer graph."""

from __future__ import annotations

from typing import Any

import msgspec

from checkpoint_savers.records import CALLER, GIVEN, CheckpointRow, TaskId

from .digests import is_changed
from .namespaces import NO_TASK, parents_of


class CallIdentity(msgspec.Struct, frozen=True):
    """The graph and input of a call, for comparison with a later attempt at the same call.

    Attributes:
        graph: the graph's name.
        digest: the input's digest, in hexadecimal digits; empty if the input is not compared.
    """

    graph: str = ""
    digest: str = ""

    def is_other(self, now: CallIdentity) -> bool:
        """Return True if a later attempt calls another graph, or passes another input. False if one is unknown."""
        if not self.digest or not now.digest:
            return False
        return self.graph != now.graph or is_changed(bytes.fromhex(self.digest), bytes.fromhex(now.digest))

    def or_else(self, other: CallIdentity) -> CallIdentity:
        """Return this identity if it is known, else the other."""
        return self if self.digest else other


# `gc=False`: every waiting run holds one, which Python's collector would visit again and again.
class CallSite(msgspec.Struct, frozen=True, gc=False):
    """Where a graph is called from, as stored in the metadata of its checkpoints.

    Attributes:
        parents: the checkpoint of each outer graph on which the call was made, by namespace; empty for the root graph.
        task: the task that runs the graph; `NO_TASK` for the root graph.
        caller: the same task if the graph keeps its state from call to call; else `NO_TASK`.
        identity: the graph and its input.
    """

    parents: dict[str, str] = {}
    task: TaskId = NO_TASK
    caller: TaskId = NO_TASK
    identity: CallIdentity = CallIdentity()

    @property
    def metadata(self) -> dict[str, Any]:
        """The entries for the metadata of the graph's checkpoints."""
        found: dict[str, Any] = {"parents": self.parents}
        if self.caller:
            found[CALLER] = self.caller
        if self.identity.digest:
            found[GIVEN] = [self.identity.graph, self.identity.digest]
        return found

    @classmethod
    def of(cls, row: CheckpointRow) -> CallSite:
        """Return the call site that made a checkpoint."""
        caller = TaskId(row.metadata.get(CALLER, NO_TASK))
        return cls(parents=parents_of(row), caller=caller, identity=CallIdentity(*row.metadata.get(GIVEN, ("", ""))))

    def made_checkpoint(self, metadata: dict[str, Any]) -> bool:
        """Return True if a checkpoint with this metadata was made by this call, or an earlier attempt at it."""
        return bool(metadata["parents"] == self.parents and metadata.get(CALLER, NO_TASK) == self.caller)

    def is_same(self, other: CallSite) -> bool:
        """Return True if both are attempts at one call. Graph and input are not compared."""
        return (self.parents, self.caller) == (other.parents, other.caller)
