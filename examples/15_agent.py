"""An agent: a model, two tools, and an approval. A tool call whose result is stored does not run again.

The model is a script. With AGENT_MODEL, such as "openai:gpt-5" or "anthropic:claude-sonnet-4-5", and that provider's
SDK and key, it is that model.

python examples/15_agent.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import anyio

from checkpoint_savers import SqliteSaver
from pregel_async import Command
from pregel_async.prebuilt import create_agent


async def script(messages: list[Any], tools: list[dict[str, Any]]) -> Any:
    """Ask for the weather and for an email in one turn; then answer."""
    if messages[-1]["role"] == "tool":
        return "It is sunny in Oslo, and Ada knows."
    calls = [("weather", {"city": "Oslo"}), ("send_email", {"to": "ada", "text": "Sunny!"})]
    return {
        "role": "assistant",
        "tool_calls": [{"id": name, "name": name, "args": args} for name, args in calls],
    }


async def weather(city: str) -> str:
    """Look up the weather of a city.

    Args:
        city: its name, in English.
    """
    print(f"    looking up {city} (once)")
    return f"{city} is sunny"


def send_email(to: str, text: str) -> str:
    """Send an email."""
    print(f"    sending {text!r} to {to}")
    return "sent"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteSaver(Path(folder, "chats.db")) as saver:
            agent = create_agent(
                os.environ.get("AGENT_MODEL", script),
                [weather, send_email],
                system_prompt="Answer in one sentence. Email Ada what you find out.",
                approve={"send_email": True},
                checkpointer=saver,
            )
            state: Any = await agent.ainvoke({"messages": ["How is the weather in Oslo?"]}, "chat-1")
            while "__interrupt__" in state:
                for question in state["__interrupt__"]:
                    print(f"may {question.value['name']} run with {question.value['args']}? yes")
                answers = {question.id: {"type": "approve"} for question in state["__interrupt__"]}
                state = await agent.ainvoke(Command(resume=answers), "chat-1")
            for message in state["messages"]:
                print(f"{message['role']}: {message['content'] or [call['name'] for call in message['tool_calls']]}")


if __name__ == "__main__":
    anyio.run(main)
