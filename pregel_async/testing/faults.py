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
        stalls: an operation takes so long that the lease on the thread may lapse.
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


When: TypeAlias = Literal["before", "after"]
WHENS: tuple[When, ...] = ("before", "after")

Kind: TypeAlias = Literal["crash", "cancel", "cancel natively", "fail", "rival"]


class Planned(msgspec.Struct, frozen=True):
    """Something that goes wrong elsewhere than in a saver's operation.

    Attributes:
        kind: what.
        at: before which step of the event loop; for "fail": which beginning of a node's code; for "rival": during which
            call of the graph. All are counted from 1.
        delay: for "rival": how many turns it lets pass first.
    """

    kind: Kind
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


class Plan(msgspec.Struct, frozen=True):
    """All that goes wrong in one simulation."""

    planned: tuple[Planned, ...] = ()
    storage: tuple[Fault, ...] = ()


class Size(msgspec.Struct, frozen=True):
    """How large an undisturbed run is: within what a plan draws its places."""

    steps: int
    operations: int
    bodies: int
    calls: int


def plan(faults: Faults, size: Size, luck: random.Random) -> Plan:
    """Draw what goes wrong, and where, in a run of about this size."""
    planned: list[Planned] = []
    storage: list[Fault] = []

    def step() -> int:
        return luck.randint(1, size.steps + 5)

    def operation() -> int:
        return luck.randint(1, size.operations + 2)

    for _ in range(luck.randint(0, faults.crashes)):
        if luck.random() < 0.6:
            planned.append(Planned("crash", step()))
        else:
            storage.append(Fault(how="crash", at=operation(), on="any", when=luck.choice(WHENS)))
    ways: tuple[Kind, ...] = ("cancel", "cancel natively")
    planned += [Planned(luck.choice(ways), step()) for _ in range(luck.randint(0, faults.cancellations))]
    for _ in range(luck.randint(0, faults.storage)):
        many = luck.choice((1, 1, 2, 5))
        when: When = luck.choice(WHENS) if many == 1 else "before"
        storage.append(Fault(how="fail" if many == 1 else "lose", at=operation(), on="any", when=when, operations=many))
    for _ in range(luck.randint(0, faults.stalls)):
        seconds = luck.choice((0.5, 12.0, 45.0, 100.0))
        storage.append(Fault(how="slow", at=operation(), on="any", operations=luck.choice((1, 3, 8)), seconds=seconds))
    planned += [
        Planned("rival", luck.randint(1, size.calls + 1), luck.randint(0, max(1, size.steps // 2)))
        for _ in range(luck.randint(0, faults.rivals))
    ]
    planned += [Planned("fail", luck.randint(1, size.bodies + 1)) for _ in range(luck.randint(0, faults.failures))]
    return Plan(tuple(planned), tuple(storage))
