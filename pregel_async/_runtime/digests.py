"""What is recorded, compared with what a node asks for when it runs again.

A result is recorded under the place of its call, and an answer under the place of its question. A digest of the call's
arguments, and the question's value, say whether the call or question in that place is still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256  # processors have instructions for it: half the time of blake2b
from typing import Any, Final

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.codec.writing import is_plain

from .._core.program import Node
from ..errors import UnstorableValueError
from ..types import RunnableConfig

SIZE: Final = 12
"""Bytes of a hash. It distinguishes the calls of one node, and is no protection against arguments made to collide."""

_CONFIG_KEYS: Final = RunnableConfig.__annotations__.keys()

_SORTED: Final = msgspec.msgpack.Encoder(order="deterministic")

FORM: Final = b"\x01"
"""The first byte of a digest: the form of what is hashed. Digests of different forms are not compared. Change it with
the canonical form of the codec: else an open superstep that an earlier release recorded could not be resumed."""

UNSTORED: Final = Codec()
"""The codec of runs that store nothing."""


def is_changed(recorded: bytes, asked: bytes) -> bool:
    """Return True if two digests are of different arguments. One that is empty, or of another form, says nothing."""
    return recorded != asked and recorded[:1] == asked[:1] != b""


class AnsweredQuestions(msgspec.Struct, frozen=True):
    """The questions that were answered in the open superstep of the root graph.

    Attributes:
        values: by question id.
        is_same: compares two of them.
    """

    values: Mapping[str, Any]
    is_same: Callable[[Any, Any], bool]

    def is_changed(self, id: str, value: Any) -> bool:
        """Return True if this question was answered when it had another value."""
        return id in self.values and not self.is_same(self.values[id], value)


class CallDigests:
    """Digests of calls, by one graph's codec.

    Args:
        codec: the graph's. Which types it encodes decides what a digest covers, so it must not learn types from other
            calls, which may come in any order: each task's own annotations are added for its own calls only.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._codecs: dict[int, tuple[Node, Codec]] = {}  # by the id of the node, which lives as long as the entry

    def of(self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the digest of a task's arguments.

        Args:
            node: the task's.
            hints: the annotations of the task's function.
        """
        known = self._codecs.get(id(node))
        if known is None:
            known = self._codecs[id(node)] = node, self._codec.with_annotations(*hints)
        codec = known[1]
        if any(map(_is_config, args)) or any(map(_is_config, kwargs.values())):
            args = tuple(["config" if _is_config(value) else value for value in args])
            kwargs = {name: "config" if _is_config(value) else value for name, value in kwargs.items()}
        plain = _encoded_if_plain([*args, kwargs])
        if plain is not None:
            return FORM + sha256(plain).digest()[:SIZE]
        hashed = sha256(b"\0")  # no plain list is encoded as bytes that start with this
        try:
            hashed.update(codec.canonical((args, kwargs), channel="a call's arguments"))
        except UnstorableValueError:
            for name, value in (*enumerate(args), *sorted(kwargs.items())):
                hashed.update(b"%s\0" % str(name).encode("utf-8", "surrogatepass"))
                hashed.update(_encoded_or_type(codec, value))
        return FORM + hashed.digest()[:SIZE]


def _is_config(value: Any) -> bool:
    """Return True for a config, which a node may pass on to its tasks: it names the run, and each resume is another."""
    return type(value) is dict and "configurable" in value and value.keys() <= _CONFIG_KEYS


def _encoded_if_plain(arguments: list[Any]) -> bytes | None:
    """Return the bytes of lists, dicts and scalars, with sorted keys; None if there is something else in the arguments.

    It takes an eighth of the time of the canonical form.
    """
    if not is_plain(arguments):
        return None
    try:
        return _SORTED.encode(arguments)
    except (TypeError, ValueError, OverflowError):  # keys that are not strings; integers that MessagePack does not have
        return None


def _encoded_or_type(codec: Codec, value: Any) -> bytes:
    try:
        return codec.canonical(value, channel="a call's argument")
    except UnstorableValueError:
        return f"{type(value).__module__}.{type(value).__qualname__}".encode("utf-8", "surrogatepass")
