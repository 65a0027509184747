"""P5, P12: what is recorded never runs again, and neither do its chunks come again. A reader who comes back after a crash
at any call of storage, or after a reload at any chunk, has in the end what a reader has whom nothing disturbed.
"""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.types import Durability
from tests.durability.durable_world import TestWorld, places
from tests.durability.streaming_graphs import Crashing, State, check, died, graph_of, read, says
from tests.helpers.passing_saver import WRITES, Through

pytestmark = pytest.mark.anyio

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
MODES = ["messages", "custom", "updates", "values", "tasks"]
ASK: Any = {"stream_mode": MODES, "subgraphs": True, "version": "v2"}


class Slow(Through):
    """A saver with which one write takes longer than another."""

    calls = 0

    async def around(self, verb: str, call: Any) -> Any:
        if verb in WRITES:
            self.calls += 1
            for _ in range(self.calls * 7 % 23):
                await anyio.lowlevel.checkpoint()
        return await call()


async def undisturbed(mode: Durability) -> list[Any]:
    seen: list[Any] = []
    with anyio.fail_after(30):
        graph = graph_of(InMemorySaver(), TestWorld())
        await read(graph.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK), seen)
    return seen


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", DURABILITIES)
async def test_a_crash_at_every_call(mode: Durability, after: bool, request: pytest.FixtureRequest) -> None:
    """The process dies at a call of storage, and the next one at as many calls after that; then the run goes on."""
    whole = await undisturbed(mode)
    for at in places(request):
        inner, environment, seen = InMemorySaver(), TestWorld(), list[Any]()
        crashed = 0
        for _ in range(50):
            graph = graph_of(Crashing(inner, at, after=after), environment)
            how: Any = {"after": seen[-1]["cursor"], "on_conflict": "wait"} if seen else {"keep_events": True}
            try:
                await read(graph.astream(None if seen else {"log": []}, "t", durability=mode, **how, **ASK), seen)
                break
            except BaseException as error:
                assert died(error), error
                crashed += 1
                environment.time += 100
                at += 1  # else it would never get past a call
            state = await graph_of(inner, environment).aget_state("t")
            if not seen or "checkpoint_id" not in state.config["configurable"]:
                inner, seen = InMemorySaver(), []  # there is no place to come back to: the input is sent again
        else:
            pytest.fail("it never got through")
        check(seen, whole)
        if not crashed:
            return
    pytest.fail("there are more places than that")


@pytest.mark.parametrize("mode", DURABILITIES)
async def test_a_reload_at_every_chunk(mode: Durability) -> None:
    """The reader goes away, which cancels the run, comes back, and goes away as many chunks later."""
    whole = await undisturbed(mode)
    everywhere = os.environ.get("PREGEL_EVERY") == "1"
    for every in (1, 2, 3, 5, 8, 13, 21, 34, 55) if everywhere else (5, 21):
        inner, environment, seen = InMemorySaver(), TestWorld(), list[Any]()
        most, run = every, graph_of(inner, environment)
        await read(run.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK), seen, most)
        assert len(seen) == every
        for _ in range(1000):
            before = len(seen)
            most = len(seen) + every + before // 20
            stream = graph_of(inner, environment).astream(None, "t", after=seen[-1]["cursor"], durability=mode, **ASK)
            if await read(stream, seen, most):
                break
        else:
            pytest.fail("it never got through")
        check(seen, whole)


@pytest.mark.parametrize("mode", DURABILITIES)
async def test_cursors_come_in_their_order(mode: Durability) -> None:
    """P12: whichever record is stored first."""
    seen: list[Any] = []
    stream = graph_of(Slow(InMemorySaver()), TestWorld()).astream(
        {"log": []}, "t", keep_events=True, durability=mode, **ASK
    )
    with anyio.fail_after(30):
        await read(stream, seen)
    cursors = [part["cursor"] for part in seen]
    assert cursors == sorted(cursors)
    check(seen, await undisturbed(mode))


def asking(saver: BaseCheckpointSaver, *, inside: bool) -> Any:
    """Two nodes beside each other, of which one asks; in a graph inside, or not."""

    async def asks(state: State) -> State:
        await says("asks", "before")
        answer = interrupt("well?")
        await says("asks", "after")
        return {"log": [answer]}

    async def other(state: State) -> State:
        await says("other", "finishes", "last")
        return {"log": ["other"]}

    builder = StateGraph(State).add_node(asks).add_node(other).add_edge(START, "asks").add_edge(START, "other")
    if inside:
        builder = StateGraph(State).add_node("outside", builder.compile()).add_edge(START, "outside")
    return builder.compile(saver, environment=TestWorld())


@pytest.mark.parametrize("mode", DURABILITIES)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
async def test_an_answer_that_was_cut_off(mode: Durability, inside: bool) -> None:
    """A run that asked has come to rest. What is cut off after the answer is void, though nothing of it is stored yet, and
    though what runs again was begun before the rest. (In mode "values" a graph inside that is resumed shows its state
    once more.)"""
    ask = {**ASK, "stream_mode": [mode for mode in MODES if mode != "values"]}

    async def talk(most: int) -> list[Any]:
        seen, graph = list[Any](), asking(InMemorySaver(), inside=inside)
        await read(graph.astream({"log": []}, "t", keep_events=True, durability=mode, **ask), seen)
        rest = len(seen)
        answer: Any = Command(resume="yes")
        if not await read(graph.astream(answer, "t", keep_events=True, durability=mode, **ask), seen, rest + most):
            assert len(seen) == rest + most
            stream = graph.astream(None, "t", after=seen[-1]["cursor"], durability=mode, **ask)
            assert await read(stream, seen)
        return seen

    whole = await talk(1000)
    for most in range(1, len(whole)):
        seen = await talk(most)
        check(seen, whole)
        if seen == whole:
            return


def leaving(saver: BaseCheckpointSaver, environment: TestWorld) -> Any:
    """Two nodes beside each other in a graph inside, of which the last to finish commands the graph around it."""

    async def leaves(state: State) -> Command:
        await says("leaves", "finishes", "last")
        return Command(graph=Command.PARENT, update={"log": ["left"]})

    async def other(state: State) -> State:
        await says("other", "word")
        return {"log": ["other"]}

    builder = StateGraph(State).add_node(leaves).add_node(other).add_edge(START, "leaves").add_edge(START, "other")
    builder = StateGraph(State).add_node("outside", builder.compile()).add_edge(START, "outside")
    return builder.compile(saver, environment=environment)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_as_a_graph_inside_is_left(after: bool) -> None:
    """What finished inside, and is recorded as its superstep stays open, streams nothing again: its chunks are stored with
    that record, and not only with the superstep of the graph around it."""
    whole: list[Any] = []
    await read(leaving(InMemorySaver(), TestWorld()).astream({"log": []}, "t", keep_events=True, **ASK), whole)
    for at in range(1, 100):
        inner, environment, seen = InMemorySaver(), TestWorld(), list[Any]()
        try:
            run = leaving(Crashing(inner, at, after=after), environment)
            await read(run.astream({"log": []}, "t", keep_events=True, **ASK), seen)
        except BaseException as error:
            assert died(error), error
            environment.time += 100
            if seen:
                await read(leaving(inner, environment).astream(None, "t", after=seen[-1]["cursor"], **ASK), seen)
                check(seen, whole)
        else:
            return
