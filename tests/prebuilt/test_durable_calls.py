"""P5 for tool calls: after a crash, a question or a failure no finished call of the turn runs again."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, Command, MessagesState, Send, StateGraph, interrupt
from pregel_async.prebuilt import ToolNode, ToolRuntime
from pregel_async.testing import Crash
from tests.prebuilt.calls import LOOK_SEND_LOOK, asking, call, contents, looking_and_sending
from tests.prebuilt.recording import ReportingSaver

pytestmark = pytest.mark.anyio


def graph_of(node: ToolNode, saver: BaseCheckpointSaver, kind: str) -> Any:
    """The node, reached by an edge with all calls, or by a send for each of them."""
    builder = StateGraph(MessagesState).add_node(node)
    if kind == "edge":
        builder.add_edge(START, "tools")
    else:
        builder.add_conditional_edges(
            START, lambda state: [Send("tools", [each]) for each in state["messages"][-1]["tool_calls"]], ["tools"]
        )
    return builder.compile(saver)


KINDS = pytest.mark.parametrize("kind", ["edge", "send"])


@KINDS
async def test_a_crash_between_two_calls(saver: BaseCheckpointSaver, kind: str) -> None:
    """The process dies when one of two calls is recorded: the next process runs the other one only."""
    dying = ReportingSaver(saver)
    ran: list[tuple[str, str]] = []

    async def pay(order: str, runtime: ToolRuntime) -> str:
        ran.append((f"pay {order}", runtime.execution_info.task_id))
        return f"paid {order}"

    async def ship(order: str, runtime: ToolRuntime) -> str:
        ran.append((f"ship {order}", runtime.execution_info.task_id))
        if len([what for what, _ in ran if what == "ship a"]) == 1:
            await dying.recorded()
            dying.crash()
        return f"shipped {order}"

    graph = graph_of(ToolNode([pay, ship]), dying, kind)
    with pytest.raises(Crash):
        await graph.ainvoke({"messages": [asking(call("pay", "1", order="a"), call("ship", "2", order="a"))]}, "t")
    await dying.restart()
    done = await graph.ainvoke(None, "t")
    assert contents(done)[1:] == ["paid a", "shipped a"]
    assert sorted(what for what, _ in ran) == ["pay a", "ship a", "ship a"]
    assert len({key for what, key in ran if what == "ship a"}) == 1  # the task's id: an idempotency key
    assert len({key for _, key in ran}) == 2


@KINDS
async def test_a_question_in_one_of_three_calls(saver: BaseCheckpointSaver, kind: str) -> None:
    """The other two finish and do not run again, and the results keep the order of the calls."""
    ran: list[str] = []

    graph = graph_of(ToolNode(looking_and_sending(ran)), saver, kind)
    asked = await graph.ainvoke({"messages": [asking(*LOOK_SEND_LOOK)]}, "t")
    assert [question.value for question in asked["__interrupt__"]] == [{"send to": "ada"}]
    assert sorted(ran) == ["a", "b"]
    done = await graph.ainvoke(Command(resume="sent"), "t")
    assert contents(done)[1:] == ["saw a", "sent", "saw b"]
    assert sorted(ran) == ["a", "b", "email to ada"]


@KINDS
async def test_several_questions_are_answered_in_any_order(saver: BaseCheckpointSaver, kind: str) -> None:
    ran: list[str] = []

    async def send_email(to: str) -> str:
        answer = interrupt(to)
        ran.append(to)
        return str(answer)

    graph = graph_of(ToolNode([send_email]), saver, kind)
    calls = [call("send_email", str(index), to=to) for index, to in enumerate(["ada", "bob", "eve"])]
    asked = await graph.ainvoke({"messages": [asking(*calls)]}, "t")
    ids = {question.value: question.id for question in asked["__interrupt__"]}
    asked = await graph.ainvoke(Command(resume={ids["eve"]: "3"}), "t")
    assert {question.value for question in asked["__interrupt__"]} == {"ada", "bob"}
    assert ran == ["eve"]
    done = await graph.ainvoke(Command(resume={ids["ada"]: "1", ids["bob"]: "2"}), "t")
    assert contents(done)[1:] == ["1", "2", "3"]
    assert sorted(ran) == ["ada", "bob", "eve"]


@KINDS
async def test_a_failure_of_one_call(saver: BaseCheckpointSaver, kind: str) -> None:
    """A raised error fails the run. Resumed, only the call that failed runs again."""
    reporting = ReportingSaver(saver)
    ran: list[str] = []

    async def look(what: str) -> str:
        ran.append(what)
        return f"saw {what}"

    async def shaky(what: str) -> str:
        ran.append(what)
        if ran.count(what) == 1:
            await reporting.recorded()
            raise ConnectionError("no line")
        return f"saw {what}"

    graph = graph_of(ToolNode([look, shaky]), reporting, kind)
    with pytest.raises(ConnectionError):
        await graph.ainvoke({"messages": [asking(call("look", "1", what="a"), call("shaky", "2", what="b"))]}, "t")
    assert contents(await graph.ainvoke(None, "t"))[1:] == ["saw a", "saw b"]
    assert sorted(ran) == ["a", "b", "b"]


@KINDS
async def test_calls_with_the_same_id(saver: BaseCheckpointSaver, kind: str) -> None:
    """Some models repeat ids within a message; each call is recorded nevertheless."""

    async def look(what: str) -> str:
        return f"saw {what}"

    graph = graph_of(ToolNode([look]), saver, kind)
    done = await graph.ainvoke({"messages": [asking(call("look", "1", what="a"), call("look", "1", what="b"))]}, "t")
    assert contents(done)[1:] == ["saw a", "saw b"]
