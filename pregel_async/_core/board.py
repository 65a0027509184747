"""The board: the channels' values and versions between two supersteps, and the versions that nodes have seen.

Only `superstep.update` changes a board; all other code reads it. A board is sparse: an empty channel has no version,
and no record of the versions that nodes have seen. None is needed: a channel that is written again gets a version above
all others. So the size of a board, and of a checkpoint, depends on the stored values, not on the size of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, Final

from ..channels import MISSING
from ..channels.abc import AnyChannel
from ..errors import EmptyChannelError
from .isolation import KnownCopiers, isolate
from .naming import FoldMessageIds
from .program import Node, Program, Router, Write

NOTHING_AMENDED: Final[frozenset[str]] = frozenset()
"""The value of `Board.amended` if no call has changed the open superstep's board."""


class Board:
    """The state between two supersteps.

    Attributes:
        step: the number of the superstep that made the board: -1 after the first input, 0 after the hidden start.
        clock: the version of the channels that this superstep changed.
        channels: all channels that were ever written.
        versions: the versions of channels that hold a value.
        seen: by channel and node, the version at the node's last run; only of channels that hold a value.
        values: the value of each available state key, which nodes read. Owned (see `isolation`).
        copiers: how the elements of long lists are isolated, of the keys whose lists a node has iterated.
        updated: available channels that changed since the last plan.
        changed: all channels that the superstep changed, emptied ones included, sorted.
        fleeting: channels that may change in a superstep without a write.
        ran: the names of the nodes that the superstep ran, in plan order.
        amended: channels that have changed while the next superstep is open: by updates of calls, or because the load
            has converted what other code had stored. Some of the latter are not in `channels`: they are to be emptied.
        remaining: the number of supersteps that the run may still take, the next one included.
    """

    __slots__ = (
        "amended",
        "changed",
        "channels",
        "clock",
        "copiers",
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
        self.channels: dict[str, AnyChannel] = {}
        self.versions: dict[str, int] = {}
        self.seen: dict[str, dict[str, int]] = {}
        self.values: dict[str, Any] = program.initial.copy()
        self.copiers: KnownCopiers = {}
        # Tuples and a frozenset: Python's collector visits the lists and sets of all waiting runs again and again.
        self.updated: tuple[str, ...] = ()
        self.changed: tuple[str, ...] = ()
        self.amended: Set[str] = NOTHING_AMENDED
        self.fleeting: set[str] = set()
        self.ran: tuple[str, ...] = ()
        self.remaining = 0
        added = program.upgrades.added
        if added:
            for name in added:
                channel = self.channels[name] = program.channels[name].from_checkpoint(added[name])
                channel.key = name
                self.versions[name], self.values[name] = 0, channel.get()
            self.amended = frozenset(added)
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
        """Return the board of a stored state.

        Args:
            program: the graph.
            step, clock, versions, seen, ran: as the attributes.
            stored: the checkpoint value of each stored channel that the program has.
        """
        board = cls(program)
        board.step, board.clock, board.ran = step, clock, ran
        updated: list[str] = []
        for name in stored:  # in the order of the first writes, in which nodes see the keys
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
        if board.amended:
            board.amended = frozenset(board.amended - stored.keys())
        board.updated = tuple(sorted(updated))
        return board

    def read(self, name: str) -> Any:
        """Return a channel's value, isolated. Raises `EmptyChannelError` if it has none."""
        if name in self.values:
            return isolate(self.values[name])
        channel = self.channels.get(name)
        if channel is None:
            raise EmptyChannelError(name)
        return isolate(channel.get())

    def show(self, names: str | tuple[str, ...]) -> Any:
        """Return one channel's value (None if it is empty), or a mapping of the channels that hold a value."""
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
        """Return the result of a call: as `show`, but only values written since the input if `input_mark` is set.

        Args:
            program: the graph.
            names: as in `show`.
        """
        since = 0 if program.input_mark is None else self.versions.get(program.input_mark, 0)
        if isinstance(names, str):
            return self.show(names) if self.versions.get(names, 0) >= since else None
        return self.show(tuple([name for name in names if self.versions.get(name, 0) >= since]))

    def input_of(self, node: Node) -> Any:
        """Return the input of a triggered node. Keys that were never written are absent.

        Raises:
            EmptyChannelError: the node reads one bare channel, which is empty.
        """
        source = self.source_of(node)
        return source if node.shape is None else node.shape(source)

    def source_of(self, node: Node) -> Any:
        """Return the isolated value from which `Node.shape` makes the input of a triggered node.

        Raises:
            EmptyChannelError: as `input_of`.
        """
        reads = node.reads
        if isinstance(reads, str):
            return self.read(reads)
        # A copy of the dict: `update` changes this one, and a stream's reader may look at an input long after that.
        mapping = isolate(self.values.copy() if node.whole else self._pick(reads), self.copiers)
        for name, compute in node.managed:
            mapping[name] = compute(self.step + 1, self.remaining)
        return mapping

    def _pick(self, reads: tuple[str, ...]) -> dict[str, Any]:
        values = self.values
        picked = {name: values[name] for name in reads if name in values}
        if len(picked) < len(reads):
            for name in reads:
                if name not in picked and name in self.channels and self.channels[name].is_available():
                    picked[name] = self.channels[name].get()
        return picked

    def view_of(
        self, router: Router, program: Program, writes: Iterable[Write], message_ids: FoldMessageIds | None = None
    ) -> Any:
        """Return the input of a router: the state with the writes of the router's own node folded in, and no others.

        Args:
            router: the router.
            program: the graph.
            writes: the node's own writes.
            message_ids: gives ids to messages without one, as in the superstep's fold; None if no reducer needs it.
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
            current = self.channels.get(name)
            # On a copy: the superstep's own fold comes later, with the writes of all tasks.
            channel = program.channels[name].fresh() if current is None else current.copy()
            if message_ids is None:
                channel.update(own[name])
            else:
                message_ids.fold(channel, own[name])
            if channel.is_available():
                values[name] = channel.get()
            else:
                values.pop(name, None)
        mapping = isolate(values, self.copiers)
        for name, compute in router.managed:
            mapping[name] = compute(self.step + 1, self.remaining)
        return mapping if router.shape is None else router.shape(mapping)

    def stored_value(self, name: str) -> Any:
        """Return a channel's checkpoint value; `MISSING` if there is nothing to store."""
        channel = self.channels.get(name)
        return MISSING if channel is None else channel.checkpoint()
