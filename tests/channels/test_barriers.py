"""Barriers: channels that wait for writes from several nodes."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from pregel_async.channels import MISSING, NamedBarrierValue, NamedBarrierValueAfterFinish
from pregel_async.errors import EmptyChannelError, GraphValidationError, InvalidUpdateError


def barrier() -> NamedBarrierValue[str]:
    return NamedBarrierValue(str, {"a", "b", "c"})


def test_opens_when_all_names_were_written() -> None:
    """A barrier opens when all names were written, in one superstep or several; its value is None."""
    channel = barrier()
    assert channel.update(["b"])
    with pytest.raises(EmptyChannelError):
        channel.get()
    assert not channel.update([])
    assert channel.update(["c", "a"])
    assert channel.is_available()
    assert channel.get() is None  # None is the promised value


def test_the_same_name_twice_changes_nothing() -> None:
    """Writing a name twice has no effect."""
    channel = barrier()
    assert channel.update(["a", "a"])
    assert not channel.update(["a"])
    assert not channel.is_available()


@pytest.mark.parametrize("unknown", ["d", ["a"], None])
def test_an_unknown_name_is_refused(unknown: Any) -> None:
    """The error names the channel, the name and the expected names, and the barrier is unchanged."""
    channel = barrier()
    channel.key = "join:a+b+c:d"
    with pytest.raises(InvalidUpdateError, match=r"'join:a\+b\+c:d' was written .*'a', 'b', 'c'") as caught:
        channel.update(["a", unknown])
    assert caught.value.channel == "join:a+b+c:d"
    assert repr(unknown) in str(caught.value)
    assert channel.checkpoint() is MISSING


def test_consume_resets_only_a_complete_barrier() -> None:
    """`consume` resets a complete barrier, and leaves an incomplete one as it is when its node runs because of another
    trigger."""
    channel = barrier()
    channel.update(["a", "b"])
    assert not channel.consume()
    assert channel.checkpoint() == ["a", "b"]
    channel.update(["c"])
    assert channel.consume()
    assert not channel.is_available()
    assert channel.checkpoint() is MISSING
    channel.update(["a", "b", "c"])
    assert channel.is_available()


def test_partly_seen_names_are_stored_in_order() -> None:
    """An incomplete barrier stores the names seen so far, sorted, whatever the order of the writes or of a set."""
    channel = barrier()
    channel.update(["c"])
    channel.update(["a"])
    assert channel.checkpoint() == ["a", "c"]
    twin = channel.from_checkpoint(channel.checkpoint())
    twin.update(["b"])
    assert twin.is_available()
    assert not channel.is_available()


def test_names_of_any_hashable_kind() -> None:
    """Names that Python cannot order are ordered by their `repr`."""

    class Side(Enum):
        RIGHT = 1
        LEFT = 2

    channel = NamedBarrierValue(Side, {Side.RIGHT, Side.LEFT})
    channel.update([Side.RIGHT, Side.LEFT])
    assert channel.checkpoint() == [Side.LEFT, Side.RIGHT]


def test_a_name_that_code_no_longer_has_is_not_waited_for() -> None:
    """A state restored into a barrier with fewer names opens with these."""
    channel = NamedBarrierValue(str, ["a", "b"]).from_checkpoint(["a", "gone"])
    assert channel.checkpoint() == ["a"]
    channel.update(["b"])
    assert channel.is_available()
    late = NamedBarrierValueAfterFinish(str, ["a"]).from_checkpoint((["gone"], False))
    assert late.checkpoint() is MISSING


def test_needs_a_name() -> None:
    """A barrier without names cannot be created."""
    with pytest.raises(GraphValidationError, match="without names"):
        NamedBarrierValue(str, [])


class TestAfterFinish:
    def make(self) -> NamedBarrierValueAfterFinish[str]:
        return NamedBarrierValueAfterFinish(str, {"a", "b"})

    def test_opens_at_the_end(self) -> None:
        """The barrier of a deferred node opens only after all names and `finish`."""
        channel = self.make()
        channel.update(["a"])
        assert not channel.finish()
        channel.update(["b"])
        assert not channel.is_available()
        assert not channel.consume()
        assert channel.finish()
        assert not channel.finish()
        assert channel.is_available()
        assert channel.get() is None  # None is the promised value

    def test_consume_resets_a_deferred_barrier(self) -> None:
        """After `consume`, a deferred barrier needs all names and another `finish`."""
        channel = self.make()
        channel.update(["a", "b"])
        channel.finish()
        assert channel.consume()
        assert channel.checkpoint() is MISSING
        channel.update(["a", "b"])
        assert not channel.is_available()
        assert channel.finish()

    def test_stores_names_and_end(self) -> None:
        """A run that stopped between `finish` and the deferred node continues with the node."""
        channel = self.make()
        channel.update(["b"])
        assert channel.checkpoint() == (["b"], False)
        channel.update(["a"])
        channel.finish()
        assert channel.checkpoint() == (["a", "b"], True)
        assert channel.from_checkpoint(channel.checkpoint()).is_available()
        assert not channel.fresh().is_available()
