"""Policies for random programs: nodes that fail at first, take too long, or fail for good and are handled.

A node's faults follow from its task's id and the number of the attempt, so that its result, and the whole program's,
does not depend on the time of an interruption.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import anyio
import anyio.lowlevel

from pregel_async import get_runtime
from pregel_async.policies import RetryPolicy, TimeoutPolicy
from tests.helpers.law_programs import Build, Call, Graph, Hooks, Inner, Node, Program, Run, digest
from tests.simulation.random_programs import program

Way = Literal["plain", "flaky", "late", "handled"]

__all__ = ["PolicyBuild", "YieldingHooks", "handles", "program"]


class YieldingHooks(Hooks):
    """Programs that sometimes yield to other tasks, and sometimes sleep."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._luck = random.Random(seed)

    async def turn(self) -> None:
        drawn = self._luck.random()
        if drawn < 0.02:
            await anyio.sleep(self._luck.choice((0.1, 8.0, 45.0)))  # longer than a lease lasts without a heartbeat
        elif drawn < 0.4:
            await anyio.lowlevel.checkpoint()


class PolicyBuild(Build):
    """Builds programs in which some nodes fail and have policies for it."""

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
                await wrong(way)  # at the end, so that its calls and questions are not repeated
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
    """Return a node's fault, chosen by its name and acts, so that it is the same in each process."""
    if made.gives in ("parent", "overwrite"):
        return "plain"
    if any(isinstance(act, Call) and act.late for act in made.acts):
        return "plain"  # when it fails, the schedule decides which of its unawaited tasks have ended
    if any(isinstance(act, Run) for act in made.acts):
        return "plain"  # a timeout around nodes with timeouts: which comes first is up to what goes wrong
    ways: tuple[Way, ...] = ("plain", "plain", "plain", "flaky", "late", "handled")
    return ways[digest(repr(made)) % len(ways)]


def handles(made: Program) -> bool:
    """Return True if a node of the program has an error handler, which would handle injected faults too."""
    if isinstance(made, Graph):
        return any(handles(node.graph) if isinstance(node, Inner) else _handled(node) for node in made.nodes)
    return any(isinstance(act, Run) and handles(act.graph) for act in made.acts)


def _handled(node: Node) -> bool:
    return way_of(node) == "handled" or any(isinstance(act, Run) and handles(act.graph) for act in node.acts)
