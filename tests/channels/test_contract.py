"""What holds of every channel class: names, flags, defaults."""

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
    """`__all__` is what there is: the contract, `MISSING` and its type, and the built-in kinds."""
    assert sorted(channels.__all__) == sorted(
        {"BaseChannel", "MISSING", "Missing", *(kind.__name__ for kind in BUILT_IN)}
    )
    assert channels.__all__ == sorted(channels.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(channels, name) for name in channels.__all__)


def test_hypothesis_is_not_imported_by_the_package() -> None:
    """The laws need it; who only runs graphs does not."""
    code = "import sys, pregel_async.channels; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_flags_of_the_built_in_kinds() -> None:
    """What lets the runtime do work in proportion to what changed."""
    assert flags("expires") == {"AnyValue", "EphemeralValue", "Topic"}
    assert flags("consumes") == {"LastValueAfterFinish", "NamedBarrierValue", "NamedBarrierValueAfterFinish"}
    assert flags("finishes") == {"LastValueAfterFinish", "NamedBarrierValueAfterFinish"}
    assert flags("tracked") == {kind.__name__ for kind in BUILT_IN} - {"UntrackedValue"}


def test_kinds_are_stored_under_stable_names() -> None:
    """A built-in kind is named by its class; a user's by where it is defined, unless it says otherwise.

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
    """The built-in kinds have slots all the way up."""
    assert not any(hasattr(channel, "__dict__") for channel in BUILT_IN.values())


@pytest.mark.parametrize("channel", BUILT_IN.values(), ids=lambda channel: type(channel).__name__)
def test_declarations_agree_with_themselves_only(channel: BaseChannel[Any, Any, Any]) -> None:
    """Two of one kind with the same parameters agree, whatever they hold; two kinds do not."""
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
def test_parameters_tell_declarations_apart(one: BaseChannel[Any, Any, Any], other: BaseChannel[Any, Any, Any]) -> None:
    """Another guard, other names, another reducer: another declaration."""
    assert not one.same_declaration(other)
    assert not other.same_declaration(one)


def test_the_annotation_and_the_key_do_not_count() -> None:
    """`list` in one schema and `list[str]` in another are no conflict."""
    assert LastValue(list, key="a").same_declaration(LastValue(list[str]))


def test_missing_is_one_of_its_kind() -> None:
    """Its own type, one object wherever it travels, and readable."""
    assert isinstance(MISSING, Missing)
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert repr(MISSING) == "MISSING"


def test_a_channel_prints_its_kind_and_key() -> None:
    """As in a traceback or a failed test."""
    assert repr(LastValue(int, key="total")) == "<LastValue 'total'>"


class Plain(BaseChannel[int, int, int]):
    """The least that a user writes, on slots that the contract has."""

    def get(self) -> int:
        return 1

    def update(self, values: Sequence[int]) -> bool:
        return False

    def from_checkpoint(self, stored: int | Missing) -> Self:
        return type(self)(self.typ)


class TestDefaults:
    def test_of_the_least_that_a_user_writes(self) -> None:
        """It expires to be safe, is stored as it shows itself, and its twins keep the key."""
        channel = Plain(int, "a key")
        assert channel.expires
        assert not channel.consume()
        assert not channel.finish()
        assert channel.tracked
        assert channel.is_available()
        assert channel.checkpoint() == 1
        assert channel.fresh().key == channel.copy().key == "a key"

    def test_a_promise_is_that_of_the_update_it_was_made_for(self) -> None:
        """Who inherits `expires = False` and overrides `update`, or mixes one in, is called again, or promises too."""

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
        """A subclass with an update of its own can be made, too."""

        class Mine(Topic[int]):
            def update(self, values: Sequence[int | list[int]]) -> bool:
                return super().update(values)

        assert Mine(int).expires
        assert not Mine(int, accumulate=True).expires

    def test_flags_follow_what_is_overridden(self) -> None:
        """A user's class need not know of them."""

        class Both(Plain):
            def consume(self) -> bool:
                return True

            def finish(self) -> bool:
                return True

        assert Both.consumes
        assert Both.finishes
        assert not Plain.consumes
        assert not Plain.finishes
