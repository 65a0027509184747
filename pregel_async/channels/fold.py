"""A left fold that does not copy the value for each of many updates."""

from __future__ import annotations

import operator as _operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..messages import add_messages, fold_messages

Op = Callable[[Any, Any], Any]
_Join = Callable[[Iterable[Any]], Any]

operator: Any = _operator  # typeshed leaves its parameters without types


def left_fold(op: Op, value: Any, updates: Sequence[Any]) -> Any:
    """`op(op(value, first), second)` and so on: the same value, of the same types, as folding one by one.

    `[] + [1] + [2] + ...` copies all that there is for each new element, n * n / 2 in all. Where the operator and the
    types are known, the parts are put together once. Nor does an operator of the standard library change a built-in
    `value` or an update in place here; what another reducer does to its first argument is its own matter.
    """
    fast_fold = _FAST_FOLDS.get(id(op))
    if fast_fold is not None:
        return fast_fold(value, updates)
    for update in updates:
        value = op(value, update)
    return value


def _fold_runs(op: Op, joins: Mapping[type, _Join], value: object, updates: Sequence[Any]) -> object:
    """Put together each run of updates that are of exactly the value's type; fold the others one by one.

    Exactly, because a subclass may have an operator of its own, and on either side.
    """
    at = 0
    while at < len(updates):
        kind = type(value)
        join = joins.get(kind)
        end = at
        if join is not None:
            while end < len(updates) and type(updates[end]) is kind:
                end += 1
        if join is not None and end - at > 1:
            value = join([value, *updates[at:end]])
            at = end
        else:
            value = op(value, updates[at])
            at += 1
    return value


def _fold_in_place(op: Op, value: Any, updates: Sequence[Any]) -> Any:
    """Fold one by one into a copy, so that `op` can change it and nobody who was handed `value` sees that."""
    own_copy: object = None
    for update in updates:
        # Again when `op` returned another object: that may be an update, or something that an update holds.
        if value is not own_copy and type(value) in _MUTABLE:
            own_copy = value = value.copy()
        value = op(value, update)
    return value


def _join_lists(parts: Iterable[Sequence[Any]]) -> list[Any]:
    joined: list[Any] = []
    for part in parts:
        joined += part
    return joined


def _join_tuples(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(_join_lists(parts))


def _merge_dicts(parts: Iterable[dict[Any, Any]]) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for part in parts:
        merged.update(part)
    return merged


def _unite_sets(parts: Iterable[set[Any]]) -> set[Any]:
    return set[Any]().union(*parts)


def _unite_frozensets(parts: Iterable[frozenset[Any]]) -> frozenset[Any]:
    return frozenset[Any]().union(*parts)


_MUTABLE: Final[frozenset[type]] = frozenset({list, dict, set, bytearray, deque})
_CONCATENATE: Final[dict[type, _Join]] = {list: _join_lists, tuple: _join_tuples, str: "".join, bytes: b"".join}
_UNITE: Final[dict[type, _Join]] = {dict: _merge_dicts, set: _unite_sets, frozenset: _unite_frozensets}

# By id, since a reducer need not be hashable and may claim to equal anything. These functions live as long as we do.
_FAST_FOLDS: Final[dict[int, Callable[[Any, Sequence[Any]], Any]]] = {
    id(operator.add): partial(_fold_runs, operator.add, _CONCATENATE),
    id(operator.concat): partial(_fold_runs, operator.concat, _CONCATENATE),
    id(operator.or_): partial(_fold_runs, operator.or_, _UNITE),
    id(add_messages): fold_messages,
    id(operator.iadd): partial(_fold_in_place, operator.iadd),
    id(operator.iconcat): partial(_fold_in_place, operator.iconcat),
    id(operator.imul): partial(_fold_in_place, operator.imul),
    id(operator.ior): partial(_fold_in_place, operator.ior),
    id(operator.iand): partial(_fold_in_place, operator.iand),
    id(operator.isub): partial(_fold_in_place, operator.isub),
    id(operator.ixor): partial(_fold_in_place, operator.ixor),
}
