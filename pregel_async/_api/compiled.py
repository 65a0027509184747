"""The object that users call: run it, stream it, read its threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver, address
from checkpoint_savers.codec import Codec

from .._checks.config import address_of, merge_configs, settings_of, without_address
from .._core.program import INPUT_MARK, SENDS
from .._runtime.observing.observed import ObservedUpdate, Observers, measured
from .._runtime.observing.observer import UpdateStarted
from .._runtime.persistence.lease import Hold
from .._runtime.persistence.namespace_writer import Thread
from .._runtime.persistence.namespaces import config_of
from .._runtime.tasks.subgraphs import reachable
from ..channels import BaseChannel
from ..errors import ConfigError, InvalidUpdateError, SubgraphNotFoundError
from ..node import PregelNode
from ..types import Command, Config, OnConflict, RunnableConfig, StateSnapshot, StateUpdate
from .drawing import Drawing
from .editing import checked, edit, edit_inside
from .runnable import Runs
from .state import StateReader

__all__ = ["Graph", "PregelProtocol"]

InputT = TypeVar("InputT", contravariant=True)
OutputT = TypeVar("OutputT", covariant=True)


@runtime_checkable
class PregelProtocol(Protocol[InputT, OutputT]):
    """What every graph can do, however it was built."""

    def invoke(self, input: InputT | Command | None, config: Config | None = None) -> OutputT: ...

    def stream(self, input: InputT | Command | None, config: Config | None = None) -> Iterator[Any]: ...

    def get_state(self, config: Config) -> StateSnapshot: ...

    def get_state_history(self, config: Config) -> Iterator[StateSnapshot]: ...

    def update_state(
        self, config: Config, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig: ...

    async def ainvoke(self, input: InputT | Command | None, config: Config | None = None) -> OutputT: ...

    def astream(self, input: InputT | Command | None, config: Config | None = None) -> AsyncIterator[Any]: ...

    async def aget_state(self, config: Config) -> StateSnapshot: ...

    def aget_state_history(self, config: Config) -> AsyncIterator[StateSnapshot]: ...

    async def aupdate_state(
        self, config: Config, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig: ...


class Graph(Runs[InputT, OutputT]):
    """A compiled graph. It holds no state of a run: one serves concurrent runs on any thread and event loop.

    Made by `StateGraph.compile()` or `Pregel(...)`.

    Attributes may be set, and hold for runs that begin later: `checkpointer`, `store`, `cache`, `name`, `debug`,
    `step_timeout`, `retry_policy`, `cache_policy`, `interrupt_before_nodes`, `interrupt_after_nodes`, `stream_mode`,
    `stream_channels` and `config`; see `GraphAttributes`. Setting any other is an `UnsettableAttributeError`.
    """

    # ---- what it is made of --------------------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[str, PregelNode]:
        """By name, the hidden start included."""
        return {
            name: PregelNode(name=name, channels=node.reads, triggers=node.triggers, bound=node.call)
            for name, node in self._program.nodes.items()
        }

    @property
    def channels(self) -> dict[str, BaseChannel[Any, Any, Any]]:
        """Empty channels, by name."""
        return {
            name: channel.fresh() for name, channel in self._program.channels.items() if name not in (SENDS, INPUT_MARK)
        }

    @property
    def input_channels(self) -> str | list[str]:
        inputs = self._program.inputs
        return inputs if isinstance(inputs, str) else list(inputs)

    @property
    def output_channels(self) -> str | list[str]:
        outputs = self._program.outputs
        return outputs if isinstance(outputs, str) else list(outputs)

    @property
    def hints(self) -> Sequence[Any]:
        """The annotations that name the types of its values."""
        return self._hints

    def input_from(self, state: Any) -> Any:
        """The input that this graph takes from the state of a graph in which it is a node."""
        inputs = self._program.inputs
        if isinstance(inputs, str) or not isinstance(state, dict):
            return state
        return {key: state[key] for key in inputs if key in state}

    def output_from(self, state: Any) -> Any:
        """The part of a thread's state, as `aget_state` shows it, that a call returns."""
        shown, outputs = self._program.shown, self._program.outputs
        if isinstance(shown, str) or not isinstance(state, dict):
            return state
        if isinstance(outputs, str):
            return state.get(outputs)
        return {key: state[key] for key in outputs if key in state}

    # ---- reading threads -----------------------------------------------------------------------------------------

    async def aget_state(self, config: Config, *, subgraphs: bool = False) -> StateSnapshot:
        """The state of a thread: at its head, or at the `checkpoint_id` that the config names.

        Args:
            config: a thread id; or a config, which may name a checkpoint, or the namespace of a subgraph
                (`checkpoint_ns`, as the `state` of the task that runs it says).
            subgraphs: with the states of the graphs that pending tasks run, at any depth, as their tasks' `state`.

        Raises:
            ConfigError: the graph has no checkpointer, or the config no thread.
            CheckpointNotFoundError: the thread has no such checkpoint.
            SubgraphNotFoundError: the graph has no such subgraph.
            CorruptCheckpointError, GraphChangedError, StorageError
        """
        reader, (thread_id, ns, at) = self._reader(config)
        return await reader.latest(thread_id, ns, at, subgraphs=subgraphs)

    async def aget_state_history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """All states of a thread, of all its branches, newest first. Each is decoded when it is looked at; see
        `StateSnapshot`.

        Args:
            filter: metadata entries, all of which must be equal.
            before: a config with a `checkpoint_id`: only older ones.
            limit: at most so many, counted after filtering.

        Raises: as `aget_state`.
        """
        reader, (thread_id, ns, at) = self._reader(config)
        bound = None if before is None else address(before)[2]
        for named in (at, bound):
            if named is not None:
                await reader.require(thread_id, ns, named)
        snapshots = reader.history(thread_id, ns, at, filter=filter, before=bound, limit=limit)
        async with aclosing(snapshots):
            async for snapshot in snapshots:
                yield snapshot

    def _reader(self, config: Config) -> tuple[StateReader, tuple[str, str, Any]]:
        (thread_id, ns, at), saver, codec = self._reader_address(config)
        graph, codec = self._inside(ns, codec)
        return graph.reader_with(saver, codec), (thread_id, ns, at)

    def _reader_address(self, config: Config) -> tuple[tuple[str, str, Any], BaseCheckpointSaver, Codec]:
        """What a config addresses, and where it is stored."""
        if not isinstance(self._checkpointer, BaseCheckpointSaver) or self._codec is None:
            raise ConfigError("the graph has no checkpointer, so nothing is stored: compile it with one")
        thread_id, ns, at = address_of(merge_configs(self._config, config))
        if thread_id is None:
            raise ConfigError(
                "the config has no thread_id: pass {'configurable': {'thread_id': ...}}, or the thread's id"
            )
        return (thread_id, ns, at), self._checkpointer, self._codec

    def reader_with(self, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
        """What reads this graph's threads, with a codec that knows its types."""
        inner = {name: _Inner(graph) for name, graph in self._graphs_inside.items()}
        return StateReader(self._program, saver, codec, inner, complete=self._complete_state)

    # ---- editing threads -----------------------------------------------------------------------------------------

    async def aupdate_state(
        self,
        config: Config,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        *,
        on_conflict: OnConflict = "reject",
    ) -> RunnableConfig:
        """Change a thread's state as if a node had returned `values`; its conditional edges are asked, its code is not.

        As a node whose task is pending, the update is the result of that task: the others of its superstep stay
        pending, and the superstep is closed when they have run. As any other node, it makes a checkpoint of its own,
        after which what was pending still is.

        Args:
            config: a thread id; or a config, which may name a checkpoint (the update starts a branch there, unless it
                is a branch's tip) or a subgraph's namespace. An update of the state that a subgraph keeps
                (`checkpointer=True`) is what its next call starts from. While the thread is in the middle of a
                superstep, only the past of that state can be updated. That leaves the thread where it is: pass the
                returned config to run the branch.
            values: as the node may return it; None changes nothing.
            as_node: the node; inferred when there is no doubt. `END` takes all that is pending for done, `"__input__"`
                makes a new input, `"__copy__"` copies the checkpoint (and applies `values`, a list of updates).
            task_id: which of the node's pending tasks; needed when it has several.

        Returns:
            The config of the thread's last checkpoint.

        Raises:
            InvalidUpdateError: the update does not fit; there is no such node or task, or several could be meant.
            ThreadBusyError: a run owns the thread.
            PregelError: as `aget_state`. Nothing was stored, whatever is raised.
        """
        return await self.abulk_update_state(config, [[StateUpdate(values, as_node, task_id)]], on_conflict=on_conflict)

    async def abulk_update_state(
        self,
        config: Config,
        supersteps: Sequence[Sequence[StateUpdate]],
        *,
        on_conflict: OnConflict = "reject",
    ) -> RunnableConfig:
        """Apply several updates, superstep by superstep, in one transaction. See `aupdate_state`.

        Args:
            supersteps: each a list of updates that are folded together. Where there are several, each names its node.

        Raises:
            ConfigError: there is nothing to update.
            PregelError: as `aupdate_state`.
        """
        updates = checked(supersteps)
        (thread_id, ns, at), saver, codec = self._reader_address(config)
        graph, inner_codec = self._inside(ns, codec)
        merged = merge_configs(self._config, config)
        settings = settings_of(
            without_address(merged),
            stored=False,
            nested=True,
            on_conflict=on_conflict,
            context=None,
            store=None,
            breakpoints=None,
            debug=False,
        )
        run_id = settings.run_id or self._world.new_id()
        metadata = {**settings.metadata, "run_id": run_id}

        async def write(saver: BaseCheckpointSaver) -> RunnableConfig:
            async with await Hold.take(saver, self._world, thread_id, on_conflict) as hold:
                hold.metadata = settings.thread_metadata
                thread = await Thread.open(hold, inner_codec, graph._program, ns=ns, at=at, metadata=metadata)
                if ns:
                    if thread.board is None:
                        raise InvalidUpdateError(
                            f"nothing is stored in namespace {ns!r} of thread {thread_id!r} to update"
                        )
                    root = await Thread.open(hold, codec, self._program, metadata=metadata)
                    store = self._store if graph.store is None else graph.store
                    is_past = at is not None and at != hold.tips.get(ns)
                    await edit_inside(
                        thread, root, updates, run_id, merged, store=store, limit=settings.limit, is_past=is_past
                    )
                else:
                    await edit(thread, updates, run_id, merged, store=self._store, limit=settings.limit)
            return config_of(thread_id, ns, thread.tip, thread.parents)

        if not self._observers:
            return await write(saver)
        started = UpdateStarted(
            run_id=run_id,
            thread_id=thread_id,
            namespace=ns,
            graph=graph.name,
            supersteps=len(updates),
            updates=sum(len(superstep) for superstep in updates),
        )
        observed = ObservedUpdate(Observers(self._observers, self._world), started)
        return await observed.over(lambda: write(measured(saver, observed, on_conflict)))

    # ---- kept results --------------------------------------------------------------------------------------------

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Forget the kept results of nodes, so that they run again.

        Args:
            nodes: their names; None for all nodes of this graph. (Graphs inside have nodes of their own, and tasks that
                nodes call are no nodes: they have an `aclear_cache` of their own. `cache.aclear()` forgets
                everything.)

        Raises:
            ConfigError: the graph was compiled without a cache, or has no such node.
            StorageError: the cache's.
        """
        if self._results is None:
            raise ConfigError(f"graph {self.name!r} has no cache to clear: compile it with one")
        if isinstance(nodes, str):
            raise ConfigError(f"aclear_cache takes a list of nodes' names, not {nodes!r}")
        known = self._program.nodes
        for name in nodes or ():
            if name not in known:
                raise ConfigError(f"aclear_cache names {name!r}, and graph {self.name!r} has no such node")
        await self._results.clear([known[name] for name in (known if nodes is None else nodes)])

    # ---- graphs inside -------------------------------------------------------------------------------------------

    @cached_property
    def _graphs_named(self) -> dict[str, list[Graph[Any, Any]]]:
        """The graphs that each node's code names, by node."""
        return {name: list(reachable(node.call, Graph)) for name, node in self._program.nodes.items()}

    @property
    def _graphs_inside(self) -> dict[str, Graph[Any, Any]]:
        """The first of each node that stores its state."""
        stored = {
            name: [graph for graph in graphs if graph.checkpointer is not False]
            for name, graphs in self._graphs_named.items()
        }
        return {name: graphs[0] for name, graphs in stored.items() if graphs}

    def _inside(self, ns: str, codec: Codec) -> tuple[Graph[Any, Any], Codec]:
        """The graph whose state a namespace holds, and the codec that knows its types.

        Raises:
            SubgraphNotFoundError: there is none.
        """
        graph: Graph[Any, Any] = self
        for part in ns.split("|") if ns else ():
            if part.isdigit():  # the how-manieth graph that one task ran
                continue
            name = part.partition(":")[0]
            inner = graph._graphs_inside.get(name)
            if inner is None:
                raise SubgraphNotFoundError(
                    f"checkpoint_ns {ns!r} names node {name!r}, and graph {graph.name!r} has no node of that name that "
                    "runs a graph"
                )
            codec, graph = inner._codec_inside(codec), inner
        return graph, codec

    def get_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> Iterator[tuple[str, Graph[Any, Any]]]:
        """The graphs that the nodes run, as far as their code names them: one of each node, with its path.

        Args:
            namespace: only this path, or what is inside it.
            recurse: those inside of those too; their paths are joined with "|".
        """
        yield from self._subgraphs(namespace, recurse, ())

    def _subgraphs(
        self, namespace: str | None, recurse: bool, around: tuple[Graph[Any, Any], ...]
    ) -> Iterator[tuple[str, Graph[Any, Any]]]:
        inside = (*around, self)
        for name, graph in self._graphs_inside.items():
            if namespace is None or namespace == name:
                yield name, graph
            if any(graph is one for one in inside):  # a graph may run itself
                continue
            if recurse and (namespace is None or namespace.startswith(f"{name}|")):
                rest = None if namespace is None else namespace.removeprefix(f"{name}|")
                for path, inner in graph._subgraphs(rest, True, inside):
                    yield f"{name}|{path}", inner

    def get_graph(self, *, xray: bool | int = False) -> Drawing:
        """Nodes and edges, to be drawn.

        Args:
            xray: draw the graphs that nodes run in place of the nodes: True at any depth, a number so many levels.

        Raises:
            ConfigError: `xray` is something else.
        """
        if not isinstance(cast("object", xray), int) or xray < 0:
            raise ConfigError(f"xray is True, False or a number of levels, not {xray!r}")
        return self._outline(()).expanded(xray)

    def _outline(self, around: tuple[Graph[Any, Any], ...]) -> Drawing:
        inside = (*around, self)
        return structs.replace(
            self._drawing(),
            interrupt_before=self._breakpoints.before,
            interrupt_after=self._breakpoints.after,
            subgraphs={
                name: graphs[0]._outline(inside)
                for name, graphs in self._graphs_named.items()
                if graphs and not any(graphs[0] is one for one in inside)  # a graph may run itself
            },
        )

    def _drawing(self) -> Drawing:
        """This graph alone."""
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """How a notebook shows the graph."""
        return self.get_graph(xray=True)._repr_mimebundle_(include, exclude)

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Graph[Any, Any]]]:
        """`get_subgraphs`, for code that iterates asynchronously."""
        for found in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield found


class _Inner:
    """A graph inside another, as `StateReader` asks for it."""

    def __init__(self, graph: Graph[Any, Any]) -> None:
        self._graph = graph
        self.keeps = graph.checkpointer is True

    def reader(self, saver: BaseCheckpointSaver, codec: Codec) -> StateReader:
        return self._graph.reader_with(saver, self._graph._codec_inside(codec))
