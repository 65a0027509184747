"""Damaged frames give the right value or an error of this package: never another exception, an import, or a hang (P11).

`PREGEL_FUZZ` is the number of cases; each case is made from its own number, so that a failing one can be run alone.
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import importlib
import os
import random
import struct
import sys
import time
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_network
from pathlib import Path, PureWindowsPath
from typing import NamedTuple, NoReturn
from unittest.mock import patch
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from checkpoint_savers import errors
from checkpoint_savers.chain import ChainReader, ChainWriter
from checkpoint_savers.codec import Codec, scalars, seal, unseal
from checkpoint_savers.deltas import SENDS, Delta, TaskResult, read_record, write_record
from checkpoint_savers.patches import decode
from checkpoint_savers.records import FORMAT, CheckpointId, CheckpointRow, TaskId, TaskRecord

CASES = int(os.environ.get("PREGEL_FUZZ", "20000"))
BATCHES = 8
"""The number of tests that share the cases, so that they can run in parallel."""

SECONDS = 2.0
"""The processor time that one case may take, in seconds. Most take 20 microseconds."""


HEADER = 15
"""The number of bytes of a frame before its body."""


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Pair(NamedTuple):
    left: object
    right: object = None


@dataclass
class Order:
    id: UUID
    lines: list[tuple[str, Decimal]]
    kind: Kind = Kind.ONE


@dataclass
class OldLine:
    name: str
    cents: int


@dataclass
class Line:
    title: str
    price: float


class Note(msgspec.Struct, frozen=True):
    text: str
    at: datetime
    more: dict[str, object] = {}

    def __post_init__(self) -> None: ...


class Account(pydantic.BaseModel, extra="allow"):
    name: str
    _hidden: int = pydantic.PrivateAttr(1)


class Words(list[str]):
    pass


class Opaque:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Opaque({self.text!r})"


CODEC = (
    Codec()
    .with_types(Kind, Flags, Pair, Order, Note, Account, Words)
    .with_types(
        Line,
        tag="Line",
        version=2,
        upcast={1: lambda fields: {"name": fields["name"], "price": fields["cents"] / 100}},
        renamed={"name": "title"},
    )
    .with_type(Opaque, encode=lambda opaque: opaque.text, decode=lambda text: Opaque("" + text))
)

BERLIN = ZoneInfo("Europe/Berlin")
VALUES: list[object] = [
    [{"id": f"m{i}", "role": "user", "content": "hello " * 5, "meta": {"tokens": i, "ok": True}} for i in range(5)],
    {"n": [None, 2**63, -5, 1.5, b"bytes"], 5: {}, 2.5: [], None: "x"},
    [
        2**200,
        -(2**90),
        "\ud800x",
        bytearray(b"xyz"),
        1 + 2j,
        Decimal("-12.50E+7"),
        Fraction(22, 2**70),
        range(0, 99, 3),
    ],
    [
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        datetime(2024, 1, 1, tzinfo=UTC),
        timedelta(1, 2, 3),
        BERLIN,
    ],
    [datetime(2024, 1, 1, 5, 6, 7).time(), datetime(2024, 1, 1).date(), timezone(timedelta(hours=5), "five")],
    [
        UUID(int=99),
        Path("a/b"),
        PureWindowsPath("c:\\x"),
        ip_address("::1"),
        ip_network("10.0.0.0/8"),
        slice(1, (2,), 3),
    ],
    {(1, (2, "x")): {3, "b"}, frozenset({1}): deque([1, 2], 5)},
    [
        (1, (2, "x")),
        {3},
        frozenset({(1,), None}),
        deque([1, 2], 5),
        {(): 1, None: 2},
        OrderedDict(a=1),
        Counter("abca"),
    ],
    [Kind.TWO, Flags.A | Flags.B, Pair(1, (2,)), Words(["a", "b"]), Opaque("x"), msgspec.UNSET],
    [Order(UUID(int=5), [("x", Decimal("1.10")), ("y", Decimal(3))]), Note("n", datetime(2024, 1, 1, tzinfo=UTC))],
    [Account(name="n", more=[1, 2]), Account(name="m"), {"deep": [[[[(((1,),),)]]]]}],
]

ID = CheckpointId("01")
Reads = Callable[[bytes], object]


def read_value(frame: bytes) -> object:
    return CODEC.decode(unseal(frame, "a frame"), channel="c")


def read_delta(frame: bytes) -> object:
    """Decode a checkpoint as a saver does: state, header, and the results of its tasks."""
    row = CheckpointRow(ns="", checkpoint_id=ID, parent_id=None, base_id=ID, step=1, metadata={}, frame=frame)
    reader = ChainReader("t", "", [row])
    state = reader.state(ID)
    shared = {name: decode(value, CODEC, channel=name) for name, value in state.values.items()}
    return state.decode(ID, CODEC), shared, [*state.ran], reader.results(ID)


def read_task(frame: bytes) -> object:
    record = TaskRecord(ns="", checkpoint_id=ID, task_id=TaskId("x"), index=0, kind="result", frame=frame)
    entry = read_record(record, "t")
    return entry.name, [(channel, CODEC.decode(data, channel=channel)) for channel, data in entry.writes], entry.error


def encoded(value: object) -> bytes:
    return CODEC.encode(value, channel="c")


def entry(start: int, stop: int) -> bytes:
    values = {f"channel{i}": encoded(value) for i, value in enumerate(VALUES[start:stop])}
    made = Delta(
        keyframe=True,
        ts=1.7e9,
        clock=7,
        values=values | {SENDS: encoded([("node", {"x": 1}), ("node", (2,))])},
        emptied=("gone",),
        kinds=dict.fromkeys(values, "LastValue"),
        versions={"channel0": 3},
        seen={"channel0": {"node": 3, "other": 2}, "channel1": {"node": 7}},
        ran=("node", "other"),
        results={"task": (("channel1", None), ("channel2", encoded(VALUES[2])))},
    )
    return ChainWriter.start("").append(made, checkpoint_id=ID, step=1, metadata={}).frame


def tasks() -> Iterator[bytes]:
    writes = tuple((f"channel{i}", encoded(value)) for i, value in enumerate(VALUES[4:8]))
    yield write_record(TaskResult(name="node", writes=writes))
    yield write_record(TaskResult(name="node", routed=False, error=("ValueError", "no", 1.7e9)))


FRAMES: list[tuple[Reads, bytes]] = [
    *((read_value, seal(encoded(value))) for value in VALUES),
    (read_value, seal(Codec().with_types(OldLine, tag="Line").encode([OldLine("pen", 120)], channel="c"))),
    *((read_delta, entry(start, start + 3)) for start in (0, 3, 6)),
    *((read_task, frame) for frame in tasks()),
]
EXPECTED = [repr(read(frame)) for read, frame in FRAMES]
"""Values are compared as text, as some are not equal to themselves. test_codec.py compares what repr leaves out."""

LIES = [
    *(
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdc\xff\xff",
    ),
    *(
        b"\xc9\xff\xff\xff\xff\x20",
        b"\xc9\x00\x00\x00\x04\x01",
        b"\xc7\xff\x05",
        b"\xcf" + b"\xff" * 8,
        b"\xcb" + b"\x7f\xf8",
    ),
    *(
        b"\xc1",
        b"\xc0",
        b"\x90",
        b"\x80",
        b"\xd9\xff",
        b"1E+999999999999",
        b"\x91" * 30,
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x00\x00",
    ),
]
"""Headers of values that are longer than the bytes that follow, numbers at their limits, and other misleading bytes."""


def mutated(frame: bytes, chance: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(data) or 1)
        match chance.randrange(12):
            case 0 | 1 | 2 if data:
                data[at] ^= 1 << chance.randrange(8)
            case 3 | 4 if data:
                data[at] = chance.randrange(256)
            case 5 if data:
                to = chance.randrange(len(data))
                data[at], data[to] = data[to], data[at]
            case 6:  # a piece of another frame
                other = chance.choice(FRAMES)[1]
                start = chance.randrange(len(other))
                piece = other[start : start + chance.randrange(40)]
                data[at : at + chance.choice((0, len(piece)))] = piece
            case 7:
                lie = chance.choice(LIES)
                data[at : at + chance.choice((0, 1, len(lie)))] = lie
            case 8:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 9:
                del data[at : at + chance.randrange(1, 9)]
            case 10:
                del data[at:]
            case _:
                data.append(chance.randrange(256))
    return bytes(data)


EXTENSIONS = [
    msgspec.msgpack.decode(encoded(value), type=msgspec.msgpack.Ext)
    for values in VALUES
    for value in (values if isinstance(values, list) else [values])
    if encoded(value)[0] in range(0xC7, 0xCA) or encoded(value)[0] in range(0xD4, 0xD9)
]
"""Each top-level extension among the values."""


def mutated_extension(chance: random.Random) -> bytes:
    """Damage inside an extension whose length is right, so that the type's own reader gets the damaged bytes."""
    whole = chance.choice(EXTENSIONS)
    code = chance.randrange(-128, 128) if chance.random() < 0.1 else whole.code
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, mutated(bytes(whole.data), chance)))


