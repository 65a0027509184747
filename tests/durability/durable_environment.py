"""Shared helpers of this folder: an environment with a settable clock, failing savers, and the checks after
each test."""

from __future__ import annotations

import os
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError
from checkpoint_savers.records import (
    Header,
)
from pregel_async import CompiledStateGraph, Send, StateSnapshot
from pregel_async.types import Durability
from tests.durability.durable_graphs import Op, Probe, Scenario, length_of
from tests.helpers.passing_saver import WRITES, Through

if TYPE_CHECKING:
    import pytest  # a third of the time in which a process of the kill tests starts

T = TypeVar("T")

Graph = CompiledStateGraph[Any]

EXPIRY = 31.0
"""Seconds after which a lease has expired."""


def places(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the positions of a run at which a test acts, from the first position to beyond the last.

    By default every ninth position, with an offset derived from the case's name, so that all cases together cover all
    positions. PREGEL_EVERY sets another distance; 1 means all positions in each case.
    """
    every = int(os.environ.get("PREGEL_EVERY", "9"))
    return count(1 + zlib.crc32(request.node.nodeid.encode()) % every, every)


class Died(BaseException):
    """Stands for the end of the process."""


How = Literal["error", "down", "die"]
When = Literal["before", "after"]


class Failing(Through):
    """A saver that fails at one call, counted from 1.

    Args:
        how: "error" raises a `StorageError` once; "down" raises it from then on; "die" raises `Died` from then on.
        when: fail before the call is passed on, or after it has been done.

    Attributes:
        calls: the verbs called so far.
        error: the first exception that was raised, or None.
        started: how many tasks had started by then.
    """

    def __init__(self, inner: BaseCheckpointSaver, probe: Probe, at: int, how: How, when: When) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.error: BaseException | None = None
        self.started = 0
        self._probe, self._at, self._how, self._when = probe, at, how, when

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb not in WRITES and verb != "read":
            return await call()
        self.calls.append(verb)
        if self.error is not None and self._how != "error":
            raise self._made(verb)
        if len(self.calls) != self._at:
            return await call()
        if self._when == "after":
            await call()
        self.started = len(self._probe.started)
        self.error = self._made(verb)
        raise self.error

    def _made(self, verb: str) -> BaseException:
        if self._how != "die":
            return StorageError(f"injected {self._when} {verb}")
        self._probe.dead = True
        return Died(verb)


def config_of(scenario: Scenario, op: int, thread: str = "t") -> dict[str, Any]:
    config: dict[str, Any] = {"configurable": {"thread_id": thread}, "metadata": {"op": op}}
    if scenario.ops[op].limit is not None:
        config["recursion_limit"] = scenario.ops[op].limit
    return config


async def left_to_do(saver: BaseCheckpointSaver, op: int, ops: Sequence[Op], thread: str = "t") -> Any:
    """Return the input for the call after a disturbed one: the original input if it was not stored, else None."""
    headers = await saver.scan(thread, "", limit=1)
    return None if headers and headers[0].metadata.get("op") == op else ops[op].given


class Stored:
    """Which tasks' results a thread holds.

    Attributes:
        length: the length of the log at the head; -1 for a thread with nothing stored.
        keys: the keys of tasks with a result, in the log or recorded in the open superstep.
    """

    def __init__(self, length: int, keys: set[str]) -> None:
        self.length = length
        self.keys = keys

    @classmethod
    async def of(cls, saver: BaseCheckpointSaver, thread: str = "t") -> Stored:
        codec = saver.codec.with_types(Send, tag="pregel_async.Send")
        found = await saver.aget_tuple(thread, codec=codec)
        if found is None:
            return cls(-1, set())
        values = found.checkpoint["channel_values"]
        log = values.get("log", [])
        length = len(log)
        if "__start__" in values:  # an input that waits for the hidden start: its log is not in the state yet
            length += len(values["__start__"].get("log", ()))
        recorded = [key for _, channel, value in found.pending_writes if channel == "log" for key in value]
        return cls(length, {*log, *recorded})


MODES: tuple[Durability, ...] = ("sync", "async", "exit")

AT_RISK: Mapping[Durability, int | None] = {"sync": 0, "async": 1, "exit": None}
"""How many supersteps may be lost although a later one had begun, by mode; None for all of the run."""


def check_what_ran(before: Stored, started: Sequence[str], stored: Stored, mode: Durability = "sync") -> int:
    """Check which tasks started between two looks at a thread.

    P5: no task with a recorded result started again, and every started task belonged to the open superstep or a later
    one. P4: no task started further ahead of the head than the mode allows.

    Returns:
        How many supersteps were lost after which another superstep had begun.
    """
    again = [key for key in started if key in before.keys]
    assert not again, f"recorded, and run again: {again}"
    closed = [key for key in started if length_of(key) < before.length]
    assert not closed, f"of a closed superstep, and run again: {closed}"
    ahead = sorted({length_of(key) for key in started if length_of(key) >= stored.length})
    over, most = max(len(ahead) - 1, 0), AT_RISK[mode]
    assert most is None or over <= most, f"ran ahead of what is durable (a log of {stored.length}): {ahead}"
    lost = before.keys - stored.keys
    assert not lost or stored.length > before.length, f"recorded, and lost: {lost}"
    return over


class Watch:
    """Checks of a thread between calls: no recorded task runs again, and no task runs ahead of what is durable."""

    def __init__(
        self, saver: BaseCheckpointSaver, probe: Probe, thread: str = "t", *, mode: Durability = "sync"
    ) -> None:
        self._saver = saver
        self._probe = probe
        self._mode: Durability = mode
        self._thread = thread
        self._before = Stored(-1, set())
        self._started = self._finished = 0

    async def look(self, *, disturbed: bool = False, open_tasks: int | None = None) -> None:
        """P4 and P5: see `check_what_ran`. Also, unless storage was disturbed, all finished tasks are stored.

        Args:
            open_tasks: for a cancelled run, the number of tasks of its last superstep. Tasks that finished while
                siblings ran are stored all the same; the last one to finish waits for the superstep's commit.
        """
        stored = await Stored.of(self._saver, self._thread)
        lost = check_what_ran(self._before, self._probe.started[self._started :], stored, self._mode)
        assert disturbed or not lost, "every end of a run stores the finished tasks"
        finished = self._probe.finished[self._finished :]
        missing = [key for key in finished if key not in stored.keys and length_of(key) == stored.length]
        if open_tasks is not None and len(missing) == 1:
            recorded = [key for key in stored.keys if "@" in key and length_of(key) == stored.length]
            assert len(recorded) + 1 == open_tasks, f"finished while siblings ran, and not recorded: {missing}"
        else:
            assert disturbed or not missing, f"finished, and not recorded: {missing}"
        self._started, self._finished = len(self._probe.started), len(self._probe.finished)
        self._before = stored


async def is_one_chain(saver: BaseCheckpointSaver, thread: str = "t", mode: Durability = "sync") -> tuple[Header, ...]:
    """P3: the stored checkpoints form one chain from the head to the first: ids increase and steps are consecutive;
    with "exit" the only missing steps are those inside one run."""
    headers = await saver.scan(thread, None, limit=1000)
    chain = await saver.read(thread)
    assert chain is not None and headers[0].checkpoint_id == chain.head
    for newer, older in pairwise(headers):
        assert newer.parent_id == older.checkpoint_id
        assert newer.checkpoint_id > older.checkpoint_id
        assert newer.step == older.step + 1 or (mode == "exit" and newer.step > older.step)
    assert headers[-1].parent_id is None and (mode == "exit" or headers[-1].step == -1)
    return headers


async def trace_of(graph: Graph, thread: str = "t") -> list[Any]:
    """P2: return what must be the same in every run of the same work: the history without times and random ids."""

    def facts(snapshot: StateSnapshot) -> Any:
        tasks = [
            (task.name, task.id, task.path, task.result, task.error and (task.error.type, task.error.message))
            for task in snapshot.tasks
        ]
        metadata: Mapping[str, Any] = snapshot.metadata or {}
        return (metadata.get("source"), metadata.get("step"), snapshot.values, snapshot.next, tasks)

    return [facts(snapshot) async for snapshot in graph.aget_state_history(thread)]
