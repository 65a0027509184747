"""The part of the pytest plugin that imports the suite: it finds the saver and reports each promise."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from _pytest.terminal import TerminalReporter

from ..abc import BaseCheckpointSaver
from . import SaverConformance, command_line_saver
from .savers.suite import VERBS, Suite

TITLES: Final = {
    1: "Isolation",
    2: "Determinism",
    3: "A superstep is all or nothing",
    4: "Acknowledged means durable",
    5: "What is recorded never runs again",
    6: "One writer per thread",
    7: "Cancellation can be trusted",
    10: "Storage grows with new data",
    11: "Stored bytes are data",
    13: "The same on both event loops",
}
"""The titles of the promises that savers keep, by number."""

PROMISE: Final = "promise"
"""The name of the user property by which an item passes suite, clause and promise to its report."""

_NUMBERED = re.compile(r"P(\d+)(?:, P\d+)*: (.+)")


def configure(config: pytest.Config) -> None:
    """Read the options of the command line, and register the report.

    Args:
        config: pytest's config. With `--saver`, the suite's file is added to its `args`.

    Raises:
        pytest.UsageError: the saver cannot be imported, or `--saver-lacks` names neither a verb nor a clause.
    """
    saver_name: str | None = config.getoption("saver")
    if saver_name is not None:
        opener = find_opener(saver_name, config.invocation_params.dir)
        lacks = dict(map(parse_lack, config.getoption("saver_lacks") or ()))
        crashes: int | None = config.getoption("saver_crashes")
        config.stash[command_line_saver.SAVER_OPTIONS] = command_line_saver.SaverOptions(
            saver_name, opener, lacks, crashes
        )
        suite = str(Path(command_line_saver.__file__))
        # Without paths on the command line, run the suite alone, and not the tests that pytest would find by itself.
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args = [suite]
        elif suite not in config.args:
            config.args.append(suite)
    config.pluginmanager.register(PromiseReport(saver_name), "checkpoint-savers-promises")


def find_opener(saver_name: str, folder: Path) -> Callable[[Path], AbstractAsyncContextManager[BaseCheckpointSaver]]:
    """Import the function that opens the saver.

    Args:
        saver_name: `package.module:name`; the name may have dots.
        folder: a folder that is added to `sys.path`, so that modules next to the tests are found.

    Returns:
        The function. Calling it with a folder must return an async context manager.

    Raises:
        pytest.UsageError: the name has another form, cannot be imported, or is not callable.
    """
    module, _, name = saver_name.partition(":")
    if not module or not name:
        raise pytest.UsageError(f"--saver takes package.module:function, not {saver_name!r}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        opener: Any = importlib.import_module(module)
        for part in name.split("."):
            opener = getattr(opener, part)
    except (ImportError, AttributeError) as error:
        raise pytest.UsageError(f"--saver {saver_name}: {error}") from error
    if not callable(opener):
        raise pytest.UsageError(f"--saver {saver_name}: that is {opener!r}, and not a function that opens a saver")
    return opener  # type: ignore[no-any-return]  # the user's function: only a call can show what it returns


def parse_lack(text: str) -> tuple[str, str]:
    """Split the value of `--saver-lacks` into a name and a reason.

    Args:
        text: `name=reason`, where the name is a verb of `VERBS` or a clause.

    Returns:
        The name and the reason.

    Raises:
        pytest.UsageError: the reason is empty, or the name is neither a verb nor a clause.
    """
    name, _, reason = text.partition("=")
    if not reason.strip():
        raise pytest.UsageError(
            f"--saver-lacks {text}: say why, as in --saver-lacks 'erase=backups are kept for a year'"
        )
    if name not in VERBS and not (name.startswith("test_") and hasattr(SaverConformance, name)):
        raise pytest.UsageError(f"--saver-lacks {text}: there is no such clause, and the verbs are {', '.join(VERBS)}")
    return name, reason.strip()


class ClauseResult(NamedTuple):
    """The result of one clause, over all event loops and parameters.

    Attributes:
        number: the number of the clause's promise; 0 for none.
        says: the clause's name and the promise in its docstring.
        passed, failed: ids of tests.
        skipped: reasons.
    """

    number: int
    says: str
    passed: list[str]
    failed: list[str]
    skipped: list[str]


class PromiseReport:
    """The pytest plugin that prints which promises hold, at the end of the test session.

    Args:
        saver_name: the value of `--saver`; None without that option.
    """

    def __init__(self, saver_name: str | None) -> None:
        self._saver_name = saver_name

    def pytest_report_header(self) -> str | None:
        return None if self._saver_name is None else f"saver: {self._saver_name}"

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            suite: Any = getattr(item, "cls", None)
            if isinstance(suite, type) and issubclass(suite, Suite):
                suite_name = suite.__name__ if suite is not command_line_saver.TestSaver else self._saver_name
                function: Any = getattr(item, "function", None)
                text = " ".join((function.__doc__ or "").split())
                # Reports carry user_properties from the worker processes of pytest-xdist to the process that prints.
                item.user_properties.append((PROMISE, f"{suite_name}\n{function.__name__}\n{text}"))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        savers: dict[str, dict[str, ClauseResult]] = {}
        for outcome, report, suite_name, name, text in clause_reports(terminalreporter):
            numbered = _NUMBERED.fullmatch(text)
            number, says = (int(numbered[1]), numbered[2]) if numbered else (0, text)
            says = f"{name.removeprefix('test_').replace('_', ' ')}: {says}"
            clause = savers.setdefault(suite_name, {}).setdefault(name, ClauseResult(number, says, [], [], []))
            test = report.nodeid.rpartition("::")[2]
            if outcome == "skipped":
                why = report.longrepr
                clause.skipped.append(why[2] if isinstance(why, tuple) else str(why))
            else:
                (clause.passed if outcome == "passed" else clause.failed).append(test)
        for suite_name, clauses in savers.items():
            self._write_report(terminalreporter, suite_name, list(clauses.values()))

    def _write_report(self, terminal: TerminalReporter, suite_name: str, clauses: list[ClauseResult]) -> None:
        terminal.section(f"promises of {suite_name}")
        for number in sorted({clause.number for clause in clauses}):
            terminal.write_line(f"P{number} {TITLES.get(number, '')}" if number else "Others", bold=True)
            for clause in clauses:
                if clause.number != number:
                    continue
                if clause.failed:
                    terminal.write_line(f"  BROKEN  {clause.says} ({', '.join(sorted(clause.failed))})", red=True)
                elif clause.passed:
                    terminal.write_line(f"  holds   {clause.says}")
                else:
                    why = clause.skipped[0].removeprefix("Skipped: ")
                    terminal.write_line(f"  skipped {clause.says} ({why})", yellow=True)
        broken = len([clause for clause in clauses if clause.failed])
        held = len([clause for clause in clauses if clause.passed and not clause.failed])
        left = len(clauses) - broken - held
        terminal.write_line(f"{held} clauses hold, {broken} are broken, {left} were skipped", bold=True)


def clause_reports(terminal: TerminalReporter) -> Iterator[tuple[str, pytest.TestReport, str, str, str]]:
    """Find the reports of clauses among all reports of the session.

    Args:
        terminal: pytest's reporter, which holds the reports by outcome.

    Yields:
        Outcome, report, name of the suite or saver, name of the clause, and docstring of the clause.
    """
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminal.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == PROMISE:
                    suite_name, clause, text = str(value).split("\n")
                    yield outcome, report, suite_name, clause, text
