"""What a search's filter lets through.

It is decided here, in Python, for all stores alike: no text of a filter gets into a query, and no database's own ideas
of types do either.

    {"kind": "dish"}                     the value's "kind" equals "dish"
    {"kind": "dish", "rating": 5}        both
    {"rating": {"$gte": 3, "$lt": 5}}    an operator: $eq, $ne, $gt, $gte, $lt, $lte
    {"cook": {"name": "Ann"}}            inside: "cook" is a dict, whose "name" equals "Ann"; it may hold more
    {"tags": ["hot", {"$ne": "raw"}]}    a list of as many elements, each of which matches

What is equal
    Values that Python calls equal, of any types: 1 and 1.0. But a bool is no number: True is not 1. Lists and tuples
    are equal if their elements are, dicts if they have the same keys and equal values. NaN equals nothing.
    A key that is not there counts as None. `$ne` is the opposite of `$eq`.

What is greater
    Numbers are compared with numbers (int, float, Decimal, Fraction; not bool), texts with texts by code point, bytes
    with bytes, and a date, time, datetime or timedelta with another of its kind. Anything else, a datetime with a zone
    and one without, and NaN are not greater, smaller or equal: they do not match, and it is no error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, TypeAlias, cast

Check: TypeAlias = Callable[[Any], bool]
"""Whether a value matches. Raises nothing."""


def compile_filter(filter: Mapping[str, Any]) -> Check:
    """What tells whether an item's value matches a filter. The filter must not be changed afterwards.

    Raises:
        TypeError: it is no filter.
        ValueError: it has an operator that there is not, or one in a place where there is none.
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
    """Whether two values are equal, as filters understand it."""
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    try:
        return bool(one == other)
    except Exception:  # a class of the user's own, whose objects cannot be compared with everything
        return False


def _differs(one: Any, other: Any) -> bool:
    return not equal(one, other)


_NUMBERS: Final = (int, float, Decimal, Fraction)

_ORDERED: Final = (str, bytes, datetime, date, time, timedelta)
"""A datetime is a date to Python, and comes first here."""


def _kind(value: Any) -> type | None:
    """What a value can be compared with: others of the same kind; None if with nothing."""
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
