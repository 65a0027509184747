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
from checkpoint_savers.codec.writing import SCALARS, is_plain
from checkpoint_savers.sharing import parts_of

from ..._core.program import Node, Program
from ...types import RunnableConfig

SIZE: Final = 12
"""Bytes of a hash. It distinguishes the calls of one node, and is no protection against arguments made to collide."""

_CONFIG_KEYS: Final = RunnableConfig.__annotations__.keys()

_SORTED: Final = msgspec.msgpack.Encoder(order="deterministic")

FORM: Final = b"\x01"
"""The first byte of a digest: the form of what is hashed. Digests of different forms are not compared. Change it with
the canonical form of the codec: else an open superstep that an earlier release recorded could not be resumed."""

NAMES_THE_RUN: Final = "_names_the_run"
"""The attribute of classes whose objects name the run: as arguments they count by their class alone."""

RUNS_GRAPH: Final = "__runs_graph__"
"""The attribute of functions that run a graph on their node's input, which is the same for each attempt."""

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


NOTHING_ASKED = AnsweredQuestions({}, lambda one, other: True)
"""Of a call that brings no answers, in a superstep that has none."""


class Digests:
    """What values are recognised by when a node runs again: digests of calls, and bytes of what a node gives.

    Args:
        codec: the graph's. Which types it encodes decides what a digest covers, so it must not learn types from other
            calls, which may come in any order: each task's own annotations are added for its own calls only.
        fleeting: state keys whose values another attempt does not get: see `fleeting_keys`.
    """

    def __init__(self, codec: Codec, fleeting: frozenset[str] = frozenset()) -> None:
        self._codec = codec
        self._codecs: dict[int, tuple[Node, Codec]] = {}  # by the id of the node, which lives as long as the entry
        self._fleeting = fleeting

    def of_call(self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the digest of a task's arguments.

        Args:
            node: the task's.
            hints: the annotations of the task's function.
        """
        codec = self._codec_of(node, hints)
        args = tuple([self._lasting(value) for value in args])
        kwargs = {name: self._lasting(value) for name, value in kwargs.items()}
        return _digest([*args, kwargs], (args, kwargs), codec)

    def of_input(self, given: Any) -> bytes:
        """Return the digest of the input of a graph that a node runs."""
        given = self._lasting(given)
        return _digest([given], given, self._codec)

    def fingerprint(self, values: Sequence[Any]) -> bytes:
        """Return bytes that distinguish what a node asks or runs in concurrent tasks of its own, in every process."""
        return self._codec.digestible([self._lasting(value) for value in values], channel="what a node gives")

    def fingerprint_of_call(
        self, node: Node, hints: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes:
        """Return the same for a call of a task; `node` and `hints` as in `of_call`."""
        args = tuple([self._lasting(value) for value in args])
        kwargs = {name: self._lasting(value) for name, value in kwargs.items()}
        return self._codec_of(node, hints).digestible([node.name, args, kwargs], channel="a call's arguments")

    def _codec_of(self, node: Node, hints: Sequence[Any]) -> Codec:
        known = self._codecs.get(id(node))
        if known is None:
            known = self._codecs[id(node)] = node, self._codec.with_annotations(*hints)
        return known[1]

    def _lasting(self, value: Any) -> Any:
        """Return what counts of a value: a config and what else names the run count by their types alone, and a state
        without what another attempt does not get of it."""
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
    """Return the state keys whose values another attempt at a superstep does not get: of managed values, which count
    the supersteps of one run, and of untracked channels, which are not stored."""
    managed = [key for node in program.nodes.values() for key, _ in node.managed]
    return program.untracked.union(managed)


def _digest(plain: list[Any], value: Any, codec: Codec) -> bytes:
    """Return the digest of a value.

    Args:
        plain: the value as a list, which may be hashed more cheaply.
    """
    encoded = _encoded_if_plain(plain)
    if encoded is None:  # no plain list is encoded as bytes that start with zero
        encoded = b"\0" + codec.digestible(value, channel="a call's arguments")
    return FORM + sha256(encoded).digest()[:SIZE]


def _is_config(value: Any) -> bool:
    """Return True for a config, which a node may pass on to its tasks: it names the run, and each resume is another."""
    return "configurable" in value and value.keys() <= _CONFIG_KEYS


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
