"""Random programs for hypothesis, low-level and as state graphs; their nodes are pure functions of their input."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, TypedDict

from hypothesis import strategies as st

from pregel_async import END, START, Send, StateGraph
from pregel_async._core.program import SENDS, Program
from pregel_async.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
)
from tests.core.scripted import Channel, node, program

NODES = ("a", "b", "c", "d", "e")
CHANNELS = ("p", "q", "r", "s", "t", "u")


def digest(*parts: Any) -> int:
    """Return a number that depends only on the parts: the same in every process and for every order of keys."""
    ordered = [sorted(part.items()) if isinstance(part, dict) else part for part in parts]
    return int.from_bytes(sha256(repr(ordered).encode()).digest()[:8], "big")


def appended(current: list[Any], update: Any) -> list[Any]:
    """A reducer whose result shows the order of its calls."""
    return [*current, update][-12:]


def appended_in_place(current: list[Any], update: Any) -> list[Any]:
    current.append(update)
    del current[:-12]
    return current


KINDS: dict[str, Callable[[Sequence[str]], Channel]] = {
    "last": lambda names: LastValue(),
    "any": lambda names: AnyValue(),
    "ephemeral": lambda names: EphemeralValue(guard=False),
    "topic": lambda names: Topic(),
    "kept topic": lambda names: BinaryOperatorAggregate(list, appended_in_place),
    "folded": lambda names: BinaryOperatorAggregate(list, appended),
    "barrier": lambda names: NamedBarrierValue(str, names),
    "late": lambda names: LastValueAfterFinish(),
    "late barrier": lambda names: NamedBarrierValueAfterFinish(str, names),
}


class RandomNode(NamedTuple):
    name: str
    triggers: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    sends: tuple[str, ...]
    seed: int


class RandomProgram(NamedTuple):
    """A program as data; its parts can be registered in any order."""

    channels: dict[str, str]
    nodes: tuple[RandomNode, ...]
    given: tuple[str, ...]

    def build(self, order: Sequence[int] = ()) -> Program:
        """Build the program; `order` permutes the order in which nodes and channels are registered."""
        names = [each.name for each in self.nodes]
        channels = {name: KINDS[kind](names) for name, kind in self.channels.items()}
        nodes = [self._node(each) for each in self.nodes]
        if order:
            nodes = [nodes[place] for place in sorted(range(len(nodes)), key=lambda place: order[place % len(order)])]
            keys = sorted(channels, key=lambda name: order[CHANNELS.index(name) % len(order)])
            channels = {name: channels[name] for name in keys}
        return program(*nodes, **channels)

    def input(self) -> dict[str, Any]:
        barriers = ("barrier", "late barrier")
        return {name: self.nodes[0].name if self.channels[name] in barriers else f"in {name}" for name in self.given}

    def _node(self, each: RandomNode) -> Any:
        def call(seen: Any) -> list[tuple[str, Any]]:
            luck = digest(each.seed, each.name, seen)
            if luck % 23 == 0:
                raise ValueError(f"{each.name} fails on {luck % 1000}")
            made: list[tuple[str, Any]] = []
            for place, name in enumerate(each.writes):
                if luck >> place & 3:
                    kind = self.channels[name]
                    value = each.name if "barrier" in kind else f"{each.name} wrote {(luck >> place) % 97}"
                    made.append((name, value))
            for place, target in enumerate(each.sends):
                if luck >> (8 + place) & 1:
                    made.append((SENDS, Send(target, {"from": each.name, "n": luck % 7})))
            return made

        return node(each.name, each.triggers, call, reads=each.reads)


@st.composite
def random_programs(draw: st.DrawFn) -> RandomProgram:
    names = list(CHANNELS[: draw(st.integers(2, 6))])
    channels = {name: draw(st.sampled_from(sorted(KINDS))) for name in names}
    some = st.lists(st.sampled_from(names), unique=True, max_size=3).map(tuple)
    writers = NODES[: draw(st.integers(1, 5))]
    nodes = tuple(
        RandomNode(
            name,
            draw(st.lists(st.sampled_from(names), unique=True, min_size=1, max_size=3).map(tuple)),
            draw(some),
            draw(st.lists(st.sampled_from(names), max_size=4).map(tuple)),
            draw(st.lists(st.sampled_from(writers), max_size=2).map(tuple)),
            draw(st.integers(0, 1000)),
        )
        for name in writers
    )
    given = draw(st.lists(st.sampled_from(names), unique=True, min_size=1).map(tuple))
    return RandomProgram(channels, nodes, given)


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: Annotated[int, operator.add]
    table: Annotated[dict[str, int], operator.or_]
    last: Annotated[str, AnyValue]


class RandomGraph(NamedTuple):
    """A state graph as data: edges, joins, routers, sends and deferred nodes."""

    nodes: tuple[str, ...]
    deferred: frozenset[str]
    edges: frozenset[tuple[str, str]]
    joins: frozenset[tuple[tuple[str, ...], str]]
    routers: frozenset[tuple[str, int]]

    def build(self, order: Sequence[int] = ()) -> Program:
        def ordered(parts: Any) -> list[Any]:
            known = sorted(parts, key=repr)
            return sorted(known, key=lambda part: order[known.index(part) % len(order)]) if order else known

        graph = StateGraph(State)
        steps: list[tuple[str, Any]] = [("node", name) for name in self.nodes]
        steps += [("edge", edge) for edge in self.edges]
        steps += [("join", join) for join in self.joins]
        steps += [("router", router) for router in self.routers]
        for what, part in ordered(steps):
            if what == "node":
                graph.add_node(part, self._node(part), defer=part in self.deferred)
            elif what == "edge":
                graph.add_edge(*part)
            elif what == "join":
                graph.add_edge(list(part[0]), part[1])
            else:
                graph.add_conditional_edges(part[0], self._router(*part))
        return graph.compile(blocking=False)._definition.program

    def _node(self, name: str) -> Callable[[Any], Any]:
        def call(state: Any) -> dict[str, Any] | None:
            luck = digest(name, state)
            if luck % 19 == 0:
                return None
            return {
                "log": [f"{name}{len(state.get('log', []))}"],
                "count": 1,
                "table": {name: luck % 5},
                **({"last": name} if luck & 1 else {}),
            }

        return call

    def _router(self, source: str, seed: int) -> Callable[[Any], Any]:
        def route(state: Any) -> Any:
            luck = digest(source, seed, state)
            if state.get("count", 0) > 14:
                return END
            targets: list[Any] = []
            for place, name in enumerate(self.nodes):
                if luck >> place & 1:
                    targets.append(
                        name if luck >> (place + 5) & 1 else Send(name, {"count": luck % 3, "log": [source]})
                    )
            return targets

        route.__name__ = f"route{seed}"
        return route


@st.composite
def random_graphs(draw: st.DrawFn) -> RandomGraph:
    nodes = NODES[: draw(st.integers(1, 5))]
    one = st.sampled_from(nodes)
    later = st.tuples(one, one).filter(lambda edge: edge[0] < edge[1])  # forward: only routers make loops
    edges = draw(st.frozensets(later, max_size=6)) if len(nodes) > 1 else frozenset()
    joins: frozenset[tuple[tuple[str, ...], str]] = frozenset()
    if len(nodes) > 2:
        starts = st.lists(one, min_size=2, max_size=3, unique=True).map(lambda names: tuple(sorted(names)))
        joins = draw(st.frozensets(st.tuples(starts, one).filter(lambda join: join[1] > max(join[0])), max_size=2))
    return RandomGraph(
        nodes,
        draw(st.frozensets(one, max_size=2)),
        edges | {(START, name) for name in draw(st.sets(one, min_size=1))},
        joins,
        draw(st.frozensets(st.tuples(st.sampled_from((START, *nodes)), st.integers(0, 3)), max_size=3)),
    )
