"""Read and update threads: find the graph whose state a config addresses, and call the reader or editor for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.history import address
from checkpoint_savers.records import CheckpointId

from .._checks.config import address_of, merge_configs, settings_of, without_address
from .._checks.options import CheckOptions, MigrateOptions, UpdateOptions, check_on_conflict
from .._runtime.observing.observed import ObservedUpdate, measure_writes
from .._runtime.observing.observer import UpdateStarted
from .._runtime.observing.observers import Observers
from .._runtime.persistence.lease import ThreadLease
from .._runtime.persistence.namespace_writer import NamespaceWriter
from .._runtime.persistence.namespaces import config_of
from .._runtime.tasks.run_options import RunOptions
from ..errors import ConfigError, InvalidUpdateError, SubgraphNotFoundError
from ..types import Config, RunnableConfig, StateSnapshot, StateUpdate, ThreadCheck, ThreadMigration
from .definition import Definition
from .editing import check_updates, edit, edit_subgraph
from .state import StateReader


class _StateAddress(msgspec.Struct, frozen=True):
    """The state that a config addresses.

    Attributes:
        graph: the graph that owns the state: the called graph, or a subgraph at any depth.
        saver: the saver that stores the state.
        codec: the codec of the state's values.
        thread_id: the thread's id.
        ns: the checkpoint namespace of the graph.
        at: the id of the checkpoint; None for the head.
    """

    graph: Definition
    saver: BaseCheckpointSaver
    codec: Codec
    thread_id: str
    ns: str
    at: CheckpointId | None


def _resolve(graph: Definition, config: Config) -> _StateAddress:
    """Find the state that a config addresses. Raises `ConfigError`, `SubgraphNotFoundError`."""
    saver, codec = graph.saver, graph.codec
    if saver is None or codec is None:
        raise ConfigError("the graph has no checkpointer, so nothing is stored: compile it with one")
    thread_id, ns, at = address_of(merge_configs(graph.config, config))
    if thread_id is None:
        raise ConfigError("the config has no thread_id: pass {'configurable': {'thread_id': ...}}, or the thread's id")
    for part in ns.split("|") if ns else ():
        if part.isdigit():  # a counter: the task ran several graphs
            continue
        name = part.partition(":")[0]
        inner = graph.subgraph_index.stored.get(graph.program.upgrades.nodes.get(name, name))
        if inner is None:
            raise SubgraphNotFoundError(
                f"checkpoint_ns {ns!r} names node {name!r}, and graph {graph.name!r} has no node of that name that "
                "runs a graph"
            )
        graph = inner._definition
        codec = graph.codecs.nested(codec)
    return _StateAddress(graph, saver, codec, thread_id, ns, at)


async def latest(graph: Definition, config: Config, *, subgraphs: bool) -> StateSnapshot:
    """See `Graph.aget_state`."""
    target = _resolve(graph, config)
    return await _reader(target.graph, target.saver, target.codec).latest(
        target.thread_id, target.ns, target.at, subgraphs=subgraphs
    )


async def history(
    graph: Definition, config: Config, *, filter: Mapping[str, Any] | None, before: Config | None, limit: int | None
) -> AsyncIterator[StateSnapshot]:
    """See `Graph.aget_state_history`."""
    target = _resolve(graph, config)
    reader = _reader(target.graph, target.saver, target.codec)
    bound = None if before is None else address(before)[2]
    for named in (target.at, bound):
        if named is not None:
            await reader.require(target.thread_id, target.ns, named)
    snapshots = reader.history(target.thread_id, target.ns, target.at, filter=filter, before=bound, limit=limit)
    async with aclosing(snapshots):
        async for snapshot in snapshots:
            yield snapshot


def _reader(graph: Definition, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
    inner = {name: _DefinedSubgraph(found._definition) for name, found in graph.subgraph_index.stored.items()}
    return StateReader(graph.program, saver, codec, inner, complete=graph.complete_state)


class _DefinedSubgraph:
    """The `Subgraph` of a definition, for `StateReader`."""

    def __init__(self, graph: Definition) -> None:
        self._graph = graph
        self.keeps_state = graph.checkpointer is True

    def reader(self, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
        return _reader(self._graph, saver, self._graph.codecs.nested(codec))


def check(graph: Definition, saver: BaseCheckpointSaver | None, options: CheckOptions) -> AsyncIterator[ThreadCheck]:
    """See `Graph.acheck_threads`."""
    from .checking import check_threads  # imported lazily: most programs never check threads

    return check_threads(graph, saver, options)


def migrate(
    graph: Definition, saver: BaseCheckpointSaver | None, options: MigrateOptions
) -> AsyncIterator[ThreadMigration]:
    """See `Graph.amigrate_threads`."""
    from .migrating import migrate_threads  # imported lazily: most programs never migrate threads

    return migrate_threads(graph, saver, options)


async def update(
    root: Definition, config: Config, supersteps: Sequence[Sequence[StateUpdate]], given: UpdateOptions
) -> RunnableConfig:
    """See `Graph.abulk_update_state`."""
    updates = check_updates(supersteps)
    on_conflict = check_on_conflict(given)
    target = _resolve(root, config)
    graph, thread_id, ns, at = target.graph, target.thread_id, target.ns, target.at
    merged = merge_configs(root.config, config)
    settings = settings_of(without_address(merged), RunOptions(), stored=False, nested=True)
    run_id = settings.run_id or root.environment.new_id()
    metadata = {**settings.metadata, "run_id": run_id}
    options = graph.options.of_edit(root.options)

    async def write(saver: BaseCheckpointSaver) -> RunnableConfig:
        async with await ThreadLease.acquire(saver, root.environment, thread_id, on_conflict) as lease:
            lease.metadata = settings.thread_metadata
            thread = await NamespaceWriter.open(lease, target.codec, graph.program, ns=ns, at=at, metadata=metadata)
            if ns:
                if thread.board is None:
                    raise InvalidUpdateError(f"nothing is stored in namespace {ns!r} of thread {thread_id!r} to update")
                assert root.codec is not None  # checked by `_resolve`
                outer = await NamespaceWriter.open(lease, root.codec, root.program, metadata=metadata)
                is_past = at is not None and at != lease.tips.get(ns)
                await edit_subgraph(
                    thread, outer, updates, run_id, merged, options, limit=settings.limit, is_past=is_past
                )
            else:
                await edit(thread, updates, run_id, merged, options, limit=settings.limit)
        return config_of(thread_id, ns, thread.tip, thread.parents)

    if not root.options.observers:
        return await write(target.saver)
    started = UpdateStarted(
        run_id=run_id,
        thread_id=thread_id,
        namespace=ns,
        graph=graph.name,
        supersteps=len(updates),
        updates=sum(len(superstep) for superstep in updates),
    )
    observed = ObservedUpdate(Observers(root.options.observers, root.environment), started)
    return await observed.observe(lambda: write(measure_writes(target.saver, observed, waits=on_conflict == "wait")))
