"""Channels that merge writes with a reducer: their base, and `BinaryOperatorAggregate`, which takes writes singly."""

from __future__ import annotations

import collections.abc
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired, Required, Self, cast, get_args, get_origin, overload

from ..errors import EmptyChannelError
from .abc import MISSING, BaseChannel, Update, Value
from .fold import left_fold
from .overwrite import find_overwrite
from .single import OptionalValue


class ReducedValue(OptionalValue[Value, Update]):
    """The base of channels with a reducer.

    If the type can be called without arguments, the fold starts with the value that this gives (an empty list, 0), and
    readers get it before the first write; the channel holds and stores nothing until then. With any other type there is
    no value before the first write, which becomes the value unchanged. An `Overwrite` replaces the value and all other
    writes of its superstep.

    Args:
        typ: the type of the value: any annotation.
    """

    __slots__ = ("_make_empty",)

    expires = False

    _make_empty: Callable[[], Value] | None
    """Makes the value that readers get before the first write, anew for each reader; None if the type has none."""

    def __init__(self, typ: object) -> None:
        super().__init__(typ)
        self._make_empty = empty_value_factory(typ)

    @abstractmethod
    def _fold(self, value: Value, updates: Sequence[Update]) -> Value:
        """Return the value with at least one write merged into it."""

    def get(self) -> Value:
        value = self._value
        if value is not MISSING:
            return value
        if self._make_empty is None:
            raise EmptyChannelError(self.key)
        return self._make_empty()

    def is_available(self) -> bool:
        return self._value is not MISSING or self._make_empty is not None

    def update(self, values: Sequence[Update]) -> bool:
        if not values:
            return False
        value = find_overwrite(self, values)
        if value is MISSING:
            value = self._value
            if value is MISSING:
                if self._make_empty is None:
                    value, values = cast("Value", values[0]), values[1:]
                else:
                    value = self._make_empty()
            if values:
                value = self._fold(value, values)
        # Assigned after the whole fold: if the reducer raises, the channel stays unchanged.
        self._value = value
        return True

    def fresh(self) -> Self:
        twin = super().fresh()
        twin._make_empty = self._make_empty
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return (
            super().same_declaration(other)
            and isinstance(other, ReducedValue)
            and self._make_empty is other._make_empty
        )


class BinaryOperatorAggregate(ReducedValue[Value, Value]):
    """Holds the left fold of all writes: `op(op(start, first), second)`, and so on from superstep to superstep.

    `Annotated[list[str], operator.add]` becomes this channel.

    Args:
        typ: the type of the value: any annotation.
        op: the reducer.

    Attributes:
        op: the reducer: takes the value and one write, and returns the new value. A reducer that changes its first
            argument in place would change objects that `get` has returned: callers must pass it a copy then, as the
            runtime does.
    """

    __slots__ = ("op",)

    kind = "BinaryOperatorAggregate"

    op: Callable[[Value, Value], Value]

    @overload
    def __init__(self, typ: type[Value], op: Callable[[Any, Any], Any]) -> None: ...
    @overload
    def __init__(self: BinaryOperatorAggregate[Any], typ: object, op: Callable[[Any, Any], Any]) -> None: ...
    def __init__(self, typ: object, op: Callable[[Value, Value], Value]) -> None:
        super().__init__(typ)
        self.op = op

    def _fold(self, value: Value, updates: Sequence[Value]) -> Value:
        folded: Value = left_fold(self.op, value, updates)
        return folded

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.op = self.op
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return (
            super().same_declaration(other)
            and isinstance(other, BinaryOperatorAggregate)
            and same_reducer(self.op, cast("Callable[..., Any]", other.op))
        )


_CONCRETE_TYPES: dict[object, type] = {
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}


def empty_value_factory(typ: object) -> Callable[[], Any] | None:
    """Return a callable that makes the empty value of a type.

    Args:
        typ: any annotation.

    Returns:
        The class to call without arguments, or None if the type cannot be called so.
    """
    try:
        bare = _runtime_class(typ)
        maker = _CONCRETE_TYPES.get(bare, bare)
        if not isinstance(maker, type) or maker is object:  # an object() is no value to start a fold with
            return None
        maker()
    except Exception:  # a constructor or a lazily evaluated alias may raise anything: the type has no empty value
        return None
    return maker


def _runtime_class(typ: Any) -> object:
    """Return the class behind an annotation: `Sequence` for `Annotated[Sequence[str], ...]`."""
    while True:
        origin = get_origin(typ)
        if origin in (Annotated, Required, NotRequired):
            typ = get_args(typ)[0]
        elif origin is not None:
            typ = origin
        elif hasattr(typ, "__value__"):  # `type Names = list[str]`; the class of that has no name on Python 3.11
            typ = typ.__value__
        else:
            return typ


def same_reducer(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Return True if two reducers certainly do the same.

    Args:
        one: a reducer.
        other: the reducer to compare with.

    Returns:
        True for one object, equal methods, and partials of one function with equal arguments.
    """
    if isinstance(one, partial) and isinstance(other, partial):
        return same_reducer(one.func, other.func) and one.args == other.args and one.keywords == other.keywords
    return one is other or bool(one == other)
