"""Managed values: keys of a state that the runtime fills in, and that nobody writes.

    class State(TypedDict):
        question: str
        remaining: RemainingSteps

Each task gets them with its input. They are no channels: an update cannot name them, nothing of them is stored, and
they are neither taken with a graph's input nor returned with its output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec

__all__ = ["IsLastStep", "IsLastStepManager", "ManagedValue", "Progress", "RemainingSteps", "RemainingStepsManager"]

V = TypeVar("V", covariant=True)


class Progress(msgspec.Struct, frozen=True):
    """How far a run is when a task gets its input.

    Attributes:
        step: the number of the superstep that the task belongs to.
        remaining: how many supersteps the run may still take, with this one: 1 in the last that its limit allows. A
            subgraph counts its own.
    """

    step: int
    remaining: int

    @property
    def stop(self) -> int:
        """The number of the first superstep that the limit does not allow."""
        return self.step + self.remaining


class ManagedValue(ABC, Generic[V]):
    """A value that is computed for each task. A state key is declared with the class: `Annotated[int, MyValue]`."""

    @staticmethod
    @abstractmethod
    def get(scratchpad: Progress) -> V:
        """The value for a task. Called each time that a task reads a state which declares it; must not block."""


class IsLastStepManager(ManagedValue[bool]):
    """Whether the limit allows no superstep after this one."""

    @staticmethod
    def get(scratchpad: Progress) -> bool:
        return scratchpad.remaining == 1


class RemainingStepsManager(ManagedValue[int]):
    """How many supersteps the limit allows, with this one."""

    @staticmethod
    def get(scratchpad: Progress) -> int:
        return scratchpad.remaining


IsLastStep: TypeAlias = Annotated[bool, IsLastStepManager]
"""True in the last superstep that the recursion limit allows: time to come to an end."""

RemainingSteps: TypeAlias = Annotated[int, RemainingStepsManager]
"""How many supersteps the recursion limit allows, with this one; 1 in the last."""
