"""Compilation: lowers a builder's nodes and edges to channels, and to nodes that write to these.

a state key k               a channel k
the input                   a channel `__start__`, read by a hidden node of that name, which writes it to the keys
an edge a -> b              a's node writes to channel `branch:to:b`, which triggers b
edges [a, b] -> c           both write their name to a barrier `join:a+b:c`, which triggers c when it is complete
a conditional edge          a router of the node, whose return value becomes writes to `branch:to:...`, or sends
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver

from .._api.compiled import Graph
from .._api.definition import Definition, define
from .._checks.node_policies import NodePolicies, abandons, flavour_of
from .._checks.options import CompileOptions, ignores_unknown, name_of, validates_input
from .._core.program import BRANCH, JOIN, PARENT, SENDS, Flavour, Node, Router, Write, build_program
from .._runtime.persistence.digests import RUNS_GRAPH
from .._runtime.tasks.context import current
from .._runtime.tasks.injection import hints_of
from ..channels import EphemeralValue, LastValueAfterFinish, NamedBarrierValue, NamedBarrierValueAfterFinish
from ..channels.abc import AnyChannel
from ..errors import ErrorCode, GraphValidationError, InvalidRouteError, InvalidUpdateError
from ..types import END, INTERRUPT, RESERVED, START, Command, Send, plain_name
from .reachability import warn_of_unreachable
from .schema import (
    ROOT,
    Schema,
    as_mapping,
    input_reader,
    managed_readers,
    model_values,
    start_writes,
    state_coercer,
    state_completer,
    update_checker,
)
from .specs import BranchSpec, GraphSpec, NodeSpec, marks_of


def compile_graph(
    builder: GraphSpec, checkpointer: BaseCheckpointSaver | bool | None, options: CompileOptions
) -> Definition:
    """Compile a graph, without changing its builder.

    Args:
        builder: the graph.
        checkpointer: as in `StateGraph.compile`.
        options: the other options of `StateGraph.compile`.

    Returns:
        The definition of the compiled graph.

    Raises:
        GraphValidationError: the graph or an option is invalid.
    """
    name, blocking = name_of(options, "StateGraph"), options.get("blocking", True)
    ignore_unknown, validate_input = ignores_unknown(options), validates_input(options.get("validate_input"))
    _validate(builder)
    warn_of_unreachable(builder, name)
    keys = tuple(sorted(builder.channels))
    shown = ROOT if ROOT in builder.channels else tuple(builder.channels)
    index = _GraphIndex(builder)
    channels: dict[str, AnyChannel] = {**builder.channels, START: EphemeralValue(builder.input_schema.type)}
    for target, node in builder.nodes.items():
        channels[BRANCH + target] = LastValueAfterFinish(object) if node.defer else EphemeralValue(object, guard=False)
    for starts, target in builder.waiting_edges:
        if target != END:
            kind = NamedBarrierValueAfterFinish if builder.nodes[target].defer else NamedBarrierValue
            channels[_join_channel(starts, target)] = kind(str, set(starts))
    nodes = [
        Node(
            name=START,
            triggers=(START,),
            reads=START,
            call=_identity,
            flavour="inline",
            writes=start_writes(builder.input_schema),
            edges=index.edges_from(START),
            routers=_routers(builder, index, START),
            hidden=True,
        )
    ]
    for target, spec in builder.nodes.items():
        what = f"node {target!r}"
        policies = spec.policies.with_defaults(builder.defaults)
        flavour: Flavour = "async"
        if spec.graph is None:
            flavour = policies.flavour(spec.call, blocking=blocking or spec.abandons)
        policies.check(
            spec.call,
            flavour,
            what,
            injects=spec.injects,
            abandons=spec.abandons,
            by_default=spec.policies.timeout is None,
        )
        nodes.append(
            Node(
                name=target,
                triggers=tuple(sorted([BRANCH + target, *index.joins_to(target)])),
                reads=spec.input.keys,
                tags=(),
                metadata=spec.metadata,
                shape=spec.input.shape if spec.graph is None or spec.input.root else None,
                call=spec.call if spec.graph is None else call_of_graph(spec.graph, index.keys),
                flavour=flavour,
                injects=spec.injects,
                managed=managed_readers(spec.input.managed) if spec.graph is None else (),
                writes=_UpdateReader(builder, index, target, spec.input, ignore_unknown=ignore_unknown),
                edges=index.edges_from(target),
                routers=_routers(builder, index, target),
                commands=True,
                abandons=abandons(flavour, policies, spec.abandons),
                retry=policies.retry,
                timeout=policies.timeout,
                cache=policies.cache,
                handler=_handler(builder, index, spec, blocking=blocking, ignore_unknown=ignore_unknown),
                was=spec.was,
            )
        )
    schemas = [builder.state_schema, builder.input_schema, builder.output_schema]
    schemas += [spec.input for spec in builder.nodes.values()]
    model = model_values(builder.state_schema) if validate_input else None
    program = build_program(
        name=name,
        nodes=nodes,
        channels=channels,
        keys=keys,
        inputs=START,
        outputs=builder.output_schema.shown,
        shown=shown,
        read_input=input_reader(
            builder.input_schema,
            START,
            ignore_unknown=ignore_unknown,
            validate=validate_input,
            state=None if builder.input_schema.type is builder.state_schema.type else builder.state_schema,
        ),
        read_command=_UpdateReader(builder, index, START, builder.input_schema, ignore_unknown=ignore_unknown).command,
        check_update=update_checker(schemas, builder.channels) if validate_input else list,
        validate=None if model is None else model.validator(),
    )
    declared = any(name in options for name in ("removed", "retired", "migrations", "unknown"))
    if declared or any(spec.was for spec in builder.nodes.values()) or marks_of(builder):
        from .upgrades import with_upgrades  # imported lazily: most graphs declare no rules

        program = with_upgrades(program, builder, options)
    hints: list[Any] = [schema.type for schema in schemas]
    hints += [hint for schema in schemas for hint in schema.hints.values()]
    handlers = [spec.handler or builder.default_handler for spec in builder.nodes.values()]
    calls = [spec.call for spec in builder.nodes.values() if spec.graph is None]
    calls += [handler.call for handler in handlers if handler is not None]
    hints += [hint for call in calls for hint in hints_of(call).values()]
    hints += [hint for spec in builder.nodes.values() if spec.graph is not None for hint in spec.graph.hints]
    return define(
        program,
        checkpointer,
        options,
        hints=hints,
        stream_channels=shown,
        stream_mode="updates",
        read_context=builder.read_context,
        schemas=(builder.input_schema.type, builder.output_schema.type),
        context_schema=builder.context_schema,
        coerce_state=state_coercer(builder.state_schema),
        coerce_output=state_coercer(builder.output_schema),
        complete_state=state_completer(builder.state_schema),
        policies=builder.defaults,
        own_policies={name: spec.policies for name, spec in builder.nodes.items()},
    )


def _validate(builder: GraphSpec) -> None:
    for key in builder.channels:
        if key in (START, END) or key in RESERVED or key.startswith((BRANCH, JOIN, "__pregel_")):
            raise GraphValidationError(f"a state key cannot be called {key!r}: the name is reserved for the runtime")
    if not builder.nodes:
        raise GraphValidationError("the graph has no nodes")
    starts = {start for start, _ in builder.edges} | set(builder.branches)
    if START not in starts:
        raise GraphValidationError("the graph has no entry: add an edge from START")
    known = {*builder.nodes, START, END}

    def check(name: Any, where: str) -> None:
        if name not in known:
            there = ", ".join(sorted(builder.nodes))
            raise GraphValidationError(f"{where} names {name!r}, and there is no such node; there are {there}")

    for start, end in builder.edges:
        check(start, f"the edge {start!r} -> {end!r}")
        check(end, f"the edge {start!r} -> {end!r}")
    for several, end in builder.waiting_edges:
        for name in (*several, end):
            check(name, f"the edge {list(several)!r} -> {end!r}")
    for source, node in builder.nodes.items():
        for end, _ in node.destinations if node.checked else ():
            check(end, f"the destinations of {source!r}")
            if end == START:
                raise GraphValidationError(f"the destinations of {source!r} cannot lead to START")
    for source, branches in builder.branches.items():
        check(source, "a conditional edge")
        for name, branch in branches.items():
            for end in (branch.ends or {}).values():
                check(end, f"the conditional edge {name!r} of {source!r}")
                if end == START:
                    raise GraphValidationError(f"the conditional edge {name!r} of {source!r} cannot lead to START")


def _handler(
    builder: GraphSpec, index: _GraphIndex, spec: NodeSpec, *, blocking: bool, ignore_unknown: bool
) -> Node | None:
    """Make the node of an error handler: by default it reads the failed node's keys; it follows none of its edges."""
    handler = spec.handler or builder.default_handler
    if handler is None:
        return None
    schema = handler.input or spec.input
    policies = NodePolicies(retry=builder.defaults.retry, timeout=builder.defaults.timeout)
    if flavour_of(handler.call, blocking=True) == "sync":
        policies = policies.with_defaults(builder.defaults)
    policies = structs.replace(policies, cache=None)
    flavour = policies.flavour(handler.call, blocking=blocking)
    policies.check(handler.call, flavour, handler.name, injects=handler.injects, abandons=False, by_default=True)
    return Node(
        name=handler.name,
        triggers=(),
        reads=schema.keys,
        shape=schema.shape,
        call=handler.call,
        flavour=flavour,
        injects=handler.injects,
        managed=managed_readers(schema.managed),
        writes=_UpdateReader(builder, index, handler.name, schema, ignore_unknown=ignore_unknown),
        commands=True,
        abandons=abandons(flavour, policies, False),
        retry=policies.retry,
        timeout=policies.timeout,
    )


