"""A channel of your own: it shows a value that it computes from other data.

A reducer cannot compute a mean from the previous mean, because it needs the sum and the count. This channel
shows the mean to nodes and callers, and keeps sum and count. A checkpoint stores the pair, so the next run on the
thread continues with it. `pregel_async.channels.laws` has the laws that every channel must keep, as tests to inherit.

python examples/05_custom_channel.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self, TypedDict

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph
from pregel_async.channels import MISSING, BaseChannel, Missing
from pregel_async.errors import EmptyChannelError


class Mean(BaseChannel[float, float, tuple[float, int]]):
    """The mean of all numbers written so far."""

    kind = "examples.Mean"  # stored with the value; identifies the class even if you move or rename it
    expires = False  # the value does not change in a superstep without a write

    def __init__(self, typ: object = float, key: str = "") -> None:
        super().__init__(typ, key)
        self._sum, self._count = 0.0, 0

    def get(self) -> float:
        if not self._count:
            raise EmptyChannelError(self.key)
        return self._sum / self._count

    def update(self, values: Sequence[float]) -> bool:
        self._sum += sum(values)
        self._count += len(values)
        return bool(values)

    def checkpoint(self) -> tuple[float, int] | Missing:
        return (self._sum, self._count) if self._count else MISSING

    def from_checkpoint(self, stored: tuple[float, int] | Missing) -> Self:
        twin = type(self)(self.typ, self.key)
        if stored is not MISSING:
            twin._sum, twin._count = stored
        return twin


class Input(TypedDict):
    reading: float


class State(Input):
    mean: Annotated[float, Mean()]
    verdict: str


def indoors(state: State) -> dict[str, Any]:
    return {"mean": state["reading"]}


def outdoors(state: State) -> dict[str, Any]:
    return {"mean": state["reading"] - 8}  # a second write in the same superstep: the channel folds both


def judge(state: State) -> dict[str, Any]:
    return {"verdict": "mild" if state["mean"] > 10 else "cold"}


builder = (
    StateGraph(State, input_schema=Input)
    .add_node("indoors", indoors)
    .add_node("outdoors", outdoors)
    .add_node("judge", judge)
    .add_edge(START, "indoors")
    .add_edge(START, "outdoors")
    .add_edge(["indoors", "outdoors"], "judge")
)


async def main() -> None:
    graph = builder.compile(InMemorySaver())
    for reading in (20.0, 6.0):
        result = await graph.ainvoke({"reading": reading}, "weather")
        print(f"after reading {reading:g}: mean {result['mean']:g}, {result['verdict']}")


if __name__ == "__main__":
    anyio.run(main)
