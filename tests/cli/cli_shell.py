"""The command line as users run it: a process with piped or terminal streams, and a working directory."""

from __future__ import annotations

import fcntl
import os
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent / "project"
ROOT = Path(__file__).parents[2]
DEADLINE = 60
"""Seconds after which a process that hangs is killed, and the test fails."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str

    @property
    def again(self) -> list[str]:
        """Return the arguments of the command that the output suggests for resuming."""
        found = re.search(r"^to go on: (?:python -m pregel_async\.cli|pregel-async) (.*)$", self.err, re.MULTILINE)
        assert found is not None, self.err
        return shlex.split(found[1])


class Shell:
    """Runs the command line in its own working directory."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.db = cwd / "pregel.db"
        inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR")}
        path = os.pathsep.join([str(ROOT), str(PROJECT)])
        self.env = {**inherited, "PYTHONPATH": path, "TERM": "xterm", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-W", "error", "-m", "pregel_async.cli", *args]

    def run(self, *args: str, input: str | None = None, **env: str) -> Ended:
        """Run a command to its end."""
        done = subprocess.run(
            self.command(*args),
            cwd=self.cwd,
            env={**self.env, **env},
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command with both streams piped."""
        return subprocess.Popen(
            self.command(*args),
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    @property
    def ran(self) -> list[str]:
        """Return the lines that nodes wrote about their runs, in order."""
        file = self.cwd / "ran.txt"
        return file.read_text().splitlines() if file.exists() else []

    def open(self) -> None:
        """Let the nodes continue that wait for it."""
        (self.cwd / "open").touch()


def wait_for(stream: Any, text: str) -> str:
    """Read lines until one contains the text; return all that was read."""
    read = ""
    for line in stream:
        read += line
        if text in line:
            return read
    raise AssertionError(f"the process ended without {text!r}: {read!r}")


class Terminal:
    """A process on a pseudo-terminal that is its controlling terminal, so that a typed Ctrl-C is a signal."""

    def __init__(self, shell: Shell, *args: str, **env: str) -> None:
        self.master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
        take = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", take, *shell.command(*args)],
            cwd=shell.cwd,
            env={**{name: value for name, value in shell.env.items() if name != "COLUMNS"}, **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def read_until(self, text: str) -> None:
        """Read the drawn text until it contains the text."""
        end = time.monotonic() + DEADLINE
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            assert self._read(1.0) or self.process.poll() is None, f"ended without {text!r}: {self.seen!r}"

    def read_all(self) -> int:
        """Read to the end, and return the exit code."""
        end = time.monotonic() + DEADLINE
        while self._read(1.0) or self.process.poll() is None:
            assert time.monotonic() < end, self.seen
        return self.process.wait()

    def _read(self, patience: float) -> bool:
        if not select.select([self.master], [], [], patience)[0]:
            return False
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux says so when the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
