"""What the rules for changed graphs cost, next to the targets of docs/upgrades.md.

    python -m tests.bench.upgrades                                 all figures, five rounds
    python -m tests.bench.upgrades --only load,sqlite --rounds 3 --threads 2000
    python -m tests.bench.upgrades --against ../other/checkout     alternates with another checkout

A round is a process for each figure and checkout, in alternating order. Within a process, the two sides of a comparison
alternate, and the figure is a median. Times are those of the process's processors, in all of its threads: other
programs on the machine disturb them less. Of `threads check` the time that passed is shown too, in which the saver's
server works. PostgreSQL: the database of PREGEL_TEST_POSTGRES, or `test` of the local server.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import operator
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import anyio

from checkpoint_savers import Codec, InMemorySaver
from pregel_async import START, StateGraph
from pregel_async.types import Added, Renamed
from tests.bench.service_throughput import opened
from tests.bench.workloads import message

make_schema: Any = TypedDict
"""For keys that depend on the figure."""

TARGETS = {
    "aliases, load": "at most 1.05",
    "upcast, us": "at most 3",
    "sqlite, threads/s": "at least 2000",
    "postgres, threads/s": "at least 1000",
}


def graph_of(keys: dict[str, Any], saver: Any = None, **options: Any) -> Any:
    """Compile a graph of one node, which adds one message."""
    schema = make_schema("schema", {"messages": Annotated[list[Any], operator.add], **keys}, total=False)
    builder: Any = StateGraph(schema).add_node("add", lambda state: {"messages": ["one more"]})
    return builder.add_edge(START, "add").compile(saver, blocking=False, **options)


async def times(count: int, *calls: Callable[[], Awaitable[Any]]) -> list[list[float]]:
    """Make calls in turn, in alternating order. Return the processor times of each, in microseconds."""
    found: list[list[float]] = [[] for _ in calls]
    gc.disable()  # a collection takes as long as a call, and would be counted at one of them
    for number in range(count + 5):
        for at in range(len(calls))[:: 1 if number % 2 else -1]:
            begun = time.process_time()
            await calls[at]()
            if number >= 5:
                found[at].append((time.process_time() - begun) * 1e6)
        gc.collect(1)
    gc.enable()
    return found


def ratio(one: list[float], other: list[float]) -> float:
    """Return the median of the ratios of calls that were made one after the other."""
    return statistics.median([after / before for before, after in zip(one, other, strict=True)])


async def measure_load(count: int) -> dict[str, float]:
    """Compare graphs without declarations, with some that do not apply, and with twenty aliases of stored keys."""
    saver, now, names = InMemorySaver(), {f"k{n}": int for n in range(20)}, [f"old{n}" for n in range(20)]
    given = {"messages": [message(n) for n in range(1000)]}
    plain, before = graph_of(now, saver), graph_of(dict.fromkeys(names, int), saver)
    idle: dict[str, Any] = {"vat": Annotated[int, Added(19)], "customer": Annotated[str, Renamed("name")]}
    declared = graph_of({**now, **idle}, saver)
    aliased = graph_of({f"k{n}": Annotated[int, Renamed(names[n])] for n in range(20)}, saver)
    await plain.ainvoke({**given, **dict.fromkeys(now, 1)}, "plain")
    await before.ainvoke({**given, **dict.fromkeys(names, 1)}, "aliased")
    threads = ((plain, "plain"), (declared, "plain"), (before, "aliased"), (aliased, "aliased"))
    load = await times(count, *[lambda g=graph, t=thread: g.aget_state(t) for graph, thread in threads])
    small = graph_of({}, saver), graph_of(idle, saver)
    step = await times(count, *[lambda g=g, t=f"step {at}": g.ainvoke({}, t) for at, g in enumerate(small)])
    return {
        "plain, load us": statistics.median(load[0]),
        "rules that do not apply, load": ratio(load[0], load[1]),
        "aliases, load": ratio(load[2], load[3]),
        "plain, call us": statistics.median(step[0]),
        "rules that do not apply, call": ratio(step[0], step[1]),
    }


async def measure_upcast(count: int) -> dict[str, float]:
    """Compare a thousand objects that are upcast with as many that are not."""
    old = dataclasses.make_dataclass("Item", [("name", str), ("cents", int)])
    new = dataclasses.make_dataclass("Item", [("name", str), ("price", float)])
    plain = Codec().with_types(old, tag="Item")
    upcast = Codec().with_types(
        new, tag="Item", version=2, upcast={1: lambda fields: {"name": fields["name"], "price": fields["cents"] / 100}}
    )
    data = plain.encode([old(f"item {n}", n) for n in range(1000)], channel="k")

    async def read(codec: Codec) -> None:
        codec.decode(data, channel="k")

    one, other = await times(count, lambda: read(plain), lambda: read(upcast))
    more = statistics.median([after - before for before, after in zip(one, other, strict=True)])
    return {"plain decode, us": statistics.median(one) / 1000, "upcast, us": more / 1000}


async def measure_check(kind: str, count: int) -> dict[str, float]:
    """Check threads, of which a rule changes each. Return how many per second, and the growth of the process."""
    before = graph_of({"name": str})
    now = graph_of({"customer": Annotated[str, Renamed("name")]})
    with tempfile.TemporaryDirectory() as path:
        async with opened(kind, path) as saver:
            bound, numbers = before.with_checkpointer(saver), iter(range(count))

            async def fill() -> None:
                for number in numbers:
                    await bound.ainvoke({"name": "Ada"}, f"t{number:06}", durability="exit")

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(fill)
            checked = 0
            peak = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
            begun, used = time.perf_counter(), time.process_time()
            async for check in now.acheck_threads(saver):
                assert check.loads and check.migrated
                checked += 1
                if checked == count // 4:
                    peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
            passed, spent = time.perf_counter() - begun, time.process_time() - used
    peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert checked == count
    return {
        f"{kind}, threads/s": count / spent,
        f"{kind}, threads/s that passed": count / passed,
        f"{kind}, MB of the last three quarters": (peak[2] - peak[1]) / 1024,
    }


async def measure(what: str, count: int, threads: int) -> dict[str, float]:
    """Measure a group of figures in this process."""
    if what == "load":
        return await measure_load(count)
    if what == "upcast":
        return await measure_upcast(count)
    return await measure_check(what, threads)


GROUPS = ("load", "upcast", "sqlite", "postgres")


def main() -> None:
    """Measure all rounds, each in processes of their own, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), help="some groups of figures, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200, help="number of calls, of which the median is taken")
    parser.add_argument("--threads", type=int, default=4000, help="number of threads to check")
    parser.add_argument("--against", help="another checkout, which is measured in turn")
    parser.add_argument("--one", choices=GROUPS, help="measure a group in this process, and print the figures as JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(anyio.run(measure, options.one, options.count, options.threads)))
        return
    trees = {"here": os.getcwd()} | ({"against": options.against} if options.against else {})
    print(f"{'':42}" + "".join([f"{name:>14}" for name in trees]) + "   target")
    for group in options.only.split(","):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for number in range(options.rounds):
            for name in list(trees)[:: 1 if number % 2 else -1]:
                command = [sys.executable, __file__, "--one", group]
                command += ["--count", str(options.count), "--threads", str(options.threads)]
                environment = {**os.environ, "PYTHONPATH": trees[name]}
                done = subprocess.run(command, env=environment, cwd=trees[name], stdout=subprocess.PIPE, check=True)
                found[name].append(json.loads(done.stdout))
        for figure in found["here"][0]:
            medians = [statistics.median([each[figure] for each in rounds]) for rounds in found.values()]
            line = f"{figure:42}" + "".join([f"{median:14.3f}" for median in medians])
            print(f"{line}   {TARGETS.get(figure, '')}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
