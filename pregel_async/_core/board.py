"""The board: every channel's value and version at one superstep's boundary, and what the nodes have seen of them.

A value to everybody but `superstep.update`, which makes the next one, of the same object. It is sparse: a channel that
holds nothing has no version, and what was seen of it is forgotten. That loses nothing, as a channel that is written
again gets a version above all others; and so a board, and a checkpoint, is as large as what it holds, not as the graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..channels import MISSING, BaseChannel
from ..errors import EmptyChannelError
from .isolation import isolate
from .naming import FoldNames
from .program import Node, Program, Router, Write

Channel = BaseChannel[Any, Any, Any]


class Board:
    """The state between two supersteps.

    Attributes:
        step: the number of the superstep that made it: -1 after the first input, 0 after the hidden start.
        clock: the version that everything changed by that superstep got.
        channels: the channels that were ever written.
        versions: of those that hold something.
        seen: channel -> node -> the version at which the node ran last; only of channels that hold something.
        values: what nodes may read: the value of each available state key. Owned (see `isolation`).
        updated: available channels that changed since the nodes were last planned.
        changed: all channels that the superstep changed, emptied ones too, sorted.
        fleeting: channels that may change in a superstep in which nobody writes them.
        ran: names of the nodes that the superstep ran, in plan order.
        amended: channels that calls have changed since, while the superstep that follows is open.
        remaining: how many supersteps the run may still take, the one that is to run next included.
    """

    __slots__ = (
        "amended",
        "changed",
        "channels",
        "clock",
        "fleeting",
        "ran",
        "remaining",
        "seen",
        "step",
        "updated",
        "values",
        "versions",
    )

    def __init__(self, program: Program) -> None:
        self.step = -2
        self.clock = 0
        self.channels: dict[str, Channel] = {}
        self.versions: dict[str, int] = {}
        self.seen: dict[str, dict[str, int]] = {}
        self.values: dict[str, Any] = program.initial.copy()
        self.updated: Iterable[str] = ()
        self.changed: list[str] = []
        self.fleeting: set[str] = set()
        self.ran: tuple[str, ...] = ()
        self.remaining = 0
        self.amended: set[str] = set()
        for name in program.restless:
            self.channels[name] = program.channels[name].fresh()
            self.fleeting.add(name)

    @classmethod
    def restore(
        cls,
        program: Program,
        *,
        step: int,
        clock: int,
        stored: dict[str, Any],
        versions: dict[str, int],
        seen: dict[str, dict[str, int]],
        ran: tuple[str, ...],
    ) -> Board:
        """The board that was stored. `stored` holds the checkpoint value of each channel that the program has."""
        board = cls(program)
        board.step, board.clock, board.ran = step, clock, ran
        updated: list[str] = []
        for name in stored:  # in the order in which they were written first: nodes see the keys in that order
            channel = program.channels[name].from_checkpoint(stored[name])
            channel.key = name
            board.channels[name] = channel
            board.versions[name] = versions[name]
            board.seen[name] = dict(seen.get(name, {}))
            if channel.expires:
                board.fleeting.add(name)
            if channel.is_available():
                updated.append(name)
                if name in program.keys:
                    board.values[name] = channel.get()
        board.updated = sorted(updated)
        return board

    def read(self, name: str) -> Any:
        """A channel's value as it stands here, isolated. Raises `EmptyChannelError`."""
        if name in self.values:
            return isolate(self.values[name])
        channel = self.channels.get(name)
        if channel is None:
            raise EmptyChannelError(name)
        return isolate(channel.get())

    def show(self, names: str | tuple[str, ...]) -> Any:
        """What a run returns: one channel's value (None when it holds nothing), or a mapping of those that hold
        something."""
        if isinstance(names, str):
            try:
                return self.read(names)
            except EmptyChannelError:
                return None
        found: dict[str, Any] = {}
        for name in names:
            if name in self.values:
                found[name] = isolate(self.values[name])
            elif name in self.channels and self.channels[name].is_available():
                found[name] = isolate(self.channels[name].get())
        return found

    def output(self, program: Program, names: str | tuple[str, ...]) -> Any:
        """What a call returns: as `show`, without what was written before the call's input where the program says so
        (`Program.input_mark`)."""
        since = 0 if program.input_mark is None else self.versions.get(program.input_mark, 0)
        if isinstance(names, str):
            return self.show(names) if self.versions.get(names, 0) >= since else None
        return self.show(tuple([name for name in names if self.versions.get(name, 0) >= since]))

    def input_of(self, node: Node) -> Any:
        """What a triggered node gets. Keys that were never written are absent.

        Raises:
            EmptyChannelError: the one channel that it reads holds nothing.
        """
        reads = node.reads
        if isinstance(reads, str):
            return self.read(reads)
        # A copy, as `update` changes this one, and an input may be looked at (by a stream's reader) long after that.
        mapping = isolate(self.values.copy()) if node.whole else self._pick(reads)
        for name, made in node.managed:
            mapping[name] = made(self.step + 1, self.remaining)
        return mapping if node.shape is None else node.shape(mapping)

    def _pick(self, reads: tuple[str, ...]) -> dict[str, Any]:
        values = self.values
        picked = {name: values[name] for name in reads if name in values}
        if len(picked) < len(reads):
            for name in reads:
                if name not in picked and name in self.channels and self.channels[name].is_available():
                    picked[name] = self.channels[name].get()
        return isolate(picked)

    def view_of(self, router: Router, program: Program, writes: Iterable[Write], names: FoldNames | None = None) -> Any:
        """What a router gets: the state with the node's own writes folded in, and no others.

        Args:
            names: what messages without an id are called, as in the superstep's fold; None if no reducer asks.
        """
        own: dict[str, list[Any]] = {}
        for name, value in writes:
            if name in program.keys:
                own.setdefault(name, []).append(value)
        values = (
            self.values.copy()
            if router.whole
            else {name: self.values[name] for name in router.reads if name in self.values}
        )
        for name in sorted(own):
            if not router.whole and name not in router.reads:
                continue
            at = self.channels.get(name)
            channel = program.channels[name].fresh() if at is None else at.copy()
            if names is None:
                channel.update(own[name])
            else:
                names.fold(channel, own[name])
            if channel.is_available():
                values[name] = channel.get()
            else:
                values.pop(name, None)
        mapping = isolate(values)
        for name, made in router.managed:
            mapping[name] = made(self.step + 1, self.remaining)
        return mapping if router.shape is None else router.shape(mapping)

    def held(self, name: str) -> Any:
        """What is stored of a channel; `MISSING` when there is nothing to store."""
        channel = self.channels.get(name)
        return MISSING if channel is None else channel.checkpoint()
