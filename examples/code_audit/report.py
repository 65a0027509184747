"""The report, as Markdown: the same text for the same tree, so that two reports can be compared line by line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import NamedTemporaryFile

from .audit import FileAudit, Place
from .ranking import EXPLAINED, Ranked, Totals

COMPLEX = 20
"""The smallest complexity at which a function is listed as a finding."""

NAMES = 12
"""The number of undocumented names that are listed per file."""


def render(
    *, tree: str, totals: Totals, worst: Sequence[Ranked], audits: Sequence[FileAudit], drawing: str, limit: int
) -> str:
    """Return the report's text.

    Args:
        tree: the tree's path, for the title.
        totals: sums over all files.
        worst: the worst files, in the order to show them.
        audits: the audits of all files, in the order of their paths.
        drawing: the graph that did the work, as mermaid.
        limit: the largest number of functions to list by complexity.
    """
    sections = (
        [f"# Code audit of `{tree}`", f"Read with the grammar of Python {sys.version_info[0]}.{sys.version_info[1]}."],
        ["## Totals", *_totals(totals)],
        ["## The worst files", *_worst(worst, audits)],
        ["## How a score is made", *(f"- **{what}**: {words}" for what, words in EXPLAINED)],
        ["## Findings", *_findings(audits, worst, limit)],
        ["## The graph that did this", "```mermaid\n" + drawing.rstrip() + "\n```"],
    )
    return "\n".join(_spaced(line for section in sections for line in section))


def write(text: str, path: Path) -> None:
    """Write the report atomically: a reader sees the old report or the new one, and never a part.

    Args:
        text: the report.
        path: the file; its directory is created if it is missing.

    Raises:
        OSError: the directory cannot be created or written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(
        "w", encoding="utf-8", errors="backslashreplace", dir=path.parent, prefix=".audit-", delete=False
    ) as file:
        try:
            file.write(text)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _totals(totals: Totals) -> Iterator[str]:
    yield from _table(
        ("what", "how many"),
        ((field.name.replace("_", " "), f"{getattr(totals, field.name):,}") for field in fields(totals)),
    )


def _worst(worst: Sequence[Ranked], audits: Sequence[FileAudit]) -> Iterator[str]:
    if not worst:
        yield "None: no file has a point."
        return
    by_path = {audit.path: audit for audit in audits}
    rows: list[tuple[str, ...]] = []
    for place, ranked in enumerate(worst, start=1):
        audit = by_path[ranked.path]
        worst_function = "" if audit.worst is None else f"{_code(audit.worst.name)} ({audit.worst.complexity})"
        why = ", ".join(f"{what} {points:g}" for what, points in ranked.why.items())
        rows.append((str(place), _code(ranked.path), f"{ranked.score:g}", why, f"{audit.lines:,}", worst_function))
    yield from _table(("", "file", "score", "made of", "lines", "most complex function"), rows)


def _findings(audits: Sequence[FileAudit], worst: Sequence[Ranked], limit: int) -> Iterator[str]:
    yield "### Not analysed"
    problems = [f"- {_code(audit.path)}: {audit.problem}" for audit in audits if audit.problem is not None]
    yield from problems or ["None."]

    yield f"### Functions of complexity {COMPLEX} and more"
    hard = [
        (audit.worst, audit.path) for audit in audits if audit.worst is not None and audit.worst.complexity >= COMPLEX
    ]
    hard.sort(key=lambda pair: (-pair[0].complexity, pair[1]))
    yield from _shortened(
        [f"- {function.complexity}: {_code(function.name)} in {_at(path, function.line)}" for function, path in hard],
        limit,
    )

    yield "### Unused imports"
    unused = [f"- {_at(audit.path, place.line)}: {_code(place.name)}" for audit in audits for place in audit.unused]
    yield from unused or ["None."]

    yield "### Undocumented, in the worst files"
    shown = {ranked.path for ranked in worst}
    missing = [
        f"- {_code(audit.path)}: {_names(audit.undocumented)}"
        for audit in audits
        if audit.undocumented and audit.path in shown
    ]
    yield from missing or ["None."]


def _names(places: Sequence[Place]) -> str:
    written = ", ".join(_code(place.name) for place in places[:NAMES])
    return written + (f" and {len(places) - NAMES} more" if len(places) > NAMES else "")


def _shortened(lines: Sequence[str], limit: int) -> Iterator[str]:
    yield from lines[:limit] or ["None."]
    if len(lines) > limit:
        yield f"- and {len(lines) - limit} more"


def _at(path: str, line: int) -> str:
    return _code(f"{path}:{line}")


def _code(text: str) -> str:
    """Return text as inline code, with characters replaced that Markdown cannot show there."""
    return "`" + text.replace("`", "'").replace("\n", " ") + "`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    yield from ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _spaced(lines: Iterable[str]) -> Iterator[str]:
    """Insert blank lines between lines that do not belong to the same list or table."""
    before: str | None = None
    for line in lines:
        kind = line[0] if line[0] in "|-" else ""
        if before is not None and (kind != before or not kind):
            yield ""
        before = kind
        yield line
    yield ""
