"""`StateGraph`: say nodes and edges, then compile."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints, overload

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver

from .._runtime.world import World
from ..compiled import Graph
from ..drawing import Drawing, Edge, drawing
from ..errors import GraphValidationError
from ..types import END, START, Send
from .schema import Channel, Schema, is_schema, merge_channels, read_schema

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    StateT = TypeVar("StateT")
    InputT = TypeVar("InputT", default=StateT)
    OutputT = TypeVar("OutputT", default=StateT)
    MappingT = TypeVar("MappingT", bound=Mapping[str, object])
    NodeInputT = TypeVar("NodeInputT")
    S = TypeVar("S")  # as StateT, InputT and OutputT, where the arguments decide which they are
    In = TypeVar("In")
    Out = TypeVar("Out")
else:
    from typing import TypeVar

    StateT = TypeVar("StateT")
    InputT = TypeVar("InputT")
    OutputT = TypeVar("OutputT")
    MappingT = TypeVar("MappingT")
    NodeInputT = TypeVar("NodeInputT")

UnknownKeys: TypeAlias = Literal["error", "ignore"]
Destination: TypeAlias = str | Send
Path: TypeAlias = Callable[[Any], Destination | Sequence[Destination] | Awaitable[Destination | Sequence[Destination]]]


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it was added.

    Attributes:
        call: the user's function.
        input: the schema of what it gets.
        defer: it waits until nothing else is left to run.
        metadata: the user's own.
    """

    call: Callable[[Any], Any]
    input: Schema
    defer: bool
    metadata: Mapping[str, Any]


class BranchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A conditional edge as it was added.

    Attributes:
        path: the router.
        input: the schema of what it gets.
        ends: what it may say -> the node or END that is meant; None when it names nodes itself.
    """

    path: Callable[[Any], Any]
    input: Schema
    ends: dict[Any, str] | None


class StateGraph(Generic[StateT, InputT, OutputT]):
    """Builds a graph whose nodes share a state.

    Each key of the state schema is a channel. A plain key holds the last value written; `Annotated[T, reducer]` folds
    each update into the value with `reducer(current, update)`; `Annotated[T, channel]` is that channel.

    Args:
        state_schema: a TypedDict, dataclass, msgspec.Struct or pydantic model.
        input_schema: what a run takes; the state by default.
        output_schema: what a run returns; the state by default.

    Raises:
        GraphValidationError: from every method, when what it is given can never work.
    """

    if not TYPE_CHECKING:  # `StateGraph[State]` with the defaults that the checkers know

        def __class_getitem__(cls, item: object) -> types.GenericAlias:
            return types.GenericAlias(cls, item)

    @overload
    def __init__(self: StateGraph[S, S, S], state_schema: type[S]) -> None: ...
    @overload
    def __init__(self: StateGraph[S, In, S], state_schema: type[S], *, input_schema: type[In]) -> None: ...
    @overload
    def __init__(self: StateGraph[S, S, Out], state_schema: type[S], *, output_schema: type[Out]) -> None: ...
    @overload
    def __init__(
        self: StateGraph[S, In, Out], state_schema: type[S], *, input_schema: type[In], output_schema: type[Out]
    ) -> None: ...
    def __init__(
        self, state_schema: type[Any], *, input_schema: type[Any] | None = None, output_schema: type[Any] | None = None
    ) -> None:
        self.state_schema = read_schema(state_schema, "state schema")
        self.input_schema = self.state_schema if input_schema is None else read_schema(input_schema, "input schema")
        self.output_schema = self.state_schema if output_schema is None else read_schema(output_schema, "output schema")
        self.channels: dict[str, Channel] = {}
        for schema in (self.state_schema, self.input_schema, self.output_schema):
            merge_channels(self.channels, schema)
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: set[tuple[str, str]] = set()
        self.waiting_edges: set[tuple[tuple[str, ...], str]] = set()
        self.branches: dict[str, dict[str, BranchSpec]] = {}

    # ---- nodes ---------------------------------------------------------------------------------------------------

    @overload
    def add_node(
        self,
        node: str,
        action: Callable[[StateT], object],
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: str,
        action: Callable[[NodeInputT], object],
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: type[NodeInputT] | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: Callable[[NodeInputT], object],
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: type[NodeInputT] | None = None,
    ) -> Self: ...
    def add_node(
        self,
        node: str | Callable[[Any], object],
        action: Callable[[Any], object] | None = None,
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: type[Any] | None = None,
    ) -> Self:
        """Add a node: a function, or a coroutine function, of the state, that returns an update of it.

        Args:
            node: its name, or the function, whose name it gets.
            action: the function. It returns a mapping of the keys to update, an instance of a schema, or None.
            defer: run it only when nothing else is left to run.
            metadata: your own.
            input_schema: what the function gets; by default what its first parameter's annotation says, else the state.
                Keys that the state does not have become channels, private to those nodes that name them.
        """
        if isinstance(node, str):
            name = node
            if action is None:
                raise GraphValidationError(f"node {name!r} has no action: add_node(name, function)")
        else:
            if action is not None:
                raise GraphValidationError("add_node takes a name and a function, or a function")
            action, name = node, _name_of(node)
        if name in self.nodes:
            raise GraphValidationError(f"there is a node {name!r} already")
        if not name or name in (START, END) or any(mark in name for mark in "|:"):
            raise GraphValidationError(f"{name!r} cannot be a node's name: it is reserved, or contains '|' or ':'")
        _check_action(name, action)
        schema = self.state_schema
        if input_schema is not None:
            schema = read_schema(input_schema, f"input schema of node {name!r}")
        else:
            schema = self._annotated_schema(action, f"input schema of node {name!r}")
        merge_channels(self.channels, schema)
        self.nodes[name] = NodeSpec(call=action, input=schema, defer=defer, metadata=dict(metadata or {}))
        return self

    def add_sequence(self, nodes: Sequence[Callable[[Any], object] | tuple[str, Callable[[Any], object]]]) -> Self:
        """Add nodes that run one after the other: functions, or pairs of a name and a function."""
        if not nodes:
            raise GraphValidationError("add_sequence takes at least one node")
        before: str | None = None
        for node in nodes:
            name, action = node if isinstance(node, tuple) else (_name_of(node), node)
            self.add_node(name, action)
            if before is not None:
                self.add_edge(before, name)
            before = name
        return self

    # ---- edges ---------------------------------------------------------------------------------------------------

    def add_edge(self, start_key: str | Sequence[str], end_key: str) -> Self:
        """When `start_key` has run, run `end_key` next. A list of starts waits until all of them have run."""
        if any(callable(key) for key in (start_key, end_key)):
            raise GraphValidationError("an edge goes from a node's name to a node's name, not from or to a function")
        starts = [start_key] if isinstance(start_key, str) else list(start_key)
        if not starts:
            raise GraphValidationError(f"the edge to {end_key!r} starts nowhere")
        if END in starts:
            raise GraphValidationError("an edge cannot start at END")
        if end_key == START:
            raise GraphValidationError("an edge cannot end at START")
        if isinstance(start_key, str) or len(set(starts)) == 1:
            self.edges.add((starts[0], end_key))
        elif START in starts:
            raise GraphValidationError("START cannot be one of several starts: nothing can wait for it")
        else:
            self.waiting_edges.add((tuple(dict.fromkeys(starts)), end_key))
        return self

    def add_conditional_edges(
        self,
        source: str,
        path: Path,
        path_map: Mapping[Any, str] | Sequence[str] | None = None,
    ) -> Self:
        """When `source` has run, ask `path` where to go.

        Args:
            path: a function, or a coroutine function, of the state as `source` has just changed it. It returns a node's
                name, END, a `Send`, or a list of these.
            path_map: what it may return -> the node that is meant; or the names that it may return. A return annotation
                `Literal["a", "b"]` says the same. Without either it may name any node.
        """
        if source == END:
            raise GraphValidationError("an edge cannot start at END")
        name = _name_of(path)
        _check_action(f"{source}/{name}", path)
        if name in self.branches.get(source, {}):
            raise GraphValidationError(
                f"{source!r} has a conditional edge {name!r} already: give the functions different names"
            )
        ends: dict[Any, str] | None
        if isinstance(path_map, Mapping):
            ends = dict(path_map)
        elif path_map is not None:
            ends = {end: end for end in path_map}
        else:
            literal = _literal_return(path)
            ends = None if literal is None else {end: end for end in literal}
        schema = self._annotated_schema(path, f"input schema of router {name!r}")
        merge_channels(self.channels, schema)
        self.branches.setdefault(source, {})[name] = BranchSpec(path=path, input=schema, ends=ends)
        return self

    def set_entry_point(self, key: str) -> Self:
        """Begin with this node: `add_edge(START, key)`."""
        return self.add_edge(START, key)

    def set_conditional_entry_point(
        self, path: Path, path_map: Mapping[Any, str] | Sequence[str] | None = None
    ) -> Self:
        """Ask `path` where to begin: `add_conditional_edges(START, path, path_map)`."""
        return self.add_conditional_edges(START, path, path_map)

    def set_finish_point(self, key: str) -> Self:
        """End after this node: `add_edge(key, END)`."""
        return self.add_edge(key, END)

    # ---- compiling -----------------------------------------------------------------------------------------------

    @overload
    def compile(  # type: ignore[overload-overlap]  # a TypedDict is what a run returns; of other schemas, their fields
        self: StateGraph[StateT, InputT, MappingT],
        checkpointer: BaseCheckpointSaver | None = None,
        *,
        name: str | None = None,
        blocking: bool = True,
        unknown_keys: UnknownKeys = "error",
        debug: bool = False,
        world: World | None = None,
    ) -> CompiledStateGraph[StateT, InputT, MappingT]: ...
    @overload
    def compile(
        self,
        checkpointer: BaseCheckpointSaver | None = None,
        *,
        name: str | None = None,
        blocking: bool = True,
        unknown_keys: UnknownKeys = "error",
        debug: bool = False,
        world: World | None = None,
    ) -> CompiledStateGraph[StateT, InputT, dict[str, Any]]: ...
    def compile(
        self,
        checkpointer: BaseCheckpointSaver | None = None,
        *,
        name: str | None = None,
        blocking: bool = True,
        unknown_keys: UnknownKeys = "error",
        debug: bool = False,
        world: World | None = None,
    ) -> CompiledStateGraph[Any, Any, Any]:
        """Check the graph and make it runnable. The builder is left as it is, and may be changed and compiled again.

        Args:
            checkpointer: where threads are stored; None runs without.
            name: for messages and drawings.
            blocking: False promises that the nodes' plain functions never block: they run on the event loop then, and
                not in worker threads.
            unknown_keys: "ignore" drops keys of inputs and updates that no schema knows, instead of refusing them.
            debug: warn (`InPlaceChangeWarning`) when a node changes its input in place.
            world: clock, ids and randomness; the system's by default.

        Raises:
            GraphValidationError: no entry, or an edge from or to a node that does not exist.
        """
        from .compile import compile_program

        if unknown_keys not in ("error", "ignore"):
            raise GraphValidationError(f"unknown_keys is 'error' or 'ignore', not {unknown_keys!r}")
        return compile_program(
            self,
            checkpointer,
            name=name or "StateGraph",
            blocking=blocking,
            ignore_unknown=unknown_keys == "ignore",
            world=world,
            debug=debug,
        )

    def _annotated_schema(self, call: Callable[..., Any], role: str) -> Schema:
        """The schema that the first parameter's annotation names; the state's when it names none."""
        try:
            first = next(iter(inspect.signature(call).parameters), None)
        except (TypeError, ValueError):
            return self.state_schema
        kind = None if first is None else hints_of(call).get(first)
        if kind is None or kind is self.state_schema.type or not is_schema(kind):
            return self.state_schema
        for known in (self.input_schema, self.output_schema):
            if kind is known.type:
                return known
        return read_schema(kind, role)


class CompiledStateGraph(Graph[InputT, OutputT], Generic[StateT, InputT, OutputT]):
    """A compiled `StateGraph`. Its verbs are `Graph`'s."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: object) -> types.GenericAlias:
            return types.GenericAlias(cls, item)

    def __init__(self, builder: StateGraph[Any, Any, Any], drawn: Drawing, **settings: Any) -> None:
        super().__init__(**settings)
        self.builder = builder
        self._drawn = drawn

    def get_graph(self) -> Drawing:
        """Nodes and edges, to be drawn."""
        return self._drawn


