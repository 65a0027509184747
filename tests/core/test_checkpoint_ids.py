"""Ids of checkpoints sort by creation, whatever the clock does."""

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


class Scripted:
    """A world whose clock and randomness are what the test says."""

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
    """The first id of a new owner of the thread."""
    return CheckpointIds(environment, after).next(environment.now())


times = st.floats(0, 2**40 / 1000, allow_nan=False, allow_infinity=False)
moments = st.lists(st.tuples(times, st.integers(0, MOST)), min_size=2, max_size=20)


def made(moments: list[tuple[float, int]]) -> list[CheckpointId]:
    ids: list[CheckpointId] = []
    for time, random in moments:
        ids.append(checkpoint_id(Scripted(time, random), ids[-1] if ids else None))
    return ids


@given(moments=moments)
def test_an_id_is_greater_than_the_one_before(moments: list[tuple[float, int]]) -> None:
    """Ids sort by creation as strings; an id is greater than its parent's even when the clock goes
    back."""
    ids = made(moments)
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


@given(moments=moments)
def test_the_ids_of_one_owner(moments: list[tuple[float, int]]) -> None:
    """The ids that one owner of a thread makes are those that it would make of its first random bits, and the next owner
    counts on."""
    random = moments[0][1]
    ids = CheckpointIds(Scripted(0.0, random), None)
    listed = [ids.next(time) for time, _ in moments]
    assert listed == made([(time, random) for time, _ in moments])
    assert checkpoint_id(Scripted(0.0, moments[-1][1]), listed[-1]) > listed[-1]


@given(moments=moments)
def test_the_same_clock_still_rises(moments: list[tuple[float, int]]) -> None:
    """Many checkpoints in one tick of a coarse clock are still ordered, with any randomness."""
    ids = made([(1.0, random) for _, random in moments])
    assert ids == sorted(set(ids))


@given(times=st.lists(times, min_size=2, max_size=10))
def test_ids_of_unrelated_threads_sort_by_time(times: list[float]) -> None:
    """Ids that know nothing of each other sort by their clocks' milliseconds."""
    ids = {time: checkpoint_id(Scripted(time, MOST), None) for time in times}
    for one in times:
        for other in times:
            if int(one * 1000) < int(other * 1000):
                assert ids[one] < ids[other]


@given(time=times, random=st.integers(0, MOST))
def test_an_id_is_a_uuid_of_version_7(time: float, random: int) -> None:
    """RFC 9562, 5.7: 48 bits of milliseconds, version, variant."""
    parsed = uuid.UUID(checkpoint_id(Scripted(time, random), None))
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert abs((parsed.int >> 80) - int(time * 1000)) <= 1
    assert parsed.int & MOST == random


def test_a_clock_that_went_back_a_year_counts_on() -> None:
    """The clock may go back by any amount; ids count on from the last, and take up the clock when it is
    past."""
    now, year = 1_700_000_000.0, 31_536_000.0
    first = checkpoint_id(Scripted(now, MOST), None)
    second = checkpoint_id(Scripted(now - year, 0), first)
    third = checkpoint_id(Scripted(now - year, 0), second)
    fourth = checkpoint_id(Scripted(now + 1, 0), third)
    assert first < second < third < fourth
    assert fourth == checkpoint_id(Scripted(now + 1, 0), None)


def test_an_id_depends_on_the_port_alone() -> None:
    """P2: clock and randomness enter through one port: the same answers make the same id."""
    assert checkpoint_id(Scripted(5.0, 9), None) == checkpoint_id(Scripted(5.0, 9), None)
    assert checkpoint_id(Scripted(5.0, 9), None) != checkpoint_id(Scripted(5.0, 8), None)


def test_the_systems_world() -> None:
    """P2: the real port: a clock in unix seconds, ids that differ, 62 random bits, and a number from 0 to 1."""
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
def test_the_first_ids_of_time(time: float) -> None:
    """Scripted clocks start at 0: ids work there too."""
    first = checkpoint_id(Scripted(time), None)
    assert first < checkpoint_id(Scripted(time), first)
