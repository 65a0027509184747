"""The parts of a stream as the runtime passes them on, and the shapes in which readers receive them."""

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
"""The type of the part that reports a run's failure."""

RESTARTED = "superstep_restarted"
"""The type of the part that voids earlier parts of a superstep which is run again."""

END = "__end__"
"""The type of the stored event that says how a run ended. Readers do not receive it."""


RUN = "__run__"
"""The type of the stored event that says which run of a service continues a thread. Readers do not receive it."""

RUN_STARTED, RUN_ENDED = "run_started", "run_ended"
"""The types of the parts between which a thread's log has the parts of a run."""

EVENTS_PER_LEASE = 2**28
"""More events than one lease can have: cursors have eight digits for those at one checkpoint."""


def number_of(epoch: int, count: int) -> int:
    """Return the number of an event in its thread's log: greater than those of all earlier events, with gaps.

    Epochs grow with each lease, so that nothing has to be counted over leases. The number is below 2**53, up to which
    JavaScript's numbers are exact, for 33 million leases.

    Args:
        epoch: the epoch of the lease under which it was published.
        count: the number of events under that lease up to it.
    """
    return epoch * EVENTS_PER_LEASE + min(count, EVENTS_PER_LEASE - 1)


class Cursor(msgspec.Struct, frozen=True):
    """A position among a thread's events, and the number of parts that the reader has received.

    Attributes:
        checkpoint_id: the checkpoint on which the event's superstep was planned; "" before the first.
        epoch: the epoch of the lease under which the event was published. It separates an attempt that was cut off from
            the next one.
        position: the number of the event within its attempt at that checkpoint, from 1; 0 is before the first.
        seq: the number of the part in the reader's stream.
        since: the newest stored checkpoint when the event was published, if `checkpoint_id` was not stored yet ("" if
            there was none); None if it was. If `checkpoint_id` is never stored, all parts after `since` are void.
    """

    checkpoint_id: str
    epoch: int
    position: int
    seq: int = 0
    since: str | None = None

    @property
    def attempt(self) -> tuple[str, int]:
        """The checkpoint and the epoch: one attempt at a superstep."""
        return self.checkpoint_id, self.epoch

    @property
    def key(self) -> tuple[str, int, int]:
        """The cursor without `seq` and `since`. Keys sort in the order of the events."""
        return self.checkpoint_id, self.epoch, self.position

    def __str__(self) -> str:
        # Zero-padded, so that the texts sort in the same order as the keys: clients and databases compare texts.
        text = f"{self.checkpoint_id}.{self.epoch:06d}.{self.position:08d}.{self.seq:08d}"
        return text if self.since is None else f"{text}.~{self.since}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse the text of a cursor.

        Raises:
            InvalidCursorError: the text is not a cursor.
        """
        checkpoint_id, *numbers = text.split(".")
        since = numbers.pop()[1:] if len(numbers) == 4 and numbers[-1].startswith("~") else None
        # `int` alone would accept signs, underscores and other scripts' digits, and arbitrarily long numbers.
        plain = all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers)
        known = all(is_checkpoint_id(one) for one in (checkpoint_id, since) if one)
        if len(numbers) != 3 or not plain or not known:
            raise InvalidCursorError(f"{text!r} is not a cursor: pass the cursor of a part exactly as it was read")
        epoch, position, seq = map(int, numbers)
        return cls(checkpoint_id, epoch, position, seq, since)


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """Work whose result is recorded as a whole: after a crash, all of it runs again or none.

    Attributes:
        id: the task's id; `routers_of(id)` for the routers of a task whose own writes are recorded.
        ns: the namespace of the task's graph, relative to the graph that was called.
        name: the name of the node.
    """

    id: str
    ns: tuple[str, ...]
    name: str


def routers_of(task_id: str) -> str:
    """Return the unit id of a task's routers, which are a unit of their own once the task's writes are recorded."""
    return f"{task_id}:routers"


class RawPart(msgspec.Struct, kw_only=True):
    """One part before it is shaped for its reader. It gets its number and cursor when it is published.

    Attributes:
        mode: the stream mode, or the type of a part that belongs to no mode.
        ns: the namespace of its graph, relative to the graph that was called.
        data: the payload. The reader may change it.
        step: the superstep of that graph.
        interrupts: the open questions, in a `values` part.
        coerce: converts the state in the payload to the schema's class; None leaves it a mapping.
        seq: the number of the part in its stream, from 1.
        committed: the newest stored superstep of the called graph; None if there is none.
        cursor: its position among the thread's stored events; None if events are not stored.
        needs_coerce: it was read from storage, and `coerce` is still to be set.
        task: the task that caused it; None for an event of the graph.
        unit: the unit of work that it belongs to; None for an event of the called graph itself.
        is_repeat: an earlier attempt published and stored it. Only readers that did not follow that attempt receive it.
        untracked: the keys of its graph whose values are not stored.
        is_keyed: updates and states in it are mappings by key, not the value of a single key or the result of a call.
        at: when it was published, in milliseconds since the epoch, if events are stored.
        number: its number in the thread's log, if events are stored; see `number_of`.
        run_id: its run, in a thread's log.
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
    at: int = 0
    number: int = 0
    run_id: str = ""


