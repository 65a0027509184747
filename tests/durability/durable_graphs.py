"""Graphs in which every task leaves a trace, and the calls that the tests make of them.

Each node appends its task's key to the state's log, so that the stored log says which tasks' results it holds. Each
node also reports its start and end to a `Probe`, so that a test knows which tasks ran. A key is `name@length`, where
`length` is the length of the log when the superstep was planned. Every superstep makes the log longer.
"""

from __future__ import annotations

import dataclasses
import operator
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, TypedDict

import anyio.lowlevel

from pregel_async import END, START, Send, StateGraph
from pregel_async.errors import GraphRecursionError


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    total: Annotated[int, operator.add]
    last: str


WHERE: ContextVar[str] = ContextVar("WHERE", default="nowhere")
"""A context variable that every node sets in its own context."""


class Planned(Exception):
    """The error that nodes and routers of scenarios raise when they are meant to fail."""


class Probe:
    """Recorder of what nodes report, and the switches that they read.

    Attributes:
        op: the number of the current call; decides which nodes fail.
        started, finished: keys of tasks, in order.
        running: how many nodes are between their first and last line now, clean-up included.
        under_way: the names of those nodes, with the index of a send.
        dead: True if the process counts as dead: code that is still running no longer affects the test.
    """

    def __init__(self) -> None:
        self.op = 0
        self.started: list[str] = []
        self.finished: list[str] = []
        self.running = 0
        self.dead = False
        self.under_way: list[str] = []
        self._lock = threading.Lock()

    @contextmanager
    def task(self, key: str) -> Iterator[None]:
        WHERE.set("in a node")
        name = key.partition("@")[0]
        with self._lock:
            self.running += 1
            self.under_way.append(name)
            if not self.dead:
                self.started.append(key)
        try:
            yield
            if not self.dead:
                self.finished.append(key)
        finally:
            with self._lock:
                self.running -= 1
                self.under_way.remove(name)


def key_of(name: str, given: Any) -> str:
    if "i" in given:
        return f"{name}[{given['i']}]@{given['at']}"
    return f"{name}@{len(given.get('log', ()))}"


def length_of(key: str) -> int:
    """Return the log's length when the task was planned."""
    return int(key.rpartition("@")[2])


def update_of(key: str) -> dict[str, Any]:
    return {"log": [key], "total": zlib.crc32(key.encode()) % 1000}


def node(probe: Probe, name: str, *, turns: int = 0, fails: frozenset[int] = frozenset()) -> Callable[[Any], Any]:
    """Return an async node.

    Args:
        turns: how often the node yields to the event loop.
        fails: the calls in which the node raises `Planned`.
    """

    async def run(state: Any) -> dict[str, Any]:
        key = key_of(name, state)
        with probe.task(key):
            try:
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    for _ in range(2):  # clean-up takes some turns, and the run waits for it
                        await anyio.lowlevel.checkpoint()
                raise
            if probe.op in fails:
                raise Planned(key)
            return update_of(key)

    return run


def sync_node(
    probe: Probe, name: str, *, seconds: float = 0.0, fails: frozenset[int] = frozenset()
) -> Callable[[Any], Any]:
    """Return a plain function as a node; it runs in a worker thread and takes some time there."""

    def run(state: Any) -> dict[str, Any]:
        key = key_of(name, state)
        with probe.task(key):
            if seconds:
                threading.Event().wait(seconds)
            if probe.op in fails:
                raise Planned(key)
            return update_of(key)

    return run


def sends(target: str, count: int) -> Callable[[Any], list[Send]]:
    def router(state: Any) -> list[Send]:
        at = len(state.get("log", ()))
        # The router sees only the writes of its own node. Writes of other nodes do not matter here, because the node is
        # alone in its superstep.
        return [Send(target, {"i": i, "at": at}) for i in range(count)]

    return router


def until(length: int, again: str) -> Callable[[Any], str]:
    """Return a router that loops to a node until the log has the given length."""

    def router(state: Any) -> str:
        return again if len(state["log"]) < length else END

    return router


