"""The contract of a channel: a named value, and how a superstep's writes are folded into it.

The laws that every channel keeps are executable: `pregel_async.channels.laws`, for classes of your own too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from ..errors import EmptyChannelError

Value = TypeVar("Value")
"""What readers get."""

Update = TypeVar("Update")
"""What one write brings."""

Stored = TypeVar("Stored")
"""What a checkpoint keeps."""


class Missing(Enum):
    """The type of `MISSING`. An enum, because type checkers narrow `x is MISSING` and pickling keeps it one object."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""No value, where None could be one."""


class BaseChannel(ABC, Generic[Value, Update, Stored]):
    """A value with a fold.

    A subclass writes `get`, `update` and `from_checkpoint`, and `checkpoint` if what it stores is not what it shows.

    Values are replaced, never changed in place: what `get` and `checkpoint` returned, and what `update` was given,
    stays as it is, so that neither needs a copy. Whoever receives a value leaves it as it is, too; the runtime sees to
    that for what it hands to nodes and callers.

    Attributes:
        key: the channel's name, set by whoever compiles the graph. Errors name it.
        typ: the declared type of a value; any annotation, as it was given.
        kind: names the form in which the value is stored, and is stored beside it, so that a channel of another kind
            is not fed with it. By default a subclass's `module.qualname`: a class that moves states its `kind`.
        expires: False promises that `update(())` changes nothing, and spares the runtime the call in each superstep. A
            class that overrides `update` promises it itself: without a statement of its own it gets True, which is
            always safe.
        consumes: whether `consume` may do something; found out from whether a class overrides it.
        finishes: the same of `finish`.
        tracked: False for values that are never stored, so that a resumed thread starts without them.
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
        # A False was said of the update() of the class that says it. Topic has a slot there, and its instances decide.
        nearest = next(vars(base) for base in cls.__mro__ if "update" in vars(base) or "expires" in vars(base))
        if "expires" not in nearest and cls.expires is False:
            cls.expires = True
        contract: Any = BaseChannel
        cls.consumes = cls.consume is not contract.consume
        cls.finishes = cls.finish is not contract.finish

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"

    @abstractmethod
    def get(self) -> Value:
        """The value.

        Raises:
            EmptyChannelError: there is none to show.
        """

    def is_available(self) -> bool:
        """Whether `get` would return."""
        try:
            self.get()
        except EmptyChannelError:
            return False
        return True

    @abstractmethod
    def update(self, values: Sequence[Update]) -> bool:
        """Fold the writes of one superstep, in the order given.

        Called once per superstep with all writes; with none, where the superstep brought none and the channel
        `expires`.

        Returns:
            Whether the channel changed. A write of an equal value may count as a change; False means that nothing can
            be seen to differ, and without any write so does True the other way round.

        Raises:
            InvalidUpdateError: these writes are not allowed. Whatever is raised, the channel is as it was.
        """

    def consume(self) -> bool:
        """A node that this channel triggers has run; called before that superstep's writes are folded.

        Returns:
            Whether the channel changed.
        """
        return False

    def finish(self) -> bool:
        """Nothing is left to run; a channel that now shows a value goes on with the run.

        Returns:
            Whether the channel changed.
        """
        return False

    def checkpoint(self) -> Stored | Missing:
        """What to store: everything `from_checkpoint` needs, or `MISSING` if and only if the channel holds nothing.

        To hold something and to show something differ: a barrier that waits for a second name holds the first, and a
        reducer that was never written shows an empty list but holds nothing. By default what is shown is stored.
        """
        try:
            # Only right where Value is Stored, which a class that keeps this default says of itself.
            return cast("Stored", self.get())
        except EmptyChannelError:
            return MISSING

    @abstractmethod
    def from_checkpoint(self, stored: Stored | Missing) -> Self:
        """A new channel that holds what was stored, or nothing for `MISSING`.

        Called on a channel as it was declared, and not on the class, because the stored form leaves out what code
        declares: key, type, reducer, names. The new channel has these from this one; what this one holds does not
        matter.
        """

    def fresh(self) -> Self:
        """A new channel that is declared like this one and holds nothing.

        A subclass of a built-in channel that adds attributes extends this method (`twin = super().fresh()`, then the
        attributes); `copy` and `from_checkpoint` of the built-in ones begin with it.
        """
        twin = self.from_checkpoint(MISSING)
        twin.key = self.key
        return twin

    def copy(self) -> Self:
        """A new channel that holds the same, and that changes by itself from here on.

        By default through what is stored; a class that is not `tracked` overrides it.
        """
        twin = self.from_checkpoint(self.checkpoint())
        twin.key = self.key
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        """Whether one state key may be declared as both: the same class with the same parameters.

        The annotation does not count (`list` in one schema, `list[str]` in another), nor the key, nor what is held. A
        class with parameters extends this.
        """
        return type(self) is type(other)

    def _blank(self) -> Self:
        """An object declared like this one, with the slots of subclasses yet to be filled.

        `__init__` is not run: a subclass may have given it other parameters.
        """
        twin = object.__new__(type(self))
        twin.key = self.key
        twin.typ = self.typ
        return twin
