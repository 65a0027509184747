"""Build the namespaces under which subgraphs' states are stored, find states in them, and describe their calls.

A namespace is the path of tasks to the graph: `node:task` for each level, joined with `|`. Each of its checkpoints has
in its metadata (`parents`) the checkpoints of the outer graphs on which it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from itertools import product
from typing import Any, Final

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.history import walk
from checkpoint_savers.records import CALLER, FOLLOWED, GIVEN, CheckpointId, CheckpointRow, Header, TaskId
from checkpoint_savers.saver_port import PAGE

from ..._core.program import Node
from ..._core.task import Task
from ...types import RunnableConfig
from .digests import is_changed

NO_TASK: Final = TaskId("")
"""A task id that names no task."""


def namespace_of(ns: str, task: Task, *, keeps_state: bool, number: int = 0) -> str:
    """Return the namespace of a subgraph: made of the nodes and tasks that run it.

    Args:
        ns: the namespace of the task's own graph.
        task: the task that runs the subgraph.
        keeps_state: the subgraph keeps its state from call to call, so that its namespace must not contain task ids.
        number: the subgraph's number among those that the task runs, from 0.
    """
    inside = f"{ns}|{task.namespace}" if ns else task.namespace
    if keeps_state:
        inside = "|".join(part.partition(":")[0] for part in inside.split("|"))
    return f"{inside}|{number}" if number else inside


def former_namespaces(ns: str, nodes: Sequence[Node]) -> list[str]:
    """Return the namespaces that a kept state had under former names of the nodes that contain it, newest first.

    Args:
        ns: the namespace of the kept state.
        nodes: the nodes that contain it, the outermost first.
    """
    inside = iter(nodes)
    # A number is the subgraph's among those of one task.
    names = [(part,) if part.isdigit() else (part, *next(inside).was) for part in ns.split("|")]
    return ["|".join(parts) for parts in product(*names)][1:]


def ids_in(ns: str, caller: str) -> str:
    """Return the namespace for task ids: `ns` itself, or one for each caller if the graph keeps its state.

    A kept namespace outlives its calls. Without the caller, a new question could have the id of one in a run that was
    discarded.
    """
    return f"{ns}@{caller}" if caller else ns


async def has_child(saver: BaseCheckpointSaver, thread_id: str, ns: str, at: CheckpointId) -> bool:
    """Return True if another checkpoint has this one as its parent, so that it is no branch's tip."""
    async with aclosing(walk(saver, thread_id, ns)) as headers:
        async for header, _, _ in headers:
            if header.parent_id == at:
                return True
            # Ids increase, so this walk from newest to oldest meets a child of `at` before `at` itself. A pruned
            # child has left `FOLLOWED` in the metadata of its parent.
            if header.checkpoint_id <= at:
                return header.checkpoint_id == at and FOLLOWED in header.metadata
    return False


async def made_on(
    saver: BaseCheckpointSaver,
    thread_id: str,
    ns: str,
    outer_ns: str,
    at: CheckpointId,
    *,
    caller: TaskId = NO_TASK,
) -> tuple[CheckpointId, bool] | None:
    """Find the newest checkpoint of a namespace that was made on a given checkpoint of the outer graph.

    Args:
        saver: stores the thread.
        thread_id: the thread.
        ns: the namespace to search.
        outer_ns: the outer graph's namespace.
        at: the outer graph's checkpoint.
        caller: the task that ran the graph, if `ns` has no task ids (a kept state); else `NO_TASK`.

    Returns:
        The checkpoint, and whether it is the namespace's head; None if there is none.
    """
    chain = await saver.read(thread_id, ns)
    if chain is None:
        return None
    if was_made_on(chain.rows[-1], outer_ns, at, caller):
        return chain.head, True
    async with aclosing(walk(saver, thread_id, ns)) as headers:
        async for header, _, _ in headers:
            if was_made_on(header, outer_ns, at, caller):
                return header.checkpoint_id, False
            if header.checkpoint_id < at:  # older than the outer checkpoint, so not made on it
                break
    return None


async def graphs_on(saver: BaseCheckpointSaver, thread_id: str, at: CheckpointId) -> dict[str, Header]:
    """Return the newest checkpoint of each namespace that subgraphs have made on a checkpoint of the root graph.

    Args:
        saver: stores the thread.
        thread_id: the thread.
        at: the root graph's checkpoint.
    """
    graphs: dict[str, Header] = {}
    before: CheckpointId | None = None
    while True:
        page = await saver.scan(thread_id, None, before=before, limit=PAGE)
        for header in page:
            if header.checkpoint_id <= at:
                return graphs
            if parents_of(header).get("") == at:
                graphs.setdefault(header.ns, header)
        if len(page) < PAGE:
            return graphs
        before = page[-1].checkpoint_id


def was_made_on(row: CheckpointRow | Header, outer_ns: str, at: CheckpointId, caller: TaskId) -> bool:
    """Return True if a checkpoint was made on the outer graph's checkpoint `at`, by `caller` if that is given."""
    return parents_of(row).get(outer_ns) == at and (not caller or row.metadata.get(CALLER) == caller)


def parents_of(row: CheckpointRow | Header) -> dict[str, str]:
    """Return the checkpoint of each outer graph on which a checkpoint was made, by namespace."""
    found = row.metadata.get("parents")
    return found if isinstance(found, dict) else {}


def child_of(ns: str, row: Header) -> tuple[str, str]:
    """Return the node and the id of the task of a graph that ran the subgraph to which a checkpoint belongs.

    Of a state that is kept further inside, it is the task that ran the subgraph itself.

    Args:
        ns: the graph's namespace.
        row: the header of a checkpoint of the subgraph, or of one further inside.
    """
    if CALLER in row.metadata:  # a kept namespace has no ids of tasks
        *_, name = ["", *[part for part in row.ns.split("|") if not part.isdigit()]]
        return name, row.metadata[CALLER]
    name, _, task = row.ns.removeprefix(f"{ns}|" if ns else "").partition("|")[0].partition(":")
    return name, task


def config_of(
    thread_id: str, ns: str, checkpoint_id: CheckpointId | None, parents: Mapping[str, str] = {}
) -> RunnableConfig:
    """Return the config that addresses a checkpoint, or the namespace's head if `checkpoint_id` is None."""
    known: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": ns}
    if checkpoint_id:
        known["checkpoint_id"] = checkpoint_id
        if ns:
            known["checkpoint_map"] = {**parents, ns: checkpoint_id}
    return {"configurable": known}


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
