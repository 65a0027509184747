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
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias, cast

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader
from checkpoint_savers.deltas import read_record
from checkpoint_savers.records import Chain, CheckpointId, Commit, Lease, Waiter

from ._api import calls
from ._api.attributes import stored_through
from ._api.checking import check_threads
from ._api.compiled import Graph
from ._api.definition import Definition
from ._api.drawing import Drawing
from ._api.migrating import migrate_threads
from ._api.state import StateReader
from ._api.stored_types import with_runtime_types
from ._checks.config import address_of, merge_configs
from ._checks.options import CheckOptions, MigrateOptions, UpdateOptions
from ._runtime.persistence.mismatches import of_version, version_in
from ._runtime.streaming.stream import GraphStream
from .errors import GraphValidationError, GraphVersionError
from .types import Config, Mismatch, RunnableConfig, StateSnapshot, StateUpdate, ThreadCheck, ThreadMigration

__all__ = ["Pin", "Versions"]

Pin: TypeAlias = Literal["open", "thread", "never"]
"""What keeps a thread on its version: pending tasks, its whole life, or nothing."""


class _HeadMovedError(Exception):
    """Another run has moved the thread's head between the choice of a version and the lease. Nothing was run."""


class Versions(Graph[Any, Any]):
    """Several versions of a graph, used like any other graph.

    A thread's version is that of its head: `__version__` in the metadata, which the graph's `compile(version=)` writes.
    As the subgraph of another graph it is the newest version. Attributes are those of the newest version; a
    checkpointer and a config that are set apply to all versions.

    Args:
        graphs: the graphs by version. All use the checkpointer of the newest. A graph that was compiled without
            `version=` gets the version that it has here.
        pin: "open" continues a thread with pending tasks by the version that planned them, and moves idle threads to
            the newest version. "thread" keeps a thread on its version for life, so that only new threads get the
            newest one. "never" runs all threads by the newest version, with its migrations.

    Raises:
        GraphValidationError: there is no graph, a version is no whole number from 1 on, or not that of its graph, or
            `pin` is unknown.
    """

    def __init__(self, graphs: Mapping[int, Graph[Any, Any]], *, pin: Pin = "open") -> None:
        self._versions = _VersionVerbs(graphs, pin)
        super().__init__(self._versions.newest._definition)
        self._calls = self._threads = cast("Any", self._versions)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that there are, in ascending order."""
        return tuple(self._versions.graphs)

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
        return (await self._versions.choose(self._definition, config))[0]

    async def astream_events(
        self, input: Any, config: Config | None = None, **options: Any
    ) -> AsyncGenerator[dict[str, Any]]:
        graph = await self._versions.graph_of(self._definition, config)
        async with aclosing(graph.astream_events(input, config, **options)) as events:
            async for event in events:
                yield event

    def _drawing(self) -> Drawing:
        return self._versions.newest._drawing()


class _VersionVerbs:
    """Does the work of the verbs of `Versions`: chooses a version, and passes the call on.

    The methods have the names and arguments of the functions of `_api.calls` and `_api.threads`. Their first argument
    is the definition of the whole, whose saver and config apply to all versions.
    """

    def __init__(self, graphs: Mapping[int, Graph[Any, Any]], pin: Pin) -> None:
        if pin not in ("open", "thread", "never"):
            raise GraphValidationError(f"pin is 'open', 'thread' or 'never', not {pin!r}")
        if not graphs:
            raise GraphValidationError("Versions takes at least one graph: {1: graph}")
        self.graphs = {version: _with_version(version, graph) for version, graph in sorted(graphs.items())}
        self._last = max(self.graphs)
        self._pin = pin
        self.newest = self.graphs[self._last]

    async def choose(self, whole: Definition, config: Config | None) -> tuple[int, Chain | None]:
        """Return a version, and the chain by which it was chosen; None if nothing is stored of the thread."""
        thread_id, ns, at = address_of(merge_configs(whole.config, config))
        if whole.saver is None or thread_id is None:
            return self._last, None
        chain = await whole.saver.read(thread_id, "", None if ns else at)
        return self._last if chain is None else self._version_for(whole, thread_id, chain), chain

    def _version_for(self, whole: Definition, thread_id: str, chain: Chain) -> int:
        metadata, newest = chain.rows[-1].metadata, self._last
        stored = version_in(metadata, [read_record(each, thread_id) for each in chain.records])
        if stored == newest or (stored < newest and self._pin == "never"):
            return newest
        if stored < newest and self._pin == "open":
            known = self._bound(whole, stored if stored in self.graphs else newest)
            if not _is_open(known._definition, thread_id, chain):
                return newest
        if stored not in self.graphs:
            raise _missing(whole, list(self.graphs), thread_id, stored)
        return stored

    def _bound(self, whole: Definition, version: int, saver: BaseCheckpointSaver | None = None) -> Graph[Any, Any]:
        """Return the graph of a version, with what is set at the whole; and with `saver` in place of its saver."""
        graph: Any = whole.checked.get((_VersionVerbs, version))
        if graph is None:
            graph = copy.copy(self.graphs[version])
            if version == self._last:
                graph._definition = whole
            else:
                assert whole.saver is not None  # without one, the newest version is chosen
                codec = with_runtime_types(whole.saver.codec, graph._definition.hints)
                graph._change(checkpointer=whole.checkpointer, codec=codec, live=whole.live, config=whole.config)
            whole.checked[_VersionVerbs, version] = graph
        return graph if saver is None else stored_through(graph, saver)

    async def graph_of(self, whole: Definition, config: Config | None) -> Graph[Any, Any]:
        """Return the graph for a call that writes to a thread, which raises `_HeadMovedError` if the head has moved."""
        version, chain = await self.choose(whole, config)
        thread_id, ns, at = address_of(merge_configs(whole.config, config))
        if whole.saver is None or thread_id is None or (at is not None and not ns):
            return self._bound(whole, version)  # the version of a checkpoint never changes
        guarded: Any = _GuardedSaver(whole.saver, thread_id, None if chain is None else chain.head)
        return self._bound(whole, version, guarded)

    async def _write(
        self, whole: Definition, config: Config | None, call: Callable[[Graph[Any, Any]], Awaitable[Any]]
    ) -> Any:
        while True:
            graph = await self.graph_of(whole, config)
            try:
                return await call(graph)
            except _HeadMovedError:
                continue

    async def _readable(self, whole: Definition, config: Config) -> tuple[Graph[Any, Any], tuple[Mismatch, ...]]:
        """Return the graph that shows a thread: the newest one if the thread's own version is not among these.

        Also return the mismatches of a version that is missing.
        """
        try:
            return self._bound(whole, (await self.choose(whole, config))[0]), ()
        except GraphVersionError as error:
            return self._bound(whole, self._last), error.mismatches

    async def invoke(self, whole: Definition, given: Any, config: Config | None, options: Any) -> Any:
        return await self._write(whole, config, lambda graph: graph.ainvoke(given, config, **options))

    def stream(self, whole: Definition, given: Any, config: Config | None, options: Any) -> GraphStream[Any]:
        async def choose() -> GraphStream[Any]:
            return (await self.graph_of(whole, config)).astream(given, config, **options)

        # The first stream is made so that wrong options raise here, as in every graph.
        return _VersionedStream(calls.stream(whole, given, config, options), choose)

    async def latest(self, whole: Definition, config: Config, *, subgraphs: bool) -> StateSnapshot[Any]:
        graph, missing = await self._readable(whole, config)
        shown = await graph.aget_state(config, subgraphs=subgraphs)
        new = [each for each in missing if each not in shown.changed]
        return shown.__replace__(changed=(*new, *shown.changed)) if new else shown

    async def history(self, whole: Definition, config: Config, **options: Any) -> AsyncIterator[StateSnapshot[Any]]:
        graph, _ = await self._readable(whole, config)
        found: Any = graph.aget_state_history(config, **options)
        async with aclosing(found):
            async for snapshot in found:
                yield snapshot

    async def update(
        self, whole: Definition, config: Config, supersteps: Sequence[Sequence[StateUpdate]], options: UpdateOptions
    ) -> RunnableConfig:
        updated: RunnableConfig = await self._write(
            whole, config, lambda graph: graph.abulk_update_state(config, supersteps, **options)
        )
        return updated

    def check(
        self, whole: Definition, saver: BaseCheckpointSaver | None, options: CheckOptions
    ) -> AsyncIterator[ThreadCheck]:
        bound, choose = self._chosen_for_threads(whole, saver)
        return check_threads(bound, None, options, choose)

    def migrate(
        self, whole: Definition, saver: BaseCheckpointSaver | None, options: MigrateOptions
    ) -> AsyncIterator[ThreadMigration]:
        bound, choose = self._chosen_for_threads(whole, saver)
        return migrate_threads(bound, None, options, choose)

    def _chosen_for_threads(
        self, whole: Definition, saver: BaseCheckpointSaver | None
    ) -> tuple[Definition, Callable[[str, Chain], Definition]]:
        """Return the graph of all threads of a saver, and a function that returns a thread's version of it."""
        bound = whole if saver is None else whole.with_checkpointer(saver)

        def choose(thread_id: str, head: Chain) -> Definition:
            return self._bound(bound, self._version_for(bound, thread_id, head))._definition

        return bound, choose


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


