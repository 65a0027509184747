"""P10: sends that carry the state take no more storage than sends that do not: data that both hold is stored once."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.records import Shared, StoredObject
from checkpoint_savers.sharing import Shareable, filled, filled_sends, shared
from pregel_async import END, START, Command, Send, StateGraph, interrupt
from pregel_async.channels import EphemeralValue
from pregel_async.messages import add_messages

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    notes: str
    call: int
    seen: Annotated[list[Any], operator.add]


def agent_graph(saver: Any, count: int, *, whole: bool, asks: bool = False, siblings: int = 1) -> Any:
    """Return an agent that sends its whole state, or only the call, to its tools, until there are the given number of
    messages."""
    builder = StateGraph(State)

    def answer(state: State) -> State:
        return {"messages": [{"role": "assistant", "content": "word " * 200, "id": f"a{len(state['messages'])}"}]}

    def calls(state: State) -> Any:
        call = len(state["messages"])
        if call >= count:
            return END
        return [Send("tools", {**state, "call": call} if whole else {"call": call})]

    def tools(arg: State) -> State:
        seen = [len(arg["messages"])] if whole else []
        if asks:
            seen.append(interrupt("go on?"))
        return {"messages": [{"role": "tool", "content": "result " * 150, "id": f"t{arg['call']}"}], "seen": seen}

    async def later(state: State) -> State:
        return {}

    builder.add_node("agent", answer)
    builder.add_node("tools", tools)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", calls, ["tools", END])
    builder.add_edge("tools", "agent")
    for number in range(1, siblings):
        builder.add_node(f"sibling {number}", later)
        builder.add_edge("tools", f"sibling {number}")
    return builder.compile(saver)


async def stored(count: int, *, whole: bool, siblings: int = 1) -> int:
    """The bytes of all frames of a thread."""
    saver = InMemorySaver()
    graph = agent_graph(saver, count, whole=whole, siblings=siblings)
    result = await graph.ainvoke(
        {"messages": [{"role": "user", "content": "hi", "id": "u"}], "notes": "n" * 500}, CONFIG
    )
    assert len(result["messages"]) >= count
    dump = await saver.dump("t")
    assert dump is not None
    return sum(len(each.frame) for each in (*dump.rows, *dump.records))


@pytest.mark.one_loop
@pytest.mark.parametrize("siblings", [1, 2], ids=["alone", "with a sibling, so that results are recorded"])
async def test_sending_the_state_takes_no_more_than_sending_the_call(siblings: int) -> None:
    """P10: sends with the state take at most a tenth more than sends without, however many messages there are."""
    for count in (40, 120):
        call = await stored(count, whole=False, siblings=siblings)
        assert await stored(count, whole=True, siblings=siblings) <= 1.1 * call


async def test_a_resumed_send_has_the_whole_state(tmp_path: Path) -> None:
    """P5, P11: a process that resumes gives the node the send's full argument; so does a saver that is opened alone."""
    path = tmp_path / "threads.db"
    async with SqliteSaver(path) as saver:
        graph = agent_graph(saver, 5, whole=True, asks=True)
        await graph.ainvoke({"messages": [{"role": "user", "content": "hi", "id": "u"}], "notes": "n" * 500}, CONFIG)
    for number in (2, 4):
        async with SqliteSaver(path) as saver:
            alone = await saver.aget_tuple("t")
            assert alone is not None
            (sent,) = alone.checkpoint["pending_sends"]
            assert isinstance(sent, StoredObject)
            assert sent.fields["arg"]["messages"] == alone.checkpoint["channel_values"]["messages"]
            assert sent.fields["arg"]["notes"] == "n" * 500
            assert "Shared" not in repr(alone)
            graph = agent_graph(saver, 5, whole=True, asks=True)
            result = await graph.ainvoke(Command(resume="yes"), CONFIG)
            assert result["seen"][-2:] == [number, "yes"]


@pytest.mark.parametrize("as_node", ["agent", "sibling 1"], ids=["of a node that sends", "of a node that does not"])
async def test_an_edit_does_not_change_a_pending_send(as_node: str) -> None:
    """P3: a pending send keeps its argument when the shared state is edited."""
    graph = agent_graph(InMemorySaver(), 3, whole=True, asks=True, siblings=2)
    await graph.ainvoke({"messages": [{"role": "user", "content": "hi", "id": "u"}], "notes": "old " * 100}, CONFIG)
    edit = {"notes": "new", "messages": [{"role": "user", "content": "edited", "id": "u"}]}
    await graph.aupdate_state(CONFIG, edit, as_node=as_node)
    state = await graph.aget_state(CONFIG)
    assert (state.values["notes"], state.values["messages"][0]["content"]) == ("new", "edited")
    found = await graph.checkpointer.aget_tuple("t")
    sent = found.checkpoint["pending_sends"][0].fields["arg"]
    assert (sent["notes"], sent["messages"][0]["content"]) == ("old " * 100, "hi")


class Model(pydantic.BaseModel):
    messages: Annotated[list[dict[str, Any]], add_messages]
    call: int = 0


class Said(pydantic.BaseModel):
    content: str


class Conversation(pydantic.BaseModel):
    messages: Annotated[list[Said], operator.add]
    call: int = 0


