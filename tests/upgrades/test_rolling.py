"""A rolling deployment: processes of two versions share a database, and are killed at random moments.

`PREGEL_KILLS` sets the number of kills (2 by default; half of them per database), `PREGEL_SEED` chooses them.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from tests.helpers.postgres_tools import ENV, conninfo, made_schema
from tests.upgrades.rolling_child import Job, graph_of

HERE = Path(__file__).parent
KILLS = int(os.environ.get("PREGEL_KILLS", "2"))
SEED = int(os.environ.get("PREGEL_SEED", "0"))
ROUNDS = 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_kills_during_a_rolling_deployment(kind: str, tmp_path: Path) -> None:
    """P5, P15: no thread is stuck, none is run by code that cannot, and no recorded call runs again."""
    rng = random.Random(f"{SEED} {kind}")
    left, number = max(1, KILLS // 2), 0
    while left > 0:
        number += 1
        log = tmp_path / f"{number}.log"
        if kind == "sqlite":
            left -= deploy(str(tmp_path / f"{number}.db"), log, rng, left)
        else:
            with made_schema() as schema:
                left -= deploy((conninfo(), schema), log, rng, left)


def deploy(database: Any, log: Path, rng: random.Random, most: int) -> int:
    """Run threads by processes of both versions until the new one has ended all. Return how many were killed."""
    threads = [f"thread {number}{rng.choice(('', ' late'))}" for number in range(rng.randint(2, 6))]
    durability = rng.choice(("sync", "sync", "async", "exit"))

    def start(version: int) -> subprocess.Popen[bytes]:
        job = Job(version, database, str(log), threads, ROUNDS, rng.getrandbits(32), durability)
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(HERE / "rolling_child.py"), msgspec.json.encode(job).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENV,
        )

    def chosen() -> int:
        return int(rng.expovariate(1 / 40)) if killed < most else sys.maxsize

    killed, running = 0, {}
    with selectors.DefaultSelector() as selector:

        def begin(version: int) -> None:
            process = start(version)
            assert process.stdout is not None
            running[version] = process
            selector.register(process.stdout, selectors.EVENT_READ, [version, chosen()])

        begin(1)
        while running:
            ready = selector.select(60)
            assert ready, "no process makes progress"
            for key, _ in ready:
                version, things = key.data
                more = os.read(key.fd, 1 if things < sys.maxsize else 4096)
                process = running[version]
                if more and things > 0:
                    key.data[1] -= len(more)
                    if 2 not in running and version == 1 and (rng.random() < 0.05):
                        begin(2)
                    continue
                selector.unregister(key.fileobj)
                del running[version]
                if more:
                    time.sleep(rng.random() ** 3 * 0.003)
                    process.kill()
                _, error = process.communicate()
                killed += process.returncode == -9
                assert process.returncode in (0, -9), error.decode()
                if process.returncode or (version == 1 and 2 not in running):
                    begin(version if process.returncode else 2)
    anyio.run(check, Job(2, database, str(log), threads, ROUNDS, 0, "sync"))
    check_log(log, durability)
    return killed


async def check(job: Job) -> None:
    """Each thread has ended by the new version, with an amount to which each round has added once."""
    async with job.open() as saver:
        for thread in job.threads:
            state = await graph_of(saver, 2, None, thread).aget_state(thread)
            assert (state.next, state.changed, state.unknown) == ((), (), {})
            values, rounds = state.values, state.values["rounds"]
            assert rounds >= ROUNDS and state.metadata["__version__"] == 2
            assert values["net"] == 100 * rounds and values["customer"] == thread and values["vat"] == 19
            assert values["log"].count("end") == values["log"].count("add") == rounds
            paid = [each for each in values["log"] if each.startswith("paid")]
            assert len({*paid}) == len(paid) == rounds


def check_log(log: Path, durability: str) -> None:
    """A call whose result its node has got does not run again; with "exit", that holds once the call of the graph ends."""
    paid: set[tuple[str, int]] = set()
    for line in log.read_text("utf-8").splitlines():
        thread, what, _, number = json.loads(line)
        if what == "paid":
            paid.add((thread, number))
        elif what == "charged" and durability == "sync":
            assert (thread, number) not in paid, f"{thread}: charge {number} ran again"
