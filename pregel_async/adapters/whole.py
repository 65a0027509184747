"""Read a provider's whole answer, which was not streamed, into the same message that its stream would give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from .anthropic_messages import AnthropicReader
from .errors import InvalidSourceError
from .fields import get_field, to_builtins
from .openai_chat import ChatCompletionReader
from .openai_responses import ResponsesReader
from .reader import DraftReader
from .shapes import Message
from .usage import read_usage, report_usage

__all__ = ["is_whole_answer", "read_message"]


def read_message(answer: Any, *, id: str = "") -> Message:
    """Convert the answer of a provider's SDK to a message.

    Args:
        answer: a chat completion or a response of OpenAI, or a message of Anthropic: the SDK's object, or a dict.
        id: the message's id, if the provider gives none.

    Returns:
        The message.

    Raises:
        InvalidSourceError: it is none of these.
        StreamFailedError: the provider reports a failure.
    """
    given = to_builtins(answer)
    kind = _kind_of(given)
    if kind is None:
        raise InvalidSourceError(
            type(answer).__name__,
            "is no answer of a model: a chat completion or a response of OpenAI, or a message of Anthropic is read",
        )
    reader: DraftReader = kind(None, None, lambda: id)
    for event in _events_of(given):
        for _ in reader.read(event):
            pass
    for _ in reader.end():
        pass
    message = cast("Message", reader.message())
    report_usage(read_usage(reader.usage()), reader.model, reader.provider, message.get("id"))
    return message


def is_whole_answer(answer: Any) -> bool:
    """Return True if `read_message` can convert a value."""
    return _kind_of(answer) is not None


def _kind_of(answer: Any) -> type[DraftReader] | None:
    if get_field(answer, "object") == "response":
        return ResponsesReader
    if get_field(answer, "type") == "message" and get_field(answer, "role") == "assistant":
        return AnthropicReader
    choices = get_field(answer, "choices")
    if isinstance(choices, list) and choices and get_field(choices[0], "message") is not None:
        return ChatCompletionReader
    return None


def _events_of(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events with which a stream would give the same answer."""
    if "choices" in answer:
        choices = [{**choice, "delta": choice["message"]} for choice in answer["choices"]]
        yield {**answer, "choices": choices}
    elif answer.get("object") == "response":
        yield {"type": "response.created", "response": answer}
        if answer.get("status") == "failed":
            yield {"type": "response.failed", "response": answer}
        for index, item in enumerate(answer.get("output", ())):
            for part in item.get("content", ()) if item.get("type") == "message" else ():
                kind = "refusal" if part.get("type") == "refusal" else "output_text"
                text = part.get("refusal", part.get("text", ""))
                yield {"type": f"response.{kind}.delta", "delta": text, "output_index": index}
            for place, part in enumerate(item.get("summary", ()) if item.get("type") == "reasoning" else ()):
                event = {"type": "response.reasoning_summary_text.delta", "delta": part.get("text", "")}
                yield {**event, "output_index": index, "summary_index": place}
            yield {"type": "response.output_item.done", "item": item, "output_index": index}
        yield {"type": "response.completed", "response": answer}
    else:
        yield {"type": "message_start", "message": answer}
        for index, block in enumerate(answer.get("content", ())):
            yield {"type": "content_block_start", "index": index, "content_block": dict(block)}
        yield {"type": "message_delta", "delta": {"stop_reason": answer.get("stop_reason")}}
        yield {"type": "message_stop"}
