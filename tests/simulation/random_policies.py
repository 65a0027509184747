"""Policies for random programs: nodes that fail at first, take too long, or fail for good and are handled.

What a node does wrong follows from its task's id, and from the number of the attempt. So its end does not depend on when
it was interrupted, and the whole program's does not either.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.lowlevel

from pregel_async import get_runtime
from pregel_async.policies import RetryPolicy, TimeoutPolicy
from tests.helpers.law_programs import Build, Call, Graph, Inner, Node, Program, Run, Tell, digest
from tests.simulation.random_programs import program

Way = Literal["plain", "flaky", "late", "handled"]

__all__ = ["Disturbing", "Turning", "handles", "program"]


class Turning(Tell):
    """Programs that let others go first, here and there, and sometimes take their time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._luck = random.Random(seed)

    async def turn(self) -> None:
        drawn = self._luck.random()
        if drawn < 0.02:
            await anyio.sleep(self._luck.choice((0.1, 8.0, 45.0)))  # longer than a lease lasts without a heartbeat
        elif drawn < 0.4:
            await anyio.lowlevel.checkpoint()


class Disturbing(Build):
    """Builds programs of which some nodes have policies, and need them."""

    def options(self, made: Node) -> dict[str, Any]:
        way = way_of(made)
        if way == "flaky":
            return {"retry_policy": RetryPolicy(max_attempts=4, initial_interval=3.0)}
        if way == "late":
            return {
                "retry_policy": RetryPolicy(max_attempts=4),
                "timeout": TimeoutPolicy(run_timeout=400.0, idle_timeout=350.0),
            }
        return {"error_handler": handler(made.name)} if way == "handled" else {}

    def _node(self, made: Node, names: list[str], environment: Any) -> Callable[[Any], Any]:
        inner, way = super()._node(made, names, environment), way_of(made)
        if way == "plain":
            return inner

        async def node(state: Any) -> Any:
            info = get_runtime().execution_info
            luck = digest(info.task_id)
            bad = info.node_attempt <= luck % 3
            if bad and luck & 8:
                await wrong(way)  # at once
            result = await inner(state)
            if bad:
                await wrong(way)  # when everything is done: what it called and asked is not done again
            return result

        return node


async def wrong(way: Way) -> None:
    if way == "late":
        await anyio.sleep(1000.0)
    elif way == "flaky":
        raise ConnectionError("reset by the peer")
    else:
        raise ValueError("for good")


def handler(name: str) -> Callable[[Any], Any]:
    async def handle(state: Any) -> dict[str, Any]:
        return {"log": [f"{name} handled"], "count": 1}

    return handle


def way_of(made: Node) -> Way:
    """By its name and what it does, so that it is the same in each process that builds the program."""
    if made.gives in ("parent", "overwrite"):
        return "plain"
    if any(isinstance(act, Call) and act.late for act in made.acts):
        return "plain"  # when it fails, which of the tasks that it has not awaited have ended is up to the schedule
    if any(isinstance(act, Run) for act in made.acts):
        return "plain"  # a timeout around nodes with timeouts: which comes first is up to what goes wrong
    ways: tuple[Way, ...] = ("plain", "plain", "plain", "flaky", "late", "handled")
    return ways[digest(repr(made)) % len(ways)]


def handles(made: Program) -> bool:
    """Whether some node of it has a handler, which would handle a simulation's own failures too."""
    if isinstance(made, Graph):
        return any(handles(node.graph) if isinstance(node, Inner) else _handled(node) for node in made.nodes)
    return any(isinstance(act, Run) and handles(act.graph) for act in made.acts)


def _handled(node: Node) -> bool:
    return way_of(node) == "handled" or any(isinstance(act, Run) and handles(act.graph) for act in node.acts)
