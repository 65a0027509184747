"""Programs in the laws' language (tests/helpers/law_programs.py), drawn by a plain random generator.

Hypothesis draws them for the laws, and shrinks failures. Here a program must be cheap, as many thousands run: a failure
is reported by its seed.
"""

from __future__ import annotations

import random
from typing import Any

from pregel_async import START
from tests.helpers.law_programs import NODES, Act, Ask, Call, Flow, Graph, Inner, Job, Node, Program, Run


def program(luck: random.Random) -> Program:
    """Draw a program: mostly small graphs, some with subgraphs."""
    drawn = luck.random()
    if drawn < 0.12:
        return flow(luck, 1)
    return graph(luck, 0 if drawn < 0.8 else 1 if drawn < 0.98 else 2, inside=False)


def some(luck: random.Random, make: Any, most: int) -> list[Any]:
    return [make() for _ in range(luck.choice((0, 0, *range(1, most + 1))))]


def ask(luck: random.Random) -> Ask:
    return Ask(luck.randint(0, 3), luck.random() < 0.5)


def job(luck: random.Random, depth: int) -> Job:
    def inside() -> Act:
        return call(luck, depth - 1) if depth > 0 and luck.random() < 0.5 else ask(luck)

    return Job(luck.choice("stu"), tuple(some(luck, inside, 1)))


def call(luck: random.Random, depth: int) -> Call:
    return Call(tuple(job(luck, depth) for _ in range(luck.choice((1, 1, 2, 3)))), luck.random() < 0.3)


def acts(luck: random.Random, depth: int, *, commands: bool = True) -> tuple[Act, ...]:
    """Draw the acts of a function. It runs at most one graph, as a stateful subgraph is found by the node's name."""

    def one() -> Act:
        return ask(luck) if luck.random() < 0.4 else call(luck, min(depth, 1))

    if depth > 0 and luck.random() < 0.25:
        inner = flow(luck, depth - 1) if luck.random() < 0.4 else graph(luck, depth - 1, inside=commands)
        return (*some(luck, one, 1), Run(inner, luck.choice((None, True))), *some(luck, one, 1))
    return tuple(some(luck, one, 2))


def flow(luck: random.Random, depth: int) -> Flow:
    return Flow(acts(luck, depth, commands=False))


def graph(luck: random.Random, depth: int, *, inside: bool = True) -> Graph:
    names = NODES[: luck.choice((2, 2, 3, 3, 4))]
    gives = ["update", "update", "nothing", "sometimes", "list", "goto", "sends", *(["parent"] if inside else [])]
    overwriter = luck.choice((None, *names))
    nodes: list[Node | Inner] = []
    for name in names:
        deferred = luck.random() < 0.15
        if depth > 0 and luck.random() < 0.3:
            nodes.append(Inner(name, graph(luck, depth - 1), luck.choice((None, True)), deferred))
        else:
            gift = "overwrite" if name == overwriter else luck.choice(gives)
            nodes.append(Node(name, acts(luck, depth), gift, deferred))
    edges = [(START, name) for name in sorted(luck.sample(names, luck.randint(min(2, len(names)), len(names))))]
    later = [(one, other) for one in names for other in names if one < other]  # forward: only routers make loops
    edges += sorted(luck.sample(later, min(len(later), luck.randint(0, 3))))
    joins: list[tuple[tuple[str, ...], str]] = []
    if len(names) > 2 and luck.random() < 0.5:
        joins.append((tuple(names[:-1]), names[-1]))
    # A router of a node that counts nothing might route for ever.
    counting = [each.name for each in nodes if isinstance(each, Inner) or each.gives not in ("nothing", "sometimes")]
    routers = sorted({(luck.choice((START, *counting)), luck.randint(0, 1)) for _ in range(luck.randint(0, 2))})
    return Graph(tuple(nodes), tuple(edges), tuple(joins), tuple((*source, luck.random() < 0.5) for source in routers))
