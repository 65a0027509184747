"""Lowering: a builder's nodes and edges become channels, and nodes that write to them.

a state key k               a channel k
the input                   a channel `__start__`, read by a hidden node of that name, which writes it to the keys
an edge a -> b              a's node writes to channel `branch:to:b`, which triggers b
edges [a, b] -> c           both write their name to a barrier `join:a+b:c`, which triggers c when it is complete
a conditional edge          a router of the node, whose answer becomes writes to `branch:to:...`, or sends
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

from checkpoint_savers.abc import BaseCheckpointSaver

from .._core.program import SENDS, Node, Router, Write, build_program
from .._runtime.restore import BRANCH, JOIN
from .._runtime.world import World
from ..channels import (
    EphemeralValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
)
from ..errors import ErrorCode, GraphValidationError, InvalidRouteError, InvalidUpdateError
from ..node import flavour_of
from ..types import END, START, Send
from .builder import BranchSpec, CompiledStateGraph, StateGraph, draw, hints_of
from .schema import Channel, Schema, as_mapping, input_reader

Builder = StateGraph[Any, Any, Any]


def compile_program(
    builder: Builder,
    checkpointer: BaseCheckpointSaver | None,
    *,
    name: str,
    blocking: bool,
    ignore_unknown: bool,
    world: World | None,
    debug: bool,
) -> CompiledStateGraph[Any, Any, Any]:
    """The runnable graph. The builder is only read."""
    _validate(builder)
    keys = tuple(sorted(builder.channels))
    channels: dict[str, Channel] = {**builder.channels, START: EphemeralValue(builder.input_schema.type)}
    for target, node in builder.nodes.items():
        channels[BRANCH + target] = LastValueAfterFinish(object) if node.defer else EphemeralValue(object, guard=False)
    for starts, target in builder.waiting_edges:
        if target != END:
            kind = NamedBarrierValueAfterFinish if builder.nodes[target].defer else NamedBarrierValue
            channels[_join(starts, target)] = kind(str, set(starts))
    nodes = [
        Node(
            name=START,
            triggers=(START,),
            reads=START,
            call=_identity,
            flavour="inline",
            writes=_start_writes,
            edges=_edges(builder, START),
            routers=_routers(builder, START),
            hidden=True,
        )
    ]
    for target, spec in builder.nodes.items():
        joins = [_join(starts, end) for starts, end in builder.waiting_edges if end == target]
        nodes.append(
            Node(
                name=target,
                triggers=tuple(sorted([BRANCH + target, *joins])),
                reads=spec.input.keys,
                shape=spec.input.shape,
                call=spec.call,
                flavour=flavour_of(spec.call, blocking=blocking),
                writes=_update_reader(builder, target, spec.input, keys, ignore_unknown=ignore_unknown),
                edges=_edges(builder, target),
                routers=_routers(builder, target),
            )
        )
    program = build_program(
        name=name,
        nodes=nodes,
        channels=channels,
        keys=keys,
        inputs=START,
        outputs=builder.output_schema.keys,
        read_input=input_reader(builder.input_schema, START, ignore_unknown=ignore_unknown),
    )
    schemas = [builder.state_schema, builder.input_schema, builder.output_schema]
    schemas += [spec.input for spec in builder.nodes.values()]
    hints: list[Any] = [schema.type for schema in schemas]
    hints += [hint for schema in schemas for hint in schema.hints.values()]
    hints += [hint for spec in builder.nodes.values() for hint in hints_of(spec.call).values()]
    return CompiledStateGraph(
        builder,
        draw(builder),
        program=program,
        checkpointer=checkpointer,
        hints=hints,
        stream_channels=builder.state_schema.keys,
        stream_mode="updates",
        world=world,
        debug=debug,
    )


def _validate(builder: Builder) -> None:
    for key in builder.channels:
        if key in (START, END) or key.startswith((BRANCH, JOIN, "__pregel_")):
            raise GraphValidationError(
                f"a state key cannot be called {key!r}: the name is reserved for control channels"
            )
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
    for source, branches in builder.branches.items():
        check(source, "a conditional edge")
        for name, branch in branches.items():
            for end in (branch.ends or {}).values():
                check(end, f"the conditional edge {name!r} of {source!r}")
                if end == START:
                    raise GraphValidationError(f"the conditional edge {name!r} of {source!r} cannot lead to START")


def _identity(value: Any) -> Any:
    return value


def _start_writes(given: Mapping[str, Any]) -> list[Write]:
    return list(given.items())


def _join(starts: Sequence[str], end: str) -> str:
    escaped = [start.replace("\\", "\\\\").replace("+", "\\+") for start in starts]  # a name may hold a plus itself
    return f"{JOIN}{'+'.join(escaped)}:{end}"


def _edges(builder: Builder, source: str) -> tuple[Write, ...]:
    """What a node writes when it has run, whatever it returned."""
    branches = [(BRANCH + end, None) for start, end in builder.edges if start == source and end != END]
    joins = [(_join(starts, end), source) for starts, end in builder.waiting_edges if source in starts and end != END]
    return tuple(sorted(branches) + sorted(joins))


def _routers(builder: Builder, source: str) -> tuple[Router, ...]:
    branches = builder.branches.get(source, {})
    return tuple(
        Router(
            name=name,
            call=branches[name].path,
            reads=branches[name].input.keys,
            shape=branches[name].input.shape,
            route=_route(builder, source, name, branches[name]),
        )
        for name in sorted(branches)
    )


def _route(builder: Builder, source: str, name: str, branch: BranchSpec) -> Callable[[Any], list[Write]]:
    nodes, ends = frozenset(builder.nodes), branch.ends

    def refuse(said: Any, why: str) -> InvalidRouteError:
        return InvalidRouteError(f"router {name!r} of node {source!r} returned {said!r}: {why}", node=source)

    def route(answer: Any) -> list[Write]:
        writes: list[Write] = []
        for said in answer if isinstance(answer, (list, tuple)) else (answer,):
            if isinstance(said, Send):
                if said.node not in nodes:
                    raise refuse(said, _unknown(said))
                writes.append((SENDS, said))
                continue
            end = said
            if ends is not None:
                try:
                    end = ends[said]
                except (KeyError, TypeError):
                    raise refuse(said, f"its path_map has {', '.join(map(repr, ends))}") from None
            if end == END:
                continue
            if not isinstance(end, str) or end not in nodes:
                raise refuse(
                    said,
                    f"there is no node {end!r}; there are {', '.join(sorted(nodes))}"
                    if isinstance(end, str)
                    else "return a node's name, END, a Send, or a list of these",
                )
            writes.append((BRANCH + end, None))
        return writes

    return route


def _unknown(send: Send) -> str:
    return "nothing can be sent to END" if send.node == END else f"there is no node {send.node!r}"


def _update_reader(
    builder: Builder, node: str, schema: Schema, keys: tuple[str, ...], *, ignore_unknown: bool
) -> Callable[[Any], list[Write]]:
    """Turns what a node returned into writes."""
    known, nodes = frozenset(keys), frozenset(builder.nodes)
    schemas = (schema, builder.state_schema, builder.output_schema)

    def writes(result: Any) -> list[Write]:
        if result is None:
            return []
        if isinstance(result, Send):
            if result.node not in nodes:
                raise InvalidUpdateError(f"node {node!r} returned {result!r}: {_unknown(result)}", node=node)
            return [(SENDS, result)]
        update: Mapping[str, Any] | None = result if isinstance(result, dict) else None
        if update is None:
            update = next((found for each in schemas if (found := as_mapping(each, result)) is not None), None)
        if update is None:
            hint = " (was an await forgotten?)" if isawaitable(result) else ""
            raise InvalidUpdateError(
                f"node {node!r} returned a {type(result).__name__}{hint}: return a mapping of the keys to update, "
                "or None",
                node=node,
                code=ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE,
            )
        if update.keys() <= known:
            return list(update.items())
        if ignore_unknown:
            return [(key, value) for key, value in update.items() if key in known]
        unknown = next(key for key in update if key not in known)
        raise InvalidUpdateError(
            f"node {node!r} updates {unknown!r}, and no schema has that key; known are {', '.join(keys)}. "
            "compile(unknown_keys='ignore') drops such keys.",
            channel=str(unknown),
            node=node,
        )

    return writes
