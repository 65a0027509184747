"""A thread that survives: run this program twice. The second run ends the work that the first could not end."""

import asyncio
import re
from pathlib import Path
from typing import Any

from checkpoint_savers import SqliteSaver
from pregel_async import END, START, MessagesState, Send, StateGraph

WAREHOUSE = Path("warehouse.txt")


def warehouse_answers() -> bool:
    return WAREHOUSE.exists()


def repair_the_warehouse() -> None:
    WAREHOUSE.touch()


async def model(messages: list[Any]) -> dict[str, Any]:
    """A script in place of a language model."""
    print("    (the model is asked)")
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"Your order: {last['content']}."}
    if order := re.search(r"\d+", last["content"]):
        call = {"id": f"call-{len(messages)}", "name": "look_up", "args": {"order": order[0]}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"role": "assistant", "content": "Which order?"}


async def look_up(order: str) -> str:
    if not warehouse_answers():
        raise ConnectionError("the warehouse does not answer")
    return f"a kettle, number {order}, sent on Monday"


TOOLS = {"look_up": look_up}


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model(state["messages"])]}


def route(state: MessagesState) -> list[Send] | str:
    calls = state["messages"][-1].get("tool_calls", [])
    return [Send("use_tool", call) for call in calls] or END


async def use_tool(call: dict[str, Any]) -> dict[str, Any]:
    content = await TOOLS[call["name"]](**call["args"])
    return {"messages": [{"role": "tool", "tool_call_id": call["id"], "content": content}]}


builder = StateGraph(MessagesState).add_node(answer).add_node(use_tool)
builder.add_edge(START, "answer").add_conditional_edges("answer", route, ["use_tool", END])
builder.add_edge("use_tool", "answer")


async def main() -> None:
    async with SqliteSaver.from_conn_string("shop.db") as saver:
        graph = builder.compile(saver)
        given: MessagesState | None = {"messages": [{"role": "user", "content": "Where is order 17?"}]}
        if (await graph.aget_state("ada")).next:
            given = None  # work is left from an earlier run: continue with it
        try:
            state = await graph.ainvoke(given, "ada")
        except ConnectionError as error:
            print(f"failed: {error}")
            print(f"next: {(await graph.aget_state('ada')).next}")
            repair_the_warehouse()
        else:
            print(state["messages"][-1]["content"])


if __name__ == "__main__":
    asyncio.run(main())
