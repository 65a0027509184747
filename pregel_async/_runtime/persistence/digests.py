"""Detect that a node which runs again makes other calls, or asks other questions, than those that are recorded.

A result is recorded under the position of its call, and an answer under the position of its question. The digest of the
call's arguments, or the question's value, shows whether the same call or question is in that position now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256  # processors have instructions for it: half the time of blake2b
from typing import Any, Final

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.codec.writing import SCALARS, is_plain
from checkpoint_savers.sharing import parts_of

from ..._core.program import Node, Program
from ...types import RunnableConfig

SIZE: Final = 12
"""The size of a hash in bytes. It distinguishes the calls of one node; it does not resist deliberate collisions."""

_CONFIG_KEYS: Final = RunnableConfig.__annotations__.keys()

_SORTED: Final = msgspec.msgpack.Encoder(order="deterministic")

FORM: Final = b"\x01"
"""The first byte of a digest: the version of the hashed form. Digests of different versions are never compared.

Change it with the codec's canonical form. Otherwise every call in an open superstep that an earlier release recorded
would look changed, and the superstep could not be resumed.
"""

NAMES_THE_RUN: Final = "_names_the_run"
"""The attribute of classes whose objects name the run. A digest contains only the class of such an argument."""

RUNS_GRAPH: Final = "__runs_graph__"
"""The attribute of functions that run a graph on their node's input, which is the same for each attempt."""

UNSTORED: Final = Codec()
"""The codec of runs that store nothing."""


def is_changed(recorded: bytes, asked: bytes) -> bool:
    """Return True if two digests show different arguments. False if one is empty or has another form."""
    return recorded != asked and recorded[:1] == asked[:1] != b""


class AnsweredQuestions(msgspec.Struct, frozen=True):
    """The answered questions of the root graph's open superstep.

    Attributes:
        values: the questions' values, by question id.
        is_same: compares two values.
    """

    values: Mapping[str, Any]
    is_same: Callable[[Any, Any], bool]

    def is_changed(self, id: str, value: Any) -> bool:
        """Return True if the question with this id was answered when it had another value."""
        return id in self.values and not self.is_same(self.values[id], value)


NOTHING_ASKED = AnsweredQuestions({}, lambda one, other: True)
"""The answered questions of a superstep without answers."""


class Digests:
    """Makes the digests of calls, and the fingerprints of values, by which a repeated attempt is recognised.

    Args:
        codec: the graph's codec.
        fleeting: the state keys whose values another attempt does not get; see `fleeting_keys`.
    """

    def __init__(self, codec: Codec, fleeting: frozenset[str] = frozenset()) -> None:
        # The types that a codec knows decide what a digest covers. So this codec must not learn types from calls, which
        # come in any order: a task's own annotations are added for the task's own calls only (`_codec_of`).
        self._codec = codec
        self._codecs: dict[
            int, tuple[Node, Codec]
        ] = {}  # by `id(node)`; the value keeps the node alive, so that no other node gets its id
        self._fleeting = fleeting

    def of_call(self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the digest of a task's arguments.

        Args:
            node: the task's node.
            hints: the annotations of the task's function.
            args: the positional arguments.
            kwargs: the keyword arguments.
        """
        codec = self._codec_of(node, hints)
        args = tuple([self._lasting(value) for value in args])
        kwargs = {name: self._lasting(value) for name, value in kwargs.items()}
        return _digest([*args, kwargs], (args, kwargs), codec)

    def of_input(self, value: Any) -> bytes:
        """Return the digest of a subgraph's input."""
        value = self._lasting(value)
        return _digest([value], value, self._codec)

    def fingerprint(self, values: Sequence[Any]) -> bytes:
        """Return bytes that identify what a node asks or runs in its own concurrent tasks, in every process alike."""
        return self._codec.digestible([self._lasting(value) for value in values], channel="what a node gives")

    def fingerprint_of_call(
        self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes:
        """Return the fingerprint of a call. The arguments are those of `of_call`."""
        args = tuple([self._lasting(value) for value in args])
        kwargs = {name: self._lasting(value) for name, value in kwargs.items()}
        return self._codec_of(node, hints).digestible([node.name, args, kwargs], channel="a call's arguments")

    def _codec_of(self, node: Node, hints: Sequence[Any]) -> Codec:
        known = self._codecs.get(id(node))
        if known is None:
            known = self._codecs[id(node)] = node, self._codec.with_annotations(*hints)
        return known[1]

    def _lasting(self, value: Any) -> Any:
        """Return the part of a value that is the same in another attempt.

        That is the type alone for a config and other objects that name the run; a state without its fleeting keys.
        """
        kind = type(value)
        if kind in SCALARS:
            return value
        if kind is dict:
            if _is_config(value):
                return "config"
            if self._fleeting and not self._fleeting.isdisjoint(value):
                return {key: item for key, item in value.items() if key not in self._fleeting}
        elif getattr(kind, NAMES_THE_RUN, False):
            return kind.__qualname__
        elif self._fleeting:
            parts = parts_of(value)
            if any(name in self._fleeting for name, _ in parts):
                return [kind.__qualname__, {name: part for name, part in parts if name not in self._fleeting}]
        return value


def fleeting_keys(program: Program) -> frozenset[str]:
    """Return the state keys whose values another attempt at a superstep does not get.

    These are managed values, which count the supersteps of one run, and untracked channels, which are not stored.
    """
    managed = [key for node in program.nodes.values() for key, _ in node.managed]
    return program.untracked.union(managed)


def _digest(plain: list[Any], value: Any, codec: Codec) -> bytes:
    """Return the digest of a value.

    Args:
        plain: the value as a list, which is hashed more cheaply if it holds plain values only.
        value: the value.
        codec: encodes values that are not plain.
    """
    encoded = _encoded_if_plain(plain)
    # The zero byte keeps the two encodings apart: no plain list is encoded as bytes that start with zero.
    if encoded is None:
        encoded = b"\0" + codec.digestible(value, channel="a call's arguments")
    return FORM + sha256(encoded).digest()[:SIZE]


def _is_config(value: Any) -> bool:
    """Return True for a config, which a node may pass to its tasks. It names the run, and a resume is another run."""
    return "configurable" in value and value.keys() <= _CONFIG_KEYS


def _encoded_if_plain(arguments: list[Any]) -> bytes | None:
    """Return the bytes of lists, dicts and scalars, with sorted keys; None if the arguments hold anything else.

    This takes an eighth of the time of the canonical form.
    """
    if not is_plain(arguments):
        return None
    try:
        return _SORTED.encode(arguments)
    except (TypeError, ValueError, OverflowError):  # keys that are not strings; integers too large for MessagePack
        return None
