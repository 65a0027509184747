"""A channel that holds one value or nothing: what the kinds without a fold share."""

from __future__ import annotations

from typing import Any, Self

from ..errors import ConcurrentUpdateError, EmptyChannelError
from .abc import MISSING, BaseChannel, Missing, Value


class SingleValue(BaseChannel[Value, Value, Value]):
    """Shows and stores the value that it holds. A subclass says what updates do to `_value`.

    There is no fold that an `Overwrite` could bypass: it is written for what is in it, and counts as any other write.
    """

    __slots__ = ("_value",)

    _value: Value | Missing

    def __init__(self, typ: object = Any, key: str = "") -> None:
        super().__init__(typ, key)
        self._value = MISSING

    def get(self) -> Value:
        value = self._value
        if value is MISSING:
            raise EmptyChannelError(self.key)
        return value

    def is_available(self) -> bool:
        return self._value is not MISSING

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

    def _clear(self) -> bool:
        """Forget the value. Returns whether there was one."""
        if self._value is MISSING:
            return False
        self._value = MISSING
        return True


def too_many(channel: BaseChannel[Any, Any, Any], count: int) -> ConcurrentUpdateError:
    """The error for several writes to a channel that takes one."""
    return ConcurrentUpdateError(channel.key, count)
