"""The language model: Anthropic's or OpenAI's if there is a key for it, and else a script.

`reply` returns what `stream_message` reads: a stream of the provider's own SDK, as the SDK's client returns it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import anyio

PAUSE = float(os.environ.get("CHAT_PAUSE", "0.04"))
"""Seconds between two tokens of the script."""

SEND_EMAIL: dict[str, Any] = {
    "name": "send_email",
    "description": "Send an email. The user is asked first.",
    "schema": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("to", "subject", "body")},
        "required": ["to", "subject", "body"],
    },
}


def reply(messages: list[Any]) -> Any:
    """Start the next message of a conversation."""
    if os.environ.get("ANTHROPIC_API_KEY"):
        return from_anthropic(messages)
    if os.environ.get("OPENAI_API_KEY"):
        return from_openai(messages)
    return from_the_script(messages)


@cache
def anthropic_client() -> Any:
    from anthropic import AsyncAnthropic  # pyright: ignore[reportMissingImports]  # only where it is installed

    return AsyncAnthropic()


def from_anthropic(messages: list[Any]) -> Any:
    return anthropic_client().messages.create(
        model=os.environ.get("CHAT_MODEL", "claude-haiku-4-5"),
        max_tokens=2048,
        messages=[as_anthropic(message) for message in messages],
        tools=[
            {
                "name": SEND_EMAIL["name"],
                "description": SEND_EMAIL["description"],
                "input_schema": SEND_EMAIL["schema"],
            }
        ],
        stream=True,
    )


def as_anthropic(message: Any) -> dict[str, Any]:
    """Return a message in Anthropic's form.

    A tool's result is part of a user's message there. Several messages of one role in a row count as one.
    """
    if message["role"] == "tool":
        block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return {"role": "user", "content": [block]}
    if message["role"] == "user":
        return {"role": "user", "content": message["content"]}
    said = [{"type": "text", "text": message["content"]}] if message["content"] else []
    calls = [
        {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
        for call in message.get("tool_calls", ())
    ]
    nothing = [{"type": "text", "text": "(nothing)"}]  # Anthropic refuses a message without content
    return {"role": "assistant", "content": message.get("blocks") or [*said, *calls] or nothing}


@cache
def openai_client() -> Any:
    from openai import AsyncOpenAI  # pyright: ignore[reportMissingImports]  # only where it is installed

    return AsyncOpenAI()


def from_openai(messages: list[Any]) -> Any:
    return openai_client().chat.completions.create(
        model=os.environ.get("CHAT_MODEL", "gpt-4o-mini"),
        messages=[as_openai(message) for message in messages],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": SEND_EMAIL["name"],
                    "description": SEND_EMAIL["description"],
                    "parameters": SEND_EMAIL["schema"],
                },
            }
        ],
        stream=True,
    )


def as_openai(message: Any) -> dict[str, Any]:
    """Return a message in OpenAI's form."""
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["tool_call_id"], "content": message["content"]}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"])},
        }
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": message["content"], **({"tool_calls": calls} if calls else {})}


SCRIPT = {
    "superstep": """A graph runs in supersteps. In each, every node that has something to do runs, all of them at \
once, and none sees what another is just writing. When all are done their updates are folded into the state in a fixed \
order, and stored in one transaction. Then the next superstep begins.

So there is always one true state, the last one that was stored: whoever pulls the plug loses the superstep that was \
under way, and nothing else.""",
    "reload": """Try it now: reload this page while I am still talking. The run that makes this answer does not \
belong to your connection, it goes on without you. When you are back, the page asks for the conversation as it is \
stored, and for all that was said since. So you find the words that you have read, and those that you have missed, and \
then the rest as I say it. Each of them once.

It also works in a second tab, and in another browser. And when the service itself is stopped in the midst of a \
sentence, it takes the question up again as soon as it is back.""",
    "hello": "Hello! Ask me what a superstep is, or what happens on a reload; or have me send an email to "
    "ada@example.org, which I never do unasked.",
}


def script(messages: list[Any]) -> tuple[str, dict[str, str] | None]:
    """Return the script's next text, and the email that the script wants to send."""
    last = messages[-1]
    if last["role"] == "tool":
        if last["content"].startswith("Sent"):
            return "Done, it is on its way.", None
        return "All right, I have not sent it.", None
    asked: str = last["content"]
    address = re.search(r"[\w.+-]+@[\w-]+(\.[\w-]+)+", asked)
    if address is not None:
        body = "Hello,\nall is well: it is stored, superstep by superstep."
        email = {"to": address[0], "subject": "News of your graph", "body": body}
        return "I have written this email. It goes out when you say so.", email
    for word, text in SCRIPT.items():
        if word in asked.lower():
            return text, None
    return f"You said: {asked}\n\nI am a script, and know little more than what a superstep and a reload is.", None


async def from_the_script(messages: list[Any]) -> AsyncIterator[dict[str, Any]]:
    """Stream the script's next message, in the form of OpenAI's SDK."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {"model": "script", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}

    text, email = script(messages)
    for token in re.findall(r"\S+\s*", text):
        yield chunk({"content": token})
        await anyio.sleep(PAUSE)
    if email is not None:
        function = {"name": SEND_EMAIL["name"], "arguments": json.dumps(email)}
        yield chunk({"tool_calls": [{"index": 0, "id": f"call-{len(messages)}", "function": function}]})
    yield chunk({}, "stop" if email is None else "tool_calls")
