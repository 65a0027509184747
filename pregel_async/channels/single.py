"""Channels that hold one value or nothing: what all of them share, and those without a fold."""

from __future__ import annotations

from typing import Any, Generic, Self

from ..errors import ConcurrentUpdateError, EmptyChannelError
from .abc import MISSING, BaseChannel, Missing, Update, Value


class Holding(BaseChannel[Value, Update, Value], Generic[Value, Update]):
    """Stores the value that it holds, as it is. A subclass says what it shows, and what updates do to `_value`."""

    __slots__ = ("_value",)

    _value: Value | Missing

    def __init__(self, typ: object = Any, key: str = "") -> None:
        super().__init__(typ, key)
        self._value = MISSING

    def checkpoint(self) -> Value | Missing:
        return self._value

    def from_checkpoint(self, stored: Value | Missing) -> Self:
        twin = self.fresh()
        twin._value = stored
        return twin

    def fresh(self) -> Self:
        twin = self._blank()
        twin._value = MISSING
        return twin

    def copy(self) -> Self:
        twin = self.fresh()
        twin._value = self._value
        return twin


class SingleValue(Holding[Value, Value]):
    """Shows the value that it holds.

    There is no fold that an `Overwrite` could bypass: it is written for what is in it, and counts as any other write.
    """

    __slots__ = ()

    def get(self) -> Value:
        value = self._value
        if value is MISSING:
            raise EmptyChannelError(self.key)
        return value

    def is_available(self) -> bool:
        return self._value is not MISSING

    def _clear(self) -> bool:
        """Forget the value. Returns whether there was one."""
        if self._value is MISSING:
            return False
        self._value = MISSING
        return True


def too_many(channel: BaseChannel[Any, Any, Any], count: int) -> ConcurrentUpdateError:
    """The error for several writes to a channel that takes one."""
    return ConcurrentUpdateError(channel.key, count)
