"""`StateGraph`: say nodes and edges, then compile."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Self,
    TypeAlias,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

from checkpoint_savers.abc import BaseCheckpointSaver

from .._api.compiled import Graph
from .._api.definition import Definition
from .._api.drawing import Drawing
from .._checks.annotations import class_of, resolve_alias
from .._checks.node_policies import AttemptTimeout, RetryPolicies, check_abandonable, check_on_timeout, node_policies
from .._checks.options import CompileOptions, PolicyOptions, checked_options, takes
from .._runtime.tasks.injection import check_signature, hints_of, injections_of, is_generator
from ..errors import GraphValidationError
from ..policies import CachePolicy, OnTimeout
from ..types import END, RESERVED, START, Command, Send, plain_name
from .compile import compile_graph
from .schema import Schema, is_schema, merge_channels, read_schema
from .specs import DEFAULT_HANDLER, HANDLER, BranchSpec, GraphSpec, HandlerSpec, NodeSpec, draw

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

Destination: TypeAlias = str | Send
Path: TypeAlias = Callable[..., Destination | Sequence[Destination] | Awaitable[Destination | Sequence[Destination]]]
Destinations: TypeAlias = Sequence[str] | Mapping[str, str]


class NodeOptions(PolicyOptions, total=False):
    """What every overload of `add_node` takes besides; explained there."""

    defer: bool
    metadata: Mapping[str, Any] | None
    destinations: Destinations | None
    abandon_on_cancel: bool
    error_handler: Callable[..., object] | None


class StateGraph(GraphSpec, Generic[StateT, InputT, OutputT]):
    """Builds a graph whose nodes share a state.

    Each key of the state schema is a channel. A plain key holds the last value written; `Annotated[T, reducer]` folds
    each update into the value with `reducer(current, update)`; `Annotated[T, channel]` is that channel.

    Args:
        state_schema: a TypedDict, dataclass, msgspec.Struct or pydantic model; or any other type, whose one value is
            the state then.
        context_schema: what a call's `context=` must fit: a TypedDict, dataclass, msgspec.Struct or pydantic model.
        input_schema: what a run takes; the state by default.
        output_schema: what a run returns; the state by default.

    Raises:
        GraphValidationError: from every method, when what it is given can never work.
    """

    if not TYPE_CHECKING:  # `StateGraph[State]` with the defaults that the checkers know

        def __class_getitem__(cls, item: object) -> types.GenericAlias:
            return types.GenericAlias(cls, item)

    @overload
    def __init__(self: StateGraph[S, S, S], state_schema: type[S], context_schema: type[Any] | None = None) -> None: ...
    @overload
    def __init__(
        self: StateGraph[S, In, S],
        state_schema: type[S],
        context_schema: type[Any] | None = None,
        *,
        input_schema: type[In],
    ) -> None: ...
    @overload
    def __init__(
        self: StateGraph[S, S, Out],
        state_schema: type[S],
        context_schema: type[Any] | None = None,
        *,
        output_schema: type[Out],
    ) -> None: ...
    @overload
    def __init__(
        self: StateGraph[S, In, Out],
        state_schema: type[S],
        context_schema: type[Any] | None = None,
        *,
        input_schema: type[In],
        output_schema: type[Out],
    ) -> None: ...
    def __init__(
        self,
        state_schema: type[Any],
        context_schema: type[Any] | None = None,
        *,
        input_schema: type[Any] | None = None,
        output_schema: type[Any] | None = None,
    ) -> None:
        super().__init__(state_schema, context_schema, input_schema=input_schema, output_schema=output_schema)

    @overload  # plain ones first: of a function with more parameters no lambda can be inferred
    def add_node(
        self,
        node: str,
        action: Callable[[StateT], object],
        *,
        input_schema: None = None,
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: str,
        action: Callable[[NodeInputT], object],
        *,
        input_schema: type[NodeInputT],
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: str,
        action: Callable[Concatenate[NodeInputT, ...], object] | Graph[Any, Any],
        *,
        input_schema: type[NodeInputT] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    @overload
    def add_node(
        self,
        node: Callable[Concatenate[NodeInputT, ...], object] | Graph[Any, Any],
        *,
        input_schema: type[NodeInputT] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self: ...
    def add_node(
        self,
        node: str | Callable[..., object] | Graph[Any, Any],
        action: Callable[..., object] | Graph[Any, Any] | None = None,
        *,
        defer: bool = False,
        metadata: Mapping[str, Any] | None = None,
        input_schema: type[Any] | None = None,
        destinations: Destinations | None = None,
        abandon_on_cancel: bool = False,
        retry_policy: RetryPolicies | None = None,
        timeout: AttemptTimeout | None = None,
        on_timeout: OnTimeout | None = None,
        error_handler: Callable[..., object] | None = None,
        cache_policy: CachePolicy | None = None,
    ) -> Self:
        """Add a node: a function, or a coroutine function, of the state, that returns an update of it; or a graph.

        Args:
            node: its name, or the function or graph, whose name it gets.
            action: the function. It returns a mapping of the keys to update, an instance of a schema, a `Command`, a
                list of these, or None. Besides the state it gets, by keyword, what its signature asks for: parameters
                annotated `Runtime[Context]`, `RunnableConfig` or `StreamWriter`, or named `runtime`, `config`,
                `writer`, `store` or `previous`. Or a compiled graph: it gets the keys of the state that it knows, and
                its output is the update.
            defer: run it only when nothing else is left to run.
            metadata: your own.
            input_schema: what the function gets; by default what its first parameter's annotation says, else the state.
                Keys that the state does not have become channels, private to those nodes that name them.
            destinations: where the node's commands may go, for drawings and checked by compile: names, or names with
                labels. A return annotation `Command[Literal["a", "b"]]` says the same, unchecked: a command for the
                graph around names nodes of that.
            abandon_on_cancel: when the run is cancelled, or another node of the superstep fails, do not wait for the
                function, which must be a plain one: what may block for long, and has nothing to clean up. Its worker
                thread is left behind, and a `ResourceWarning` names it. What it returns is dropped, and its stream
                writer, `interrupt()`, and the tasks and graphs that it calls raise `OutsideRunError`. Such a function
                always runs in a thread, `compile(blocking=False)` or not.
            retry_policy: try it again when it has failed; of several policies the first that is for the failure counts.
                Each attempt starts afresh, but what it asked is answered, tasks that it called have their results, and
                graphs that it ran go on where they were. `runtime.execution_info.node_attempt` says which it is.
            timeout: how long one attempt may take: seconds, a timedelta, or a `TimeoutPolicy`. An attempt whose time is
                up is cancelled, and nothing of it counts; the failure is a `NodeTimeoutError`.
            on_timeout: what becomes of a plain function whose time is up, as nothing can stop it in its thread:
                "abandon" leaves the thread behind, as `abandon_on_cancel` does, and when the run is cancelled too;
                "process" runs the function in a worker process, which is killed. It must be importable then, takes its
                input alone, and cannot ask, write or reach the run.
            error_handler: runs in the node's place, in the same superstep and on the same input, when the node has
                failed for good. With a parameter annotated `NodeError`, or named `error`, it gets the failure. What
                it returns is an update or a `Command`, as of any node; the failed node's own edges are not followed.
                It is durable: after a crash the handler runs again, and the node does not. When it fails itself, that
                is a failure of the superstep, as a node's is.
            cache_policy: keep what the node makes of an input, in the graph's `cache`, and use it again for an equal
                one. Nothing but the input counts: not the context, nor what the function looks at elsewhere.
        """
        if isinstance(node, str):
            name = plain_name(node)
            if action is None:
                raise GraphValidationError(f"node {name!r} has no action: add_node(name, function)")
        else:
            if action is not None:
                raise GraphValidationError("add_node takes a name and a function, or a function")
            action, name = node, node.name if isinstance(node, Graph) else _name_of(node)
        if name in self.nodes:
            raise GraphValidationError(f"there is a node {name!r} already")
        if not name or name == "*" or name.startswith("__") or name in RESERVED or any(mark in name for mark in "|:"):
            raise GraphValidationError(f"{name!r} cannot be a node's name: it is reserved, or contains '|' or ':'")
        graph: Graph[Any, Any] | None = None
        call: Callable[..., Any]
        injects: tuple[tuple[str, str], ...] = ()
        if isinstance(action, Graph):
            graph, call = action, action.ainvoke
        else:
            call = action
            injects = _check_action(name, call)
        if abandon_on_cancel:
            check_abandonable(call, f"node {name!r}")
        policies = node_policies(
            f"node {name!r}",
            retry_policy=retry_policy,
            timeout=timeout,
            cache_policy=cache_policy,
            on_timeout=on_timeout,
        )
        check_on_timeout(call, on_timeout, f"node {name!r}")
        handler = None if error_handler is None else self._handler(name, error_handler)
        schema = self.state_schema
        if input_schema is not None:
            schema = read_schema(input_schema, f"input schema of node {name!r}")
        elif graph is None:
            schema = self._annotated_schema(call, f"input schema of node {name!r}", self.state_schema)
        merge_channels(self.channels, schema, self.managed)
        self.nodes[name] = NodeSpec(
            call=call,
            input=schema,
            defer=defer,
            metadata=dict(metadata or {}),
            graph=graph,
            injects=injects,
            destinations=_destinations(call if graph is None else None, destinations),
            checked=destinations is not None,
            abandons=abandon_on_cancel,
            policies=policies,
            handler=handler,
        )
        return self

    def set_node_defaults(
        self,
        *,
        retry_policy: RetryPolicies | None = None,
        timeout: AttemptTimeout | None = None,
        on_timeout: OnTimeout | None = None,
        error_handler: Callable[..., object] | None = None,
        cache_policy: CachePolicy | None = None,
    ) -> Self:
        """What holds for every node that does not say otherwise, whenever it was added. See `add_node`.

        Error handlers have the retry policy and the timeout too; graphs inside have defaults of their own.
        """
        self.defaults = node_policies(
            "the default", retry_policy=retry_policy, timeout=timeout, cache_policy=cache_policy, on_timeout=on_timeout
        )
        self.default_handler = None if error_handler is None else self._handler("*", error_handler)
        return self

    def _handler(self, node: str, call: Callable[..., object]) -> HandlerSpec:
        what = "the default error handler" if node == "*" else f"the error handler of node {node!r}"
        if isinstance(call, Graph):
            raise GraphValidationError(f"{what} is a graph: wrap it in a function that runs it")
        if not callable(cast("object", call)) or is_generator(call):
            raise GraphValidationError(f"{what} is a function, and {call!r} is not one that returns an update")
        injects = injections_of(call, after=1, handles=True)
        check_signature(call, object(), what=f"{what} is called with the node's input", injected=injects, handles=True)
        schema = self._annotated_schema(call, f"input schema of {what}", None)
        if schema is not None:
            merge_channels(self.channels, schema, self.managed)
        name = DEFAULT_HANDLER if node == "*" else HANDLER + node
        return HandlerSpec(name=name, call=call, input=schema, injects=injects, destinations=_destinations(call, None))

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

    def add_edge(self, start_key: str | Sequence[str], end_key: str) -> Self:
        """When `start_key` has run, run `end_key` next. A list of starts waits until all of them have run."""
        if any(callable(key) for key in (start_key, end_key)):
            raise GraphValidationError("an edge goes from a node's name to a node's name, not from or to a function")
        starts = [start_key] if isinstance(start_key, str) else list(start_key)
        starts, end_key = [plain_name(start) for start in starts], plain_name(end_key)
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
        self, source: str, path: Path, path_map: Mapping[Any, str] | Sequence[str] | None = None
    ) -> Self:
        """When `source` has run, ask `path` where to go.

        Args:
            path: a function, or a coroutine function, of the state as `source` has just changed it. It returns a node's
                name, END, a `Send`, or a list of these.
            path_map: what it may return -> the node that is meant; or the names that it may return. A return annotation
                `Literal["a", "b"]` says the same. Without either it may name any node. Name the targets of sends, too:
                drawings show them, and compile knows that something leads there.
        """
        if source == END:
            raise GraphValidationError("an edge cannot start at END")
        source, name = plain_name(source), _name_of(path)
        injects = _check_action(f"{source}/{name}", path)
        if name in self.branches.get(source, {}):
            raise GraphValidationError(
                f"{source!r} has a conditional edge {name!r} already: give the functions different names"
            )
        ends: dict[Any, str] | None
        if isinstance(path_map, Mapping):
            ends = {answer: plain_name(end) for answer, end in path_map.items()}
        elif path_map is not None:
            ends = {end: end for end in map(plain_name, path_map)}
        else:
            literal = _literal_return(path)
            ends = None if literal is None else {end: end for end in map(plain_name, literal)}
        schema = self._annotated_schema(path, f"input schema of router {name!r}", self.state_schema)
        merge_channels(self.channels, schema, self.managed)
        self.branches.setdefault(source, {})[name] = BranchSpec(path=path, input=schema, ends=ends, injects=injects)
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

    @overload
    def compile(  # type: ignore[overload-overlap]  # a TypedDict is what a run returns; of other schemas, their fields
        self: StateGraph[StateT, InputT, MappingT],
        checkpointer: BaseCheckpointSaver | bool | None = None,
        **options: Unpack[CompileOptions],
    ) -> CompiledStateGraph[StateT, InputT, MappingT]: ...
    @overload
    def compile(
        self, checkpointer: BaseCheckpointSaver | bool | None = None, **options: Unpack[CompileOptions]
    ) -> CompiledStateGraph[StateT, InputT, dict[str, Any]]: ...
    @takes(CompileOptions)
    def compile(
        self, checkpointer: BaseCheckpointSaver | bool | None = None, **options: Unpack[CompileOptions]
    ) -> CompiledStateGraph[Any, Any, Any]:
        """Check the graph and make it runnable. The builder is left as it is, and may be changed and compiled again.

        Args:
            checkpointer: where threads are stored; None runs without. For a graph that is a node of another, None
                stores its state with the other's, for one run of the node; True keeps it from run to run; False stores
                nothing of it.
            store: long-term memory: what nodes get as `store`, and the graphs that they run, if they have none of their
                own. It has to be open while the graph runs.
            interrupt_before, interrupt_after: nodes before or after which a run stops until it is called again with
                input None; "*" for all.
            name: for messages and drawings.
            blocking: False promises that the nodes' plain functions never block: they run on the event loop then, and
                not in worker threads.
            unknown_keys: "ignore" drops keys of inputs and updates that no schema knows, instead of refusing them.
            validate_input: check the values of inputs and of updates by hand against the annotations of their keys, in
                depth, before anything is stored. They are never converted; only of a pydantic state the model's values
                are stored. False checks the keys alone. None takes what `set_defaults` says, which is True at first.
            debug: warn (`InPlaceChangeWarning`) when a node changes its input in place.
            world: clock, ids and randomness; the system's by default.
            cache: where results of nodes are kept that have a cache policy.
            step_timeout: seconds, or a timedelta, that one superstep may take; then what runs is cancelled, and the run
                fails with a `StepTimeoutError`.
            on_failure: what the others of a superstep do when a task has failed: "fail_fast" cancels them and waits for
                their end; "finish" lets them finish first; `Collect(channel)` does too, and makes the failure the
                task's update, so that the superstep goes on. A call may say otherwise.
            budgets: by name, how much nodes may `spend` of it. `Budget()` counts without a limit.
            time_limit: seconds, or a timedelta, after which a run stops at its next barrier.
            retention: how much is kept of a thread: at the end of each run of the graph it is pruned, as by `aprune`.
                A graph that a node runs has none of its own. See docs/retention.md.
            observer: is told what runs of the graph do; see `pregel_async.observing`.
            changed_questions: what happens when a node runs again and asks something else than the question that was
                answered: "error" fails with `QuestionChangedError`; "accept" gives it the answer, with one
                `QuestionChangedWarning` per node and run. None takes what `set_defaults` says, which is "error" at
                first. See docs/replay.md.

        Warns:
            UnreachableNodeWarning: nothing leads to a node. Only where all conditional edges have path maps, and all
                code that may return a command, by its return annotation, says where that goes.

        Raises:
            GraphValidationError: no entry, an edge from or to a node that does not exist, or a policy that something
                cannot have.
        """
        return CompiledStateGraph(
            self, compile_graph(self, checkpointer, checked_options("compile", CompileOptions, options))
        )

    @overload
    def _annotated_schema(self, call: Callable[..., Any], role: str, default: Schema) -> Schema: ...
    @overload
    def _annotated_schema(self, call: Callable[..., Any], role: str, default: None) -> Schema | None: ...
    def _annotated_schema(self, call: Callable[..., Any], role: str, default: Schema | None) -> Schema | None:
        """The schema that the first parameter's annotation names; the default when it names none."""
        if self.state_schema.root:
            return default
        try:
            first = next(iter(inspect.signature(call).parameters), None)
        except (TypeError, ValueError):
            return default
        kind = None if first is None else hints_of(call).get(first)
        if kind is None or not is_schema(kind):
            return default
        for known in (self.state_schema, self.input_schema, self.output_schema):
            if class_of(resolve_alias(kind)) is known.type:
                return known
        return read_schema(kind, role)


