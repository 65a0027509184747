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
    """Return `op(op(value, first), second)` and so on, with the value and types that folding one by one gives.

    `[] + [1] + [2] + ...` copies the whole list for each new element, n * n / 2 copies in all. For known operators and
    types the parts are joined once instead. In-place operators of the standard library (`iadd`) get a copy of a
    built-in `value`, so that they change neither it nor an update. Other reducers get `value` itself.

    Args:
        op: the reducer.
        value: the value before the first update.
        updates: the updates, in the order of the fold.

    Returns:
        The folded value.
    """
    fast_fold = _FAST_FOLDS.get(id(op))
    if fast_fold is not None:
        return fast_fold(value, updates)
    for update in updates:
        value = op(value, update)
    return value


def _fold_runs(op: Op, joins: Mapping[type, _Join], value: object, updates: Sequence[Any]) -> object:
    """Join each run of updates that have exactly the value's type; fold the others one by one."""
    # Exactly, as a subclass on either side may define the operator in another way.
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
    """Fold one by one into a copy of `value`, which `op` changes in place: readers may still hold `value` itself."""
    own_copy: object = None
    for update in updates:
        # Copy again if `op` returned another object: it may be an update, or part of one.
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

# By id, as a reducer may be unhashable or compare equal to anything. The ids stay valid: the functions are never freed.
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
