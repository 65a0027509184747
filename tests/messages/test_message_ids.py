"""Ids of messages that come without one: no message is lost, and the same run has the same ids.

Ids that were made of the words alone lost a message when two had the same text.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.caches import InMemoryCache
from pregel_async import END, START, Command, MessagesState, Overwrite, Send, StateGraph, entrypoint, interrupt, task
from pregel_async.adapters import stream_message
from pregel_async.channels import DeltaChannel
from pregel_async.messages import RemoveMessage, add_messages
from pregel_async.policies import CachePolicy, RetryPolicy
from pregel_async.types import StateUpdate

pytestmark = pytest.mark.anyio

DONE = ("assistant", "done")


def ids(messages: list[Any]) -> list[Any]:
    return [message["id"] if isinstance(message, dict) else message.id for message in messages]


def contents(messages: list[Any]) -> list[Any]:
    return [message["content"] for message in messages]


def constant_agent(*messages: Any, state: Any = MessagesState, **options: Any) -> Any:
    """Return a graph of one node that gives the same answer each time."""
    return (
        StateGraph(state).add_node("say", lambda _: {"messages": [*messages]}).add_edge(START, "say").compile(**options)
    )


def chain(*nodes: Callable[..., Any], state: Any = MessagesState) -> Any:
    builder = StateGraph(state)
    for node in nodes:
        builder.add_node(node.__name__, node)
    builder.add_edge(START, nodes[0].__name__)
    for before, after in zip(nodes, nodes[1:]):
        builder.add_edge(before.__name__, after.__name__)
    return builder


def trimmed(left: list[Any], right: Any) -> list[Any]:
    """A user-defined reducer that calls `add_messages`."""
    return add_messages(left, right)[-50:]


def batched(left: list[Any], updates: list[Any]) -> list[Any]:
    for update in updates:
        left = add_messages(left, update)
    return left


class Trimmed(TypedDict):
    messages: Annotated[list[Any], trimmed]


class Batched(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(batched)]


STATES: list[Any] = [MessagesState, Trimmed, Batched]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("keeps", [None, True])
async def test_subgraphs_that_say_the_same(saver: BaseCheckpointSaver, keeps: Any, state: Any) -> None:
    """Three parallel subgraphs that each answer "done" keep all their messages. (They left 2 of 4.)"""
    builder = StateGraph(state)
    for name in "abc":
        builder.add_node(name, constant_agent(DONE, checkpointer=keeps)).add_edge(START, name)
    graph = builder.compile(saver)
    for turn in (1, 2):
        got = (await graph.ainvoke({"messages": ["go"]}, "t"))["messages"]
        assert contents(got) == ["go", "done", "done", "done"] * turn
        assert len(set(ids(got))) == len(got)
    assert (await graph.aget_state("t")).values["messages"] == got


@pytest.mark.parametrize("keeps", [None, False])
async def test_an_agent_on_a_fresh_list(saver: BaseCheckpointSaver, keeps: Any) -> None:
    """A node that calls a sub-agent and returns its last message does not overwrite the previous turn's answer."""
    agent = constant_agent(DONE, checkpointer=keeps)

    async def ask(state: Any) -> Any:
        return {"messages": (await agent.ainvoke({"messages": ["do it"]}))["messages"][-1:]}

    graph = chain(ask).compile(saver)
    for _ in range(2):
        got = (await graph.ainvoke({"messages": ["go"]}, "t"))["messages"]
    assert contents(got) == ["go", "done", "go", "done"]


