"""Values as JSON, whatever a state holds.

JSON's own types, dates, UUIDs, decimals, sets, dataclasses, msgspec.Structs are msgspec's work; pydantic's models and
langchain's messages are written as they dump themselves. An exception is its class's name. What has no such form is
`{"__unserializable__": "Class"}`: a reader is told that there is something, and a stream does not fail for being
watched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Levels that a value is looked into that msgspec refuses."""


class JsonEncoder:
    """Writes values as JSON.

    Args:
        encode: asked first for what is not JSON by nature: gives something simpler, or raises `TypeError`.
    """

    def __init__(self, encode: Callable[[Any], Any] | None = None) -> None:
        self._encode = encode
        self._encoder = msgspec.json.Encoder(enc_hook=self._encode_hook)

    def __call__(self, value: Any) -> bytes:
        try:
            return self._encoder.encode(value)
        except Exception:
            # A key that is a tuple, half of a surrogate, an object that holds itself.
            return self._encoder.encode(self._to_plain(value, MAX_DEPTH))

    def _encode_hook(self, value: Any) -> Any:
        if self._encode is not None:
            try:
                return self._encode(value)
            except TypeError:
                pass  # it does not know it either
        if isinstance(value, BaseException):
            return type(value).__name__
        dump = getattr(value, "model_dump", None)
        if callable(dump) and not isinstance(value, type):
            return dump()
        return unserializable(value)

    def _to_plain(self, value: Any, depth: int) -> Any:
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
        except Exception:  # whatever a class of the user's does when it is looked into
            return unserializable(value)

    def _to_key(self, key: Any) -> str:
        return self._to_plain(key, 0) if isinstance(key, str) else str(self._to_plain(key, 1))


def unserializable(value: Any) -> dict[str, str]:
    return {"__unserializable__": type(value).__qualname__}
