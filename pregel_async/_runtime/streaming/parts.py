"""A part of a stream: one chunk on its way from the run to its readers; and the shapes in which readers get it."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from checkpoint_savers.records import is_checkpoint_id

from ..._core.copying import ATOMS
from ..._core.task import Task
from ...errors import InvalidCursorError
from ...types import INTERRUPT, Interrupt

ERROR = "error"
"""The type of the part that tells why a run has failed."""

RESTARTED = "superstep_restarted"
"""The type of the part that voids what was shown of a superstep before."""

END = "__end__"
"""The type of the event that is kept of how a run has ended. Readers do not get it."""


class Cursor(msgspec.Struct, frozen=True):
    """A place among a thread's events, and how many of them its reader was shown.

    Attributes:
        checkpoint_id: the checkpoint on which the superstep was planned that the event belongs to; "" before the first.
        epoch: of the lease of the run that showed it: an attempt that was cut off and the next have their own places.
        position: which of the attempt's events on that checkpoint, from 1; 0 stands before the first.
        seq: the number that the reader's stream gave it.
        since: the last checkpoint that was stored when the event was shown, if `checkpoint_id` was not; "" for none.
            None where it was. If it never is, what was shown after that checkpoint is void.
    """

    checkpoint_id: str
    epoch: int
    position: int
    seq: int = 0
    since: str | None = None

    @property
    def attempt(self) -> tuple[str, int]:
        """The attempt at a superstep that it is in."""
        return self.checkpoint_id, self.epoch

    @property
    def key(self) -> tuple[str, int, int]:
        """Ordered as the events are shown."""
        return self.checkpoint_id, self.epoch, self.position

    def __str__(self) -> str:
        # Sorted as a string like the places themselves.
        text = f"{self.checkpoint_id}.{self.epoch:06d}.{self.position:08d}.{self.seq:08d}"
        return text if self.since is None else f"{text}.~{self.since}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Raises `InvalidCursorError` for what is none."""
        checkpoint_id, *numbers = text.split(".")
        since = numbers.pop()[1:] if len(numbers) == 4 and numbers[-1].startswith("~") else None
        plain = all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers)
        known = all(is_checkpoint_id(one) for one in (checkpoint_id, since) if one)
        if len(numbers) != 3 or not plain or not known:
            raise InvalidCursorError(f"{text!r} is no cursor: pass the cursor of a part that was read, as it was")
        epoch, position, seq = map(int, numbers)
        return cls(checkpoint_id, epoch, position, seq, since)


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """Work whose result is recorded as one: after a crash it runs again as a whole, or not at all.

    Attributes:
        id: the task's; `routers_of(id)` for the routers of a task whose own writes are recorded.
        ns: the namespace of the graph whose task it is, relative to the graph that was called.
        name: the node's.
    """

    id: str
    ns: tuple[str, ...]
    name: str


def routers_of(task_id: str) -> str:
    """The id of the unit that a task's routers are, once the task's own writes are recorded."""
    return f"{task_id}:routers"


class RawPart(msgspec.Struct, kw_only=True):
    """One chunk. The run gives it its number and its place when it goes out.

    Attributes:
        mode: what it shows.
        ns: the graph whose it is, relative to the one that was called.
        data: the payload, the reader's own.
        step: that graph's superstep.
        interrupts: open questions, of a `values` part.
        coerce: makes the schema's own object of the payload's state; None leaves the mapping.
        seq: its number, from 1.
        committed: the superstep of the called graph that is stored, as are all before it; None when there is none.
        cursor: its place among the events that are kept; None when they are not.
        needs_coerce: it was read back: what `coerce` was is to be found again.
        task: the task whose event it is; None for an event of the graph.
        unit: the recorded work that it belongs to; None for an event of the called graph itself.
        is_repeat: an earlier attempt has shown and stored it. It is shown only to readers that did not read that attempt.
        untracked: keys of its graph whose values are not stored.
        is_keyed: updates and states in it are mappings of the graph's keys, and not the value of one key, or of a call.
    """

    mode: str
    ns: tuple[str, ...]
    data: Any
    step: int
    interrupts: tuple[Interrupt, ...] = ()
    coerce: Callable[[Any], Any] | None = None
    seq: int = 0
    committed: int | None = None
    cursor: Cursor | None = None
    needs_coerce: bool = False
    task: Task | None = None
    unit: Unit | None = None
    is_repeat: bool = False
    untracked: frozenset[str] = frozenset()
    is_keyed: bool = True


