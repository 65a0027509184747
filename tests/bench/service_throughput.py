"""What a service adds to the calls of a graph: start to first checkpoint, and runs per second as a share of direct calls.

    python -m tests.bench.service_throughput                                 all savers, three rounds
    python -m tests.bench.service_throughput --savers postgres --rounds 5
    python -m tests.bench.service_throughput --against ../other/checkout     alternates with another checkout

The graph has four supersteps without work of their own, and its events are stored. A round is a process for each saver
and checkout, in alternating order: the times of a database drift, so compare medians of alternated rounds. Direct calls
are `ainvoke` of the same graph on the same saver with stored events, as many at once as the worker has slots.
PostgreSQL: the database of PREGEL_TEST_POSTGRES, or `test` of the local server.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, PostgresSaver, SqliteSaver
from pregel_async import START, StateGraph
from pregel_async.service import RunService, Worker

SAVERS = ("memory", "sqlite", "postgres")
SLOTS = 20
FIGURES = ("runs/s", "direct/s", "share", "first p50 ms", "first p99 ms", "end p50 ms")
URL = os.environ.get("PREGEL_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def four_steps() -> Any:
    """A graph of four supersteps."""
    builder, before = StateGraph(Log), START
    for name in "abcd":
        builder.add_node(name, _logging(name)).add_edge(before, name)
        before = name
    return builder.compile()


def _logging(name: str) -> Any:
    async def log(state: Log) -> dict[str, Any]:
        return {"log": [name]}

    return log


@asynccontextmanager
async def opened(kind: str, path: str) -> AsyncGenerator[BaseCheckpointSaver]:
    """Open an empty saver of a kind, as durable as by default."""
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        async with SqliteSaver(Path(path) / "runs.db") as saver:
            yield saver
    else:
        import psycopg

        schema = f"bench_{os.getpid()}"
        try:
            async with PostgresSaver(URL, schema=schema, setup=True, listen=True) as postgres:
                yield postgres
        finally:
            with psycopg.connect(URL, autocommit=True) as connection:
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


async def at_once(work: Callable[[int], Awaitable[object]], count: int) -> float:
    """Do work `count` times, `SLOTS` at once. Return how often per second."""
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            await work(number)

    begun = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(SLOTS):
            group.start_soon(one_after_the_other)
    return count / (time.perf_counter() - begun)


async def measure(kind: str, count: int) -> dict[str, float]:
    """Measure one saver in this process."""
    graph = four_steps()
    with tempfile.TemporaryDirectory() as path:
        async with (
            opened(kind, path) as saver,
            RunService({"agent": graph}, saver, work=Worker(slots=SLOTS)) as service,
        ):
            bound, first, end = graph.with_checkpointer(saver), list[float](), list[float]()
            runs_of_saver: Any = saver.runs
            begin, begun = runs_of_saver.begin, dict[str, float]()

            async def noting_begin(lease: Any, run_id: str, *args: Any, **options: Any) -> None:
                await begin(lease, run_id, *args, **options)
                begun[run_id] = time.perf_counter()

            runs_of_saver.begin = noting_begin

            async def direct(number: int) -> None:
                async for _ in bound.astream({"log": ["in"]}, f"direct {number}", keep_events=True):
                    pass

            async def served(number: int) -> None:
                run = await service.start("agent", {"log": ["in"]})
                await service.join(run.run_id)

            async def latency() -> None:
                called = time.perf_counter()
                run = await service.start("agent", {"log": ["in"]})
                await service.join(run.run_id)
                end.append((time.perf_counter() - called) * 1000)
                first.append((begun[run.run_id] - called) * 1000)

            await at_once(direct, SLOTS)
            await at_once(served, SLOTS)
            calls = await at_once(direct, count)
            runs = await at_once(served, count)
            for _ in range(100):
                await latency()
    first.sort()
    quantiles = (statistics.median(first), first[98], statistics.median(end))
    return dict(zip(FIGURES, (runs, calls, runs / calls, *quantiles), strict=True))


def main() -> None:
    """Measure all rounds, each in processes of their own, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--savers", default=",".join(SAVERS), help="some of them, separated by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=400, help="number of runs, and of direct calls, in a round")
    parser.add_argument("--json", type=Path, help="write the medians of this checkout to this file")
    parser.add_argument("--against", help="another checkout, which is measured in turn")
    parser.add_argument(
        "--one", choices=SAVERS, help="measure one saver in this process, and print the figures as JSON"
    )
    options = parser.parse_args()
    if options.one:
        print(json.dumps(anyio.run(measure, options.one, options.count)))
        return
    trees = {"here": os.getcwd()} | ({"against": options.against} if options.against else {})
    figures: dict[str, dict[str, float]] = {}
    print(f"{'':18}" + "".join([f"{name:>14}" for name in FIGURES]))
    for kind in options.savers.split(","):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for number in range(options.rounds):
            for name in list(trees)[:: 1 if number % 2 else -1]:
                command = [sys.executable, __file__, "--one", kind, "--count", str(options.count)]
                environment = {**os.environ, "PYTHONPATH": trees[name]}
                done = subprocess.run(command, env=environment, cwd=trees[name], stdout=subprocess.PIPE, check=True)
                found[name].append(json.loads(done.stdout))
        for name, rounds in found.items():
            medians = [statistics.median([each[figure] for each in rounds]) for figure in FIGURES]
            print(f"{kind + ' ' + name:18}" + "".join([f"{median:14.2f}" for median in medians]), flush=True)
            if name == "here":
                figures[kind] = dict(zip(FIGURES, medians, strict=True))
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