def call_of_graph(graph: Graph[Any, Any], keys: frozenset[str]) -> Callable[[Any], Awaitable[Any]]:
    """Make a node's function that runs a graph with the keys that its input schema has.

    Keys of the graph's output that the state has too are the update.
    """

    async def run_graph(state: Any) -> Any:
        result: Any = await graph.ainvoke(graph.input_from(state))
        # A graph with a saver of its own runs independently, and returns its questions instead of raising them. Pass
        # them on as this node's: otherwise the node would seem to have finished.
        if isinstance(result, dict) and result.get(INTERRUPT):
            current("a graph as a node").ask_for_subgraph(tuple(result[INTERRUPT]))
        if isinstance(result, dict) and ROOT not in keys:
            return {key: value for key, value in result.items() if key in keys}
        return result

    vars(run_graph)[RUNS_GRAPH] = True
    run_graph.__qualname__ = f"graph {graph.name}"  # part of the key of cached results
    return run_graph


def _identity(value: Any) -> Any:
    return value


def _join_channel(starts: Sequence[str], end: str) -> str:
    # Names may contain a plus: without escapes, two edges could get one barrier.
    escaped = [start.replace("\\", "\\\\").replace("+", "\\+") for start in starts]
    return f"{JOIN}{'+'.join(escaped)}:{end}"


