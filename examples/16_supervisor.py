"""A supervisor hands work to two agents. The process dies between them, and the next one repeats nothing.

The models are scripts. With AGENT_MODEL, such as "openai:gpt-5", and that provider's SDK and key, they are that model.

python examples/16_supervisor.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import anyio

from checkpoint_savers import SqliteSaver
from pregel_async.prebuilt import create_agent
from pregel_async.prebuilt.supervisor import create_supervisor

DOWN = ["the printer"]


def calling(name: str, **args: Any) -> dict[str, Any]:
    """A message of a model that calls a tool."""
    return {"role": "assistant", "tool_calls": [{"id": name, "name": name, "args": args}]}


async def lead(messages: list[Any], tools: list[Any]) -> Any:
    """The supervisor: first the analyst, then the printer, then the end."""
    done = {message.get("name") for message in messages}
    if "analyst" not in done:
        return calling("transfer_to_analyst")
    return "The report is printed." if "printer" in done else calling("transfer_to_printer")


async def analyst(messages: list[Any], tools: list[Any]) -> Any:
    if messages[-1].get("name") == "add":
        return f"Sales are {messages[-1]['content']}."
    return calling("add", numbers=[3, 4])


async def printer(messages: list[Any], tools: list[Any]) -> Any:
    return "Printed." if messages[-1].get("name") == "print_text" else calling("print_text", text="7")


async def add(numbers: list[int]) -> int:
    """Add numbers."""
    print(f"    adding {numbers} (once)")
    return sum(numbers)


async def print_text(text: str) -> str:
    """Print a text on paper."""
    if DOWN:
        raise ConnectionError(f"{DOWN.pop()} does not answer")
    print(f"    printing {text}")
    return "printed"


async def main() -> None:
    model = os.environ.get("AGENT_MODEL")
    agents = [
        create_agent(model or analyst, [add], system_prompt="You calculate.", name="analyst"),
        create_agent(model or printer, [print_text], system_prompt="You print.", name="printer"),
    ]
    builder = create_supervisor(
        agents, model=model or lead, prompt="Ask the analyst for numbers, and have them printed."
    )
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteSaver(Path(folder, "work.db")) as saver:
            team = builder.compile(saver)
            try:
                await team.ainvoke({"messages": ["Print the sales: 3 and 4."]}, "job-1")
            except ConnectionError as error:
                print(f"    failed: {error}")
            state: Any = await team.ainvoke(None, "job-1")
            for message in state["messages"]:
                called = [call["name"] for call in message.get("tool_calls", ())]
                print(f"{message.get('name') or message['role']}: {called or message['content']}")


if __name__ == "__main__":
    anyio.run(main)
