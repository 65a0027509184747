"""`PIIMiddleware`: block, remove or mask personal data in messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from ...adapters.conversation import content_of, role_of
from ...errors import GraphValidationError, PregelError
from ...runtime import Runtime
from ..conversation import last_answer, messages_of, with_fields
from .base import AgentMiddleware
from .detectors import PIIMatch, detector_of

__all__ = ["PIIDetectionError", "PIIMiddleware"]

RedactionStrategy: TypeAlias = Literal["block", "redact", "mask", "hash"]

_STRATEGIES: Final = ("block", "redact", "mask", "hash")

_SHOWN: Final = 4
"""Characters at the end of a value that a mask shows."""


class PIIDetectionError(PregelError, ValueError):
    """A message has data that `PIIMiddleware(strategy="block")` does not let through.

    The text of the error does not have the data. The message is in the thread: remove it by an update of the state
    with `RemoveMessage(id)` before the thread can continue.

    Attributes:
        pii_type: the type of data.
        matches: the places in the text, with the data.
        message_id: the id of the message.
    """

    def __init__(self, pii_type: str, matches: Sequence[PIIMatch], message_id: str | None = None) -> None:
        self.pii_type = pii_type
        self.matches = list(matches)
        self.message_id = message_id
        super().__init__(
            f"a message has data of the type {pii_type!r} in {len(matches)} places. The message {message_id!r} is in "
            "the thread: remove it with RemoveMessage(id) in an update of the state to continue"
        )


class PIIMiddleware(AgentMiddleware):
    """Find personal data in messages, and block, remove or mask it. An agent may have one for each type of data.

    All texts of a message are searched, those in content blocks as well; arguments of tool calls are not, because the
    tools need them. Messages are replaced in the state, so the model and later checkpoints do not have the data; the
    checkpoint of the input has it, and tokens of an answer are on the `messages` stream before the answer is searched.

    Args:
        pii_type: "email", "credit_card", "ip", "mac_address" or "url"; or a name of your own, with a detector.
        strategy: "block" raises `PIIDetectionError`; "redact" writes `[REDACTED_EMAIL]`; "mask" leaves the end of the
            data; "hash" writes `<email_hash:...>`, the same for the same data, so that
            data that can be guessed can be found by its hash.
        detector: a regular expression, or a function of a text that returns dicts with `start` and `end`.
        apply_to_input: True to search messages of the user, before each call of the model.
        apply_to_output: True to search the model's answers.
        apply_to_tool_results: True to search tool messages, before each call of the model.

    Raises:
        GraphValidationError: the type has no detector, the detector is no such thing, or the strategy is unknown.
    """

    def __init__(
        self,
        pii_type: str,
        *,
        strategy: RedactionStrategy = "redact",
        detector: Any = None,
        apply_to_input: bool = True,
        apply_to_output: bool = False,
        apply_to_tool_results: bool = False,
    ) -> None:
        if strategy not in _STRATEGIES:
            raise GraphValidationError(f"strategy is one of {', '.join(map(repr, _STRATEGIES))}, not {strategy!r}")
        self.pii_type = pii_type
        self.strategy = strategy
        self.detector = detector_of(pii_type, detector)
        self.apply_to_input = apply_to_input
        self.apply_to_output = apply_to_output
        self.apply_to_tool_results = apply_to_tool_results
        searched = (("user", apply_to_input), ("tool", apply_to_tool_results))
        self._roles = tuple([role for role, applies in searched if applies])
        # A detector may match within what has replaced data. Replacing that again would never come to an end.
        name = re.escape(pii_type)
        self._replaced = re.compile(
            {
                "redact": rf"\[REDACTED_{re.escape(pii_type.upper())}\]",
                "hash": rf"<{name}_hash:[0-9a-f]{{8}}>",
                "mask": rf"\*{{4}}.{{0,{_SHOWN}}}|\[MASKED_URL\]",
                "block": r"(?!)",
            }[strategy]
        )

    @property
    def name(self) -> str:
        """The name in nodes, with the type of data in it."""
        return f"{type(self).__name__}[{self.pii_type}]"

    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Search the messages of the user and of tools.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The messages that had data; None if there is none.

        Raises:
            PIIDetectionError: there is some, and the strategy is "block".
        """
        # All of them, and not the newest: an input may bring several messages, or a whole conversation.
        return self._update([message for message in messages_of(state, "messages") if role_of(message) in self._roles])

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> Any:
        """Search the model's answer.

        Args:
            state: the state.
            runtime: the runtime of the node.

        Returns:
            The answer, if it had data; else None.

        Raises:
            PIIDetectionError: there is some, and the strategy is "block".
        """
        answer = last_answer(messages_of(state, "messages")) if self.apply_to_output else None
        return self._update([] if answer is None else [answer])

    def _update(self, messages: Sequence[Any]) -> Any:
        changed: list[Any] = []
        for message in messages:
            content = content_of(message)
            made = self._searched(content, message)
            if made != content:
                changed.append(with_fields(message, content=made))
        return {"messages": changed} if changed else None

    def _searched(self, content: Any, message: Any) -> Any:
        if isinstance(content, str):
            return self._replace(content, message)
        if isinstance(content, list):
            return [self._searched(block, message) for block in content]
        if isinstance(content, dict):  # a block: its text, or the blocks of a result
            searched = {key: self._searched(content[key], message) for key in ("text", "content") if key in content}
            return {**content, **searched}
        return content

    def _replace(self, text: str, message: Any) -> str:
        matches = self.detector(text)
        if not matches:
            return text
        done = [match.span() for match in self._replaced.finditer(text)]

        def is_done(match: PIIMatch) -> bool:
            return any(start <= match["start"] and match["end"] <= end for start, end in done)

        left = [match for match in matches if not is_done(match)]
        if left and self.strategy == "block":
            id = message.get("id") if isinstance(message, dict) else getattr(message, "id", None)
            raise PIIDetectionError(self.pii_type, left, id)
        for match in reversed(left):
            text = text[: match["start"]] + self._replacement(match) + text[match["end"] :]
        return text

    def _replacement(self, match: PIIMatch) -> str:
        if self.strategy == "redact":
            return f"[REDACTED_{self.pii_type.upper()}]"
        if self.strategy == "hash":
            return f"<{self.pii_type}_hash:{hashlib.sha256(match['value'].encode()).hexdigest()[:8]}>"
        return _masked(self.pii_type, match["value"])


def _masked(pii_type: str, value: str) -> str:
    match pii_type:
        case "email":
            name, _, domain = value.rpartition("@")
            return f"{name}@****.{domain.rpartition('.')[2]}" if name else "****"
        case "credit_card":
            separator = next((character for character in value if not character.isdigit()), "")
            return separator.join(["****"] * 3 + ["".join(filter(str.isdigit, value))[-_SHOWN:]])
        case "ip":
            return "****" if ":" in value else f"*.*.*.{value.rpartition('.')[2]}"
        case "mac_address":
            separator = next((character for character in value if character in ":-"), ":")
            return separator.join(["**"] * 5 + [value[-2:]])
        case "url":
            return "[MASKED_URL]"
        case _:
            return f"****{value[-_SHOWN:]}" if len(value) > _SHOWN else "****"
