"""The fold of many writes equals folding one by one, in linear time."""

from __future__ import annotations

import operator as _operator
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from copy import deepcopy
from functools import reduce
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pregel_async.channels import BinaryOperatorAggregate
from pregel_async.channels.fold import left_fold

operator: Any = _operator  # typeshed leaves its parameters without types

OPERATORS: list[Any] = [
    getattr(operator, name)
    for name in ("add", "concat", "or_", "iadd", "iconcat", "imul", "ior", "iand", "isub", "ixor", "and_", "sub")
]


class Bag(list[Any]):
    """A list that overloads its operators on both sides."""

    def __add__(self, other: Any) -> Any:
        return Bag(["left", *self, *other])

    def __radd__(self, other: Any) -> Any:
        return Bag(["right", *other, *self])


class OddOperand:
    """An operand that is no container and returns the list to which it is added, or its own."""

    def __init__(self, kept: list[Any] | None) -> None:
        self.kept = kept

    def __radd__(self, other: Any) -> Any:
        return other if self.kept is None else self.kept

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OddOperand) and other.kept == self.kept

    def __hash__(self) -> int:
        return 0


VIEW = {"a": 1}.keys()
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *([], [1], [2, 3], [[4]], (), (1,), (2, 3), "", "a", "bc", b"", b"a", bytearray(b"a"), 0, 1, 2.5, None),
        *({}, {"a": 1}, {"b": 2, "a": 3}, OrderedDict(c=4), set[int](), {1}, {2, 3}, frozenset({1, 2}), frozenset({3})),
        *(Bag([1]), Bag(), OddOperand(None), OddOperand([9]), deque([1]), deque([1, 2], maxlen=2), VIEW),
    ]
)


def outcome(fold: Callable[[], Any]) -> Any:
    """Return the type and value of the result, or the type of the error."""
    try:
        value = fold()
    except Exception as error:  # whatever the types at hand raise
        return type(error)
    return type(value), value, [*value] if isinstance(value, dict) else None


def copied(value: object) -> object:
    """Return a deep copy; a view of a dict cannot be copied, and is immutable."""
    return value if value is VIEW else deepcopy(value)


@given(op=st.sampled_from(OPERATORS), start=VALUES, updates=st.lists(VALUES, max_size=5))
def test_equals_the_fold_one_by_one(op: Any, start: Any, updates: list[Any]) -> None:
    """For any mix of types, the fold gives the same value, type and order of dicts as folding one by one, or the same
    error."""
    expected = outcome(lambda: reduce(op, map(copied, updates), copied(start)))
    assert outcome(lambda: left_fold(op, copied(start), [*map(copied, updates)])) == expected


@pytest.mark.parametrize("op", [operator.add, operator.concat, operator.iadd, operator.iconcat])
@given(
    start=st.lists(st.integers(), max_size=3),
    updates=st.lists(
        st.lists(st.integers(), max_size=2) | st.sampled_from([OddOperand(None), OddOperand([7]), Bag([1])])
    ),
)
def test_changes_neither_value_nor_updates(op: Any, start: list[int], updates: list[Any]) -> None:
    """P1: a fold changes neither the value nor the writes, even if an operand returns its own list."""
    before = deepcopy((start, updates))
    outcome(lambda: left_fold(op, start, updates))
    assert (start, updates) == before


@pytest.mark.parametrize(
    ("op", "start"),
    [
        (operator.iadd, [1]),
        (operator.imul, [1]),
        (operator.ior, {1: 2}),
        (operator.ior, {1}),
        (operator.iand, {1}),
        (operator.isub, {1}),
        (operator.ixor, {1}),
        (operator.iadd, bytearray(b"1")),
        (operator.iadd, deque([1])),
    ],
)
def test_no_operator_changes_the_value_in_place(op: Any, start: Any) -> None:
    """No operator of the standard library changes the value, not even the in-place ones."""
    update = 2 if op is operator.imul else type(start)() if op is not operator.isub else {1}
    before = deepcopy(start)
    made = left_fold(op, start, [update])
    assert start == before
    assert made is not start
    assert made == op(deepcopy(start), update)


def calls_of(run: Callable[[], object]) -> Counter[str]:
    """Return how often Python code called each C function."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            calls[arg.__name__] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    ("op", "typ", "write"),
    [
        (operator.add, list, [0]),
        (operator.concat, list, [0]),
        (operator.add, tuple, (0,)),
        (operator.add, str, "0"),
        (operator.add, bytes, b"0"),
        (operator.or_, dict, {0: 0}),
        (operator.or_, set, {0}),
        (operator.or_, frozenset, frozenset({0})),
    ],
)
def test_many_writes_are_put_together_once(op: Any, typ: Any, write: Any) -> None:
    """Ten thousand writes create one new value instead of ten thousand.

    Each call of the operator copies the whole value; a value that is extended grows by the new elements only.
    """
    channel = BinaryOperatorAggregate(typ, op)
    channel.update([write])
    calls = calls_of(lambda: channel.update([write] * 10_000))
    assert calls[op.__name__] == 0
    assert calls["copy"] == 0
    assert len(channel.get()) == (10_001 if op is not operator.or_ else 1)


def test_many_writes_in_place_copy_once() -> None:
    """An in-place operator gets one copy of the value, the same for all writes."""
    channel = BinaryOperatorAggregate(list[int], operator.iadd)
    channel.update([[0]])
    calls = calls_of(lambda: channel.update([[0]] * 10_000))
    assert calls["iadd"] == 10_000
    assert calls["copy"] == 1
    assert channel.get() == [0] * 10_001


def test_writes_that_cannot_be_joined_are_folded_one_by_one() -> None:
    """Writes that cannot be joined are folded one by one, and the count shows it."""
    updates = [Bag([0])] * 100
    assert calls_of(lambda: left_fold(operator.add, [], updates))["add"] == 100
