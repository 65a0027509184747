"""What a compiled graph consists of. It never changes: a graph whose attribute is set gets another definition.

So a run keeps what it began with, and so does a copy that `with_config` made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self, cast

import msgspec
from msgspec import structs

from checkpoint_savers import ports
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec

from .._checks.node_policies import NodePolicies
from .._checks.options import StepOptions, options_of_graph, with_step_timeout
from .._core.program import Node, Program
from .._runtime.platform.environment import Environment, SystemEnvironment
from .._runtime.streaming.publisher import StreamView
from .._runtime.streaming.subscription import LiveRuns
from .._runtime.tasks.kept_results import Results
from .._runtime.tasks.run_options import RunOptions
from .._runtime.tasks.subgraphs import reachable
from ..errors import GraphValidationError, InvalidCheckpointerError
from ..types import RunnableConfig, StreamMode
from .stored_types import codec_of, with_hints, with_runtime_types


class Compiled:
    """A compiled graph, as the modules of this folder see it."""

    _definition: Definition


class GraphsInside:
    """The graphs that the nodes of a program run, as far as the nodes' code names them."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def by_node(self) -> dict[str, list[Compiled]]:
        """All of them. They are looked for once: it takes longer than a short run."""
        return {name: list(reachable(node.call, Compiled)) for name, node in self._program.nodes.items()}

    @property
    def stored(self) -> dict[str, Compiled]:
        """By node, the first graph that stores its state."""
        stored = {
            name: [graph for graph in graphs if graph._definition.checkpointer is not False]
            for name, graphs in self.by_node.items()
        }
        return {name: graphs[0] for name, graphs in stored.items() if graphs}

    def walk(
        self, namespace: str | None, *, recurse: bool, around: tuple[GraphsInside, ...] = ()
    ) -> Iterator[tuple[str, Compiled]]:
        """Each graph with its path, as `Graph.get_subgraphs` gives them."""
        around = (*around, self)
        for name, graph in self.stored.items():
            if namespace is None or namespace == name:
                yield name, graph
            inner = graph._definition.inside
            if any(inner is one for one in around):  # a graph may run itself
                continue
            if recurse and (namespace is None or namespace.startswith(f"{name}|")):
                rest = None if namespace is None else namespace.removeprefix(f"{name}|")
                for path, found in inner.walk(rest, recurse=True, around=around):
                    yield f"{name}|{path}", found

    def keeps(self) -> Mapping[str, bool]:
        """By node, whether its graph keeps its state from call to call."""
        return {name: graph._definition.checkpointer is True for name, graph in self.stored.items()}


class Codecs:
    """What a graph's values are stored with where its own codec does not serve; made once of each codec."""

    def __init__(self, hints: Sequence[Any], inside: GraphsInside) -> None:
        self._hints = hints
        self._inside = inside
        self._nested: tuple[Codec, Codec] | None = None
        self._of_events: tuple[Codec, Codec] | None = None

    def nested(self, outer: Codec) -> Codec:
        """Return the codec of the graph around, which knows the types of this graph's annotations besides."""
        made = self._nested
        if made is None or made[0] is not outer:
            made = self._nested = (outer, with_hints(outer, self._hints))
        return made[1]

    def of_events(self, own: Codec | None) -> Codec:
        """Return the codec of the graph and of all graphs inside."""
        assert own is not None  # events are kept with a thread
        made = self._of_events
        if made is None or made[0] is not own:
            codec = own
            for _, graph in self._inside.walk(None, recurse=True):
                codec = graph._definition.codecs.nested(codec)
            made = self._of_events = (own, codec)
        return made[1]


class Definition(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a compiled graph consists of.

    Attributes:
        program: its nodes and channels.
        options: of its runs.
        hints: the annotations that name the types of its values.
        checkpointer, cache, stream_mode, stream_channels: as the attributes of a graph.
        codec: what its values are stored with; None without a saver.
        codecs: what they are stored with as part of another graph.
        live: its runs that can be joined.
        results: of its nodes, kept from run to run; None for none.
        policies: of nodes that were added without their own, which are in `own_policies`.
        inside: the graphs that its nodes run.
        config: settings that are bound to it.
        read_context: makes what nodes get of a call's context.
        coerce_state, coerce_output: make the schema's own objects of a state and of an output.
        complete_state: fills a state in, as `aget_state` shows it.
    """

    program: Program
    options: RunOptions
    hints: Sequence[Any]
    checkpointer: BaseCheckpointSaver | bool | None
    codec: Codec | None
    codecs: Codecs
    live: LiveRuns
    cache: ports.BaseCache | None
    results: Results | None
    environment: Environment
    stream_mode: StreamMode | Sequence[StreamMode]
    stream_channels: str | tuple[str, ...]
    policies: NodePolicies
    own_policies: Mapping[str, NodePolicies]
    inside: GraphsInside
    config: RunnableConfig
    read_context: Callable[[Any], Any] | None
    coerce_state: Callable[[Any], Any] | None
    coerce_output: Callable[[Any], Any] | None
    complete_state: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def saver(self) -> BaseCheckpointSaver | None:
        return self.checkpointer if isinstance(self.checkpointer, BaseCheckpointSaver) else None

    @cached_property
    def shown(self) -> StreamView:
        """How it shows itself in streams."""
        return StreamView(channels=self.stream_channels, coerce=self.coerce_state, stored_subgraphs=self.inside.keeps)

    def with_checkpointer(self, checkpointer: BaseCheckpointSaver | bool | None) -> Self:
        """Raises `InvalidCheckpointerError`."""
        checked = checked_saver(checkpointer)
        codec = codec_of(checked, self.hints)  # what the cache keeps is encoded with it, too
        results = _results_of(self.cache, codec, self.hints)
        return structs.replace(self, checkpointer=checked, codec=codec, live=LiveRuns(), results=results)

    def with_cache(self, cache: ports.BaseCache | None) -> Self:
        """Raises `GraphValidationError`."""
        checked = checked_cache(cache)
        return structs.replace(self, cache=checked, results=_results_of(checked, self.codec, self.hints))

    def with_policies(self, policies: NodePolicies) -> Self:
        """Replace the policies of nodes that were added without their own."""

        def renewed(node: Node) -> Node:
            if node.hidden:
                return node
            own = self.own_policies.get(node.name, NodePolicies()).over(policies)
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
) -> Definition:
    """Define a graph of a program and of what its user said of it.

    Raises:
        GraphValidationError, InvalidCheckpointerError, ConfigError: an option that the graph cannot have.
    """
    saver = checked_saver(checkpointer)
    codec = codec_of(saver, hints)
    cache = checked_cache(options.get("cache"))
    environment = options.get("environment")
    inside = GraphsInside(program)
    return Definition(
        program=with_step_timeout(program, options),
        options=options_of_graph(program, options),
        hints=hints,
        checkpointer=saver,
        codec=codec,
        codecs=Codecs(hints, inside),
        live=LiveRuns(),
        cache=cache,
        results=_results_of(cache, codec, hints),
        environment=SystemEnvironment() if environment is None else environment,
        stream_mode=stream_mode,
        stream_channels=stream_channels,
        policies=policies,
        own_policies=own_policies or {},
        inside=inside,
        config={},
        read_context=read_context,
        coerce_state=coerce_state,
        coerce_output=coerce_output,
        complete_state=complete_state,
    )


def _results_of(cache: ports.BaseCache | None, codec: Codec | None, hints: Sequence[Any]) -> Results | None:
    return None if cache is None else Results(cache, codec or with_runtime_types(Codec(), hints))


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