@pytest.mark.parametrize("whole", [Model, Conversation], ids=["of dicts", "of models"])
@pytest.mark.parametrize("siblings", [1, 2], ids=["alone", "with a sibling, so that results are recorded"])
async def test_a_model_shares_lists_that_it_has_copied(whole: Any, siblings: int) -> None:
    """P10, P11: a send of a pydantic state, whose lists are copies, takes as much as one of the call; the resumed node
    gets the full state."""

    async def take(sends: Callable[[Any, int], Any]) -> int:
        saver, asks = InMemorySaver(), list[bool]()

        def say(content: str) -> Any:
            return {"messages": [{"role": "user", "content": content} if whole is Model else Said(content=content)]}

        def agent(state: Any) -> Any:
            return say("word " * 200)

        def tools(arg: Any) -> Any:
            if asks:
                interrupt("go on?")
            count = len(arg["state"].messages) if "state" in arg else arg["call"]
            assert count == arg["call"]
            return say("result " * 150)

        async def later(state: Any) -> Any:
            return {}

        def calls(state: Any) -> Any:
            call = len(state.messages)
            return END if call >= 80 else [Send("tools", sends(state, call))]

        def compiled() -> Any:
            builder = StateGraph(whole).add_node(agent).add_node(tools).add_edge(START, "agent")
            builder.add_conditional_edges("agent", calls, ["tools", END]).add_edge("tools", "agent")
            if siblings > 1:
                builder.add_node(later).add_edge("tools", "later")
            return builder.compile(saver)

        await compiled().ainvoke(say("hi"), CONFIG)
        dump = await saver.dump("t")
        assert dump is not None
        asks.append(True)
        await compiled().ainvoke(say("hi"), "other")
        for _ in range(3):
            result = await compiled().ainvoke(Command(resume="yes"), "other")
        assert len(result["messages"]) == 8
        return sum(len(each.frame) for each in (*dump.rows, *dump.records))

    call = await take(lambda state, call: {"call": call})
    assert await take(lambda state, call: {"state": state, "call": call}) <= 1.1 * call


class Archive(TypedDict, total=False):
    messages: list[Any]
    passing: Annotated[list[Any], EphemeralValue]
    archive: list[Any]


@pytest.mark.parametrize("key", ["messages", "passing"], ids=["short now", "empty now"])
async def test_a_list_that_has_moved_to_another_key(key: str) -> None:
    """P5, P11: a recorded send never refers to an earlier value of a channel: here another key holds that list now."""
    saver, is_down, got = InMemorySaver(), [True], list[Any]()

    def fill(state: Archive) -> dict[str, Any]:
        return {key: [{"n": number, "text": "x" * 50} for number in range(20)]}

    def move(state: dict[str, Any]) -> dict[str, Any]:
        return {"archive": state[key], "messages": [{"n": "new"}]}

    async def plan(state: Archive) -> Archive:
        return {}

    async def then_fails(state: Archive) -> Archive:
        if is_down:
            raise ConnectionError
        return {}

    def work(arg: Archive) -> Archive:
        got.append((len(arg["archive"]), len(arg["messages"])))
        return {}

    builder = StateGraph(Archive).add_node(fill).add_node(move).add_node(plan).add_node(then_fails)
    builder.add_node(work).add_edge(START, "fill").add_edge("fill", "move")
    builder.add_edge("move", "plan").add_edge("move", "then_fails")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {**state})], ["work"])
    with pytest.raises(ConnectionError):
        await builder.compile(saver).ainvoke({}, "t")
    is_down.clear()
    await builder.compile(saver).ainvoke(None, "t")
    assert got == [(20, 1)]


@dataclasses.dataclass
class Card:
    messages: list[Any]
    title: str = ""


class Struct(msgspec.Struct, frozen=True):
    messages: list[Any]
    title: str = ""


@pytest.mark.one_loop
def test_which_parts_are_shared() -> None:
    """Sharing works by identity, at the beginning of lists, in dicts and in instances of a state's class."""
    messages: list[Any] = [{"n": 1}, {"n": 2}, {"n": 3}]
    text, scalars = "x" * 100, [1, 2, 3]
    values = {"messages": messages, "text": text, "scalars": scalars, "empty": [], "copies": [{"n": 1}, {"n": 2}]}
    held = Shareable(values, lambda name, value: 2 if name == "copies" else 0)
    whole, more, other = list(messages), [*messages[:2], {"n": 4}], [{"n": 1}, {"n": 2}, {"n": 3}]
    for arg, marked in [
        (messages, Shared("messages")),
        (whole, Shared("messages", 3, [])),
        ({"m": more, "t": text}, {"m": Shared("messages", 2, [{"n": 4}]), "t": Shared("text")}),
        ({"state": {"m": messages}}, {"state": {"m": Shared("messages")}}),
        ({"copies": [{"n": 1}, {"n": 2}, {"n": 4}]}, {"copies": Shared("copies", 2, [{"n": 4}])}),
        (Card(messages), Card(Shared("messages"))),  # the stored bytes of it
        (Struct(messages), Struct(Shared("messages"))),  # the stored bytes of it
    ]:
        assert shared(arg, held) == marked
        assert filled(marked, values.__getitem__) == arg
    for arg in (other, [1, 2, 3], "x" * 101, {"m": []}, 7, None, Card([])):
        assert shared(arg, held) is arg
    assert messages == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.one_loop
def test_a_dangling_reference_is_damage() -> None:
    """P11: a reference to data that is not stored is reported as damage, never read as a value."""
    for mark in (Shared("gone"), Shared("text", 1), Shared("messages", 4), Shared("messages", -1)):
        sends = [Send("tools", {"m": mark})]
        with pytest.raises(CorruptCheckpointError, match="a part of it refers to what is not stored"):
            filled_sends(sends, {"messages": [1, 2, 3], "text": "x"}.__getitem__, "here")
