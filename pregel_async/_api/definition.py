"""The immutable definition of a compiled graph. Setting an attribute of a graph gives the graph another definition.

So runs in progress, and copies that `with_config` has made, keep the definition that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self, TypedDict, cast

import msgspec
from msgspec import structs

from checkpoint_savers import ports
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from .._checks.node_policies import NodePolicies
from .._checks.options import StepOptions, options_of_graph, with_program_options
from .._core.program import Node, Program
from .._runtime.platform.environment import Environment, SystemEnvironment
from .._runtime.streaming.publisher import StreamView
from .._runtime.streaming.subscription import LiveRuns
from .._runtime.tasks.result_cache import NodeResultCache
from .._runtime.tasks.run_options import RunOptions
from .._runtime.tasks.subgraphs import reachable
from ..errors import ConfigError, GraphValidationError, InvalidCheckpointerError
from ..types import RunnableConfig, StreamMode
from .stored_types import codec_of, with_hints, with_runtime_types


class HasDefinition:
    """A compiled graph, as far as the modules of this folder use it. `compiled.Graph` derives from this class."""

    _definition: Definition


class SubgraphIndex:
    """The subgraphs of a program: the graphs that the code of its nodes names."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def by_node(self) -> dict[str, list[HasDefinition]]:
        """All subgraphs by node. Cached, because the search through the nodes' code takes longer than a short run."""
        return {name: list(reachable(node.call, HasDefinition)) for name, node in self._program.nodes.items()}

    @property
    def stored(self) -> dict[str, HasDefinition]:
        """The first subgraph of each node that stores its state, by node."""
        stored = {
            name: [graph for graph in graphs if graph._definition.checkpointer is not False]
            for name, graphs in self.by_node.items()
        }
        return {name: graphs[0] for name, graphs in stored.items() if graphs}

    def walk(
        self, namespace: str | None, *, recurse: bool, enclosing: tuple[SubgraphIndex, ...] = ()
    ) -> Iterator[tuple[str, HasDefinition]]:
        """Yield each subgraph with its path; see `Graph.get_subgraphs`."""
        enclosing = (*enclosing, self)
        for name, graph in self.stored.items():
            if namespace is None or namespace == name:
                yield name, graph
            inner = graph._definition.subgraph_index
            if any(inner is one for one in enclosing):  # a graph that runs itself: stop the recursion
                continue
            if recurse and (namespace is None or namespace.startswith(f"{name}|")):
                rest = None if namespace is None else namespace.removeprefix(f"{name}|")
                for path, found in inner.walk(rest, recurse=True, enclosing=enclosing):
                    yield f"{name}|{path}", found

    def keeps_state(self) -> Mapping[str, bool]:
        """Return by node whether its subgraph keeps its state from call to call."""
        return {name: graph._definition.checkpointer is True for name, graph in self.stored.items()}


class Codecs:
    """Derived codecs of a graph: as a subgraph, and for stored events. Each is cached for the last base codec."""

    def __init__(self, hints: Sequence[Any], subgraph_index: SubgraphIndex) -> None:
        self._hints = hints
        self._subgraph_index = subgraph_index
        self._nested: tuple[Codec, Codec] | None = None
        self._of_events: tuple[Codec, Codec] | None = None

    def nested(self, outer: Codec) -> Codec:
        """Return the codec of the enclosing graph, extended by the types of this graph's annotations."""
        made = self._nested
        if made is None or made[0] is not outer:
            made = self._nested = (outer, with_hints(outer, self._hints))
        return made[1]

    def of_events(self, own: Codec | None) -> Codec:
        """Return the graph's codec, extended by the types of all its subgraphs."""
        assert own is not None  # events are stored with a thread, so there is a saver
        made = self._of_events
        if made is None or made[0] is not own:
            codec = own
            for _, graph in self._subgraph_index.walk(None, recurse=True):
                codec = graph._definition.codecs.nested(codec)
            made = self._of_events = (own, codec)
        return made[1]


