"""Topics: what many writers bring, in order."""

from __future__ import annotations

import pytest

from pregel_async.channels import MISSING, Topic
from pregel_async.errors import EmptyChannelError


def test_collects_in_the_order_written() -> None:
    """Values as they are, and lists as their elements, one level deep; other containers are values."""
    channel = Topic(object)
    assert channel.update([1, [2, [3]], (4, 5), []])
    assert channel.get() == [1, 2, [3], (4, 5)]


def test_forgets_in_a_superstep_without_a_write() -> None:
    """And says that it changed, once."""
    channel = Topic(int)
    channel.update([1])
    assert channel.update([])
    assert not channel.is_available()
    assert channel.checkpoint() is MISSING
    assert not channel.update([])


def test_a_write_replaces_what_was_there() -> None:
    """Even one without elements."""
    channel = Topic(int)
    channel.update([1])
    channel.update([2, 3])
    assert channel.get() == [2, 3]
    assert channel.update([[]])
    assert not channel.is_available()
    assert not channel.update([[]])


def test_accumulating_keeps_all() -> None:
    """In a superstep without a write too, so that it need not be told of it."""
    channel = Topic(int, accumulate=True)
    channel.update([1])
    assert not channel.update([])
    assert not channel.update([[]])
    assert channel.update([2, [3]])
    assert channel.get() == [1, 2, 3]
    assert Topic(int).expires
    assert not channel.expires
    assert not channel.copy().expires


def test_reading_an_empty_one_raises() -> None:
    """As for all channels; an empty list is not shown."""
    channel = Topic(int)
    channel.key = "news"
    with pytest.raises(EmptyChannelError, match="'news'"):
        channel.get()


def test_what_was_read_does_not_grow() -> None:
    """A list that was handed out stays as it is (P1)."""
    channel = Topic(int, accumulate=True)
    channel.update([1])
    read, stored = channel.get(), channel.checkpoint()
    channel.update([2])
    assert read == stored == [1]
