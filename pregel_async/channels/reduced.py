"""Channels whose writes are merged by a reducer; here the one that takes them one by one."""

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
    """A value that writes are merged into: where it starts, and that it is held, shown and stored as it is.

    A type that can be made without arguments is where the fold starts (an empty list, 0), and what is shown before the
    first write; nothing is held or stored until then. With any other type there is no value before the first write,
    which then becomes the value as it is. An `Overwrite` takes the place of the value and of all other writes of its
    superstep.
    """

    __slots__ = ("_make_empty",)

    expires = False

    _make_empty: Callable[[], Value] | None
    """Makes what is shown until the first write: that is not held, and is made anew for each reader."""

    def __init__(self, typ: object) -> None:
        super().__init__(typ)
        self._make_empty = empty_value_factory(typ)

    @abstractmethod
    def _fold(self, value: Value, updates: Sequence[Update]) -> Value:
        """The value with at least one write merged into it."""

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
        # Assigned when the whole fold is done: a reducer that raises leaves the channel as it was.
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
    """The left fold of all writes: `op(op(start, first), second)`, and so on from superstep to superstep.

    What `Annotated[list[str], operator.add]` becomes.

    Attributes:
        op: the reducer. It is given the value and one write, and returns the new value. One that changes its first
            argument in place changes what `get` handed out before; the runtime gives it a copy to change, and so must
            others who call.
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
    """What makes an empty value of an annotated type, or None if the type has none."""
    try:
        bare = _runtime_class(typ)
        maker = _CONCRETE_TYPES.get(bare, bare)
        if not isinstance(maker, type) or maker is object:  # an object() is no value to start a fold with
            return None
        maker()
    except Exception:  # whatever a constructor or a lazy alias raises, no value comes of it
        return None
    return maker


def _runtime_class(typ: Any) -> object:
    """The class behind an annotation: `list` for `Annotated[Sequence[str], ...]`, for example."""
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
    """Whether two reducers surely do the same: one object, equal methods, or equal partials of the same function."""
    if isinstance(one, partial) and isinstance(other, partial):
        return same_reducer(one.func, other.func) and one.args == other.args and one.keywords == other.keywords
    return one is other or bool(one == other)
