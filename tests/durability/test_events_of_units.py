"""P5, P12: recorded work never runs again, and its chunks are not streamed again. A reader who reconnects after a crash
at any call of storage, or after a reload at any chunk, gets in total what an undisturbed reader gets."""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.types import Durability
from tests.durability.durable_environment import places
from tests.durability.streaming_graphs import Crashing, State, check, died, graph_of, read, speak
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import WRITES, Through

pytestmark = pytest.mark.anyio

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
MODES = ["messages", "custom", "updates", "values", "tasks"]
ASK: Any = {"stream_mode": MODES, "subgraphs": True, "version": "v2"}


class UnevenSaver(Through):
    """A saver with which some writes take longer than others."""

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
        graph = graph_of(InMemorySaver(), SeededEnvironment())
        await read(graph.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK), seen)
    return seen


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", DURABILITIES)
async def test_a_crash_at_every_call(mode: Durability, after: bool, request: pytest.FixtureRequest) -> None:
    """The process dies at a call of storage, and its successor after the same number of calls; then the run
    continues."""
    whole = await undisturbed(mode)
    for at in places(request):
        environment, seen = SeededEnvironment(), list[Any]()
        inner = InMemorySaver(clock=environment.now)
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
                at += 1  # otherwise the run would never get past a call
            state = await graph_of(inner, environment).aget_state("t")
            if not seen or "checkpoint_id" not in state.config["configurable"]:
                inner, seen = (
                    InMemorySaver(clock=environment.now),
                    [],
                )  # there is no cursor to continue from: send the input again
        else:
            pytest.fail("it never got through")
        check(seen, whole)
        if not crashed:
            return
    pytest.fail("there are more places than that")


@pytest.mark.parametrize("mode", DURABILITIES)
async def test_a_reload_at_every_chunk(mode: Durability) -> None:
    """The reader disconnects, which cancels the run, reconnects, and disconnects the same number of chunks later."""
    whole = await undisturbed(mode)
    everywhere = os.environ.get("PREGEL_EVERY") == "1"
    for every in (1, 2, 3, 5, 8, 13, 21, 34, 55) if everywhere else (5, 21):
        environment, seen = SeededEnvironment(), list[Any]()
        inner = InMemorySaver(clock=environment.now)
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
async def test_cursors_are_in_stream_order(mode: Durability) -> None:
    """P12: cursors sort in stream order, whichever record is stored first."""
    seen: list[Any] = []
    stream = graph_of(UnevenSaver(InMemorySaver()), SeededEnvironment()).astream(
        {"log": []}, "t", keep_events=True, durability=mode, **ASK
    )
    with anyio.fail_after(30):
        await read(stream, seen)
    cursors = [part["cursor"] for part in seen]
    assert cursors == sorted(cursors)
    check(seen, await undisturbed(mode))


def asking(saver: BaseCheckpointSaver, *, inside: bool) -> Any:
    """Return a graph with two concurrent nodes of which one asks a question, in a subgraph or not."""

    async def asks(state: State) -> State:
        await speak("asks", "before")
        answer = interrupt("well?")
        await speak("asks", "after")
        return {"log": [answer]}

    async def other(state: State) -> State:
        await speak("other", "finishes", "last")
        return {"log": ["other"]}

    builder = StateGraph(State).add_node(asks).add_node(other).add_edge(START, "asks").add_edge(START, "other")
    if inside:
        builder = StateGraph(State).add_node("outside", builder.compile()).add_edge(START, "outside")
    return builder.compile(saver, environment=SeededEnvironment())


@pytest.mark.parametrize("mode", DURABILITIES)
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
async def test_an_interrupted_answer(mode: Durability, inside: bool) -> None:
    """Chunks after an answer are void if the run is interrupted, though nothing of the answered superstep is stored
    yet, and though the node that runs again had started before its question. (In mode "values" a resumed subgraph shows
    its state once more.)"""
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


def commanding_parent(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> Any:
    """Return a graph with two concurrent nodes in a subgraph, of which the last to finish sends a command to the parent
    graph."""

    async def leaves(state: State) -> Command:
        await speak("leaves", "finishes", "last")
        return Command(graph=Command.PARENT, update={"log": ["left"]})

    async def other(state: State) -> State:
        await speak("other", "word")
        return {"log": ["other"]}

    builder = StateGraph(State).add_node(leaves).add_node(other).add_edge(START, "leaves").add_edge(START, "other")
    builder = StateGraph(State).add_node("outside", builder.compile()).add_edge(START, "outside")
    return builder.compile(saver, environment=environment)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_while_a_subgraph_commands_its_parent(after: bool) -> None:
    """Recorded work inside a subgraph streams nothing again if its superstep stays open: its chunks are stored with
    that record, and not only with the superstep of the parent graph."""
    whole: list[Any] = []
    await read(
        commanding_parent(InMemorySaver(), SeededEnvironment()).astream({"log": []}, "t", keep_events=True, **ASK),
        whole,
    )
    for at in range(1, 100):
        environment, seen = SeededEnvironment(), list[Any]()
        inner = InMemorySaver(clock=environment.now)
        try:
            run = commanding_parent(Crashing(inner, at, after=after), environment)
            await read(run.astream({"log": []}, "t", keep_events=True, **ASK), seen)
        except BaseException as error:
            assert died(error), error
            environment.time += 100
            if seen:
                await read(
                    commanding_parent(inner, environment).astream(None, "t", after=seen[-1]["cursor"], **ASK), seen
                )
                check(seen, whole)
        else:
            return
