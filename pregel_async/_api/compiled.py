"""The compiled graph that users call. Its methods check option names and delegate to the modules that do the work."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, Unpack, cast, overload, runtime_checkable

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from .._checks.config import merge_configs
from .._checks.options import (
    BatchOptions,
    CheckOptions,
    Configs,
    InvokeOptions,
    MigrateOptions,
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
from .._runtime.observing.error_text import shorten_traceback
from .._runtime.platform.environment import Environment
from .._runtime.streaming.stream import GraphStream
from ..channels import BaseChannel
from ..errors import ConfigError
from ..node import PregelNode, shown_node
from ..parts import GraphOutput, StreamPart
from ..types import (
    Command,
    Config,
    RunnableConfig,
    StateSnapshot,
    StateUpdate,
    StreamMode,
    ThreadCheck,
    ThreadMigration,
)
from . import calls, threads
from .attributes import GraphAttributes, Introspection, RunnableVerbs
from .definition import Definition
from .drawing import Drawing
from .plugins import RUNNABLES, plugin
from .sync_verbs import ContextT, InputT, OutputT, Saver, StateT, SyncVerbs

__all__ = ["Graph", "PregelProtocol"]


@runtime_checkable
class PregelProtocol(Protocol[StateT, ContextT, InputT, OutputT]):
    """The methods that every compiled graph has, whether built by `StateGraph`, `Pregel` or `@entrypoint`.

    `Graph` documents each of them.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # see the type parameters in `sync_verbs.py`

    def invoke(
        self, input: InputT | Command | None, config: Config | None = None, *, context: ContextT | None = None
    ) -> OutputT: ...

    def stream(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        context: ContextT | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
    ) -> Iterator[Any]: ...

    def get_state(self, config: Config) -> StateSnapshot[StateT]: ...

    def get_state_history(self, config: Config) -> Iterator[StateSnapshot[StateT]]: ...

    def update_state(
        self, config: Config, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig: ...

    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, *, context: ContextT | None = None
    ) -> OutputT: ...

    def astream(
        self,
        input: InputT | Command | None,
        config: Config | None = None,
        *,
        context: ContextT | None = None,
        stream_mode: StreamMode | Sequence[StreamMode] | None = None,
    ) -> AsyncIterator[Any]: ...

    async def aget_state(self, config: Config) -> StateSnapshot[StateT]: ...

    def aget_state_history(self, config: Config) -> AsyncIterator[StateSnapshot[StateT]]: ...

    async def aupdate_state(
        self, config: Config, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig: ...


NamedGraph: TypeAlias = "tuple[str, Graph[Any, Any]]"
"""A node's name, with the names of the nodes around it, and the graph that the node runs."""


class Graph(GraphAttributes, Introspection, RunnableVerbs, SyncVerbs[StateT, ContextT, InputT, OutputT]):
    """A compiled graph, made by `StateGraph.compile()` or `Pregel(...)`.

    The graph holds no state of a run, so one object serves concurrent runs on any thread and event loop.

    These attributes may be set, for runs that begin later: `checkpointer`, `store`, `cache`, `name`, `debug`,
    `step_timeout`, `retry_policy`, `cache_policy`, `interrupt_before_nodes`, `interrupt_after_nodes`, `stream_mode`,
    `stream_channels` and `config`; see `GraphAttributes`. Setting any other raises `UnsettableAttributeError`.
    """

    # The modules whose functions do the work of the verbs. `Versions` has others, which choose the definition first.
    _calls, _threads = calls, threads

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        if RUNNABLES in sys.modules:
            plugin("runnables")  # registers the class with `Runnable`

    def with_config(self, config: Config | None = None, **keys: Any) -> Self:
        """Return a copy of the graph with config settings bound to it. The config of a call overrides them.

        Args:
            config: settings to bind, or a thread id; merged into the settings that are already bound.
            **keys: keys of a config, merged over `config`: `with_config(recursion_limit=50)`.

        Returns:
            The copy. The graph itself is unchanged.

        Raises:
            ConfigError: a key is unknown or in the wrong place, or a value has the wrong type.
        """
        return self.copy({"config": merge_configs(self.config, config, keys)})

    def with_checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> Self:
        """Return a copy of the graph with another checkpointer.

        Args:
            checkpointer: the saver that stores the copy's threads; None stores nothing; True and False are for
                subgraphs, see the attribute `checkpointer`.

        Returns:
            The copy. The graph itself is unchanged.

        Raises:
            InvalidCheckpointerError: `checkpointer` is no saver, True, False or None.
        """
        return self.copy({"checkpointer": checkpointer})

    @overload
    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputRecord[ContextT]]
    ) -> GraphOutput[OutputT]: ...
    @overload
    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[OutputParts[ContextT]]
    ) -> list[StreamPart]: ...
    @overload
    async def ainvoke(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[PlainOutput[ContextT]]
    ) -> OutputT: ...
    @takes(InvokeOptions)
    async def ainvoke(self, input: Any, config: Config | None = None, **options: Any) -> Any:
        """Run the graph until it ends or pauses, and return its output.

        The run pauses when a node calls `interrupt()`, or at a breakpoint. Pass `Command(resume=answer)`, or None
        after a breakpoint, to continue.

        Args:
            input: a value of the input schema; None continues from the thread's stored state; a `Command` answers
                questions, or edits the state and names the nodes to run next.
            config: settings of the call, or a thread id. Required if the graph has a checkpointer.
            context: the value that nodes get as `Runtime.context`, checked against the context schema. None takes the
                context of the node that calls the graph, if there is one, or the schema's defaults.
            interrupt_before: names of nodes before which to stop, "*" for all; None for those of `compile`.
            interrupt_after: names of nodes after which to stop, "*" for all; None for those of `compile`.
            durability: "sync", the default, stores each superstep before the next starts; "async" stores each while
                the next runs; "exit" stores all of them in one transaction when the run ends. See docs/durability.md.
            stream_mode: "values", the default, returns the output; any other mode, or a list of modes, returns the
                list of the chunks that `astream` would yield.
            output_keys: names of the channels to return, instead of those of the output schema.
            on_conflict: what to do when another run owns the thread: "reject", the default, raises
                `ThreadBusyError`; "wait" waits until the thread is released.
            on_failure: "fail_fast", "finish" or `Collect(channel)`; see `StateGraph.compile`.
            budgets: budgets by name, for this call. A limit that is given replaces the graph's limit of the same
                budget and scope (`run` or `thread`); a limit that is None leaves the graph's in force.
            time_limit: seconds, or a timedelta, after which the run stops at its next barrier, between two supersteps.
            control: an object with which other code can drain the run, which then stops at its next barrier.
            observer: an observer, or several, that receive the events of the run and of its subgraphs, besides the
                graph's own observers.
            version: "v1", the default, or "v2"; see Returns.
            subgraphs: True to return the chunks of subgraphs too, if `stream_mode` returns chunks, and to print them.
            print_mode: one stream mode or a list of modes whose chunks are printed as they come. They change nothing
                of what is returned.
            debug: True to print the chunks of "updates" and "values", and to warn (`InPlaceChangeWarning`) if a node
                changes its input in place; None, the default, for the `debug` of `compile`.

        Returns:
            By stream mode and version:

            ================  =======  =====================================================================
            `stream_mode`     version  returned
            ================  =======  =====================================================================
            "values"          "v1"     the output; if nodes have asked, the output with their questions as a
                                       list of `Interrupt` under "__interrupt__"
            "values"          "v2"     `GraphOutput(value=output, interrupts=(Interrupt, ...))`
            other, or a list  "v1"     list of chunks, shaped as `astream` yields them
            other, or a list  "v2"     list of `StreamPart` dicts
            ================  =======  =====================================================================

            The output is a dict of the output channels that hold a value, or the bare value of a single output
            channel. If such a bare value is no dict, "v1" returns `{"__interrupt__": [...]}` alone when nodes have
            asked. "v2" makes the output an object of the output schema's class once the run has finished.

        Raises:
            ConfigError: the config or an option is wrong, or the graph has a checkpointer and the config no thread.
            InvalidInputError: the input does not fit the input schema.
            InvalidResumeError: an answer fits no open question, or more than one.
            EmptyInputError: there is no input, and nothing is stored to continue from.
            ThreadBusyError: another run owns the thread.
            GraphRecursionError: the run reached its limit of supersteps.
            BudgetExceededError: the run or thread has spent more than a budget, or more time than `time_limit`.
            GraphDrained: `control` asked the run to stop.
            StorageError: storage failed. The run stops, and nothing is retried.
            PregelError: any other error of the runtime; see `pregel_async.errors`.
            Exception: the exception of a node, with a note that names the node; an `ExceptionGroup` in plan order if
                several nodes of one superstep failed. The thread can be resumed.
        """
        checked = checked_options("ainvoke", InvokeOptions, options)
        try:
            return await self._calls.invoke(self._definition, input, config, checked)
        except Exception as error:
            shorten_traceback(error)
            raise

    @overload
    def astream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamedParts[ContextT]]
    ) -> GraphStream[StreamPart]: ...
    @overload
    def astream(
        self, input: InputT | Command | None, config: Config | None = None, **options: Unpack[StreamOptions[ContextT]]
    ) -> GraphStream[Any]: ...
    @takes(StreamOptions)
    def astream(self, input: Any, config: Config | None = None, **options: Any) -> GraphStream[Any]:
        """Run the graph, and stream events of the run while it goes on.

        The payload of a chunk, by stream mode:

        =============  ==============================================================================================
        `stream_mode`  payload
        =============  ==============================================================================================
        "values"       the state after each superstep that changed it: `{key: value}`, or the bare value of a single
                       stream channel. When nodes have asked, "v1" adds `"__interrupt__": (Interrupt, ...)`
        "updates"      `{node: update}` when a task finishes; `"__metadata__": {"cached": True}` is added if the result
                       was recorded or cached earlier. `{"__interrupt__": (Interrupt, ...)}` when a task has asked;
                       `{"__interrupt__": ()}` when the run stops at a breakpoint
        "messages"     `(message, metadata)`: a message or a chunk of one, and a dict that names step, node and thread
        "custom"       each value that a node passed to its stream writer
        "tasks"        `{"id", "name", "input", "triggers"}` when a task is planned, and
                       `{"id", "name", "error", "result", "interrupts"}` when the task has ended
        "checkpoints"  `{"config", "parent_config", "values", "metadata", "next", "tasks"}` of each stored checkpoint
        "debug"        `{"step", "timestamp", "type", "payload"}`: the events of "tasks" and "checkpoints"; the type is
                       "task", "task_result" or "checkpoint", the timestamp ISO 8601 in UTC
        =============  ==============================================================================================

        In "updates", `update` is a dict of the stream channels that the task wrote, None if it wrote none of them, and
        a list of one-entry dicts if it wrote one several times. With a single stream channel, and for a called task,
        `update` is the bare value.

        The chunk around that payload, by version and options:

        =======  ==============  ===========  =======================================================================
        version  `stream_mode`   `subgraphs`  chunk
        =======  ==============  ===========  =======================================================================
        "v1"     one mode        False        `payload`
        "v1"     list of modes   False        `(mode, payload)`
        "v1"     one mode        True         `(namespace, payload)`
        "v1"     list of modes   True         `(namespace, mode, payload)`
        "v2"     any             any          `{"type": mode, "ns": namespace, "data": payload, "seq", "step",
                                              "committed", "cursor", "task"}`; "values" adds "interrupts". The types
                                              "error" and "superstep_restarted" are "v2" only; see
                                              `pregel_async.parts`
        =======  ==============  ===========  =======================================================================

        A namespace is a tuple: `()` for the called graph, `("node:task_id", ...)` for a subgraph.

        Args:
            input: a value of the input schema; None continues from the thread's stored state; a `Command` answers
                questions, or edits the state and names the nodes to run next.
            config: settings of the call, or a thread id. Required if the graph has a checkpointer.
            stream_mode: one mode or a list of modes, each at most once; None for the graph's `stream_mode`.
            version: "v1", the default, or "v2", which yields each chunk as a `StreamPart`.
            subgraphs: True to stream the events of subgraphs too, while nodes run them.
            output_keys: names of the channels to show, instead of the graph's `stream_channels`.
            capacity: number of chunks that may wait for the reader, at least 1; 64 by default.
            overflow: what to do when the buffer is full, for all modes or by mode: "block", the default, makes the
                run wait; "drop_oldest" drops the oldest unread chunk of the mode. "coalesce" keeps only the newest
                unread chunk of the mode and graph, whether or not the buffer is full.
            keep_events: True to store the streamed events with the commits, so that a reader can reconnect with
                `after`. The called graph needs a checkpointer.
            after: the cursor of the last part that was read, to reconnect to a run. `input` must be None, `version`
                "v2" and `stream_mode` given. Missed parts come first. A run that is active in this process is joined;
                an interrupted one is resumed, and "superstep_restarted" lists the parts that became void; a run that
                has ended is not run again.
            context, interrupt_before, interrupt_after, durability: as in `ainvoke`.
            on_conflict, on_failure, budgets, time_limit, control, observer, print_mode, debug: as in `ainvoke`.

        Returns:
            A stream: an async iterator of chunks, to be used as an async context manager too. The run starts with the
            first read, or on entering. Leaving the context cancels a run that goes on.

        Raises:
            ConfigError: the config or an option is wrong.
            InvalidCursorError: `after` is no cursor.

        These are raised here. Reading raises, after the last chunk, whatever `ainvoke` raises; and with `after`
        `InvalidCursorError` for a cursor of another thread or branch, and `RecordedFailureError` if the run had failed.
        """
        return self._calls.stream(self._definition, input, config, checked_options("astream", StreamOptions, options))

    @takes(BatchOptions)
    async def abatch(
        self, inputs: Sequence[InputT], config: Configs | None = None, **options: Unpack[BatchOptions[ContextT]]
    ) -> list[OutputT]:
        """Run the graph once per input, concurrently.

        Args:
            inputs: the inputs, as `ainvoke` takes them.
            config: one config or thread id for all runs, or a sequence with one for each input.
            return_exceptions: True to return a run's exception at the index of its input instead of raising it.
            max_concurrency: number of runs at the same time; None, the default, for the `max_concurrency` of the first
                config, or for all of them. Each config's `max_concurrency` limits the tasks inside of its run.
            **options: every other option of `ainvoke`, for all runs.

        Returns:
            What `ainvoke` returns, in the order of the inputs.

        Raises:
            ConfigError: the number of configs is not the number of inputs.
            Exception: without `return_exceptions`, the exception of the first input, in order, that failed. The other
                runs are cancelled.
        """
        return await calls.batch(self.ainvoke, inputs, config, checked_options("abatch", BatchOptions, options))

    @takes(BatchOptions)
    def abatch_as_completed(
        self, inputs: Sequence[InputT], config: Configs | None = None, **options: Unpack[BatchOptions[ContextT]]
    ) -> GraphStream[tuple[int, OutputT]]:
        """Run the graph once per input, concurrently, and yield each output when its run ends.

        Args:
            inputs: as in `abatch`.
            config: as in `abatch`.
            **options: every option of `abatch`.

        Returns:
            A stream of pairs: the index of an input and the output of its run, or its exception with
            `return_exceptions`. The runs start with the first read, and are cancelled when the stream is closed.

        Raises:
            ConfigError: the number of configs is not the number of inputs.

        Reading raises, without `return_exceptions`, the exception of the first run that failed, after the outputs of
        the runs that ended before. The other runs are cancelled.
        """
        checked = checked_options("abatch_as_completed", BatchOptions, options)
        return calls.batch_as_completed(self.ainvoke, inputs, config, checked)

    async def aget_state(self, config: Config, *, subgraphs: bool = False) -> StateSnapshot[StateT]:
        """Read the state of a thread, at its head or at a checkpoint.

        Args:
            config: a thread id; or a config, which may name a checkpoint (`checkpoint_id`), or the namespace of a
                subgraph (`checkpoint_ns`, which `PregelTask.state` has for the task that runs the subgraph).
            subgraphs: True to read the states of the subgraphs of pending tasks too, at any depth. Each is the
                `state` of its task, which otherwise is only the config of that state.

        Returns:
            The snapshot. If nothing is stored of the thread, its `values` are empty and its `metadata` is None.

        Raises:
            ConfigError: the graph has no checkpointer, or the config no thread.
            CheckpointNotFoundError: the thread has no such checkpoint.
            SubgraphNotFoundError: the graph has no such subgraph.
            CorruptCheckpointError: the stored rows are damaged.
            GraphChangedError: the stored state does not fit the graph's code.
            StorageError: storage failed.
        """
        return await self._threads.latest(self._definition, config, subgraphs=subgraphs)

    def aget_state_history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot[StateT]]:
        """Read the states of a thread, of all its branches, newest first.

        A snapshot is decoded when one of its attributes is read; see `StateSnapshot`.

        Args:
            config: a thread id; or a config, which may name one checkpoint or the namespace of a subgraph.
            filter: metadata entries that a checkpoint must have with equal values; None for all checkpoints.
            before: a config with a `checkpoint_id`: only snapshots older than this checkpoint.
            limit: the greatest number of snapshots to yield, counted after filtering; None for no limit.

        Returns:
            An async iterator of snapshots.

        Raises:
            ConfigError, CheckpointNotFoundError, SubgraphNotFoundError, StorageError: while reading, as `aget_state`.
        """
        return self._threads.history(self._definition, config, filter=filter, before=before, limit=limit)

    @takes(UpdateOptions)
    async def aupdate_state(
        self,
        config: Config,
        values: Any,
        as_node: str | None = None,
        task_id: str | None = None,
        **options: Unpack[UpdateOptions],
    ) -> RunnableConfig:
        """Change a thread's state as if a node had returned `values`.

        The node's conditional edges are evaluated, and its code does not run. If a task of the node is pending, the
        update becomes the result of that task: the other tasks of the superstep stay pending, and the superstep is
        closed when they have run. Otherwise the update makes a checkpoint of its own, and pending tasks stay pending.

        Args:
            config: a thread id; or a config, which may name a checkpoint (the update starts a branch there, unless
                the checkpoint is the tip of a branch) or the namespace of a subgraph. If the subgraph keeps its state
                between calls (`checkpointer=True`), its next call starts from the updated state. While the thread is
                in the middle of a superstep, only older checkpoints of such a state can be updated. The thread then
                stays where it is: pass the returned config to run the branch.
            values: an update that the node may return; None changes nothing.
            as_node: the node's name; None infers the node, if only one is possible. `END` closes the superstep and
                counts pending tasks without a result as done, `"__input__"` makes `values` a new input, and
                `"__copy__"` copies the checkpoint and applies `values`, a list of `(values, as_node)` or
                `(values, as_node, task_id)`, to the copy, as the updates of one superstep.
            task_id: the id of one of the node's pending tasks; required if the node has several.
            on_conflict: "reject", the default, raises if a run owns the thread; "wait" waits until it is released.

        Returns:
            The config of the checkpoint that the update made.

        Raises:
            ConfigError: the graph has no checkpointer, or the config no thread.
            InvalidUpdateError: the update does not fit, the node or task does not exist, or it is ambiguous.
            CheckpointNotFoundError: the thread has no such checkpoint.
            SubgraphNotFoundError: the graph has no such subgraph.
            ThreadBusyError: a run owns the thread.
            PregelError: as `aget_state`.
            Exception: the exception of a router or reducer.

        A call that raises has stored nothing.
        """
        checked_options("aupdate_state", UpdateOptions, options)
        return await self.abulk_update_state(config, [[StateUpdate(values, as_node, task_id)]], **options)

    @takes(UpdateOptions)
    async def abulk_update_state(
        self, config: Config, supersteps: Sequence[Sequence[StateUpdate]], **options: Unpack[UpdateOptions]
    ) -> RunnableConfig:
        """Apply several updates, superstep by superstep, in one transaction. See `aupdate_state`.

        Args:
            config: as in `aupdate_state`.
            supersteps: one list of updates per superstep; the updates of a list are folded together. In a list of
                several, each update must name a node. If n tasks of a node are pending, n updates as this node without
                task ids become their results, in the order of the tasks: so a fan-out of sends is rebuilt.
            on_conflict: as in `aupdate_state`.

        Returns:
            The config of the last checkpoint that the updates made.

        Raises:
            ConfigError: there is nothing to update, the graph has no checkpointer, or the config no thread.
            PregelError: as `aupdate_state`.
        """
        checked_options("abulk_update_state", UpdateOptions, options)
        return await self._threads.update(self._definition, config, supersteps, options)

    @takes(CheckOptions)
    def acheck_threads(self, saver: Saver = None, **options: Unpack[CheckOptions]) -> AsyncIterator[ThreadCheck]:
        """Check stored threads against the graph's code: which of them it loads, and why it does not load the others.

        Nothing is leased, changed or run. A thread is looked at as a call would load it: values, recorded results,
        pending tasks, sends and joins, questions, and the states of subgraphs. A few threads are in memory at a time.

        Args:
            saver: stores the threads; None for the graph's own checkpointer.
            open: True to check only threads with pending tasks. Threads that cannot be decoded are included.
            of_version: check only threads whose head this version of the graph has stored; None for all.
            sample: choose so many threads to check; None for all. The same threads are chosen each time.
            branches: True to check the newest checkpoint of each branch, and not only the thread's head.
            filter: entries of the threads' metadata, all of which must be equal; None for all threads.
            thread_ids: check only these threads, if they exist; None for all.

        Returns:
            An async iterator of the checks, in the order of the threads' ids.

        Raises:
            ConfigError: (while reading) no saver, a `sample` that is no positive number, `__version__` in `filter`, or
                a single text as `thread_ids`.
            StorageError: (while reading) storage failed. Damaged threads are no error; see `ThreadCheck.damage`.
        """
        return self._threads.check(self._definition, saver, checked_options("acheck_threads", CheckOptions, options))

    @takes(MigrateOptions)
    def amigrate_threads(self, saver: Saver = None, **given: Unpack[MigrateOptions]) -> AsyncIterator[ThreadMigration]:
        """Store what the declared rules make of stored threads, so that the rules can be removed from the code.

        Each thread is migrated in one transaction, under its lease. An idle thread gets a checkpoint; an open one
        keeps its pending tasks, questions, ids and recorded results. Threads that the graph does not load, and
        threads that another run owns, stay as they are. Nothing is written if the rules change nothing.

        Args:
            saver: stores the threads; None for the graph's own checkpointer.
            dry_run: True to store nothing, and acquire no lease.
            open: True to migrate only threads with pending tasks.
            of_version: migrate only threads whose head this version of the graph has stored; None for all.
            filter: entries of the threads' metadata, all of which must be equal; None for all threads.
            thread_ids: migrate only these threads, if they exist; None for all. Pass this or `filter` if the saver
                also stores threads of other graphs: this graph's rules would change those that they happen to fit.

        Returns:
            An async iterator of what was done with each thread, in the order of the threads' ids. A thread is
            migrated when it is reached: closing the iterator leaves the threads that follow as they are.

        Raises:
            ConfigError: (while reading) no saver, `__version__` in `filter`, a single text as `thread_ids`, or a kept
                state of a renamed node in a saver that cannot store several namespaces in one transaction.
            StorageError: (while reading) storage failed. The threads before are migrated, and the others are not.
        """
        return self._threads.migrate(
            self._definition, saver, checked_options("amigrate_threads", MigrateOptions, given)
        )

    async def aclear_cache(self, nodes: Sequence[str] | None = None) -> None:
        """Remove the cached results of nodes, so that the nodes run again.

        Subgraphs and called tasks have an `aclear_cache` of their own. `cache.aclear()` removes everything.

        Args:
            nodes: names of nodes of this graph; None for all of them.

        Raises:
            ConfigError: the graph was compiled without a cache, or has no such node.
            StorageError: the cache failed.
        """
        await self._definition.clear_results(nodes)

    @property
    def nodes(self) -> dict[str, PregelNode]:
        """The nodes by name, the hidden `START` included, if there is one."""
        stored, nodes = self._definition.subgraph_index.stored, self._definition.program.nodes
        return {name: shown_node(node, stored.get(name)) for name, node in nodes.items()}

    @property
    def channels(self) -> dict[str, BaseChannel[Any, Any, Any]]:
        """New, empty channels of the graph's kinds, by name."""
        channels = self._definition.program.channels
        return {name: channel.fresh() for name, channel in channels.items() if name not in (SENDS, INPUT_MARK)}

    @property
    def input_channels(self) -> str | list[str]:
        """The channel that takes the input as it is, or the channels that take the entries of a mapping."""
        return _as_list(self._definition.program.inputs)

    @property
    def output_channels(self) -> str | list[str]:
        """The channel whose bare value a call returns, or the channels of which a call returns a mapping."""
        return _as_list(self._definition.program.outputs)

    @property
    def environment(self) -> Environment:
        """The environment that provides clock, ids and randomness, as given to `compile(environment=)`."""
        return self._definition.environment

    @property
    def hints(self) -> Sequence[Any]:
        """The annotations that name the types of the graph's values."""
        return self._definition.hints

    def input_from(self, state: Any) -> Any:
        """Select the input of this graph from the state of a graph in which it is a node.

        Args:
            state: the state of the enclosing graph.

        Returns:
            The entries of this graph's input channels; `state` itself if it is no dict, or if one channel takes it.
        """
        return self._definition.input_from(state)

    def output_from(self, state: Any) -> Any:
        """Select the output of a call from a thread's state.

        Args:
            state: the state, as `StateSnapshot.values` has it.

        Returns:
            The entries of the output channels; `state` itself if it is a bare value.
        """
        return self._definition.output_from(state)

    def events_codec(self) -> Codec:
        """Return the codec that knows the types of this graph and of all its subgraphs, for stored events.

        Returns:
            The codec. The graph must have a checkpointer.
        """
        return self._definition.codecs.of_events(self._definition.codec)

    def get_subgraphs(self, *, namespace: str | None = None, recurse: bool = False) -> Iterator[NamedGraph]:
        """Find the graphs that the nodes run: for each node the first that its code names and that stores its state.

        Args:
            namespace: a path of node names joined with "|": only the graph at this path; None for all.
            recurse: True to find the subgraphs of subgraphs too. Required to find a graph at a path of several names.

        Returns:
            An iterator of `(path, graph)`. A path is the names of the nodes from the outside in, joined with "|".
        """
        found = self._definition.subgraph_index.walk(namespace, recurse=recurse)
        return cast("Iterator[NamedGraph]", found)

    async def aget_subgraphs(self, *, namespace: str | None = None, recurse: bool = False) -> AsyncIterator[NamedGraph]:
        """Find the graphs that the nodes run: `get_subgraphs` for code that iterates asynchronously.

        Args:
            namespace: as in `get_subgraphs`.
            recurse: as in `get_subgraphs`.

        Yields:
            `(path, graph)`, as `get_subgraphs`.
        """
        for found in self.get_subgraphs(namespace=namespace, recurse=recurse):
            yield found

    def get_graph(self, *, xray: bool | int = False) -> Drawing:
        """Return the graph's nodes and edges as a drawing.

        Args:
            xray: True to draw subgraphs in place of the nodes that run them, at any depth; an int to do so that many
                levels deep; False to draw the nodes.

        Returns:
            The drawing, which renders itself as mermaid, SVG, text or JSON.

        Raises:
            ConfigError: `xray` is neither True, False nor a number of levels.
        """
        return _drawn(self, xray)

    def _drawing(self) -> Drawing:
        """Return the drawing of this graph without marks and subgraphs."""
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the graph's image for a notebook, with its subgraphs drawn."""
        return self.get_graph(xray=True)._repr_mimebundle_(include, exclude)


def _as_list(names: str | tuple[str, ...]) -> str | list[str]:
    return names if isinstance(names, str) else list(names)


def _drawn(graph: Graph[Any, Any], xray: bool | int) -> Drawing:
    if not isinstance(cast("object", xray), int) or xray < 0:
        raise ConfigError(f"xray is True, False or a number of levels, not {xray!r}")
    return _outline(graph, ()).expanded(xray)


def _outline(graph: Graph[Any, Any], enclosing: tuple[Graph[Any, Any], ...]) -> Drawing:
    """Return the drawing of a graph, with those of its subgraphs."""
    inside = (*enclosing, graph)
    subgraphs = {
        name: _outline(cast("Graph[Any, Any]", graphs[0]), inside)
        for name, graphs in graph._definition.subgraph_index.by_node.items()
        # A graph may run itself: without this check, the recursion would not end.
        if graphs and not any(graphs[0] is one for one in inside)
    }
    return graph._drawing().with_marks(graph._definition.options, subgraphs)
