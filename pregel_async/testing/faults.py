"""The faults of a simulation: how many of each kind, and the plan that a seed draws from these numbers."""

from __future__ import annotations

import random
from typing import Literal, TypeAlias

import msgspec

from .saver import Fault


class SimulatedFailure(ConnectionError):
    """A failure of a node's code that a simulation has planned. Default retry policies retry it."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum number of faults of each kind in one simulation. The seed draws the actual numbers and places.

    Attributes:
        crashes: the process dies at a step of the event loop or at a storage operation; a new process continues.
        cancellations: the call is cancelled, by a cancel scope or by asyncio's `Task.cancel()`.
        storage: a storage operation fails before or after its effect is stored, or several operations in a row fail.
        stalls: storage operations take so long that the lease of the thread may expire.
        rivals: another process resumes the thread during a call.
        failures: the code of a node or of a called task fails before it begins. 0 by default, because code that
            handles failures of its tasks or nodes may rightly end with another result after one.

    Raises:
        ValueError: a number is negative.
    """

    crashes: int = 1
    cancellations: int = 1
    storage: int = 1
    stalls: int = 1
    rivals: int = 1
    failures: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number from 0 on, not {getattr(self, name)!r}")


FaultTiming: TypeAlias = Literal["before", "after"]
TIMINGS: tuple[FaultTiming, ...] = ("before", "after")

FaultKind: TypeAlias = Literal["crash", "cancel", "cancel natively", "fail", "rival"]


class PlannedFault(msgspec.Struct, frozen=True):
    """A fault that is injected outside of the saver.

    Attributes:
        kind: what happens.
        at: the step of the event loop before which it happens. For "fail", the number of the node execution that fails;
            for "rival", the number of the graph's call during which the other process runs. All count from 1.
        delay: for "rival", how many turns of the event loop the other process waits before it starts.
    """

    kind: FaultKind
    at: int
    delay: int = 0

    def __str__(self) -> str:
        if self.kind == "crash":
            return f"the process dies before step {self.at}"
        if self.kind == "fail":
            return f"the code of a node fails, at node execution {self.at}"
        if self.kind == "rival":
            return f"another process resumes the thread during call {self.at}, {self.delay} turns late"
        how = "natively" if self.kind == "cancel natively" else "by a scope"
        return f"the call is cancelled {how} before step {self.at}"


class FaultPlan(msgspec.Struct, frozen=True):
    """The planned faults of one simulation.

    Attributes:
        runtime: faults outside of the saver.
        storage: faults of storage operations.
    """

    runtime: tuple[PlannedFault, ...] = ()
    storage: tuple[Fault, ...] = ()


class RunSize(msgspec.Struct, frozen=True):
    """The size of an undisturbed run, which bounds the places that a plan draws.

    Attributes:
        steps: steps of the event loop.
        operations: storage operations.
        node_starts: executions of node and task code.
        calls: calls of the graph.
    """

    steps: int
    operations: int
    node_starts: int
    calls: int


def draw_plan(faults: Faults, size: RunSize, rng: random.Random) -> FaultPlan:
    """Draw the faults of a run of about this size.

    Args:
        faults: the maximum number of each kind.
        size: of the undisturbed run. Places are drawn a little beyond it too, as faults make a run longer.
        rng: makes all the random choices.

    Returns:
        The plan. Equal arguments and generator states give equal plans.
    """
    runtime: list[PlannedFault] = []
    storage: list[Fault] = []

    def step() -> int:
        return rng.randint(1, size.steps + 5)

    def operation() -> int:
        return rng.randint(1, size.operations + 2)

    for _ in range(rng.randint(0, faults.crashes)):
        if rng.random() < 0.6:
            runtime.append(PlannedFault("crash", step()))
        else:
            storage.append(Fault(how="crash", at=operation(), on="any", when=rng.choice(TIMINGS)))
    cancels: tuple[FaultKind, ...] = ("cancel", "cancel natively")
    runtime += [PlannedFault(rng.choice(cancels), step()) for _ in range(rng.randint(0, faults.cancellations))]
    for _ in range(rng.randint(0, faults.storage)):
        count = rng.choice((1, 1, 2, 5))
        when: FaultTiming = rng.choice(TIMINGS) if count == 1 else "before"
        storage.append(
            Fault(how="fail" if count == 1 else "lose", at=operation(), on="any", when=when, operations=count)
        )
    for _ in range(rng.randint(0, faults.stalls)):
        seconds = rng.choice((0.5, 12.0, 45.0, 100.0))
        storage.append(Fault(how="slow", at=operation(), on="any", operations=rng.choice((1, 3, 8)), seconds=seconds))
    runtime += [
        PlannedFault("rival", rng.randint(1, size.calls + 1), rng.randint(0, max(1, size.steps // 2)))
        for _ in range(rng.randint(0, faults.rivals))
    ]
    runtime += [
        PlannedFault("fail", rng.randint(1, size.node_starts + 1)) for _ in range(rng.randint(0, faults.failures))
    ]
    return FaultPlan(tuple(runtime), tuple(storage))
