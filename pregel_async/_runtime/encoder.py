"""What is stored of a superstep, as bytes: writes, questions, and the channels that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import UnstorableValueError
from checkpoint_savers.ledger import State

from .._core.board import Board
from .._core.program import Program, Write
from ..channels import MISSING
from ..types import Interrupt
from .restore import kind_of

Written = tuple[tuple[str, bytes], ...]
"""Channels, and the encoded values for them, in order."""


class Encoder:
    """Encodes what one graph writes. What goes to channels that are never stored is left out.

    Attributes:
        codec: knows the graph's types; another one when more of them are known.
    """

    def __init__(self, program: Program, codec: Codec) -> None:
        self.codec = codec
        self._program = program

    def writes(self, writes: Sequence[Write]) -> Written:
        """A task's writes. Raises `UnstorableValueError`."""
        encode = self.codec.encode
        return tuple([(name, encode(value, channel=name)) for name, value in self._tracked(writes)])

    def writes_if_storable(self, writes: Sequence[Write]) -> Written | None:
        """The same; None when they would be refused, so that the task runs again."""
        try:
            return self.writes(writes)
        except UnstorableValueError:
            return None

    def questions(self, asked: Sequence[Interrupt]) -> Written:
        """Questions by id. Raises `UnstorableValueError`."""
        return tuple([(each.id, self.codec.encode(each.value, channel="interrupt()")) for each in asked])

    def changed(self, board: Board, before: State) -> tuple[dict[str, bytes], dict[str, str], list[str]]:
        """The channels that a superstep has changed: the values that they hold, the kinds that are new, and those that
        hold nothing any more. Raises `UnstorableValueError`."""
        values: dict[str, bytes] = {}
        kinds: dict[str, str] = {}
        emptied: list[str] = []
        for name in board.changed:
            channel = board.channels[name]
            if not channel.tracked:
                continue
            stored = channel.checkpoint()
            if stored is not MISSING:
                values[name] = self.codec.encode(stored, channel=name)
                kind = kind_of(channel, stored)
                if before.kinds.get(name) != kind:
                    kinds[name] = kind
            elif name in before.values:
                emptied.append(name)
        return values, kinds, emptied

    def shown(self, board: Board, writes: Sequence[Write]) -> Iterator[tuple[str, bytes | None]]:
        """A task's update as history shows it: None where the channel's new value is the very same object."""
        for name, value in self._tracked(writes):
            if name in self._program.keys:
                same = board.values.get(name, MISSING) is value
                yield name, None if same else self.codec.encode(value, channel=name)

    def locate(self, board: Board) -> None:
        """Refuse an input by the key that the caller knows, where it is a mapping that one channel holds."""
        for name in board.changed:
            given = board.channels[name].checkpoint()
            if isinstance(given, dict):
                for key, value in given.items():
                    self.codec.encode(value, channel=str(key))

    def fingerprint(self, values: Sequence[Any]) -> bytes:
        """What tells values apart, in any process: as they would be stored, or else their types."""
        try:
            return self.codec.encode(list(values), channel="what a node gives")
        except UnstorableValueError:
            each = values if len(values) > 1 else ()
            return b"".join([self.fingerprint((value,)) for value in each]) or type(values[0]).__qualname__.encode()

    def _tracked(self, writes: Sequence[Write]) -> Sequence[Write]:
        channels = self._program.channels
        return [write for write in writes if write[0] not in channels or channels[write[0]].tracked]