def reseal(number: int, body: bytes) -> bytes:
    start = struct.pack(">2sBQ", b"\xc1F", number, len(body))
    return start + zlib.crc32(start + body).to_bytes(4, "big") + body


class Imported(BaseException):
    """An import happened. A BaseException, so that no `except Exception` hides it."""


@contextlib.contextmanager
def no_imports() -> Iterator[None]:
    def refuse(name: str, *rest: object, **options: object) -> NoReturn:
        raise Imported(name)

    scalars._listed()  # reads the names of time zones once, by imports of the standard library's own
    with patch.object(builtins, "__import__", refuse), patch.object(importlib, "import_module", refuse):
        yield


def check(number: int) -> str:
    """Run a case, and return its outcome."""
    chance = random.Random(number)
    which = chance.randrange(len(FRAMES))
    read, frame = FRAMES[which]
    remade, format_number = chance.getrandbits(1), FORMAT
    if remade:
        format_number = chance.randrange(256) if chance.random() < 0.02 else FORMAT
        inside = read is read_value and chance.random() < 0.5
        damaged = reseal(format_number, mutated_extension(chance) if inside else mutated(frame[HEADER:], chance))
    else:
        damaged = mutated(frame, chance)
    case = f"case {number}, {read.__name__} of {damaged.hex()}"
    started = time.thread_time()
    try:
        value = read(damaged)
    except errors.UnsupportedFormatError:
        outcome = "newer"
    except errors.CorruptCheckpointError:
        outcome = "corrupt"
    except errors.StoredTypeChangedError as error:
        if (
            not remade
        ):  # only a checksum that fits the damage can make it look like an object of another version's class
            raise Wrong(f"{type(error).__name__}: {error}: {case}") from error
        outcome = "corrupt"
    except BaseException as error:
        raise Wrong(f"{type(error).__name__}: {error}: {case}") from error
    else:
        outcome = (
            "a value" if damaged != frame else "the right value" if repr(value) == EXPECTED[which] else "a wrong value"
        )
    if time.thread_time() - started > SECONDS:
        raise Wrong(f"too slow: {case}")
    allowed = {"the right value"} if damaged == frame else {"newer"} if format_number > FORMAT else {"corrupt"}
    if remade and format_number == FORMAT and damaged != frame:
        allowed.add("a value")
    if outcome not in allowed:
        raise Wrong(f"{outcome} instead of {' or '.join(allowed)}: {case}")
    return outcome


class Wrong(Exception):
    """An exception of its own, because pytest imports modules to explain a failed assert."""


@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_frames_give_the_right_value_or_an_error(batch: int) -> None:
    before = peak()
    with no_imports():
        outcomes = Counter(check(number) for number in range(batch, CASES, BATCHES))
    assert peak() - before < 200 * 2**20, "much memory for small frames"
    assert sum(outcomes.values()) == len(range(batch, CASES, BATCHES))


def test_the_cases_reach_every_outcome() -> None:
    with no_imports():
        outcomes = Counter(check(number) for number in range(3000))
    assert outcomes.keys() == {"corrupt", "a value", "the right value", "newer"}, outcomes
    assert 1000 < outcomes["corrupt"] < 2900, outcomes


def test_an_import_is_detected() -> None:
    def imports(text: object) -> Opaque:
        import wsgiref.simple_server  # noqa: F401  # the import is what has to be noticed

        return Opaque("x")

    codec = Codec().with_type(Opaque, encode=lambda opaque: opaque.text, decode=imports)
    data = codec.encode(Opaque("x"), channel="c")
    with no_imports(), pytest.raises(Imported):
        codec.decode(data, channel="c")


def peak() -> int:
    """The peak memory of this process, in bytes; 0 where it is unknown."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
