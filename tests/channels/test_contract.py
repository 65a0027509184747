"""Properties of every channel class: names, flags, defaults."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

import pytest

from pregel_async import channels
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


def batch(current: Any, updates: list[Any]) -> Any:
    return sum(updates, current)


def other_batch(current: Any, updates: list[Any]) -> Any:
    return current


BUILT_IN: dict[type[BaseChannel[Any, Any, Any]], BaseChannel[Any, Any, Any]] = {
    type(channel): channel
    for channel in (
        AnyValue(),
        BinaryOperatorAggregate(int, max),
        DeltaChannel(batch, int),
        EphemeralValue(),
        LastValue(),
        LastValueAfterFinish(),
        NamedBarrierValue(str, "a"),
        NamedBarrierValueAfterFinish(str, "a"),
        Topic(),
        UntrackedValue(),
    )
}


def flags(name: str) -> set[str]:
    return {kind.__name__ for kind, channel in BUILT_IN.items() if getattr(channel, name)}


def test_names_are_listed_sorted() -> None:
    """`__all__` lists the contract, `MISSING` and its type, and the built-in kinds, sorted."""
    assert sorted(channels.__all__) == sorted(
        {"BaseChannel", "MISSING", "Missing", *(kind.__name__ for kind in BUILT_IN)}
    )
    assert channels.__all__ == sorted(channels.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(channels, name) for name in channels.__all__)


def test_hypothesis_is_not_imported_by_the_package() -> None:
    """Importing the package does not import hypothesis, which only the laws need."""
    code = "import sys, pregel_async.channels; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_flags_of_the_built_in_kinds() -> None:
    """The flags of each built-in kind, which let the runtime do work in proportion to changes."""
    assert flags("expires") == {"AnyValue", "EphemeralValue", "Topic"}
    assert flags("consumes") == {"LastValueAfterFinish", "NamedBarrierValue", "NamedBarrierValueAfterFinish"}
    assert flags("finishes") == {"LastValueAfterFinish", "NamedBarrierValueAfterFinish"}
    assert flags("tracked") == {kind.__name__ for kind in BUILT_IN} - {"UntrackedValue"}


def test_kinds_are_stored_under_stable_names() -> None:
    """A built-in kind is stored under its class name, a user-defined one under its module and name, unless it sets
    another. A DeltaChannel stores the same as a reducer channel, so that a thread survives the change from one to the
    other.

    What a DeltaChannel stores is what a reducer stores, so that a thread outlives the change from one to the other.
    """

    class Mine(LastValue[int]):
        pass

    class Named(LastValue[int]):
        kind = "named"

    class Derived(Named):
        pass

    assert DeltaChannel.kind == BinaryOperatorAggregate.kind
    assert all(kind.kind == kind.__name__ for kind in BUILT_IN if kind is not DeltaChannel)
    assert Mine.kind == f"{__name__}.test_kinds_are_stored_under_stable_names.<locals>.Mine"
    assert Named.kind == "named"
    assert Derived.kind.endswith("Derived")


def test_instances_are_small() -> None:
    """The built-in kinds have `__slots__` in every base class."""
    assert not any(hasattr(channel, "__dict__") for channel in BUILT_IN.values())


@pytest.mark.parametrize("channel", BUILT_IN.values(), ids=lambda channel: type(channel).__name__)
def test_declarations_agree_with_themselves_only(channel: BaseChannel[Any, Any, Any]) -> None:
    """Two channels of one kind and with equal parameters agree, whatever their values; two kinds do not."""
    for other in BUILT_IN.values():
        assert channel.same_declaration(other.fresh()) is (channel is other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EphemeralValue(), EphemeralValue(guard=False)),
        (UntrackedValue(), UntrackedValue(guard=False)),
        (Topic(), Topic(accumulate=True)),
        (NamedBarrierValue(str, "a"), NamedBarrierValue(str, "ab")),
        (NamedBarrierValueAfterFinish(str, "a"), NamedBarrierValueAfterFinish(str, "ab")),
        (BinaryOperatorAggregate(int, max), BinaryOperatorAggregate(int, min)),
        (DeltaChannel(batch, int), DeltaChannel(other_batch, int)),
        (DeltaChannel(batch, int), DeltaChannel(batch, list)),
    ],
    ids=repr,
)
def test_parameters_distinguish_declarations(
    one: BaseChannel[Any, Any, Any], other: BaseChannel[Any, Any, Any]
) -> None:
    """Another guard, other names or another reducer make another declaration."""
    assert not one.same_declaration(other)
    assert not other.same_declaration(one)


def test_the_annotation_and_the_key_do_not_count() -> None:
    """`list` in one schema and `list[str]` in another do not conflict."""
    assert LastValue(list, key="a").same_declaration(LastValue(list[str]))


def test_missing_is_a_singleton() -> None:
    """`MISSING` has a type of its own, stays one object through copies and pickles, and has a readable repr."""
    assert isinstance(MISSING, Missing)
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert repr(MISSING) == "MISSING"


def test_a_channel_prints_its_kind_and_key() -> None:
    """A channel's repr shows its kind and key, for tracebacks and failed tests."""
    assert repr(LastValue(int, key="total")) == "<LastValue 'total'>"


class Plain(BaseChannel[int, int, int]):
    """The smallest channel that a user can write, with the slots of the contract."""

    def get(self) -> int:
        return 1

    def update(self, values: Sequence[int]) -> bool:
        return False

    def from_checkpoint(self, stored: int | Missing) -> Self:
        return type(self)(self.typ)


class TestDefaults:
    def test_defaults_of_a_minimal_channel(self) -> None:
        """By default a channel expires, stores the value that it shows, and gives its key to its copies."""
        channel = Plain(int, "a key")
        assert channel.expires
        assert not channel.consume()
        assert not channel.finish()
        assert channel.tracked
        assert channel.is_available()
        assert channel.checkpoint() == 1
        assert channel.fresh().key == channel.copy().key == "a key"

    def test_expires_is_reset_by_an_overridden_update(self) -> None:
        """A class that inherits `expires = False` and overrides `update`, also by a mixin, is called in every superstep
        unless it sets the flag again."""

        class Silent(LastValue[int]):
            pass

        class Updating(LastValue[int]):
            def update(self, values: Sequence[int]) -> bool:
                return super().update(values)

        class Promising(LastValue[int]):
            expires = False

            def update(self, values: Sequence[int]) -> bool:
                return super().update(values)

        class Below(Updating):
            pass

        class Mixed(Plain, LastValue[int]):
            pass

        assert not Silent(int).expires
        assert Updating(int).expires
        assert not Promising(int).expires
        assert Below(int).expires
        assert Mixed(int).expires

    def test_a_topic_decides_by_its_parameter(self) -> None:
        """A subclass of Topic with its own `update` can be created."""

        class Mine(Topic[int]):
            def update(self, values: Sequence[int | list[int]]) -> bool:
                return super().update(values)

        assert Mine(int).expires
        assert not Mine(int, accumulate=True).expires

    def test_flags_follow_what_is_overridden(self) -> None:
        """A user-defined class gets its flags from the methods that it overrides."""

        class Both(Plain):
            def consume(self) -> bool:
                return True

            def finish(self) -> bool:
                return True

        assert Both.consumes
        assert Both.finishes
        assert not Plain.consumes
        assert not Plain.finishes