class _GraphIndex:
    """The names and edges of a graph, by node.

    Computed once, as a search through all edges for each node would take quadratic time.

    Attributes:
        nodes: names of the nodes.
        keys: the keys of all schemas that have channels.
        managed: the keys of managed values.
        interruptible: names of the nodes whose attempts a timeout can end.
    """

    def __init__(self, builder: GraphSpec) -> None:
        self.nodes = frozenset(builder.nodes)
        self.keys = frozenset(builder.channels)
        self.managed = frozenset(builder.managed)
        self.interruptible = frozenset(
            name
            for name, spec in builder.nodes.items()
            if spec.graph is not None
            or spec.abandons
            or spec.policies.with_defaults(builder.defaults).on_timeout is not None
            or flavour_of(spec.call, blocking=True) == "async"
        )
        self._branches: dict[str, set[Write]] = {}
        self._joins: dict[str, set[Write]] = {}
        self._joins_to: dict[str, list[str]] = {}
        for start, end in builder.edges:
            if end != END:
                self._branches.setdefault(start, set()).add((BRANCH + end, None))
        for starts, end in builder.waiting_edges:
            if end != END:
                join = _join_channel(starts, end)
                self._joins_to.setdefault(end, []).append(join)
                for start in starts:
                    self._joins.setdefault(start, set()).add((join, start))

    def edges_from(self, node: str) -> tuple[Write, ...]:
        """Return the writes that a node makes whenever it has run.

        Args:
            node: the name of the node.

        Returns:
            The writes to the channels of its edges, sorted by channel.
        """
        return (*sorted(self._branches.get(node, ())), *sorted(self._joins.get(node, ())))

    def joins_to(self, node: str) -> Sequence[str]:
        """Return the barrier channels that trigger a node.

        Args:
            node: the name of the node.

        Returns:
            The names of the channels.
        """
        return self._joins_to.get(node, ())


