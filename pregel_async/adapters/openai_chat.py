"""Read OpenAI's chat completions, and the streams of other servers that use their format.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from typing import Any, Final

from .draft import openai_usage
from .errors import InvalidSourceError, StreamFailedError
from .fields import get_field, get_text, to_builtins
from .reader import DraftReader

_REASONING: Final = ("reasoning_content", "reasoning")
"""Where other servers (DeepSeek, vLLM, OpenRouter) put a model's reasoning. OpenAI itself streams no reasoning here."""


class ChatCompletionReader(DraftReader):
    """Read chunks of `client.chat.completions.create(stream=True)`, or events of `client.chat.completions.stream()`.

    A missing `finish_reason` is not an error: some servers end their streams without one.
    """

    provider: str | None = "openai"

    def consume(self, item: Any) -> None:
        """Add one chunk to the draft.

        Args:
            item: a chunk, or an event of the SDK's helper. Events without a chunk are ignored.

        Raises:
            InvalidSourceError: the chunk belongs to a second choice (`n > 1`).
            StreamFailedError: the chunk holds an error of the provider.
        """
        error = get_field(item, "error")
        if error:  # sent by compatible servers; the SDK itself raises OpenAI's own errors
            code, said = get_field(error, "code"), get_text(error, "message") or str(error)
            raise StreamFailedError("openai", None if code is None else str(code), said)
        chunk = _chunk(item)
        if chunk is None:
            return  # an event that the SDK's helper derives from chunks that it has already passed on
        # Azure's first chunk is about the prompt, with an empty id and model: later chunks must be able to set them.
        self.draft.set_provider_id(get_text(chunk, "id"))
        self.model = self.model or get_text(chunk, "model") or None
        for choice in get_field(chunk, "choices") or ():
            if get_field(choice, "index"):
                raise InvalidSourceError(
                    type(chunk).__name__,
                    f"is of choice {get_field(choice, 'index')}, and a stream of several choices is not one message: "
                    "ask with n=1, several times if need be",
                )
            self.draft.finish_reason = get_field(choice, "finish_reason") or self.draft.finish_reason
            delta = get_field(choice, "delta")
            self.draft.add_text(get_text(delta, "content"))
            self.draft.add_text(get_text(delta, "refusal"), "refusal")
            self.draft.add_text(next(filter(None, (get_text(delta, name) for name in _REASONING)), ""), "reasoning")
            for call in get_field(delta, "tool_calls") or ():
                self._call(call)
        usage = get_field(chunk, "usage")
        if usage is not None:
            # Replace, do not add: some servers send the running total with each chunk.
            self.draft.usage = openai_usage(to_builtins(usage), "prompt_tokens", "completion_tokens")

    def _call(self, piece: Any) -> None:
        function = get_field(piece, "function")
        id = get_text(piece, "id")
        index = get_field(piece, "index")
        if not isinstance(index, int):
            index = self.draft.last_index + (1 if id else 0)
        elif id and self.draft.has_call(index) and self.draft.call_id(index) not in ("", id):
            # Servers that send whole calls give all of them index 0: another id is another call.
            index = self.draft.last_index + 1
        self.draft.add_call_piece(
            max(index, 0), id=id, name=get_text(function, "name"), args=get_text(function, "arguments")
        )


def _chunk(item: Any) -> Any:
    """Return the item itself if it is a chunk, or else the chunk in the event, or None."""
    return item if get_field(item, "choices") is not None else get_field(item, "chunk")
