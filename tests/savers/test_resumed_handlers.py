"""A resume runs a failed error handler again, and not its node."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, NodeError, RetryPolicy, StateGraph, interrupt
from pregel_async.errors import RecordedFailureError, StepTimeoutError
from pregel_async.types import Durability
from tests.helpers.each_saver import SAVERS, Open, opener
from tests.helpers.virtual_loops import VirtualWorld

pytestmark = pytest.mark.anyio

TWICE = RetryPolicy(max_attempts=2, initial_interval=0, jitter=False, retry_on=ConnectionError)


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Shop:
    """A node that fails, and its error handler.

    Attributes:
        ran: how often each node ran.
        well: whether the handler succeeds.
        errors: the errors that the handler got.
    """

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.well = False
        self.errors: list[Exception] = []

    async def charge(self, state: State) -> State:
        self.ran["charge"] += 1
        raise LookupError("no receipt")

    async def apologise(self, state: State, error: NodeError) -> State:
        self.ran["apologise"] += 1
        self.errors.append(error.error)
        if not self.well:
            raise ConnectionError("no mail server")
        return {"log": [f"{error.node} failed"]}

    async def sibling(self, state: State) -> State:
        self.ran["sibling"] += 1
        return {"log": ["sibling"]}

    def graph(self, saver: BaseCheckpointSaver | None, depth: int = 0, **options: Any) -> Any:
        """Build the graph anew, as a new process would, as a subgraph of `depth` others."""
        made = StateGraph(State).add_node("charge", self.charge, error_handler=self.apologise)
        made.add_edge(START, "charge").add_node(self.sibling).add_edge(START, "sibling")
        made.set_node_defaults(retry_policy=TWICE)
        for _ in range(depth):
            made = StateGraph(State).add_node("inside", made.compile()).add_edge(START, "inside")
        return made.compile(saver, **options)


@pytest.fixture(params=SAVERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with opener(request.param, tmp_path) as opens:
        yield opens


@pytest.mark.parametrize(("durability", "depth"), [("sync", 0), ("sync", 2), ("async", 0), ("exit", 0), ("exit", 1)])
async def test_a_resume_starts_at_the_handler(opened: Open, durability: Durability, depth: int) -> None:
    """P3, P5: the handler gets the recorded failure, also in another process; its retry policy counts anew in each
    run."""
    shop = Shop()
    for attempts in (2, 4):
        async with opened() as saver:
            with pytest.raises(ConnectionError) as caught:
                graph = shop.graph(saver, depth, on_failure="finish")
                await graph.ainvoke({} if attempts == 2 else None, "t", durability=durability)
            assert any("resume starts at its error handler" in note for note in caught.value.__notes__)
            assert shop.ran == {"charge": 1, "sibling": 1, "apologise": attempts}
    async with opened() as saver:
        state = await shop.graph(saver, depth).aget_state("t", subgraphs=True)
        for _ in range(depth):
            state = state.tasks[0].state
        shown = {each.name: None if each.error is None else each.error.type for each in state.tasks}
        assert shown == {"charge": "ConnectionError", "sibling": None}
        shop.well = True
        result = await shop.graph(saver, depth).ainvoke(None, "t", durability=durability)
        assert result == {"log": ["charge failed", "sibling"]}
        assert shop.ran == {"charge": 1, "sibling": 1, "apologise": 5}
        first, *later = shop.errors
        assert isinstance(first, LookupError)
        assert later[1:] == [RecordedFailureError("LookupError", "no receipt")] * 3
        state = await shop.graph(saver, depth).aget_state("t")
        assert state.next == ()


@pytest.mark.parametrize("how", ["input", "edit"])
async def test_ways_to_skip_the_handler(opened: Open, how: str) -> None:
    """The error says how to leave the superstep without its handler, and both ways work."""
    shop = Shop()
    async with opened() as saver:
        graph = shop.graph(saver)
        with pytest.raises(ConnectionError) as caught:
            await graph.ainvoke({}, "t")
        (note,) = [note for note in caught.value.__notes__ if "To leave" in note]
        assert "new input" in note and "as_node='charge'" in note
        if how == "edit":
            await graph.aupdate_state("t", {"log": ["by hand"]}, as_node="charge")
            result = await graph.ainvoke(None, "t")
            assert sorted(result["log"]) == ["by hand", "sibling"]
            assert shop.ran["charge"] == 1 and shop.ran["apologise"] == 2
        else:
            shop.well = True
            assert (await graph.ainvoke({"log": []}, "t"))["log"] == ["charge failed", "sibling"]
            assert shop.ran["charge"] == 2
        history = [snapshot async for snapshot in graph.aget_state_history("t")]
        shown = [each.error for snapshot in history for each in snapshot.tasks if each.error is not None]
        assert [error.type for error in shown] == ([] if how == "edit" else ["LookupError", "ConnectionError"])


async def test_a_superstep_that_runs_out_of_time_in_a_handler() -> None:
    """P5: the superstep's timeout ends the handler, and the recorded failure stays the node's."""
    shop = Shop()
    shop.well = True
    waits, environment, begun = [True], VirtualWorld(), anyio.Event()
    environment.held = lambda: not begun.is_set()

    async def slow(state: State, error: NodeError) -> State:
        if waits:
            begun.set()
            await anyio.sleep_forever()
        return await shop.apologise(state, error)

    builder = StateGraph(State).add_node("charge", shop.charge, error_handler=slow).add_edge(START, "charge")
    saver = InMemorySaver()
    with pytest.raises(StepTimeoutError):
        await builder.compile(saver, step_timeout=5, environment=environment).ainvoke({}, "t")
    waits.clear()
    assert await builder.compile(saver).ainvoke(None, "t") == {"log": ["charge failed"]}
    assert shop.ran["charge"] == 1


async def test_a_handler_that_was_answered_and_then_fails() -> None:
    """P8: the handler's answer is kept, and the question is not asked again."""
    shop = Shop()

    async def asks(state: State, error: NodeError) -> State:
        answer = interrupt("why?")
        await shop.apologise(state, error)
        return {"log": [answer]}

    builder = StateGraph(State).add_node("charge", shop.charge, error_handler=asks).add_edge(START, "charge")
    graph = builder.compile(InMemorySaver())
    assert "__interrupt__" in await graph.ainvoke({}, "t")
    with pytest.raises(ConnectionError):
        await graph.ainvoke(Command(resume="so"), "t")
    shop.well = True
    assert await graph.ainvoke(None, "t") == {"log": ["so"]}
    assert shop.ran["charge"] == 1
