"""Checkpoint ids sort by creation time, even if the clock goes back."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers.records import CheckpointId
from pregel_async._runtime.persistence.lease import CheckpointIds
from pregel_async._runtime.platform.environment import SystemEnvironment

MOST = (1 << 62) - 1


class ScriptedEnvironment:
    """An environment whose clock and randomness come from the test."""

    def __init__(self, time: float = 0.0, random: int = 0) -> None:
        self.time = time
        self.random = random

    def now(self) -> float:
        return self.time

    def entropy(self) -> int:
        return self.random

    def new_id(self) -> str:
        return "id"

    def jitter(self) -> float:
        return 0.5


def checkpoint_id(environment: Any, after: CheckpointId | None) -> CheckpointId:
    """Return the first checkpoint id of a new owner of the thread."""
    return CheckpointIds(environment, after).next(environment.now())


times = st.floats(0, 2**40 / 1000, allow_nan=False, allow_infinity=False)
moments = st.lists(st.tuples(times, st.integers(0, MOST)), min_size=2, max_size=20)


def made(moments: list[tuple[float, int]]) -> list[CheckpointId]:
    ids: list[CheckpointId] = []
    for time, random in moments:
        ids.append(checkpoint_id(ScriptedEnvironment(time, random), ids[-1] if ids else None))
    return ids


@given(moments=moments)
def test_an_id_is_greater_than_the_one_before(moments: list[tuple[float, int]]) -> None:
    """Ids sort by creation as strings: an id is greater than its parent's even when the clock goes back."""
    ids = made(moments)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


@given(moments=moments)
def test_the_ids_of_one_owner(moments: list[tuple[float, int]]) -> None:
    """The owner of a thread draws random bits once and counts up from them; the next owner continues above its ids."""
    random = moments[0][1]
    ids = CheckpointIds(ScriptedEnvironment(0.0, random), None)
    listed = [ids.next(time) for time, _ in moments]
    assert listed == made([(time, random) for time, _ in moments])
    assert checkpoint_id(ScriptedEnvironment(0.0, moments[-1][1]), listed[-1]) > listed[-1]


@given(moments=moments)
def test_the_same_clock_still_rises(moments: list[tuple[float, int]]) -> None:
    """Ids made in one tick of a coarse clock are ordered, for any randomness."""
    ids = made([(1.0, random) for _, random in moments])
    assert ids == sorted(set(ids))


@given(times=st.lists(times, min_size=2, max_size=10))
def test_ids_of_unrelated_threads_sort_by_time(times: list[float]) -> None:
    """Ids of unrelated threads sort by their clocks' milliseconds."""
    ids = {time: checkpoint_id(ScriptedEnvironment(time, MOST), None) for time in times}
    for one in times:
        for other in times:
            if int(one * 1000) < int(other * 1000):
                assert ids[one] < ids[other]


@given(time=times, random=st.integers(0, MOST))
def test_an_id_is_a_uuid_of_version_7(time: float, random: int) -> None:
    """RFC 9562, 5.7: 48 bits of milliseconds, version, variant."""
    parsed = uuid.UUID(checkpoint_id(ScriptedEnvironment(time, random), None))
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert abs((parsed.int >> 80) - int(time * 1000)) <= 1
    assert parsed.int & MOST == random


def test_a_clock_that_went_back_a_year_counts_on() -> None:
    """If the clock goes back by any amount, ids count up from the last one, until the clock passes it."""
    now, year = 1_700_000_000.0, 31_536_000.0
    first = checkpoint_id(ScriptedEnvironment(now, MOST), None)
    second = checkpoint_id(ScriptedEnvironment(now - year, 0), first)
    third = checkpoint_id(ScriptedEnvironment(now - year, 0), second)
    fourth = checkpoint_id(ScriptedEnvironment(now + 1, 0), third)
    assert first < second < third < fourth
    assert fourth == checkpoint_id(ScriptedEnvironment(now + 1, 0), None)


def test_an_id_depends_on_the_environment_alone() -> None:
    """P2: clock and randomness enter through the environment only: equal answers give equal ids."""
    assert checkpoint_id(ScriptedEnvironment(5.0, 9), None) == checkpoint_id(ScriptedEnvironment(5.0, 9), None)
    assert checkpoint_id(ScriptedEnvironment(5.0, 9), None) != checkpoint_id(ScriptedEnvironment(5.0, 8), None)


def test_the_system_environment() -> None:
    """P2: the system environment has a clock in unix seconds, distinct ids, 62 random bits, and a jitter from 0 to
    1."""
    environment = SystemEnvironment()
    assert environment.now() > 1_600_000_000
    assert environment.new_id() != environment.new_id()
    assert all(0 <= environment.entropy() <= MOST for _ in range(20))
    assert len({environment.entropy() for _ in range(20)}) == 20
    assert 0 <= environment.jitter() < 1
    ids = [checkpoint_id(environment, None)]
    for _ in range(100):
        ids.append(checkpoint_id(environment, ids[-1]))
    assert ids == sorted(set(ids))


@pytest.mark.parametrize("time", [0.0, 0.0001, 1.0])
def test_ids_at_time_zero(time: float) -> None:
    """Ids work at time 0, where scripted clocks start."""
    first = checkpoint_id(ScriptedEnvironment(time), None)
    assert first < checkpoint_id(ScriptedEnvironment(time), first)
