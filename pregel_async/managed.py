"""Managed values: keys of a state that the runtime computes for each task, and that no node can write.

    class State(TypedDict):
        question: str
        remaining: RemainingSteps

Each task gets the values with its input. Managed values are no channels: an update cannot name them, they are not
stored, and they are part of neither the input nor the output of a graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec

__all__ = ["IsLastStep", "IsLastStepManager", "ManagedValue", "Progress", "RemainingSteps", "RemainingStepsManager"]

V = TypeVar("V", covariant=True)


class Progress(msgspec.Struct, frozen=True):
    """The progress of a run when a task gets its input.

    Attributes:
        step: the number of the task's superstep.
        remaining: the number of supersteps that the run may still take, including this one: 1 in the last superstep
            that its limit allows. A subgraph counts its own supersteps.
    """

    step: int
    remaining: int

    @property
    def stop(self) -> int:
        """The number of the first superstep that the limit does not allow."""
        return self.step + self.remaining


class ManagedValue(ABC, Generic[V]):
    """A value that is computed for each task. Declare a state key with a subclass: `Annotated[int, MyValue]`."""

    @staticmethod
    @abstractmethod
    def get(scratchpad: Progress) -> V:
        """Compute the value for a task. Called each time a task reads a state with such a key; must not block.

        Args:
            scratchpad: the progress of the run.

        Returns:
            The value.
        """


class IsLastStepManager(ManagedValue[bool]):
    """True in the last superstep that the recursion limit allows."""

    @staticmethod
    def get(scratchpad: Progress) -> bool:
        return scratchpad.remaining == 1


class RemainingStepsManager(ManagedValue[int]):
    """The number of supersteps that the recursion limit still allows, including this one."""

    @staticmethod
    def get(scratchpad: Progress) -> int:
        return scratchpad.remaining


IsLastStep: TypeAlias = Annotated[bool, IsLastStepManager]
"""True in the last superstep that the recursion limit allows, so that a node can end the run with a result."""

RemainingSteps: TypeAlias = Annotated[int, RemainingStepsManager]
"""The number of supersteps that the recursion limit still allows, including this one; 1 in the last."""
