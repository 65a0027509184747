"""`pregel-async worker`: processes that execute the runs of a service, that are stopped, and that are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.cli_shell import DEADLINE, ROOT, wait_for
from tests.helpers.code_blocks import blocks

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX signals")

Start = Callable[..., "subprocess.Popen[str]"]

SERVICE = "services:service"
WORKER = ("worker", SERVICE)


@pytest.fixture
def accepted(call: Any) -> Callable[..., str]:
    """Accept a run, and return its id."""

    def start(*args: str) -> str:
        ended = call("runs", "start", SERVICE, *args)
        assert ended.code == 0, ended.err
        return str(ended.out.strip())

    return start


@pytest.fixture
def status(call: Any) -> Callable[[str], tuple[str, int]]:
    """Return the status of a run, and how many workers have taken it."""

    def read(run: str) -> tuple[str, int]:
        shown = json.loads(call("runs", "show", SERVICE, run, "--json").out)
        return shown["status"], shown["attempt"]

    return read


def test_a_worker_takes_over_from_one_that_was_killed(
    shell: Any, call: Any, started: Start, accepted: Any, status: Any
) -> None:
    """P16: after SIGKILL, another worker resumes the run. What was recorded does not run again."""
    run = accepted("waiting", "--thread", "t")
    assert status(run) == ("pending", 0)
    first = started(*WORKER)
    wait_for(first.stdout, "item 4 waits")
    assert status(run) == ("running", 1)
    first.kill()
    first.wait()
    shell.open()
    second = started(*WORKER)
    wait_for(second.stderr, "worker of services:service: 3 slots, grace 30 s")
    followed = call("runs", "follow", SERVICE, run, "--mode", "values")
    assert (followed.code, followed.err) == (0, f"run {run}: success\n")
    assert json.loads(followed.out.splitlines()[-1])["data"] == {"done": [0, 1, 2, 3, 4]}
    assert status(run) == ("success", 2)
    assert shell.ran == ["first", *(f"work {item}" for item in range(5))]


def test_a_failed_run_is_logged(started: Start, accepted: Any) -> None:
    """P9: the worker's log says which run has failed, and why."""
    run = accepted("failing", "--thread", "t")
    process = started(*WORKER)
    wait_for(process.stderr, f"run {run} of thread 't' has failed: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_drains(
    shell: Any, call: Any, started: Start, accepted: Any, status: Any, number: int
) -> None:
    """The worker waits for the barrier, gives the run back, takes no other one, and exits with 0."""
    run = accepted("waiting_first")
    process = started(*WORKER, "--slots", "1")
    wait_for(process.stdout, "waiting for a file")
    process.send_signal(number)
    wait_for(process.stderr, "draining: runs stop at their next barrier")
    assert process.poll() is None
    other = accepted("greeting")
    shell.open()
    _, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "drained\n")
    assert shell.ran == ["waited"]
    assert status(run) == ("pending", 1)
    assert status(other) == ("pending", 0)
    started(*WORKER)
    assert call("runs", "follow", SERVICE, run).code == 0
    assert shell.ran.count("waited") == 1


def test_runs_that_reach_no_barrier_are_given_back_when_the_grace_is_over(
    shell: Any, started: Start, accepted: Any, status: Any
) -> None:
    """`--grace` limits how long a shutdown takes; the worker has drained then, too."""
    run = accepted("waiting")
    process = started(*WORKER, "--grace", "0")
    wait_for(process.stdout, "item 4 waits")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    assert err.splitlines()[-1] == "drained"
    assert status(run) == ("pending", 1)


def test_the_second_signal_cancels(shell: Any, started: Start, accepted: Any, status: Any) -> None:
    """Tasks are cancelled without waiting for the grace, the run is given back, and the exit code is the signal's."""
    run = accepted("waiting")
    process = started(*WORKER, "--grace", "1000000")
    wait_for(process.stdout, "item 4 waits")
    process.send_signal(signal.SIGTERM)
    wait_for(process.stderr, "draining")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert err.splitlines()[-1] == "cancelled: the runs were given back"
    assert status(run) == ("pending", 1)


def test_the_third_signal_kills_even_a_loop_that_is_blocked(started: Start, accepted: Any, status: Any) -> None:
    """A node that blocks the event loop cannot keep the process alive."""
    run = accepted("blocking")
    process = started(*WORKER)
    wait_for(process.stdout, "blocking")
    process.send_signal(signal.SIGTERM)
    wait_for(process.stderr, "draining")
    process.send_signal(signal.SIGTERM)
    wait_for(process.stderr, "cancelling")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGTERM
    assert status(run) == ("running", 1)


def test_a_run_is_cancelled_from_another_process(
    shell: Any, call: Any, started: Start, accepted: Any, status: Any
) -> None:
    """`runs cancel` returns when the worker of another process has ended the run's tasks."""
    run = accepted("waiting", "--thread", "t")
    process = started(*WORKER)
    wait_for(process.stdout, "item 4 waits")
    ended = call("runs", "cancel", SERVICE, run, "--reason", "a test", "--json")
    assert ended.code == 0, ended.err
    shown = json.loads(ended.out)
    assert (shown["status"], shown["cancel_reason"]) == ("cancelled", "a test")
    again = call("runs", "cancel", SERVICE, run)
    assert (again.code, again.out) == (1, "")
    assert "RunOverError" in again.err
    followed = call("runs", "follow", SERVICE, run)
    assert (followed.code, followed.err) == (1, f"run {run}: cancelled\n")
    assert process.poll() is None


def test_a_run_is_followed_while_it_is_executed(shell: Any, started: Start, accepted: Any) -> None:
    """`runs follow` prints each part as a line of JSON when it is there, and resumes after a cursor."""
    run = accepted("waiting", "--mode", "updates", "--mode", "values")
    worker = started(*WORKER)
    wait_for(worker.stdout, "item 4 waits")
    follower = started("runs", "follow", SERVICE, run, "--mode", "updates")
    out = wait_for(follower.stdout, '"first"')  # the run waits still
    assert follower.poll() is None
    shell.open()
    worker.kill()
    started(*WORKER)
    assert follower.stdout is not None and follower.stderr is not None
    out += follower.stdout.read()
    assert (follower.wait(DEADLINE), follower.stderr.read()) == (0, f"run {run}: success\n")
    parts = [json.loads(line) for line in out.splitlines()]
    done = [part["data"]["work"]["done"] for part in parts if "work" in part["data"]]
    assert sorted(done) == [[0], [1], [2], [3], [4]]
    again = shell.run("runs", "follow", SERVICE, run, "--mode", "updates", "--after", parts[-2]["cursor"])
    assert [json.loads(line) for line in again.out.splitlines()] == [parts[-1]]


def test_the_service_of_the_docs(shell: Any, started: Start) -> None:
    """The commands of the page about the command line work with its program."""
    [(_, program)] = blocks(ROOT / "docs" / "command_line.md")
    (shell.cwd / "app.py").write_text(program)
    started("worker", "app:service", "--slots", "20", "--grace", "30")
    run = shell.run("runs", "start", "app:service", "agent", "--input", '{"name": "Ada"}').out.strip()
    followed = shell.run("runs", "follow", "app:service", run, "--mode", "values")
    assert followed.code == 0, followed.err
    assert json.loads(followed.out.splitlines()[-1])["data"]["greeting"] == "hello, Ada"
