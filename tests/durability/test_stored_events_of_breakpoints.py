"""A run stops at a breakpoint and its process dies about then: reconnecting does not run past the breakpoint."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, StateGraph
from tests.durability.durable_environment import Died
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"stream_mode": ["updates", "values"], "version": "v2"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class DyingSaver(Through):
    """A saver whose process ends before a write."""

    def __init__(self, inner: BaseCheckpointSaver, at: int) -> None:
        super().__init__(inner)
        self.left = at

    async def around(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if verb in ("commit", "record"):
            self.left -= 1
            if not self.left:
                raise Died(verb)
        return await call()


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
async def test_a_breakpoint_holds_wherever_the_process_dies(where: str) -> None:
    """P3, P4: the stop of a run is stored with the superstep before it, and not afterwards."""
    ran: list[str] = []

    async def one(state: State) -> State:
        return {"log": ["one"]}

    async def two(state: State) -> State:
        ran.append("two")
        return {"log": ["two"]}

    environment = SeededEnvironment()

    def graph_on(saver: BaseCheckpointSaver) -> Any:
        builder = StateGraph(State).add_sequence([one, two]).add_edge(START, "one")
        return builder.compile(
            saver, environment=environment, **{where: ["two" if where == "interrupt_before" else "one"]}
        )

    died = 0
    for at in range(1, 10):
        inner, parts = InMemorySaver(), list[Any]()
        try:
            async for part in graph_on(DyingSaver(inner, at)).astream({"log": []}, "t", keep_events=True, **ASK):
                parts.append(part)
        except Died:
            died += 1
        else:
            break
        if parts:
            environment.time += 100  # the lease expires
            back = graph_on(inner).astream(None, "t", after=parts[-1]["cursor"], **ASK)
            async for part in back:
                parts.append(part)
            assert back.status == "stopped"
            assert (await graph_on(inner).aget_state("t")).next == ("two",)
    assert died == 2, "one for each superstep that was stored, and none after them"
    assert ran == []
