"""Real processes, killed with SIGKILL at random moments and restarted at once, in each durability mode.

`PREGEL_KILLS` sets the number of kills per mode (20 by default), `PREGEL_SEED` chooses them. `PREGEL_LOSSES` names a
file to which each test appends a line: the mode, and for each thread of a killed process how many supersteps were lost
after which another had begun. `python tests/durability/test_kills.py FILE` sums it up.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from pregel_async import StateGraph
from pregel_async.types import Durability
from tests.durability.durable_audit import STAGES, audit_graph, write_sources
from tests.durability.durable_child import Job
from tests.durability.durable_environment import MODES, Graph, Stored, check_what_ran, is_one_chain, trace_of
from tests.durability.durable_graphs import Probe, random_graph

HERE = Path(__file__).parent
KILLS = int(os.environ.get("PREGEL_KILLS", "20"))
SEED = int(os.environ.get("PREGEL_SEED", "0"))
PARTS = 5
"""The number of tests that share the kills of random graphs, so that they can run in parallel."""


def kills_of(part: int) -> int:
    """Return the number of kills: four of five hit random graphs, one hits the main job."""
    share = KILLS - KILLS // 5
    return share // PARTS + (part < share % PARTS)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", MODES)
def test_random_graphs(mode: Durability, part: int, tmp_path: Path) -> None:
    """P2 to P6: result, trace and chain are those of the undisturbed run; recorded tasks never run again; no more is
    lost than the mode puts at risk; no process waits for a lease."""
    rng = random.Random(f"{SEED} {part}")
    left, number, losses = kills_of(part), 0, list[int]()
    while left > 0:
        number += 1
        seeds = {f"thread {i}": rng.getrandbits(32) for i in range(rng.randint(1, 5))}
        job = Job(threads={**seeds}, together=rng.random() < 0.3, trio=rng.random() < 0.3, mode=mode)
        place = tmp_path / str(number)
        place.mkdir()
        left -= run_with_kills(job, place, rng, left)
        losses += check_log(place, list(seeds), mode)
        anyio.run(check_random, place, seeds, mode)
    report_losses(mode, losses)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("mode", MODES)
def test_the_main_job(mode: Durability, part: int, tmp_path: Path) -> None:
    """P2 to P6: the same for the audit of a small tree."""
    rng = random.Random(f"{SEED} audit {part}")
    left, number, losses = KILLS // 10, 0, list[int]()
    while left > 0:
        number += 1
        place = tmp_path / str(number)
        root, report = place / "sources", place / "report.md"
        write_sources(root, number, files=30)
        job = Job(threads={"audit": (str(root), str(report))}, together=False, trio=rng.random() < 0.3, mode=mode)
        left -= run_with_kills(job, place, rng, left)
        losses += check_log(place, ["audit"], mode)
        written = report.read_text()
        anyio.run(check_audit, place, root, report, mode)
        assert report.read_text() == written
    report_losses(mode, losses)


def run_with_kills(job: Job, place: Path, rng: random.Random, most: int) -> int:
    """Run a job in processes that are killed, until one of them finishes.

    Returns:
        How many processes were killed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE.parents[1]),
        "PYTHONWARNINGS": "error",
    }
    command = [sys.executable, str(HERE / "durable_child.py"), str(place / "db"), str(place / "log")]
    command.append(msgspec.json.encode(job).decode())
    killed: list[subprocess.Popen[bytes]] = []
    while True:
        # Wait by the number of events, not by time; then a little longer, so that the kill also hits between two
        # events.
        things = int(rng.expovariate(1 / 30)) if len(killed) < most else sys.maxsize
        delay = rng.random() ** 3 * 0.003
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        assert process.stdout is not None and process.stderr is not None
        count = 0
        while count < things and (more := os.read(process.stdout.fileno(), 4096 if things == sys.maxsize else 1)):
            count += len(more)
        if count >= things:
            deadline = time.perf_counter() + delay
            while time.perf_counter() < deadline:
                pass
            process.kill()
            if rng.random() < 0.5:  # start the next process while this one is still a zombie
                killed.append(process)
                continue
        error = process.stderr.read().decode()
        process.wait()
        killed.append(process)
        if process.returncode == 0:
            break
        assert process.returncode == -9, error
    for process in killed:
        process.communicate()
    return sum(process.returncode == -9 for process in killed)


def check_log(place: Path, threads: list[str], mode: Durability) -> list[int]:
    """P4, P5: check the processes' log of each thread.

    Returns:
        For each thread that a killed process had begun: the supersteps lost after which another had begun.
    """
    losses: list[int] = []
    before = {thread: Stored(-1, set()) for thread in threads}
    started: dict[str, list[str]] = {thread: [] for thread in threads}
    ended: set[str] = set()
    for line in (place / "log").read_text().splitlines():
        what, thread, about = json.loads(line)
        if what == "stored":
            stored = Stored(about[0], set(about[1]))
            lost = check_what_ran(before[thread], started[thread], stored, mode)
            if started[thread]:
                losses.append(lost)
            before[thread], started[thread] = stored, []
        elif what == "+":
            started[thread].append(about)
        elif what == "end":
            # The last process was not killed: it ran each task without a recorded result once.
            again = [key for key in started[thread] if key in before[thread].keys]
            assert not again and len(set(started[thread])) == len(started[thread])
            before[thread], started[thread] = (
                Stored(before[thread].length, before[thread].keys | {*started[thread]}),
                [],
            )
            ended.add(thread)
    assert ended == {*threads}
    return losses


def report_losses(mode: Durability, losses: list[int]) -> None:
    if path := os.environ.get("PREGEL_LOSSES"):
        with open(path, "a") as file:
            file.write(json.dumps([mode, losses]) + "\n")


async def check_random(place: Path, seeds: dict[str, int], mode: Durability) -> None:
    async with SqliteSaver.from_conn_string(place / "db") as saver:
        for thread, seed in seeds.items():
            await check_thread(saver, thread, lambda probe, seed=seed: random_graph(probe, seed), {"log": ["in"]}, mode)


async def check_audit(place: Path, root: Path, report: Path, mode: Durability) -> None:
    async with SqliteSaver.from_conn_string(place / "db") as saver:
        trace = await check_thread(saver, "audit", audit_graph, {"root": str(root), "report": str(report)}, mode)
        assert trace[0][1] == len(STAGES)


async def check_thread(
    saver: SqliteSaver, thread: str, build: Callable[[Probe], StateGraph[Any]], given: Any, mode: Durability
) -> list[Any]:
    """P2, P3: the thread equals that of the undisturbed run."""
    await is_one_chain(saver, thread, mode)
    trace = await trace_of(build(Probe()).compile(saver), thread)
    undisturbed: Graph = build(Probe()).compile(InMemorySaver())
    await undisturbed.ainvoke(given, thread, durability=mode)
    assert trace == await trace_of(undisturbed, thread)
    return trace


def sum_up(path: str) -> None:
    """Print the number of lost supersteps by mode."""
    count = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for mode in MODES:
        losses = [lost for kind, each in count if kind == mode for lost in each]
        if losses:
            mean = sum(losses) / len(losses)
            print(
                f"{mode}: {len(losses)} threads cut off; supersteps lost: {mean:.3f} on average, {max(losses)} at most"
            )


if __name__ == "__main__":
    sum_up(sys.argv[1])
