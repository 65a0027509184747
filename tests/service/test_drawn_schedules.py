"""Services, keepers and clients under schedules that derive from a seed, with lost and stopped workers, and a clock that
jumps.

By default 30 seeds; PREGEL_SIMULATIONS sets another number, and PREGEL_SIMULATION_SEED repeats one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import START, StateGraph
from pregel_async.errors import ConfigError
from pregel_async.service import RunNotFoundError, RunOverError, RunService, ServiceDrainingError, Worker
from pregel_async.testing import VirtualClock
from pregel_async.testing.loop import SimulatedLoop

from .graphs import Log

SEEDS = range(int(os.environ.get("PREGEL_SIMULATIONS", "30")))
ONE = os.environ.get("PREGEL_SIMULATION_SEED")

NODES = ("a", "b", "c")


class Process:
    """A simulated process: its writes wait while it is stopped, and fail after it was killed."""

    def __init__(self) -> None:
        self.is_dead = False
        self.scope = anyio.CancelScope()
        self.service: RunService | None = None
        self._running = anyio.Event()
        self._running.set()

    async def may_write(self) -> None:
        while not self._running.is_set():
            await self._running.wait()
        if self.is_dead:
            raise StorageError("the process was killed")

    def stop(self) -> None:
        if self._running.is_set():  # else tasks wait for the event already
            self._running = anyio.Event()

    def resume(self) -> None:
        self._running.set()

    def kill(self) -> None:
        self.is_dead = True
        self.resume()
        self.scope.cancel()


def of_process(saver: BaseCheckpointSaver, process: Process) -> Any:
    """The saver of the same threads in a process."""
    kind: Any = type(saver)
    runs: Any = saver.runs

    def gated(name: str) -> Any:
        async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            await process.may_write()
            return await getattr(kind, name)(self, *args, **kwargs)

        return call

    class Runs(type(runs)):
        async def transact(self, *args: Any, **kwargs: Any) -> Any:
            await process.may_write()
            return await super().transact(*args, **kwargs)

    of_runs = object.__new__(Runs)
    of_runs.__dict__.update(runs.__dict__)
    verbs = ("acquire", "release", "renew", "commit", "record", "rewrite")
    members = {name: gated(name) for name in verbs if hasattr(kind, name)}
    copy = object.__new__(type("ProcessSaver", (kind,), {**members, "runs": of_runs, "begins_commits": False}))
    copy.__dict__.update(saver.__dict__)
    return copy


class World:
    """One simulation.

    Args:
        seed: determines all that is drawn.
        clock: the time.
    """

    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.ahead = 0.0
        self.saver = InMemorySaver(clock=lambda: clock.now() + self.ahead)
        self.processes: list[Process] = []
        self.accepted: list[tuple[str, str]] = []  # marks and ids
        self.weather_is_over = False
        self.kills = self.stops = self.drains = 0

    def graphs(self) -> dict[str, Any]:
        def node(name: str) -> Callable[[Log], Any]:
            async def run(state: Log) -> dict[str, Any]:
                await self.clock.sleep(self.rng.random() * 3)
                mark = next(each for each in reversed(state["log"]) if each.endswith(".in"))
                return {"log": [f"{mark[:-3]}.{name}"]}

            return run

        builder = StateGraph(Log)
        for before, name in zip((START, *NODES), NODES, strict=False):
            builder.add_node(name, node(name)).add_edge(before, name)
        return {"agent": builder.compile(blocking=False, environment=self.clock)}

    async def work(self, process: Process) -> None:
        """The life of a process with a worker."""
        service = RunService(
            self.graphs(), of_process(self.saver, process), work=Worker(slots=2, grace=1.0), environment=self.clock
        )
        with process.scope:
            try:
                async with service:
                    process.service = service
                    await anyio.sleep_forever()
            except StorageError:
                assert process.is_dead

    async def disturb(self, group: Any) -> None:
        """Kill, stop and drain processes, and let the clock jump."""
        rng = self.rng
        for _ in range(rng.randrange(2, 10)):
            await self.clock.sleep(rng.random() * 4)
            victim = rng.choice(self.processes)
            kind = rng.choice(("kill", "stop", "stop", "drain", "jump"))
            if kind == "jump":
                self.ahead += rng.random() * 2 * self.saver.lease_seconds
            elif kind == "stop":
                self.stops += 1
                victim.stop()
                group.start_soon(self._resume_later, victim)
            else:
                self.kills, self.drains = self.kills + (kind == "kill"), self.drains + (kind == "drain")
                self.processes.remove(victim)
                victim.kill() if kind == "kill" else victim.scope.cancel()
                self.start_process(group)

    async def _resume_later(self, process: Process) -> None:
        try:
            await self.clock.sleep(self.rng.random() * 2 * self.saver.lease_seconds)
        finally:
            process.resume()

    def start_process(self, group: Any) -> None:
        self.processes.append(Process())
        group.start_soon(self.work, self.processes[-1])

    async def converse(self, web: RunService, thread_id: str) -> None:
        """Start runs on a thread, and cancel some."""
        rng = self.rng
        for number in range(rng.randrange(2, 6)):
            mark = f"{thread_id}{number}"
            start = partial(
                web.start,
                "agent",
                {"log": [f"{mark}.in"]},
                thread_id=thread_id,
                multitask=rng.choice(("enqueue", "enqueue", "interrupt", "rollback")),
                priority=rng.choice((0, 0, 3)),
                durability=rng.choice(("sync", "async", "exit")),
                max_stalls=100,
                idempotency_key=mark,
            )
            worker = rng.choice(self.processes).service
            if worker is not None and rng.random() < 0.5:
                # In a process that works, which may take the run at once. It may be stopped, killed or drained while
                # it starts the run: then the request is repeated.
                with anyio.move_on_after(5), suppress(StorageError, ServiceDrainingError, ConfigError):
                    await worker.start(*start.args, **start.keywords)
            run = await start()
            self.accepted.append((mark, run.run_id))
            await self.clock.sleep(rng.random() * rng.choice((0, 3, 10)))
            if rng.random() < 0.3:
                try:
                    await web.cancel(
                        rng.choice(self.accepted)[1], action=rng.choice(("interrupt", "rollback")), wait=False
                    )
                except (RunOverError, RunNotFoundError):
                    pass

    async def run(self) -> None:
        async with RunService(self.graphs(), self.saver, work=False, environment=self.clock) as web:
            async with anyio.create_task_group() as group:
                for _ in range(2):
                    self.start_process(group)
                async with anyio.create_task_group() as talks:
                    talks.start_soon(self.disturb, group)
                    for thread_id in ("t", "u"):
                        talks.start_soon(self.converse, web, thread_id)
                self.start_process(group)  # one that nothing disturbs
                for _, run_id in self.accepted:
                    try:
                        await web.join(run_id, timeout=1000.0)
                    except RunNotFoundError:
                        pass
                group.cancel_scope.cancel()
                for process in self.processes:
                    process.resume()
            for thread_id in ("t", "u"):
                await self.check(web, thread_id)

    async def check(self, web: RunService, thread_id: str) -> None:
        """Each run has ended, and the log has what the runs give, in the order in which they were taken."""
        store = self.saver.runs
        rows = [(mark, await store.get_run(run_id)) for mark, run_id in self.accepted if mark[0] == thread_id]
        log = list((await web.graph("agent").aget_state(thread_id)).values.get("log", []))
        assert not await store.queued() and not await store.active()
        for mark, row in rows:
            assert row is not None and not row.is_open and row.status in ("success", "cancelled"), row
            assert row.status == "success" or row.cancel is not None
            names = [f"{mark}.{name}" for name in ("in", *NODES)]
            found = [place for place, name in enumerate(log) if name.startswith(f"{mark}.")]
            entries = [log[place] for place in found]
            assert found == list(range(found[0], found[0] + len(found))) if found else True, (log, rows)
            assert entries == names[: len(entries)], (log, rows)
            assert not row.hidden or entries == [], (log, rows)
            assert row.status == "cancelled" or entries == names, (log, rows)
        thread = await store.get_thread(thread_id)
        assert thread is not None and (thread.activation, thread.pending) == ("none", 0)


def simulated(seed: int) -> World:
    clock = VirtualClock(seed=seed)
    loop = SimulatedLoop(clock, random.Random(seed))
    world: list[World] = []

    async def main() -> None:
        world.append(World(seed, clock))
        await world[0].run()

    try:
        loop.run(main())
    except BaseException as error:
        error.add_note(f"seed {seed}: PREGEL_SIMULATION_SEED={seed} repeats it")
        raise
    finally:
        loop.close()
    return world[0]


@pytest.mark.parametrize("portion", range(3))
def test_every_accepted_run_ends_once(portion: int) -> None:
    """P16: whatever the schedule, each accepted run ends, its input is applied once, and the runs of a thread are
    executed one after the other."""
    for seed in [int(ONE)] * (portion == 0) if ONE is not None else SEEDS[portion::3]:
        simulated(seed)


def test_the_simulations_have_faults() -> None:
    worlds = [simulated(seed) for seed in range(5)]
    assert all(sum(getattr(world, name) for world in worlds) for name in ("kills", "stops", "drains"))
