"""`Pregel`: the low-level graph of channels and of nodes that subscribe to channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from checkpoint_savers.abc import BaseCheckpointSaver

from ._api.compiled import Graph
from ._api.definition import Definition, define
from ._api.drawing import Drawing, Edge, drawing
from ._checks.options import PregelOptions, checked_options, given_policies, ignores_unknown, name_of, takes
from ._core.program import INPUT_MARK, SENDS, Program, Write, build_program
from ._runtime.streaming.modes import MODES
from .channels import BaseChannel, LastValue
from .errors import GraphValidationError, InvalidInputError, InvalidUpdateError
from .node import NodeBuilder, PregelNode, compile_node, entries_of, own_policies
from .types import END, RESERVED, START, Command, Names, StreamMode

__all__ = ["Pregel"]


class Pregel(Graph[Any, Any]):
    """A low-level graph: nodes that subscribe to channels and write to channels.

    Args:
        nodes: the nodes by name; a `NodeBuilder` is built.
        channels: the channels by name.
        input_channels: one channel, which takes the input as it is; or several, which take the entries of a mapping.
            `[START]` takes the input as it is, too: a `StateGraph` has that channel.
        output_channels: the channels that a call returns, if they were written since the input: one channel as its
            bare value (None if it was not written), several as a mapping of those that were written.
        stream_channels: the channels that streams show; None for all channels. The state of a thread has all channels.
        checkpointer: the saver that stores threads; None stores nothing; True and False are for subgraphs.
        stream_mode: the stream mode of `astream` calls without one; "updates" by default.
        store: the store that nodes get as `store`.
        interrupt_before, interrupt_after: nodes before or after which a run stops; "*" for all nodes.
        name: the graph's name, in messages and drawings.
        blocking: False if the nodes' plain functions never block, and so may run on the event loop; True, the default,
            runs them in worker threads.
        unknown_keys: "error" refuses input keys that are no input channels; "ignore" drops them. None, the default,
            takes the value of `set_defaults`, initially "error".
        debug: True to print the updates and states of each run, and to warn (`InPlaceChangeWarning`) if
            a node changes its input in place.
        environment: the environment that provides clock, ids and randomness; None for the system's.
        retry_policy, timeout, on_timeout, cache_policy: the policies of nodes without their own.
        cache, step_timeout, on_failure, budgets, time_limit, retention, observer, changed_questions, version: as in
            `StateGraph.compile`.

    Raises:
        GraphValidationError: a name is unknown or reserved, no node reads an input channel, or an option is invalid.
        InvalidCheckpointerError: `checkpointer` is no saver, True, False or None.
    """

    @takes(PregelOptions)
    def __init__(
        self,
        *,
        nodes: Mapping[str, PregelNode | NodeBuilder],
        channels: Mapping[str, BaseChannel[Any, Any, Any]],
        input_channels: Names,
        output_channels: Names,
        stream_channels: Names | None = None,
        checkpointer: BaseCheckpointSaver | bool | None = None,
        stream_mode: StreamMode = "updates",
        **options: Unpack[PregelOptions],
    ) -> None:
        checked = checked_options("Pregel", PregelOptions, options)
        built = {key: node.build() if isinstance(node, NodeBuilder) else node for key, node in nodes.items()}
        channel_names = (input_channels, output_channels, stream_channels)
        super().__init__(_define(built, channels, channel_names, checkpointer, stream_mode, checked))
        self._nodes = built

    def _drawing(self) -> Drawing:
        """Draw an edge from each node that writes a channel to each node that the channel triggers."""
        return _draw(self._nodes, self._definition.program)


def _define(
    built: Mapping[str, PregelNode],
    channels: Mapping[str, BaseChannel[Any, Any, Any]],
    channel_names: tuple[Names, Names, Names | None],
    checkpointer: BaseCheckpointSaver | bool | None,
    stream_mode: StreamMode,
    options: PregelOptions,
) -> Definition:
    """Make the definition of a graph. `channel_names` are those of input, output and streams; see `Pregel`."""
    input_channels, output_channels, stream_channels = channel_names
    ignore_unknown, blocking = ignores_unknown(options), options.get("blocking", True)
    if stream_mode not in MODES:
        raise GraphValidationError(f"stream_mode {stream_mode!r} is not known; known are {', '.join(sorted(MODES))}")
    inputs, outputs = _names(input_channels), _names(output_channels)
    keys = tuple([key for key in channels if key != SENDS])
    shown = keys if stream_channels is None else _names(stream_channels)
    _validate(built, channels, inputs, outputs, shown)
    defaults = given_policies("the graph", options)
    program = build_program(
        name=name_of(options, "Pregel"),
        nodes=[compile_node(key, node, blocking=blocking, defaults=defaults) for key, node in built.items()],
        channels={**channels, INPUT_MARK: LastValue(bool)},
        keys=keys,
        inputs=inputs,
        outputs=outputs,
        shown=keys,
        input_mark=INPUT_MARK,
        read_input=_input_reader(inputs, ignore=ignore_unknown),
        read_command=_command_reader(list(channels)),
    )
    return define(
        program,
        checkpointer,
        options,
        hints=[channel.typ for channel in channels.values()],
        stream_channels=shown,
        stream_mode=stream_mode,
        policies=defaults,
        own_policies={key: own_policies(key, node) for key, node in built.items()},
    )


def _draw(nodes: Mapping[str, PregelNode], program: Program) -> Drawing:
    edges = [
        Edge(source=START, target=name) for c in _as_tuple(program.inputs) for name in program.triggered.get(c, ())
    ]
    for name, node in nodes.items():
        for entry in entries_of(node):
            edges += [Edge(source=name, target=end) for end in program.triggered.get(entry.channel, ())]
            if entry.channel in _as_tuple(program.outputs):
                edges.append(Edge(source=name, target=END))
    return drawing(list(nodes), edges)


def _names(given: Names) -> str | tuple[str, ...]:
    return given if isinstance(given, str) else tuple(given)


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _input_reader(inputs: str | tuple[str, ...], *, ignore: bool) -> Any:
    def read(given: Any) -> list[Write]:
        if isinstance(inputs, str):
            return [(inputs, given), (INPUT_MARK, True)]
        if inputs == (START,) and not (isinstance(given, Mapping) and given.keys() == {START}):
            return [(START, given), (INPUT_MARK, True)]
        if not isinstance(given, Mapping):
            raise InvalidInputError(f"the input is a mapping of {', '.join(inputs)}, not a {type(given).__name__}")
        unknown = [key for key in given if key not in inputs]
        if unknown and not ignore:
            raise InvalidInputError(
                f"the input has {unknown[0]!r}, and the graph's input channels are {', '.join(inputs)}. "
                "Pregel(unknown_keys='ignore') drops such keys, set_defaults(unknown_keys='ignore') in all graphs."
            )
        return [*[(key, given[key]) for key in inputs if key in given], (INPUT_MARK, True)]

    return read


def _command_reader(channels: Sequence[str]) -> Callable[[Command], list[Write]]:
    def read(command: Command) -> list[Write]:
        if command.goto:
            raise InvalidUpdateError("a Pregel graph takes no goto: write to a channel that triggers the node")
        update = command.update or {}
        if not isinstance(update, Mapping):
            raise InvalidUpdateError(f"an update is a mapping of channels, not a {type(update).__name__}")
        for name in update:
            if name not in channels or name == SENDS:
                raise InvalidUpdateError(
                    f"the command updates {name!r}, and the graph has no such channel", channel=name
                )
        return list(update.items())

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
        if not name or name == END or name in RESERVED or (name.startswith("__pregel_") and name != SENDS):
            raise GraphValidationError(f"the name {name!r} is reserved")
    used = [(f"node {name!r} subscribes to", channel) for name, node in nodes.items() for channel in node.triggers]
    used += [(f"node {name!r} reads", channel) for name, node in nodes.items() for channel in node.read_channels]
    used += [(f"node {name!r} writes to", entry.channel) for name, node in nodes.items() for entry in entries_of(node)]
    used += [("the input is", channel) for channel in _as_tuple(inputs)]
    used += [("the output is", channel) for channel in _as_tuple(outputs)] + [
        ("the stream shows", c) for c in _as_tuple(shown)
    ]
    for what, channel in used:
        if channel not in channels:
            raise GraphValidationError(f"{what} channel {channel!r}, and the graph has no such channel")
        if channel == SENDS:
            raise GraphValidationError(f"{what} {SENDS!r}, which is reserved: return a Send from a router instead")
    triggers = {trigger for node in nodes.values() for trigger in node.triggers}
    if not triggers.intersection(_as_tuple(inputs)):
        raise GraphValidationError(
            f"no node subscribes to an input channel ({', '.join(_as_tuple(inputs))}): nothing would run"
        )