@pytest.mark.parametrize("inside", [False, True])
async def test_calls_in_a_gather(saver: BaseCheckpointSaver, inside: bool) -> None:
    """Concurrent calls in a `gather` keep all messages. (Two calls left 2 of 3.)"""
    agent = constant_agent(DONE)

    @task
    async def work(number: int) -> Any:
        return (await agent.ainvoke({"messages": [f"part {number}"]}))["messages"][-1]

    async def split(state: Any) -> Any:
        found: list[Any] = [None, None]

        async def fill(place: int) -> None:
            if inside:
                found[place] = await work(place)
            else:
                found[place] = (await agent.ainvoke({"messages": [f"part {place}"]}))["messages"][-1]

        async with anyio.create_task_group() as group:
            for place in range(2):
                group.start_soon(fill, place)
        return {"messages": found}

    got = (await chain(split).compile(saver).ainvoke({"messages": ["go"]}, "t"))["messages"]
    assert contents(got) == ["go", "done", "done"]


async def test_sends_and_writes_of_one_node() -> None:
    """Several sends to one node, several commands of one node, and equal messages in one list get distinct ids."""

    def spread(state: Any) -> Any:
        return [
            Command(update={"messages": DONE}),
            Command(update={"messages": [DONE, DONE]}, goto=[Send("one", {})] * 2),
        ]

    builder = StateGraph(MessagesState).add_node("spread", spread, destinations=("one",)).add_edge(START, "spread")
    graph = builder.add_node("one", lambda _: {"messages": DONE}).compile()
    got = (await graph.ainvoke({"messages": ["done", "done"]}))["messages"]
    assert contents(got) == ["done"] * 7 and len(set(ids(got))) == 7


@pytest.mark.parametrize("node", ["cached", "task"])
async def test_messages_of_cached_results(node: str) -> None:
    """A message in a cached result of a node or task counts as a new message."""
    ran: list[str] = []
    policy = CachePolicy(key_func=lambda *_: "always")

    def cached(state: Any) -> Any:
        ran.append("node")
        return {"messages": [DONE]}

    @task(cache_policy=policy)
    def answer() -> Any:
        ran.append("task")
        return [DONE]

    async def calls(state: Any) -> Any:
        return {"messages": await answer()}

    builder = StateGraph(MessagesState).add_edge(START, node)
    builder.add_node(node, cached, cache_policy=policy) if node == "cached" else builder.add_node(node, calls)
    graph = builder.compile(InMemorySaver(), cache=InMemoryCache())
    for turn in (1, 2):
        got = (await graph.ainvoke({"messages": ["go"]}, "t"))["messages"]
        assert contents(got) == ["go", "done"] * turn
    assert len(ran) == 1


async def test_edits_that_say_the_same(saver: BaseCheckpointSaver) -> None:
    """Equal messages of edits get distinct ids: as inputs and nodes, alone and several at once, and by commands to an
    open superstep."""

    def ask(state: Any) -> Any:
        return {"messages": [interrupt("first"), interrupt("second")]}

    graph = chain(ask).compile(saver)
    await graph.ainvoke({"messages": ["hi"]}, "t")
    await graph.ainvoke(Command(update={"messages": "hi"}, resume="hi"), "t")
    got = (await graph.ainvoke(Command(update={"messages": "hi"}, resume="hi"), "t"))["messages"]
    assert contents(got) == ["hi"] * 5 and len(set(ids(got))) == 5
    await graph.aupdate_state("t", {"messages": "hi"}, as_node="ask")
    await graph.aupdate_state("t", {"messages": "hi"}, as_node="ask")
    await graph.abulk_update_state("t", [[StateUpdate({"messages": "hi"}, "ask")] * 2])
    await graph.aupdate_state("t", {"messages": "hi"}, as_node="__input__")
    await graph.ainvoke(None, "t")
    got = (await graph.aget_state("t")).values["messages"]
    assert contents(got) == ["hi"] * 10 and len(set(ids(got))) == 10


async def test_an_overwrite_and_what_comes_after_it(saver: BaseCheckpointSaver) -> None:
    """A message that no fold has named gets its id in the next fold, and keeps it."""

    def replace(state: Any) -> Any:
        return {"messages": Overwrite([{"role": "user", "content": "hi"}] * 2)}

    def more(state: Any) -> Any:
        return {"messages": [{"role": "user", "content": "hi"}]}

    graph = chain(replace, more).compile(saver)
    got = (await graph.ainvoke({"messages": ["old"]}, "t"))["messages"]
    assert contents(got) == ["hi"] * 3 and len(set(ids(got))) == 3
    assert (await graph.ainvoke({"messages": RemoveMessage(ids(got)[1])}, "t"))["messages"][-1]["content"] == "hi"


