"""Real processes that run and stream a graph, killed with SIGKILL at random moments, and readers that reconnect in
other processes: to stored events, to a run of their own, or to a run of another process.

`PREGEL_KILLS` sets the number of kills (20 by default; a quarter of them belongs to this file), `PREGEL_SEED` chooses
them.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from checkpoint_savers import InMemorySaver
from tests.durability.streaming_child import ASK, Job, lines_of
from tests.durability.streaming_graphs import check, graph_of
from tests.helpers.environments import SeededEnvironment
from tests.helpers.postgres_tools import ENV, conninfo, made_schema

HERE = Path(__file__).parent
KILLS = int(os.environ.get("PREGEL_KILLS", "20"))
SEED = int(os.environ.get("PREGEL_SEED", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_while_it_streams(kind: str, tmp_path: Path) -> None:
    """P5, P12: after any number of kills, each reader has what an undisturbed reader has."""
    rng = random.Random(f"{SEED} {kind}")
    left, number = KILLS // 4, 0
    while left > 0:
        number += 1
        readers = [str(tmp_path / f"{number} {name}") for name in ("first", "second")]
        if kind == "sqlite":
            left -= run_with_kills(readers, str(tmp_path / f"{number}.db"), rng, left)
        else:
            with made_schema() as schema:
                left -= run_with_kills(readers, (conninfo(), schema), rng, left)
        for reader in readers:
            anyio.run(check_reader, lines_of(reader))


async def check_reader(lines: Sequence[Any]) -> None:
    (begin, *seen, _), whole = lines, list[Any]()
    with anyio.fail_after(30):
        graph = graph_of(InMemorySaver(), SeededEnvironment())
        async for part in graph.astream({"log": []}, begin["thread"], keep_events=True, **ASK):
            whole.append(json.loads(json.dumps(part, default=str)))
    check(seen, whole)


def run_with_kills(readers: list[str], database: str | tuple[str, str], rng: random.Random, most: int) -> int:
    """Let readers read a run to its end, in processes that are killed.

    Returns:
        How many processes were killed.
    """
    for reader in readers:
        Path(reader).touch()
    mode: Any = rng.choice(("sync", "sync", "async"))
    killed = 0
    while behind := [reader for reader in readers if not is_done(reader)]:
        first = lines_of(readers[0])
        if not first:
            behind = readers[:1]
        elif not lines_of(readers[1]):
            Path(readers[1]).write_text(json.dumps(first[0]) + "\n", encoding="utf-8")
        if killed < most and rng.random() < 0.6:
            behind = [rng.choice(behind)]
        jobs = [Job(reader, database, rng.random() < 0.3, mode) for reader in behind]
        things = int(rng.expovariate(1 / 60)) if killed < most else sys.maxsize
        killed += run_until(things, jobs, rng.random() ** 3 * 0.003)
    return killed


def is_done(reader: str) -> bool:
    lines = lines_of(reader)
    return bool(lines) and lines[-1].get("type") == "end"


def run_until(things: int, jobs: Sequence[Job], delay: float) -> int:
    """Run processes concurrently until the given number of events happened, and a little longer; then kill them.

    Returns:
        How many processes were killed.
    """
    env = {**ENV, "PYTHONWARNINGS": "error"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "streaming_child.py"), msgspec.json.encode(job).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        for job in jobs
    ]
    happened = 0
    with selectors.DefaultSelector() as selector:
        for process in processes:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map() and happened < things:
            ready = selector.select(60)
            assert ready, "no event for too long"
            for key, _ in ready:
                more = os.read(key.fd, 1 if things < sys.maxsize else 4096)
                happened += len(more)
                if not more:
                    selector.unregister(key.fileobj)
    if happened >= things:
        deadline = time.perf_counter() + delay
        while time.perf_counter() < deadline:
            pass
        for process in processes:
            process.kill()
    for process in processes:
        _, error = process.communicate(timeout=60)
        assert process.returncode in (0, -9), error.decode()
    return sum(process.returncode == -9 for process in processes)