def draw(builder: StateGraph[Any, Any, Any]) -> Drawing:
    """What a builder describes."""
    edges = [Edge(source=start, target=end) for start, end in builder.edges]
    edges += [Edge(source=start, target=end) for starts, end in builder.waiting_edges for start in starts]
    for source, branches in builder.branches.items():
        for branch in branches.values():
            ends = {name: name for name in (*builder.nodes, END)} if branch.ends is None else branch.ends
            edges += [
                Edge(source=source, target=end, conditional=True, label=None if said == end else str(said))
                for said, end in ends.items()
            ]
    deferred = frozenset(name for name, node in builder.nodes.items() if node.defer)
    return drawing(list(builder.nodes), edges, deferred)


def hints_of(call: Callable[..., Any]) -> dict[str, Any]:
    """A callable's annotations; none when they cannot be resolved (they name something local, say)."""
    target = call if inspect.isroutine(call) or inspect.isclass(call) else getattr(call, "__call__", call)  # noqa: B004  # an instance's
    try:
        return get_type_hints(getattr(call, "func", target), include_extras=True)
    except (NameError, TypeError):
        return {}


def _name_of(call: Any) -> str:
    named = getattr(call, "func", call)  # functools.partial
    return getattr(named, "__name__", None) or type(named).__name__


def _check_action(name: str, call: Any) -> None:
    if isinstance(call, Graph):
        raise GraphValidationError(
            f"the action of {name!r} is a compiled graph: call it in a function, await graph.ainvoke(...)"
        )
    if not callable(call):
        raise GraphValidationError(
            f"the action of {name!r} is a function, and {call!r} is not callable. Name and function go together: "
            "add_node(name, function), add_sequence([(name, function), ...])"
        )
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise GraphValidationError(f"the action of {name!r} is a generator: return an update instead of yielding")
    try:
        inspect.signature(call).bind(object())
    except TypeError as error:
        raise GraphValidationError(
            f"{name!r} is called with one argument, the state: {error}. Bind what else it needs, with functools.partial"
        ) from error
    except ValueError:
        return  # a builtin that tells nothing about itself


def _literal_return(path: Callable[..., Any]) -> tuple[Any, ...] | None:
    found: list[Any] = []

    def look(at: Any) -> None:
        if get_origin(at) is Literal:
            found.extend(get_args(at))
        else:
            for inner in get_args(at):
                look(inner)

    look(hints_of(path).get("return"))
    return tuple(found) or None
