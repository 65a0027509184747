"""Find the checkpoint from which a graph's run continues, and load it.

The metadata of a subgraph's checkpoint (`parents`) names the checkpoints of the outer graphs on which it was made. So a
subgraph that was interrupted in its parent's open superstep is found by that superstep's checkpoint. A fork of the
parent has another checkpoint and does not find it: a stored state belongs to its branch. A *kept state*, of a subgraph
that keeps its state from call to call, is also found by its tip, which the root's checkpoints name.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from checkpoint_savers.chain import ChainReader, ChainWriter, EncodedState
from checkpoint_savers.deltas import TaskResult, read_record
from checkpoint_savers.records import CALLER, MADE_IN, VERSION, Chain, CheckpointId, CheckpointRow, TaskId

from ...errors import GraphVersionError, KeptStateWarning
from ...types import Mismatch
from .at_exit import AtExitWriter, InnerGraphs
from .commit_writers import CommitWriter
from .lease import ThreadLease
from .loaded_namespace import LoadedNamespace
from .mismatches import earlier_writes, keys_of_update, of_records, of_version, version_in, without_keys
from .namespaces import CallSite, graphs_on, has_child, ids_in, made_on, parents_of, was_made_on
from .overlapped import OverlappedWriter
from .records import AMENDED, MIGRATED, OF_STATE, amend_again
from .restore import Restored, restore


def begin_writing(lease: ThreadLease, ns: str) -> tuple[CommitWriter, tuple[InnerGraphs, ...]]:
    """Return the root graph's writer for the run's durability. With "exit", return the run's subgraph calls, too."""
    if lease.durability == "exit":
        at_exit = AtExitWriter(lease, ns)
        return at_exit, (at_exit.graphs,)
    return (OverlappedWriter if lease.durability == "async" else CommitWriter)(lease, ns), ()


async def read_chain(namespace: LoadedNamespace, at: CheckpointId | None = None) -> Sequence[Chain]:
    """Return the rows up to a checkpoint, or up to the head, as a sequence of one; empty if nothing is stored."""
    chain = await namespace.lease.saver.read(namespace.lease.thread_id, namespace.ns, at)
    return () if chain is None else (chain,)


async def load_checkpoint(namespace: LoadedNamespace, chain: Chain, *, fork: bool = False) -> None:
    """Load a stored checkpoint, the last one of `chain`, into an empty namespace.

    Args:
        namespace: the namespace.
        chain: the checkpoint's rows and task records.
        fork: continue on a new branch, even if the checkpoint is a tip.
    """
    writer, lease, row = namespace.writer, namespace.lease, chain.rows[-1]
    at, thread_id = row.checkpoint_id, lease.thread_id
    writer.head = chain.head
    reader = ChainReader(thread_id, namespace.ns, chain.rows)
    state = reader.state(at)
    writer.chain, writer.stored, writer.stored_step = ChainWriter.resume(reader, at), at, row.step
    # A checkpoint that has a child is run again, which needs a new branch. The tip of another branch is continued, and
    # becomes the head.
    if at != chain.head and not fork:
        fork = await has_child(lease.saver, thread_id, namespace.ns, at)
        writer.moves_head = not fork
    # On a new branch the superstep runs again, so its task records stay with the old branch. The records of updates of
    # the open superstep, by calls or by a migration, are loaded: these updates are part of the state.
    namespace.task_records.load([record for record in chain.records if not fork or record.task_id in OF_STATE])
    namespace.loaded_at, namespace.branches = at, fork
    _take_row(namespace, row, state, namespace.task_records.results)


