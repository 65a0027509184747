"""The data that a builder collects: nodes, edges and schemas. `compile.py` and `reachability.py` read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec

from .._api.compiled import Graph
from .._api.drawing import Drawing, Edge, drawing
from .._checks.context_schema import context_reader
from .._checks.node_policies import NodePolicies
from ..channels.abc import AnyChannel
from ..types import END
from .schema import UPGRADE_MARKS, Managed, Schema, merge_channels, read_schema

HANDLER = "__error_handler__"
"""The prefix of names of error handlers in streams; the node's name follows."""

DEFAULT_HANDLER = "__default_error_handler__"
"""The name of the default error handler, in streams."""


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it was added.

    Attributes:
        call: the user's function.
        input: the schema of the function's input.
        defer: True runs the node only when no other node is left to run.
        metadata: the user's data about the node.
        graph: the compiled graph that is the node, or None for a function.
        injects: keyword arguments besides the input: (parameter, what it gets).
        destinations: nodes to which commands may go: (node, label).
        checked: True if the destinations were passed to `add_node`, and must exist. Those of an annotation may be
            nodes of the parent graph.
        abandons: True if a cancellation does not wait for the function.
        policies: retries, timeout and cache.
        handler: the node's own error handler, or None for the default.
        was: the names that the node had in former versions of the code, newest first.
    """

    call: Callable[..., Any]
    input: Schema
    defer: bool
    metadata: Mapping[str, Any]
    graph: Graph[Any, Any] | None
    injects: tuple[tuple[str, str], ...]
    destinations: tuple[tuple[str, str | None], ...]
    checked: bool
    abandons: bool
    policies: NodePolicies
    handler: HandlerSpec | None
    was: tuple[str, ...] = ()


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An error handler as it was passed.

    Attributes:
        name: its name in streams.
        call: the user's function.
        input: the schema that its annotation names; None for that of the failed node.
        injects: keyword arguments besides the input: (parameter, what it gets).
        destinations: nodes to which commands may go: (node, label).
    """

    name: str
    call: Callable[..., Any]
    input: Schema | None
    injects: tuple[tuple[str, str], ...]
    destinations: tuple[tuple[str, str | None], ...]


class BranchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A conditional edge as it was added.

    Attributes:
        path: the router.
        input: the schema of the router's input.
        ends: maps the router's return values to nodes or END; None if the router returns names of nodes.
        injects: keyword arguments besides the input: (parameter, what it gets).
    """

    path: Callable[..., Any]
    input: Schema
    ends: dict[Any, str] | None
    injects: tuple[tuple[str, str], ...]


class GraphSpec:
    """The nodes, edges and schemas of a graph.

    Attributes:
        state_schema: the schema of the state.
        input_schema: the schema of a run's input.
        output_schema: the schema of a run's output.
        channels: the channels of all schemas, by key.
        managed: managed values by key, which the runtime provides.
        context_schema: the class of a call's context, or None.
        read_context: checks and converts a call's context; None if there is no context schema.
        nodes: the nodes by name.
        edges: pairs of start and end.
        waiting_edges: from several nodes, all of which must have run, to one.
        branches: conditional edges by source and name.
        defaults: policies for nodes that have none of their own.
        default_handler: the error handler of nodes that have none of their own.
    """

    def __init__(
        self,
        state_schema: type[Any],
        context_schema: type[Any] | None,
        *,
        input_schema: type[Any] | None,
        output_schema: type[Any] | None,
    ) -> None:
        self.state_schema = read_schema(state_schema, "state schema")
        self.input_schema = self.output_schema = self.state_schema
        if input_schema is not None:
            self.input_schema = read_schema(input_schema, "input schema", managed=False)
        if output_schema is not None:
            self.output_schema = read_schema(output_schema, "output schema", managed=False)
        self.managed: dict[str, Managed] = {}
        self.channels: dict[str, AnyChannel] = {}
        for schema in (self.state_schema, self.input_schema, self.output_schema):
            merge_channels(self.channels, schema, self.managed)
        self.context_schema = context_schema
        self.read_context = None if context_schema is None else context_reader(context_schema)
        self.nodes: dict[str, NodeSpec] = {}
        self.edges: set[tuple[str, str]] = set()
        self.waiting_edges: set[tuple[tuple[str, ...], str]] = set()
        self.branches: dict[str, dict[str, BranchSpec]] = {}
        self.defaults = NodePolicies()
        self.default_handler: HandlerSpec | None = None


def marks_of(builder: GraphSpec) -> list[tuple[str, Any]]:
    """Return the marks in a graph's annotations that declare how stored values become those of a key, with the keys."""
    schemas = [builder.state_schema, builder.input_schema, builder.output_schema]
    schemas += [spec.input for spec in builder.nodes.values()]
    hints = [item for schema in schemas for item in schema.hints.items() if get_origin(item[1]) is Annotated]
    return [(key, mark) for key, hint in hints for mark in get_args(hint) if isinstance(mark, UPGRADE_MARKS)]


def draw(builder: GraphSpec) -> Drawing:
    """Make the drawing of a graph.

    Args:
        builder: the graph.

    Returns:
        Its nodes, edges and error handlers. A conditional edge without a path map leads to every node.
    """
    edges = [Edge(source=start, target=end) for start, end in builder.edges]
    edges += [Edge(source=start, target=end) for starts, end in builder.waiting_edges for start in starts]
    for source, branches in builder.branches.items():
        for branch in branches.values():
            ends = {name: name for name in (*builder.nodes, END)} if branch.ends is None else branch.ends
            edges += [
                Edge(source=source, target=end, conditional=True, label=None if said == end else str(said))
                for said, end in ends.items()
            ]
    for source, node in builder.nodes.items():
        edges += [
            Edge(source=source, target=end, conditional=True, label=label)
            for end, label in node.destinations
            if end in builder.nodes or end == END
        ]
    handlers: dict[str, HandlerSpec] = {}
    for source, node in builder.nodes.items():
        handler = node.handler or builder.default_handler
        if handler is not None:
            handlers[handler.name] = handler
            edges.append(Edge(source=source, target=handler.name, conditional=True, label="error"))
    for handler in handlers.values():
        edges += [
            Edge(source=handler.name, target=end, conditional=True, label=label)
            for end, label in handler.destinations
            if end in builder.nodes or end == END
        ]
    deferred = frozenset(name for name, node in builder.nodes.items() if node.defer)
    return drawing([*builder.nodes, *handlers], edges, deferred)
