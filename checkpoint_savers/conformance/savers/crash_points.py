"""P3, P4 and P6 if the process is killed, within a verb or between two verbs."""

from __future__ import annotations

import multiprocessing
import pickle  # noqa: TID251  # used only to check whether another process can get the opener; nothing is stored
import random
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import anyio.to_thread
import pytest

from ...abc import BaseCheckpointSaver
from ...memory import InMemorySaver
from .killed_process import THREADS, CrashPoint, Leases, Step, run_steps, steps
from .suite import LATER, MANY, NOW, OpenSaver, Suite, commit, here, offers, row

if sys.platform == "win32":
    _CONTEXT = multiprocessing.get_context("spawn")
else:
    _CONTEXT = multiprocessing.get_context("forkserver")
    _CONTEXT.set_forkserver_preload([run_steps.__module__])  # otherwise each process imports the suite anew

KILLED: Final = {-getattr(signal, name) for name in ("SIGKILL", "SIGALRM") if hasattr(signal, name)} | {signal.SIGTERM}
"""Exit codes of processes that were killed by their crash point. Windows has neither signal: there it is SIGTERM."""


class CrashPoints(Suite):
    """Clauses that open the saver in other processes.

    `open_saver` must return something that pickle can send there, such as a `functools.partial` of an importable class
    or
    function. Otherwise the clause is skipped.

    Attributes:
        crashes: the number of processes to kill on each event loop. Larger numbers find more defects.
    """

    crashes: int = 10

    async def test_killed_in_the_midst(self, open_saver: OpenSaver, anyio_backend_name: str) -> None:
        """P3, P4, P6: a process that was killed anywhere leaves what it had acknowledged, and the next step whole or
        not at all; another process opens the storage, acquires the thread at once, and continues."""
        skip_unless_picklable(open_saver)
        expected = await expected_contents(frozenset(self.lacks))
        done, calls = await self._run_until_killed(open_saver, anyio_backend_name, CrashPoint(0, None))
        assert done == len(expected) - 1 and calls > 0
        async with open_saver() as saver:
            assert await saver.scan(None, None), "this process does not find what another process has stored"
        await self._check_contents(open_saver, expected[done:])
        for crash_point in crash_points_in(self.crashes, calls):
            done, _ = await self._run_until_killed(open_saver, anyio_backend_name, crash_point)
            await self._check_contents(open_saver, expected[done : done + 2])

    async def _run_until_killed(self, opener: OpenSaver, backend: str, crash_point: CrashPoint) -> tuple[int, int]:
        """Return the numbers of steps that a process completed and of calls that it counted."""
        script = partial(steps, frozenset(self.lacks))
        return await anyio.to_thread.run_sync(run_until_killed, opener, backend, script, crash_point)

    async def _check_contents(self, open_saver: OpenSaver, expected: list[dict[str, object]]) -> None:
        """Check that the storage holds one of these contents and can be written, then delete everything."""
        async with open_saver() as saver:
            leases = [await saver.acquire(one, here(f"run-{one}"), now=NOW, expires_at=LATER) for one in THREADS]
            found = await contents(saver)
            assert found in [_without_dumps(one, saver) for one in expected]
            lease = await saver.acquire("w", here("w"), now=NOW, expires_at=LATER)
            await saver.commit(lease, commit(row(1), releases=True))
            for lease in leases:
                await saver.release(lease)
            for thread in (*THREADS, "w"):
                await saver.adelete_thread(thread)
            assert await saver.scan(None, None) == ()


def skip_unless_picklable(opener: OpenSaver) -> None:
    """Skip the test if the opener cannot be sent to another process."""
    try:
        pickle.dumps(opener)
    except Exception as error:
        pytest.skip(f"open_saver cannot be sent to another process ({error}): make it a functools.partial")


def crash_points_in(count: int, calls: int) -> list[CrashPoint]:
    """Choose crash points, the same in each session: spread over all calls, every second one with a delay.

    Args:
        count: the number of crash points.
        calls: the number of calls that a process makes if it is not killed.
    """
    chance = random.Random(count)
    found: list[CrashPoint] = []
    for number in range(count):
        first, last = 1 + calls * number // count, calls * (number + 1) // count
        after = None if number % 2 or not hasattr(signal, "setitimer") else chance.expovariate(1 / 0.0002)
        found.append(CrashPoint(chance.randint(first, max(first, last)), after))
    return found


def run_until_killed(
    opener: OpenSaver, backend: str, script: Callable[[], Sequence[Step]], crash_point: CrashPoint
) -> tuple[int, int]:
    """Run a process until it ends or is killed.

    Args:
        opener: opens the saver in the process.
        backend: the event loop, "asyncio" or "trio".
        script: returns the steps that the process performs.
        crash_point: where it dies.

    Returns:
        The numbers of completed steps and of counted calls.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=run_steps, args=(opener, backend, script, crash_point, sender), daemon=True)
    process.start()
    sender.close()
    counts: list[int] = []
    with receiver:
        while True:
            try:
                counts.append(receiver.recv())
            except EOFError:
                break
    process.join()
    code = process.exitcode
    process.close()
    assert code == 0 or code in KILLED, f"the process failed (exit code {code}); its standard error says why"
    return len(counts), counts[-1] if counts else 0


async def expected_contents(lacks: frozenset[str]) -> list[dict[str, object]]:
    """Return what is stored before the first step, and after each step, in a saver that is not killed.

    Args:
        lacks: verbs that the tested saver lacks; steps that need one are left out.
    """
    memory, leases = InMemorySaver(), Leases()
    found = [await contents(memory)]
    for step in steps(lacks):
        await step.act(memory, leases)
        found.append(await contents(memory))
    return found


async def contents(saver: BaseCheckpointSaver) -> dict[str, object]:
    """Read what the threads hold, without their leases."""
    headers = await saver.scan(None, None, limit=MANY)
    found: dict[str, object] = {
        "headers": headers,
        "chains": [await saver.read(one.thread_id, one.ns, one.checkpoint_id) for one in headers],
        "segments": [await saver.segment(one.thread_id, one.ns, one.base_id) for one in headers],
        "events": [await saver.events(thread, limit=MANY) for thread in THREADS],
    }
    if offers(saver, "dump"):
        found["dumps"] = [await saver.dump(thread) for thread in THREADS]
    return found


def _without_dumps(expected: dict[str, object], saver: BaseCheckpointSaver) -> dict[str, object]:
    """Remove the dumps from expected contents if the saver does not offer them."""
    return expected if offers(saver, "dump") else {key: value for key, value in expected.items() if key != "dumps"}
