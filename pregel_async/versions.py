"""Several versions of a graph as one graph: each thread runs on the version that is to continue it.

    orders = Versions({2: orders_v2, 3: orders_v3}, pin="open")
    await orders.ainvoke(Command(resume="yes"), "order-17")     # by version 2, which has asked

`Versions` is a subclass of the compiled graph, so that all that takes a graph takes it. Its attributes, schemas and
drawing are those of the newest version. Each call that names a thread reads the thread's head, chooses a version by it,
and passes the call on to that version's graph. The choice must hold when the run has acquired the thread: the graph
runs with a saver that compares the head, and if another run has moved it meanwhile, the choice is made again.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, Unpack, cast

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader
from checkpoint_savers.deltas import read_record
from checkpoint_savers.records import Chain, CheckpointId, Commit, Lease, Waiter

from ._api.attributes import stored_through
from ._api.checking import check_threads
from ._api.compiled import Graph
from ._api.definition import Definition
from ._api.drawing import Drawing
from ._api.state import StateReader
from ._checks.config import address_of, merge_configs
from ._checks.options import CheckOptions, StreamOptions, UpdateOptions, checked_options
from ._runtime.persistence.mismatches import of_version, version_in
from ._runtime.streaming.stream import GraphStream
from .errors import GraphValidationError, GraphVersionError
from .types import Config, Mismatch, RunnableConfig, StateSnapshot, StateUpdate, ThreadCheck

__all__ = ["Pin", "Versions"]

Pin: TypeAlias = Literal["open", "thread", "never"]
"""What keeps a thread on its version: pending tasks, its whole life, or nothing."""


class _HeadMovedError(Exception):
    """Another run has moved the thread's head between the choice of a version and the lease. Nothing was run."""


