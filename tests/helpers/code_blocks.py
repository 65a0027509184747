"""Run programs and blocks of code as users do: in a process of their own, with warnings as errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

INCLUDE = re.compile(r"^# (examples/[\w/]+\.py)\n```", re.MULTILINE)
"""The line of a block in place of which the site shows that file: `docs/site_hooks.py`."""


def python(cwd: Path, *args: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with access to the packages of this repository only, with warnings as errors."""
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


UNKNOWN_CHILD = re.compile(r"^Unknown child process pid \d+, will report returncode 255\n", re.MULTILINE)
"""A harmless warning of asyncio in Python 3.11. It is logged now and then when anyio kills a worker process at the end
of its event loop: if the process has just ended, `Popen.kill` may get its exit status before asyncio's thread does."""


def run(cwd: Path, *args: str) -> str:
    """Return the output of a program, which must write nothing to stderr but `UNKNOWN_CHILD`."""
    done = python(cwd, *args)
    assert UNKNOWN_CHILD.sub("", done.stderr) == ""
    return done.stdout


def blocks(path: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a text, each with its first line number.

    A block that includes a program of examples/ is left out: that program is run and checked by itself.
    """
    text = path.read_text("utf-8")
    return [
        (text.count("\n", 0, found.start()) + 1, found[1])
        for found in re.finditer(r"^```(?:python|py)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if not INCLUDE.match(text, found.start(1))
    ]


def run_block(block: str, folder: Path) -> None:
    (folder / "block.py").write_text(block, "utf-8")
    run(folder, "block.py")
