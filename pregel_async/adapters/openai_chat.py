"""OpenAI's chat completions, and what other servers stream in their form.

Source: https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from typing import Any, Final

from .draft import openai_usage
from .errors import InvalidSourceError, StreamFailedError
from .fields import of, plain, text_of
from .reader import Drafting

_REASONING: Final = ("reasoning_content", "reasoning")
"""Where other servers (DeepSeek, vLLM, OpenRouter) put what a model thinks; OpenAI itself streams none of it here."""


class ChatCompletion(Drafting):
    """Chunks of `client.chat.completions.create(stream=True)`, or the events of `client.chat.completions.stream()`.

    That a choice has a `finish_reason` is not insisted upon: some servers end without.
    """

    provider: str | None = "openai"

    def take_in(self, item: Any) -> None:
        error = of(item, "error")
        if error:  # of servers in OpenAI's form; what OpenAI's own send is raised by the SDK
            code, said = of(error, "code"), text_of(error, "message") or str(error)
            raise StreamFailedError("openai", None if code is None else str(code), said)
        chunk = _chunk(item)
        if chunk is None:
            return  # an event that the helper derives from chunks that it has shown before
        # The first chunk of Azure's servers is about the prompt, and has neither an id nor a model.
        self.draft.called(text_of(chunk, "id"))
        self.model = self.model or text_of(chunk, "model") or None
        for choice in of(chunk, "choices") or ():
            if of(choice, "index"):
                raise InvalidSourceError(
                    type(chunk).__name__,
                    f"is of choice {of(choice, 'index')}, and a stream of several choices is not one message: "
                    "ask with n=1, several times if need be",
                )
            self.draft.finish_reason = of(choice, "finish_reason") or self.draft.finish_reason
            delta = of(choice, "delta")
            self.draft.text(text_of(delta, "content"))
            self.draft.text(text_of(delta, "refusal"), "refusal")
            self.draft.text(next(filter(None, (text_of(delta, name) for name in _REASONING)), ""), "reasoning")
            for call in of(delta, "tool_calls") or ():
                self._call(call)
        usage = of(chunk, "usage")
        if usage is not None:
            # The last one counts: some servers tell with each chunk what has been used so far.
            self.draft.usage = openai_usage(plain(usage), "prompt_tokens", "completion_tokens")

    def _call(self, piece: Any) -> None:
        function = of(piece, "function")
        id = text_of(piece, "id")
        index = of(piece, "index")
        if not isinstance(index, int):
            index = self.draft.last_call + (1 if id else 0)
        elif id and self.draft.has_call(index) and self.draft.call_id(index) not in ("", id):
            # Servers that send whole calls number all of them 0.
            index = self.draft.last_call + 1
        self.draft.call(max(index, 0), id=id, name=text_of(function, "name"), args=text_of(function, "arguments"))


def _chunk(item: Any) -> Any:
    """The chunk that an item is or has; None when it has none."""
    return item if of(item, "choices") is not None else of(item, "chunk")
