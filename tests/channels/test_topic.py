"""Topics: the values of many writers, in order."""

from __future__ import annotations

import pytest

from pregel_async.channels import MISSING, Topic
from pregel_async.errors import EmptyChannelError


def test_collects_in_the_order_written() -> None:
    """Values are collected in order, lists as their elements, one level deep; other containers count as values."""
    channel = Topic(object)
    assert channel.update([1, [2, [3]], (4, 5), []])
    assert channel.get() == [1, 2, [3], (4, 5)]


def test_forgets_in_a_superstep_without_a_write() -> None:
    """A superstep without a write empties the topic, which reports the change once."""
    channel = Topic(int)
    channel.update([1])
    assert channel.update([])
    assert not channel.is_available()
    assert channel.checkpoint() is MISSING
    assert not channel.update([])


def test_a_write_replaces_what_was_there() -> None:
    """A write replaces the earlier values, even with an empty list."""
    channel = Topic(int)
    channel.update([1])
    channel.update([2, 3])
    assert channel.get() == [2, 3]
    assert channel.update([[]])
    assert not channel.is_available()
    assert not channel.update([[]])


def test_accumulating_keeps_all() -> None:
    """An accumulating topic keeps all values, in a superstep without a write too."""
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
    """Reading an empty topic raises, as for all channels."""
    channel = Topic(int)
    channel.key = "news"
    with pytest.raises(EmptyChannelError, match="'news'"):
        channel.get()


def test_what_was_read_does_not_grow() -> None:
    """P1: a list read from a topic does not change with later writes."""
    channel = Topic(int, accumulate=True)
    channel.update([1])
    read, stored = channel.get(), channel.checkpoint()
    channel.update([2])
    assert read == stored == [1]
