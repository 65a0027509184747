"""Find the nodes of a graph that no edge, router or command can lead to, as far as the builder can know."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from .._api.compiled import Graph
from .._runtime.tasks.injection import hints_of
from .._runtime.tasks.subgraphs import reachable
from ..errors import UnreachableNodeWarning
from ..types import START, Command, Send
from .specs import GraphSpec

_AWAITABLES = (Awaitable, Coroutine)
_COLLECTIONS = (list, tuple, set, frozenset)


def warn_of_unreachable(builder: GraphSpec, graph: str) -> None:
    """Issue an `UnreachableNodeWarning` for the nodes to which nothing leads.

    No warning is issued if the graph has a conditional edge without a path map, or code that may return a command and
    does not declare its destinations: these may lead to any node. Code may return a command if its return annotation
    allows one, or if it has no return annotation.

    Args:
        builder: the graph.
        graph: its name, for the warning.
    """
    known = _reached(builder)
    if builder.nodes.keys() <= known:  # the usual case returns before annotations are resolved, which is slow
        return
    branches = [branch for each in builder.branches.values() for branch in each.values()]
    if any(branch.ends is None for branch in branches) or any(_unbounded_commands(builder)):
        return
    nodes = tuple(name for name in builder.nodes if name not in known)
    warnings.warn(UnreachableNodeWarning(graph, nodes), stacklevel=4)


def _reached(builder: GraphSpec) -> set[str]:
    """Return the nodes reachable from START by edges, path maps and declared destinations."""
    successors: dict[str, set[str]] = {START: set()}
    for start, end in builder.edges:
        successors.setdefault(start, set()).add(end)
    for source, branches in builder.branches.items():
        successors.setdefault(source, set()).update(
            end for each in branches.values() for end in (each.ends or {}).values()
        )
    for name, spec in builder.nodes.items():
        handler = spec.handler or builder.default_handler
        declared = (*spec.destinations, *(() if handler is None else handler.destinations))
        successors.setdefault(name, set()).update(end for end, _ in declared)
    found, pending = {START}, [START]
    while pending:
        new = successors.get(pending.pop(), set()) - found
        # A waiting edge leads to its end only if all of its starts are reached.
        new |= {end for starts, end in builder.waiting_edges if found.union(new).issuperset(starts)} - found
        found |= new
        pending += new
    return found


def _unbounded_commands(builder: GraphSpec) -> Iterator[bool]:
    """Yield, for the code of each node and error handler, whether its commands may go to any node."""
    for spec in builder.nodes.values():
        handler = spec.handler or builder.default_handler
        if handler is not None:
            yield not handler.destinations and _may_return_command(handler.call)
        if spec.checked:
            continue
        if spec.graph is not None:
            yield _may_command_outside(spec.graph)
            continue
        yield not spec.destinations and _may_return_command(spec.call)
        for inside in reachable(spec.call, Graph):  # a graph that the code runs may send it commands for this graph
            yield _may_command_outside(inside)


def _may_command_outside(graph: Graph[Any, Any]) -> bool:
    """Return True if a subgraph may send commands to its parent graphs."""
    builder: GraphSpec | None = getattr(graph, "builder", None)
    if builder is None:
        return True  # an entrypoint or a Pregel, about whose code nothing is known
    if any(spec.destinations for spec in builder.nodes.values()):
        return True  # the destinations may be nodes of the parent graphs
    return any(_unbounded_commands(builder))


def _may_return_command(call: Callable[..., Any]) -> bool:
    """Return True if a function's return annotation allows a command or a send, or is missing."""
    hints = hints_of(call)
    return "return" not in hints or _may_be_command(hints["return"])


def _may_be_command(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _may_be_command(get_args(hint)[0])
    if origin in (Union, UnionType):
        return any(map(_may_be_command, get_args(hint)))
    if origin in _AWAITABLES:
        return _may_be_command(get_args(hint)[-1])
    kind = hint if origin is None else origin
    if hint is Any or not inspect.isclass(kind):
        return kind is not None  # a name that cannot be resolved, or a type variable, may be a command
    if issubclass(kind, (NoneType, str, Mapping)):
        return False
    if issubclass(kind, _COLLECTIONS) or issubclass(list, kind):  # a list, or a base of it such as Sequence
        inner = get_args(hint)
        return kind is object or not inner or any(each is not ... and _may_be_command(each) for each in inner)
    return issubclass(kind, (Command, Send)) or issubclass(Command, kind)
