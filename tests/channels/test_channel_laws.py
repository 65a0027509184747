"""The laws of channels, checked for every built-in kind and for user-defined classes."""

from __future__ import annotations

import operator as _operator
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, Self

from hypothesis import strategies as st

from pregel_async.channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    Missing,
    NamedBarrierValue,
    NamedBarrierValueAfterFinish,
    Topic,
    UntrackedValue,
)
from pregel_async.channels.laws import AnyChannel, ChannelLaws
from pregel_async.errors import EmptyChannelError, InvalidUpdateError
from pregel_async.types import Overwrite

operator: Any = _operator  # typeshed leaves its parameters without types

# A few telling values rather than all: the laws are about what happens to a value, and a draw is what costs time.
data: st.SearchStrategy[Any] = st.sampled_from(
    [None, "", "a", "b", [], ["a"], ["a", ["b"]], {"key": [1]}, ("a", [1])]
).map(deepcopy)
names: st.SearchStrategy[Any] = st.sampled_from(["a", "b", "c", "unknown", ["not", "hashable"]]).map(deepcopy)
lists: st.SearchStrategy[Any] = st.sampled_from([[], [1], [2, 3], [[4]]]).map(deepcopy)
dicts: st.SearchStrategy[Any] = st.sampled_from([{}, {"a": 1}, {"a": 2, "b": [3]}, {"c": 4}]).map(deepcopy)
refused = st.just(None)