def load_unstored(namespace: LoadedNamespace, earlier: LoadedNamespace) -> None:
    """Load the state of an earlier call of this run, which is not stored yet (durability "exit").

    Args:
        namespace: the empty namespace, with the writer of the earlier call.
        earlier: the earlier call.
    """
    records, writer, site = namespace.task_records, namespace.writer, namespace.site
    records.results, records.names = earlier.task_records.results, earlier.task_records.names
    records.earlier, records.version = earlier.task_records.earlier, earlier.task_records.version
    namespace.loaded_at, namespace.step, namespace.branches = earlier.loaded_at, earlier.step, earlier.branches
    namespace.scope = earlier.scope
    namespace.loaded_version = earlier.loaded_version if writer.tip == earlier.loaded_at else earlier.own_version
    program, state, thread_id = namespace.program, writer.chain.state, namespace.lease.thread_id
    version = namespace.loaded_version.get(VERSION, 1)
    results = records.results
    _take(
        namespace,
        restore(program, state, namespace.step, namespace.codec, thread_id=thread_id, version=version, results=results),
    )
    pending = [each.metadata for each in writer.chain.deferred if each.checkpoint_id == writer.tip]
    is_same_call = any(site.made_checkpoint(metadata) for metadata in pending)
    if is_same_call or (earlier.continues and earlier.site.is_same(site)):
        namespace.continue_call(earlier.site)


def _take(namespace: LoadedNamespace, restored: Restored) -> None:
    """Make this the loaded state, with the updates that calls made to the open superstep."""
    namespace.board = restored.board
    namespace.adopt(restored.program)
    results = namespace.task_records.results
    amended = results.get(AMENDED)
    namespace.mismatches = restored.mismatches
    if amended is not None:
        namespace.mismatches = without_keys(restored.mismatches, keys_of_update(restored.program, amended))
    if results:
        codec = namespace.codec
        namespace.mismatches += of_records(
            namespace.program, results.values(), restored.state, codec, namespace.ns, restored.migrated
        )
        if amended is not None:
            scope = namespace.scope, ids_in(namespace.ns, namespace.caller)
            amend_again(namespace.program, restored.board, amended, codec, scope)


async def load_latest(namespace: LoadedNamespace, outer: LoadedNamespace, former: Sequence[str] = ()) -> None:
    """Load what a subgraph's call continues: an earlier attempt at this call, or the tip of a kept state.

    The namespace stays empty if there is neither.

    Args:
        namespace: the empty namespace.
        outer: the outer graph's namespace.
        former: the namespaces that a kept state had under former names of nodes, newest first.
    """
    if namespace.lease.fresh and namespace.ns not in namespace.lease.visited:
        # The thread was empty when this run acquired it, and the run has not written this namespace: save the read.
        return
    for chain in await read_chain(namespace):
        namespace.writer.head = chain.head
        for found in await _earlier_attempt(namespace, chain, outer):
            await load_checkpoint(namespace, found)
            namespace.continue_call(CallSite.of(found.rows[-1]))
            return
        for tip in _tips(namespace, chain, former):
            for found in await read_chain(namespace, tip):
                await load_checkpoint(namespace, found)
                return
    if namespace.caller:
        await _load_former(namespace, outer, former)


async def _load_former(namespace: LoadedNamespace, outer: LoadedNamespace, former: Sequence[str]) -> None:
    """Begin a kept state's namespace with the state that it had under a former name; warn if it may have had one."""
    lease, ns = namespace.lease, namespace.ns
    stored = [each for each in former if each in lease.tips]
    for other in sorted(stored, key=lease.tips.__getitem__, reverse=True):
        chain = await lease.saver.read(lease.thread_id, other, lease.tips[other])
        if chain is not None:
            reader, row = ChainReader(lease.thread_id, other, chain.rows), chain.rows[-1]
            # The first row here is a keyframe of this state, unknown keys included. The old rows stay as they are, for
            # other branches and for history.
            state = reader.state(row.checkpoint_id).copy()
            namespace.writer.chain = ChainWriter(ns, state, None, None)
            migrated = [record for record in chain.records if record.task_id == MIGRATED]
            _take_row(namespace, row, state, {each.task_id: read_record(each, lease.thread_id) for each in migrated})
            return
    inside, _, _ = ns.rpartition("|")
    nodes = outer.program.nodes
    parts = {other: other.rpartition("|") for other in lease.tips}
    left = [each for each, (around, _, name) in parts.items() if around == inside and name not in nodes]
    for other in sorted([each for each in left if not each[-1].isdigit()], key=lease.tips.__getitem__)[-1:]:
        found = KeptStateWarning(lease.thread_id, outer.program.name, ns, other)
        policy = outer.program.upgrades.unknown_stored
        if policy == "warn":
            warnings.warn(found, stacklevel=2)
        elif policy == "error":
            name, advice = other.rpartition("|")[2], "add_node(..., was=) if the node was renamed"
            namespace.mismatches += (
                Mismatch(kind="state", name=name, namespace=ns, reason=str(found), advice=advice, blocks="all"),
            )


