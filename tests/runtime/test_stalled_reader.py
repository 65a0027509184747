"""P12, measured: a reader that stalls never makes the process grow, for every writer and policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "stalled_reader.py"
LIMIT = 32 * 2**20
CAPACITY = 64
MANY = 100_000


def stalled(backend: str, writer: str, policy: str, count: int = MANY) -> dict[str, Any]:
    """Return the outcome of a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), backend, writer, policy, str(count)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PROGRAM.parents[2],
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    "writer", ["plain", "awaits the writer", "awaits something else", "task", "graph inside", "message"]
)
def test_block_stops_the_run(writer: str, backend: str) -> None:
    """A reader that stalls after 10 chunks of 100 KB: `block` stops the run there for every writer: a sync node in a
    thread, an async node that awaits the writer or something else, a task, a subgraph; within 32 MB."""
    found = stalled(backend, writer, "block")
    assert found["unread"] == CAPACITY
    assert 10 + CAPACITY <= found["written"] <= 10 + CAPACITY + 1
    assert found["grown"] < LIMIT


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_loop_without_an_await_is_refused(backend: str) -> None:
    """P12: a loop without an await cannot be held: it gets StreamFullError before 32 MB."""
    found = stalled(backend, "never waits", "block")
    assert found["failure"] == "StreamFullError"
    assert found["written"] < 200
    assert found["grown"] < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["drop_oldest", "coalesce"])
@pytest.mark.parametrize(
    ("backend", "writer"),
    [
        ("asyncio", "plain"),
        ("asyncio", "awaits the writer"),
        ("asyncio", "awaits something else"),
        ("asyncio", "never waits"),
        ("asyncio", "task"),
        ("asyncio", "graph inside"),
        ("asyncio", "message"),
        ("trio", "awaits something else"),
    ],
)
def test_the_other_policies_finish(backend: str, writer: str, policy: str) -> None:
    """`drop_oldest` and `coalesce` finish all 100 000 chunks, within 32 MB above the start. (For most writers a tenth
    of them, 1 GB, shows the same.)"""
    count = MANY if (backend, writer) == ("asyncio", "awaits something else") else MANY // 10
    found = stalled(backend, writer, policy, count)
    assert found["written"] == count
    assert found["failure"] is None
    assert found["unread"] <= (CAPACITY if policy == "drop_oldest" else 1)
    assert found["grown"] < LIMIT
