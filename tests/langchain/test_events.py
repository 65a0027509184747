"""`astream_events` in a program that uses langchain-core: the events of its callbacks."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed here: nox -s langchain installs it")

from langchain_core.callbacks import adispatch_custom_event
from langchain_core.tools import tool

from pregel_async import START, StateGraph
from pregel_async.errors import ConfigError
from tests.langchain.recorder import model

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[str], operator.add]


@tool
def add(a: int) -> str:
    """Add one."""
    return str(a + 1)


def program() -> Any:
    talks = model()

    async def ask(state: State) -> Any:
        said = await talks.ainvoke("hi")
        await adispatch_custom_event("noted", {"k": 1})
        return {"x": 1, "log": [str(said.content)]}

    def route(state: State) -> str:
        return "act"

    def act(state: State) -> Any:
        return {"log": [add.invoke({"a": 1})]}

    builder = StateGraph(State).add_node(ask).add_node(act).add_edge(START, "ask")
    return builder.add_conditional_edges("ask", route, ["act"]).compile()


EVENTS = """
on_chain_start LangGraph
  on_chain_start ask
    on_chat_model_start GenericFakeChatModel
    on_chat_model_stream GenericFakeChatModel
    on_chat_model_stream GenericFakeChatModel
    on_chat_model_stream GenericFakeChatModel
    on_chat_model_end GenericFakeChatModel
  on_custom_event noted
    on_chain_start route
    on_chain_end route
  on_chain_stream ask
  on_chain_end ask
on_chain_stream LangGraph
  on_chain_start act
    on_tool_start add
    on_tool_end add
  on_chain_stream act
  on_chain_end act
on_chain_stream LangGraph
on_chain_end LangGraph
"""


async def test_the_events_of_a_run() -> None:
    """The events are those of LangGraph: models, tools, routers and custom events are among them."""
    run_id = uuid.UUID(int=7)
    config = {"run_id": run_id, "tags": ["t"], "metadata": {"u": 1}}
    found = [event async for event in program().astream_events({"x": 0}, config, version="v2")]
    assert [f"{'  ' * len(one['parent_ids'])}{one['event']} {one['name']}" for one in found] == EVENTS.split("\n")[1:-1]
    root, asks = found[:2]
    assert (root["run_id"], root["data"], root["tags"], root["metadata"]) == (
        str(run_id),
        {"input": {"x": 0}},
        ["t"],
        {"u": 1},
    )
    assert asks["tags"] == ["graph:step:1", "t"]
    assert asks["metadata"].items() >= {"u": 1, "langgraph_node": "ask", "langgraph_step": 1}.items()
    assert [one["data"]["chunk"].content for one in found if one["event"] == "on_chat_model_stream"] == [
        "hello",
        " ",
        "there",
    ]
    assert found[11]["data"] == {"output": {"x": 1, "log": ["hello there"]}, "input": {"x": 0, "log": []}}
    assert found[12]["data"] == {"chunk": {"ask": {"x": 1, "log": ["hello there"]}}}
    assert found[-1]["data"] == {"output": {"x": 1, "log": ["hello there", "2"]}}


async def test_filters_and_limits() -> None:
    """Filters reach langchain-core, whose default limit of 25 supersteps does not apply; a run_id must be a UUID."""
    shown = {one["event"] async for one in program().astream_events({}, include_types=["tool"])}
    assert shown == {"on_tool_start", "on_tool_end"}

    def again(state: State) -> str:
        return "n" if state.get("x", 0) < 40 else "__end__"

    builder = StateGraph(State).add_node("n", lambda state: {"x": state.get("x", 0) + 1}).add_edge(START, "n")
    long = builder.add_conditional_edges("n", again).compile()
    ends = [one async for one in long.astream_events({}, include_names=["LangGraph"]) if "output" in one["data"]]
    assert ends[-1]["data"]["output"]["x"] == 40
    with pytest.raises(ConfigError, match="UUID"):
        await anext(program().astream_events({}, {"run_id": "mine"}))
