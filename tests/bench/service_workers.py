"""A service with workers in processes of their own: failover, cancellation, and more workers for work that waits.

    python -m tests.bench.service_workers                       SQLite and PostgreSQL
    python -m tests.bench.service_workers --savers postgres --kills 20

- Failover: from the SIGKILL of a worker, in the midst of a run of short supersteps, to the first commit of another one.
  On "another host", the killed worker has another host name, so that only its lease shows that it is gone.
- Cancellation: from the call in this process to its return, while the run waits in a worker's node.
- Following: from a commit in a worker's process until a follower in this one has the superstep's update.
- Waiting work: runs that wait 0.9 s each, in workers with 15 slots; runs per second of one and of three workers.
- A run mark: the commit that stores a run's input and its row, against a commit of the same size.

PostgreSQL: the database of PREGEL_TEST_POSTGRES, or `test` of the local server.
"""

from __future__ import annotations

import argparse
import atexit
import json
import operator
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver, SqliteSaver
from checkpoint_savers.conformance.runs.suite import request, take_run
from checkpoint_savers.conformance.savers.suite import commit, here, row
from pregel_async import START, StateGraph
from pregel_async.service import RunService, Worker

URL = os.environ.get("PREGEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
LEASE = 6.0
"""Seconds of a lease, for the failover from another host."""


class Ticks(TypedDict):
    ticks: Annotated[list[tuple[int, float]], operator.add]


async def tick(state: Ticks) -> dict[str, Any]:
    """Note the process, and when the node began: just after the commit before it."""
    at = time.time()
    await anyio.sleep(0.02)
    return {"ticks": [(os.getpid(), at)]}


def again(state: Ticks) -> str:
    by = [pid for pid, _ in state["ticks"]]
    return "tick" if len(set(by)) == 1 or by.count(by[-1]) < 2 else "__end__"


async def wait(state: Ticks) -> dict[str, Any]:
    await anyio.sleep(0.9)
    return {}


async def hang(state: Ticks) -> dict[str, Any]:
    await anyio.sleep_forever()
    return {}


def graphs() -> dict[str, Any]:
    return {
        "ticks": StateGraph(Ticks)
        .add_node(tick)
        .add_edge(START, "tick")
        .add_conditional_edges("tick", again, ["tick", "__end__"])
        .compile(),
        "wait": StateGraph(Ticks).add_node(wait).add_edge(START, "wait").compile(),
        "hang": StateGraph(Ticks).add_node(hang).add_edge(START, "hang").compile(),
    }


def saver_of(source: str, lease: float) -> BaseCheckpointSaver:
    """Return the saver of a path, or of a schema of the database."""
    saver = SqliteSaver(source) if "/" in source else PostgresSaver(URL, schema=source, setup=True, listen=True)
    saver.lease_seconds = lease
    return saver


async def work(source: str, slots: int, lease: float) -> None:
    """Execute runs until this process is killed."""
    async with (
        saver_of(source, lease) as saver,  # type: ignore[attr-defined]  # both classes can be opened
        RunService(graphs(), saver, work=Worker(slots=slots)),
    ):
        print("ready", flush=True)
        await anyio.sleep_forever()


class WorkerProcess:
    """A worker in a process of its own, which is ready."""

    def __init__(self, source: str, slots: int = 20, lease: float = 30.0, host: str = "") -> None:
        command = [sys.executable, "-m", "tests.bench.service_workers", "--work", source]
        command += ["--slots", str(slots), "--lease", str(lease), "--host", host]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        atexit.register(self.process.kill)  # also after a failure
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> float:
        """Kill it. Return the time."""
        at = time.time()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return at


@contextmanager
def new_source(kind: str) -> Generator[str]:
    """Return an empty file or schema for a saver."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as path:
            yield str(Path(path) / "runs.db")
        return
    import psycopg

    schema = f"bench_{os.getpid()}"
    try:
        yield schema
    finally:
        with psycopg.connect(URL, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@asynccontextmanager
async def client(source: str, lease: float = 30.0) -> AsyncGenerator[RunService]:
    """Open a service that executes nothing."""
    async with (
        saver_of(source, lease) as saver,  # type: ignore[attr-defined]  # both classes can be opened
        RunService(graphs(), saver, work=False) as service,
    ):
        yield service


async def failover(source: str, kills: int, lease: float, host: str) -> list[float]:
    """Kill so many workers. Return the seconds to the first commit of another one."""
    found: list[float] = []
    async with client(source, lease) as service:
        for _ in range(kills):
            killed = WorkerProcess(source, lease=lease, host=host)
            run = await service.start("ticks", {"ticks": []})
            thread = {"configurable": {"thread_id": run.thread_id}}
            graph = service.graph("ticks")
            while len((await graph.aget_state(thread)).values.get("ticks", ())) < 3:
                await anyio.sleep(0.01)
            other = WorkerProcess(source, lease=lease)
            at = killed.kill()
            result = await service.join(run.run_id)
            assert result.values is not None
            # A node begins when the commit before it is stored: the second one shows the first commit.
            found.append([began for pid, began in result.values["ticks"] if pid == other.pid][1] - at)
            other.kill()
    return found


async def cancellations(source: str, count: int) -> list[float]:
    """Cancel so many runs in a worker's nodes. Return the seconds of the calls."""
    found: list[float] = []
    worker = WorkerProcess(source)
    async with client(source) as service:
        for _ in range(count):
            run = await service.start("hang", {"ticks": []})
            while not (await service.get_run(run.run_id)).status == "running":
                await anyio.sleep(0.005)
            await anyio.sleep(0.03)
            began = time.perf_counter()
            assert (await service.cancel(run.run_id)).status == "cancelled"
            found.append(time.perf_counter() - began)
    worker.kill()
    return found


async def following(source: str, count: int) -> list[float]:
    """Follow a run in a worker's process. Return the seconds from each commit until its update has arrived here."""
    found: list[tuple[float, float]] = []
    worker = WorkerProcess(source)
    async with client(source) as service:
        run = await service.start("ticks", {"ticks": []}, stream_mode="updates")
        async with service.follow(run.run_id, stream_mode="updates") as parts:
            async for part in parts:
                assert part["type"] == "updates"
                found.append((time.time(), part["data"]["tick"]["ticks"][0][1]))
                if len(found) > count:
                    break
        await service.cancel(run.run_id)
    worker.kill()
    # A node begins when the commit before it is stored.
    return [arrived - began for (arrived, _), (_, began) in pairwise(found)]


async def waiting(source: str, workers: int, runs: int) -> float:
    """Execute runs that wait. Return how many per second."""
    processes = [WorkerProcess(source, slots=15) for _ in range(workers)]
    async with client(source) as service:
        began = time.perf_counter()

        async def one() -> None:
            run = await service.start("wait", {"ticks": []})
            assert (await service.join(run.run_id)).status == "success"

        async with anyio.create_task_group() as group:
            for _ in range(runs):
                group.start_soon(one)
        seconds = time.perf_counter() - began
    for process in processes:
        process.kill()
    return runs / seconds


async def marks(source: str, count: int) -> tuple[float, float]:
    """Return the median seconds of a thread's first commit, and of one that also changes the run's row."""
    plain, marked = list[float](), list[float]()
    async with saver_of(source, 30.0) as saver:  # type: ignore[attr-defined]  # both classes can be opened
        runs = saver.runs
        for number in range(count):
            now = saver.clock()
            lease = await saver.acquire(f"plain {number}", here("w"), now=now, expires_at=now + 30)
            began = time.perf_counter()
            await saver.commit(lease, commit(row(1)))
            plain.append(time.perf_counter() - began)
            run = await runs.start(f"mark {number}", request(f"run {number}"))
            lease, _ = await take_run(saver, 1, at=run.thread_id)
            began = time.perf_counter()
            await runs.begin(lease, run.run_id, commit(row(1)))
            marked.append(time.perf_counter() - began)
    return statistics.median(plain), statistics.median(marked)


def quantile(values: list[float], percent: int) -> float:
    """Return a percentile of values, the greater of two neighbours."""
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def ms(values: list[float]) -> str:
    """Return the median, the 99th percentile and the maximum, in milliseconds."""
    figures = (statistics.median(values), quantile(values, 99), max(values))
    return " / ".join(f"{1000 * figure:.0f}" for figure in figures) + " ms (p50 / p99 / max)"


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--savers", default="sqlite,postgres", help="some of them, separated by commas")
    parser.add_argument("--kills", type=int, default=10, help="failovers on the host; a third of it from another one")
    parser.add_argument("--cancels", type=int, default=100, help="number of cancellations, and of marks")
    parser.add_argument("--json", type=Path, help="write the figures that have targets to this file")
    parser.add_argument("--work", help="be a worker for this file or schema")
    parser.add_argument("--slots", type=int, default=20)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--host", default="", help="the host name of that worker")
    options = parser.parse_args()
    if options.work:
        if options.host:
            socket.gethostname = lambda: str(options.host)
        anyio.run(work, options.work, options.slots, options.lease)
        return
    figures = {kind: measured(kind, options.kills, options.cancels) for kind in options.savers.split(",")}
    if options.json:
        options.json.write_text(json.dumps(figures))


def measured(kind: str, kills: int, count: int) -> dict[str, float]:
    """Measure one saver, and print the figures.

    Returns:
        What has targets, by name: seconds, runs per second, and how much longer a commit with a mark takes.
    """
    figures: dict[str, float] = {}
    with new_source(kind) as source:
        found = anyio.run(failover, source, kills, 30.0, "")
        print(f"{kind}: failover on one host: {ms(found)}", flush=True)
        figures["failover max"] = max(found)
    with new_source(kind) as source:
        found = anyio.run(failover, source, max(kills // 3, 1), LEASE, "another-host")
        print(f"{kind}: failover from another host, lease {LEASE:g} s: {ms(found)}", flush=True)
        figures["failover from elsewhere max"] = max(found)
    with new_source(kind) as source:
        found = anyio.run(cancellations, source, count)
        print(f"{kind}: cancel from another process: {ms(found)}", flush=True)
        figures["cancel p99"] = quantile(found, 99)
    with new_source(kind) as source:
        found = anyio.run(following, source, 3 * count)
        print(f"{kind}: a stored update until a follower in another process has it: {ms(found)}", flush=True)
        figures["follower p95"] = quantile(found, 95)
    with new_source(kind) as source:
        rates = [anyio.run(waiting, source, workers, workers * 90) for workers in (1, 3)]
        print(f"{kind}: waiting work, runs per second with one and three workers: {rates[0]:.1f}, {rates[1]:.1f}")
        figures["three workers"] = rates[1] / rates[0]
    with new_source(kind) as source:
        plain, marked = anyio.run(marks, source, count)
        print(f"{kind}: a commit {1000 * plain:.2f} ms, with a run mark {1000 * marked:.2f} ms", flush=True)
        figures["mark"] = marked / plain - 1
    return figures


if __name__ == "__main__":
    main()