def _routers(builder: GraphSpec, index: _GraphIndex, source: str) -> tuple[Router, ...]:
    branches = builder.branches.get(source, {})
    return tuple(
        Router(
            name=name,
            call=branches[name].path,
            reads=branches[name].input.keys,
            shape=branches[name].input.shape,
            injects=branches[name].injects,
            managed=managed_readers(branches[name].input.managed),
            route=_route(index, source, name, branches[name]),
        )
        for name in sorted(branches)
    )


def _route(index: _GraphIndex, source: str, name: str, branch: BranchSpec) -> Callable[[Any], list[Write]]:
    ends = branch.ends

    def refuse(said: Any, why: str) -> InvalidRouteError:
        return InvalidRouteError(f"router {name!r} of node {source!r} returned {said!r}: {why}", node=source)

    def route(answer: Any) -> list[Write]:
        writes: list[Write] = []
        for said in answer if isinstance(answer, (list, tuple)) else (answer,):
            end = said
            if ends is not None and not isinstance(said, Send):
                try:
                    end = ends[said]
                except (KeyError, TypeError):
                    raise refuse(said, f"its path_map has {', '.join(map(repr, ends))}") from None
            _append_destination(end, index, partial(refuse, said), writes)
        return writes

    return route


def _append_destination(
    end: Any, index: _GraphIndex, refuse: Callable[[str], InvalidUpdateError], writes: list[Write]
) -> None:
    """Append the write that triggers a destination; none for END."""
    if isinstance(end, Send):
        if end.node not in index.nodes:
            raise refuse("nothing can be sent to END" if end.node == END else f"there is no node {end.node!r}")
        if end.timeout is not None and end.node not in index.interruptible:
            raise refuse(
                f"node {end.node!r} is a plain function, which nothing can stop in its thread, so that a Send to it "
                "cannot have a timeout: make it async, or give it on_timeout="
            )
        writes.append((SENDS, end))
    elif not isinstance(end, str):
        raise refuse("return a node's name, END, a Send, or a list of these")
    elif end != END:
        if end not in index.nodes:
            raise refuse(f"there is no node {end!r}; there are {', '.join(sorted(index.nodes))}")
        writes.append((BRANCH + end, None))