class CompiledStateGraph(Graph[InputT, OutputT], Generic[StateT, InputT, OutputT]):
    """A compiled `StateGraph`. Its verbs are `Graph`'s.

    Attributes:
        builder: what it was compiled of.
    """

    builder: StateGraph[Any, Any, Any]

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: object) -> types.GenericAlias:
            return types.GenericAlias(cls, item)

    def __init__(self, builder: StateGraph[Any, Any, Any], definition: Definition) -> None:
        super().__init__(definition)
        object.__setattr__(self, "builder", builder)  # it is not to be set: the graph is compiled
        self._drawn = draw(builder)

    def input_from(self, state: Any) -> Any:
        schema = self.builder.input_schema
        return {key: state[key] for key in schema.keys if key in state} if isinstance(state, dict) else state

    def _drawing(self) -> Drawing:
        return self._drawn


def _name_of(call: Any) -> str:
    named = getattr(call, "func", call)  # functools.partial
    return getattr(named, "__name__", None) or type(named).__name__


def _check_action(name: str, call: Any) -> tuple[tuple[str, str], ...]:
    """Refuse what cannot be called with the state. Returns what else it gets."""
    if isinstance(call, Graph):
        raise GraphValidationError(f"the action of {name!r} is a graph: it can be a node, and not a router")
    if not callable(call):
        if callable(getattr(call, "ainvoke", None)):  # a Runnable of langchain-core's: a chain, a model, a graph
            advice = "Pass the method that does the work: add_node(name, runnable.ainvoke)"
        else:
            advice = "Name and function go together: add_node(name, function), add_sequence([(name, function), ...])"
        raise GraphValidationError(f"the action of {name!r} is a function, and {call!r} is not callable. {advice}")
    if is_generator(call):
        raise GraphValidationError(f"the action of {name!r} is a generator: return an update instead of yielding")
    injects = injections_of(call, after=1)
    check_signature(call, object(), what=f"{name!r} is called with one argument, the state", injected=injects)
    return injects


def _destinations(call: Callable[..., Any] | None, given: Destinations | None) -> tuple[tuple[str, str | None], ...]:
    """Where a node's commands may go, as far as it says."""
    if isinstance(given, Mapping):
        return tuple((plain_name(name), label) for name, label in given.items())
    if given is not None:
        return tuple((plain_name(name), None) for name in given)
    inside = [] if call is None else _arguments_in(hints_of(call).get("return"), Command)
    return tuple([(plain_name(name), None) for inner in inside for name in get_args(inner) if isinstance(name, str)])


def _literal_return(path: Callable[..., Any]) -> tuple[Any, ...] | None:
    return tuple(_arguments_in(hints_of(path).get("return"), Literal)) or None


def _arguments_in(hint: Any, origin: object) -> list[Any]:
    """The arguments of all types in an annotation that have this origin: of `Literal["a"] | None`, "a"."""
    if get_origin(hint) is origin:
        return list(get_args(hint))
    return [found for inner in get_args(hint) for found in _arguments_in(inner, origin)]