class Definition(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The parts of a compiled graph.

    Attributes:
        program: the nodes and channels, as the algorithm runs them.
        options: the options of the graph's runs, before those of a call.
        hints: the annotations that name the types of the graph's values.
        checkpointer, cache, stream_mode, stream_channels: as the attributes of a graph.
        codec: the codec that stores the graph's values; None without a saver.
        codecs: the codecs of the graph as a subgraph, and for stored events.
        live: the runs that other readers can join.
        results: the cached results of nodes; None without a cache.
        environment: the environment that provides clock, ids and randomness.
        policies: the policies of nodes without their own.
        own_policies: the nodes' own policies, by node.
        subgraph_index: the graphs that the nodes run.
        config: the settings that are bound to the graph.
        read_context: converts a call's context to the context that nodes get; None passes it as it is.
        coerce_state, coerce_output: make the schema's object of a state, and of an output; None for plain dicts.
        complete_state: adds defaults to a state, as `aget_state` shows it; None shows it as it is stored.
        schemas: the schemas of input and output; empty for the types of the input and output channels.
        context_schema: the class of a call's context; None for none.
    """

    program: Program
    options: RunOptions
    hints: Sequence[Any]
    checkpointer: BaseCheckpointSaver | bool | None
    codec: Codec | None
    codecs: Codecs
    live: LiveRuns
    cache: ports.BaseCache | None
    results: NodeResultCache | None
    environment: Environment
    stream_mode: StreamMode | Sequence[StreamMode]
    stream_channels: str | tuple[str, ...]
    policies: NodePolicies
    own_policies: Mapping[str, NodePolicies]
    subgraph_index: SubgraphIndex
    config: RunnableConfig
    read_context: Callable[[Any], Any] | None
    coerce_state: Callable[[Any], Any] | None
    coerce_output: Callable[[Any], Any] | None
    complete_state: Callable[[Any], Any] | None
    schemas: tuple[Any, ...]
    context_schema: type[Any] | None

    @property
    def input_type(self) -> Any:
        """The annotation of the input."""
        return self.schemas[0] if self.schemas else self._type_of("Input", self.program.inputs)

    @property
    def output_type(self) -> Any:
        """The annotation of the output."""
        return self.schemas[1] if self.schemas else self._type_of("Output", self.program.outputs)

    def _type_of(self, name: str, channels: str | tuple[str, ...]) -> Any:
        known: Any = self.program.channels
        if isinstance(channels, str):
            return known[channels].ValueType
        make: Any = TypedDict  # with keys that a type checker cannot know
        return make(name, {channel: known[channel].ValueType for channel in channels}, total=False)

    @property
    def name(self) -> str:
        return self.program.name

    @cached_property
    def saver(self) -> BaseCheckpointSaver | None:
        # Not by class: a service's runs have a saver that is wrapped (`through`).
        return None if isinstance(self.checkpointer, bool) else self.checkpointer

    @cached_property
    def checked(self) -> dict[object, Any]:
        """A cache of the options of calls that were checked against this definition; see `calls`."""
        # Not among the fields: a definition with another value of an attribute begins with an empty cache.
        return {}

    @cached_property
    def events_codec(self) -> Callable[[], Codec]:
        """Makes the codec of stored events. Bound to this definition's codec: a graph's saver may be replaced."""
        return partial(self.codecs.of_events, self.codec)

    @cached_property
    def shown(self) -> StreamView:
        """The part of the definition that streams need."""
        return StreamView(
            channels=self.stream_channels, coerce=self.coerce_state, stored_subgraphs=self.subgraph_index.keeps_state
        )

    async def clear_results(self, nodes: Sequence[str] | None) -> None:
        """Remove the cached results of nodes; see `Graph.aclear_cache`."""
        known = self.program.nodes
        if self.results is None:
            raise ConfigError(f"graph {self.name!r} has no cache to clear: compile it with one")
        if isinstance(nodes, str):
            raise ConfigError(f"aclear_cache takes a list of nodes' names, not {nodes!r}")
        for name in nodes or ():
            if name not in known:
                raise ConfigError(f"aclear_cache names {name!r}, and graph {self.name!r} has no such node")
        await self.results.clear([known[name] for name in (known if nodes is None else nodes)])

    def input_from(self, state: Any) -> Any:
        """Select the input from the state of an enclosing graph; see `Graph.input_from`."""
        inputs = self.program.inputs
        if isinstance(inputs, str) or not isinstance(state, dict):
            return state
        return {key: state[key] for key in inputs if key in state}

    def output_from(self, state: Any) -> Any:
        """Select the output from a thread's state; see `Graph.output_from`."""
        shown, outputs = self.program.shown, self.program.outputs
        if isinstance(shown, str) or not isinstance(state, dict):
            return state
        if isinstance(outputs, str):
            return state.get(outputs)
        return {key: state[key] for key in outputs if key in state}

    def modes_for(self, options: Mapping[str, Any]) -> StreamMode | Sequence[StreamMode]:
        """Return the stream modes of a call: those of its options, or the graph's."""
        asked: StreamMode | Sequence[StreamMode] | None = options.get("stream_mode")
        return self.stream_mode if asked is None else asked

    def with_checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> Self:
        """Replace the checkpointer. Raises `InvalidCheckpointerError`."""
        checked = checked_saver(checkpointer)
        codec = codec_of(checked, self.hints)  # the cache encodes results with it too
        results = _results_of(self.cache, codec, self.hints)
        return structs.replace(self, checkpointer=checked, codec=codec, live=LiveRuns(), results=results)

    def through(self, wrapped: BaseCheckpointSaver) -> Self:
        """Store runs through a wrapper of the graph's saver. The codec and the runs to join remain the graph's."""
        return structs.replace(self, checkpointer=wrapped)

    def with_cache(self, cache: ports.BaseCache | None) -> Self:
        """Replace the cache. Raises `GraphValidationError`."""
        checked = checked_cache(cache)
        return structs.replace(self, cache=checked, results=_results_of(checked, self.codec, self.hints))

    def with_policies(self, policies: NodePolicies) -> Self:
        """Replace the policies of nodes without their own."""

        def renewed(node: Node) -> Node:
            if node.hidden:
                return node
            own = self.own_policies.get(node.name, NodePolicies()).with_defaults(policies)
            handler = None if node.handler is None else structs.replace(node.handler, retry=policies.retry)
            return structs.replace(node, retry=own.retry, cache=own.cache, handler=handler)

        nodes = {name: renewed(node) for name, node in self.program.nodes.items()}
        return structs.replace(self, program=structs.replace(self.program, nodes=nodes), policies=policies)


def define(
    program: Program,
    checkpointer: BaseCheckpointSaver | bool | None,
    options: StepOptions,
    *,
    hints: Sequence[Any],
    stream_channels: str | tuple[str, ...],
    stream_mode: StreamMode,
    policies: NodePolicies,
    own_policies: Mapping[str, NodePolicies] | None = None,
    read_context: Callable[[Any], Any] | None = None,
    coerce_state: Callable[[Any], Any] | None = None,
    coerce_output: Callable[[Any], Any] | None = None,
    complete_state: Callable[[Any], Any] | None = None,
    schemas: tuple[Any, ...] = (),
    context_schema: type[Any] | None = None,
) -> Definition:
    """Make the definition of a graph from its program and the options of its user; see `Definition`.

    Raises:
        GraphValidationError, InvalidCheckpointerError, ConfigError: an option is invalid for the graph.
    """
    saver = checked_saver(checkpointer)
    codec = codec_of(saver, hints)
    cache = checked_cache(options.get("cache"))
    environment = options.get("environment")
    subgraph_index = SubgraphIndex(program)
    return Definition(
        program=with_program_options(program, options),
        options=options_of_graph(program, options),
        hints=hints,
        checkpointer=saver,
        codec=codec,
        codecs=Codecs(hints, subgraph_index),
        live=LiveRuns(),
        cache=cache,
        results=_results_of(cache, codec, hints),
        environment=SystemEnvironment() if environment is None else environment,
        stream_mode=stream_mode,
        stream_channels=stream_channels,
        policies=policies,
        own_policies=own_policies or {},
        subgraph_index=subgraph_index,
        config={},
        read_context=read_context,
        coerce_state=coerce_state,
        coerce_output=coerce_output,
        complete_state=complete_state,
        schemas=schemas,
        context_schema=context_schema,
    )


def _results_of(cache: ports.BaseCache | None, codec: Codec | None, hints: Sequence[Any]) -> NodeResultCache | None:
    return None if cache is None else NodeResultCache(cache, codec or with_runtime_types(Codec(), hints))


def checked_cache(cache: ports.BaseCache | None) -> ports.BaseCache | None:
    """Return a cache as it is. Raises `GraphValidationError`."""
    if cache is None:
        return None
    from checkpoint_savers.caches.abc import BaseCache

    if not isinstance(cache, BaseCache):
        raise GraphValidationError(f"a cache is a BaseCache (InMemoryCache(), SqliteCache(path)), not {cache!r}")
    return cache


def checked_saver(checkpointer: BaseCheckpointSaver | bool | None) -> BaseCheckpointSaver | bool | None:
    """Return a checkpointer as it is. Raises `InvalidCheckpointerError`."""
    if checkpointer is not None and not isinstance(checkpointer, (BaseCheckpointSaver, bool)):
        given = cast("object", checkpointer)
        kind = f"class: make one, {given.__name__}()" if isinstance(given, type) else type(given).__name__
        raise InvalidCheckpointerError(
            f"a checkpointer is a BaseCheckpointSaver, not a {kind}. A saver that is an async context manager is "
            "entered first: async with SqliteSaver.from_conn_string(path) as saver, or with open_sync(...) as saver"
        )
    return checkpointer