class _UpdateReader:
    """Converts return values of a node, and commands, to writes."""

    def __init__(
        self, builder: GraphSpec, index: _GraphIndex, node: str, schema: Schema, *, ignore_unknown: bool
    ) -> None:
        self._node = node
        self._index = index
        self._keys = index.keys
        self._managed = index.managed
        self._root = builder.state_schema.root
        self._schemas = (schema, builder.state_schema, builder.output_schema)
        self._ignore_unknown = ignore_unknown

    def __call__(self, result: Any) -> list[Write]:
        """Convert a node's return value to writes.

        Args:
            result: a mapping, an instance of a schema, a `Command`, a list of these, one `Send`, or None.

        Returns:
            The writes, in the order of the result.

        Raises:
            InvalidUpdateError: the result is none of these, or names a key or node that does not exist.
        """
        if result is None:
            return []
        # The usual case, a dict of known keys, without the checks below.
        if type(result) is dict and result.keys() <= self._keys and not self._root:
            for key in result:
                if type(key) is not str:
                    return self._update(result)
            return list(result.items())
        if isinstance(result, Command):
            return self._one_of_several(result)
        if isinstance(result, (list, tuple)) and self._is_several(result):
            return [write for each in result for write in self._one_of_several(each)]
        if isinstance(result, Send):
            writes: list[Write] = []
            _append_destination(result, self._index, partial(self._error, f"returned {result!r}"), writes)
            return writes
        return self._update(result)

    def command(self, command: Command) -> list[Write]:
        """Convert a command to writes.

        Args:
            command: the command.

        Returns:
            The writes of its update, then those that trigger its destinations. A command for a parent graph is
            returned as one write to `PARENT`.

        Raises:
            InvalidUpdateError: the command names a key or node that does not exist.
        """
        if command.graph is not None:
            return [(PARENT, command)]
        writes: list[Write] = []
        if command.update is not None:
            writes.extend(self._update(command.update, pairs=True))
        goto = command.goto
        for end in goto if isinstance(goto, (list, tuple)) else (goto,):
            _append_destination(end, self._index, partial(self._error, f"has goto={end!r}"), writes)
        return writes

    def _is_several(self, result: Sequence[Any]) -> bool:
        """Return True for a list of updates and commands. With a state of one value, a list may be the value itself."""
        if self._root:
            return any(isinstance(each, Command) for each in result)
        return True

    def _one_of_several(self, each: Any) -> list[Write]:
        if isinstance(each, Command):
            if each.resume is not None:
                raise self._error("returned a Command with resume=", "an answer is given to a call, not by a node")
            return self.command(each)
        if isinstance(each, Send):
            raise self._error("returned a list of Sends", "return Command(goto=[...]), or let a conditional edge send")
        return [] if each is None else self._update(each, where="a list that holds ")

    def _update(self, given: Any, *, pairs: bool = False, where: str = "") -> list[Write]:
        if isinstance(given, dict) and not self._root:
            return self._checked_writes(list(given.items()))
        for schema in self._schemas:
            found = as_mapping(schema, given)
            if found is not None:
                return self._checked_writes(list(found.items()))
        if (
            pairs
            and isinstance(given, (list, tuple))
            and all(isinstance(each, tuple) and len(each) == 2 for each in given)
        ):
            return self._checked_writes(list(given))
        hint = " (was an await forgotten?)" if isawaitable(given) else ""
        raise InvalidUpdateError(
            f"node {self._node!r} returned {where}a {type(given).__name__}{hint}: return a mapping of the keys to "
            "update, a Command, or None",
            node=self._node,
            code=ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE,
        )

    def _checked_writes(self, writes: list[Write]) -> list[Write]:
        unknown = [key for key, _ in writes if key not in self._keys]
        if not unknown:
            return [(plain_name(key), value) for key, value in writes]
        for key in unknown:
            if key in self._managed:
                raise self._error(f"updates {key!r}", "it is a managed value, which the runtime fills in: leave it out")
        if self._ignore_unknown:
            return [(plain_name(key), value) for key, value in writes if key in self._keys]
        raise InvalidUpdateError(
            f"node {self._node!r} updates {unknown[0]!r}, and no schema has that key; known are "
            f"{', '.join(sorted(self._keys))}. compile(unknown_keys='ignore') drops such keys, "
            "set_defaults(unknown_keys='ignore') in all graphs.",
            channel=str(unknown[0]),
            node=self._node,
        )

    def _error(self, what: str, why: str) -> InvalidUpdateError:
        who = "the command given to the graph" if self._node == START else f"node {self._node!r}"
        return InvalidUpdateError(f"{who} {what}: {why}", node=self._node)
