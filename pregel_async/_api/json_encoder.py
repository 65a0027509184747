"""Encode values as JSON, whatever a state holds.

msgspec encodes JSON's own types, dates, UUIDs, decimals, sets, dataclasses and Structs. pydantic's models and
langchain's messages are encoded as their `model_dump` returns them, and exceptions as the name of their class. Any
other value becomes `{"__unserializable__": "Class"}`: a reader sees that there is a value, and the stream does not fail
because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Levels of nested containers that `JsonEncoder` converts by itself. Deeper ones become a marker, as do containers that
contain themselves."""


class JsonEncoder:
    """Encodes values as JSON.

    Args:
        encode: called first with each value that is not JSON by nature; it returns something simpler, or raises
            `TypeError`.
    """

    def __init__(self, encode: Callable[[Any], Any] | None = None) -> None:
        self._user_hook = encode
        self._encoder = msgspec.json.Encoder(enc_hook=self._encode_hook)

    def __call__(self, value: Any) -> bytes:
        try:
            return self._encoder.encode(value)
        except Exception:
            # msgspec refuses the whole value for a key that is a tuple, an unpaired surrogate in a text, or a container
            # that contains itself. The slow way replaces only what cannot be encoded.
            return self._encoder.encode(self._to_plain(value, MAX_DEPTH))

    def _encode_hook(self, value: Any) -> Any:
        """Return something simpler for a value that msgspec does not encode."""
        if self._user_hook is not None:
            try:
                return self._user_hook(value)
            except TypeError:
                pass  # the user's hook does not know the value either
        if isinstance(value, BaseException):
            return type(value).__name__
        dump = getattr(value, "model_dump", None)
        if callable(dump) and not isinstance(value, type):
            return dump()
        return unserializable(value)

    def _to_plain(self, value: Any, depth: int) -> Any:
        """Return a value as JSON's own types, with a marker in the place of each value that has no such form."""
        if isinstance(value, str):
            return value.encode("utf-8", "replace").decode()
        if value is None or isinstance(value, (bool, float, int)):
            return value
        if depth == 0:
            return unserializable(value)
        if isinstance(value, Mapping):
            return {self._to_key(key): self._to_plain(each, depth - 1) for key, each in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._to_plain(each, depth - 1) for each in value]
        try:
            return self._to_plain(msgspec.to_builtins(value, enc_hook=self._encode_hook, str_keys=True), depth - 1)
        except Exception:  # a user's class may raise anything when its attributes are read
            return unserializable(value)

    def _to_key(self, key: Any) -> str:
        """Return a dict's key as text."""
        return self._to_plain(key, 0) if isinstance(key, str) else str(self._to_plain(key, 1))


def unserializable(value: Any) -> dict[str, str]:
    """Return the marker that stands for a value without a JSON form.

    Args:
        value: the value.

    Returns:
        A dict with the name of the value's class, and nothing of the value itself.
    """
    return {"__unserializable__": type(value).__qualname__}
