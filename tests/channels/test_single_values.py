"""Channels with one value: what each kind does with many writes, with no write, and at the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pregel_async.channels import (
    MISSING,
    AnyValue,
    BaseChannel,
    EphemeralValue,
    LastValue,
    LastValueAfterFinish,
    UntrackedValue,
)
from pregel_async.errors import EmptyChannelError, ErrorCode, InvalidUpdateError

KINDS: list[Callable[[], BaseChannel[Any, Any, Any]]] = [
    LastValue,
    LastValueAfterFinish,
    AnyValue,
    EphemeralValue,
    UntrackedValue,
]


@pytest.mark.parametrize("make", KINDS)
def test_none_is_a_value(make: Callable[[], BaseChannel[Any, Any, Any]]) -> None:
    """None can be written and read, and differs from an empty channel."""
    channel = make()
    assert channel.update([None])
    channel.finish()
    assert channel.is_available()
    assert channel.get() is None


@pytest.mark.parametrize("make", KINDS)
def test_reading_nothing_names_the_channel(make: Callable[[], BaseChannel[Any, Any, Any]]) -> None:
    """The error of reading an empty channel names the channel."""
    channel = make()
    channel.key = "answer"
    with pytest.raises(EmptyChannelError, match="'answer'"):
        channel.get()


def test_a_type_may_be_left_out() -> None:
    """`LastValue()` and the like hold values of any type."""
    assert [make().typ for make in KINDS] == [Any] * len(KINDS)
    assert LastValue(int).typ is int
    assert LastValue(int, "count").key == "count"


class TestLastValue:
    def test_keeps_its_value_until_the_next_write(self) -> None:
        """A superstep without a write keeps the value."""
        channel = LastValue(int)
        assert channel.update([1])
        assert not channel.update([])
        assert channel.get() == 1
        assert channel.update([2])
        assert channel.get() == 2

    def test_refuses_two_writes_in_one_superstep(self) -> None:
        """The error of two writes names the key and a remedy, and the value stays."""
        channel = LastValue(int, key="total")
        channel.update([1])
        with pytest.raises(InvalidUpdateError, match=r"'total' was written 2 times.*Annotated\[") as caught:
            channel.update([2, 2])
        assert caught.value.channel == "total"
        assert caught.value.code is ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE
        assert channel.get() == 1


class TestAnyValue:
    def test_keeps_the_last_of_many(self) -> None:
        """Of several writes in a superstep the last one stays."""
        channel = AnyValue(str)
        assert channel.update(["a", "b"])
        assert channel.get() == "b"

    def test_is_cleared_by_a_superstep_without_a_write(self) -> None:
        """A superstep without a write clears the value; a second one has no further effect."""
        channel = AnyValue(str)
        channel.update(["a"])
        assert channel.update([])
        assert not channel.is_available()
        assert not channel.update([])


class TestEphemeralValue:
    def test_lives_one_superstep_and_not_until_it_is_read(self) -> None:
        """The value is readable any number of times in its superstep, and gone in the next, read or not."""
        channel = EphemeralValue(str)
        channel.update(["a"])
        assert channel.get() == channel.get() == "a"
        assert channel.update([])
        assert not channel.is_available()
        assert channel.checkpoint() is MISSING

    def test_a_write_replaces_the_value(self) -> None:
        """A channel written in each superstep has a value in each."""
        channel = EphemeralValue(str)
        channel.update(["a"])
        channel.update(["b"])
        assert channel.get() == "b"

    def test_guard(self) -> None:
        """With the guard, which is the default, two writes are refused; without it the last stays."""
        with pytest.raises(InvalidUpdateError):
            EphemeralValue(str).update(["a", "b"])
        channel = EphemeralValue(str, guard=False)
        channel.update(["a", "b"])
        assert channel.get() == "b"


class TestUntrackedValue:
    def test_is_never_stored(self) -> None:
        """The value survives between supersteps and in copies, but is not in a checkpoint."""
        channel = UntrackedValue(object)
        channel.update([connection := object()])
        assert not channel.update([])
        assert channel.get() is connection
        assert channel.copy().get() is connection
        assert channel.checkpoint() is MISSING
        assert not channel.tracked

    def test_ignores_what_another_kind_had_stored(self) -> None:
        """A key that became untracked starts empty."""
        assert not UntrackedValue(int).from_checkpoint(1).is_available()

    def test_guard(self) -> None:
        """With the guard, which is the default, two writes are refused; without it the last stays."""
        with pytest.raises(InvalidUpdateError):
            UntrackedValue(str).update(["a", "b"])
        channel = UntrackedValue(str, guard=False)
        channel.update(["a", "b"])
        assert channel.get() == "b"


class TestLastValueAfterFinish:
    def test_shows_its_value_only_at_the_end(self) -> None:
        """The value is hidden until `finish` and gone after `consume`: a deferred node runs once per end."""
        channel = LastValueAfterFinish(str)
        channel.update(["a"])
        assert not channel.is_available()
        assert not channel.consume()
        assert channel.finish()
        assert channel.get() == "a"
        assert not channel.finish()
        assert channel.consume()
        assert not channel.is_available()
        assert channel.checkpoint() is MISSING

    def test_finish_without_a_write(self) -> None:
        """`finish` without a write makes nothing available."""
        channel = LastValueAfterFinish(str)
        assert not channel.finish()
        assert not channel.is_available()

    def test_a_write_hides_it_again(self) -> None:
        """A value written after `finish` waits for the next one."""
        channel = LastValueAfterFinish(str)
        channel.update(["a"])
        channel.finish()
        assert not channel.update([])
        assert channel.is_available()
        assert channel.update(["b"])
        assert not channel.is_available()
        assert channel.finish()
        assert channel.get() == "b"

    def test_many_edges_may_lead_to_a_deferred_node(self) -> None:
        """Several writes in a superstep are allowed, and the last one stays."""
        channel = LastValueAfterFinish(str)
        assert channel.update(["a", "b"])
        channel.finish()
        assert channel.get() == "b"

    def test_whether_it_had_finished_is_stored(self) -> None:
        """A run that stopped between `finish` and the deferred node continues with the node."""
        channel = LastValueAfterFinish(str)
        channel.update(["a"])
        assert channel.checkpoint() == ("a", False)
        channel.finish()
        assert channel.checkpoint() == ("a", True)
        assert channel.from_checkpoint(["a", True]).get() == "a"  # a codec may store a tuple as a list
