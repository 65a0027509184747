"""Ctrl-C, SIGTERM and the terminal: how a run stops, what it stores, and what is shown meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.cli_shell import DEADLINE, Terminal, wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither POSIX signals nor terminals")

Start = Callable[..., "subprocess.Popen[str]"]

STEPS = ["first", *(f"work {item}" for item in range(5))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_in_order_and_it_goes_on(shell: Any, call: Any, started: Start, number: int) -> None:
    """A signal gives exit code 128 + signal and prints the command that resumes. Recorded work does not run again."""
    process = started("run", "flows:waiting", "--thread", "t", "--no-figures")
    wait_for(process.stderr, "4 of 5 tasks done")
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + number
    assert err.splitlines() == [
        "stopping as soon as the tasks that have begun let go; another Ctrl-C ends it at once",
        f"stopped by {signal.Signals(number).name}",
        "thread t is kept as it was after superstep 1; 4 of the 5 tasks of the next are recorded",
        "to go on: python -m pregel_async.cli run flows:waiting --thread t --db pregel.db",
    ]
    assert out == "item 4 waits\n"
    assert shell.ran == STEPS[:-1]
    assert json.loads(call("history", "--thread", "t", "--json").out)[0]["recorded"] == 4

    shell.open()
    ended = call("run", "flows:waiting", "--thread", "t", "--output-json")
    assert json.loads(ended.out) == {"done": [0, 1, 2, 3, 4]}
    assert "superstep 2: work, 5 of 5 tasks done, 4 of them earlier" in ended.err
    assert shell.ran == STEPS


def test_a_worker_thread_is_waited_for(shell: Any, call: Any, started: Start) -> None:
    """No work of the run outlives it, and the result of the worker thread is recorded."""
    os.mkfifo(shell.cwd / "pipe")
    process = started("run", "flows:reading", "--thread", "t")
    wait_for(process.stdout, "reading")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "stopping as soon as")
    assert process.poll() is None
    (shell.cwd / "pipe").write_text("")
    process.communicate(timeout=DEADLINE)
    assert process.returncode in (0, 130)  # the node was the last: it may have ended the run
    assert shell.ran == ["read"]


def test_the_second_signal_kills_even_a_loop_that_is_blocked(shell: Any, started: Start) -> None:
    """The thread is free at once, since its process has ended."""
    process = started("run", "flows:blocking", "--thread", "t")
    wait_for(process.stdout, "blocking")
    process.send_signal(signal.SIGINT)
    wait_for(process.stderr, "stopping as soon as")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGINT
    again = started("run", "flows:blocking", "--thread", "t")
    wait_for(again.stdout, "blocking")
    again.kill()


def _as_left(seen: str) -> list[str]:
    """Return the lines that stay on the screen, without overwritten lines and control sequences."""
    kept = [line.rpartition("\x1b[2K")[2] for line in seen.replace("\r\n", "\n").split("\n")]
    plain = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in kept]
    return [line for line in plain if line]


def test_progress_is_live_on_a_terminal_and_leaves_nothing(shell: Any, terminal: Callable[..., Terminal]) -> None:
    """A terminal shows the superstep, finished and planned tasks, running nodes and the time; afterwards the cursor is
    visible."""
    screen = terminal("run", "flows:waiting", "--thread", "t", "--no-figures")
    screen.read_until("4 of 5 tasks")
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.seen)
    assert re.search(r"superstep 2 .* 4 of 5 tasks +work +\d+\.\d s", drawn), drawn
    os.write(screen.master, b"\x03")
    assert screen.read_all() == 130
    assert screen.seen.rindex("\x1b[?25h") > screen.seen.rindex("\x1b[?25l")
    left = [line.removeprefix("^C") for line in _as_left(screen.seen) if not line.startswith("superstep")]
    assert left == [
        "thread t in pregel.db: new",
        "item 4 waits",
        "stopping as soon as the tasks that have begun let go; another Ctrl-C ends it at once",
        "stopped by SIGINT",
        "thread t is kept as it was after superstep 1; 4 of the 5 tasks of the next are recorded",
        "to go on: python -m pregel_async.cli run flows:waiting --thread t --db pregel.db",
    ]

    shell.open()
    again = terminal("run", "flows:waiting", "--thread", "t")
    assert again.read_all() == 0
    assert "done: " in again.seen
    assert shell.ran == STEPS


def test_names_are_drawn_as_they_are(terminal: Callable[..., Terminal]) -> None:
    """Markup in names is shown as plain text."""
    screen = terminal("run", "flows:odd", "--thread", "t")
    screen.read_until("[/red] smile")
    os.write(screen.master, b"\x03")
    assert screen.read_all() == 130
    listed = terminal("history", "flows:odd", "--thread", "t")
    assert listed.read_all() == 0
    assert "[/red] smile" in listed.seen


def test_a_dumb_terminal_gets_lines(shell: Any, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("run", "flows:greeting", TERM="dumb")
    assert screen.read_all() == 0
    assert "superstep 1: hello, 1 task done" in screen.seen
    assert "\x1b" not in screen.seen


def test_history_is_a_table_on_a_terminal(call: Any, terminal: Callable[..., Terminal]) -> None:
    call("run", "flows:failing", "--thread", "t")
    screen = terminal("history", "flows:failing", "--thread", "t")
    assert screen.read_all() == 0
    assert "\x1b[1m" in screen.seen  # a head in bold
    assert "ConnectionError" in screen.seen
