"""An agent of pydantic-ai as a node. Its payment is a task, so it is not made again when the agent runs again.

Needs `pip install pydantic-ai-slim`. The model is a script. With AGENT_MODEL, such as "openai:gpt-5", and that
provider's SDK and key, it is that model.

python examples/19_pydantic_ai_node.py
"""

from __future__ import annotations

import os
from typing import Any

import anyio

from checkpoint_savers import InMemorySaver
from pregel_async import START, MessagesState, StateGraph, task
from pregel_async.adapters import as_pydantic_ai, from_pydantic_ai

DOWN = ["the model"]


@task
async def transfer(to: str, euros: int) -> str:
    """Pay. The result of a task is stored as soon as it ends."""
    print(f"    paying {euros} euros to {to} (once)")
    return f"paid {euros} euros to {to}"


async def pay(to: str, euros: int) -> str:
    """Pay a person."""
    return await transfer(to, euros)


def make_agent() -> Any:
    from pydantic_ai import (  # pyright: ignore[reportMissingImports]  # in nox's session adapters
        Agent,
        ModelResponse,
        TextPart,
        ToolCallPart,
    )
    from pydantic_ai.models.function import FunctionModel  # pyright: ignore[reportMissingImports]  # the same

    def script(messages: list[Any], info: Any) -> Any:
        newest = messages[-1].parts[-1]
        if newest.part_kind == "user-prompt":
            return ModelResponse([ToolCallPart("pay", {"to": "ada", "euros": 7})])
        if DOWN:
            raise ConnectionError(f"{DOWN.pop()} does not answer")
        return ModelResponse([TextPart(f"I have {newest.content}.")])

    return Agent(os.environ.get("AGENT_MODEL") or FunctionModel(script), instructions="You pay bills.", tools=[pay])


async def main() -> None:
    agent = make_agent()

    async def clerk(state: MessagesState) -> MessagesState:
        """Run the agent on the conversation, and add its messages."""
        result = await agent.run(message_history=as_pydantic_ai(state["messages"]))
        return {"messages": from_pydantic_ai(result.new_messages(), name="clerk")}

    graph = StateGraph(MessagesState).add_node(clerk).add_edge(START, "clerk").compile(InMemorySaver())
    try:
        await graph.ainvoke({"messages": ["Pay Ada 7 euros."]}, "bill-1")
    except ConnectionError as error:
        print(f"    failed: {error}")
    state: Any = await graph.ainvoke(None, "bill-1")
    for message in state["messages"]:
        called = [call["name"] for call in message.get("tool_calls", ())]
        print(f"{message.get('name') or message['role']}: {called or message['content']}")


if __name__ == "__main__":
    anyio.run(main)
