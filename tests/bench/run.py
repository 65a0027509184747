"""Workloads x engines, side by side: each cell in a fresh process, engines interleaved, medians and ratios.

    nox -s bench                              all, five rounds
    nox -s bench -- --rounds 3 --only chain   some

Times differ between machines; ratios within one run hold.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS, PEER, LIMIT = "pregel-async", "langgraph", "limit"
ENGINES = (OURS, "pregel-async, uvloop", PEER, LIMIT)

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("superstep, chain of 100", "chain", {"n": 100}),
    ("superstep, chain of 1000", "chain", {"n": 1000}),
    ("superstep, loop of 1000", "loop", {"n": 1000}),
    ("task, fan-out of 100", "fanout", {"n": 100}),
    ("task, fan-out of 1000", "fanout", {"n": 1000}),
    ("task, fan-out of 10 000", "fanout", {"n": 10_000}),
    ("superstep, 30 keys", "wide", {"keys": 30, "rounds": 20}),
    ("superstep, 300 keys", "wide", {"keys": 300, "rounds": 20}),
    ("superstep, memory saver", "chain", {"n": 100, "saver": "memory"}),
    ("superstep, SQLite, FULL", "chain", {"n": 100, "saver": "sqlite"}),
    ("chunk, updates", "stream", {"n": 1000, "mode": "updates"}),
    ("chunk, values", "stream", {"n": 1000, "mode": "values"}),
]


def cell(engine: str, workload: str, params: dict[str, Any], budget: float) -> dict[str, float]:
    command = [sys.executable, str(HERE / "cell.py"), engine, workload, json.dumps(params), str(budget)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if ran.returncode:
        sys.exit(f"{engine}, {workload} {params}:\n{ran.stderr}")
    found: dict[str, float] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


def ratio(rounds: list[dict[str, dict[str, float]]], over: str, under: str, key: str = "us") -> str:
    found = [r[over][key] / r[under][key] for r in rounds if r[over].get(key) and r[under].get(key)]
    return f"{statistics.median(found):.1f}" if found else ""


def _median(rounds: list[dict[str, dict[str, float]]], engine: str, key: str = "us", digits: int = 1) -> str:
    found = [r[engine][key] for r in rounds if key in r[engine]]
    return f"{statistics.median(found):.{digits}f}" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per cell")
    parser.add_argument("--only", default="", help="workloads, separated by commas")
    parser.add_argument("--output", type=Path, default=None, help="write the table to a file too")
    chosen = parser.parse_args()
    only = set(filter(None, chosen.only.split(",")))
    lines = [_machine(), "", f"| µs per | {' | '.join(ENGINES)} | peer / ours | ours / limit | |"]
    lines.append("|---" * (len(ENGINES) + 4) + "|")
    print("\n".join(lines), flush=True)
    for title, workload, params in ROWS:
        if only and workload not in only:
            continue
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(chosen.rounds):
            turn = number % len(ENGINES)  # no engine is always first
            order = ENGINES[turn:] + ENGINES[:turn]
            rounds.append({engine: cell(engine, workload, params, chosen.budget) for engine in order})
        medians = [_median(rounds, engine) for engine in ENGINES]
        told = "; ".join(
            f"{key}: {_median(rounds, OURS, key, 2)}, peer / ours {ratio(rounds, PEER, OURS, key)}"
            for key in sorted(rounds[0][OURS])
            if key != "us"
        )
        ratios = f"{ratio(rounds, PEER, OURS)} | {ratio(rounds, OURS, LIMIT)}"
        row = f"| {title} | {' | '.join(medians)} | {ratios} | {told} |"
        lines.append(row)
        print(row, flush=True)
    if chosen.output is not None:
        chosen.output.write_text("\n".join(lines) + "\n", "utf-8")


def _machine() -> str:
    names = []
    for name in ("pregel-async", "langgraph", "anyio", "msgspec", "aiosqlite"):
        try:
            names.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            names.append(f"{name} not installed")
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}; {', '.join(names)}"


if __name__ == "__main__":
    main()
