"""The contract of a channel: a named value, and how a superstep's writes are folded into it.

`pregel_async.channels.laws` has the contract as tests, which test channel classes of your own too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar, cast

from ..errors import EmptyChannelError

Value = TypeVar("Value")
"""The type of the value that readers get."""

Update = TypeVar("Update")
"""The type of one write."""

Stored = TypeVar("Stored")
"""The type of the value that a checkpoint stores."""


class Missing(Enum):
    """The type of `MISSING`. An enum: type checkers narrow `x is MISSING`, and unpickling returns the same object."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""Marks the absence of a value where None may be a value."""


class BaseChannel(ABC, Generic[Value, Update, Stored]):
    """A named value with a fold.

    A subclass implements `get`, `update` and `from_checkpoint`, and overrides `checkpoint` if the stored value is not
    the value that readers get.

    A channel replaces its values and never changes them in place: objects that `get` and `checkpoint` have returned and
    that `update` has received stay unchanged, so that none of them needs a copy. Readers must not change them either;
    the runtime ensures this by giving nodes and callers isolated values.

    Args:
        typ: the declared type of a value: any annotation.
        key: the channel's name.

    Attributes:
        key: the channel's name, set when the graph is compiled. Errors name it.
        typ: the declared type of a value, as it was passed.
        kind: names the form in which the value is stored. It is stored with the value, so that a channel of another
            kind does not read it. By default `module.qualname` of the subclass: a class that moves to another module
            must set its old `kind`.
        expires: False promises that `update(())` changes nothing, which saves the runtime a call in each superstep. A
            class that overrides `update` has to set it again: otherwise it gets True, which is always safe.
        consumes: True if the class overrides `consume`.
        finishes: True if the class overrides `finish`.
        tracked: False for values that are never stored: a resumed thread starts without them.
    """

    __slots__ = ("key", "typ")

    key: str
    typ: object

    kind: ClassVar[str]
    consumes: ClassVar[bool] = False
    finishes: ClassVar[bool] = False
    tracked: ClassVar[bool] = True
    expires: bool = True  # no ClassVar: for a Topic it depends on a parameter

    def __init__(self, typ: object = Any, key: str = "") -> None:
        self.typ = typ
        self.key = key

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in vars(cls):
            cls.kind = f"{cls.__module__}.{cls.__qualname__}"
        # An inherited False describes the `update` of the class that sets it, and must not apply to an `update` that
        # overrides this one. Topic has a slot named `expires`, and its instances decide.
        nearest = next(vars(base) for base in cls.__mro__ if "update" in vars(base) or "expires" in vars(base))
        if "expires" not in nearest and cls.expires is False:
            cls.expires = True
        contract: Any = BaseChannel
        cls.consumes = cls.consume is not contract.consume
        cls.finishes = cls.finish is not contract.finish

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"

    @property
    def ValueType(self) -> Any:  # noqa: N802  # LangGraph's name
        """The type of the value that readers get: any annotation."""
        return self.typ

    @property
    def UpdateType(self) -> Any:  # noqa: N802  # LangGraph's name
        """The type of a write: any annotation."""
        return self.typ

    @abstractmethod
    def get(self) -> Value:
        """Return the value for readers.

        Returns:
            The value. Readers must not change it in place.

        Raises:
            EmptyChannelError: the channel has no value for readers.
        """

    def is_available(self) -> bool:
        """Return True if `get` returns a value, False if it raises."""
        try:
            self.get()
        except EmptyChannelError:
            return False
        return True

    @abstractmethod
    def update(self, values: Sequence[Update]) -> bool:
        """Fold the writes of one superstep, in the order given.

        The runtime calls this once per superstep with all writes to the channel. If there are none, it calls it with an
        empty sequence, provided that the channel `expires`.

        Args:
            values: the writes, in plan order.

        Returns:
            True if the channel changed. After False, `get` and `checkpoint` must return the same as before. After True
            for an empty sequence they must differ; after True for writes they may be equal.

        Raises:
            InvalidUpdateError: the channel refuses these writes. If any exception is raised, the channel must be
                unchanged.
        """

    def consume(self) -> bool:
        """React to the run of a node that this channel triggers. Called before that superstep's writes are folded.

        Returns:
            True if the channel changed.
        """
        return False

    def finish(self) -> bool:
        """React to the end of the run: no node is left to run. A channel that gets a value here continues the run.

        Returns:
            True if the channel changed.
        """
        return False

    def checkpoint(self) -> Stored | Missing:
        """Return the value to store. The default is the value that `get` returns.

        What a channel holds may differ from what readers get: a barrier that waits for a second name holds the first,
        and a reducer channel without writes gives readers an empty list but holds nothing.

        Returns:
            Everything that `from_checkpoint` needs, or `MISSING` if and only if the channel holds nothing.
        """
        try:
            # A class that keeps this default stores what readers get, so its Value and Stored are one type.
            return cast("Stored", self.get())
        except EmptyChannelError:
            return MISSING

    @abstractmethod
    def from_checkpoint(self, stored: Stored | Missing) -> Self:
        """Make a new channel that holds a stored value.

        This is a method of a declared channel and not of the class, because the declaration (key, type, reducer, names)
        is not stored. The new channel copies it from this one, and ignores the value of this one.

        Args:
            stored: what `checkpoint` returned, or `MISSING` for a channel that holds nothing.

        Returns:
            The new channel.
        """

    def fresh(self) -> Self:
        """Make a new channel with the declaration of this one, which holds nothing.

        A subclass of a built-in channel that adds attributes must extend this method (`twin = super().fresh()`, then
        set the attributes): `copy` and `from_checkpoint` of the built-in channels start with it.

        Returns:
            The new channel.
        """
        twin = self.from_checkpoint(MISSING)
        twin.key = self.key
        return twin

    def copy(self) -> Self:
        """Make an independent channel with the declaration and the value of this one.

        The default restores the stored value. A class that is not `tracked` must override it, as it stores none.

        Returns:
            The new channel.
        """
        twin = self.from_checkpoint(self.checkpoint())
        twin.key = self.key
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        """Return True if two schemas may declare one key as these channels: the same class with the same parameters.

        The annotation does not count (`list` in one schema, `list[str]` in another), nor do the key and the value. A
        class with parameters must extend this method.

        Args:
            other: the channel of the other schema.

        Returns:
            True if the declarations agree.
        """
        return type(self) is type(other)

    def _blank(self) -> Self:
        """Make an object with the key and type of this one. The caller sets the slots of subclasses."""
        # Without `__init__`, as a subclass may have given it other parameters.
        twin = object.__new__(type(self))
        twin.key = self.key
        twin.typ = self.typ
        return twin


AnyChannel: TypeAlias = BaseChannel[Any, Any, Any]
"""A channel whose types of values and updates do not matter."""
