"""Encodes and decodes scalar types that MessagePack lacks.

Each pair of functions is adjacent; one-line pairs are in the tables at the end.

Reading takes time and memory in proportion to the bytes, whatever they contain: no exponent is computed, and the name
of a time zone opens no file outside the zone database.
"""

from __future__ import annotations

import os
import re
import zoneinfo
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from struct import Struct
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UnsetType

from . import codes
from .reading import Damaged, Loader, ReadFunction
from .writing import MAX_BYTES, Refused, ValueWriter, WriteFunction, ext, pack


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "surrogatepass")


def _bytes(text: str) -> bytes:
    # Texts with lone surrogates do occur: os.fsdecode uses them for bytes of file names that are not UTF-8.
    return text.encode("utf-8", "surrogatepass")


def _as_it_is(value: object, writer: ValueWriter, enclosing: set[int]) -> object:
    return value


def _write_int(value: int, writer: ValueWriter, enclosing: set[int]) -> object:
    if -(2**63) <= value < 2**64:
        return value
    return ext(codes.BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _write_str(value: str, writer: ValueWriter, enclosing: set[int]) -> object:
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        return ext(codes.SURROGATES, _bytes(value))
    if size > MAX_BYTES:
        raise Refused(f"a str of {size} bytes, and one value may take {MAX_BYTES}")
    return value


def _write_bytes(value: bytes, writer: ValueWriter, enclosing: set[int]) -> object:
    if len(value) > MAX_BYTES:
        raise Refused(f"{len(value)} bytes, and one value may take {MAX_BYTES}")
    return value


_COMPLEX = Struct(">dd")

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation])
"""Used instead of the thread's own context, in which an invalid text may give NaN instead of an error."""

_FRACTION_BITS: Final = 65_536  # making one divides by the gcd, which is quadratic in the length


def _write_decimal(value: Decimal, writer: ValueWriter, enclosing: set[int]) -> object:
    return ext(codes.DECIMAL, _EXACT.to_sci_string(value).encode("ascii"))


def _read_decimal(data: memoryview, loader: Loader) -> object:
    text = str(data, "ascii")
    value = Decimal(text, _EXACT)
    if _EXACT.to_sci_string(value) != text:
        raise Damaged("a decimal number that was not written here")
    return value


def _write_fraction(value: Fraction, writer: ValueWriter, enclosing: set[int]) -> object:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _FRACTION_BITS:
        raise Refused(f"a fraction of numbers of more than {_FRACTION_BITS} bits")
    return ext(codes.FRACTION, pack(writer.items((value.numerator, value.denominator), enclosing)))


def _read_fraction(data: memoryview, loader: Loader) -> object:
    top, bottom = _ints(data, loader, 2)
    if max(top.bit_length(), bottom.bit_length()) > _FRACTION_BITS:
        raise Damaged("a fraction too long to have been written")
    return Fraction(top, bottom)


def _write_range(value: range, writer: ValueWriter, enclosing: set[int]) -> object:
    return ext(codes.RANGE, pack(writer.items((value.start, value.stop, value.step), enclosing)))


def _ints(data: memoryview, loader: Loader, count: int) -> list[int]:
    found = [part for part in loader.list(data) if type(part) is int]
    if len(found) != count:
        raise Damaged(f"{len(found)} whole numbers where {count} belong")
    return found


_DATE = Struct(">HBB")
_DATETIME = Struct(">HBBBBBIB")
_TIME = Struct(">BBBIB")
_TIMEDELTA = Struct(">iii")

_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


def _write_uuid(value: UUID, writer: ValueWriter, enclosing: set[int]) -> object:
    safe = value.is_safe.value  # None when nothing is known, as for all but uuid1
    return ext(codes.UUID, value.bytes if safe is None else value.bytes + safe.to_bytes(1, "big", signed=True))


def _read_uuid(data: memoryview, loader: Loader) -> object:
    safe = SafeUUID.unknown if len(data) == 16 else SafeUUID(int.from_bytes(data[16:], "big", signed=True))
    return UUID(bytes=bytes(data[:16]), is_safe=safe)


def _write_datetime(value: datetime, writer: ValueWriter, enclosing: set[int]) -> object:
    moment = _DATETIME.pack(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold
    )
    return ext(codes.DATETIME, moment + _write_tzinfo(value.tzinfo, writer, enclosing))


def _read_datetime(data: memoryview, loader: Loader) -> object:
    year, month, day, hour, minute, second, micro, fold = _DATETIME.unpack_from(data)
    zone = _read_tzinfo(data[_DATETIME.size :], loader)
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _write_time(value: time, writer: ValueWriter, enclosing: set[int]) -> object:
    moment = _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    return ext(codes.TIME, moment + _write_tzinfo(value.tzinfo, writer, enclosing))


def _read_time(data: memoryview, loader: Loader) -> object:
    hour, minute, second, micro, fold = _TIME.unpack_from(data)
    return time(hour, minute, second, micro, _read_tzinfo(data[_TIME.size :], loader), fold=fold)


def _write_tzinfo(zone: tzinfo | None, writer: ValueWriter, enclosing: set[int]) -> bytes:
    """Return the encoded zone: empty for None, and one byte (an encoded None) for UTC, the most frequent one."""
    if zone is None:
        return b""
    if zone is UTC:
        return b"\xc0"
    try:
        return pack(writer.prepare(zone, enclosing))
    except Refused as refused:
        refused.parts.append(".tzinfo")
        raise


