"""A graph whose parts stream concurrently and are recorded one after the other, a saver that dies, and the parts that a
reader must get in total.

The graph contains a subgraph of several supersteps, siblings, called tasks of which one runs a graph, a node with an
async router, and a node with an error handler.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import END, START, NodeError, StateGraph, add_messages, get_stream_writer, task
from tests.durability.durable_environment import Died
from tests.helpers.passing_saver import WRITES, Through
from tests.helpers.stream_reader import kept_by_reader


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], add_messages]


async def speak(name: str, *words: str) -> None:
    writer = get_stream_writer()
    for word in words:
        await writer.message({"role": "assistant", "type": "AIMessageChunk", "content": word, "id": name})
        await writer(f"{name} {word}")
        await anyio.lowlevel.checkpoint()


@cache
def steps(name: str, count: int) -> Any:
    """Return a graph with the given number of supersteps, each of which streams two words, and a router at the start
    that streams one."""

    async def begin(state: State) -> str:
        await speak(f"{name} begins", "go")
        return "step"

    async def step(state: State) -> State:
        at = len(state.get("log", ()))
        await speak(f"{name}{at}", f"a{at}", f"b{at}")
        return {"log": [f"{name}{at}"]}

    builder = StateGraph(State).add_node("step", step).add_conditional_edges(START, begin, ["step"])
    return builder.add_conditional_edges("step", lambda state: END if len(state["log"]) >= count else "step").compile()


def graph_of(saver: BaseCheckpointSaver, environment: Any = None) -> Any:
    return builder_of().compile(saver, environment=environment)


@cache
def builder_of() -> StateGraph[Any]:
    inside = steps("inside", 3)
    within_call = steps("called", 2)

    @task
    async def call(name: str) -> str:
        await speak(name, "x", "y")
        if name == "deep":
            await within_call.ainvoke({"log": []})
        return name

    async def nested(state: State) -> State:
        await inside.ainvoke({"log": []})
        said = {"role": "assistant", "content": "a0b0", "id": "inside0"}  # as the subgraph has streamed it
        return {"log": ["nested"], "messages": [said]}

    async def calls(state: State) -> State:
        await speak("caller", "before")
        first = call("first")
        deep = call("deep")
        done = [await first, await deep]
        await speak("caller", "after")
        return {"log": done}

    async def routed(state: State) -> State:
        await speak("routed", "own")
        return {"log": ["routed"], "messages": [{"role": "assistant", "content": "whole"}]}

    async def route(state: State) -> str:
        await speak("router", "asks")
        return "last"

    async def fails(state: State) -> State:
        await speak("fails", "tries")
        raise LookupError("no such thing")

    async def handles(state: State, error: NodeError) -> State:
        await speak("handler", "helps", "out")
        return {"log": ["handled"]}

    async def last(state: State) -> State:
        await speak("last", "good", "bye")
        return {"log": ["last"]}

    builder = StateGraph(State).add_node(nested).add_node(calls).add_node(routed).add_node(last)
    builder.add_node("fails", fails, error_handler=handles)
    for name in ("nested", "calls", "routed", "fails"):
        builder.add_edge(START, name)
    builder.add_edge(["nested", "calls", "fails"], "last").add_conditional_edges("routed", route, ["last"])
    return builder


class Crashing(Through):
    """A saver whose process dies at one of its writing calls."""

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


async def read(stream: Any, seen: list[Any], most: int = 10**6) -> bool:
    """Read a stream until the given number of parts were seen; then drop it, which cancels its run. Return True if the
    stream has ended, False if it was dropped."""
    async with stream as parts:
        async for part in parts:
            seen.append(part)
            if len(seen) >= most:
                return False
    return True


def text(parts: Iterable[Any]) -> dict[Any, str]:
    """Return the concatenated pieces of each message, in the order in which the reader has them."""
    said: defaultdict[Any, str] = defaultdict(str)
    for part in parts:
        if part["type"] == "messages" and part["data"][0].get("type") == "AIMessageChunk":
            said[tuple(part["ns"]), part["data"][0]["id"]] += part["data"][0]["content"]
    return dict(said)


def spelled(parts: Iterable[Any]) -> list[str]:
    """Return the chunks in an order that does not depend on the order of siblings."""
    return sorted(f"{part['type']} {part['ns']} {part['step']} {_plain(part)}" for part in parts)


def _plain(part: Any) -> Any:
    mode, data = part["type"], part["data"]
    if mode == "debug":
        mode, data = (
            {"task": "tasks", "task_result": "tasks", "checkpoint": "checkpoints"}[data["type"]],
            data["payload"],
        )
    if mode == "tasks":
        return data["id"], data["name"], "input" in data, str(data.get("error")).split(":")[-1].strip("'() ")
    if mode == "checkpoints":
        return data["metadata"]["step"], sorted(data["values"].get("log", ())), data["next"]
    if mode == "values":
        return sorted(data.get("log", ()))
    return data[0] if mode == "messages" else data


def died(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(died(one) for one in error.exceptions)
    return isinstance(error, Died)


def check(seen: list[Any], whole: list[Any]) -> None:
    kept = kept_by_reader(seen)
    assert text(kept) == text(whole), (text(kept), text(whole))
    mine, theirs = Counter(spelled(kept)), Counter(spelled(whole))
    assert mine == theirs, f"twice or void: {mine - theirs}; missing: {theirs - mine}"
    assert len({part["cursor"].split(".~")[0] for part in kept}) == len(kept)
