"""The pytest plugin that tests a saver without a test file, in pytest runs of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STORE = """
from contextlib import nullcontext

from checkpoint_savers import InMemorySaver, SqliteSaver

KEPT = {}

class NeverRenews(InMemorySaver):
    async def renew(self, claim, *, expires_at):
        self._held(claim)

def broken(folder):
    return nullcontext(KEPT.setdefault(folder, NeverRenews()))

def sqlite(folder):
    return SqliteSaver(folder / "threads.db", synchronous="NORMAL")

class Stores:
    sqlite = staticmethod(sqlite)

nothing = 7
"""

TEST = """
import sys

def test_nothing():
    assert "checkpoint_savers.conformance" not in sys.modules
"""

CLASS = """
from store import sqlite
from functools import partial
import pytest
from checkpoint_savers.conformance import SaverConformance

class TestMine(SaverConformance):
    @pytest.fixture
    def open_saver(self, tmp_path):
        return partial(sqlite, tmp_path)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store.py").write_text(STORE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_other.py").write_text(TEST)
    return tmp_path


def pytest_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest as a user would, in a process of its own."""
    command = [sys.executable, "-c", "import sys, pytest; sys.exit(pytest.main())", "-W", "error"]
    command += ["-p", "checkpoint_savers.pytest_plugin", "-p", "no:cacheprovider", *args]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_a_saver_is_tested_without_a_test_file(folder: Path) -> None:
    """The plugin runs all clauses on the saver that the function opens, and no other tests; the report lists the
    promises by number."""
    ran = pytest_in(folder, "--saver", "store:sqlite", "-k", "chain or renewing or killed", "--saver-crashes", "2")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    assert "saver: store:sqlite" in lines
    assert any("promises of store:sqlite" in line for line in lines)
    assert "P6 One writer per thread" in lines and "P10 Storage grows with new data" in lines
    assert "  holds   renewing: renew, record and commit each move the expiry." in lines
    assert any(line.startswith("  holds   killed in the midst: a process that was killed anywhere") for line in lines)
    assert "test_other" not in ran.stdout
    assert any(line.endswith("clauses hold, 0 are broken, 0 were skipped") for line in lines)


def test_a_broken_promise_is_reported(folder: Path) -> None:
    """The report names the tests that failed; what a saver lacks is skipped, with the reason."""
    lacks = ("--saver-lacks", "erase=the log is kept", "--saver-lacks", "test_a_lease=not needed")
    ran = pytest_in(folder, "--saver", "store:broken", "-k", "renewing or erases or test_a_lease", *lacks, "-n", "2")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    broken = "  BROKEN  renewing: renew, record and commit each move the expiry. (test_renewing[asyncio], "
    assert broken in ran.stdout, ran.stdout
    assert "  skipped only the holder erases: an owner that was taken over" in ran.stdout
    assert "deletes nothing, and the run that holds the lease continues. (erase: the log is kept)" in ran.stdout
    assert "(test_a_lease: not needed)" in ran.stdout


def test_together_with_other_tests(folder: Path) -> None:
    """Test files that are named run, too; with `--promises` the report also covers a test class."""
    (folder / "test_mine.py").write_text(CLASS)
    ran = pytest_in(folder, "test_mine.py", "--saver", "store:Stores.sqlite", "-k", "renewing")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "promises of store:Stores.sqlite" in ran.stdout and "promises of TestMine" in ran.stdout
    ran = pytest_in(folder, "test_mine.py", "--promises", "-k", "renewing")
    assert "promises of TestMine" in ran.stdout and "1 clauses hold" in ran.stdout, ran.stdout
    assert "promises of" not in pytest_in(folder, "test_mine.py", "-k", "renewing").stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--saver", "store"], "--saver takes package.module:function"),
        (["--saver", "stare:sqlite"], "No module named 'stare'"),
        (["--saver", "store:postgres"], "has no attribute 'postgres'"),
        (["--saver", "store:nothing"], "that is 7, and not a function"),
        (["--saver", "store:sqlite", "--saver-lacks", "erase"], "say why"),
        (["--saver", "store:sqlite", "--saver-lacks", "eraze=x"], "the verbs are rewrite, load, erase"),
        (["--saver", "store:sqlite", "--saver-lacks", "test_eraze=x"], "there is no such clause"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_mistakes_are_reported(folder: Path, args: list[str], says: str) -> None:
    """A wrong argument is reported at once, in one line."""
    ran = pytest_in(folder, *args)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert says in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


def test_without_its_options_the_suite_is_not_loaded(folder: Path) -> None:
    """The suite is imported only when an option asks for it."""
    ran = pytest_in(folder)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
