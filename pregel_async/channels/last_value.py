"""Channels that hold the last write: until the next one, or until their node has run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

from ..errors import EmptyChannelError
from .abc import MISSING, BaseChannel, Missing, Value
from .overwrite import unwrap_overwrite
from .single import SingleValue


class LastValue(SingleValue[Value]):
    """Holds the value written last. One write per superstep is allowed: parallel writers have no last one.

    A state key without a reducer becomes this channel.

    Args:
        typ: the type of the value.
        key: the channel's name.
    """

    __slots__ = ()

    kind = "LastValue"
    expires = False

    @overload
    def __init__(self, typ: type[Value], key: str = "") -> None: ...
    @overload
    def __init__(self: LastValue[Any], typ: object = Any, key: str = "") -> None: ...
    def __init__(self, typ: object = Any, key: str = "") -> None:
        super().__init__(typ, key)


class LastValueAfterFinish(BaseChannel[Value, Value, tuple[Value, bool]]):
    """Holds the value written last, and hides it from readers until no other node is left to run.

    This channel triggers a deferred node, and drops the value when the node has run. Several writes in a superstep are
    allowed, as several edges may lead to one deferred node; the last one counts. A write after `finish` hides the value
    again until the next `finish`.

    Args:
        typ: the type of the value.
        key: the channel's name.
    """

    __slots__ = ("_finished", "_value")

    kind = "LastValueAfterFinish"
    expires = False

    _value: Value | Missing
    _finished: bool

    @overload
    def __init__(self, typ: type[Value], key: str = "") -> None: ...
    @overload
    def __init__(self: LastValueAfterFinish[Any], typ: object = Any, key: str = "") -> None: ...
    def __init__(self, typ: object = Any, key: str = "") -> None:
        super().__init__(typ, key)
        self._value = MISSING
        self._finished = False

    def get(self) -> Value:
        value = self._value
        if value is MISSING or not self._finished:
            raise EmptyChannelError(self.key)
        return value

    def is_available(self) -> bool:
        return self._finished

    def update(self, values: Sequence[Value]) -> bool:
        if not values:
            return False
        self._value = unwrap_overwrite(values[-1])
        self._finished = False
        return True

    def consume(self) -> bool:
        if not self._finished:
            return False
        self._value = MISSING
        self._finished = False
        return True

    def finish(self) -> bool:
        if self._finished or self._value is MISSING:
            return False
        self._finished = True
        return True

    def checkpoint(self) -> tuple[Value, bool] | Missing:
        return MISSING if self._value is MISSING else (self._value, self._finished)

    def from_checkpoint(self, stored: tuple[Value, bool] | Missing) -> Self:
        twin = self.fresh()
        if stored is not MISSING:
            twin._value, twin._finished = stored
        return twin

    def fresh(self) -> Self:
        twin = self._blank()
        twin._value = MISSING
        twin._finished = False
        return twin

    def copy(self) -> Self:
        return self.from_checkpoint(self.checkpoint())