Shape: TypeAlias = Callable[[RawPart], Any]


def shape_of(version: str, *, labelled: bool, subgraphs: bool) -> Shape:
    """Return the function that turns a part into the chunk that a reader receives.

    Args:
        version: "v1" or "v2", as in `astream`.
        labelled: chunks of "v1" have the mode's name.
        subgraphs: chunks of "v1" have the namespace.
    """
    if version == "v2":
        return labelled_dict
    if subgraphs:
        return (lambda part: (part.ns, part.mode, bare(part))) if labelled else (lambda part: (part.ns, bare(part)))
    return (lambda part: (part.mode, bare(part))) if labelled else bare


def bare(part: RawPart) -> Any:
    """Return the payload, with the open questions in it."""
    if not part.interrupts:
        return part.data
    asked = {INTERRUPT: part.interrupts}
    return {**part.data, **asked} if isinstance(part.data, dict) else asked


def labelled_dict(part: RawPart) -> dict[str, Any]:
    """Return the part as a `StreamPart`, the dict of version "v2"."""
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


def log_entry(part: RawPart) -> dict[str, Any]:
    """Return the part as an event of a thread's log: its number and cursor are the same for all readers."""
    return {**labelled_dict(part), "seq": part.number, "run_id": part.run_id, "timestamp": part.at / 1000}


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
"""Approximate size of a part without its payload, in bytes."""

MAX_OBJECT_DEPTH = 3
"""The depth of nested objects up to which a payload is measured.

Deeper objects more likely belong to the program than to the payload alone.
"""


def approximate_size(value: Any, most: int) -> int:
    """Return the approximate size of a payload in bytes, or some number above `most` if it is larger than `most`."""
    size, seen = PART_SIZE, set[int]()
    left: list[tuple[Any, int]] = [(value, 0)]
    while left and size <= most:
        item, depth = left.pop()
        size += sys.getsizeof(item, 64)
        if type(item) in ATOMS:
            continue
        # Shared objects take memory once, and cycles must end.
        if id(item) in seen:
            continue
        seen.add(id(item))
        # The base class's methods, because the isolating containers' own methods would copy each element.
        if isinstance(item, dict):
            left.extend((each, depth) for each in dict.keys(item))
            left.extend((each, depth) for each in dict.values(item))
        elif isinstance(item, list):
            left.extend((each, depth) for each in list.__iter__(item))
        elif isinstance(item, (tuple, set, frozenset, deque)):
            left.extend((each, depth) for each in item)
        else:
            with contextlib.suppress(TypeError, ValueError, BufferError):  # only arrays and the like have a buffer
                size += memoryview(item).nbytes
            if depth < MAX_OBJECT_DEPTH:
                left.extend((each, depth + 1) for each in _fields(item))
    return size


def _fields(item: Any) -> Iterator[Any]:
    """Yield the attributes of an instance: its `__dict__`, slots and Struct fields."""
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict):
        yield attributes
    for kind in type(item).__mro__:
        names = kind.__dict__.get("__struct_fields__", kind.__dict__.get("__slots__"))
        for name in names if isinstance(names, (tuple, list, dict)) else (names,):
            if isinstance(name, str):
                yield getattr(item, name, None)
