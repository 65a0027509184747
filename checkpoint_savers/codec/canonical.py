"""The canonical form: bytes that are equal exactly if two values are equal, whatever the order of their parts.

`encode` preserves the order of a dict, since decoding must restore it. The canonical form is never decoded: it
identifies a value. So everything without an order of its own (dicts, Counters, sets, the attributes of an object) is
sorted, and all else is as `encode` has it, types included: 1, 1.0 and True are three values.

Values that Python considers equal, but that code can distinguish, have different bytes: 0.0 and -0.0, Decimal("1.0")
and Decimal("1.00"), one moment in two time zones, a pydantic model with a field set and one with the same value by
default. A cache that looks results up by these bytes then computes once more, but never returns the result of another
value. NaN is the one exception: all NaNs are one value here, although Python says that NaN equals nothing; otherwise a
value that contains one would never be found again. The several NaNs of Decimal are distinguished by their text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, cast

from . import codes, containers, scalars
from .containers import array_header, plain_keys
from .writing import SCALARS, NodeValueWriter, Refused, ValueWriter, WriteFunction, enter, ext, pack, short_repr

TYPE_NAME: Final = 127
"""The extension code of a type's name in a digest. It is not in codes.py: digests are compared and never decoded."""

_NAMES: Final = frozenset({str})


class CanonicalWriter(NodeValueWriter):
    """Prepares values so that equal ones are packed into equal bytes."""

    __slots__ = ()

    def fields(self, values: Mapping[str, object], enclosing: set[int]) -> dict[str, object]:
        return super().fields({name: values[name] for name in sorted(values)}, enclosing)


class DigestWriter(CanonicalWriter):
    """Prepares values of any kind: one that cannot be stored is replaced by the name of its type, at any depth."""

    __slots__ = ("_name_of",)

    def __init__(
        self, table: Mapping[type, WriteFunction], safe: frozenset[type], name_of: Callable[[type], str]
    ) -> None:
        # The name instead of an explanation: `prepare` discards it, and an explanation takes 0.3 ms to make.
        super().__init__(table, safe, name_of)
        self._name_of = name_of

    def prepare(self, value: object, enclosing: set[int]) -> object:
        try:
            return super().prepare(value, enclosing)
        except Refused:
            enclosing.discard(id(value))  # only this value: nested ones were discarded by nested calls
            return ext(TYPE_NAME, self._name_of(type(value)).encode("utf-8", "surrogatepass"))


def _write_float(value: float, writer: ValueWriter, enclosing: set[int]) -> object:
    return math.nan if value != value else value


def _write_complex(value: complex, writer: ValueWriter, enclosing: set[int]) -> object:
    parts = [cast("float", _write_float(part, writer, enclosing)) for part in (value.real, value.imag)]
    return scalars.WRITERS[complex](complex(*parts), writer, enclosing)


def _write_dict(value: dict[object, object], writer: ValueWriter, enclosing: set[int]) -> object:
    if _NAMES.issuperset(map(type, value)) and plain_keys(value, writer, enclosing):
        out = cast("dict[str, object]", containers.WRITERS[dict](value, writer, enclosing))
        return {key: out[key] for key in sorted(out)}
    return ext(codes.DICT, _pairs(value, writer, enclosing))


def _write_counter(value: Counter[object], writer: ValueWriter, enclosing: set[int]) -> object:
    return ext(codes.COUNTER, _pairs(cast("dict[object, object]", value), writer, enclosing))


def _pairs(value: dict[object, object], writer: ValueWriter, enclosing: set[int]) -> bytes:
    """Return the payload: key, value, key, value, sorted by their bytes."""
    enter(value, enclosing)
    out = list[bytes]()
    for key, item in value.items():
        try:
            name = pack(writer.prepare(key, enclosing))
        except Refused as refused:
            refused.parts.append(f"<key {short_repr(key)}>")
            raise
        try:
            out.append(name + pack(writer.prepare(item, enclosing)))
        except Refused as refused:
            refused.parts.append(f"[{short_repr(key)}]")
            raise
    enclosing.discard(id(value))
    out.sort()
    return array_header(2 * len(out)) + b"".join(out)


WRITERS: Final[dict[type, WriteFunction]] = {
    **scalars.WRITERS,
    **containers.WRITERS,
    float: _write_float,
    complex: _write_complex,
    dict: _write_dict,
    Counter: _write_counter,
}

SAFE: Final = SCALARS - {float}
"""Types whose values are encoded unchanged."""


def is_canonical(value: object) -> bool:
    """Return True if a value can be encoded unchanged.

    Args:
        value: the value.
    """
    return type(value) in SAFE
