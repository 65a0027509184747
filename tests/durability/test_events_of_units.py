"""P5, P12: what is recorded never runs again, and neither do its chunks come again. A reader who comes back after a crash
at any call of storage, or after a reload at any chunk, has in the end what a reader has whom nothing disturbed.

The graph has what streams at the same time and is recorded one after the other: a graph inside of several supersteps,
siblings, tasks that a node calls, one of which runs a graph, a node with an async router, a node with an error handler.
"""

from __future__ import annotations

import operator
import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Any, TypedDict

import anyio
import pytest
from durable_world import Died, TestWorld, places
from passing import WRITES, Through
from reading import kept_by_reader

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import END, START, NodeError, StateGraph, add_messages, get_stream_writer, task
from pregel_async.types import Durability

pytestmark = pytest.mark.anyio

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
MODES = ["messages", "custom", "updates", "values", "tasks"]
ASK: Any = {"stream_mode": MODES, "subgraphs": True, "version": "v2"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], add_messages]


async def says(name: str, *words: str) -> None:
    writer = get_stream_writer()
    for word in words:
        await writer.message({"role": "assistant", "type": "AIMessageChunk", "content": word, "id": name})
        await writer(f"{name} {word}")
        await anyio.lowlevel.checkpoint()


def steps(name: str, count: int) -> Any:
    """A graph of so many supersteps, each of which streams two words."""

    async def step(state: State) -> State:
        at = len(state.get("log", ()))
        await says(f"{name}{at}", f"a{at}", f"b{at}")
        return {"log": [f"{name}{at}"]}

    builder = StateGraph(State).add_node("step", step).add_edge(START, "step")
    return builder.add_conditional_edges("step", lambda state: END if len(state["log"]) >= count else "step").compile()


def graph_of(saver: BaseCheckpointSaver, world: Any = None) -> Any:
    inside = steps("inside", 3)
    within_call = steps("called", 2)

    @task
    async def call(name: str) -> str:
        await says(name, "x", "y")
        if name == "deep":
            await within_call.ainvoke({"log": []})
        return name

    async def nested(state: State) -> State:
        await inside.ainvoke({"log": []})
        said = {"role": "assistant", "content": "a0b0", "id": "inside0"}  # as the graph inside has shown it
        return {"log": ["nested"], "messages": [said]}

    async def calls(state: State) -> State:
        await says("caller", "before")
        first = call("first")
        deep = call("deep")
        done = [await first, await deep]
        await says("caller", "after")
        return {"log": done}

    async def routed(state: State) -> State:
        await says("routed", "own")
        return {"log": ["routed"], "messages": [{"role": "assistant", "content": "whole"}]}

    async def route(state: State) -> str:
        await says("router", "asks")
        return "last"

    async def fails(state: State) -> State:
        await says("fails", "tries")
        raise LookupError("no such thing")

    async def handles(state: State, error: NodeError) -> State:
        await says("handler", "helps", "out")
        return {"log": ["handled"]}

    async def last(state: State) -> State:
        await says("last", "good", "bye")
        return {"log": ["last"]}

    builder = StateGraph(State).add_node(nested).add_node(calls).add_node(routed).add_node(last)
    builder.add_node("fails", fails, error_handler=handles)
    for name in ("nested", "calls", "routed", "fails"):
        builder.add_edge(START, name)
    builder.add_edge(["nested", "calls", "fails"], "last").add_conditional_edges("routed", route, ["last"])
    return builder.compile(saver, world=world)


class Crashing(Through):
    """A saver whose process dies at one of its calls that write."""

    def __init__(self, saver: BaseCheckpointSaver, at: int, *, after: bool) -> None:
        super().__init__(saver)
        self.calls = 0
        self._at = at
        self._after = after

    async def around(self, verb: str, call: Any) -> Any:
        if verb not in WRITES:
            return await call()
        self.calls += 1
        if self.calls < self._at:
            return await call()
        if self.calls == self._at and self._after:
            await call()
        raise Died(verb)


class Slow(Through):
    """A saver with which one write takes longer than another."""

    calls = 0

    async def around(self, verb: str, call: Any) -> Any:
        if verb in WRITES:
            self.calls += 1
            for _ in range(self.calls * 7 % 23):
                await anyio.lowlevel.checkpoint()
        return await call()


async def read(stream: Any, seen: list[Any], most: int = 10**6) -> bool:
    """Read a stream until so many parts were seen; then it is dropped, and its run cancelled. Returns: False then, and
    True at its end."""
    async with stream as parts:
        async for part in parts:
            seen.append(part)
            if len(seen) >= most:
                return False
    return True


def text(parts: Iterable[Any]) -> dict[Any, str]:
    """What the pieces of each message add up to, in the order in which the reader has them."""
    said: defaultdict[Any, str] = defaultdict(str)
    for part in parts:
        if part["type"] == "messages" and part["data"][0].get("type") == "AIMessageChunk":
            said[part["ns"], part["data"][0]["id"]] += part["data"][0]["content"]
    return dict(said)


def spelled(parts: Iterable[Any]) -> list[str]:
    """The chunks, whatever the order of siblings."""
    return sorted(f"{part['type']} {part['ns']} {part['step']} {_plain(part)}" for part in parts)


def _plain(part: Any) -> Any:
    data = part["data"]
    if part["type"] == "tasks":
        return data["id"], data["name"], "input" in data, str(data.get("error")).split(":")[-1].strip("'() ")
    if part["type"] == "values":
        return sorted(data.get("log", ()))
    return data[0] if part["type"] == "messages" else data


def died(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(died(one) for one in error.exceptions)
    return isinstance(error, Died)


async def undisturbed(mode: Durability) -> list[Any]:
    seen: list[Any] = []
    with anyio.fail_after(30):
        graph = graph_of(InMemorySaver(), TestWorld())
        await read(graph.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK), seen)
    return seen


def check(seen: list[Any], whole: list[Any]) -> None:
    kept = kept_by_reader(seen)
    assert text(kept) == text(whole)
    assert spelled(kept) == spelled(whole)
    assert len({part["cursor"].split(".~")[0] for part in kept}) == len(kept)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", DURABILITIES)
async def test_a_crash_at_every_call(mode: Durability, after: bool, request: pytest.FixtureRequest) -> None:
    """The process dies at a call of storage, and the next one at as many calls after that; then the run goes on."""
    whole = await undisturbed(mode)
    for at in places(request):
        inner, world, seen = InMemorySaver(), TestWorld(), list[Any]()
        crashed = 0
        for _ in range(50):
            graph = graph_of(Crashing(inner, at, after=after), world)
            how: Any = {"after": seen[-1]["cursor"], "on_conflict": "wait"} if seen else {"keep_events": True}
            try:
                await read(graph.astream(None if seen else {"log": []}, "t", durability=mode, **how, **ASK), seen)
                break
            except BaseException as error:
                assert died(error), error
                crashed += 1
                world.time += 100
                at += 1  # else it would never get past a call
            state = await graph_of(inner, world).aget_state("t")
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
        inner, world, seen = InMemorySaver(), TestWorld(), list[Any]()
        most, run = every, graph_of(inner, world)
        await read(run.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK), seen, most)
        assert len(seen) == every
        for _ in range(1000):
            before = len(seen)
            most = len(seen) + every + before // 20
            stream = graph_of(inner, world).astream(None, "t", after=seen[-1]["cursor"], durability=mode, **ASK)
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
