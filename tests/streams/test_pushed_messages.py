"""`push_message`, and the messages of user interfaces: shown at once, and written with the node's result."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, MessagesState, StateGraph, entrypoint, interrupt, push_message, task
from pregel_async._runtime.tasks.pushed_writes import push_write
from pregel_async.errors import InvalidUpdateError, OutsideRunError
from pregel_async.messages import InvalidMessageError
from pregel_async.types import TAG_NOSTREAM, RetryPolicy
from pregel_async.ui import (
    AnyUIMessage,
    UIMessageNotFoundError,
    delete_ui_message,
    push_ui_message,
    ui_message_reducer,
)

pytestmark = pytest.mark.anyio


class State(MessagesState, total=False):
    ui: Annotated[list[AnyUIMessage], ui_message_reducer]
    notes: list[Any]


def graph_of(node: Any, **options: Any) -> Any:
    return StateGraph(State).add_node("n", node, **options).add_edge(START, "n").compile(InMemorySaver())


async def shown(graph: Any, given: Any = None, mode: Any = "messages") -> list[Any]:
    return [chunk async for chunk in graph.astream({} if given is None else given, "t", stream_mode=mode)]


async def test_shown_at_once_and_written() -> None:
    """The message is shown while the node runs, and is in the state before what the node returns."""
    seen = anyio.Event()

    async def node(state: State) -> dict[str, Any]:
        push_message({"role": "assistant", "content": "working", "id": "m1"})
        with anyio.fail_after(30):
            await seen.wait()
        return {"messages": [{"role": "assistant", "content": "done", "id": "m2"}]}

    graph, chunks = graph_of(node), []
    async with graph.astream({}, "t", stream_mode="messages") as stream:
        async for chunk in stream:
            chunks.append(chunk)
            seen.set()
    assert [(message["id"], metadata["langgraph_node"]) for message, metadata in chunks] == [("m1", "n"), ("m2", "n")]
    state = await graph.aget_state("t")
    assert [message["content"] for message in state.values["messages"]] == ["working", "done"]


async def test_shown_once() -> None:
    """A pushed message that the node also returns, with more content, is shown once, and replaced in the state."""

    async def node(state: State) -> dict[str, Any]:
        pushed = push_message(("ai", "half"))
        return {"messages": [{**pushed, "content": "whole"}]}

    graph = graph_of(node)
    assert [message["content"] for message, _ in await shown(graph)] == ["half"]
    assert [message["content"] for message in (await graph.aget_state("t")).values["messages"]] == ["whole"]


async def test_ids_are_the_same_on_a_retry() -> None:
    """P2: a message without an id gets one that a retry and another run of the same thread id give it, too; and two
    equal messages get two."""
    made: list[str] = []

    async def node(state: State) -> None:
        made.extend(push_message("hello")["id"] for _ in range(2))
        if len(made) == 2:
            raise ConnectionError

    policy = RetryPolicy(max_attempts=2, initial_interval=0)
    graph = graph_of(node, retry_policy=policy)
    await graph.ainvoke({}, "t")
    assert made[:2] == made[2:]
    assert made[0] != made[1]
    assert [message["id"] for message in (await graph.aget_state("t")).values["messages"]] == made[:2]
    await graph_of(node).ainvoke({}, "t")
    assert made[4:] == made[:2]


async def test_only_shown() -> None:
    """With state_key=None nothing is written; with another key, that key is."""

    def node(state: State) -> None:
        push_message("shown", state_key=None)
        push_message("noted", state_key="notes")

    graph = graph_of(node)
    assert [message["content"] for message, _ in await shown(graph)] == ["shown", "noted"]
    values = (await graph.aget_state("t")).values
    assert values["messages"] == []
    assert values["notes"]["content"] == "noted"


async def test_without_a_reader() -> None:
    """Nobody has to read: what is pushed is written."""

    def node(state: State) -> None:
        push_message("kept")

    assert (await graph_of(node).ainvoke({}, "t"))["messages"][0]["content"] == "kept"


async def test_removals() -> None:
    """A pushed removal is written and not shown. Without an id it is refused."""

    def node(state: State) -> None:
        push_message({"role": "remove", "id": "m1"})
        with pytest.raises(InvalidMessageError):
            push_message({"role": "remove"})

    graph = graph_of(node)
    assert await shown(graph, {"messages": [{"role": "user", "content": "hi", "id": "m1"}]}) == []
    assert (await graph.aget_state("t")).values["messages"] == []


async def test_a_silent_node() -> None:
    """A node with the tag "nostream" shows nothing, and writes."""

    def node(state: State) -> None:
        push_message("silent")

    graph = graph_of(node, metadata={"tags": [TAG_NOSTREAM]})
    await shown(graph)
    assert (await graph.aget_state("t")).values["messages"][0]["content"] == "silent"


async def test_nothing_is_written_by_a_node_that_asks_or_fails() -> None:
    """P3: what a node pushes before its question or its failure is not written; what it pushes when it runs again, is
    written once."""
    broken = True

    def node(state: State) -> None:
        push_message("one")
        push_message(interrupt("Name?"))
        if broken:
            raise ConnectionError

    graph = graph_of(node)
    await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).values["messages"] == []
    with pytest.raises(ConnectionError):
        await graph.ainvoke(Command(resume="two"), "t")
    assert (await graph.aget_state("t")).values["messages"] == []
    broken = False
    await graph.ainvoke(None, "t")
    assert [message["content"] for message in (await graph.aget_state("t")).values["messages"]] == ["one", "two"]


async def test_changes_after_the_push() -> None:
    """P1: a later change of the object reaches neither the state nor the readers."""

    async def node(state: State) -> None:
        given = {"role": "user", "content": "as pushed", "id": "m1"}
        push_message(given)["content"] = "changed"
        given["content"] = "changed too"

    graph = graph_of(node)
    assert [message["content"] for message, _ in await shown(graph)] == ["as pushed"]
    assert (await graph.aget_state("t")).values["messages"][0]["content"] == "as pushed"


async def test_from_threads_of_the_node() -> None:
    """Worker threads that a node starts may push at the same time: nothing is lost."""

    async def node(state: State) -> None:
        barrier = threading.Barrier(8)

        def work(number: int) -> None:
            barrier.wait()
            for at in range(25):
                push_message({"role": "user", "content": "x", "id": f"{number}-{at}"}, state_key="messages")

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(anyio.to_thread.run_sync, work, number)

    assert len((await graph_of(node).ainvoke({}, "t"))["messages"]) == 200


class InterruptedAttempt(SimpleNamespace):
    """An attempt in which another thread pushes between the reading and the writing of `pushed`."""

    written: tuple[Any, ...] = ()
    other: threading.Thread | None = None

    @property
    def pushed(self) -> tuple[Any, ...]:
        before = self.written
        if self.other is None:
            self.other = threading.Thread(target=push_write, args=(self, "push_message()", "notes", "second"))
            self.other.start()
            self.other.join(0.1)  # it waits for the first, and this join for nothing; without the lock it ends at once
        return before

    @pushed.setter
    def pushed(self, writes: tuple[Any, ...]) -> None:
        self.written = writes


def test_two_threads_push_at_the_same_time() -> None:
    """P3: neither push is lost, whenever the interpreter changes threads."""
    task = SimpleNamespace(node=SimpleNamespace(name="n"), is_called=False)
    graph = SimpleNamespace(program=SimpleNamespace(name="g", keys={"notes"}))
    attempt: Any = InterruptedAttempt(task=task, graph=graph)
    push_write(attempt, "push_message()", "notes", "first")
    assert attempt.other is not None
    attempt.other.join(60)
    assert [value for _, value in attempt.written] == ["first", "second"]


async def test_routers_see_what_was_pushed() -> None:
    """A conditional edge of the node reads the state with the pushed message."""

    def node(state: State) -> None:
        push_message("go")

    def route(state: State) -> str:
        return "end" if [message["content"] for message in state["messages"]] == ["go"] else "n"

    builder = StateGraph(State).add_node("n", node).add_node("end", lambda state: {"notes": ["ended"]})
    graph = builder.add_edge(START, "n").add_conditional_edges("n", route, ["end", "n"]).compile()
    assert (await graph.ainvoke({}))["notes"] == ["ended"]


async def test_refused() -> None:
    """An unknown key, a called task, an entrypoint and code outside of a run are refused, and say what to do."""

    def unknown(state: State) -> None:
        push_message("x", state_key="mesages")

    @task
    async def called() -> None:
        push_message("shown only", state_key=None)
        push_message("x")

    async def calls(state: State) -> None:
        await called()

    @entrypoint()
    async def workflow(given: Any) -> None:
        push_message("shown only", state_key=None)
        push_message("x")

    with pytest.raises(InvalidUpdateError, match=r"node 'n' writes the key 'mesages'.*messages, notes, ui.*state_key="):
        await graph_of(unknown).ainvoke({}, "t")
    with pytest.raises(InvalidUpdateError, match=r"in task 'called', which writes no state.*state_key=None"):
        await graph_of(calls).ainvoke({}, "t")
    with pytest.raises(InvalidUpdateError, match=r"no such key.*state_key=None"):
        await workflow.ainvoke({})
    with pytest.raises(OutsideRunError, match=r"push_message\(\)"):
        push_message("x")
    with pytest.raises(OutsideRunError, match=r"push_ui_message\(\)"):
        push_ui_message("card", {})
    with pytest.raises(OutsideRunError, match=r"delete_ui_message\(\)"):
        delete_ui_message("x")


async def test_an_invalid_message() -> None:
    """What is no message is refused before it is shown or written."""

    def node(state: State) -> None:
        push_message(17)

    with pytest.raises(InvalidMessageError, match="17 is no message"):
        await graph_of(node).ainvoke({}, "t")


async def test_components() -> None:
    """Components are shown in the mode "custom", and written under "ui" in LangGraph's form."""

    def node(state: State) -> dict[str, Any]:
        answer = {"role": "assistant", "content": "Here.", "id": "m1"}
        weather = push_ui_message("weather", {"city": "Leeds"}, message=answer, metadata={"size": 2})
        push_ui_message("weather", {"degrees": 12}, id=weather["id"], merge=True)
        old = push_ui_message("old", {})
        delete_ui_message(old["id"])
        push_ui_message("toast", {}, state_key=None)
        return {"messages": [answer]}

    graph = graph_of(node)
    config = {"configurable": {"thread_id": "t"}, "tags": ["a"], "run_name": "mine", "run_id": "r1"}
    chunks = [chunk async for chunk in graph.astream({}, config, stream_mode="custom")]
    assert [(chunk["type"], chunk.get("name")) for chunk in chunks] == [
        ("ui", "weather"),
        ("ui", "weather"),
        ("ui", "old"),
        ("remove-ui", None),
        ("ui", "toast"),
    ]
    first = {"merge": False, "run_id": "r1", "tags": ["a"], "name": "mine", "size": 2, "message_id": "m1"}
    assert chunks[0] == {
        "type": "ui",
        "id": chunks[0]["id"],
        "name": "weather",
        "props": {"city": "Leeds"},
        "metadata": first,
    }
    (kept,) = (await graph.aget_state("t")).values["ui"]
    assert (kept["id"], kept["props"]) == (chunks[0]["id"], {"city": "Leeds", "degrees": 12})


