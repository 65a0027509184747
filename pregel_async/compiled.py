"""The object that users call: run it, stream it, read its threads."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Protocol, Self, TypeVar, cast, runtime_checkable

import anyio

from checkpoint_savers.abc import BaseCheckpointSaver, address
from checkpoint_savers.codec import Codec

from ._core.program import SENDS, Program, Write, build_program
from ._runtime.log import Log, Sink
from ._runtime.loops import alone
from ._runtime.modes import MODES, View
from ._runtime.run import Settings, run
from ._runtime.stream import GraphStream
from ._runtime.world import SystemWorld, World
from .channels import BaseChannel
from .config import address_of, merge_configs, settings_of
from .drawing import Drawing, Edge, drawing
from .errors import ConfigError, GraphValidationError, InvalidCheckpointerError, InvalidInputError
from .node import NodeBuilder, PregelNode, compile_node
from .state import StateReader
from .sync import SyncFace
from .types import END, START, Config, Names, OnConflict, RunnableConfig, Send, StateSnapshot, StreamMode

__all__ = ["Pregel", "PregelProtocol"]

InputT = TypeVar("InputT", contravariant=True)
OutputT = TypeVar("OutputT", covariant=True)
Modes = StreamMode | Sequence[StreamMode]


@runtime_checkable
class PregelProtocol(Protocol[InputT, OutputT]):
    """What every graph can do, however it was built."""

    def invoke(self, input: InputT | None, config: Config | None = None) -> OutputT: ...

    def stream(self, input: InputT | None, config: Config | None = None) -> Iterator[Any]: ...

    def get_state(self, config: Config) -> StateSnapshot: ...

    def get_state_history(self, config: Config) -> Iterator[StateSnapshot]: ...

    def update_state(
        self, config: Config, values: Any, as_node: str | None = None, task_id: str | None = None
    ) -> RunnableConfig: ...

    async def ainvoke(self, input: InputT | None, config: Config | None = None) -> OutputT: ...

    def astream(self, input: InputT | None, config: Config | None = None) -> AsyncIterator[Any]: ...

    async def aget_state(self, config: Config) -> StateSnapshot: ...

    def aget_state_history(self, config: Config) -> AsyncIterator[StateSnapshot]: ...


class Graph(SyncFace[InputT, OutputT]):
    """A compiled graph. It holds no state of a run: one serves concurrent runs on any thread and event loop.

    Made by `StateGraph.compile()` or `Pregel(...)`.

    Attributes:
        name: for messages and drawings.
        checkpointer: where threads are stored; None runs without.
        stream_mode: what `astream` shows when a call does not say.
    """

    def __init__(
        self,
        program: Program,
        *,
        checkpointer: BaseCheckpointSaver | None,
        hints: Sequence[Any],
        stream_channels: str | tuple[str, ...],
        stream_mode: StreamMode,
        world: World | None,
        debug: bool,
    ) -> None:
        self.name = program.name
        self.checkpointer = _checked_saver(checkpointer)
        self.stream_mode: StreamMode = stream_mode
        self._debug = debug
        self._program = program
        self._hints = hints
        self._codec = None if checkpointer is None else _codec_for(checkpointer, hints)
        self._stream_channels = stream_channels
        self._world: World = SystemWorld() if world is None else world
        self._config: RunnableConfig = {}

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
        return {name: channel.fresh() for name, channel in self._program.channels.items() if name != SENDS}

    @property
    def input_channels(self) -> str | list[str]:
        inputs = self._program.inputs
        return inputs if isinstance(inputs, str) else list(inputs)

    @property
    def output_channels(self) -> str | list[str]:
        outputs = self._program.outputs
        return outputs if isinstance(outputs, str) else list(outputs)

    def with_config(self, config: Config | None = None, **keys: Any) -> Self:
        """The same graph with settings bound to it; those of a call win over them."""
        bound = copy.copy(self)
        bound._config = merge_configs(self._config, config, keys)
        return bound

    def with_checkpointer(self, checkpointer: BaseCheckpointSaver | None) -> Self:
        """The same graph, storing its threads there; None stores nothing."""
        bound = copy.copy(self)
        bound.checkpointer = _checked_saver(checkpointer)
        bound._codec = None if checkpointer is None else _codec_for(checkpointer, self._hints)
        return bound

    # ---- running -------------------------------------------------------------------------------------------------

    async def ainvoke(
        self,
        input: InputT | None,
        config: Config | None = None,
        *,
        stream_mode: Modes = "values",
        output_keys: Names | None = None,
        on_conflict: OnConflict = "reject",
    ) -> OutputT:
        """Run to the end and return the output.

        Args:
            input: what the input schema says; None goes on with what is stored of the thread.
            config: settings, or a thread id.
            stream_mode: other than "values": return the list of all chunks that `astream` would give.
            output_keys: the channels to return, instead of the output schema's.
            on_conflict: "reject" raises when another run owns the thread; "wait" waits for it.

        Returns:
            The output channels' values at the end: those that hold something.

        Raises:
            PregelError: see `pregel_async.errors`: a bad input or config, a busy thread, failing storage, the step
                limit.
            Exception: what a node raised, with a note that names it; an `ExceptionGroup` in plan order when several
                nodes of one superstep did. The thread can be resumed.
        """
        settings = self._settings(config, on_conflict)
        shown = self._shown(output_keys, self._program.outputs)
        if stream_mode == "values":
            board = await run(self._program, input, settings, self._world, self.checkpointer, self._codec, None)
            return cast("OutputT", board.show(shown))
        chunks: list[Any] = []

        async def keep(chunk: Any) -> None:
            chunks.append(chunk)

        await self._logged(input, settings, stream_mode, self._shown(output_keys, self._stream_channels), keep)
        return cast("OutputT", chunks)

    def astream(
        self,
        input: InputT | None,
        config: Config | None = None,
        *,
        stream_mode: Modes | None = None,
        output_keys: Names | None = None,
        on_conflict: OnConflict = "reject",
    ) -> GraphStream[Any]:
        """Run, and show what happens while it does.

        Args:
            stream_mode: "updates" (each task's update as it finishes), "values" (the state after each superstep),
                "tasks" (each task when it is planned and when it has ended), or several, which labels each chunk:
                `(mode, payload)`.
            output_keys: the channels to show, instead of all state keys.

        The other arguments and the errors are those of `ainvoke`. A bad config raises here, all else while reading.
        """
        settings = self._settings(config, on_conflict)
        shown = self._shown(output_keys, self._stream_channels)
        modes = self.stream_mode if stream_mode is None else stream_mode
        _names_of_modes(modes)

        async def work(sink: Sink) -> None:
            await self._logged(input, settings, modes, shown, sink)

        return GraphStream(work)

    async def abatch(
        self,
        inputs: Sequence[InputT],
        config: Config | Sequence[Config] | None = None,
        *,
        return_exceptions: bool = False,
        max_concurrency: int | None = None,
        on_conflict: OnConflict = "reject",
    ) -> list[OutputT]:
        """Run once per input, concurrently; the outputs in the inputs' order.

        Args:
            config: one for all, or one for each input.
            return_exceptions: put a run's exception in its place instead of raising it.
            max_concurrency: how many runs at once; None for all.

        Raises:
            Exception: the failure of the first input, in order, that failed; the other runs are cancelled.
        """
        if config is None or isinstance(config, (str, Mapping)):
            configs: list[Config | None] = [config] * len(inputs)
        else:
            configs = list(config)
        if len(configs) != len(inputs):
            raise ConfigError(
                f"abatch got {len(inputs)} inputs and {len(configs)} configs: pass one config, or one for each"
            )
        done: dict[int, OutputT | BaseException] = {}
        places = iter(range(len(inputs)))

        async def work() -> None:
            for place in places:
                try:
                    done[place] = await self.ainvoke(inputs[place], configs[place], on_conflict=on_conflict)
                except Exception as error:
                    done[place] = error
                    if not return_exceptions:
                        group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                for _ in range(len(inputs) if max_concurrency is None else max(1, max_concurrency)):
                    group.start_soon(work)
        except BaseExceptionGroup as several:  # Ctrl-C: every other error is kept in its place
            raise alone(several) from None
        if not return_exceptions:
            for place in sorted(done):
                result = done[place]
                if isinstance(result, BaseException):
                    raise result
        return [cast("OutputT", done[place]) for place in range(len(inputs))]

    async def _logged(
        self, given: Any, settings: Settings, modes: Modes, shown: str | tuple[str, ...], sink: Sink
    ) -> None:
        view = View(program=self._program, shown=shown)
        log = Log(_names_of_modes(modes), view, sink, labelled=not isinstance(modes, str))
        await run(self._program, given, settings, self._world, self.checkpointer, self._codec, log)

    def _settings(self, config: Config | None, on_conflict: OnConflict) -> Settings:
        merged = merge_configs(self._config, config)
        return settings_of(merged, stored=self.checkpointer is not None, on_conflict=on_conflict, debug=self._debug)

    def _shown(self, keys: Names | None, default: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if keys is None:
            return default
        for key in (keys,) if isinstance(keys, str) else keys:
            if key not in self._program.channels:
                raise ConfigError(f"output_keys names {key!r}, and graph {self.name!r} has no such channel")
        return keys if isinstance(keys, str) else tuple(keys)

    # ---- reading threads -----------------------------------------------------------------------------------------

    async def aget_state(self, config: Config) -> StateSnapshot:
        """The state of a thread: at its head, or at the `checkpoint_id` that the config names.

        Raises:
            ConfigError: the graph has no checkpointer, or the config no thread.
            CheckpointNotFoundError: the thread has no such checkpoint.
            CorruptCheckpointError, GraphChangedError, StorageError
        """
        reader, (thread_id, ns, at) = self._reader(config)
        return await reader.latest(thread_id, ns, at)

    async def aget_state_history(
        self,
        config: Config,
        *,
        filter: Mapping[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[StateSnapshot]:
        """All states of a thread, of all its branches, newest first.

        Args:
            filter: metadata entries, all of which must be equal.
            before: a config with a `checkpoint_id`: only older ones.
            limit: at most so many, counted after filtering.

        Raises: as `aget_state`.
        """
        reader, (thread_id, ns, at) = self._reader(config)
        bound = None if before is None else address(before)[2]
        snapshots = reader.history(thread_id, ns, at, filter=filter, before=bound, limit=limit)
        async with aclosing(snapshots):
            async for snapshot in snapshots:
                yield snapshot

    def _reader(self, config: Config) -> tuple[StateReader, tuple[str, str, Any]]:
        if self.checkpointer is None or self._codec is None:
            raise ConfigError("the graph has no checkpointer, so nothing is stored: compile it with one")
        thread_id, ns, at = address_of(merge_configs(self._config, config))
        if thread_id is None:
            raise ConfigError(
                "the config has no thread_id: pass {'configurable': {'thread_id': ...}}, or the thread's id"
            )
        return StateReader(self._program, self.checkpointer, self._codec), (thread_id, ns, at)


def _names_of_modes(modes: Modes) -> list[str]:
    names = [modes] if isinstance(modes, str) else list(modes)
    for name in names:
        if name not in MODES:
            raise ConfigError(f"stream_mode {name!r} is not known; known are {', '.join(sorted(MODES))}")
    if not names or len(set(names)) < len(names):
        raise ConfigError("stream_mode names each mode once, and at least one")
    return cast("list[str]", names)


class Pregel(Graph[Any, Any]):
    """A graph of the low level: nodes that subscribe to channels and write to channels.

    Args:
        nodes: by name; a `NodeBuilder` is built.
        channels: by name.
        input_channels: one takes the input as it is; several take a mapping's entries.
        output_channels: one is returned bare; several as a mapping.
        stream_channels: what streams show; the output channels by default.
        checkpointer: where threads are stored.
        name: for messages and drawings.
        blocking: False promises that the nodes' plain functions never block, so that they run on the event loop.
        unknown_keys: "ignore" drops input keys that are no input channels, instead of refusing them.
        debug: warn (`InPlaceChangeWarning`) when a node changes its input in place.
        world: clock, ids and randomness.

    Raises:
        GraphValidationError: an unknown or reserved name, an input that nothing reads.
    """

    def __init__(
        self,
        *,
        nodes: Mapping[str, PregelNode | NodeBuilder],
        channels: Mapping[str, BaseChannel[Any, Any, Any]],
        input_channels: Names,
        output_channels: Names,
        stream_channels: Names | None = None,
        checkpointer: BaseCheckpointSaver | None = None,
        name: str = "Pregel",
        stream_mode: StreamMode = "values",
        blocking: bool = True,
        unknown_keys: Literal["error", "ignore"] = "error",
        debug: bool = False,
        world: World | None = None,
    ) -> None:
        built = {key: node.build() if isinstance(node, NodeBuilder) else node for key, node in nodes.items()}
        if unknown_keys not in ("error", "ignore"):
            raise GraphValidationError(f"unknown_keys is 'error' or 'ignore', not {unknown_keys!r}")
        if stream_mode not in MODES:
            raise GraphValidationError(
                f"stream_mode {stream_mode!r} is not known; known are {', '.join(sorted(MODES))}"
            )
        inputs, outputs = _names(input_channels), _names(output_channels)
        shown = outputs if stream_channels is None else _names(stream_channels)
        _validate(built, channels, inputs, outputs, shown)
        program = build_program(
            name=name,
            nodes=[compile_node(key, node, blocking=blocking) for key, node in built.items()],
            channels=channels,
            keys=[key for key in channels if key != SENDS],
            inputs=inputs,
            outputs=outputs,
            read_input=_input_reader(inputs, ignore=unknown_keys == "ignore"),
        )
        super().__init__(
            program,
            checkpointer=checkpointer,
            hints=[channel.typ for channel in channels.values()],
            stream_channels=shown,
            stream_mode=stream_mode,
            world=world,
            debug=debug,
        )
        self._drawn = _draw(built, program)

    def get_graph(self) -> Drawing:
        """Nodes and edges, to be drawn: an edge is a channel that one node writes and another is triggered by."""
        return self._drawn


def _draw(nodes: Mapping[str, PregelNode], program: Program) -> Drawing:
    edges = [Edge(source=START, target=name) for c in _each(program.inputs) for name in program.triggered.get(c, ())]
    for name, node in nodes.items():
        for entry in node.writers:
            edges += [Edge(source=name, target=end) for end in program.triggered.get(entry.channel, ())]
            if entry.channel in _each(program.outputs):
                edges.append(Edge(source=name, target=END))
    return drawing(list(nodes), edges)


def _codec_for(saver: BaseCheckpointSaver, hints: Sequence[Any]) -> Codec:
    """The saver's codec, and the types that a graph's annotations name."""
    return saver.codec.with_types(Send, tag="pregel_async.Send").with_annotations(*hints)


def _checked_saver(checkpointer: BaseCheckpointSaver | None) -> BaseCheckpointSaver | None:
    if checkpointer is not None and not isinstance(checkpointer, BaseCheckpointSaver):
        given = cast("object", checkpointer)
        kind = f"class: make one, {given.__name__}()" if isinstance(given, type) else type(given).__name__
        raise InvalidCheckpointerError(
            f"a checkpointer is a BaseCheckpointSaver, not a {kind}. A saver that is an async context manager is "
            "entered first: async with SqliteSaver.from_conn_string(path) as saver"
        )
    return checkpointer


def _names(given: Names) -> str | tuple[str, ...]:
    return given if isinstance(given, str) else tuple(given)


def _each(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _input_reader(inputs: str | tuple[str, ...], *, ignore: bool) -> Any:
    def read(given: Any) -> list[Write]:
        if isinstance(inputs, str):
            return [(inputs, given)]
        if not isinstance(given, Mapping):
            raise InvalidInputError(f"the input is a mapping of {', '.join(inputs)}, not a {type(given).__name__}")
        unknown = [key for key in given if key not in inputs]
        if unknown and not ignore:
            raise InvalidInputError(
                f"the input has {unknown[0]!r}, and the graph's input channels are {', '.join(inputs)}"
            )
        return [(key, given[key]) for key in inputs if key in given]

    return read


def _validate(
    nodes: Mapping[str, PregelNode],
    channels: Mapping[str, BaseChannel[Any, Any, Any]],
    inputs: str | tuple[str, ...],
    outputs: str | tuple[str, ...],
    shown: str | tuple[str, ...],
) -> None:
    if not nodes:
        raise GraphValidationError("the graph has no nodes")
    for name in (*nodes, *channels):
        if not name or name == END or (name.startswith("__pregel_") and name != SENDS):
            raise GraphValidationError(f"the name {name!r} is reserved")
    used = [(f"node {name!r} subscribes to", channel) for name, node in nodes.items() for channel in node.triggers]
    used += [(f"node {name!r} reads", channel) for name, node in nodes.items() for channel in node.read_channels]
    used += [(f"node {name!r} writes to", entry.channel) for name, node in nodes.items() for entry in node.writers]
    used += [("the input is", channel) for channel in _each(inputs)]
    used += [("the output is", channel) for channel in _each(outputs)] + [("the stream shows", c) for c in _each(shown)]
    for what, channel in used:
        if channel not in channels:
            raise GraphValidationError(f"{what} channel {channel!r}, and the graph has no such channel")
        if channel == SENDS:
            raise GraphValidationError(f"{what} {SENDS!r}, which is reserved: return a Send from a router instead")
    triggers = {trigger for node in nodes.values() for trigger in node.triggers}
    if not triggers.intersection(_each(inputs)):
        raise GraphValidationError(
            f"no node subscribes to an input channel ({', '.join(_each(inputs))}): nothing would run"
        )
