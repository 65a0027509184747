"""OpenAI's chat completions, and what other servers stream in their form.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from typing import Any, Final

from .draft import openai_usage
from .errors import InvalidSourceError, StreamFailedError
from .fields import get_field, get_text, to_builtins
from .reader import DraftReader

_REASONING: Final = ("reasoning_content", "reasoning")
"""Where other servers (DeepSeek, vLLM, OpenRouter) put what a model thinks; OpenAI itself streams none of it here."""


class ChatCompletionReader(DraftReader):
    """Chunks of `client.chat.completions.create(stream=True)`, or the events of `client.chat.completions.stream()`.

    That a choice has a `finish_reason` is not insisted upon: some servers end without.
    """

    provider: str | None = "openai"

    def consume(self, item: Any) -> None:
        error = get_field(item, "error")
        if error:  # of servers in OpenAI's form; what OpenAI's own send is raised by the SDK
            code, said = get_field(error, "code"), get_text(error, "message") or str(error)
            raise StreamFailedError("openai", None if code is None else str(code), said)
        chunk = _chunk(item)
        if chunk is None:
            return  # an event that the helper derives from chunks that it has shown before
        # The first chunk of Azure's servers is about the prompt, and has neither an id nor a model.
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
            # The last one counts: some servers tell with each chunk what has been used so far.
            self.draft.usage = openai_usage(to_builtins(usage), "prompt_tokens", "completion_tokens")

    def _call(self, piece: Any) -> None:
        function = get_field(piece, "function")
        id = get_text(piece, "id")
        index = get_field(piece, "index")
        if not isinstance(index, int):
            index = self.draft.last_index + (1 if id else 0)
        elif id and self.draft.has_call(index) and self.draft.call_id(index) not in ("", id):
            # Servers that send whole calls number all of them 0.
            index = self.draft.last_index + 1
        self.draft.add_call_piece(
            max(index, 0), id=id, name=get_text(function, "name"), args=get_text(function, "arguments")
        )


def _chunk(item: Any) -> Any:
    """The chunk that an item is or has; None when it has none."""
    return item if get_field(item, "choices") is not None else get_field(item, "chunk")