@pytest.mark.parametrize("begun", ["a new saver", "after a deletion", "without a saver", "by an edit"])
async def test_an_agent_on_a_thread_that_begins_anew(saver: BaseCheckpointSaver, begun: str) -> None:
    """A node that gives its sub-agent the same thread id each time, and an empty thread, keeps the earlier answers."""
    shared = InMemorySaver()

    async def ask(state: Any) -> Any:
        await shared.adelete_thread("same")
        agent = constant_agent(DONE, checkpointer=InMemorySaver() if begun == "a new saver" else shared)
        if begun == "without a saver":
            agent = constant_agent(DONE)
        if begun == "by an edit":
            await agent.aupdate_state("same", {"messages": [DONE]}, as_node="say")
            return {"messages": (await agent.aget_state("same")).values["messages"][-1:]}
        found = await agent.ainvoke({"messages": ["do it"]}, {"configurable": {"thread_id": "same"}})
        return {"messages": found["messages"][-1:]}

    graph = chain(ask).compile(saver)
    for turn in (1, 2):
        got = (await graph.ainvoke({"messages": ["go"]}, "t"))["messages"]
        assert contents(got) == ["go", "done"] * turn


async def test_a_thread_that_a_node_began_is_resumed_elsewhere(saver: BaseCheckpointSaver) -> None:
    """P8: such a thread's recorded work does not run again, and its question has one id, when another node or a call
    outside of nodes resumes it."""
    ran: list[str] = []

    async def works(state: Any) -> Any:
        ran.append("works")
        return {"messages": [DONE]}

    async def asks(state: Any) -> Any:
        return {"messages": [interrupt("which?")]}

    inner = StateGraph(MessagesState).add_node(works).add_node(asks)
    agent = inner.add_edge(START, "works").add_edge(START, "asks").compile(InMemorySaver())
    asked: list[str] = []

    async def delegate(state: Any) -> Any:
        config: Any = {"configurable": {"thread_id": "inner"}}
        if not asked:
            begun = await agent.ainvoke({"messages": ["do it"]}, config)
            asked.extend(question.id for question in begun["__interrupt__"])
            return {"messages": ["asked"]}
        done = await agent.ainvoke(Command(resume={asked[0]: "this one"}), config)
        return {"messages": [done["messages"][-1]]}

    graph = chain(delegate).compile(saver)
    await graph.ainvoke({"messages": ["go"]}, "t")
    snapshot = await agent.aget_state("inner")
    assert [question.id for question in snapshot.interrupts] == asked
    assert [each.result is not None for each in sorted(snapshot.tasks, key=lambda each: each.name)] == [False, True]
    got = (await graph.ainvoke({"messages": ["again"]}, "t"))["messages"]
    assert contents(got) == ["go", "asked", "again", "done"]
    assert ran == ["works"]
    assert not (await agent.aget_state("inner")).next


async def test_threads_do_not_share_ids() -> None:
    """Message ids are distinct across lists, as messages of two threads, or of two runs without a thread, may meet in a
    third."""
    graph = constant_agent(DONE, checkpointer=InMemorySaver())
    found: list[str] = []
    for thread in ("t", "u"):
        found += ids((await graph.ainvoke({"messages": ["go"]}, thread))["messages"])
    alone = constant_agent(DONE)
    for _ in range(2):
        found += ids((await alone.ainvoke({"messages": ["go"]}))["messages"])
    assert len(set(found)) == len(found) == 8


