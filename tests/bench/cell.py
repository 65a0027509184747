"""One cell of the table: one workload on one engine, in this process. Prints one line of JSON.

    python -m tests.bench.cell asyncio chain '{"n": 100}' --budget 0.5

The line has figures: `us` per unit, `ms` per operation, `per_s` units, `peak_mb` of the process, `grown_mb` beyond what it had
before it ran, and what the workload adds. Or it has `cannot`, with the reason.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from .engines import ENGINES, Engine
from .memory import resident
from .workloads import CannotError, Case

MOST = 50  # operations
DEAR = 4  # a first operation that takes so many budgets is not only a warm-up, but the measurement

Figures = dict[str, float]

IMPORT = """
import time
begun = time.perf_counter()
{imports}
print((time.perf_counter() - begun) * 1e3)
from tests.bench.memory import resident
print(resident())
"""


def environment() -> dict[str, str]:
    """Return the environment of a process that finds this package and the compiled checkout, and no tracing service."""
    root = Path(__file__).parents[2]
    unwanted = ("LANGSMITH_", "LANGCHAIN_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    paths = (str(root), kept.get("PYTHONPATH"))
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


async def timed(case: Case, budget: float) -> Figures:
    """Return medians over operations until they have used up the budget."""
    before = resident()
    times: list[float] = []
    figures: list[Figures] = []
    warm = True
    while warm or sum(times) < budget and len(times) < MOST:
        begun = time.perf_counter()
        result = await case.run()
        took = time.perf_counter() - begun
        if not case.right(result):
            raise AssertionError(f"a wrong result: {str(result)[:300]}")
        if not warm or took > DEAR * budget:
            times.append(took)
            figures.append(case.figures(result))
        warm = False
    ms = statistics.median(times) * 1e3
    found = {"us": ms / case.units * 1e3, "ms": ms, "unit_ms": ms / case.units}
    found |= {key: statistics.median(each[key] for each in figures) for key in figures[0]}
    peak = resident(peak=True)
    return {**found, "per_s": 1e6 / found["us"], "peak_mb": peak, "grown_mb": peak - before}


async def measure(engine: Engine, workload: str, params: dict[str, Any], budget: float) -> Figures:
    """Build the workload and time it.

    Raises:
        CannotError: the engine does not do this.
    """
    async with AsyncExitStack() as stack:
        build = getattr(engine.load()(stack), workload, None)
        if build is None:
            raise CannotError("")
        return await timed(await build(**params), budget)


def importing(engine: Engine, times: int) -> Figures:
    """Return the milliseconds that an import takes in a fresh interpreter, and the memory after it."""
    code, found = IMPORT.format(imports=engine.imports), list[list[float]]()
    for _ in range(times):
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
        found.append([float(line) for line in ran.stdout.split()])
    took, resident_mb = (
        statistics.median(each) for each in zip(*found[1:], strict=True)
    )  # the first one warms the disk
    return {"ms": took, "resident_mb": resident_mb}


def cell(name: str, workload: str, params: dict[str, Any], budget: float) -> dict[str, Any]:
    """Return the figures, or the reason why there are none."""
    engine, params = ENGINES[name], dict(params)
    if (threshold := params.pop("gc_threshold", None)) is not None:
        gc.set_threshold(threshold, 10, 10)
    try:
        if workload == "importing":
            return importing(engine, **params)
        options = dict(engine.options)
        return anyio.run(measure, engine, workload, params, budget, backend=engine.backend, backend_options=options)
    except CannotError as error:
        return {"cannot": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("workload")
    parser.add_argument("params", type=json.loads)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print(json.dumps(cell(chosen.engine, chosen.workload, chosen.params, chosen.budget)), flush=True)
    os._exit(0)  # threads that a library left are not waited for


if __name__ == "__main__":
    main()