def _read_tzinfo(data: memoryview, loader: Loader) -> tzinfo | None:
    if not data:
        return None
    zone = loader.any(data)
    if zone is None:
        return UTC
    if not isinstance(zone, tzinfo):
        raise Damaged("a time whose zone is none")
    return zone


def _write_timedelta(value: timedelta, writer: ValueWriter, enclosing: set[int]) -> object:
    return ext(codes.TIMEDELTA, _TIMEDELTA.pack(value.days, value.seconds, value.microseconds))


def _write_timezone(value: timezone, writer: ValueWriter, enclosing: set[int]) -> object:
    # As copy does. Nothing else distinguishes an explicit name from one derived from the offset.
    offset, *name = cast("tuple[timedelta] | tuple[timedelta, str]", cast("Any", value).__getinitargs__())
    packed = _TIMEDELTA.pack(offset.days, offset.seconds, offset.microseconds)
    return ext(codes.TIMEZONE, packed + b"".join(b"=" + _bytes(given) for given in name))


def _read_timezone(data: memoryview, loader: Loader) -> object:
    offset = timedelta(*_TIMEDELTA.unpack_from(data))
    name = _text(data[_TIMEDELTA.size :])
    return timezone(offset, name[1:]) if name else timezone(offset)


def _write_zone(value: ZoneInfo, writer: ValueWriter, enclosing: set[int]) -> object:
    try:
        _zone(value.key)
    except (Damaged, ValueError, OSError, TypeError) as error:  # a TypeError: from a file, without a key
        raise Refused(f"the time zone {value.key!r} is not one of this machine's database") from error
    return ext(codes.ZONE, value.key.encode())


@lru_cache(maxsize=1024)
def _zone(key: str) -> ZoneInfo:
    # ZoneInfo(key) imports a module named after the key if there is no such file. So only existing names are passed to
    # it: those of a file, or those that the tzdata package lists (the only package that may be imported here).
    if not _ZONE_KEY.fullmatch(key):
        raise Damaged("no name of a time zone")
    files = (os.path.join(root, *key.split("/")) for root in zoneinfo.TZPATH)
    if not any(map(os.path.isfile, files)) and key not in _listed():
        raise Damaged(f"the time zone {key!r} is not in this machine's database (pip install tzdata)")
    return ZoneInfo(key)


@lru_cache(maxsize=1)
def _listed() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


# Paths and addresses are stored as the index of their class in these tuples, and text: append only.
_PATHS: Final = (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)
_ADDRESSES: Final = (IPv4Address, IPv6Address, IPv4Network, IPv6Network, IPv4Interface, IPv6Interface)


def _write_named(code: int, classes: Sequence[type]) -> WriteFunction:
    return lambda value, writer, enclosing: ext(code, bytes((classes.index(type(value)),)) + _bytes(str(value)))


WRITERS: Final[dict[type, WriteFunction]] = {
    NoneType: _as_it_is,
    bool: _as_it_is,
    float: _as_it_is,
    int: _as_it_is,
    str: _as_it_is,
    bytes: _as_it_is,
    bytearray: lambda value, writer, enclosing: ext(codes.BYTEARRAY, bytes(value)),
    complex: lambda value, writer, enclosing: ext(codes.COMPLEX, _COMPLEX.pack(value.real, value.imag)),
    Decimal: _write_decimal,
    Fraction: _write_fraction,
    range: _write_range,
    UUID: _write_uuid,
    date: lambda value, writer, enclosing: ext(codes.DATE, _DATE.pack(value.year, value.month, value.day)),
    datetime: _write_datetime,
    time: _write_time,
    timedelta: _write_timedelta,
    timezone: _write_timezone,
    ZoneInfo: _write_zone,
    **dict.fromkeys(_PATHS, _write_named(codes.PATH, _PATHS)),
    **dict.fromkeys(_ADDRESSES, _write_named(codes.IP, _ADDRESSES)),
    # What a msgspec Struct has in a field that was not given.
    UnsetType: lambda value, writer, enclosing: ext(codes.UNSET, b""),
}

CAREFUL: Final[dict[type, WriteFunction]] = {int: _write_int, str: _write_str, bytes: _write_bytes}
"""Writers that check the size of ints, strs and bytes: used after MessagePack has refused a value."""

READERS: Final[dict[int, ReadFunction]] = {
    codes.BIG_INT: lambda data, loader: int.from_bytes(data, "big", signed=True),
    codes.SURROGATES: lambda data, loader: _text(data),
    codes.BYTEARRAY: lambda data, loader: bytearray(data),
    codes.COMPLEX: lambda data, loader: complex(*_COMPLEX.unpack(data)),
    codes.DECIMAL: _read_decimal,
    codes.FRACTION: _read_fraction,
    codes.RANGE: lambda data, loader: range(*_ints(data, loader, 3)),
    codes.UUID: _read_uuid,
    codes.DATE: lambda data, loader: date(*_DATE.unpack(data)),
    codes.DATETIME: _read_datetime,
    codes.TIME: _read_time,
    codes.TIMEDELTA: lambda data, loader: timedelta(*_TIMEDELTA.unpack(data)),
    codes.TIMEZONE: _read_timezone,
    codes.ZONE: lambda data, loader: _zone(str(data, "utf-8")),
    codes.PATH: lambda data, loader: _PATHS[data[0]](_text(data[1:])),
    codes.IP: lambda data, loader: _ADDRESSES[data[0]](_text(data[1:])),
    codes.UNSET: lambda data, loader: msgspec.UNSET,
}
