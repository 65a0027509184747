"""P11: from a damaged database a saver reads the right value or raises its own error: no other value or exception."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from ...abc import BaseCheckpointSaver
from ...codec import unseal
from ...errors import CorruptCheckpointError, UnsupportedFormatError
from ...records import CheckpointTuple, EventRow
from .random_threads import NamespacedId, RandomThread
from .suite import MANY, Suite, offers, stored


class Cell(NamedTuple):
    """One stored value, accessed below the saver: a column of a row, an entry, a file.

    Attributes:
        place: the kind of the value, such as `"checkpoints.frame"`. Cells of one place hold similar values.
        get: returns the stored value.
        put: stores another value and commits it, or raises if the database refuses the value. The saver is open
            meanwhile.
    """

    place: str
    get: Callable[[], object]
    put: Callable[[object], None]


REPLACEMENTS: Final[tuple[object, ...]] = (
    *(None, 0, 1, -1, 7, 2**31, 2**62, 2**63 - 1, -(2**63), 1.5, -0.0, 1e308),
    *("", "x", "a\x00", "\ufeff", "[]", "{}", '{"a": 1', "null", "1", "9" * 400, "result", "head"),
    *(b"", b"\x00", b"\xff\xfe", b"{}", b"\xc1F", b"\xc1F\x01" + bytes(12), bytes(100)),
)
"""Values that replace a stored one."""


def damaged_values(value: object, chance: random.Random) -> Iterator[object]:
    """Generate values that damage may leave in a cell.

    Args:
        value: the stored value.
        chance: decides where bits flip and where values are cut.

    Yields:
        Values of other types, and the value with flipped bits, cut, doubled or shifted.
    """
    yield from REPLACEMENTS
    if isinstance(value, bytes | memoryview | bytearray) and value:
        data = bytes(value)
        for _ in range(8):
            flipped = bytearray(data)
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            yield bytes(flipped)
        at = chance.randrange(len(data))
        yield from (data[:at], data[at:], data + b"\x00", data * 2, data[:at] + bytes(len(data) - at))
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        yield from (value[:at], value[at:], value + "x", value * 2, value[:at] + "\x7f" + value[at + 1 :])
        yield from (value.encode(), value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :])
    if isinstance(value, int):
        yield from (value + 1, value - 1, value ^ (1 << 20), str(value), float(value), bool(value))


class Damage(Suite):
    """Clauses that damage stored values below the saver.

    Attributes:
        damages: the number of values to damage, one at a time. Larger numbers find more defects.
    """

    damages: int = 300

    @pytest.fixture
    def cells(self) -> Callable[[], Sequence[Cell]] | None:
        """Return a function that lists all stored values as cells; None if they can be reached only through the
        saver."""
        return None

    async def test_whatever_a_cell_holds(
        self, saver: BaseCheckpointSaver, cells: Callable[[], Sequence[Cell]] | None
    ) -> None:
        """P11: whatever a cell holds, each verb that reads returns the stored state and records of the right types, or
        raises CorruptCheckpointError or UnsupportedFormatError (for a newer format)."""
        if cells is None:
            pytest.skip("this saver gives no access to its stored values (fixture `cells`)")
        await RandomThread(saver, "t", 5).grow(12)
        await RandomThread(saver, "u", 6, first=1000).grow(3)
        before = await stored(saver)
        right = await states(saver)
        chance = random.Random(1)
        met: set[str] = set()
        for cell in sample(cells(), self.damages, chance):
            whole = cell.get()
            value = chance.choice([*damaged_values(whole, chance)])
            try:
                cell.put(value)
            except Exception:
                continue  # the database refuses the value
            met.add(cell.place)
            await self._check_readers(saver, right, f"{cell.place}: {value!r} instead of {whole!r}")
            cell.put(whole)
        assert met, "no cell could be damaged"
        assert await stored(saver) == before
        assert await states(saver) == right

    async def _check_readers(
        self, saver: BaseCheckpointSaver, right: dict[NamespacedId, CheckpointTuple], where: str
    ) -> None:
        """Call every verb that reads, and check that each returns the right state or raises one of the two errors."""
        for name, read in readers(saver, right).items():
            try:
                found = await read()
            except (CorruptCheckpointError, UnsupportedFormatError):
                continue
            except Exception as error:
                raise AssertionError(f"{name} raises {error!r}. {where}") from error
            wrong = next(ill_typed_records(found), None)
            assert wrong is None, f"{name} gives {wrong}. {where}"
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, CheckpointTuple):
                    known = right.get((one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]))
                    if known is not None:
                        assert one.checkpoint == known.checkpoint, f"{name} gives another state. {where}"
            if name == "alist" and isinstance(found, list):
                gaps = parents_of(found) - keys_of(found)
                assert not gaps, f"{name} lacks {min(gaps)}, the parent of what it lists. {where}"
            for event in found if isinstance(found, tuple) else ():
                if isinstance(event, EventRow):
                    try:
                        body = bytes(unseal(event.frame, "an event"))
                    except (CorruptCheckpointError, UnsupportedFormatError):
                        continue
                    assert body.decode() in {id for _, id in right}, f"{name} gives another event. {where}"


def sample(cells: Iterable[Cell], count: int, chance: random.Random) -> Iterator[Cell]:
    """Choose cells, each place equally often.

    Args:
        cells: all cells.
        count: the number of cells to choose; at least one of each place.
        chance: decides which cell of a place.
    """
    places: dict[str, list[Cell]] = {}
    for cell in cells:
        places.setdefault(cell.place, []).append(cell)
    for number in range(max(count, len(places)) if places else 0):
        yield chance.choice(list(places.values())[number % len(places)])


async def states(saver: BaseCheckpointSaver) -> dict[NamespacedId, CheckpointTuple]:
    """Read all states of both threads, which have no checkpoint id in common."""
    found: dict[NamespacedId, CheckpointTuple] = {}
    for thread in ("t", "u"):
        async for one in saver.alist(thread):
            place = one.config["configurable"]
            found[place["checkpoint_ns"], place["checkpoint_id"]] = one
    return found


def readers(
    saver: BaseCheckpointSaver, right: dict[NamespacedId, CheckpointTuple]
) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return calls of every verb that reads, by a name for messages.

    Args:
        saver: the saver.
        right: the undamaged states, by namespace and checkpoint id.
    """
    places = sorted(right)
    some = [places[0], places[len(places) // 2], places[-1]]

    async def listed() -> object:
        return [one async for one in saver.alist("t")]

    async def asked() -> object:
        return [
            await saver.aget_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ns, "checkpoint_id": id}})
            for ns, id in some
        ]

    async def chains() -> object:
        return [await saver.read("t", ns, id) for ns, id in some]

    found: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: saver.read("t"),
        "read of each": chains,
        "segment": lambda: saver.segment("t", some[0][0], some[0][1]),
        "scan": lambda: saver.scan(None, None, limit=MANY),
        "scan of a thread": lambda: saver.scan("t", "", before=some[-1][1]),
        "scan with a filter": lambda: saver.scan("t", None, filter={"source": "loop", "step": 3}),
        "events": lambda: saver.events("t", limit=MANY),
        "aget_tuple": lambda: saver.aget_tuple("t"),
        "aget_tuple of each": asked,
        "alist": listed,
    }
    if offers(saver, "threads"):
        found["threads"] = saver.threads
        found["threads with a filter"] = lambda: saver.threads(filter={"user": "Ada"})
    if offers(saver, "dump"):
        found["dump"] = lambda: saver.dump("t")
    return found