def _is_open(definition: Definition, thread_id: str, chain: Chain) -> bool:
    """Return True if tasks are pending at the last checkpoint of a chain."""
    row = chain.rows[-1]
    assert definition.saver is not None and definition.codec is not None  # the chain was read with it
    rows = ChainReader(thread_id, "", chain.rows)
    # All keys count as warned of already: this is no load.
    program = structs.replace(definition.program, warned=set(rows.state(row.checkpoint_id).values))
    view, _ = StateReader(program, definition.saver, definition.codec, {}).view_with_tasks(
        (rows, row), chain.records, ()
    )
    return bool(view.next)


def _missing(whole: Definition, known: Sequence[int], thread_id: str, stored: int) -> GraphVersionError:
    program = whole.program
    newer = of_version(program, stored, "")
    if newer:
        return GraphVersionError(thread_id, program.name, stored, program.version, newer)
    has = ", ".join(map(str, known))
    reason = f"version {stored} has to continue it and is missing: Versions has {has}"
    kept = ", ".join(f"{version}: ..." for version in sorted((stored, *known)))
    advice = f"keep it, Versions({{{kept}}}), or continue its threads with the newest by its rules: pin='never'"
    found = Mismatch(kind="version", name=program.name, reason=reason, advice=advice, blocks="all")
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