def repeated(state: Any = MessagesState) -> Any:
    """Return a graph with two equal messages, an agent, a task, and a node that calls the reducer itself."""
    agent = constant_agent(DONE)

    @task
    async def work() -> Any:
        return (await agent.ainvoke({"messages": ["do it"]}))["messages"][-1]

    async def a(state: Any) -> Any:
        return {"messages": ["same", await work()]}

    def b(state: Any) -> Any:
        return {"messages": ["same"]}

    def own(state: Any) -> Any:
        return {"messages": Overwrite(add_messages(add_messages(state["messages"], "same"), "same"))}

    builder = StateGraph(state).add_node("a", a).add_node("b", b).add_node("own", own)
    return builder.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "own")


@pytest.mark.parametrize("state", STATES)
async def test_two_identical_runs_have_the_same_ids(state: Any) -> None:
    """P2: the same graph, input and answers give the same trace. No part of an id comes from a clock."""
    traces: list[Any] = []
    for _ in range(2):
        graph = repeated(state).compile(InMemorySaver())
        await graph.ainvoke({"messages": ["hi", "hi"]}, "t")
        traces.append([snapshot.values async for snapshot in graph.aget_state_history("t")])
    assert traces[0] == traces[1]
    final = traces[0][0]["messages"]
    assert contents(final) == ["hi", "hi", "same", "done", "same", "same", "same"]
    assert len(set(ids(final))) == 7


async def test_a_replay_and_a_fork_have_the_same_ids(saver: BaseCheckpointSaver) -> None:
    """P2: the same work on the same checkpoint gives the same messages; a fork with other messages gets other ids."""
    said = ["one"]

    def speak(state: Any) -> Any:
        return {"messages": [said[0], DONE]}

    graph = chain(speak).compile(saver)
    first = (await graph.ainvoke({"messages": ["go"]}, "t"))["messages"]
    before = [snapshot async for snapshot in graph.aget_state_history("t") if snapshot.next == ("speak",)][0]
    assert (await graph.ainvoke(None, before.config))["messages"] == first
    said[0] = "other"
    other = (await graph.ainvoke(None, before.config))["messages"]
    assert [a == b for a, b in zip(ids(first), ids(other))] == [True, False, True]


async def test_a_resume_has_the_same_ids(saver: BaseCheckpointSaver) -> None:
    """P5: results recorded and shown before a sibling failed are folded under the ids that were shown."""
    broken = [True]

    def good(state: Any) -> Any:
        return {"messages": ["same", {"role": "assistant", "content": "same"}]}

    async def late(state: Any) -> Any:
        await anyio.wait_all_tasks_blocked()
        if broken.pop():
            raise ValueError
        return {"messages": ["same"]}

    builder = StateGraph(MessagesState).add_node("good", good).add_node("late", late)
    graph = builder.add_edge(START, "good").add_edge(START, "late").compile(saver)
    shown: list[Any] = []
    with pytest.raises(ValueError):
        async for message, _ in graph.astream({"messages": ["go"]}, "t", stream_mode="messages"):
            shown.append(message["id"])
    broken.append(False)
    got = (await graph.ainvoke(None, "t"))["messages"]
    assert contents(got) == ["go", "same", "same", "same"]
    assert shown == [got[2]["id"]]


async def test_a_retry_has_the_same_ids() -> None:
    """P8: another attempt at a task gives its messages the same ids."""
    seen: list[Any] = []

    def flaky(state: Any) -> Any:
        mine = add_messages([], ["same", "same"])
        seen.append(ids(mine))
        if len(seen) == 1:
            raise ConnectionError
        return {"messages": mine}

    builder = StateGraph(MessagesState).add_edge(START, "flaky")
    builder.add_node("flaky", flaky, retry_policy=RetryPolicy(initial_interval=0.0, jitter=False))
    await builder.compile().ainvoke({"messages": []})
    assert seen[0] == seen[1] and len(set(seen[0])) == 2


