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

DEEP = 64
"""Levels that a value is looked into that msgspec refuses."""


class Writer:
    """Writes values as JSON.

    Args:
        encode: asked first for what is not JSON by nature: gives something simpler, or raises `TypeError`.
    """

    def __init__(self, encode: Callable[[Any], Any] | None = None) -> None:
        self._own = encode
        self._encoder = msgspec.json.Encoder(enc_hook=self._simpler)

    def __call__(self, value: Any) -> bytes:
        try:
            return self._encoder.encode(value)
        except Exception:
            # A key that is a tuple, half of a surrogate, an object that holds itself.
            return self._encoder.encode(self._plain(value, DEEP))

    def _simpler(self, value: Any) -> Any:
        if self._own is not None:
            try:
                return self._own(value)
            except TypeError:
                pass  # it does not know it either
        if isinstance(value, BaseException):
            return type(value).__name__
        dump = getattr(value, "model_dump", None)
        if callable(dump) and not isinstance(value, type):
            return dump()
        return unserializable(value)

    def _plain(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return value.encode("utf-8", "replace").decode()
        if value is None or isinstance(value, (bool, float, int)):
            return value
        if depth == 0:
            return unserializable(value)
        if isinstance(value, Mapping):
            return {self._key(key): self._plain(each, depth - 1) for key, each in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._plain(each, depth - 1) for each in value]
        try:
            return self._plain(msgspec.to_builtins(value, enc_hook=self._simpler, str_keys=True), depth - 1)
        except Exception:  # whatever a class of the user's does when it is looked into
            return unserializable(value)

    def _key(self, key: Any) -> str:
        return self._plain(key, 0) if isinstance(key, str) else str(self._plain(key, 1))


def unserializable(value: Any) -> dict[str, str]:
    return {"__unserializable__": type(value).__qualname__}