@dataclasses.dataclass(frozen=True)
class Op:
    """One call of a scenario's graph.

    Attributes:
        given: the input; None resumes.
        raises: the expected exception type.
        limit: the recursion limit.
    """

    given: dict[str, Any] | None
    raises: type[BaseException] | None = None
    limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A graph and the calls that are made of it, in order, on one thread."""

    name: str
    build: Callable[[Probe], StateGraph[Any]]
    ops: tuple[Op, ...]

    def __str__(self) -> str:
        return self.name


GO = Op({"log": ["in"]})
ON = Op(None)
FIRST = frozenset({0})


def chain(probe: Probe) -> StateGraph[Any]:
    graph = StateGraph(State)
    graph.add_sequence([(name, node(probe, name, turns=turns)) for turns, name in enumerate("abc")])
    return graph.add_edge(START, "a")


def loop(probe: Probe) -> StateGraph[Any]:
    graph = StateGraph(State).add_node("a", node(probe, "a")).add_edge(START, "a")
    return graph.add_conditional_edges("a", until(5, "a"))


def fan_out(probe: Probe) -> StateGraph[Any]:
    """Return five tasks that finish one after the other, the last one first, then a join."""
    graph = StateGraph(State).add_node("a", node(probe, "a")).add_edge(START, "a")

    async def work(given: Any) -> dict[str, Any]:
        return await node(probe, "w", turns=2 * (5 - given["i"]))(given)

    graph.add_node("w", work).add_node("z", node(probe, "z"))
    return graph.add_conditional_edges("a", sends("w", 5)).add_edge("w", "z")


def joined(probe: Probe) -> StateGraph[Any]:
    """b is one superstep away from the join, c two; d is deferred."""
    graph = StateGraph(State).add_node("a", node(probe, "a")).add_node("b", node(probe, "b", turns=2))
    graph.add_node("c", node(probe, "c")).add_node("cc", node(probe, "cc")).add_node("d", node(probe, "d"), defer=True)
    graph.add_node("e", node(probe, "e"))
    graph.add_edge(START, "a").add_edge("a", "b").add_edge("a", "c").add_edge("c", "cc").add_edge(["b", "cc"], "e")
    return graph.add_edge("a", "d")


def threads(probe: Probe) -> StateGraph[Any]:
    """Return one plain function alone, then two concurrent with an async node."""
    graph = StateGraph(State).add_node("a", sync_node(probe, "a", seconds=0.001)).add_edge(START, "a")
    graph.add_node("b", sync_node(probe, "b", seconds=0.001)).add_node("c", sync_node(probe, "c"))
    graph.add_node("d", node(probe, "d", turns=1)).add_node("e", node(probe, "e"))
    for name in "bcd":
        graph.add_edge("a", name)
    return graph.add_edge(["b", "c", "d"], "e")


def failing(probe: Probe) -> StateGraph[Any]:
    """Return a scenario whose first call fails at c, after a has finished and while d is still running."""
    graph = StateGraph(State)
    graph.add_node("a", node(probe, "a")).add_node("b", node(probe, "b", turns=1))
    graph.add_node("c", node(probe, "c", turns=8, fails=FIRST)).add_node("d", node(probe, "d", turns=16))
    graph.add_node("e", node(probe, "e"))
    for name in "abcd":
        graph.add_edge(START, name)
    return graph.add_edge(["a", "b", "c", "d"], "e")


def failing_alone(probe: Probe) -> StateGraph[Any]:
    graph = StateGraph(State)
    graph.add_sequence([("a", node(probe, "a")), ("b", node(probe, "b", fails=FIRST)), ("c", node(probe, "c"))])
    return graph.add_edge(START, "a")


def failing_twice(probe: Probe) -> StateGraph[Any]:
    """Return a scenario where a fails first, then b fails while a runs in a thread, cannot be stopped there, and
    finishes."""

    async def b(state: Any) -> dict[str, Any]:
        key = key_of("b", state)
        with probe.task(key):
            if probe.op == 0:
                await anyio.sleep_forever()
            if probe.op == 1:
                while "a" not in probe.under_way and not probe.dead and key_of("a", state) not in probe.finished:
                    await anyio.lowlevel.checkpoint()
                raise Planned(key)
            return update_of(key)

    graph = StateGraph(State).add_node("a", sync_node(probe, "a", seconds=0.003, fails=FIRST)).add_node("b", b)
    graph.add_node("c", node(probe, "c"))
    return graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c")


def failing_router(probe: Probe) -> StateGraph[Any]:
    """Return a scenario with a failing plain router, and a node that finishes before the router's node."""

    def router(state: Any) -> str:
        if probe.op == 0:
            raise Planned("router")
        return "c"

    graph = StateGraph(State).add_node("a", node(probe, "a", turns=4)).add_node("b", node(probe, "b"))
    graph.add_node("c", node(probe, "c")).add_edge(START, "a").add_edge(START, "b")
    return graph.add_conditional_edges("a", router)