class Versions(Graph[Any, Any]):
    """Several versions of a graph, used like any other graph.

    A thread's version is that of its head: `__version__` in the metadata, which the graph's `compile(version=)` writes.
    As the subgraph of another graph it is the newest version.

    Args:
        graphs: the graphs by version, all with the same checkpointer. A graph that was compiled without `version=` gets
            the version that it has here.
        pin: "open" continues a thread with pending tasks by the version that planned them, and moves idle threads to
            the newest version. "thread" keeps a thread on its version for life, so that only new threads get the
            newest one. "never" runs all threads by the newest version, with its migrations.

    Raises:
        GraphValidationError: there is no graph, a version is no whole number from 1 on, or not that of its graph, or
            `pin` is unknown.
    """

    def __init__(self, graphs: Mapping[int, Graph[Any, Any]], *, pin: Pin = "open") -> None:
        if pin not in ("open", "thread", "never"):
            raise GraphValidationError(f"pin is 'open', 'thread' or 'never', not {pin!r}")
        if not graphs:
            raise GraphValidationError("Versions takes at least one graph: {1: graph}")
        made = {version: _with_version(version, graph) for version, graph in sorted(graphs.items())}
        newest = made[max(made)]
        self._graphs: dict[int, Graph[Any, Any]] = {
            version: graph
            if graph.checkpointer is newest.checkpointer
            else graph.with_checkpointer(newest.checkpointer)
            for version, graph in made.items()
        }
        self._pin: Pin = pin
        super().__init__(newest._definition)

    @property
    def graphs(self) -> Mapping[int, Graph[Any, Any]]:
        """The graphs by version, the oldest first."""
        return dict(self._graphs)

    @property
    def pin(self) -> Pin:
        """What keeps a thread on its version."""
        return self._pin

    def __copy__(self) -> Versions:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._graphs = {version: copy.copy(graph) for version, graph in self._graphs.items()}
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        for graph in self._graphs.values() if not name.startswith("_") else ():
            graph.__setattr__(name, value)

    async def version_of(self, config: Config) -> int:
        """Return the version that runs the next call on a thread.

        Args:
            config: a thread id; or a config, which may name a checkpoint.

        Returns:
            The version; the newest for a thread of which nothing is stored.

        Raises:
            GraphVersionError: the version that is to continue the thread is not among these.
            CorruptCheckpointError: the stored rows are damaged.
            StorageError: storage failed.
        """
        return (await self._choose(config))[0]

    async def _choose(self, config: Config | None) -> tuple[int, Chain | None]:
        """Return a version, and the chain by which it was chosen; None if nothing is stored of the thread."""
        saver, newest = self._definition.saver, max(self._graphs)
        thread_id, ns, at = address_of(merge_configs(self.config, config))
        if saver is None or thread_id is None:
            return newest, None
        chain = await saver.read(thread_id, "", None if ns else at)
        return newest if chain is None else self._version_for(thread_id, chain), chain

    def _version_for(self, thread_id: str, chain: Chain) -> int:
        row, newest = chain.rows[-1], max(self._graphs)
        stored = version_in(row.metadata, [read_record(each, thread_id) for each in chain.records])
        if stored <= newest and (self._pin == "never" or stored == newest):
            return newest
        known = self._graphs.get(stored)
        if stored < newest and self._pin == "open" and not _is_open(known or self._graphs[newest], thread_id, chain):
            return newest
        if known is None:
            raise _missing(self, thread_id, stored)
        return stored

    def _bound(self, version: int, saver: BaseCheckpointSaver | None) -> Graph[Any, Any]:
        """Return the graph of a version, with the saver through which this graph's runs are stored."""
        graph = self._graphs[version]
        return graph if saver is None or saver is graph._definition.saver else stored_through(graph, saver)

    async def _chosen(self, config: Config | None) -> Graph[Any, Any]:
        """Return the graph for reading a thread."""
        return self._bound((await self._choose(config))[0], self._definition.saver)

    async def _guarded(self, config: Config | None) -> Graph[Any, Any]:
        """Return the graph for a call that writes to a thread, which raises `_HeadMovedError` if the head has moved."""
        version, chain = await self._choose(config)
        saver = self._definition.saver
        thread_id, ns, at = address_of(merge_configs(self.config, config))
        if saver is None or thread_id is None or (at is not None and not ns):
            return self._bound(version, saver)  # the version of a checkpoint never changes
        head = None if chain is None else chain.head
        return self._bound(version, cast("BaseCheckpointSaver", _GuardedSaver(saver, thread_id, head)))

    async def _write(self, config: Config | None, call: Callable[[Graph[Any, Any]], Awaitable[Any]]) -> Any:
        while True:
            graph = await self._guarded(config)
            try:
                return await call(graph)
            except _HeadMovedError:
                continue

    async def ainvoke(self, input: Any, config: Config | None = None, **options: Any) -> Any:
        return await self._write(config, lambda graph: graph.ainvoke(input, config, **options))

    def astream(self, input: Any, config: Config | None = None, **options: Any) -> GraphStream[Any]:
        # Made first, so that wrong options raise here, as in every graph.
        unread = super().astream(input, config, **checked_options("astream", StreamOptions, options))

        async def choose() -> GraphStream[Any]:
            return (await self._guarded(config)).astream(input, config, **options)

        return _VersionedStream(unread, choose)

    async def aget_state(self, config: Config, *, subgraphs: bool = False) -> StateSnapshot[Any]:
        return await (await self._readable(config)).aget_state(config, subgraphs=subgraphs)

    async def aget_state_history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot[Any]]:
        graph = await self._readable(config)
        found: Any = graph.aget_state_history(config, filter=filter, before=before, limit=limit)
        async with aclosing(found):
            async for snapshot in found:
                yield snapshot

    def acheck_threads(
        self, saver: BaseCheckpointSaver | None = None, **options: Unpack[CheckOptions]
    ) -> AsyncIterator[ThreadCheck]:
        checked = checked_options("acheck_threads", CheckOptions, options)
        bound = self if saver is None else self.with_checkpointer(saver)

        def choose(thread_id: str, head: Chain) -> Definition:
            return bound._graphs[bound._version_for(thread_id, head)]._definition

        return check_threads(bound._definition, None, checked, choose)

    async def abulk_update_state(
        self, config: Config, supersteps: Sequence[Sequence[StateUpdate]], **options: Any
    ) -> RunnableConfig:
        checked = checked_options("abulk_update_state", UpdateOptions, options)
        updated: RunnableConfig = await self._write(
            config, lambda graph: graph.abulk_update_state(config, supersteps, **checked)
        )
        return updated

    async def _readable(self, config: Config) -> Graph[Any, Any]:
        """Return the graph that shows a thread: the newest one if the thread's own version is not among these."""
        try:
            return await self._chosen(config)
        except GraphVersionError:
            return self._bound(max(self._graphs), self._definition.saver)

    def _drawing(self) -> Drawing:
        return self._graphs[max(self._graphs)]._drawing()


