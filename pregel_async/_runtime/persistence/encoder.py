"""Encode what a superstep stores: writes, questions, and the channels that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any, Final

import msgspec

from checkpoint_savers.chain import EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.codec.writing import SCALARS
from checkpoint_savers.deltas import SHORT, Delta, ListSlice, TaskResult
from checkpoint_savers.errors import UnstorableValueError
from checkpoint_savers.patches import MIN_INCREMENTAL, EncodedValue, IncrementalValue, as_incremental, extended
from checkpoint_savers.records import TaskId
from checkpoint_savers.sharing import Shareable, shared

from ..._core.board import Board
from ..._core.copying import is_opaque
from ..._core.fits import fits
from ..._core.program import SENDS, Program, Write
from ..._core.task import Finished, Outcome, Task
from ..._core.untracked import storable, storable_input
from ...channels import MISSING, BaseChannel, LastValue
from ...channels.overwrite import unwrap_overwrite
from ...types import START, Interrupt, Send
from .records import NOT_RECORDED
from .restore import kind_of

EncodedWrites = tuple[tuple[str, bytes], ...]
"""Encoded writes: channels and values, in order."""


_NEVER_OPAQUE: Final = SCALARS | {dict, list}
"""Types of elements that need no closer look: by far the most frequent ones."""

_NIL: Final = Codec().encode(None, channel="")


class Encoder:
    """Encodes what one graph stores. Untracked channels, which are never stored, are left out.

    Attributes:
        codec: the graph's codec. Replaced by one that knows more types when a call brings them.
    """

    def __init__(self, program: Program, codec: Codec) -> None:
        self.codec = codec
        self.use(program)
        self._last: dict[
            str, tuple[list[Any], IncrementalValue]
        ] = {}  # large lists of channels, and how they were encoded
        # The last list that was encoded for a record of the open superstep, as a tuple of one.
        self._recorded: tuple[tuple[list[Any], bytes], ...] = ()

    def use(self, program: Program) -> None:
        """Encode for this program from now on."""
        self._program = program

    def writes(self, writes: Sequence[Write]) -> EncodedWrites:
        """Return a task's encoded writes. Raises `UnstorableValueError`."""
        encode, tracked = self.codec.encode, self._tracked(writes)
        if any(name == SENDS for name, _ in tracked):
            held = Shareable({name: value for name, (value, _) in self._last.items()}, self._common_prefix)
            tracked = [(name, self._storable_send(value, held) if name == SENDS else value) for name, value in tracked]
        encoded: list[tuple[str, bytes]] = []
        for name, value in tracked:
            data = encode(value, channel=name)
            encoded.append((name, data))
            if type(value) is list:
                # A node that runs alone and is recorded, because its router waits, has its list encoded once: the
                # channel appends the same elements when the superstep ends. One list is enough for that.
                self._recorded = ((value, data),)
        return tuple(encoded)

    def unfit(self, writes: Sequence[Write]) -> tuple[str, ...]:
        """Return the keys whose writes do not fit their annotations: nodes' writes are not checked."""
        plain = [(name, value) for name, value in writes if type(self._program.channels.get(name)) is LastValue]
        channels = self._program.channels
        return tuple([name for name, value in plain if not fits(channels[name].typ, unwrap_overwrite(value))])

    def _storable_send(self, send: Any, held: Shareable) -> Any:
        """Return a send as it is stored: without untracked values, and with references to what the state holds."""
        if not isinstance(send, Send):
            return send
        if self._program.untracked:
            send = storable(send, self._program.untracked)
        arg = shared(send.arg, held)
        return send if arg is send.arg else msgspec.structs.replace(send, arg=arg)

    def _pending(self, board: Board, sends: Any) -> EncodedValue:
        """Return the encoded value of the channel of pending sends."""
        channels = [(name, channel) for name, channel in board.channels.items() if channel.tracked and name != SENDS]
        held = Shareable({name: channel.checkpoint() for name, channel in channels}, self._common_prefix)
        return as_incremental(self.codec.encode([self._storable_send(send, held) for send in sends], channel=SENDS))

    def _common_prefix(self, name: str, value: list[Any]) -> int:
        """Return the length of the common prefix of a list and a channel's encoded list, compared by bytes."""
        parts, count = self._last[name][1].parts if name in self._last else (), 0
        for item, part in zip(value, parts, strict=False):
            if not self._has_bytes(item, part):
                break
            count += 1
        return count

    def _has_bytes(self, item: Any, data: bytes) -> bool:
        try:
            return self.codec.encode(item, channel=SENDS) == data
        except UnstorableValueError:  # raised again for the whole send, with its path
            return False

    def questions(self, interrupts: Sequence[Interrupt]) -> EncodedWrites:
        """Return encoded questions by id. Raises `UnstorableValueError`."""
        return tuple([(each.id, self.codec.encode(each.value, channel="interrupt()")) for each in interrupts])

    def schemas(self, interrupts: Sequence[Interrupt]) -> dict[str, bytes]:
        """Return the encoded schemas of answers, by question id. Raises `UnstorableValueError`."""
        encode = self.codec.encode
        return {
            each.id: encode(each.response_schema, channel="response_schema")
            for each in interrupts
            if each.response_schema is not None
        }

    def remember(self, board: Board, state: EncodedState) -> None:
        """Remember how a loaded board's large lists are stored, so that appending encodes only new elements."""
        # A list that a rule or a migration has converted is not stored yet. What is stored under its name are the
        # elements of the earlier version, to which nothing may be appended.
        self._last = {
            name: (held, value)
            for name, channel in board.channels.items()
            if name != SENDS
            and name not in board.amended
            and isinstance(value := state.values.get(name), IncrementalValue)
            and type(held := channel.checkpoint()) is list
        }

    def delta(
        self,
        board: Board,
        before: EncodedState,
        ran: Sequence[Task],
        outcomes: Sequence[Outcome],
        recorded: Mapping[TaskId, TaskResult],
        now: float,
    ) -> Delta:
        """Return what a superstep changed. The caller adds the amounts spent and the tips moved.

        Args:
            board: the board after the superstep.
            before: the stored state before it.
            ran: its tasks.
            outcomes: their outcomes, in the same order.
            recorded: the records of its tasks. A result that has a record is not repeated in the delta.
            now: the time, in unix seconds.

        Raises:
            UnstorableValueError: a value cannot be encoded.
        """
        appended: dict[str, _Appended] = {}
        values, kinds, emptied, versions = self._changed(board, before, appended)
        self._recorded = ()
        seen: dict[str, dict[str, int]] = {}
        results: dict[str, tuple[tuple[str, bytes | ListSlice | None], ...]] = {}
        all_seen = board.seen
        for task, outcome in zip(ran, outcomes, strict=True):
            node = task.node
            for trigger in node.triggers if task.send < 0 else ():
                if trigger not in all_seen:  # usual: the node's run has emptied the channel
                    continue
                name = node.identity
                if name in all_seen[trigger] and board.channels[trigger].tracked:
                    seen.setdefault(trigger, {})[name] = all_seen[trigger][name]
            if isinstance(outcome, Finished) and not node.hidden:
                acting = outcome.handler_task or task
                if not recorded or not recorded.get(acting.id, NOT_RECORDED).finished:
                    results[acting.id] = self._history_writes(board, outcome.writes, appended)
        return Delta(
            keyframe=False,
            ts=now,
            clock=board.clock,
            values=values,
            emptied=tuple(emptied),
            kinds=kinds,
            versions=versions,
            seen=seen,
            ran=board.ran,
            results=results,
        )

    def _changed(
        self, board: Board, before: EncodedState, appended: dict[str, _Appended]
    ) -> tuple[dict[str, EncodedValue], dict[str, str], list[str], dict[str, int]]:
        """Return the channels that a superstep changed.

        Args:
            board: the board after the superstep.
            before: the stored state before it.
            appended: gets the elements that the superstep appended to lists, by channel.

        Returns:
            The encoded values, the new kinds, the emptied channels, and the versions that are not the board's clock.
        """
        values: dict[str, EncodedValue] = {}
        kinds: dict[str, str] = {}
        emptied: list[str] = []
        versions: dict[str, int] = {}
        program, last, clock = self._program, self._last, board.clock
        channels, current_versions, shown = board.channels, board.versions, board.values
        known_kinds = program.stored_kinds
        old_values, old_kinds = before.values, before.kinds
        for name in board.changed:
            if name in current_versions and name in channels:
                channel = channels[name]
                if not channel.tracked:
                    continue
                is_plain = type(channel) is LastValue
                if is_plain and name in shown:
                    stored = shown[name]
                else:
                    stored = self._storable_value(name, channel) if program.untracked else channel.checkpoint()
                if stored is not MISSING:
                    if current_versions[name] != clock:
                        versions[name] = current_versions[name]
                    if stored is None and name not in last:
                        values[name] = _NIL  # the value of an edge's channel
                    elif name == SENDS:
                        values[name] = b""  # encoded below
                    elif name in last or type(stored) not in SCALARS:
                        values[name] = self._value(name, stored, appended)
                    else:
                        data = self.codec.encode(stored, channel=name)
                        values[name] = data if len(data) < MIN_INCREMENTAL else as_incremental(data)
                    if is_plain:
                        kind = LastValue.kind if type(stored) is channel.typ else kind_of(channel, stored)
                    elif name in known_kinds:
                        kind = known_kinds[name]
                    else:
                        kind = known_kinds[name] = kind_of(channel)
                    if name not in old_kinds or old_kinds[name] != kind:
                        kinds[name] = kind
                    continue
            # The channel has no value to store: it is empty, or the graph no longer has it.
            if name in old_values and (name not in channels or channels[name].tracked):
                emptied.append(name)
            if name in last:
                del last[name]  # otherwise a send of the next superstep could refer to the removed value
        # Pending sends come last, because they refer to the encoded values of the other channels.
        if SENDS in values:
            values[SENDS] = self._pending(board, board.channels[SENDS].checkpoint())
        # Each superstep consumes or rewrites pending sends, so that what they share with other channels is up to date.
        assert not values or SENDS in board.changed or SENDS not in before.values
        return values, kinds, emptied, versions

    def _storable_value(self, name: str, channel: BaseChannel[Any, Any, Any]) -> Any:
        """Return a tracked channel's value as it is stored: the start channel's without untracked keys."""
        held, untracked = channel.checkpoint(), self._program.untracked
        return storable_input(held, untracked) if untracked and name == START else held

    def _value(self, name: str, stored: Any, appended: dict[str, _Appended]) -> EncodedValue:
        """Return a channel's encoded value. If a list was only appended to, only the new elements are encoded."""
        # Elements are compared by identity, which is enough because values on a board are never changed in place (see
        # `isolation`). User code may change opaque objects, so that lists with opaque elements are encoded anew.
        last = self._last.pop(name, None) if self._last else None
        if last is not None and type(stored) is list:
            held, value = last
            more = stored[len(held) :]
            if (
                held is not stored
                and len(stored) >= len(held)
                and all(map(is_, held, stored))
                and not _has_opaque(more)
            ):
                recorded = self._recorded_bytes(more) if self._recorded else b""
                data = recorded or self.codec.encode(more, channel=name)
                if more:
                    appended[name] = _Appended(more, data)
                value = extended(value, len(held), data)
                self._last[name] = stored, value
                return value
        data = self.codec.encode(stored, channel=name)
        if len(data) < MIN_INCREMENTAL:
            return data
        incremental = as_incremental(data)
        if isinstance(incremental, IncrementalValue) and type(stored) is list and not _has_opaque(stored):
            self._last[name] = stored, incremental
        return incremental

    def _recorded_bytes(self, elements: list[Any]) -> bytes:
        """Return the encoded list of these elements if it is the last list that a record holds; else nothing."""
        [(written, data)] = self._recorded
        return data if len(written) == len(elements) and all(map(is_, written, elements)) else b""

    def _history_writes(
        self, board: Board, writes: Sequence[Write], appended: Mapping[str, _Appended]
    ) -> tuple[tuple[str, bytes | ListSlice | None], ...]:
        """Return a task's update as history shows it.

        None means that the channel now holds the very same object, and a slice that its list ends with these elements:
        the channel's value is in the same delta, so that the update would only repeat its bytes.
        """
        keys, channels, values = self._program.keys, self._program.channels, board.values
        shown: list[tuple[str, bytes | ListSlice | None]] = []
        for name, value in writes:
            if name in keys and channels[name].tracked:
                if name in values and values[name] is value:
                    shown.append((name, None))
                else:
                    part = appended[name].slice_of(value) if name in appended else None
                    shown.append((name, self.codec.encode(value, channel=name) if part is None else part))
        return tuple(shown)

    def locate(self, board: Board) -> None:
        """Raise the error of an unstorable input for the input's own key, if one channel holds the whole input."""
        for name in filter(board.channels.__contains__, board.changed):
            value = self._storable_value(name, board.channels[name])
            if isinstance(value, dict):
                for key, item in value.items():
                    self.codec.encode(item, channel=str(key))

    def _tracked(self, writes: Sequence[Write]) -> Sequence[Write]:
        channels = self._program.channels
        return [write for write in writes if write[0] not in channels or channels[write[0]].tracked]


def _has_opaque(values: list[Any]) -> bool:
    """Return True if a list has elements that user code may change in place."""
    kinds = set(map(type, values)) - _NEVER_OPAQUE
    return bool(kinds) and any(map(is_opaque, kinds))


class _Appended:
    """The elements that a superstep appends to a channel's list, consumed in plan order by the writes that added them.

    Args:
        elements: the elements.
        data: the encoded list of them.
    """

    __slots__ = ("_at", "_data", "_elements")

    def __init__(self, elements: list[Any], data: bytes) -> None:
        self._elements = elements
        self._data = data
        self._at = 0

    def slice_of(self, value: Any) -> ListSlice | None:
        """Return a reference to the next elements if they are those of a written list, by identity; else None."""
        # A reducer may add others, or change the order: then the write is encoded.
        if type(value) is not list or not value:
            return None
        at, count = self._at, len(value)
        elements = self._elements if count == len(self._elements) else self._elements[at : at + count]
        # A short write is stored as it is: a reference would save nothing.
        if len(self._data) * count < SHORT * len(self._elements) or len(elements) != count:
            return None
        if not all(map(is_, elements, value)):
            return None
        self._at += count
        return ListSlice(self._data, at, count)
