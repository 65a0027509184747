"""What a turn of an agent stores: what is new, however long the conversation is and however much the state holds."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from checkpoint_savers import SqliteSaver
from pregel_async.observing import CheckpointWritten, Event, Observer
from pregel_async.prebuilt import AgentState, Price, create_agent, create_react_agent
from tests.prebuilt.calls import asking, call

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class Stored(NamedTuple):
    size: int
    rows: int
    records: int


class Storage(Observer):
    """Adds up what a turn stores."""

    def __init__(self) -> None:
        self.stored = Stored(0, 0, 0)

    def observe(self, event: Event, /) -> None:
        if isinstance(event, CheckpointWritten):
            new = (event.size, event.checkpoints, event.records)
            self.stored = Stored(*(sum(pair) for pair in zip(self.stored, new, strict=True)))


class State(AgentState, total=False):
    document: str


class Calling:
    """A model that calls a tool so many times, and then answers."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        usage = {"input_tokens": len(messages), "output_tokens": 10}
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "an answer " * 10, "usage": usage}
        ids = [f"call-{len(messages)}-{index}" for index in range(self.calls)]
        return {**asking(*(call("look", id, what="something") for id in ids)), "usage": usage}


async def look(what: str) -> str:
    """Look."""
    return f"saw {what} " * 5


async def turns(agent: Any, count: int, thread: str = "t") -> list[Stored]:
    """Run turns with a question each. Return what each has stored."""
    stored: list[Stored] = []
    for turn in range(count):
        storage = Storage()
        await agent.ainvoke({"messages": [{"role": "user", "content": f"question {turn}"}]}, thread, observer=storage)
        stored.append(storage.stored)
    return stored


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
async def test_480_messages_store_only_what_is_new(make: Any, tmp_path: Path) -> None:
    """The last of 120 turns stores as many rows and bytes as an early one. A turn that writes a complete state, from which
    reads start, is rare, and what such turns add is less than the messages themselves."""
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as saver:
        agent = make(Calling(1), [look], checkpointer=saver, prices={"Calling": Price(1, 2)})
        stored = await turns(agent, 120)
        assert len((await agent.aget_state("t")).values["messages"]) == 480
    early, late = stored[10:30], stored[-20:]
    assert {(each.rows, each.records) for each in stored} == {(5, 0)}
    typical = median(each.size for each in early)
    assert median(each.size for each in late) <= typical * 1.1
    assert sum(each.size for each in stored) <= typical * len(stored) * 1.5


async def test_many_calls_of_a_turn_store_themselves_alone(tmp_path: Path) -> None:
    """A call is sent without the state, and each result is one record: also with a large state and a long history."""
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as saver:
        agent = create_agent(Calling(30), [look], state_schema=State, checkpointer=saver)
        await agent.aupdate_state("t", {"document": "a page " * 20_000, "messages": []}, "__start__")
        stored = await turns(agent, 12)
        assert len((await agent.aget_state("t")).values["messages"]) == 12 * 33
    assert {(each.rows, each.records) for each in stored} == {(5, 29)}
    typical = median(each.size for each in stored)
    assert typical <= 30 * 800  # the call, its result twice: as a record, and in the state
    assert median(each.size for each in stored[-6:]) <= typical * 1.1