def _with_version(version: int, graph: Graph[Any, Any]) -> Graph[Any, Any]:
    key: object = version
    if not isinstance(key, int) or isinstance(key, bool) or key < 1:
        raise GraphValidationError(f"a version is a whole number from 1 on, not {key!r}")
    if not isinstance(cast("object", graph), Graph) or isinstance(graph, Versions):
        raise GraphValidationError(f"version {version} is a {type(graph).__name__}, and no compiled graph")
    own = graph._definition.program.version
    if own not in (0, version):
        raise GraphValidationError(f"the graph of version {version} was compiled with version={own}")
    made = copy.copy(graph)
    made._change_program(version=version)
    return made


def _is_open(graph: Graph[Any, Any], thread_id: str, chain: Chain) -> bool:
    """Return True if tasks are pending at the last checkpoint of a chain."""
    definition, row = graph._definition, chain.rows[-1]
    assert definition.saver is not None and definition.codec is not None  # the chain was read with it
    rows = ChainReader(thread_id, "", chain.rows)
    # All keys count as warned of already: this is no load.
    program = structs.replace(definition.program, warned=set(rows.state(row.checkpoint_id).values))
    view, _ = StateReader(program, definition.saver, definition.codec, {}).view_with_tasks(
        (rows, row), chain.records, ()
    )
    return bool(view.next)


def _missing(versions: Versions, thread_id: str, stored: int) -> GraphVersionError:
    program = versions._definition.program
    newer = of_version(program, stored, "")
    if newer:
        return GraphVersionError(thread_id, program.name, stored, program.version, newer)
    has = ", ".join(map(str, versions.graphs))
    reason = f"version {stored} of graph {program.name!r} has to continue it, and there are versions {has}"
    found = Mismatch(
        kind="version", name=program.name, reason=reason, advice=f"Versions({{{stored}: ...}})", blocks="all"
    )
    return GraphVersionError(thread_id, program.name, stored, program.version, [found])


class _GuardedSaver:
    """Wraps a saver for one run of one thread: until the run commits, the root's head must be the expected one."""

    # All else is delegated by `__getattr__`: the saver is the user's object, and may be of any class.

    def __init__(self, saver: BaseCheckpointSaver, thread_id: str, head: CheckpointId | None) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._head = head
        self._has_committed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: CheckpointId | None = None) -> Chain | None:
        chain = await self._saver.read(thread_id, ns, checkpoint_id)
        is_head = not ns and checkpoint_id is None and thread_id == self._thread_id
        if is_head and not self._has_committed and (None if chain is None else chain.head) != self._head:
            raise _HeadMovedError
        return chain

    async def commit(self, lease: Lease, commit: Commit) -> None:
        self._has_committed = True
        await self._saver.commit(lease, commit)

    def begin_commit(self, lease: Lease, commit: Commit, waiter: Waiter) -> Callable[[], None]:
        self._has_committed = True
        return self._saver.begin_commit(lease, commit, waiter)


class _VersionedStream(GraphStream[Any]):
    """A stream that chooses its version, and so its run, when it is first read.

    Args:
        unread: the stream of the newest version, not read yet.
        choose: returns the stream of the chosen version, not read yet.
    """

    def __init__(self, unread: GraphStream[Any], choose: Callable[[], Awaitable[GraphStream[Any]]]) -> None:
        self.__dict__.update(unread.__dict__)
        self._choose = choose
        self._is_chosen = False

    async def _take_chosen(self) -> None:
        recalls, dismissed = self._buffer.recalls, self._subscription.dismissed
        self.__dict__.update((await self._choose()).__dict__)
        self._buffer.recalls, self._subscription.dismissed = recalls, dismissed

    async def _settle(self) -> None:
        """Take over the chosen stream, unless that is done, or the stream was closed."""
        if not self._is_chosen and not self._buffer.ended:
            await self._take_chosen()
            self._is_chosen = True

    async def _settled(self, read: Callable[[], Awaitable[Any]]) -> Any:
        await self._settle()
        while True:
            try:
                return await read()
            except _HeadMovedError:
                await self._take_chosen()

    async def __anext__(self) -> Any:
        return await self._settled(super().__anext__)

    async def begin(self) -> None:
        await self._settled(super().begin)

    async def __aenter__(self) -> GraphStream[Any]:
        await self._settle()
        return await super().__aenter__()

    async def finish(self) -> None:
        await self._settled(super().finish)
