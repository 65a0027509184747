"""Chat models of langchain-core as models of an agent."""

from __future__ import annotations

import importlib.util
import operator
from typing import Annotated, Any, TypedDict

import pytest

from pregel_async.prebuilt import (
    AgentState,
    ChatModel,
    InvalidModelError,
    ModelCall,
    as_model,
    as_tool,
    create_agent,
    create_react_agent,
)
from pregel_async.prebuilt.supervisor import create_supervisor
from tests.prebuilt.calls import asking, call

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    pytest.mark.skipif(
        importlib.util.find_spec("langchain_core") is None,
        reason="langchain-core is not installed here: nox -s langchain installs it",
    ),
]

if importlib.util.find_spec("langchain_core") is not None:
    from langchain_core import messages as lc
    from langchain_core.language_models import BaseChatModel
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.runnables import RunnableLambda

    class Scripted(BaseChatModel):
        """Answers with the number of its messages, and records what it gets."""

        seen: list[Any] = []

        @property
        def _llm_type(self) -> str:
            return "scripted"

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            self.seen.append((messages, kwargs))
            return ChatResult(generations=[ChatGeneration(message=lc.AIMessage(str(len(messages))))])

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self.bind(tools=tools, **kwargs)


class Own(AgentState, total=False):
    user: str


class Kept(TypedDict):
    messages: Annotated[list[Any], operator.add]


async def answer(messages: list[Any], tools: list[Any]) -> str:
    return "hello"


def find(q: str) -> str:
    """Find."""
    return q


async def test_messages_and_tools() -> None:
    """Messages of any kind become langchain-core's; tools are bound in the call, with the choice."""
    model = Scripted()
    chat = [
        {"role": "system", "content": "s"},
        "hi",
        asking(call("find", "1", q="a")),
        {"role": "tool", "tool_call_id": "1", "name": "find", "content": "found", "status": "error"},
        lc.HumanMessage("more"),
    ]
    adapted = as_model(model)
    assert isinstance(adapted, ChatModel)
    answer = await adapted.answer(ModelCall(messages=chat, tools=[as_tool(find)], tool_choice="any"))
    assert isinstance(answer, lc.AIMessage)
    ((messages, options),) = model.seen
    kinds = [lc.SystemMessage, lc.HumanMessage, lc.AIMessage, lc.ToolMessage, lc.HumanMessage]
    assert [type(message) for message in messages] == kinds
    assert messages[2].tool_calls[0]["args"] == {"q": "a"}
    assert (messages[3].tool_call_id, messages[3].status) == ("1", "error")
    assert options["tools"] == [{"type": "function", "function": as_tool(find).definition()}]
    assert options["tool_choice"] == "any"


async def test_tools_that_are_bound_already_are_kept() -> None:
    model = Scripted()
    await as_model(model.bind_tools(["mine"])).answer(ModelCall(messages=["hi"], tools=[as_tool(find)]))
    assert model.seen[0][1]["tools"] == ["mine"]


async def test_other_runnables() -> None:
    answer = await as_model(RunnableLambda(lambda messages: lc.AIMessage("x"))).answer(ModelCall(messages=["hi"]))
    assert answer.content == "x"
    with pytest.raises(InvalidModelError, match="it returned int"):
        await as_model(RunnableLambda(lambda messages: 3)).answer(ModelCall(messages=["hi"]))
    with pytest.raises(InvalidModelError, match="it has no bind_tools"):
        await as_model(RunnableLambda(lambda messages: 3)).answer(ModelCall(messages=["hi"], tools=[as_tool(find)]))


async def test_an_agent() -> None:
    """Messages of the agent are langchain-core's if the model's are, and survive a saver."""
    from checkpoint_savers import InMemorySaver
    from pregel_async.prebuilt import create_react_agent

    class Agent(Scripted):
        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            asked = [] if isinstance(messages[-1], lc.ToolMessage) else [call("find", "1", q="a")]
            answer = lc.AIMessage("" if asked else "done", tool_calls=asked)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    agent = create_react_agent(Agent(), [find], prompt=lc.SystemMessage("s"), checkpointer=InMemorySaver())
    done = await agent.ainvoke({"messages": [("user", "hi")]}, "t")
    assert [type(message) for message in done["messages"][1:]] == [lc.AIMessage, lc.ToolMessage, lc.AIMessage]
    assert done["messages"][-1].content == "done"
    assert (await agent.aget_state("t")).values["messages"][2].content == "a"


async def test_a_stream_that_breaks_counts_what_was_reported() -> None:
    """langchain-core drops the chunks of a broken stream; the tokens in them count, once."""
    from langchain_core.outputs import ChatGenerationChunk

    from pregel_async.observing import Figures
    from pregel_async.prebuilt import create_agent

    def chunk(text: str, input: int, output: int) -> Any:
        usage: Any = {"input_tokens": input, "output_tokens": output, "total_tokens": input + output}
        return ChatGenerationChunk(message=lc.AIMessageChunk(text, usage_metadata=usage))

    class Breaking(Scripted):
        async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            yield chunk("he", 7, 1)
            yield chunk("y", 0, 1)
            if breaks:
                raise ConnectionError("no line")

    spent: list[Any] = []
    for breaks in (True, False):
        figures = Figures()
        try:
            async for _ in create_agent(Breaking()).astream(
                {"messages": ["hi"]}, stream_mode="messages", observer=figures
            ):
                pass
        except ConnectionError:
            assert breaks
        spent.append(figures.spent)
    assert spent == [{"input_tokens": 7, "output_tokens": 2}] * 2


@pytest.mark.parametrize("kind", ["create_agent", "create_react_agent", "create_supervisor"])
@pytest.mark.parametrize("schema", [None, AgentState, Own])
async def test_messages_of_callers_become_those_of_the_model(kind: str, schema: Any) -> None:
    """A program for LangGraph reads `.content` of each message, also of those that it has passed as pairs."""
    model: Any = Scripted()
    if kind == "create_supervisor":
        graph: Any = create_supervisor(
            [create_agent(answer, name="writer")], model=model, state_schema=schema
        ).compile()
    elif kind == "create_agent":
        graph = create_agent(model, state_schema=schema)
    else:
        graph = create_react_agent(model, [], state_schema=schema)
    done = await graph.ainvoke({"messages": [("user", "hi"), {"role": "user", "content": "you"}]})
    assert [(type(each).__name__, each.content) for each in done["messages"]][:2] == [
        ("HumanMessage", "hi"),
        ("HumanMessage", "you"),
    ]
    plain = await create_agent(answer).ainvoke({"messages": [("user", "hi")]})
    assert [each["role"] for each in plain["messages"]] == ["user", "assistant"]


async def test_a_reducer_of_ones_own_is_left_alone() -> None:
    done = await create_agent(Scripted(), state_schema=Kept).ainvoke({"messages": [{"role": "user", "content": "hi"}]})
    assert done["messages"][0] == {"role": "user", "content": "hi"}