def _take_row(
    namespace: LoadedNamespace, row: CheckpointRow, state: EncodedState, results: Mapping[TaskId, TaskResult]
) -> None:
    """Load a checkpoint's state into the namespace: board, step and version.

    Args:
        namespace: the namespace.
        row: the checkpoint.
        state: its state.
        results: the records of the superstep after it.

    Raises:
        GraphVersionError: a greater version of the graph has made the checkpoint, or records of the open superstep.
    """
    program, ns, thread_id = namespace.program, namespace.ns, namespace.lease.thread_id
    stored = version_in(row.metadata, results.values())
    if newer := of_version(program, stored, ns):
        raise GraphVersionError(thread_id, program.name, stored, program.version or 1, newer)
    if program.version > row.metadata.get(VERSION, 1):
        namespace.task_records.version = program.version
    restored = restore(
        program,
        state,
        row.step,
        namespace.codec,
        thread_id=thread_id,
        ns=ns,
        at=row.checkpoint_id,
        version=row.metadata.get(VERSION, 1),
        results=results,
        recorded=earlier_writes(program, results.values()),
    )
    namespace.encoder.remember(restored.board, state)
    namespace.step, namespace.scope = row.step, row.metadata.get(MADE_IN, thread_id)
    # A copy of the checkpoint (`branch_off`) has its values as they are stored, and so its version too.
    namespace.loaded_version = {key: row.metadata[key] for key in (VERSION,) if key in row.metadata}
    _take(namespace, restored)


async def _earlier_attempt(namespace: LoadedNamespace, chain: Chain, outer: LoadedNamespace) -> Sequence[Chain]:
    """Return the newest state of an earlier attempt at this call, as a sequence of one; empty if there is none."""
    lease, tip = namespace.lease, outer.writer.tip
    if was_made_on(chain.rows[-1], outer.ns, tip, namespace.caller):
        return (chain,)
    if tip != outer.loaded_at:
        return ()  # this run made the outer checkpoint, so any state made on it is the head, checked above
    found = await made_on(lease.saver, lease.thread_id, namespace.ns, outer.ns, tip, caller=namespace.caller)
    return () if found is None else await read_chain(namespace, found[0])


def _tips(namespace: LoadedNamespace, chain: Chain, former: Sequence[str]) -> Sequence[CheckpointId]:
    """Return the tip of a kept state on this branch of the root graph, as a sequence of one.

    It is empty if the state has moved later under a former name, in which a graph of a former version has run.
    """
    if not namespace.caller:
        return ()
    if parents_of(chain.rows[-1]).get("") == namespace.parents[""]:
        return (chain.head,)  # moved in the root's open superstep, so that no root checkpoint has it yet
    tips = namespace.lease.tips
    names = [each for each in (namespace.ns, *former) if each in tips]
    return (tips[namespace.ns],) if names and max(names, key=tips.__getitem__) == namespace.ns else ()


async def find_moved_tips(lease: ThreadLease, at: CheckpointId) -> None:
    """Note in the lease which subgraphs earlier attempts at an open superstep ran, and which kept tips they moved.

    Args:
        lease: the thread's lease.
        at: the root's checkpoint on which the superstep is open.
    """
    # The task that moved a tip may be recorded and not run again. Then no other code would note the tip, and the next
    # root checkpoint would carry the old one.
    lease.earlier_graphs = await graphs_on(lease.saver, lease.thread_id, at)
    for ns, header in lease.earlier_graphs.items():
        if CALLER in header.metadata and ns not in lease.moved_tips:
            lease.move_tip(ns, header.checkpoint_id)
