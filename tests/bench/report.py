"""Write docs/benchmarks.md and its plots from results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from . import plots, service
from .engines import ENGINES, OURS
from .engines.limit import Driver as Limit
from .plots import number
from .results import Results
from .rows import (
    CHAIN,
    FAN,
    FILE,
    GROUPS,
    LOOP,
    MANY,
    TARGETS,
    AtMost,
    Faster,
    Group,
    Grows,
    Row,
    Target,
    Within,
    cells,
)

TITLES = {engine.name: engine.title for engine in ENGINES.values()}
COLUMNS = ("", *TITLES.values(), "LangGraph : ours", "ours : limit")

ROUNDS = 5  # that medians are to be of

HEAD = """\
# Benchmarks

The same workloads on pregel-async, on three other engines, and as bare code without any framework, which is the limit. Times differ
between machines; ratios within one run hold. This writes the page anew, in less than half an hour:

```sh
nox -s bench
```

Each cell of the tables is measured in a process of its own. In each round all engines take their turn, another one first each time. A
figure is the median of the rounds, each of which is a median of operations; a ratio is the median of the rounds' ratios, so that
only what ran side by side is compared. Nodes are coroutines of a line or two: what is measured is the runtime around them, and
the time that models and services take comes on top, the same for all. Ratios above 1 are costs of the first over the second; for
rates they are turned round, so that a higher one of the first column is always better for us, and a lower one of the second.
"""

LIMITS = """\
## What the limit is

Bare code that does the same work and keeps no promise but its result: no isolation, no versions, no routing, no error notes, no cancellation
beyond anyio's. It runs on asyncio. It has nothing to compile, and imports anyio and msgspec. What it does for each workload:
"""


def heading() -> str:
    """Return the first two lines of a table."""
    return f"| {' | '.join(COLUMNS)} |\n|---{'|---:' * (len(COLUMNS) - 1)}|"


class Notes:
    """Footnotes under a table, one for each distinct reason."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, engine: str, reason: str) -> str:
        if not reason:
            return "—"
        note = self.numbers.setdefault(f"{TITLES[engine]}: {reason}", len(self.numbers) + 1)
        return f"— <sup>{note}</sup>"

    def __iter__(self) -> Iterator[str]:
        return (f"<sup>{note}</sup> {reason}." for reason, note in self.numbers.items())


def line(results: Results, row: Row, notes: Notes | None = None) -> str:
    """Return a row of a table, with notes for its missing figures."""
    notes = Notes() if notes is None else notes
    found: list[str] = []
    for engine in ENGINES:
        value = results.median(row, engine)
        text = notes.mark(engine, results.cannot(row, engine)) if value is None else number(value)
        found.append(f"**{text}**" if engine == OURS else text)
    ratios = ["" if ratio is None else f"{number(ratio)} x" for ratio in (results.faster(row), results.over_limit(row))]
    title = f"{row.title}, {row.unit}" if row.unit else row.title
    return f"| {' | '.join((title, *found, *ratios))} |"


def target(results: Results, goal: Target) -> str:
    """Return a row of the table of targets."""
    group = next(group.title for group in GROUPS if goal.row in group.rows)
    title = f"{group} | {goal.row.title}"
    match goal:
        case Faster(_, bound):
            asked = f"at least {bound:g} x better than LangGraph"
        case Within(row, bound):
            asked = f"at most {bound:g} x the limit{'' if row.unit == 'MB' else chr(39) + 's cost'}"
        case AtMost(row, bound):
            asked = f"at most {bound:g} {row.unit}"
        case Grows(_, under, bound):
            asked = f"at most {bound:g} x {under.title}"
    measured, reached = results.measured(goal), results.reached(goal)
    if measured is None:
        return f"| {title} | {asked} | not measured | |"
    reported = number(measured) + (f" {goal.row.unit}" if isinstance(goal, AtMost) else " x")
    return f"| {title} | {asked} | {reported} | {'reached' if reached else '**missed**'} |"


def drawn(results: Results) -> dict[str, str]:
    """Return the plots by file name, for which there are figures."""
    found: dict[str, str] = {}

    def bars(name: str, title: str, **groups: Row) -> None:
        values = {
            label.replace("_", " "): {
                engine: value for engine in ENGINES if (value := results.median(row, engine)) is not None
            }
            for label, row in groups.items()
        }
        if values := {label: group for label, group in values.items() if group}:
            found[name] = plots.bars(title, values, TITLES)

    def lines(name: str, title: str, across: str, rows: dict[int, Row]) -> None:
        series = {
            engine: {float(n): value for n, row in rows.items() if (value := results.median(row, engine)) is not None}
            for engine in ENGINES
        }
        if series := {engine: values for engine, values in series.items() if len(values) > 1}:
            found[name] = plots.lines(title, across, series, TITLES)

    bars("supersteps", "µs per superstep, less is better (logarithmic)", chain_of_100=CHAIN, loop_of_1000=LOOP)
    lines("fanout", "µs per task of a fan-out, less is better (logarithmic)", "tasks", FAN)
    bars(
        "conversations",
        "conversations per second on SQLite, 1000 at once, more is better (logarithmic)",
        sync=MANY["sync"],
        **{"async": MANY["async"]},
    )
    lines("file", "MB of the file of a thread, less is better (logarithmic)", "messages, and supersteps", FILE)
    return found


PLOTS = {"supersteps": "Supersteps", "fanout": "Fan-out", "conversations": "Storing", "file": "Threads that grow"}


def section(results: Results, group: Group, pictures: list[str]) -> str:
    notes = Notes()
    lines = [line(results, row, notes) for row in group.rows]
    parts = [f"## {group.title}", group.about, "\n".join([heading(), *lines]), "  \n".join(notes), *pictures]
    return "\n\n".join(filter(None, parts))


def limits() -> str:
    """Describe how the limit runs each workload, from its methods' docstrings."""
    lines: list[str] = []
    for workload in dict.fromkeys(cell.workload for cell in cells()):
        text = inspect.getdoc(getattr(Limit, workload, None))
        if text:
            lines.append(f"- `{workload}`: {' '.join(text.split())}")
    return LIMITS + "\n" + "\n".join(lines)


def document(results: Results, folder: str) -> str:
    about = "\n".join(f"- {name}: {text}" for name, text in results.about.items())
    goals = "\n".join(
        ["| | what | target | measured | |", "|---|---|---|---:|---|", *(target(results, goal) for goal in TARGETS)]
    )
    reached = [results.reached(goal) for goal in TARGETS]
    summary = f"{reached.count(True)} of {len(reached)} are reached."
    sections = [
        section(
            results,
            group,
            [f"![{name}]({folder}/{name}.svg)" for name, title in PLOTS.items() if title == group.title],
        )
        for group in GROUPS
    ]
    if int(results.about.get("rounds", 0)) < ROUNDS:
        about += f"\n\n**These figures are provisional: of fewer rounds than the {ROUNDS} that count.**"
    return "\n\n".join([HEAD + "\n" + about, f"## Targets\n\n{summary}\n\n{goals}", *sections, limits()]) + "\n"


def write(results: Results, output: Path) -> None:
    """Write the page, and its plots in a folder of its name next to it."""
    folder = output.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    before = output.read_text("utf-8") if output.exists() else ""
    output.write_text(service.with_section(document(results, folder.name), service.section_of(before)), "utf-8")
    for name, picture in drawn(results).items():
        (folder / f"{name}.svg").write_text(picture, "utf-8")
