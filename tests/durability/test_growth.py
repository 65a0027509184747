"""P10: the storage of growing threads, counted in bytes, which do not depend on the machine."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.chain import ChainReader
from checkpoint_savers.history import walk
from checkpoint_savers.patches import decode
from pregel_async import END, START, StateGraph
from pregel_async.channels import Topic
from pregel_async.messages import add_messages
from pregel_async.types import Durability

pytestmark = pytest.mark.anyio


def message(number: int) -> dict[str, Any]:
    """Return a chat message of plain data, about 270 bytes."""
    return {
        "id": f"msg-{number:08d}",
        "role": "assistant",
        "content": ("The quick brown fox jumps over the lazy dog. " * 4)[:160] + f"{number:04}",
        "meta": {"tokens": 40 + number % 7, "finish": "stop", "model": "m-1"},
    }


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**old, **new}


class ByAdd(TypedDict):
    held: Annotated[list[Any], operator.add]
    n: int


class ByMessages(TypedDict):
    held: Annotated[list[Any], add_messages]
    n: int


class ByMerge(TypedDict):
    held: Annotated[dict[str, Any], merged]
    n: int


class ByTopic(TypedDict):
    held: Annotated[list[Any], Topic(Any, accumulate=True)]
    n: int


class ByHand(TypedDict):
    held: list[Any]
    n: int


def graph(state: Any, write: Callable[[Any, int], Any], saver: InMemorySaver) -> Any:
    async def grow(given: Any) -> dict[str, Any]:
        return {"held": write(given, len(given.get("held", ())))}

    builder = StateGraph(state)
    builder.add_node("grow", grow)
    builder.add_edge(START, "grow")
    builder.add_conditional_edges("grow", lambda s: "grow" if len(s["held"]) < s["n"] else END, ["grow", END])
    return builder.compile(checkpointer=saver)


GROWING: dict[str, tuple[Any, Callable[[Any, int], Any]]] = {
    "a list by add": (ByAdd, lambda given, at: [message(at)]),
    "messages": (ByMessages, lambda given, at: [message(at)]),
    "a dict by a merge": (ByMerge, lambda given, at: {f"key {at}": message(at)}),
    "a topic": (ByTopic, lambda given, at: [message(at)]),
    "a list that its node extends": (ByHand, lambda given, at: [*given.get("held", ()), message(at)]),
    "a list in a dict": (
        ByMerge,
        lambda given, at: {"said": [*given["held"].get("said", ()), message(at)], f"{at}": 1},
    ),
}


async def stored_size(name: str, n: int, durability: Durability = "sync") -> tuple[int, int]:
    """Return the frames and records of a thread of n supersteps: bytes, and rows of checkpoints."""
    saver = InMemorySaver()
    made, write = GROWING[name]
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 10 * n}
    result = await graph(made, write, saver).ainvoke({"n": n}, config, durability=durability)
    assert len(result["held"]) >= n
    frames, rows = 0, 0
    async for header, reader, records in walk(saver, "t", None):
        frames += len(reader.rows[header.checkpoint_id].frame) + sum(len(record.frame) for record in records)
        rows += 1
    return frames, rows


async def test_a_thread_of_1000_messages() -> None:
    """P10: 1000 messages of 275 bytes, one per superstep, take exactly these bytes on any machine."""
    assert await stored_size("a list by add", 1000) == (ONE_BY_ONE, 1002)


ONE_BY_ONE = 631_572


@pytest.mark.parametrize("name", GROWING)
async def test_storage_grows_with_new_data_only(name: str) -> None:
    """P10: whichever kind of state grows, 400 supersteps take at most little more than four times what 100 take."""
    small, large = [await stored_size(name, n) for n in (100, 400)]
    assert large[0] <= 4.6 * small[0]


async def test_many_runs_grow_like_one() -> None:
    """P10: a thread of 100 runs that add two messages each grows like one run that adds all of them."""
    saver = InMemorySaver()
    made, write = GROWING["messages"]
    app = graph(made, write, saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    sizes: list[int] = []
    for turn in range(100):
        await app.ainvoke({"held": [message(10_000 + turn)], "n": 2 * turn + 2}, config)
        if turn in (24, 99):
            frames = [
                len(reader.rows[header.checkpoint_id].frame) async for header, reader, _ in walk(saver, "t", None)
            ]
            sizes.append(sum(frames))
    assert sizes[1] <= 4.6 * sizes[0]
    state = await app.aget_state(config)
    assert len(state.values["held"]) == 200


async def test_exit_mode_stores_the_state_once() -> None:
    """P10: with "exit", a run of 1000 messages is one checkpoint that holds them once."""
    frames, rows = await stored_size("a list by add", 1000, "exit")
    assert rows == 1
    assert frames < 1000 * 290


def turned(old: list[Any], new: list[Any]) -> list[Any]:
    return old + new[::-1]


async def test_results_of_reducers_that_change_the_order() -> None:
    """P2: history shows what each task wrote, and not what the reducer appended in its place."""

    class State(TypedDict):
        held: Annotated[list[Any], turned]

    builder = StateGraph(State)
    builder.add_node("first", lambda state: {"held": [message(at) for at in range(3)]})
    builder.add_node("left", lambda state: {"held": [message(3), message(4)]})
    builder.add_node("right", lambda state: {"held": [message(5)]})
    builder.add_edge(START, "first").add_edge("first", "left").add_edge("first", "right")
    graph = builder.compile(InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"held": []}, config)
    shown = {task.name: task.result async for state in graph.aget_state_history(config) for task in state.tasks}
    assert shown["first"] == {"held": [message(0), message(1), message(2)]}
    assert shown["left"] == {"held": [message(3), message(4)]}
    assert shown["right"] == {"held": [message(5)]}


async def test_states_of_a_history_are_isolated() -> None:
    """P1: states in a history share data: changing one changes no other, and no later read."""
    saver = InMemorySaver()
    made, write = GROWING["a list by add"]
    app = graph(made, write, saver)
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 1000}
    await app.ainvoke({"n": 100}, config)
    shown = [state async for state in app.aget_state_history(config)]
    for state in shown:
        for said in state.values.get("held", ()):
            said["content"] = "changed"
            said["meta"]["tokens"] = -1
        if "held" in state.values:
            state.values["held"].append("more")
    again = [state async for state in app.aget_state_history(config)]
    for at, state in enumerate(reversed(again)):
        assert state.values.get("held", []) == [message(number) for number in range(max(0, at - 1))]
    chain = await saver.read("t")
    assert chain is not None
    reader = ChainReader("t", "", chain.rows)
    held = decode(reader.state(chain.head).values["held"], saver.codec, channel="held")
    assert held == [message(number) for number in range(100)]


class Thing:
    """A class that is neither data nor known to the isolation of values: its instances are shared."""

    def __init__(self, said: str) -> None:
        self.said = said


async def test_an_opaque_object_that_changed_in_place_is_encoded_again() -> None:
    """P10: only immutable values are encoded once; objects that are shared and not copied are encoded again
    each time."""
    saver = InMemorySaver()
    saver.codec = saver.codec.with_type(Thing, encode=lambda thing: thing.said, decode=lambda said: Thing(said))
    first = Thing("x" * 300)

    async def grow(given: Any) -> dict[str, Any]:
        first.said += "!"
        return {"held": ["more"]}

    builder = StateGraph(ByAdd)
    builder.add_node("grow", grow)
    builder.add_edge(START, "grow")
    builder.add_conditional_edges("grow", lambda s: "grow" if len(s["held"]) < 5 else END, ["grow", END])
    app = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    await app.ainvoke({"held": [first], "n": 0}, config)
    state = await app.aget_state(config)
    assert state.values["held"][0].said == "x" * 300 + "!!!!"
