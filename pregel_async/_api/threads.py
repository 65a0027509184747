"""Reading and updating threads: which graph's state a config addresses, and what reads or edits it."""

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
from .._checks.options import UpdateOptions, check_on_conflict
from .._runtime.observing.observed import ObservedUpdate, measure_writes
from .._runtime.observing.observer import UpdateStarted
from .._runtime.observing.observers import Observers
from .._runtime.persistence.lease import ThreadLease
from .._runtime.persistence.namespace_writer import NamespaceWriter
from .._runtime.persistence.namespaces import config_of
from .._runtime.tasks.run_options import RunOptions
from ..errors import ConfigError, InvalidUpdateError, SubgraphNotFoundError
from ..types import Config, RunnableConfig, StateSnapshot, StateUpdate
from .definition import Definition
from .editing import checked, edit, edit_inside
from .state import StateReader


class _Place(msgspec.Struct, frozen=True):
    """What a config addresses.

    Attributes:
        graph: the owner of the state: the called graph, or one inside it.
        saver, codec: what it is stored in and with.
    """

    graph: Definition
    saver: BaseCheckpointSaver
    codec: Codec
    thread_id: str
    ns: str
    at: CheckpointId | None


def _find(graph: Definition, config: Config) -> _Place:
    """Find what a config addresses. Raises `ConfigError`, `SubgraphNotFoundError`."""
    saver, codec = graph.saver, graph.codec
    if saver is None or codec is None:
        raise ConfigError("the graph has no checkpointer, so nothing is stored: compile it with one")
    thread_id, ns, at = address_of(merge_configs(graph.config, config))
    if thread_id is None:
        raise ConfigError("the config has no thread_id: pass {'configurable': {'thread_id': ...}}, or the thread's id")
    for part in ns.split("|") if ns else ():
        if part.isdigit():  # the how-manieth graph that one task ran
            continue
        name = part.partition(":")[0]
        inner = graph.inside.stored.get(name)
        if inner is None:
            raise SubgraphNotFoundError(
                f"checkpoint_ns {ns!r} names node {name!r}, and graph {graph.name!r} has no node of that name that "
                "runs a graph"
            )
        graph = inner._definition
        codec = graph.codecs.nested(codec)
    return _Place(graph, saver, codec, thread_id, ns, at)


async def latest(graph: Definition, config: Config, *, subgraphs: bool) -> StateSnapshot:
    """See `Graph.aget_state`."""
    place = _find(graph, config)
    return await _reader(place.graph, place.saver, place.codec).latest(
        place.thread_id, place.ns, place.at, subgraphs=subgraphs
    )


async def history(
    graph: Definition, config: Config, *, filter: Mapping[str, Any] | None, before: Config | None, limit: int | None
) -> AsyncIterator[StateSnapshot]:
    """See `Graph.aget_state_history`."""
    place = _find(graph, config)
    reader = _reader(place.graph, place.saver, place.codec)
    bound = None if before is None else address(before)[2]
    for named in (place.at, bound):
        if named is not None:
            await reader.require(place.thread_id, place.ns, named)
    snapshots = reader.history(place.thread_id, place.ns, place.at, filter=filter, before=bound, limit=limit)
    async with aclosing(snapshots):
        async for snapshot in snapshots:
            yield snapshot


def _reader(graph: Definition, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
    inner = {name: _Inner(found._definition) for name, found in graph.inside.stored.items()}
    return StateReader(graph.program, saver, codec, inner, complete=graph.complete_state)


class _Inner:
    """A graph inside another, as `StateReader` asks for it."""

    def __init__(self, graph: Definition) -> None:
        self._graph = graph
        self.keeps = graph.checkpointer is True

    def reader(self, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
        return _reader(self._graph, saver, self._graph.codecs.nested(codec))


async def update(
    root: Definition, config: Config, supersteps: Sequence[Sequence[StateUpdate]], given: UpdateOptions
) -> RunnableConfig:
    """See `Graph.abulk_update_state`."""
    updates = checked(supersteps)
    on_conflict = check_on_conflict(given)
    place = _find(root, config)
    graph, thread_id, ns, at = place.graph, place.thread_id, place.ns, place.at
    merged = merge_configs(root.config, config)
    settings = settings_of(without_address(merged), RunOptions(), stored=False, nested=True)
    run_id = settings.run_id or root.environment.new_id()
    metadata = {**settings.metadata, "run_id": run_id}
    options = graph.options.of_edit(root.options)

    async def write(saver: BaseCheckpointSaver) -> RunnableConfig:
        async with await ThreadLease.acquire(saver, root.environment, thread_id, on_conflict) as lease:
            lease.metadata = settings.thread_metadata
            thread = await NamespaceWriter.open(lease, place.codec, graph.program, ns=ns, at=at, metadata=metadata)
            if ns:
                if thread.board is None:
                    raise InvalidUpdateError(f"nothing is stored in namespace {ns!r} of thread {thread_id!r} to update")
                assert root.codec is not None  # what `_find` has asked
                outer = await NamespaceWriter.open(lease, root.codec, root.program, metadata=metadata)
                is_past = at is not None and at != lease.tips.get(ns)
                await edit_inside(
                    thread, outer, updates, run_id, merged, options, limit=settings.limit, is_past=is_past
                )
            else:
                await edit(thread, updates, run_id, merged, options, limit=settings.limit)
        return config_of(thread_id, ns, thread.tip, thread.parents)

    if not root.options.observers:
        return await write(place.saver)
    started = UpdateStarted(
        run_id=run_id,
        thread_id=thread_id,
        namespace=ns,
        graph=graph.name,
        supersteps=len(updates),
        updates=sum(len(superstep) for superstep in updates),
    )
    observed = ObservedUpdate(Observers(root.options.observers, root.environment), started)
    return await observed.observe(lambda: write(measure_writes(place.saver, observed, waits=on_conflict == "wait")))
