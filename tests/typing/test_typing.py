"""mypy and pyright, both strict, check tests/typing/cases and the programs of README and docs/ as users' code.

Each wrong line of a case has an ignore comment for each checker, and both report unneeded comments: so a line that is
accepted by mistake fails like one that is refused by mistake.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.code_blocks import ROOT, blocks

CASES = Path(__file__).parent / "cases"
PYRIGHT = {
    "include": ["programs", str(CASES)],
    "extraPaths": [str(ROOT)],
    "pythonVersion": "3.11",
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": True,
    "reportUnusedExpression": False,
    "reportMissingTypeStubs": False,
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs of README and docs/."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for text in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = "_".join(text.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        for line, program in blocks(text):
            (folder / f"{name}_{line}.py").write_text(program, "utf-8")
    assert len(list(folder.iterdir())) >= 60
    return folder


def checked(*command: str) -> str:
    """Return a checker's complaints."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed here")
def test_mypy(programs: Path) -> None:
    """Typed for mypy --strict: schemas in and out, nodes, protocol, channels; wrong uses are
    refused. Types are inferred for programs as users write them."""
    options = ("--strict", "--config-file=", "--cache-dir=.mypy_cache")
    assert checked("mypy", *options, str(CASES), *map(str, programs.iterdir())) == ""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed here")
def test_pyright(programs: Path) -> None:
    """The same for pyright strict."""
    config = programs.parent / "pyrightconfig.json"
    config.write_text(json.dumps(PYRIGHT), "utf-8")
    # With this interpreter's packages, as users have them: of a class whose bases are unresolved, everything is unknown.
    assert checked("pyright", "--pythonpath", sys.executable, "--project", str(config)) == ""
