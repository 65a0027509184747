"""mypy and pyright, both strict, check tests/typing/cases as users' code.

Each wrong line there has an ignore comment for each checker, and both report unneeded comments: so a line that is
accepted by mistake fails like one that is refused by mistake.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def checked(*command: str) -> str:
    """Return a checker's complaints."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, cwd=ROOT)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed here")
def test_mypy() -> None:
    """Typed for mypy --strict: schemas in and out, nodes, protocol, channels; wrong uses are
    refused."""
    assert checked("mypy", "--strict", "--config-file=", "--cache-dir=.mypy_cache", str(HERE / "cases")) == ""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="pyright is not installed here")
def test_pyright() -> None:
    """The same for pyright strict."""
    # With this interpreter's packages, as users have them: of a class whose bases are unresolved, everything is unknown.
    assert checked("pyright", "--pythonpath", sys.executable, "--project", str(HERE / "pyrightconfig.json")) == ""
