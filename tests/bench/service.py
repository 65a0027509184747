"""The section of services in docs/benchmarks.md: their targets, measured by the programs `service_*`.

    nox -s bench -- --service           measures and writes the section, in less than six minutes

The other sections stay as they are, and this one stays when the others are measured.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .plots import number
from .service_workers import LEASE

TITLE: Final = "## Services"

ABOUT: Final = """\
[Background runs](service.md): the client, the workers and PostgreSQL on one machine. Throughput and latencies are of a graph of four
supersteps without work of their own, whose events are stored, in 20 slots; workers of the other rows are processes of their own. Searches are among a million runs
and threads in PostgreSQL, after VACUUM. A run's mark is the change of the run's row, which is stored with its first superstep. This measures and writes this section alone, in less than six minutes, on a machine that does nothing else:

```sh
nox -s bench -- --service
```
"""

PROGRAMS: Final[dict[str, tuple[str, ...]]] = {
    "service_throughput": ("--savers", "sqlite,postgres", "--rounds", "3"),
    "service_workers": ("--kills", "6", "--cancels", "100"),
    "service_searches": (),
}
"""The programs, with their arguments."""

SAVERS: Final = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A figure of a program, and its target.

    Attributes:
        title: what is measured.
        program: which program measures it.
        figure: its name there.
        bound: the target, in `unit`.
        unit: of the target and the figure as they are shown.
        scale: what the program's figure is multiplied by.
        more_is_better: the figure is to be at least the target, and not at most.
        savers: with which savers it is measured; empty for PostgreSQL alone, by a program that knows no other.
    """

    title: str
    program: str
    figure: str
    bound: float
    unit: str = "ms"
    scale: float = 1.0
    more_is_better: bool = False
    savers: tuple[str, ...] = ("postgres", "sqlite")


GOALS: Final = (
    Goal(
        title="start to first checkpoint, median",
        program="service_throughput",
        figure="first p50 ms",
        bound=5,
        savers=("postgres",),
    ),
    Goal(
        title="start to first checkpoint, p99",
        program="service_throughput",
        figure="first p99 ms",
        bound=10,
        savers=("postgres",),
    ),
    Goal(
        title="start to first checkpoint in one process, median",
        program="service_throughput",
        figure="first p50 ms",
        bound=3,
        savers=("sqlite",),
    ),
    Goal(
        title="runs per second, as a share of direct calls",
        program="service_throughput",
        figure="share",
        bound=0.35,
        unit="",
        more_is_better=True,
    ),
    Goal(
        title="runs that wait: three workers to one",
        program="service_workers",
        figure="three workers",
        bound=2.5,
        unit="x",
        more_is_better=True,
    ),
    Goal(
        title="a worker is killed, to the first commit of another on the host, maximum",
        program="service_workers",
        figure="failover max",
        bound=2,
        unit="s",
    ),
    Goal(
        title=f"the same on another host, with leases of {LEASE:g} s, maximum",
        program="service_workers",
        figure="failover from elsewhere max",
        bound=LEASE + 2,
        unit="s",
    ),
    Goal(
        title="cancellation from another process until it is confirmed, p99",
        program="service_workers",
        figure="cancel p99",
        bound=50,
        scale=1000,
    ),
    Goal(
        title="a commit with a run's mark takes longer by",
        program="service_workers",
        figure="mark",
        bound=3,
        unit="%",
        scale=100,
    ),
    Goal(
        title="a stored update until a follower in another process has it, p95",
        program="service_workers",
        figure="follower p95",
        bound=20,
        scale=1000,
    ),
    Goal(title="a page of the inbox", program="service_searches", figure="inbox page", bound=2, savers=()),
    Goal(
        title="a count of the inbox",
        program="service_searches",
        figure="count of an inbox",
        bound=100,
        savers=(),
    ),
    Goal(
        title="a count of failed runs",
        program="service_searches",
        figure="count of failed runs",
        bound=100,
        savers=(),
    ),
)

Figures = dict[str, Any]
"""The JSON of each program, by its name."""


def measure() -> Figures:
    """Run all programs, one after the other.

    Returns:
        Their figures. A program that fails raises `CalledProcessError`.
    """
    found: Figures = {}
    for program, arguments in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "figures.json")
            command = [sys.executable, "-m", f"tests.bench.{program}", *arguments, "--json", str(file)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
            found[program] = json.loads(file.read_text())
    return found


def rows(figures: Figures) -> list[tuple[Goal, str, float]]:
    """Return each target with the saver's title and the figure.

    Args:
        figures: what `measure` returned.
    """
    found: list[tuple[Goal, str, float]] = []
    for goal in GOALS:
        of_program = figures[goal.program]
        for saver in goal.savers:
            found.append((goal, SAVERS[saver], of_program[saver][goal.figure] * goal.scale))
        if not goal.savers:
            found.append((goal, SAVERS["postgres"], of_program[goal.figure] * goal.scale))
    return found


def section(figures: Figures, about: dict[str, str]) -> str:
    """Return the section.

    Args:
        figures: what `measure` returned.
        about: when and where they were measured.
    """
    lines = ["| what | saver | target | measured | |", "|---|---|---|---:|---|"]
    for goal, saver, figure in rows(figures):
        reached = figure >= goal.bound if goal.more_is_better else figure <= goal.bound
        asked = f"at {'least' if goal.more_is_better else 'most'} {goal.bound:g} {goal.unit}".strip()
        measured = f"{number(figure) if figure > 0 else f'{figure:.1f}'} {goal.unit}".strip()
        lines.append(f"| {goal.title} | {saver} | {asked} | {measured} | {'reached' if reached else '**missed**'} |")
    where = "\n".join(f"- {name}: {about[name]}" for name in ("date", "machine", "Python") if name in about)
    return "\n\n".join([TITLE, ABOUT.strip(), where, "\n".join(lines)]) + "\n"


def section_of(page: str) -> str:
    """Return the section of a page; empty if it has none.

    Args:
        page: the page.
    """
    found = re.search(rf"^{TITLE}\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return "" if found is None else found[0].rstrip() + "\n"


def with_section(page: str, new: str) -> str:
    """Return a page with the section replaced, or added before the explanation of the limit.

    Args:
        page: the page.
        new: the section; empty to leave the page as it is.
    """
    if not new:
        return page
    bare = page.replace(section_of(page) + "\n", "") if section_of(page) else page
    before, heading, after = bare.partition("## What the limit is")
    return f"{before}{new}\n{heading}{after}" if heading else f"{before.rstrip()}\n\n{new}"
