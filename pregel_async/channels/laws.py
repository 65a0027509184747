"""The laws of channels, as tests for a channel class of your own to inherit.

    from hypothesis import strategies as st
    from pregel_async.channels.laws import ChannelLaws

    class TestHighest(ChannelLaws):
        def make(self):
            return Highest(int)

        def updates(self):
            return st.integers()

pytest collects the laws from the subclass. They need hypothesis, which only this module imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..errors import EmptyChannelError, InvalidUpdateError
from ..types import Overwrite
from .abc import MISSING, AnyChannel
from .overwrite import overwrite_value

__all__ = ["ChannelLaws"]


@dataclass(frozen=True)
class UpdateCall:
    """A call of `update` with a superstep's writes; without values, that of a superstep without writes."""

    values: Sequence[Any]


@dataclass(frozen=True)
class ConsumeCall:
    """A call of `consume`."""


@dataclass(frozen=True)
class FinishCall:
    """A call of `finish`."""


Operation: TypeAlias = UpdateCall | ConsumeCall | FinishCall


def law(test: Callable[[Any, st.DataObject], None]) -> Callable[[Any], None]:
    """Make a test of a law that runs on many examples.

    Args:
        test: takes the test class's instance and the source of the examples.

    Returns:
        The test as pytest calls it.
    """
    run: Callable[[Any], None] = given(data=st.data())(test)
    # Hypothesis reports tests that several subclasses share as a mistake ("differing executors"); here it is the
    # purpose. Slow examples are no failures: the machine may be busy.
    checks = [HealthCheck.differing_executors, HealthCheck.too_slow]
    return settings(deadline=None, suppress_health_check=checks)(run)