async def test_ids_of_components() -> None:
    """P2: a component without an id gets the same one on a retry; equal ones get two."""
    made: list[str] = []

    def node(state: State) -> None:
        made.extend(push_ui_message("card", {"n": 1})["id"] for _ in range(2))
        if len(made) == 2:
            raise ConnectionError

    await graph_of(node, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0)).ainvoke({}, "t")
    assert made[:2] == made[2:]
    assert made[0] != made[1]


def component(id: str, merge: bool = False, **props: Any) -> Any:
    return {"type": "ui", "id": id, "name": "card", "props": props, "metadata": {"merge": merge}}


def test_the_reducer() -> None:
    """Components are added, replaced in place, merged and removed, and the arguments stay as they are."""
    one, two, gone = component("1", a=1), component("2"), {"type": "remove-ui", "id": "1"}
    left: Any = [one, two]
    assert ui_message_reducer(left, component("3")) == [one, two, component("3")]
    assert ui_message_reducer(one, two) == [one, two]
    assert ui_message_reducer(left, component("1", b=2)) == [component("1", b=2), two]
    assert ui_message_reducer(left, component("1", True, b=2)) == [component("1", True, a=1, b=2), two]
    assert ui_message_reducer([], component("4", True, b=2)) == [component("4", True, b=2)]
    assert ui_message_reducer(left, [gone]) == [two]
    assert ui_message_reducer(left, [gone, gone]) == [two]
    assert ui_message_reducer(left, [gone, component("1", b=2)]) == [component("1", b=2), two]
    assert ui_message_reducer([one], [{"type": "ui", "id": "2", "name": "bare", "props": {}}])[1]["id"] == "2"
    assert left == [component("1", a=1), component("2")]
    with pytest.raises(UIMessageNotFoundError, match="'9'") as caught:
        ui_message_reducer(left, {"type": "remove-ui", "id": "9"})
    assert caught.value.id == "9"


async def test_a_state_of_dicts_without_a_reducer() -> None:
    """A pushed message is a write like any other: two to a key that takes one are refused."""

    class Plain(TypedDict, total=False):
        last: Any

    def node(state: Plain) -> None:
        push_message("one", state_key="last")
        push_message("two", state_key="last")

    graph = StateGraph(Plain).add_node("n", node).add_edge(START, "n").compile()
    with pytest.raises(InvalidUpdateError, match="last"):
        await graph.ainvoke({})
