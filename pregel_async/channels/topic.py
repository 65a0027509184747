"""A channel that collects the values of many writers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, Union, cast, overload

from ..errors import EmptyChannelError
from .abc import MISSING, BaseChannel, Missing, Value
from .overwrite import find_overwrite


class Topic(BaseChannel[Sequence[Value], Value | list[Value], list[Value]]):
    """Holds all values of a superstep in the order written. A written list counts as its elements, one level deep.

    An `Overwrite` replaces all values and all other writes of its superstep. Dicts in the form of an overwrite are
    data, as the elements may be any dicts.

    Args:
        typ: the type of one value.
        accumulate: False drops the values in the next superstep; True keeps them all.

    Attributes:
        typ: the type of one value.
        accumulate: False drops the values in the next superstep; True keeps them all.
    """

    __slots__ = ("_values", "accumulate", "expires")

    kind = "Topic"

    accumulate: bool
    _values: list[Value]

    @overload
    def __init__(self, typ: type[Value], accumulate: bool = False) -> None: ...
    @overload
    def __init__(self: Topic[Any], typ: object = Any, accumulate: bool = False) -> None: ...
    def __init__(self, typ: object = Any, accumulate: bool = False) -> None:
        super().__init__(typ)
        self.accumulate = accumulate
        self.expires = not accumulate
        self._values = []

    @property
    def ValueType(self) -> Any:  # noqa: N802  # LangGraph's name
        return Sequence[self.typ]  # type: ignore[name-defined]  # made at run time

    @property
    def UpdateType(self) -> Any:  # noqa: N802  # LangGraph's name
        either: Any = Union  # not `|`, which refuses a type that is given by its name
        return either[self.typ, list[self.typ]]  # type: ignore[name-defined]  # made at run time

    def get(self) -> Sequence[Value]:
        if not self._values:
            raise EmptyChannelError(self.key)
        return self._values

    def is_available(self) -> bool:
        return bool(self._values)

    def update(self, values: Sequence[Value | list[Value]]) -> bool:
        before = self._values
        overwrite = find_overwrite(self, values, accept_dicts=False)
        if overwrite is not MISSING:
            self._values = cast("list[Value]", overwrite if isinstance(overwrite, list) else [overwrite])
            return True
        # A new list, and not the old one extended: `get` and `checkpoint` have returned the old one.
        flat: list[Value] = before.copy() if self.accumulate else []
        for value in values:
            if isinstance(value, list):
                flat.extend(cast("list[Value]", value))
            else:
                flat.append(value)
        self._values = flat
        return len(flat) > len(before) if self.accumulate else bool(flat or before)

    def checkpoint(self) -> list[Value] | Missing:
        return self._values or MISSING

    def from_checkpoint(self, stored: list[Value] | Missing) -> Self:
        twin = self.fresh()
        if stored is not MISSING:
            twin._values = stored
        return twin

    def fresh(self) -> Self:
        twin = self._blank()
        twin.accumulate = self.accumulate
        twin.expires = self.expires
        twin._values = []
        return twin

    def copy(self) -> Self:
        twin = self.fresh()
        twin._values = self._values
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return super().same_declaration(other) and isinstance(other, Topic) and self.accumulate == other.accumulate