class ChannelLaws:
    """The properties that the runtime requires of a channel. A subclass provides the channel and its writes.

    Attributes:
        folds: True if one superstep with two writes has the same result as two supersteps with one write each.
        commutes: True if the order of a superstep's writes does not matter.
        overwritten: True if an `Overwrite` replaces the value and all other writes of its superstep.
    """

    folds: ClassVar[bool] = False
    commutes: ClassVar[bool] = False
    overwritten: ClassVar[bool] = False

    def make(self) -> AnyChannel:
        """Make the channel as a graph would declare it. Override this.

        Returns:
            A new channel, with the same declaration in each call.
        """
        raise NotImplementedError

    def updates(self) -> st.SearchStrategy[Any]:
        """Generate writes. Override this.

        Returns:
            A strategy for one write, which may give invalid ones too. Writes must be deep-copyable and equal to their
            copies.
        """
        raise NotImplementedError

    def values(self) -> st.SearchStrategy[Any]:
        """Generate values for overwrites, if `overwritten` is True.

        Returns:
            A strategy for values that the channel holds and stores unchanged after an `Overwrite`.
        """
        return self.updates()

    @law
    def test_fresh_is_empty(self, data: st.DataObject) -> None:
        """`fresh()` returns a channel with the same declaration that holds nothing."""
        channel = self._reached(data)
        fresh = channel.fresh()
        _declared_alike(fresh, channel)
        assert fresh.checkpoint() is MISSING, f"{fresh!r} was never written and stores {fresh.checkpoint()!r}"
        _behave_alike(fresh, self._declared(), self._history(data))

    @law
    def test_round_trip(self, data: st.DataObject) -> None:
        """A channel restored from a checkpoint behaves as the stored one; as a new one if it is not tracked."""
        channel, source = self._reached(data), self._reached(data)
        before = contents_of(source)
        twin = source.from_checkpoint(deepcopy(channel.checkpoint()))
        _declared_alike(twin, channel)
        _behave_alike(twin, channel if channel.tracked else self._declared(), self._history(data))
        assert contents_of(source) == before, f"{source!r} was changed by its own from_checkpoint()"

    @law
    def test_copy_is_independent(self, data: st.DataObject) -> None:
        """A copy behaves as its original, and changes of one do not affect the other."""
        channel = self._reached(data)
        changed, kept = channel.copy(), channel.copy()
        _declared_alike(changed, channel)
        before = contents_of(channel)
        for operation in self._history(data):
            apply(changed, operation)
            assert contents_of(channel) == before, f"{channel!r} was changed by {operation} on its copy"
        _behave_alike(channel.copy(), channel, self._history(data))
        assert contents_of(kept) == before, f"a copy was changed by what happened to {channel!r}"

    @law
    def test_flags_tell_the_truth(self, data: st.DataObject) -> None:
        """Calls that `expires`, `consumes` and `finishes` exclude do nothing; an untracked channel stores nothing."""
        channel = self._reached(data)
        assert channel.kind, "a stored value needs the name of its form"
        before = contents_of(channel)
        spared: list[Operation] = []
        spared += [] if channel.expires else [UpdateCall(())]
        spared += [] if channel.consumes else [ConsumeCall()]
        spared += [] if channel.finishes else [FinishCall()]
        for operation in spared:
            assert apply(channel, operation) is False, f"{channel!r} changes with {operation}, against its flags"
            assert contents_of(channel) == before, f"{channel!r} changes with {operation}, against its flags"
        assert channel.tracked or channel.checkpoint() is MISSING, f"{channel!r} is not tracked and stores something"

    @law
    def test_returned_bool_tells_the_truth(self, data: st.DataObject) -> None:
        """After False the channel's contents are unchanged; after True without a write they are changed."""
        channel = self._reached(data)
        operation = data.draw(self._operations)
        before = contents_of(channel)
        outcome = apply(channel, operation)
        if outcome is False:
            assert contents_of(channel) == before, f"{channel!r} changed with {operation} and returned False"
        elif outcome is True and not (isinstance(operation, UpdateCall) and operation.values):
            assert contents_of(channel) != before, f"{channel!r} did not change with {operation} and returned True"

    @law
    def test_refused_update_changes_nothing(self, data: st.DataObject) -> None:
        """An update that raises leaves the channel unchanged."""
        channel = self._reached(data)
        before = channel.copy()
        outcome = apply(channel, data.draw(self._writes))
        if not isinstance(outcome, bool):
            _behave_alike(channel, before, self._history(data))

    @law
    def test_missing_means_nothing_is_held(self, data: st.DataObject) -> None:
        """A tracked channel that stores `MISSING`, because it was cleared or never written, behaves as a new one."""
        channel = self._reached(data)
        if channel.tracked and channel.checkpoint() is MISSING:
            _behave_alike(channel, self._declared(), self._history(data))

    @law
    def test_get_raises_if_and_only_if_unavailable(self, data: st.DataObject) -> None:
        """`is_available` is True if and only if `get` returns; the error of `get` names the channel."""
        channel = self._reached(data)
        named: str | None = None
        try:
            channel.get()
            returns = True
        except EmptyChannelError as error:
            returns, named = False, error.channel
        assert returns is channel.is_available(), (
            f"{channel!r}: is_available() is {channel.is_available()}; get() differs"
        )
        assert returns or named == channel.key, f"the error names {named!r} and not {channel.key!r}"

    @law
    def test_order_of_writes(self, data: st.DataObject) -> None:
        """Equal writes have equal results, also in another order if the channel commutes."""
        channel = self._reached(data)
        other = channel.copy()
        values = data.draw(self._several)
        again = data.draw(st.permutations(values)) if self.commutes else values
        outcomes = apply(channel, UpdateCall(values)), apply(other, UpdateCall(tuple(again)))
        assert outcomes[0] == outcomes[1], f"{channel!r} answers {values} and {again} with {outcomes}"
        _behave_alike(channel, other, self._history(data))

    @law
    def test_writes_fold_from_the_left(self, data: st.DataObject) -> None:
        """If the channel folds, writes of one superstep have the same result as one superstep for each write."""
        if not self.folds:
            return
        channel = self._reached(data)
        other = channel.copy()
        values = data.draw(self._several)
        together = apply(channel, UpdateCall(values))
        singly = [apply(other, UpdateCall([value])) for value in values]
        if isinstance(together, bool):
            assert together == any(singly), f"{channel!r} returned {together} for {values}, and {singly} one by one"
            _behave_alike(channel, other, self._history(data))
        else:
            assert together in singly, f"{channel!r} refuses {values} and accepts each of them"

    @law
    def test_an_overwrite_takes_the_place_of_all(self, data: st.DataObject) -> None:
        """If `overwritten`, an overwrite at any position replaces all other writes, and two are refused."""
        if not self.overwritten:
            return
        channel = self._reached(data)
        before = contents_of(channel)
        value, values = data.draw(self.values()), data.draw(st.lists(self._folded, max_size=3))
        values.insert(data.draw(st.integers(0, len(values))), Overwrite(value))
        expected = ChannelContents(deepcopy(value), deepcopy(value))
        twice = data.draw(st.permutations([*values, Overwrite(data.draw(self.values()))]))
        assert apply(channel, UpdateCall(twice)) is InvalidUpdateError, (
            f"{channel!r} was overwritten twice, with {twice}"
        )
        assert contents_of(channel) == before, f"{channel!r} was changed by writes that it refused"
        assert apply(channel, UpdateCall(values)) is True, f"{channel!r} refuses {values}, or denies that it changed"
        assert contents_of(channel) == expected, (
            f"{channel!r} was overwritten with {value!r}, and is {contents_of(channel)}"
        )

    @law
    def test_values_are_replaced_and_not_changed(self, data: st.DataObject) -> None:
        """Objects that a channel has received or returned are never changed."""
        channel = self._declared()
        known: list[tuple[object, object]] = []
        for operation in self._history(data):
            if isinstance(operation, UpdateCall):
                known += [(value, deepcopy(value)) for value in operation.values]
            apply(channel, operation)
            for value, copied in known:
                assert value == copied, f"{channel!r} changed {copied!r} in place with {operation}"
            if channel.is_available():
                known.append((value := channel.get(), deepcopy(value)))
            known.append((stored := channel.checkpoint(), deepcopy(stored)))

    def _declared(self) -> AnyChannel:
        channel = self.make()
        channel.key = "a key"
        return channel

    def _reached(self, data: st.DataObject) -> AnyChannel:
        """Return the channel after a random history of operations."""
        channel = self._declared()
        for operation in self._history(data):
            apply(channel, operation)
        return channel

    def _history(self, data: st.DataObject) -> list[Operation]:
        return data.draw(self._histories)

    # Cached, as making a strategy costs more than drawing from it.

    @cached_property
    def _several(self) -> st.SearchStrategy[list[Any]]:
        return st.lists(self.updates(), min_size=1, max_size=3)

    @cached_property
    def _folded(self) -> st.SearchStrategy[Any]:
        return self.updates().filter(lambda update: overwrite_value(update) is MISSING)

    @cached_property
    def _writes(self) -> st.SearchStrategy[UpdateCall]:
        return st.builds(UpdateCall, self._several | self._several.map(tuple))

    @cached_property
    def _operations(self) -> st.SearchStrategy[Operation]:
        return st.one_of(self._writes, st.just(UpdateCall(())), st.just(ConsumeCall()), st.just(FinishCall()))

    @cached_property
    def _histories(self) -> st.SearchStrategy[list[Operation]]:
        return st.lists(self._operations, max_size=6)


