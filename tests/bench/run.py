"""Workloads x engines, side by side: each cell in a fresh process, engines interleaved, medians and ratios of rounds.

    nox -s bench                                            all, five rounds; writes docs/benchmarks.md and its plots
    nox -s bench -- --only chain,loop --rounds 3            some workloads, on the terminal alone
    nox -s bench -- --engines asyncio,limit                 some engines
    nox -s bench -- --results all.json                      keeps the figures of each round in a file, cell by cell;
    nox -s bench -- --results all.json --only thread        what the file has and is not measured again stays;
    nox -s bench -- --results all.json --draw               measures nothing, and writes the report of what the file has
    nox -s bench -- --service                               services alone: writes their section of docs/benchmarks.md

Times differ between machines; ratios within one run hold.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from . import report, service
from .cell import environment
from .engines import ENGINES
from .results import Results, Round
from .rows import GROUPS, Cell, cells

OUTPUT = Path(__file__).parents[2] / "docs" / "benchmarks.md"
TIMEOUT = 300  # seconds, for a cell


def measure(engine: str, cell: Cell, budget: float) -> dict[str, Any]:
    """Run one cell in a process of its own. A failure is printed and recorded in the cell."""
    params = json.dumps(dict(cell.params))
    command = [sys.executable, "-m", "tests.bench.cell", engine, cell.workload, params, "--budget", str(budget)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment())
    except subprocess.TimeoutExpired:
        return {"failed": True, "cannot": f"it takes longer than {TIMEOUT} s"}
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or [f"exit status {ran.returncode}"]
        print(f"{engine}, {cell.id}:", *said[-8:], sep="\n", file=sys.stderr, flush=True)
        return {"failed": True, "cannot": f"it fails: {said[-1][:200]}"}
    found: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def rounds_of(cell: Cell, engines: tuple[str, ...], rounds: int, budget: float) -> list[Round]:
    """Run all engines in each round, each time beginning with another one."""
    able = [engine for engine in cell.engines if engine in engines]
    found: list[Round] = []
    for number in range(min(rounds, cell.rounds or rounds)):
        turn = number % len(able) if able else 0
        measured = {engine: measure(engine, cell, budget) for engine in able[turn:] + able[:turn]}
        found.append({engine: measured[engine] for engine in able})
        able = [engine for engine in able if "cannot" not in measured[engine]]
    return found


def machine(rounds: int, budget: float) -> dict[str, str]:
    """Return date, host and versions."""
    names = [name for engine in ENGINES.values() for name in engine.packages]
    versions: list[str] = []
    for name in (*names, "aiosqlite", "psycopg"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} not installed")
    return {
        "date": date.today().isoformat(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": ", ".join(versions),
        "rounds": str(rounds),
        "seconds per cell": str(budget),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a processor")


def names(given: str) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in given.split(","))))


def main() -> int:
    """Returns the exit status: 1 if a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=report.ROUNDS)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds per cell")
    parser.add_argument("--only", default="", help="workloads, separated by commas")
    parser.add_argument("--engines", default="", help=f"engines, separated by commas: {', '.join(ENGINES)}")
    parser.add_argument("--results", type=Path, default=None, help="a JSON file of all rounds")
    parser.add_argument("--output", type=Path, default=None, help="write the report here, even of a part")
    parser.add_argument("--draw", action="store_true", help="write the report of `--results` alone")
    parser.add_argument("--service", action="store_true", help="measure services alone, and write their section")
    chosen = parser.parse_args()
    if chosen.service:
        output = chosen.output or OUTPUT
        new = service.section(service.measure(), machine(0, 0))
        output.write_text(service.with_section(output.read_text("utf-8") if output.exists() else "", new), "utf-8")
        return 0
    if chosen.draw:
        report.write(Results.load(chosen.results), chosen.output or OUTPUT)
        return 0
    only, wanted = names(chosen.only), names(chosen.engines)
    known = {cell.workload for cell in cells()}
    if unknown := sorted(only - known) + sorted(wanted - ENGINES.keys()):
        parser.error(
            f"there is no {', '.join(unknown)}; workloads: {', '.join(sorted(known))}; engines: {', '.join(ENGINES)}"
        )
    engines = tuple(engine for engine in ENGINES if not wanted or engine in wanted)
    results = Results.load(chosen.results) if chosen.results and chosen.results.exists() else Results()
    results.about = machine(chosen.rounds, chosen.budget)
    print(report.heading(), flush=True)
    failed = False
    for cell in cells(only):
        begun = time.monotonic()
        results.rounds[cell.id] = rounds_of(cell, engines, chosen.rounds, chosen.budget)
        failed |= any("failed" in found for each in results.rounds[cell.id] for found in each.values())
        for row in (row for group in GROUPS for row in group.rows if row.cell.id == cell.id):
            print(report.line(results, row), flush=True)
        print(f"{cell.id}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        if chosen.results:
            results.save(chosen.results)
    whole = not wanted and all(cell.id in results.rounds for cell in cells())
    output = chosen.output or (OUTPUT if whole else None)
    if output is not None:
        report.write(results, output)
    return int(failed)
