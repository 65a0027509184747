"""Where a graph of a run is called from: from outside, or by a task of a graph around it."""

from __future__ import annotations

from typing import Any

import msgspec

from checkpoint_savers.records import CALLER, GIVEN, CheckpointRow, TaskId

from .digests import is_changed
from .namespaces import NO_TASK, parents_of


class CallIdentity(msgspec.Struct, frozen=True, gc=False):
    """What a node calls a graph with, as far as a later attempt at the call is compared with it.

    Attributes:
        graph: the graph's name.
        digest: of the input, in hexadecimal digits; empty if it is not compared.
    """

    graph: str = ""
    digest: str = ""

    def is_other(self, now: CallIdentity) -> bool:
        """Return True if a later attempt calls another graph, or with another input. False if one is not known."""
        if not self.digest or not now.digest:
            return False
        return self.graph != now.graph or is_changed(bytes.fromhex(self.digest), bytes.fromhex(now.digest))

    def or_else(self, other: CallIdentity) -> CallIdentity:
        """This one; the other if this one is not known."""
        return self if self.digest else other


class CallSite(msgspec.Struct, frozen=True, gc=False):
    """Where a graph is called from, as its checkpoints say it.

    Attributes:
        parents: namespace -> checkpoint, of the graphs around it, on which the call was made; none for the root graph.
        task: that runs it; `NO_TASK` for the outermost graph of a run.
        caller: the task that runs it, if its state is kept from call to call; else `NO_TASK`.
        identity: what it is called with.
    """

    parents: dict[str, str] = {}
    task: TaskId = NO_TASK
    caller: TaskId = NO_TASK
    identity: CallIdentity = CallIdentity()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the metadata of the graph's checkpoints say of it."""
        found: dict[str, Any] = {"parents": self.parents}
        if self.caller:
            found[CALLER] = self.caller
        if self.identity.digest:
            found[GIVEN] = [self.identity.graph, self.identity.digest]
        return found

    @classmethod
    def of(cls, row: CheckpointRow) -> CallSite:
        """The call that made a checkpoint."""
        caller = TaskId(row.metadata.get(CALLER, NO_TASK))
        return cls(parents=parents_of(row), caller=caller, identity=CallIdentity(*row.metadata.get(GIVEN, ("", ""))))

    def made_checkpoint(self, metadata: dict[str, Any]) -> bool:
        """Return True if a checkpoint with this metadata was made by this call, or an earlier attempt at it."""
        return bool(metadata["parents"] == self.parents and metadata.get(CALLER, NO_TASK) == self.caller)

    def is_same(self, other: CallSite) -> bool:
        """Return True if both are attempts at one call, whatever it is called with."""
        return (self.parents, self.caller) == (other.parents, other.caller)