def async_router(probe: Probe) -> StateGraph[Any]:
    """Return a scenario with an async router, alone and with a concurrent node."""

    async def router(state: Any) -> list[Send]:
        await anyio.lowlevel.checkpoint()
        if probe.op == 0 and len(probe.started) > 1:
            raise Planned("router")
        at = len(state["log"])
        return [Send("c", {"i": i, "at": at}) for i in range(2)] if at < 4 else []

    async def entry(state: Any) -> list[str]:
        await anyio.lowlevel.checkpoint()
        return ["a"]

    graph = StateGraph(State).add_node("a", node(probe, "a")).add_node("b", node(probe, "b", turns=1))
    graph.add_node("c", node(probe, "c")).add_conditional_edges(START, entry).add_edge("a", "b")
    return graph.add_conditional_edges("b", router)


def broken_reducer(probe: Probe) -> StateGraph[Any]:
    """Return a scenario whose first call fails in the fold, after all nodes have finished."""

    def reducer(current: str, update: str) -> str:
        if probe.op == 0 and update == "b":
            raise Planned("reducer")
        return current + update

    folded: Any = TypedDict("folded", {**State.__annotations__, "text": Annotated[str, reducer]}, total=False)

    async def b(state: Any) -> dict[str, Any]:
        return {**await node(probe, "b", turns=2)(state), "text": "b"}

    graph = StateGraph(folded).add_node("a", node(probe, "a")).add_node("b", b).add_node("c", node(probe, "c"))
    return graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c")


SCENARIOS = (
    Scenario("chain", chain, (GO,)),
    Scenario("loop", loop, (GO,)),
    Scenario("fan-out", fan_out, (GO,)),
    Scenario("join", joined, (GO,)),
    Scenario("threads", threads, (GO,)),
    Scenario("failing-node", failing, (Op(GO.given, Planned), ON)),
    Scenario("failing-alone", failing_alone, (Op(GO.given, Planned), ON)),
    Scenario("failing-twice", failing_twice, (Op(GO.given, Planned), Op(None, Planned), ON)),
    Scenario("failing-router", failing_router, (Op(GO.given, Planned), ON)),
    Scenario("async-router", async_router, (Op(GO.given, Planned), ON)),
    Scenario("broken-reducer", broken_reducer, (Op({"log": ["in"], "text": ""}, Planned), ON)),
    Scenario("new-input", failing, (Op(GO.given, Planned), Op({"log": ["again"]}))),
    Scenario("second-turn", chain, (GO, Op({"log": ["again"]}))),
    Scenario("limit", loop, (Op(GO.given, GraphRecursionError, limit=2), ON)),
    Scenario("resume-finished", chain, (GO, ON)),
)


def random_graph(probe: Probe, seed: int) -> StateGraph[Any]:
    """Return a few random stages, each of which begins and ends with one node: a node, loop, fan-out, join or
    choice."""
    rng = random.Random(seed)
    graph = StateGraph(State)

    def add(name: str) -> str:
        if rng.random() < 0.3:
            graph.add_node(name, sync_node(probe, name, seconds=rng.choice((0.0, 0.001))))
        else:
            graph.add_node(name, node(probe, name, turns=rng.randint(0, 4)))
        return name

    def follow(source: str, router: Callable[[Any], Any]) -> None:
        async def awaiting(state: Any) -> Any:
            await anyio.lowlevel.checkpoint()
            return router(state)

        graph.add_conditional_edges(source, awaiting if rng.random() < 0.5 else router)

    last = START
    for stage in range(rng.randint(2, 4)):
        head = add(f"{stage}-head")
        graph.add_edge(last, head)
        tail = f"{stage}-tail"
        match rng.choice(("node", "loop", "fan-out", "join", "choice")):
            case "node":
                graph.add_edge(head, add(tail))
            case "loop":
                times = rng.randint(2, 5)
                follow(head, _repetitions(head, times, add(tail)))
            case "fan-out":
                follow(head, sends(f"{stage}-work", rng.randint(2, 8)))
                graph.add_edge(add(f"{stage}-work"), add(tail))
            case "join":
                branches = [add(f"{stage}-branch{i}") for i in range(rng.randint(2, 3))]
                for branch in branches:
                    graph.add_edge(head, branch)
                longer = add(f"{stage}-longer")
                graph.add_edge(branches[0], longer)
                graph.add_edge([longer, *branches[1:]], add(tail))
            case _:
                ways = [add(f"{stage}-way{i}") for i in range(2)]
                follow(head, _random_stage(ways))
                add(tail)
                for way in ways:
                    graph.add_edge(way, tail)
        last = tail
    return graph


def _repetitions(name: str, times: int, after: str) -> Callable[[Any], str]:
    def router(state: Any) -> str:
        return name if sum(key.startswith(f"{name}@") for key in state["log"]) < times else after

    return router


def _random_stage(ways: list[str]) -> Callable[[Any], str]:
    def router(state: Any) -> str:
        return ways[state["total"] % len(ways)]

    return router
