"""`pregel-async runs`, and what `pregel-async threads` shows of the threads of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

SERVICE = "services:service"


@pytest.fixture
def executed(call: Any, started: Any) -> Callable[..., str]:
    """Accept a run, have a worker execute it to its end, and return its id."""
    workers: list[Any] = []

    def execute(*args: str, service: str = SERVICE) -> str:
        run = str(call("runs", "start", service, *args).out.strip())
        workers.append(started("worker", service))
        call("runs", "follow", service, run)
        workers[-1].kill()
        return run

    return execute


def test_a_run_is_accepted_once_for_a_key(call: Any) -> None:
    """Nothing is executed. The command prints the run's id, and with a key it may be repeated."""
    args = ("runs", "start", SERVICE, "greeting", "--input", '{"name": "Ada"}', "--key", "k", "--metadata", "n=1")
    first, second = call(*args, "-t", "t"), call(*args, "-t", "t")
    assert (first.code, first.out) == (0, second.out)
    assert first.err == "pending: graph greeting, thread t\n"
    shown = json.loads(call("runs", "show", SERVICE, first.out.strip(), "--json").out)
    assert (shown["status"], shown["thread_id"], shown["metadata"]) == ("pending", "t", {"n": 1})
    other = call("runs", "start", SERVICE, "greeting", "--key", "k")
    assert other.code == 1 and "IdempotencyConflictError" in other.err
    assert call("runs", "start", SERVICE, "greeting", "--input", "{").code == 2
    assert call("runs", "start", SERVICE, "missing").err.startswith("error: UnknownGraphError: ")


def test_runs_are_listed_and_counted(call: Any) -> None:
    """Newest first, in pages, by thread, graph, status and metadata."""
    ids = [
        call("runs", "start", SERVICE, "greeting", "--thread", thread, "--metadata", f"n={thread}").out.strip()
        for thread in "123"
    ]
    listed = call("runs", "list", SERVICE)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["run", *reversed(ids)]
    first = call("runs", "list", SERVICE, "--limit", "2", "--json")
    assert [run["run_id"] for run in json.loads(first.out)] == [ids[2], ids[1]]
    cursor = first.err.removeprefix("there are more: --after ").strip()
    second = call("runs", "list", SERVICE, "--after", cursor, "--json")
    assert ([run["run_id"] for run in json.loads(second.out)], second.err) == ([ids[0]], "")
    assert call("runs", "list", SERVICE, "--count").out == "3\n"
    assert call("runs", "list", SERVICE, "--count", "--filter", "n=2").out == "1\n"
    assert call("runs", "list", SERVICE, "--count", "--thread", "1").out == "1\n"
    assert call("runs", "list", SERVICE, "--count", "--graph", "asking").out == "0\n"
    assert call("runs", "list", SERVICE, "--count", "--status", "success", "--status", "error").out == "0\n"
    assert call("runs", "list", SERVICE, "--status", "lost").code == 2


def test_a_failed_run_shows_its_traceback_and_is_retried(shell: Any, call: Any, executed: Any) -> None:
    """The traceback has the code of the user's node, and no frames of the runtime."""
    run = executed("failing", "--thread", "t")
    shown = call("runs", "show", SERVICE, run)
    assert shown.code == 0
    error = shown.out.partition("error: ConnectionError: nobody is there\n")[2].splitlines()
    assert error[0] == "  Traceback (most recent call last):"
    assert [line for line in error if "File" in line] == [error[1]]
    assert 'flows.py", line' in error[1] and error[1].endswith("in fails")
    assert error[-2] == "  ConnectionError: nobody is there"
    assert error[-1].startswith("  in node 'fails', superstep 2")
    followed = call("runs", "follow", SERVICE, run)
    assert (followed.code, followed.err) == (1, f"run {run}: error: ConnectionError: nobody is there\n")

    shell.open()
    again = call("runs", "retry", SERVICE, run)
    assert again.code == 0 and again.out.strip() != run
    assert call("runs", "retry", SERVICE, again.out.strip()).code == 1  # it has not ended


def test_tracebacks_are_left_out_on_demand(call: Any, executed: Any) -> None:
    """`Worker(tracebacks=False)` stores the class and the text of a failure only."""
    run = executed("failing", service="services:silent")
    error = json.loads(call("runs", "show", SERVICE, run, "--json").out)["error"]
    assert error == {"type": "ConnectionError", "message": "nobody is there", "traceback": ""}


