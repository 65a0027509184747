"""Errors between a provider's stream and a message."""

from __future__ import annotations

from ..errors import PregelError

__all__ = ["InvalidSourceError", "StreamFailedError"]


class InvalidSourceError(PregelError, TypeError):
    """The source is not a stream of one message.

    If the source's own type shows it, nothing has been read. An iterator looks the same whatever it yields: there the
    first item shows it, and the source has been closed after that item.

    Attributes:
        given: the name of the class of the source, or of the item that came out of the source.
    """

    def __init__(self, given: str, why: str) -> None:
        self.given = given
        super().__init__(f"{given} {why}")


class StreamFailedError(PregelError, RuntimeError):
    """The provider ended the message with an error, or the stream ended before the message was complete.

    The chunks that had arrived were streamed. They are not returned as a message, because the next node could not
    distinguish half a message from a whole one.

    Attributes:
        provider: "openai" or "anthropic".
        code: the provider's own code of the error; None if it sent none.
    """

    def __init__(self, provider: str, code: str | None, said: str) -> None:
        self.provider = provider
        self.code = code
        super().__init__(f"the message of {provider} failed{f' ({code})' if code else ''}: {said}")
