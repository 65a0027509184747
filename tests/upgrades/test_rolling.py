"""A rolling deployment: processes of two versions share a database, and are killed at random moments.

`PREGEL_KILLS` sets the number of kills (1 by default) on SQLite, of which PostgreSQL gets a quarter; `PREGEL_SEED`
chooses them. `PREGEL_ROLLED` names a file for the counts, which `python tests/upgrades/test_rolling.py FILE` sums up.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import selectors
import shutil
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from tests.helpers.postgres_tools import made_schema, unsynced
from tests.upgrades import rolling_child
from tests.upgrades.rolling_child import Job, graph_of

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([rolling_child.__name__])  # otherwise each process imports both packages again
KILLS = int(os.environ.get("PREGEL_KILLS", "1"))
SEED = int(os.environ.get("PREGEL_SEED", "0"))
ROUNDS = 2


class Deployed(NamedTuple):
    """What happened in one deployment.

    Attributes:
        kills: the number of processes that a kill has ended, by version.
        threads: the number of threads.
        rounds: the number of rounds that the threads have.
        done: how often the processes did a thing, by its name.
    """

    kills: dict[int, int]
    threads: int
    rounds: int
    done: dict[str, int]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_kills_during_a_rolling_deployment(kind: str, tmp_path: Path) -> None:
    """P5, P15: no thread is stuck, none is run by code that cannot, and no recorded call runs again."""
    rng = random.Random(f"{SEED} {kind}")
    left, number = KILLS if kind == "sqlite" else max(1, KILLS // 4), 0
    while left > 0:
        number += 1
        folder = tmp_path / str(number)  # of the deployment that fails, everything is left
        folder.mkdir()
        if kind == "sqlite":
            deployed = deploy(str(folder / "db"), folder / "log", rng, left)
        else:
            with made_schema() as schema:
                deployed = deploy((unsynced(), schema), folder / "log", rng, left)
        left -= sum(deployed.kills.values())
        report(kind, deployed)
        shutil.rmtree(folder)


def report(kind: str, deployed: Deployed) -> None:
    if path := os.environ.get("PREGEL_ROLLED"):
        with open(path, "a") as file:
            file.write(json.dumps([kind, *deployed]) + "\n")


def deploy(database: Any, log: Path, rng: random.Random, most: int) -> Deployed:
    """Run threads by processes of both versions until the new one has ended all. Kill at most so many processes."""
    threads = [f"thread {number}{rng.choice(('', ' late'))}" for number in range(rng.randint(2, 6))]
    durability = rng.choice(("sync", "sync", "async", "exit"))

    def start(version: int) -> tuple[BaseProcess, Connection]:
        job = Job(version, database, str(log), threads, ROUNDS, rng.getrandbits(32), durability)
        events, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=rolling_child.main, args=(msgspec.json.encode(job), theirs))
        process.start()
        theirs.close()
        return process, events

    def chosen() -> int:
        return int(rng.expovariate(1 / mean)) if kills.total() < most else sys.maxsize

    mean = rng.choice((5, 15, 40))
    kills, running = Counter[int](), dict[int, BaseProcess]()
    with selectors.DefaultSelector() as selector:

        def begin(version: int) -> None:
            running[version], events = start(version)
            selector.register(events, selectors.EVENT_READ, [version, chosen()])

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
                process.join()
                code = process.exitcode
                process.close()
                assert isinstance(key.fileobj, Connection)
                key.fileobj.close()  # only now: a process that writes to a closed one fails before it is killed
                kills[version] += code == -9
                assert code in (0, -9), Path(f"{log}.error").read_text("utf-8")
                if code or (version == 1 and 2 not in running):
                    begin(version if code else 2)
    rounds = anyio.run(check, Job(2, database, str(log), threads, ROUNDS, 0, "sync"))
    return Deployed(kills, len(threads), rounds, check_log(log, durability))


async def check(job: Job) -> int:
    """Each thread has ended by the new version, with an amount to which each round has added once. Return the number of
    all rounds."""
    count = 0
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
            count += rounds
    return count


def check_log(log: Path, durability: str) -> dict[str, int]:
    """Check what the processes did, which "exit" stores only when a call of the graph ends.

    A call whose result its node has got does not run again. Once the new version has recorded one on a thread, the old
    version runs nothing there.
    """
    charged_by: dict[tuple[str, int], int] = {}
    paid: set[tuple[str, int]] = set()
    newest: dict[str, int] = {}
    done = Counter[str]()
    for line in log.read_text("utf-8").splitlines():
        thread, what, version, number = json.loads(line)
        done[f"{what} by {version}"] += 1
        if durability != "sync":
            continue
        assert version >= newest.get(thread, 1), f"{thread}: version {version} {what} {number} after version 2"
        if what == "charged":
            assert (thread, number) not in paid, f"{thread}: charge {number} ran again"
            charged_by[thread, number] = version
        elif what == "paid":
            paid.add((thread, number))
            newest[thread] = max(newest.get(thread, 1), charged_by[thread, number])
    return done


def sum_up(path: str) -> None:
    """Print the counts by database."""
    lines = [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]
    for kind in dict.fromkeys(line[0] for line in lines):
        mine = [line[1:] for line in lines if line[0] == kind]
        kills, done = Counter[str](), Counter[str]()
        for killed, _, _, what in mine:
            kills.update(killed)
            done.update(what)
        threads, rounds = sum(line[1] for line in mine), sum(line[2] for line in mine)
        by_version = ", ".join(f"{count} of version {version}" for version, count in sorted(kills.items()))
        print(f"{kind}: {kills.total()} processes killed ({by_version}); {len(mine)} deployments, {threads} threads,")
        print(f"  {rounds} rounds; " + ", ".join(f"{count} {what}" for what, count in sorted(done.items())))


if __name__ == "__main__":
    sum_up(sys.argv[1])