def test_the_inbox_of_threads(call: Any, executed: Any) -> None:
    """Threads are found by status and graph, the latest first, in the service's database or in the file itself."""
    executed("asking", "--thread", "a")
    executed("failing", "--thread", "f")
    for where in (("--service", SERVICE), ("--db", "runs.db")):
        waiting = call("threads", "list", *where, "--status", "interrupted")
        assert waiting.code == 0, waiting.err
        head, row = waiting.out.splitlines()
        assert head.split() == ["thread", "status", "graph", "updated", "notes"]
        assert row.split()[:3] == ["a", "interrupted", "asking"]
        assert "'who are you?'" in row
        found = call("threads", "list", *where, "--sort", "updated_at", "--limit", "1", "--json")
        [latest] = json.loads(found.out)
        assert (latest["thread_id"], latest["status"]) == ("f", "error")
        cursor = found.err.removeprefix("there are more: --after ").strip()
        rest = call("threads", "list", *where, "--sort", "updated_at", "--after", cursor, "--json")
        assert [each["thread_id"] for each in json.loads(rest.out)] == ["a"]
        assert call("threads", "list", *where, "--graph", "asking", "--count").out == "1\n"
        shown = json.loads(call("threads", "show", "f", *where, "--json").out)
        assert (shown["status"], shown["graph"], shown["error"]) == (
            "error",
            "failing",
            "ConnectionError: nobody is there",
        )
    assert "questions" in json.loads(call("threads", "show", "a", "--db", "runs.db", "--json").out)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("services", "'services' names no service: write MODULE:SERVICE"),
        ("services:nothing", "module 'services' has no 'nothing'; it has service, silent"),
        ("services:make_for", "services:make_for is a function with parameters: name a RunService"),
        ("services:make_none", "services:make_none returned a NoneType: name a RunService"),
        ("flows:greeting", "flows:greeting is a StateGraph: name a RunService"),
    ],
)
@pytest.mark.parametrize("command", [("runs", "list"), ("worker",)])
def test_what_names_no_service_is_a_usage_error(
    shell: Any, call: Any, command: tuple[str, ...], target: str, said: str
) -> None:
    ended = call(*command, target)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {said}")
    assert not (shell.cwd / "runs.db").exists()


def test_a_function_makes_a_service(call: Any) -> None:
    assert call("runs", "list", "services:make", "--count").out == "0\n"


def test_an_unknown_run_fails(call: Any) -> None:
    for command in ("show", "cancel", "retry", "follow"):
        ended = call("runs", command, SERVICE, "missing")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("error: RunNotFoundError: ")


def test_nothing_of_a_run_reaches_the_terminal_raw(call: Any, executed: Any) -> None:
    """Ids, errors and tracebacks are escaped; JSON stays JSON."""
    nasty = "t\x1b[31m\nforged line"
    run = executed("nasty", "--thread", nasty, "--input", '{"fails": true}')
    again = str(call("runs", "start", SERVICE, "nasty", "--thread", nasty, "--resume", '"yes"').out.strip())
    commands = [
        ("runs", "list", SERVICE),
        ("runs", "show", SERVICE, run),
        ("threads", "list", "--db", "runs.db", "--status", "busy"),
        ("threads", "show", nasty, "--db", "runs.db"),
        ("threads", "show", nasty, "--db", "runs.db", "--values"),
    ]
    for command in commands:
        ended = call(*command)
        assert ended.code == 0, ended.err
        lines = (ended.out + ended.err).split("\n")
        assert [line for line in lines if not line.isprintable() or line.startswith("forged")] == []
    assert json.loads(call("runs", "show", SERVICE, again, "--json").out)["thread_id"] == nasty


def test_only_the_command_worker_executes_runs(call: Any) -> None:
    """The other commands open a service without its worker, and leave the service as it is."""
    from pregel_async.cli.database import run_with_service
    from pregel_async.cli.target import load_service
    from pregel_async.service import RunService

    async def worker(opened: RunService) -> object:
        return opened.worker

    given = load_service(SERVICE)
    assert run_with_service(SERVICE, worker) is None
    assert given.worker is not None and given.worker.slots == 3
