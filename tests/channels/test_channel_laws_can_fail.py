"""Each law of channels is broken by some faulty channel, so that each law can fail."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pregel_async.channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from pregel_async.channels.laws import AnyChannel, ChannelLaws
from pregel_async.errors import EmptyChannelError
from pregel_async.types import Overwrite


@dataclass(frozen=True)
class FaultyChannel:
    """A channel with a mistake, and the law that finds it."""

    law: str
    make: Callable[[], AnyChannel]
    flags: dict[str, bool]


BROKEN: list[FaultyChannel] = []
Kind = TypeVar("Kind", bound=type[BaseChannel[Any, Any, Any]])


def breaks(law: str, *parameters: Any, **flags: bool) -> Callable[[Kind], Kind]:
    """Declare that a channel made of the class with these parameters breaks the law."""

    def plant(kind: Kind) -> Kind:
        BROKEN.append(FaultyChannel(law, partial(kind, *parameters), flags))
        return kind

    return plant


@breaks("test_fresh_is_empty")
class FreshKeepsTheValue(LastValue[Any]):
    def fresh(self) -> Self:
        twin = super().fresh()
        twin._value = self._value
        return twin


@breaks("test_fresh_is_empty")
@breaks("test_round_trip")
@breaks("test_copy_is_independent")
class TwinsForgetTheirKey(LastValue[Any]):
    def _blank(self) -> Self:
        twin = super()._blank()
        twin.key = ""
        return twin


@breaks("test_fresh_is_empty", "a parameter")
class TwinsForgetAParameter(LastValue[Any]):
    def __init__(self, parameter: str = "") -> None:
        super().__init__()
        self.parameter = parameter

    def fresh(self) -> Self:
        twin = super().fresh()
        twin.parameter = ""
        return twin

    def same_declaration(self, other: BaseChannel[Any, Any, Any]) -> bool:
        return isinstance(other, TwinsForgetAParameter) and self.parameter == other.parameter


@breaks("test_fresh_is_empty")
class NothingIsStoredAsSomething(LastValue[Any]):
    def checkpoint(self) -> Any:
        return None if self._value is MISSING else self._value


@breaks("test_round_trip")
class CheckpointLosesAPart(LastValueAfterFinish[Any]):
    def from_checkpoint(self, stored: Any) -> Self:
        return super().from_checkpoint(stored if stored is MISSING else (stored[0], False))


@breaks("test_round_trip")
class RestoredInPlace(LastValue[Any]):
    def from_checkpoint(self, stored: Any) -> Self:
        self._value = stored
        return self


@breaks("test_round_trip")
class RestoredFromWhatItHeld(LastValue[Any]):
    def from_checkpoint(self, stored: Any) -> Self:
        return super().from_checkpoint(self._value if stored is MISSING else stored)


@breaks("test_round_trip")
class RestoringClearsTheSource(LastValue[Any]):
    def from_checkpoint(self, stored: Any) -> Self:
        self._value = MISSING
        return super().from_checkpoint(stored)


@breaks("test_round_trip")
@breaks("test_flags_tell_the_truth")
class UntrackedAndStored(UntrackedValue[Any]):
    def checkpoint(self) -> Any:
        return self._value

    def from_checkpoint(self, stored: Any) -> Self:
        twin = self.fresh()
        twin._value = stored
        return twin


@breaks("test_copy_is_independent")
class CopyIsItself(LastValue[Any]):
    def copy(self) -> Self:
        return self


@breaks("test_copy_is_independent", object, True)
@breaks("test_values_are_replaced_and_not_changed", object, True)
class ExtendedInPlace(Topic[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        self._values.extend(values)
        return bool(values)


@breaks("test_flags_tell_the_truth")
class ExpiresUnsaid(EphemeralValue[Any]):
    expires = False

    def update(self, values: Any) -> bool:
        if values or not self.is_available():
            return super().update(values)
        self._value = MISSING
        return True


@breaks("test_flags_tell_the_truth", str, ["a", "b"])
class ConsumesUnsaid(NamedBarrierValue[str]):
    pass


ConsumesUnsaid.consumes = False


@breaks("test_flags_tell_the_truth")
class FinishesUnsaid(LastValueAfterFinish[Any]):
    pass


FinishesUnsaid.finishes = False


@breaks("test_flags_tell_the_truth")
class NoKind(LastValue[Any]):
    kind = ""


@breaks("test_returned_bool_tells_the_truth")
class ChangesAndDenies(LastValue[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        super().update(values)
        return False


@breaks("test_returned_bool_tells_the_truth")
class ClaimsToChange(LastValue[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        super().update(values)
        return True


@breaks("test_returned_bool_tells_the_truth")
class ReturnsNoBool(LastValue[Any]):
    def update(self, values: Sequence[Any]) -> Any:
        return len(values) if super().update(values) else 0


@breaks("test_refused_update_changes_nothing")
class RefusesTooLate(LastValue[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        for value in values:
            self._value = value
        return super().update(values)


@breaks("test_missing_means_nothing_is_held")
class FalsyIsNotStored(LastValue[Any]):
    def checkpoint(self) -> Any:
        return self._value or MISSING


@breaks("test_get_raises_if_and_only_if_unavailable")
class AlwaysAvailable(LastValue[Any]):
    def is_available(self) -> bool:
        return True


@breaks("test_get_raises_if_and_only_if_unavailable")
class NeverAvailable(LastValue[Any]):
    def is_available(self) -> bool:
        return False


@breaks("test_get_raises_if_and_only_if_unavailable")
class ErrorWithoutAName(LastValue[Any]):
    def get(self) -> Any:
        if self._value is MISSING:
            raise EmptyChannelError
        return self._value


@breaks("test_order_of_writes", object, True)
class HeedsTheContainer(Topic[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        return super().update(values[::-1] if isinstance(values, tuple) else values)


@breaks("test_order_of_writes", commutes=True)
class ClaimsToCommute(AnyValue[Any]):
    pass


@breaks("test_writes_fold_from_the_left", folds=True)
class ClaimsToFoldAndForgets(Topic[Any]):
    pass


@breaks("test_writes_fold_from_the_left", folds=True)
class ClaimsToFoldAndRefuses(LastValue[Any]):
    pass


@breaks("test_writes_fold_from_the_left", object, True, folds=True)
class FoldsFromTheRight(Topic[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        return super().update(values[::-1])


@breaks("test_an_overwrite_takes_the_place_of_all", overwritten=True)
class ClaimsToBeOverwritten(AnyValue[Any]):
    pass


@breaks("test_an_overwrite_takes_the_place_of_all", list, operator.add, overwritten=True)
class OverwrittenAndFolded(BinaryOperatorAggregate[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        changed = super().update(values)
        if any(isinstance(value, Overwrite) for value in values):
            super().update([value for value in values if not isinstance(value, Overwrite)])
        return changed


@breaks("test_an_overwrite_takes_the_place_of_all", list, operator.add, overwritten=True)
class OverwrittenByTheLast(BinaryOperatorAggregate[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        overwrites = [value for value in values if isinstance(value, Overwrite)]
        return super().update(overwrites[-1:] or values)


def appended(current: list[Any], update: Any) -> list[Any]:
    current.append(update)
    return current


@breaks("test_values_are_replaced_and_not_changed", list, appended)
class ReducedInPlace(BinaryOperatorAggregate[Any]):
    pass


@breaks("test_values_are_replaced_and_not_changed")
class ChangesWhatItWasGiven(LastValue[Any]):
    def update(self, values: Sequence[Any]) -> bool:
        for value in values:
            value.append("more")
        return super().update(values)


def laws_of(planted: FaultyChannel) -> ChannelLaws:
    class Laws(ChannelLaws):
        folds = planted.flags.get("folds", False)
        commutes = planted.flags.get("commutes", False)
        overwritten = planted.flags.get("overwritten", False)

        def make(self) -> AnyChannel:
            return planted.make()

        def updates(self) -> st.SearchStrategy[Any]:
            if isinstance(planted.make(), NamedBarrierValue):
                return st.sampled_from(["a", "b"])
            return st.sampled_from([[], ["a"], ["b"]]).map(deepcopy)

    return Laws()


@pytest.mark.parametrize("planted", BROKEN, ids=lambda planted: f"{type(planted.make()).__name__}-{planted.law}")
def test_a_broken_channel_breaks_its_law(planted: FaultyChannel) -> None:
    """The law finds a channel with this mistake.

    One example in ten shows the rarest of them. Examples are drawn at random, so a law has three tries. Shrinking is
    off, as the smallest example does not matter.
    """
    said = getattr(ChannelLaws, planted.law).hypothesis.inner_test
    checks = [HealthCheck.differing_executors, HealthCheck.too_slow]
    how = settings(deadline=None, suppress_health_check=checks, phases=[Phase.generate], max_examples=100)
    law = how(given(data=st.data())(said))
    found: Exception | None = None
    for _ in range(3):
        try:
            law(laws_of(planted))
        except (AssertionError, ExceptionGroup) as error:
            found = error
            break
    assert found is not None, "the law was not broken"
    assert not isinstance(found, ExceptionGroup) or found.split(AssertionError)[1] is None


def test_each_law_can_be_broken() -> None:
    """Every law is broken by at least one channel."""
    assert {planted.law for planted in BROKEN} == {name for name in vars(ChannelLaws) if name.startswith("test_")}


def test_laws_say_what_a_subclass_has_to_write() -> None:
    """The base class of the laws refuses to run without a channel."""
    with pytest.raises(NotImplementedError):
        ChannelLaws().make()
    with pytest.raises(NotImplementedError):
        ChannelLaws().updates()
