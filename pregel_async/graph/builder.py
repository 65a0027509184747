"""`StateGraph`: collects nodes and edges, and compiles them to a graph."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import GenericAlias
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver

from .._api.compiled import Graph
from .._api.definition import Definition
from .._api.drawing import Drawing
from .._api.sync_verbs import ContextT, InputT, OutputT, StateT
from .._checks.annotations import class_of, resolve_alias
from .._checks.node_policies import RetryPolicies, TimeoutOption, check_abandonable, check_on_timeout, node_policies
from .._checks.options import CompileOptions, PolicyOptions, checked_options, takes, takes_deprecated
from .._runtime.tasks.injection import (
    as_function,
    check_signature,
    hints_of,
    injections_of,
    is_generator,
    name_of_call,
)
from ..errors import GraphValidationError
from ..policies import CachePolicy, OnTimeout
from ..types import END, RESERVED, START, Command, Send, plain_name
from .compile import compile_graph
from .schema import Schema, is_schema, merge_channels, read_schema
from .specs import DEFAULT_HANDLER, HANDLER, BranchSpec, GraphSpec, HandlerSpec, NodeSpec, draw

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    SchemaT = TypeVar("SchemaT", default=Any)
    ContextSchemaT = TypeVar("ContextSchemaT", default=Any)
    InputSchemaT = TypeVar("InputSchemaT", default=SchemaT)
    OutputSchemaT = TypeVar("OutputSchemaT", default=SchemaT)
else:
    from typing import TypeVar

    SchemaT = TypeVar("SchemaT")
    ContextSchemaT = TypeVar("ContextSchemaT")
    InputSchemaT = TypeVar("InputSchemaT")
    OutputSchemaT = TypeVar("OutputSchemaT")

NodeInputT = TypeVar("NodeInputT")
S = TypeVar("S")  # as SchemaT, InputSchemaT and OutputSchemaT, in the overloads of `compile`
In = TypeVar("In")
Out = TypeVar("Out")
MappingS = TypeVar("MappingS", bound=Mapping[str, object])
MappingOut = TypeVar("MappingOut", bound=Mapping[str, object])
FieldsS = TypeVar("FieldsS", bound="_Dataclass | msgspec.Struct | _Model")
FieldsOut = TypeVar("FieldsOut", bound="_Dataclass | msgspec.Struct | _Model")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


class _Model(Protocol):
    """A pydantic model."""

    @property
    def model_fields_set(self) -> set[str]: ...


Destination: TypeAlias = str | Send
Routing: TypeAlias = Destination | Sequence[Destination]
RouterFunction: TypeAlias = Callable[..., Routing | Awaitable[Routing]]
NodeFunction: TypeAlias = Callable[Concatenate[Any, ...], object]
Destinations: TypeAlias = Sequence[str] | Mapping[str, str]


class NodeOptions(PolicyOptions, total=False):
    """The options that all overloads of `add_node` share; documented there."""

    defer: bool
    metadata: Mapping[str, Any] | None
    destinations: Destinations | None
    abandon_on_cancel: bool
    error_handler: Callable[..., object] | None
    was: str | Sequence[str]


class StateGraph(GraphSpec, Generic[SchemaT, ContextSchemaT, InputSchemaT, OutputSchemaT]):
    """Builds a graph whose nodes share a state.

    Each key of the state schema is a channel. A plain key holds the last value written; `Annotated[T, reducer]` folds
    each update into the value with `reducer(current, update)`; `Annotated[T, channel]` is that channel.

    The type parameters are the four schemas, in the order state, context, input, output: `StateGraph[State, Context]`.
    Nodes may return a part of the state: annotate it as a dict, or as a TypedDict of the keys in question.

    Args:
        state_schema: a TypedDict, dataclass, msgspec.Struct or pydantic model; or any other type, whose one value is
            then the whole state.
        context_schema: validates a call's `context=`: a TypedDict, dataclass, msgspec.Struct or pydantic model.
        input_schema: the schema of a run's input; the state schema by default.
        output_schema: the schema of a run's output; the state schema by default.

    Raises:
        GraphValidationError: a schema cannot be read, or two schemas contradict each other. All methods raise this
            error for arguments that can never work.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # see the type parameters in `_api/sync_verbs.py`

    @takes_deprecated("config_schema", "input", "output")
    def __init__(
        self,
        state_schema: type[SchemaT],
        context_schema: type[ContextSchemaT] | None = None,
        *,
        input_schema: type[InputSchemaT] | None = None,
        output_schema: type[OutputSchemaT] | None = None,
    ) -> None:
        super().__init__(state_schema, context_schema, input_schema=input_schema, output_schema=output_schema)

    @overload  # functions of the state alone come first: against `Concatenate`, checkers cannot infer a lambda's type
    def add_node(
        self,
        node: str,
        action: Callable[[SchemaT], object],
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
    @takes_deprecated("retry", "input")
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
        timeout: TimeoutOption | None = None,
        on_timeout: OnTimeout | None = None,
        error_handler: Callable[..., object] | None = None,
        cache_policy: CachePolicy | None = None,
        was: str | Sequence[str] = (),
    ) -> Self:
        """Add a node: a function or coroutine function that takes the state and returns an update; or a graph.

        Args:
            node: the node's name; or the function or graph, from which the node takes its name.
            action: the function. It returns a mapping of the keys to update, an instance of a schema, a `Command`, a
                list of these, or None. Besides the state it gets the keyword arguments that its signature names:
                parameters annotated `Runtime[Context]`, `RunnableConfig` or `StreamWriter`, or named `runtime`,
                `config`, `writer`, `store` or `previous`. Or a compiled graph: it gets the keys of the state that its
                input schema has, and its output is the update.
            defer: True runs the node only when no other node is left to run.
            metadata: arbitrary data of yours about the node.
            input_schema: the schema of the function's input; by default the annotation of its first parameter, or else
                the state. Keys that the state does not have become channels, which only nodes that name them can read.
            destinations: the nodes to which the node's commands may go, as names or as a mapping of names to labels.
                Drawings show them, and `compile` checks that the nodes exist. A return annotation
                `Command[Literal["a", "b"]]` has the same effect without the check, because a command to the parent
                graph names nodes of that graph.
            abandon_on_cancel: True does not wait for the function when the run is cancelled or another node of the
                superstep fails. Only for a plain function that may block for long and has nothing to clean up: its
                worker thread keeps running, and a `ResourceWarning` names it. The return value is dropped; the stream
                writer, `interrupt()`, and tasks and graphs that the function calls raise `OutsideRunError`. Such a
                function runs in a thread even with `compile(blocking=False)`.
            retry_policy: when and how often to retry a failed attempt; of several policies the first that matches the
                failure applies. A retry runs the function from its start: its earlier questions are answered, called
                tasks return their recorded results, and subgraphs resume. `runtime.execution_info.node_attempt` is the
                number of the attempt.
            timeout: the maximum duration of one attempt: seconds, a timedelta, or a `TimeoutPolicy`. A late attempt is
                cancelled and its effects are dropped; the failure is a `NodeTimeoutError`.
            on_timeout: how to end a plain function that times out, as Python cannot stop a thread. "abandon" leaves the
                thread running, as `abandon_on_cancel` does, and applies to cancelled runs too. "process" runs the
                function in a worker process and kills it: the function must be importable, gets only its input, and
                cannot ask, stream or call tasks and graphs of the run.
            error_handler: a function that runs when all attempts have failed, in the same superstep, with the node's
                input. A parameter annotated `NodeError`, or named `error`, gets the failure. The handler returns an
                update or a `Command`, as a node does; the edges of the failed node are not followed. The failure is
                stored before the handler runs: after a crash the handler runs again, and not the node. A failure of
                the handler fails the superstep, as that of a node does.
            cache_policy: keeps the node's result in the graph's `cache`, and uses it for equal inputs. The key consists
                of the input: context and anything else that the function reads do not count.
            was: the name that the node had in former versions of the code, or several, newest first. The node runs the
                pending tasks of threads that have them under such a name: their questions, answers and recorded results
                stay. So does the state of a graph with `checkpointer=True`.

        Returns:
            This builder.

        Raises:
            GraphValidationError: the name is taken or reserved, the action is not callable with the state, or a policy
                or schema does not fit the action.
        """
        if isinstance(node, str):
            name = plain_name(node)
            if action is None:
                raise GraphValidationError(f"node {name!r} has no action: add_node(name, function)")
        else:
            if action is not None:
                raise GraphValidationError("add_node takes a name and a function, or a function")
            action, name = node, node.name if isinstance(node, Graph) else name_of_call(node)
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
            call = as_function(action)
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
            was=(was,) if isinstance(was, str) else tuple(was),
        )
        return self

    def set_node_defaults(
        self,
        *,
        retry_policy: RetryPolicies | None = None,
        timeout: TimeoutOption | None = None,
        on_timeout: OnTimeout | None = None,
        error_handler: Callable[..., object] | None = None,
        cache_policy: CachePolicy | None = None,
    ) -> Self:
        """Set policies for all nodes that have none of their own, also for those added before.

        Error handlers get the retry policy and the timeout, too. Subgraphs have their own defaults. A second call
        replaces all defaults of the first.

        Args:
            retry_policy: as in `add_node`.
            timeout: as in `add_node`.
            on_timeout: as in `add_node`.
            error_handler: as in `add_node`.
            cache_policy: as in `add_node`.

        Returns:
            This builder.

        Raises:
            GraphValidationError: a policy is invalid, or the handler is not a function that returns an update.
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

    def add_sequence(
        self,
        nodes: Sequence[
            Callable[[SchemaT], object] | NodeFunction | tuple[str, Callable[[SchemaT], object] | NodeFunction]
        ],
    ) -> Self:
        """Add nodes that run one after the other.

        Args:
            nodes: functions, or pairs of a name and a function.

        Returns:
            This builder.

        Raises:
            GraphValidationError: there are no nodes, or `add_node` refuses one.
        """
        if not nodes:
            raise GraphValidationError("add_sequence takes at least one node")
        before: str | None = None
        for node in nodes:
            name, action = node if isinstance(node, tuple) else (name_of_call(node), node)
            self.add_node(name, action)
            if before is not None:
                self.add_edge(before, name)
            before = name
        return self

    def add_edge(self, start_key: str | Sequence[str], end_key: str) -> Self:
        """Add an edge: when `start_key` has run, run `end_key` in the next superstep.

        Args:
            start_key: the name of a node, or START; or a list of nodes, all of which must have run.
            end_key: the name of a node, or END.

        Returns:
            This builder.

        Raises:
            GraphValidationError: an end is a function instead of a name, or START or END is where it cannot be.
        """
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

    @overload  # functions of the state alone come first, as in `add_node`
    def add_conditional_edges(
        self, source: str, path: Callable[[SchemaT], Routing], path_map: Sequence[str] | None = None
    ) -> Self: ...
    @overload
    def add_conditional_edges(
        self, source: str, path: RouterFunction, path_map: Sequence[str] | None = None
    ) -> Self: ...
    @overload
    def add_conditional_edges(
        self, source: str, path: Callable[[SchemaT], object], path_map: Mapping[Any, str]
    ) -> Self: ...
    @overload
    def add_conditional_edges(self, source: str, path: NodeFunction, path_map: Mapping[Any, str]) -> Self: ...
    def add_conditional_edges(
        self, source: str, path: Callable[..., Any], path_map: Mapping[Any, str] | Sequence[str] | None = None
    ) -> Self:
        """Add a router: when `source` has run, call `path` to choose the next nodes.

        Args:
            source: the name of a node, or START.
            path: a function or coroutine function of the state that includes the update of `source`. It returns a
                node's name, END, a `Send`, or a list of these.
            path_map: a mapping of the values that `path` may return to nodes, or a list of the names that it may
                return. A return annotation `Literal["a", "b"]` has the same effect. Without either, `path` may return
                the name of any node. Include the targets of sends: drawings show them, and `compile` regards the nodes
                as reachable.

        Returns:
            This builder.

        Raises:
            GraphValidationError: `source` is END or has a router of this name already, or `path` cannot be called with
                the state.
        """
        if source == END:
            raise GraphValidationError("an edge cannot start at END")
        source, name = plain_name(source), name_of_call(path)
        router = _router_of(path)
        injects = _check_action(f"{source}/{name}", router)
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
            literal = _literal_return(router)
            ends = None if literal is None else {end: end for end in map(plain_name, literal)}
        schema = self._annotated_schema(router, f"input schema of router {name!r}", self.state_schema)
        merge_channels(self.channels, schema, self.managed)
        self.branches.setdefault(source, {})[name] = BranchSpec(path=router, input=schema, ends=ends, injects=injects)
        return self

    def set_entry_point(self, key: str) -> Self:
        """Start runs at a node: `add_edge(START, key)`.

        Args:
            key: the name of the node.

        Returns:
            This builder.
        """
        return self.add_edge(START, key)

    @overload
    def set_conditional_entry_point(self, path: RouterFunction, path_map: Sequence[str] | None = None) -> Self: ...
    @overload
    def set_conditional_entry_point(self, path: NodeFunction, path_map: Mapping[Any, str]) -> Self: ...
    def set_conditional_entry_point(
        self, path: Callable[..., Any], path_map: Mapping[Any, str] | Sequence[str] | None = None
    ) -> Self:
        """Let a router choose where runs start: `add_conditional_edges(START, path, path_map)`.

        Args:
            path: as in `add_conditional_edges`.
            path_map: as in `add_conditional_edges`.

        Returns:
            This builder.
        """
        return self.add_conditional_edges(START, path, path_map)

    def set_finish_point(self, key: str) -> Self:
        """End after a node: `add_edge(key, END)`.

        Args:
            key: the name of the node.

        Returns:
            This builder.
        """
        return self.add_edge(key, END)

    # Of a TypedDict, a mapping or a bare value, a run returns its type; of any other schema, a dict of its fields.
    @overload  # first: of several overloads that match `Any`, checkers take the first
    def compile(
        self: StateGraph[MappingS, ContextSchemaT, In, MappingOut],
        checkpointer: BaseCheckpointSaver | bool | None = None,
        **options: Unpack[CompileOptions],
    ) -> CompiledStateGraph[MappingS, ContextSchemaT, In, MappingOut]: ...
    @overload
    def compile(
        self: StateGraph[FieldsS, ContextSchemaT, In, FieldsOut],
        checkpointer: BaseCheckpointSaver | bool | None = None,
        **options: Unpack[CompileOptions],
    ) -> CompiledStateGraph[dict[str, Any], ContextSchemaT, In, dict[str, Any]]: ...
    @overload
    def compile(  # type: ignore[overload-overlap]  # of two schemas with fields, for which the overload before this is
        self: StateGraph[FieldsS, ContextSchemaT, In, Out],
        checkpointer: BaseCheckpointSaver | bool | None = None,
        **options: Unpack[CompileOptions],
    ) -> CompiledStateGraph[dict[str, Any], ContextSchemaT, In, Out]: ...
    @overload
    def compile(
        self: StateGraph[S, ContextSchemaT, In, FieldsOut],
        checkpointer: BaseCheckpointSaver | bool | None = None,
        **options: Unpack[CompileOptions],
    ) -> CompiledStateGraph[S, ContextSchemaT, In, dict[str, Any]]: ...
    @overload
    def compile(
        self, checkpointer: BaseCheckpointSaver | bool | None = None, **options: Unpack[CompileOptions]
    ) -> CompiledStateGraph[SchemaT, ContextSchemaT, InputSchemaT, OutputSchemaT]: ...
    @takes(CompileOptions)
    def compile(
        self, checkpointer: BaseCheckpointSaver | bool | None = None, **options: Unpack[CompileOptions]
    ) -> CompiledStateGraph[Any, Any, Any, Any]:
        """Check the graph and compile it. The builder is unchanged, and may be extended and compiled again.

        Args:
            checkpointer: the saver that stores threads; None stores nothing. For a graph that is a node of another,
                None stores its state with the parent's, for one run of the node; True keeps the state from run to run;
                False does not store its state.
            store: long-term memory, which nodes get as `store`, and subgraphs without a store of their own. It must be
                open while the graph runs.
            interrupt_before: nodes before which a run stops until it is called again with input None; "*" for all.
            interrupt_after: nodes after which a run stops, in the same way; "*" for all.
            name: the graph's name in messages and drawings.
            blocking: False promises that the nodes' plain functions never block: they run on the event loop instead of
                in worker threads.
            unknown_keys: "ignore" drops keys of inputs and updates that no schema has; "error" refuses them. None, the
                default, takes the value of `set_defaults`, initially "error".
            validate_input: True checks the values of inputs and of manual updates against the annotations of their
                keys, in depth, before anything is stored. Values are not converted, except those of a pydantic state,
                of which the model's values are stored. False checks only the keys. None uses the value of
                `set_defaults`, which is True initially.
            debug: True to print the updates and states of each run, and to warn (`InPlaceChangeWarning`) if
                a node changes its input in place.
            environment: clock, ids and randomness; the system's by default.
            cache: stores the results of nodes that have a cache policy.
            step_timeout: seconds, or a timedelta, that one superstep may take. Its running tasks are cancelled then,
                and the run fails with a `StepTimeoutError`.
            on_failure: what happens to the other tasks of a superstep when one fails. "fail_fast" cancels them and
                waits for their end; "finish" lets them finish; `Collect(channel)` lets them finish, too, and writes the
                failure as the task's update, so that the run continues. A call may override this.
            budgets: limits, by name, for what nodes `spend`. `Budget()` counts without a limit.
            time_limit: seconds, or a timedelta, after which a run stops at its next barrier.
            retention: how much of a thread to keep: the thread is pruned, as by `aprune`, at the end of each run. A
                subgraph has no retention of its own. See docs/retention.md.
            observer: receives the events of the graph's runs; see `pregel_async.observing`.
            changed_questions: what happens if a node runs again and asks another question than the one that was
                answered. "error" fails with `QuestionChangedError`; "accept" returns the answer, with one
                `QuestionChangedWarning` per node and run. None uses the value of `set_defaults`, which is "error"
                initially. See docs/replay.md.
            removed: names of keys that former versions of the code had. Their values are removed from a thread with its
                next superstep. A key that is neither in the schema nor here stays stored.
            migrations: functions that convert whole stored states, by version: `migrations[3]` makes a state of version
                3 of one of version 2. It gets a `StoredState`, and returns the keys to set, with `REMOVED` for keys to
                take away. It must be pure, because it is called for each read. A state is converted by those from the
                version of its checkpoint to this one, after `Renamed`, `Retyped` and `Added`. Needs `version`.
            unknown: what happens if a thread holds keys that neither the schema nor a rule names, or the state of a
                graph with `checkpointer=True` whose node does not exist: "warn" issues an `UnknownStoredKeyWarning`
                or a `KeptStateWarning`, "error" refuses the thread, "ignore" does nothing. The values stay stored.
            retired: for nodes that former versions of the code had, by name: the node that runs their pending tasks, or
                END, which ends these tasks without an update.
            version: the version of the graph's code, a whole number from 1 on, which the metadata of each checkpoint
                has as `__version__`. A thread of a greater version is not run: `GraphVersionError`. None stores no
                version, and counts as 1.

        Returns:
            The compiled graph.

        Warns:
            UnreachableNodeWarning: no edge, router or command leads to a node. Issued only if all conditional edges
                have path maps, and all code whose return annotation allows a command declares its destinations.

        Raises:
            GraphValidationError: there is no edge from START, an edge names a node that does not exist, or a policy
                does not fit a node.
            TypeError: an option is unknown.
        """
        return CompiledStateGraph(
            self, compile_graph(self, checkpointer, checked_options("compile", CompileOptions, options))
        )

    @overload
    def _annotated_schema(self, call: Callable[..., Any], role: str, default: Schema) -> Schema: ...
    @overload
    def _annotated_schema(self, call: Callable[..., Any], role: str, default: None) -> Schema | None: ...
    def _annotated_schema(self, call: Callable[..., Any], role: str, default: Schema | None) -> Schema | None:
        """Return the schema that the annotation of the first parameter names; the default if it names none."""
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


class CompiledStateGraph(
    Graph[StateT, ContextT, InputT, OutputT],
    Generic[StateT, ContextT, InputT, OutputT],
):
    """A compiled `StateGraph`, with the methods of `Graph`.

    Its type parameters are the types of a thread's values, of `context=`, of the input and of the output. The values
    and the output of a dataclass, Struct or pydantic model are a dict of its fields.

    Attributes:
        builder: the builder that was compiled.
    """

    builder: StateGraph[Any, Any, Any, Any]

    def __init__(self, builder: StateGraph[Any, Any, Any, Any], definition: Definition) -> None:
        super().__init__(definition)
        # `Graph` refuses to set attributes other than those that replace its definition.
        object.__setattr__(self, "builder", builder)
        # Drawn now: later additions to the builder are not part of this graph.
        self._drawn = draw(builder)

    def input_from(self, state: Any) -> Any:
        """Select from a parent's state the keys of this graph's input schema.

        Args:
            state: the parent's state. Anything but a dict is returned unchanged.

        Returns:
            The input.
        """
        schema = self.builder.input_schema
        return {key: state[key] for key in schema.keys if key in state} if isinstance(state, dict) else state

    def _drawing(self) -> Drawing:
        return self._drawn


def _check_action(name: str, call: Any) -> tuple[tuple[str, str], ...]:
    """Check that a function can be called with the state. Return the keyword arguments that it gets besides."""
    if isinstance(call, Graph):
        raise GraphValidationError(f"the action of {name!r} is a graph: it can be a node, and not a router")
    if not callable(call):
        raise GraphValidationError(
            f"the action of {name!r} is a function, and {call!r} is not callable. Name and function go together: "
            "add_node(name, function), add_sequence([(name, function), ...])"
        )
    if is_generator(call):
        raise GraphValidationError(f"the action of {name!r} is a generator: return an update instead of yielding")
    injects = injections_of(call, after=1)
    check_signature(call, object(), what=f"{name!r} is called with one argument, the state", injected=injects)
    return injects


def _destinations(call: Callable[..., Any] | None, given: Destinations | None) -> tuple[tuple[str, str | None], ...]:
    """Return the declared destinations of a node's commands: as given, or as the return annotation has them."""
    if isinstance(given, Mapping):
        return tuple((plain_name(name), label) for name, label in given.items())
    if given is not None:
        return tuple((plain_name(name), None) for name in given)
    inside = [] if call is None else _arguments_in(hints_of(call).get("return"), Command)
    return tuple([(plain_name(name), None) for inner in inside for name in get_args(inner) if isinstance(name, str)])


def _router_of(path: Any) -> Any:
    """Return the function of a router. A graph stays as it is: the check of the router refuses it."""
    return path if isinstance(path, Graph) else as_function(path)


def _literal_return(path: Callable[..., Any]) -> tuple[Any, ...] | None:
    return tuple(_arguments_in(hints_of(path).get("return"), Literal)) or None


def _arguments_in(hint: Any, origin: object) -> list[Any]:
    """Return the arguments of all types of an origin in an annotation: "a" for `Literal["a"] | None`."""
    if get_origin(hint) is origin:
        return list(get_args(hint))
    return [found for inner in get_args(hint) for found in _arguments_in(inner, origin)]