Shape: TypeAlias = Callable[[RawPart], Any]


def shape_of(version: str, *, labelled: bool, subgraphs: bool) -> Shape:
    """How a reader gets its parts.

    Args:
        labelled: with the mode's name.
        subgraphs: with the namespace.
    """
    if version == "v2":
        return labelled_dict
    if subgraphs:
        return (lambda part: (part.ns, part.mode, bare(part))) if labelled else (lambda part: (part.ns, bare(part)))
    return (lambda part: (part.mode, bare(part))) if labelled else bare


def bare(part: RawPart) -> Any:
    """The payload alone, with the questions in it."""
    if not part.interrupts:
        return part.data
    asked = {INTERRUPT: part.interrupts}
    return {**part.data, **asked} if isinstance(part.data, dict) else asked


def labelled_dict(part: RawPart) -> dict[str, Any]:
    """A `StreamPart`."""
    shaped: dict[str, Any] = {
        "type": part.mode,
        "ns": part.ns,
        "data": _coerced(part),
        "seq": part.seq,
        "step": part.step,
        "committed": part.committed,
        "cursor": None if part.cursor is None else str(part.cursor),
        "task": None if part.unit is None else {"id": part.unit.id, "ns": part.unit.ns, "name": part.unit.name},
    }
    if part.mode == "values":
        shaped["interrupts"] = part.interrupts
    return shaped


def _coerced(part: RawPart) -> Any:
    data, coerce = part.data, part.coerce
    if coerce is None:
        return data
    if part.mode == "values":
        return coerce(data)
    if part.mode == "checkpoints":
        return {**data, "values": coerce(data["values"])}
    return {**data, "payload": {**data["payload"], "values": coerce(data["payload"]["values"])}}


PART_SIZE = 256
"""About how many bytes a part takes beside its payload."""

MAX_OBJECT_DEPTH = 3
"""How many objects deep a payload is weighed: what lies deeper is the program's more likely than the payload's."""


def approximate_size(value: Any, most: int) -> int:
    """About how many bytes a payload takes, at any depth; something above `most` if it is more than that."""
    size, seen = PART_SIZE, set[int]()
    left: list[tuple[Any, int]] = [(value, 0)]
    while left and size <= most:
        item, depth = left.pop()
        size += sys.getsizeof(item, 64)
        if type(item) in ATOMS:
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        # What a container of ours holds is taken past it: to ask it would copy what it holds.
        if isinstance(item, dict):
            left.extend((each, depth) for each in dict.keys(item))
            left.extend((each, depth) for each in dict.values(item))
        elif isinstance(item, list):
            left.extend((each, depth) for each in list.__iter__(item))
        elif isinstance(item, (tuple, set, frozenset, deque)):
            left.extend((each, depth) for each in item)
        else:
            with contextlib.suppress(TypeError, ValueError, BufferError):  # it shows no memory, as arrays do
                size += memoryview(item).nbytes
            if depth < MAX_OBJECT_DEPTH:
                left.extend((each, depth + 1) for each in _fields(item))
    return size


def _fields(item: Any) -> Iterator[Any]:
    """What an instance of a class holds."""
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict):
        yield attributes
    for kind in type(item).__mro__:
        names = kind.__dict__.get("__struct_fields__", kind.__dict__.get("__slots__"))
        for name in names if isinstance(names, (tuple, list, dict)) else (names,):
            if isinstance(name, str):
                yield getattr(item, name, None)
