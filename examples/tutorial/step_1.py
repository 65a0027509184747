"""A graph that answers: one node, which reads the conversation and returns a message."""

import asyncio

from pregel_async import END, START, MessagesState, StateGraph


async def answer(state: MessagesState) -> dict[str, object]:
    said = state["messages"][-1]["content"]
    return {"messages": [{"role": "assistant", "content": f"You said: {said}"}]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").add_edge("answer", END).compile()


async def main() -> None:
    state = await graph.ainvoke({"messages": [{"role": "user", "content": "Where is my order?"}]})
    for message in state["messages"]:
        print(f"{message['role']}: {message['content']}")


if __name__ == "__main__":
    asyncio.run(main())
