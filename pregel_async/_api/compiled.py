"""The object that users call: run it, stream it, read its threads. Its methods hand over to the modules that do it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, Unpack, cast, overload, runtime_checkable

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from .._checks.config import merge_configs
from .._checks.options import (
    BatchOptions,
    InvokeOptions,
    OutputParts,
    OutputRecord,
    PlainOutput,
    StreamedParts,
    StreamOptions,
    UpdateOptions,
    checked_options,
    takes,
)
from .._core.program import INPUT_MARK, SENDS
from .._runtime.platform.environment import World
from .._runtime.streaming.stream import GraphStream
from ..channels import BaseChannel
from ..errors import ConfigError
from ..node import PregelNode
from ..parts import GraphOutput, StreamPart
from ..types import Command, Config, RunnableConfig, StateSnapshot, StateUpdate
from . import calls, threads
from .attributes import GraphAttributes
from .definition import Definition
from .drawing import Drawing
from .sync_verbs import SyncVerbs

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


class Graph(GraphAttributes, SyncVerbs[InputT, OutputT]):
    """A compiled graph. It holds no state of a run: one serves concurrent runs on any thread and event loop.

    Made by `StateGraph.compile()` or `Pregel(...)`.

    Attributes may be set, and hold for runs that begin later: `checkpointer`, `store`, `cache`, `name`, `debug`,
    `step_timeout`, `retry_policy`, `cache_policy`, `interrupt_before_nodes`, `interrupt_after_nodes`, `stream_mode`,
    `stream_channels` and `config`; see `GraphAttributes`. Setting any other is an `UnsettableAttributeError`.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def with_config(self, config: Config | None = None, **keys: Any) -> Self:
        """The same graph with settings bound to it; those of a call win over them."""
        bound = copy.copy(self)
        bound.config = merge_configs(self.config, config, keys)
        return bound

    def with_checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> Self:
        """The same graph, storing its threads there; None stores nothing."""
        bound = copy.copy(self)
        bound.checkpointer = checkpointer
        return bound

    @overload
    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputRecord]
    ) -> GraphOutput[OutputT]: ...
    @overload
    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputParts]
    ) -> list[StreamPart]: ...
    @overload
    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[PlainOutput]
    ) -> OutputT: ...
    @takes(InvokeOptions)
    async def ainvoke(self, input: Any, config: Config | None = None, **options: Any) -> Any:
        """Run to the end, or to where the run pauses, and return the output.

        Args:
            input: a value of the input schema; None continues from the thread's stored state; a `Command` answers
                questions, or edits the state and names the nodes to run next.
            config: settings, or a thread id.
            context: what nodes get as `Runtime.context`, as the context schema says. None takes that of the node that
                calls the graph, if it has one, or the schema's defaults.
            interrupt_before, interrupt_after: nodes before or after which to stop, "*" for all, instead of those that
                the graph was compiled with. Call with input None to continue.
            durability: "sync", the default, stores each superstep before the next starts; "async" while the next runs;
                "exit" stores all of them as one when the run ends. See docs/durability.md.
            stream_mode: other than "values": return the list of all chunks that `astream` would give.
            output_keys: the channels to return, instead of the output schema's.
            on_conflict: "reject" raises when another run owns the thread; "wait" waits for it.
            on_failure: "fail_fast", "finish" or `Collect(channel)`; see `StateGraph.compile`.
            budgets: other limits than those that the graph was compiled with, by name. One takes the place of the
                graph's as a whole: a limit that it leaves out does not hold in this call.
            time_limit: seconds, or a timedelta, after which the run stops at its next barrier.
            control: lets the run be stopped from outside, at its next barrier.
            observer: receives the events of the run and of the graphs inside it, besides the graph's own observers.
            version: "v2" returns a `GraphOutput`.

        Returns:
            The output channels' values at the end: those that hold something. When nodes have asked
            (`interrupt()`), with their questions under "__interrupt__".

        Raises:
            PregelError: see `pregel_async.errors`: a bad input or config, a busy thread, failing storage, the step
                limit, a drained run.
            Exception: what a node raised, with a note that names it; an `ExceptionGroup` in plan order when several
                nodes of one superstep did. The thread can be resumed.
        """
        return await calls.invoke(self._definition, input, config, checked_options("ainvoke", InvokeOptions, options))

    @overload
    def astream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamedParts]
    ) -> GraphStream[StreamPart]: ...
    @overload
    def astream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamOptions]
    ) -> GraphStream[Any]: ...
    @takes(StreamOptions)
    def astream(self, input: Any, config: Config | None = None, **options: Any) -> GraphStream[Any]:
        """Run, and show what happens while it does.

        Args:
            stream_mode: "updates" (each task's update as it finishes), "values" (the state after each superstep),
                "messages" (messages and their chunks, with where they come from), "custom" (what nodes write to the
                stream), "tasks" (each task when it is planned and when it has ended), "checkpoints" (each, once it is
                stored), "debug" (the last two, dated), or a list of several, which labels each chunk: `(mode,
                payload)`. Questions come as `{"__interrupt__": (...)}`.
            subgraphs: stream the graphs that nodes run too; each chunk names its graph: `(namespace, payload)`, or
                `(namespace, mode, payload)`.
            output_keys: the channels to show, instead of all state keys.
            capacity: how many chunks may wait for the reader.
            overflow: what happens when that many do, for all modes or by mode: "block" makes the run wait,
                "drop_oldest" drops the oldest chunk of the mode, "coalesce" keeps only its newest.
            keep_events: keep what is shown with the commits, so that a reader can come back (`after`). The called
                graph needs a checkpointer.
            after: come back to a run: the cursor of the last part that was read. `input` is None, and the version
                "v2". Missed parts come first. A run that is active in this process is joined. One that was cut off is
                resumed: "superstep_restarted" lists void parts. One that has ended is not run again.
            version: "v2" gives each chunk as a dict: see `pregel_async.parts`.

        The other arguments and the errors are those of `ainvoke`. A bad config raises here, all else while reading.

        Raises:
            InvalidCursorError: `after` is no cursor, or one of another thread or branch.
            RecordedFailureError: the run that a reader came back to had failed.
        """
        return calls.stream(self._definition, input, config, checked_options("astream", StreamOptions, options))

    @takes(BatchOptions)
    async def abatch(
        self, inputs: Sequence[InputT], config: Config | Sequence[Config] | None = None, **options: Unpack[BatchOptions]
    ) -> list[OutputT]:
        """Run once per input, concurrently; the outputs in the inputs' order.

        Args:
            config: one for all, or one for each input.
            return_exceptions: put a run's exception in its place instead of raising it.
            max_concurrency: how many runs at once; None for all.

        Raises:
            Exception: the failure of the first input, in order, that failed; the other runs are cancelled.
        """
        return await calls.batch(self.ainvoke, inputs, config, checked_options("abatch", BatchOptions, options))

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
        return await threads.latest(self._definition, config, subgraphs=subgraphs)

    def aget_state_history(
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
        return threads.history(self._definition, config, filter=filter, before=before, limit=limit)

    @takes(UpdateOptions)
    async def aupdate_state(
        self,
        config: Config,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        **options: Unpack[UpdateOptions],
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
        checked_options("aupdate_state", UpdateOptions, options)
        return await self.abulk_update_state(config, [[StateUpdate(values, as_node, task_id)]], **options)

    @takes(UpdateOptions)
    async def abulk_update_state(
        self, config: Config, supersteps: Sequence[Sequence[StateUpdate]], **options: Unpack[UpdateOptions]
    ) -> RunnableConfig:
        """Apply several updates, superstep by superstep, in one transaction. See `aupdate_state`.

        Args:
            supersteps: each a list of updates that are folded together. Where there are several, each names its node.

        Raises:
            ConfigError: there is nothing to update.
            PregelError: as `aupdate_state`.
        """
        checked_options("abulk_update_state", UpdateOptions, options)
        return await threads.update(self._definition, config, supersteps, options)

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
        program, results = self._definition.program, self._definition.results
        if results is None:
            raise ConfigError(f"graph {self.name!r} has no cache to clear: compile it with one")
        if isinstance(nodes, str):
            raise ConfigError(f"aclear_cache takes a list of nodes' names, not {nodes!r}")
        known = program.nodes
        for name in nodes or ():
            if name not in known:
                raise ConfigError(f"aclear_cache names {name!r}, and graph {self.name!r} has no such node")
        await results.clear([known[name] for name in (known if nodes is None else nodes)])

    @property
    def nodes(self) -> dict[str, PregelNode]:
        """By name, the hidden start included."""
        return {
            name: PregelNode(name=name, channels=node.reads, triggers=node.triggers, bound=node.call)
            for name, node in self._definition.program.nodes.items()
        }

    @property
    def channels(self) -> dict[str, BaseChannel[Any, Any, Any]]:
        """Empty channels, by name."""
        channels = self._definition.program.channels
        return {name: channel.fresh() for name, channel in channels.items() if name not in (SENDS, INPUT_MARK)}

    @property
    def input_channels(self) -> str | list[str]:
        inputs = self._definition.program.inputs
        return inputs if isinstance(inputs, str) else list(inputs)

    @property
    def output_channels(self) -> str | list[str]:
        outputs = self._definition.program.outputs
        return outputs if isinstance(outputs, str) else list(outputs)

    @property
    def world(self) -> World:
        """The port for clock, ids and randomness, as given to `compile(world=)`."""
        return self._definition.world

    @property
    def hints(self) -> Sequence[Any]:
        """The annotations that name the types of its values."""
        return self._definition.hints

    def input_from(self, state: Any) -> Any:
        """The input that this graph takes from the state of a graph in which it is a node."""
        inputs = self._definition.program.inputs
        if isinstance(inputs, str) or not isinstance(state, dict):
            return state
        return {key: state[key] for key in inputs if key in state}

    def output_from(self, state: Any) -> Any:
        """The part of a thread's state, as `aget_state` shows it, that a call returns."""
        shown, outputs = self._definition.program.shown, self._definition.program.outputs
        if isinstance(shown, str) or not isinstance(state, dict):
            return state
        if isinstance(outputs, str):
            return state.get(outputs)
        return {key: state[key] for key in outputs if key in state}

    def events_codec(self) -> Codec:
        """The codec of this graph and of all graphs inside."""
        return self._definition.codecs.of_events(self._definition.codec)

    def get_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> Iterator[tuple[str, Graph[Any, Any]]]:
        """The graphs that the nodes run, as far as their code names them: one of each node, with its path.

        Args:
            namespace: only this path, or what is inside it.
            recurse: those inside of those too; their paths are joined with "|".
        """
        found = self._definition.subgraph_index.walk(namespace, recurse=recurse)
        return cast("Iterator[tuple[str, Graph[Any, Any]]]", found)

    async def aget_subgraphs(
        self, *, namespace: str | None = None, recurse: bool = False
    ) -> AsyncIterator[tuple[str, Graph[Any, Any]]]:
        """`get_subgraphs`, for code that iterates asynchronously."""
        for found in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield found

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

    def _outline(self, enclosing: tuple[Graph[Any, Any], ...]) -> Drawing:
        inside = (*enclosing, self)
        subgraphs = {
            name: cast("Graph[Any, Any]", graphs[0])._outline(inside)
            for name, graphs in self._definition.subgraph_index.by_node.items()
            if graphs and not any(graphs[0] is one for one in inside)  # a graph may run itself
        }
        return self._drawing().with_marks(self._definition.options, subgraphs)

    def _drawing(self) -> Drawing:
        """This graph alone."""
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """How a notebook shows the graph."""
        return self.get_graph(xray=True)._repr_mimebundle_(include, exclude)
