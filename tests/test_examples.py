"""Every example runs, and so does every Python block of README: as a user would run them, in a process of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pregel_async.channels.laws import ChannelLaws

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"

SAYS = {
    "01_hello_graph.py": ["hello graph"],
    "02_streaming.py": [
        "    {'conclude': {'verdict': '3 words, a question'}}",
        "    {'text': 'What runs when?', 'findings': ['3 words', 'a question'], 'verdict': '3 words, a question'}",
        "    planned conclude",
        "    ended   conclude",
    ],
    "03_durable_thread.py": [
        "    charging the card (this must happen once)",
        "    failed: the warehouse does not answer",
        "    stored: ['charged'], next: ship, because of ConnectionError: the warehouse does not answer",
        "    result: ['charged', 'shipped']",
        "        ['charged'], then ship",
    ],
    "04_fan_out.py": ["primes: [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]", "their sum: 328"],
    "05_custom_channel.py": ["after reading 20: mean 16, mild", "after reading 6: mean 9, cold"],
    "08_messages.py": [
        "2 messages are forgotten, 4 are left:",
        "    user: hello again",
        "    assistant: You said 'hello again'.",
        "    user: bye",
        "    assistant: You said 'bye'.",
    ],
    "06_trio.py": [
        "    slow cleans up",
        "    stored: ['hello, trio'], next: slow",
        "    result: ['hello, trio', 'goodbye, trio']",
    ],
}
"""Lines that each example must print, in this order."""


def python(cwd: Path, *args: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python where nothing of this repository is in reach but its packages, and warnings are errors."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-W", "error", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        input=input,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done


def run(cwd: Path, *args: str) -> str:
    """The output of a program that has nothing to complain about."""
    done = python(cwd, *args)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("[0-9]*.py")))
def test_an_example_runs_and_says_what_it_should(name: str, tmp_path: Path) -> None:
    """Offline, from anywhere, without a warning, and without leaving anything behind."""
    printed = run(tmp_path, str(EXAMPLES / name)).splitlines()
    places = [printed.index(line) for line in SAYS[name]]
    assert places == sorted(places)
    if name == "03_durable_thread.py":
        assert printed.count("    charging the card (this must happen once)") == 1
    assert list(tmp_path.iterdir()) == []


def test_importing_an_example_runs_nothing(tmp_path: Path) -> None:
    """What it does is in `main`, guarded."""
    names = [f"examples.{path.stem}" for path in EXAMPLES.glob("[0-9]*.py")]
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)"
    assert run(tmp_path, "-c", code) == ""
    assert list(tmp_path.iterdir()) == []


def test_the_main_job_runs_by_itself(tmp_path: Path) -> None:
    """`python -m examples.code_audit`, on this repository's own sources; a second call begins anew."""
    args = ("-m", "examples.code_audit", str(ROOT / "pregel_async"), "--limit", "3")
    first = run(tmp_path, *args)
    assert run(tmp_path, *args) == first
    printed = first.splitlines()
    assert re.fullmatch(r"\d+ files, [\d,]+ lines, [\d,]+ functions", printed[0])
    assert printed[-1] == f"The report is in {tmp_path / 'code-audit.md'}"
    assert (tmp_path / "code-audit.md").read_text().startswith(f"# Code audit of `{ROOT / 'pregel_async'}`\n")


def test_the_main_job_runs_on_the_command_line(tmp_path: Path) -> None:
    """As README's first command runs it, but for the tree. (`tests/cli` looks at the rest of the command line.)"""
    command = ("run", "examples.code_audit.graph:graph", "--thread", "audit", "--db", "audit.db", "--input", "-")
    done = python(tmp_path, "-m", "pregel_async.cli", *command, input=json.dumps({"root": str(EXAMPLES)}))
    assert done.stdout.startswith(f"report: '{tmp_path / 'code-audit.md'}'")
    assert re.search(r"^superstep 2: audit_file, (\d+) of \1 tasks done", done.stderr, re.MULTILINE)
    assert (tmp_path / "code-audit.md").is_file()


class TestMean(ChannelLaws):
    """The channel of `05_custom_channel.py` keeps the laws of channels, as its docstring says that it can be tried."""

    folds = True
    commutes = True

    def make(self) -> Any:
        return import_module("examples.05_custom_channel").Mean()

    def updates(self) -> st.SearchStrategy[float]:
        return st.integers(-1000, 1000).map(float)  # whose sums are exact


# ---- README ----------------------------------------------------------------------------------------------------------


def blocks() -> list[tuple[int, str]]:
    """The Python blocks of README, each with the line where it begins."""
    if not README.is_file():
        return []
    text = README.read_text()
    return [
        (text.count("\n", 0, found.start()) + 1, found[1])
        for found in re.finditer(r"^```(?:python|py)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]


@pytest.mark.parametrize("block", [pytest.param(code, id=f"line {line}") for line, code in blocks()])
def test_a_block_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    """By itself, as it stands there, in an empty directory."""
    (tmp_path / "block.py").write_text(block)
    run(tmp_path, "block.py")
