"""What a search's filter matches.

Filters are evaluated here, in Python, for all stores alike: no text of a filter becomes part of a query, and no
database's own rules for types apply.

    {"kind": "dish"}                     the value's "kind" equals "dish"
    {"kind": "dish", "rating": 5}        both
    {"rating": {"$gte": 3, "$lt": 5}}    an operator: $eq, $ne, $gt, $gte, $lt, $lte
    {"cook": {"name": "Ann"}}            nested: "cook" is a dict whose "name" equals "Ann"; it may have more keys
    {"tags": ["hot", {"$ne": "raw"}]}    a list of as many elements, each of which matches

What is equal
    Values that Python calls equal, of any types: 1 and 1.0. But a bool is no number: True does not equal 1. Lists and
        tuples are equal if their elements are, dicts if they have the same keys and equal values. NaN equals nothing.
    A missing key counts as None. `$ne` is the opposite of `$eq`.

What is greater
    Numbers are compared with numbers (int, float, Decimal, Fraction; not bool), texts with texts by code point, bytes
    with bytes, and a date, time, datetime or timedelta with another of its kind. Any other pair is not comparable, nor
    is a datetime with a zone and one without, nor NaN: such a pair does not match, and that is no error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

Check: TypeAlias = Callable[[Any], bool]
"""Returns True if a value matches. Raises nothing."""


def compile_filter(filter: Mapping[str, Any]) -> Check:
    """Compile a filter.

    Args:
        filter: must not be changed afterwards.

    Returns:
        A function that returns True if an item's value matches.

    Raises:
        TypeError: a key is not a str.
        ValueError: an operator does not exist, or stands where a key is expected.
    """
    checks = dict[str, Check]()
    for key, wanted in cast("Mapping[object, Any]", filter).items():
        if not isinstance(key, str):
            raise TypeError(f"a filter's keys are texts, not {key!r}")
        if key.startswith("$"):
            raise ValueError(f"a filter is by key: {{'rating': {{{key!r}: ...}}}}, not {{{key!r}: ...}}")
        checks[key] = _check(wanted)
    return _match_mapping(checks)


def _match_mapping(checks: dict[str, Check]) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(one(value.get(key)) for key, one in checks.items())

    return check


def _check(wanted: Any) -> Check:
    if isinstance(wanted, dict):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            return _match_operators(wanted)
        return _match_mapping({key: _check(one) for key, one in wanted.items()})
    if isinstance(wanted, list | tuple):
        return _match_sequence([_check(one) for one in wanted])
    return lambda value: equal(value, wanted)


def _match_sequence(checks: list[Check]) -> Check:
    def check(value: Any) -> bool:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(checks)
            and all(one(element) for one, element in zip(checks, value, strict=True))
        )

    return check


def _match_operators(wanted: dict[Any, Any]) -> Check:
    for name in wanted:
        if name not in OPERATORS:
            raise ValueError(f"a filter has no operator {name!r}; there are {', '.join(OPERATORS)}")
    pairs = [(OPERATORS[name], operand) for name, operand in wanted.items()]
    return lambda value: all(holds(value, operand) for holds, operand in pairs)


def equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal, as filters define it.

    Args:
        one: a value.
        other: another value.

    Returns:
        True if they are equal.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    # Python calls True equal to 1; to a user who filters JSON-like values they differ.
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    try:
        return bool(one == other)
    except Exception:  # a user's class may refuse the comparison: not equal
        return False


def _differs(one: Any, other: Any) -> bool:
    return not equal(one, other)


_NUMBERS: Final = (int, float, Decimal, Fraction)

_ORDERED: Final = (str, bytes, datetime, date, time, timedelta)
"""Types with an order. To Python a datetime is a date, so datetime stands first."""


def _kind(value: Any) -> type | None:
    """Return the kind that a value is comparable with, or None."""
    if isinstance(value, _NUMBERS):
        return None if isinstance(value, bool) else int
    return next((kind for kind in _ORDERED if isinstance(value, kind)), None)


def _ordered(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    def holds(one: Any, other: Any) -> bool:
        kind = _kind(one)
        if kind is None or kind is not _kind(other):
            return False
        try:
            return bool(compare(one, other))
        except (TypeError, ArithmeticError):  # a time with a zone and one without; a Decimal's signalling NaN
            return False

    return holds


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$eq": equal,
    "$ne": _differs,
    "$gt": _ordered(operator.gt),
    "$gte": _ordered(operator.ge),
    "$lt": _ordered(operator.lt),
    "$lte": _ordered(operator.le),
}
