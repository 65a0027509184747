"""`DeltaChannel`: a reducer that is called once per superstep, with all writes."""

from __future__ import annotations

from typing import Any

import pytest

from pregel_async.channels import MISSING, BinaryOperatorAggregate, DeltaChannel
from pregel_async.errors import EmptyChannelError, GraphValidationError
from pregel_async.types import Overwrite


class Calls:
    """A batch reducer that records its arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any]] = []

    def __call__(self, current: Any, updates: list[Any]) -> Any:
        self.calls.append((current, [*updates]))
        return [*current, *updates]


def test_one_call_per_superstep() -> None:
    """The reducer gets the value and a list of the writes in order; a superstep without a write does not call it."""
    reducer = Calls()
    channel = DeltaChannel(reducer, list)
    assert channel.update(("a", "b")) is True
    assert channel.update([]) is False
    assert channel.update(["c"]) is True
    assert reducer.calls == [([], ["a", "b"]), (["a", "b"], ["c"])]
    assert channel.get() == channel.checkpoint() == ["a", "b", "c"]


def test_the_list_of_writes_is_the_reducers_own() -> None:
    """A reducer that changes the list of writes affects no other object."""

    def emptying(current: list[Any], updates: list[Any]) -> list[Any]:
        made = [*current, *updates]
        updates.clear()
        return made

    writes = ["a"]
    channel = DeltaChannel(emptying, list)
    channel.update(writes)
    assert writes == ["a"]
    assert channel.get() == ["a"]


def test_without_an_empty_value_the_first_write_becomes_the_value() -> None:
    """Without an empty value the first write becomes the value; further writes of the superstep are merged into it."""
    reducer = Calls()
    channel: DeltaChannel[Any] = DeltaChannel(reducer)
    with pytest.raises(EmptyChannelError):
        channel.get()
    channel.update([["a"]])
    assert reducer.calls == []
    assert channel.get() == ["a"]
    other: DeltaChannel[Any] = DeltaChannel(reducer)
    other.update([["a"], "b", "c"])
    assert reducer.calls == [(["a"], ["b", "c"])]


def test_an_overwrite_is_no_call() -> None:
    """An `Overwrite` replaces the value without a call of the reducer."""
    reducer = Calls()
    channel = DeltaChannel(reducer, list)
    channel.update(["a", Overwrite(["z"]), "b"])
    assert channel.get() == ["z"]
    assert reducer.calls == []


def test_a_reducer_that_raises_leaves_the_value() -> None:
    """A reducer's own exception is raised, and the value stays as it was."""

    def failing(current: list[Any], updates: list[Any]) -> list[Any]:
        if "bad" in updates:
            raise LookupError("bad")
        return [*current, *updates]

    channel = DeltaChannel(failing, list)
    channel.update(["a"])
    with pytest.raises(LookupError):
        channel.update(["b", "bad"])
    assert channel.get() == ["a"]


@pytest.mark.parametrize("frequency", [0, -1, 1.5, "10", None], ids=repr)
def test_the_frequency_is_checked(frequency: Any) -> None:
    """The frequency is a number of at least 1."""
    with pytest.raises(GraphValidationError, match=f"snapshot_frequency.*{frequency!r}"):
        DeltaChannel(Calls(), snapshot_frequency=frequency)
    assert DeltaChannel(Calls(), snapshot_frequency=1).snapshot_frequency == 1
    assert DeltaChannel(Calls()).snapshot_frequency == 1000


@pytest.mark.parametrize("reducer", [None, list, "add"], ids=repr)
def test_the_reducer_is_checked(reducer: Any) -> None:
    """A type in place of the reducer is refused; `DeltaChannel` without a reducer in an annotation gives one."""
    with pytest.raises(GraphValidationError, match="needs its reducer"):
        DeltaChannel(reducer)


def test_takes_its_type_from_an_annotation() -> None:
    """`of_type` declares the same channel for another type, and leaves the original unchanged."""
    reducer = Calls()
    untyped: DeltaChannel[Any] = DeltaChannel(reducer, snapshot_frequency=7)
    untyped.key = "log"
    typed = untyped.of_type(list[int])
    assert (typed.typ, typed.get(), typed.key) == (list[int], [], "log")
    assert (typed.reducer, typed.snapshot_frequency) == (reducer, 7)
    assert not untyped.is_available()
    assert typed.fresh().get() == typed.from_checkpoint(MISSING).get() == []


def test_the_frequency_makes_no_other_declaration() -> None:
    """Two frequencies do not conflict, as the frequency has no effect here; copies keep it."""
    reducer = Calls()
    one = DeltaChannel(reducer, list, snapshot_frequency=1)
    assert one.same_declaration(DeltaChannel(reducer, list[int]))
    assert one.fresh().snapshot_frequency == one.copy().snapshot_frequency == 1


def test_is_not_the_same_as_a_reducer() -> None:
    """A DeltaChannel and a reducer channel for one key conflict, though each can restore the other's stored value."""
    reducer = Calls()
    batch, plain = DeltaChannel(reducer, list), BinaryOperatorAggregate(list, reducer)
    assert not batch.same_declaration(plain)
    assert not plain.same_declaration(batch)
    plain.update(["a"])
    restored = batch.from_checkpoint(plain.checkpoint())
    assert restored.get() == ["a"]