def keys_of(listed: Iterable[CheckpointTuple]) -> set[NamespacedId]:
    """Return the namespaces and ids of the listed checkpoints."""
    return {(one.config["configurable"]["checkpoint_ns"], one.checkpoint["id"]) for one in listed}


def parents_of(listed: Iterable[CheckpointTuple]) -> set[NamespacedId]:
    """Return the namespaces and ids of the parents of the listed checkpoints."""
    places = [one.parent_config["configurable"] for one in listed if one.parent_config is not None]
    return {(place["checkpoint_ns"], place["checkpoint_id"]) for place in places}


def ill_typed_records(found: Any) -> Iterator[object]:
    """Find records whose fields have other types than the port declares.

    Args:
        found: the result of a verb.

    Yields:
        A description of each such record.
    """
    if isinstance(found, tuple | list):
        for one in found:
            yield from ill_typed_records(one)
    elif isinstance(found, msgspec.Struct) and not isinstance(found, CheckpointTuple):
        fields = {name: getattr(found, name) for name in found.__struct_fields__}
        for name, value in fields.items():
            if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
                yield from ill_typed_records(value)
                fields[name] = ()
            elif isinstance(value, msgspec.Struct):
                yield from ill_typed_records(value)
                fields[name] = msgspec.structs.asdict(value)
        try:
            msgspec.convert(fields, type(found), builtin_types=(bytes,))
        except msgspec.ValidationError as error:
            yield f"{found!r} ({error})"