@pytest.mark.parametrize("state", STATES)
async def test_streams_and_routers_see_the_ids_that_are_stored(state: Any) -> None:
    """P2, P3: `messages` mode, a router's view and the state show the same ids, also with a user-defined reducer and
    with equal messages of siblings."""
    same = {"role": "assistant", "content": "same"}
    seen: dict[str, list[str]] = {}

    def router(name: str) -> Any:
        def look(state: Any) -> str:
            seen[name] = ids(state["messages"])
            return END

        return look

    builder = StateGraph(state)
    for name in "ab":
        builder.add_node(name, lambda _: {"messages": [same, same]}).add_edge(START, name)
        builder.add_conditional_edges(name, router(name))
    graph = builder.compile(InMemorySaver())
    shown: list[str] = []
    async for message, _ in graph.astream({"messages": ["go"]}, "t", stream_mode="messages"):
        shown.append(message["id"])
    first, *stored = ids((await graph.aget_state("t")).values["messages"])
    assert len(set(stored)) == 4
    assert sorted(shown) == sorted(stored)
    assert seen == {"a": [first, *stored[:2]], "b": [first, *stored[2:]]}


async def test_a_message_that_was_streamed_keeps_its_id() -> None:
    """`stream_message` assigns the id of a message, and the message that the node returns keeps it."""

    async def tokens() -> Any:
        yield "do"
        yield "ne"

    async def speak(state: Any) -> Any:
        return {"messages": [await stream_message(tokens())]}

    graph = chain(speak).compile(InMemorySaver())
    shown = [message async for message, _ in graph.astream({"messages": ["go"]}, "t", stream_mode="messages")]
    [_, kept] = (await graph.aget_state("t")).values["messages"]
    assert {chunk["id"] for chunk in shown} == {kept["id"]} and kept["content"] == "done"


async def test_an_entrypoint_that_adds_messages_itself() -> None:
    """P2: in the functional API, which has no reducers, code calls `add_messages` and gets the same ids on each run."""

    @task
    async def call() -> Any:
        return {"role": "assistant", "content": "done"}

    @entrypoint(checkpointer=InMemorySaver())
    async def agent(given: Any, *, previous: Any = None) -> Any:
        messages = add_messages(previous or [], given)
        for _ in range(2):
            messages = add_messages(messages, [await call()])
        return messages

    got = [await agent.ainvoke(["hi"], thread) for thread in ("t", "t", "u")]
    assert contents(got[1]) == ["hi", "done", "done"] * 2
    assert ids(got[1])[:3] == ids(got[0]) and not set(ids(got[1])) & set(ids(got[2]))
    assert len(set(ids(got[1]))) == 6


@pytest.mark.skipif(importlib.util.find_spec("langchain_core") is None, reason="langchain-core is not installed here")
@pytest.mark.parametrize("converts", [False, True])
async def test_messages_of_langchain_core(converts: bool) -> None:
    """langchain-core's messages without ids get them in the same way; streams show the ids of the state."""
    from langchain_core.messages import AIMessage, AnyMessage

    from pregel_async import langchain

    reducer: Any = langchain.add_messages if converts else add_messages
    schema: Any = TypedDict("Chat", {"messages": Annotated[list[AnyMessage], reducer]})
    answer: Any = {"role": "assistant", "content": "done"} if converts else AIMessage("done")
    builder = StateGraph(schema)
    for name in "abc":
        builder.add_node(name, constant_agent(answer, state=schema)).add_edge(START, name)
    graph = builder.compile(InMemorySaver())
    for turn in (1, 2):
        shown = [
            message["id"] if isinstance(message, dict) else message.id
            async for message, _ in graph.astream({"messages": [AIMessage("go")]}, "t", stream_mode="messages")
        ]
        got = (await graph.aget_state("t")).values["messages"]
        assert [message.content for message in got] == ["go", "done", "done", "done"] * turn
        assert all(type(message) is AIMessage for message in got)
        assert len(set(ids(got))) == len(got)
        assert sorted(shown) == sorted(ids(got[-3:]))
