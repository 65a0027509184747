"""P4 and P5 for agents: kills, questions, hand-overs and broken streams, on every saver, by sync and async verbs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pregel_async import START, Command, MessagesState, RetryPolicy, StateGraph, interrupt
from pregel_async.adapters import StreamFailedError, stream_message
from pregel_async.prebuilt import ModelRetryMiddleware, create_agent, create_react_agent
from tests.helpers.postgres_tools import ENV, conninfo, made_schema
from tests.prebuilt.callers import Caller, caller
from tests.prebuilt.calls import LOOK_SEND_LOOK, asking, call, contents, looking_and_sending
from tests.prebuilt.scripted import Script
from tests.prebuilt.test_models import ANTHROPIC_EVENTS

__all__ = ["caller"]

HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_kill_between_two_calls_of_a_turn(kind: str, verb: str, tmp_path: Path) -> None:
    """SIGKILL when one of two calls is recorded: the next process runs the other one only. The model is not called
    again, and its tokens count once."""
    log = tmp_path / "log"
    log.write_text("")
    with ExitStack() as stack:
        place = str(tmp_path / "threads.db") if kind == "sqlite" else stack.enter_context(made_schema())
        env = ENV if kind == "sqlite" else {**ENV, "PREGEL_POSTGRES": conninfo()}
        command = [sys.executable, "-m", "tests.prebuilt.killed_agent", kind, place, str(log), verb]
        killed, ended = (
            subprocess.run([*command, json.dumps(given)], env=env, capture_output=True, text=True, check=False)
            for given in (HI, None)
        )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [
        ["hi", "", "paid", "shipped", "done"],
        {"input_tokens": 20, "output_tokens": 2},
    ]
    ran = log.read_text().split()
    assert sorted(ran) == ["model", "model", "pay", "ship", "ship"]


@pytest.mark.parametrize("make", [create_agent, create_react_agent])
def test_a_question_in_one_of_three_calls(make: Any, caller: Caller) -> None:
    """The other two finish and do not run again, nor does the model."""
    ran: list[str] = []

    model = Script(asking(*LOOK_SEND_LOOK), "done")
    agent = make(model, looking_and_sending(ran), checkpointer=caller.saver)
    asked = caller.invoke(agent, HI)
    assert [question.value for question in asked["__interrupt__"]] == [{"send to": "ada"}]
    assert sorted(ran) == ["a", "b"]
    done = caller.invoke(agent, Command(resume="sent"))
    assert contents(done)[2:] == ["saw a", "sent", "saw b", "done"]
    assert sorted(ran) == ["a", "b", "email to ada"]
    assert len(model.seen) == 2


def test_a_tool_that_hands_over_to_the_parent_graph(caller: Caller) -> None:
    """The agent ends, its outer graph runs the node that the command names, and the thread continues there."""

    async def transfer() -> Command:
        """Transfer."""
        message = {"role": "tool", "tool_call_id": "1", "name": "transfer", "content": "transferred"}
        return Command(graph=Command.PARENT, goto="expert", update={"messages": [message]})

    async def expert(state: MessagesState) -> Any:
        return {"messages": [{"role": "assistant", "content": interrupt("what now?")}]}

    model = Script(asking(call("transfer", "1")), "never")
    builder = StateGraph(MessagesState).add_node("agent", create_agent(model, [transfer])).add_node(expert)
    graph = builder.add_edge(START, "agent").compile(caller.saver)
    asked = caller.invoke(graph, HI)
    assert [question.value for question in asked["__interrupt__"]] == ["what now?"]
    done = caller.invoke(graph, Command(resume="rest"))
    assert contents(done)[-2:] == ["transferred", "rest"]
    assert len(model.seen) == 1


class Breaking:
    """A model whose first streams break after a token, which a reader has seen by then."""

    def __init__(self, *, breaks: int = 1) -> None:
        self.breaks = breaks
        self.calls = 0

    async def __call__(self, messages: list[Any], tools: list[Any]) -> Any:
        self.calls += 1
        broken = self.calls <= self.breaks

        async def stream() -> AsyncIterator[Any]:
            for event in ANTHROPIC_EVENTS[:3] if broken else ANTHROPIC_EVENTS:
                yield event
            if broken:
                yield {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}

        return await stream_message(stream())


def shown_by(caller: Caller, graph: Any, given: Any = HI) -> list[tuple[str, str]]:
    """The pieces of text that a reader sees, each with the id of its message."""
    parts = caller.stream(graph, given, stream_mode="messages", subgraphs=True)
    return [(chunk["id"], chunk["content"]) for _, (chunk, _) in parts if chunk["content"]]


def test_a_broken_stream_is_retried_by_middleware(caller: Caller) -> None:
    """Readers see the tokens of both attempts; the state has the message of the last one."""
    again = ModelRetryMiddleware(max_retries=1, initial_delay=0, jitter=False)
    agent = create_agent(Breaking(), middleware=[again], checkpointer=caller.saver)
    assert shown_by(caller, agent) == [("m1", "hey"), ("m1", "hey")]
    assert contents(caller.state(agent)) == ["hi", "hey"]


def test_a_broken_stream_is_retried_by_the_node(caller: Caller) -> None:
    """An agent is a node whose retry policy repeats it. Its tools have run already, and do not run again."""
    ran: list[str] = []

    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    breaking = Breaking()

    async def model(messages: list[Any], tools: list[Any]) -> Any:
        return asking(call("look")) if messages[-1]["role"] == "user" else await breaking(messages, tools)

    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=StreamFailedError)
    builder = StateGraph(MessagesState).add_node("agent", create_agent(model, [look]), retry_policy=policy)
    graph = builder.add_edge(START, "agent").compile(caller.saver)
    assert shown_by(caller, graph)[-2:] == [("m1", "hey"), ("m1", "hey")]
    assert contents(caller.state(graph)) == ["hi", "", "seen", "hey"]
    assert ran == ["look"]


def test_a_stream_that_stays_broken(caller: Caller) -> None:
    """The error fails the run with nothing of the message stored; the next call asks the model again."""
    model = Breaking(breaks=2)
    agent = create_agent(model, checkpointer=caller.saver)
    for _ in range(2):
        with pytest.raises(StreamFailedError, match="busy"):
            shown_by(caller, agent, HI if model.calls == 0 else None)
        assert contents(caller.state(agent)) == ["hi"]
    assert contents(caller.invoke(agent, None)) == ["hi", "hey"]