@dataclass(frozen=True)
class ChannelContents:
    """What readers and checkpoints get of a channel at one moment; `MISSING` for what it does not have."""

    value: object
    stored: object


def contents_of(channel: AnyChannel) -> ChannelContents:
    """Read a channel's contents.

    Args:
        channel: the channel.

    Returns:
        Deep copies, which later changes of the channel do not affect.
    """
    try:
        value = channel.get()
    except EmptyChannelError:
        value = MISSING
    return ChannelContents(deepcopy(value), deepcopy(channel.checkpoint()))


def apply(channel: AnyChannel, operation: Operation) -> bool | type[Exception]:
    """Apply an operation to a channel.

    Args:
        channel: the channel.
        operation: the call to make.

    Returns:
        What the channel returns, or the type of the exception that its `update` raises.
    """
    if isinstance(operation, UpdateCall):
        try:
            changed = channel.update(operation.values)
        except Exception as error:  # a reducer may raise anything
            return type(error)
    else:
        changed = channel.consume() if isinstance(operation, ConsumeCall) else channel.finish()
    assert isinstance(changed, bool), f"{channel!r} returned {changed!r} for {operation}, which is no bool"
    return changed


def _declared_alike(twin: AnyChannel, channel: AnyChannel) -> None:
    for name, one, other in (
        ("class", type(twin), type(channel)),
        ("key", twin.key, channel.key),
        ("typ", twin.typ, channel.typ),
        ("kind", twin.kind, channel.kind),
        ("expires", twin.expires, channel.expires),
    ):
        assert one == other, f"{twin!r} was made from {channel!r} and has another {name}: {one!r}, not {other!r}"
    assert twin is not channel, f"{channel!r} returned itself"
    assert twin.same_declaration(channel), f"{twin!r} was made from {channel!r} and is declared in another way"


def _behave_alike(one: AnyChannel, other: AnyChannel, history: Iterable[Operation]) -> None:
    """Assert that two channels have equal contents and results, now and through a history."""
    assert contents_of(one) == contents_of(other), (
        f"{one!r} and {other!r} differ: {contents_of(one)} and {contents_of(other)}"
    )
    for operation in history:
        outcomes = apply(one, operation), apply(other, operation)
        assert outcomes[0] == outcomes[1], f"{one!r} and {other!r} answer {operation} with {outcomes}"
        assert contents_of(one) == contents_of(other), (
            f"they differ after {operation}: {contents_of(one)} and {contents_of(other)}"
        )
