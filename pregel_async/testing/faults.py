"""What goes wrong in a simulation: how much of each kind, and the plan that a seed makes of it."""

from __future__ import annotations

import random
from typing import Literal, TypeAlias

import msgspec

from .saver import Fault


class SimulatedFailure(ConnectionError):
    """A node's code fails, because the plan of its simulation says so. It is of the kind that may be tried again."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """At most how many things of each kind go wrong in one simulation. The seed draws how many do, and where.

    Attributes:
        crashes: the process dies at some step of the event loop, or around a write, and a new one takes over.
        cancellations: the call is cancelled, by a scope or by asyncio's `Task.cancel()`.
        storage: an operation fails, before or after it was stored; or several in a row.
        stalls: an operation takes so long that the claim on the thread may lapse.
        rivals: another process resumes the thread at the same time.
        failures: the code of a node or of a called task fails at its beginning. 0 by default: code that deals with its
            tasks' failures, or a graph that does with its nodes', may come to another end by them.
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
    """Something that goes wrong elsewhere than in a saver's operation.

    Attributes:
        kind: what.
        at: before which step of the event loop; for "fail": which beginning of a node's code; for "rival": during which
            call of the graph. All are counted from 1.
        delay: for "rival": how many turns it lets pass first.
    """

    kind: FaultKind
    at: int
    delay: int = 0

    def __str__(self) -> str:
        if self.kind == "crash":
            return f"the process dies before step {self.at}"
        if self.kind == "fail":
            return f"the code of a node fails, the {self.at}. that begins"
        if self.kind == "rival":
            return f"another process resumes the thread during call {self.at}, {self.delay} turns late"
        how = "natively" if self.kind == "cancel natively" else "by a scope"
        return f"the call is cancelled {how} before step {self.at}"


class FaultPlan(msgspec.Struct, frozen=True):
    """All that goes wrong in one simulation."""

    runtime: tuple[PlannedFault, ...] = ()
    storage: tuple[Fault, ...] = ()


class RunSize(msgspec.Struct, frozen=True):
    """How large an undisturbed run is: within what a plan draws its places."""

    steps: int
    operations: int
    node_starts: int
    calls: int


def draw_plan(faults: Faults, size: RunSize, rng: random.Random) -> FaultPlan:
    """Draw what goes wrong, and where, in a run of about this size."""
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