def overwriting(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return an overwrite in each of its spellings."""
    return st.one_of(
        values.map(Overwrite),
        values.map(lambda value: {"__overwrite__": value}),
        values.map(lambda value: {"value": value, "type": "__overwrite__"}),
    )


class TestLastValue(ChannelLaws):
    def make(self) -> AnyChannel:
        return LastValue()

    def updates(self) -> st.SearchStrategy[Any]:
        return data


class TestLastValueAfterFinish(ChannelLaws):
    def make(self) -> AnyChannel:
        return LastValueAfterFinish()

    def updates(self) -> st.SearchStrategy[Any]:
        return data


class TestAnyValue(ChannelLaws):
    def make(self) -> AnyChannel:
        return AnyValue()

    def updates(self) -> st.SearchStrategy[Any]:
        return data


class TestEphemeralValue(ChannelLaws):
    def make(self) -> AnyChannel:
        return EphemeralValue()

    def updates(self) -> st.SearchStrategy[Any]:
        return data


class TestUnguardedEphemeralValue(TestEphemeralValue):
    def make(self) -> AnyChannel:
        return EphemeralValue(guard=False)


class TestUntrackedValue(ChannelLaws):
    def make(self) -> AnyChannel:
        return UntrackedValue()

    def updates(self) -> st.SearchStrategy[Any]:
        return data


class TestUnguardedUntrackedValue(TestUntrackedValue):
    def make(self) -> AnyChannel:
        return UntrackedValue(guard=False)


class TestNamedBarrierValue(ChannelLaws):
    folds = True
    commutes = True

    def make(self) -> AnyChannel:
        return NamedBarrierValue(str, {"a", "b", "c"})

    def updates(self) -> st.SearchStrategy[Any]:
        return names


class TestNamedBarrierValueAfterFinish(TestNamedBarrierValue):
    def make(self) -> AnyChannel:
        return NamedBarrierValueAfterFinish(str, {"a", "b", "c"})


class TestTopic(ChannelLaws):
    def make(self) -> AnyChannel:
        return Topic(object)

    def updates(self) -> st.SearchStrategy[Any]:
        return data


class TestAccumulatingTopic(TestTopic):
    folds = True

    def make(self) -> AnyChannel:
        return Topic(object, accumulate=True)


class TestListsAdded(ChannelLaws):
    folds = True

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(list[int], operator.add)

    def updates(self) -> st.SearchStrategy[Any]:
        return lists | refused  # in the middle of a fold, too


class TestListsExtended(TestListsAdded):
    """`operator.iadd` changes its argument, but the channel's earlier value stays as it was."""

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(list[int], operator.iadd)

    def updates(self) -> st.SearchStrategy[Any]:
        return lists | lists.map(tuple) | refused


class TestDictsMerged(ChannelLaws):
    folds = True

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(dict[str, int], operator.or_)

    def updates(self) -> st.SearchStrategy[Any]:
        return dicts | refused


class TestNumbersSummed(ChannelLaws):
    folds = True
    commutes = True

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(int, operator.add)

    def updates(self) -> st.SearchStrategy[Any]:
        return st.integers()


class TestReducerWithoutStart(ChannelLaws):
    """The type cannot be created without arguments, so the first write becomes the value."""

    folds = True

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(int | None, operator.sub)

    def updates(self) -> st.SearchStrategy[Any]:
        return st.integers()


class TestOverwrittenLists(ChannelLaws):
    """A channel with a reducer; it refuses two overwrites, so it neither folds nor commutes."""

    overwritten = True

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(list[int], operator.add)

    def updates(self) -> st.SearchStrategy[Any]:
        return lists | refused | overwriting(lists)

    def values(self) -> st.SearchStrategy[Any]:
        return lists


class TestOverwrittenDicts(TestOverwrittenLists):
    """A dict that only begins like an overwrite is folded as an ordinary dict."""

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(dict[str, Any], operator.or_)

    def updates(self) -> st.SearchStrategy[Any]:
        near = st.sampled_from([{"__overwrite__": 1, "a": 1}, {"value": 1, "type": "a"}, {"value": 1, "a": 1}])
        return dicts | near | overwriting(dicts)

    def values(self) -> st.SearchStrategy[Any]:
        return dicts


class TestOverwrittenWithoutStart(ChannelLaws):
    """An overwrite may be the first write of a type without an empty value."""

    overwritten = True

    def make(self) -> AnyChannel:
        return BinaryOperatorAggregate(int | None, operator.sub)

    def updates(self) -> st.SearchStrategy[Any]:
        return st.integers() | overwriting(st.integers())

    def values(self) -> st.SearchStrategy[Any]:
        return st.integers()


class TestOverwrittenTopic(ChannelLaws):
    overwritten = True

    def make(self) -> AnyChannel:
        return Topic(object, accumulate=True)

    def updates(self) -> st.SearchStrategy[Any]:
        return data | data.map(Overwrite)

    def values(self) -> st.SearchStrategy[Any]:
        return lists.filter(bool)


class TestOverwrittenSingleValue(ChannelLaws):
    """A channel without a fold stores the value in the overwrite."""

    def make(self) -> AnyChannel:
        return AnyValue()

    def updates(self) -> st.SearchStrategy[Any]:
        return data | overwriting(data)


def gather(current: list[Any], updates: list[Any]) -> list[Any]:
    """A batch reducer whose result does not depend on how writes are split."""
    gathered = [*current]
    for update in updates:
        gathered += update
    updates.clear()  # the list is its own
    return gathered


class TestDeltaChannel(ChannelLaws):
    folds = True

    def make(self) -> AnyChannel:
        return DeltaChannel(gather, list[int])

    def updates(self) -> st.SearchStrategy[Any]:
        return lists | refused


class TestDeltaChannelWithoutStart(ChannelLaws):
    folds = True

    def make(self) -> AnyChannel:
        return DeltaChannel(gather)

    def updates(self) -> st.SearchStrategy[Any]:
        return lists


class TestOverwrittenDeltaChannel(TestOverwrittenLists):
    def make(self) -> AnyChannel:
        return DeltaChannel(gather, list[int])


class Highest(BaseChannel[int, int, int]):
    """A user-defined channel with the required methods only: the highest number so far, none below zero."""

    def __init__(self, value: int | Missing = MISSING) -> None:
        super().__init__(int)
        self.value = value

    def get(self) -> int:
        if self.value is MISSING:
            raise EmptyChannelError(self.key)
        return self.value

    def update(self, values: Sequence[int]) -> bool:
        if any(value < 0 for value in values):
            raise InvalidUpdateError("negative", channel=self.key)
        highest = max(values, default=-1)
        if highest <= (-1 if self.value is MISSING else self.value):
            return False
        self.value = highest
        return True

    def from_checkpoint(self, stored: int | Missing) -> Self:
        twin = type(self)(stored)
        twin.key = self.key
        return twin


class TestHighest(ChannelLaws):
    folds = True
    commutes = True

    def make(self) -> AnyChannel:
        return Highest()

    def updates(self) -> st.SearchStrategy[Any]:
        return st.integers(min_value=-1)


class Waiting(BaseChannel[str, str, tuple[str, ...]]):
    """A user-defined channel that uses the whole protocol: a queue that shows its head and removes it on `consume`. A
    word is hidden until `finish`; two supersteps without a word empty the queue.

    A word is hidden until the run would end; two supersteps without a word empty the queue.
    """

    __slots__ = ("idle", "limit", "open", "words")

    def __init__(self, limit: int) -> None:
        super().__init__(str)
        self.limit = limit
        self.words: tuple[str, ...] = ()
        self.idle = False
        self.open = False

    def get(self) -> str:
        if not (self.open and self.words):
            raise EmptyChannelError(self.key)
        return self.words[0]

    def update(self, values: Sequence[str]) -> bool:
        if values:
            if len(self.words) + len(values) > self.limit:
                raise InvalidUpdateError("the queue is full", channel=self.key)
            self.words += tuple(values)
            self.idle = False
            return True
        if not self.words:
            return False
        if self.idle:
            self.words, self.idle, self.open = (), False, False
        else:
            self.idle = True
        return True

    def consume(self) -> bool:
        if not self.is_available():
            return False
        self.words = self.words[1:]
        self.open = False
        self.idle = self.idle and bool(self.words)
        return True

    def finish(self) -> bool:
        if self.open or not self.words:
            return False
        self.open = True
        return True

    def checkpoint(self) -> tuple[str, ...] | Missing:
        if not self.words:
            return MISSING
        return ("idle" if self.idle else "", "open" if self.open else "", *self.words)

    def from_checkpoint(self, stored: tuple[str, ...] | Missing) -> Self:
        twin = type(self)(self.limit)
        twin.key = self.key
        if stored is not MISSING:
            idle, opened, *words = stored
            twin.idle, twin.open, twin.words = bool(idle), bool(opened), tuple(words)
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return super().same_declaration(other) and isinstance(other, Waiting) and self.limit == other.limit


class TestWaiting(ChannelLaws):
    def make(self) -> AnyChannel:
        return Waiting(limit=4)

    def updates(self) -> st.SearchStrategy[Any]:
        return st.text(max_size=2)


class Capped(LastValue[int]):
    """A user-defined subclass of a built-in channel with a parameter of its own."""

    def __init__(self, limit: int) -> None:
        super().__init__(int)
        self.limit = limit

    def update(self, values: Sequence[int]) -> bool:
        return super().update([min(value, self.limit) for value in values])

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.limit = self.limit
        return twin


class TestCapped(ChannelLaws):
    def make(self) -> AnyChannel:
        return Capped(7)

    def updates(self) -> st.SearchStrategy[Any]:
        return st.integers()
