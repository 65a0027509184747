"""What goes wrong between a provider's stream and a message."""

from __future__ import annotations

from ..errors import PregelError

__all__ = ["InvalidSourceError", "StreamFailedError"]


class InvalidSourceError(PregelError, TypeError):
    """What was given is no stream of one message.

    Where that can be told by the source itself, nothing of it was read. Where only its first item tells (an iterator of
    anything looks like any other), it was closed after that.

    Attributes:
        given: the name of the class that was given, or that came out of the source.
    """

    def __init__(self, given: str, why: str) -> None:
        self.given = given
        super().__init__(f"{given} {why}")


class StreamFailedError(PregelError, RuntimeError):
    """The provider ended the message with an error, or the stream stopped before the message was whole.

    What had arrived was streamed, and is not returned: half a message looks like a whole one to the next node.

    Attributes:
        provider: "openai" or "anthropic".
        code: the provider's own word for it; None when it gave none.
    """

    def __init__(self, provider: str, code: str | None, said: str) -> None:
        self.provider = provider
        self.code = code
        super().__init__(f"the message of {provider} failed{f' ({code})' if code else ''}: {said}")
