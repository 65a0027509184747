"""Real processes on one database, stopped and killed at random (P3, P4, P6).

`PREGEL_POSTGRES_BLOWS` is the number of pauses (SIGSTOP) and kills (SIGKILL) in each test, `PREGEL_SEED` the seed that
chooses them.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from checkpoint_savers import PostgresSaver
from checkpoint_savers.conformance.savers.suite import cid, commit, event, record, row, take
from checkpoint_savers.records import Header
from tests.helpers.postgres_tools import ENV, conninfo, made_schema, unsynced

BLOWS = int(os.environ.get("PREGEL_POSTGRES_BLOWS", "8"))
SEED = int(os.environ.get("PREGEL_SEED", "0"))
CHILD = str(Path(__file__).with_name("postgres_child.py"))


@pytest.fixture
def schema() -> Iterator[str]:
    with made_schema() as schema:
        yield schema


class Child:
    """A process that writes."""

    def __init__(self, schema: str, name: str, log: Path, threads: int) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", CHILD, conninfo(), schema, name, str(log), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENV,
        )

    def wait_for_commits(self, number: int) -> None:
        """Return when the process has reported so many more commits."""
        assert self.process.stdout is not None
        while number > 0:
            written = os.read(self.process.stdout.fileno(), number)
            assert written, self.fails()
            number -= len(written)

    def drain(self) -> None:
        """Read what the process has reported, so that it never blocks on a full pipe."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0] and os.read(self.process.stdout.fileno(), 65536):
            pass

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def fails(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 8])
def test_stopped_and_killed(processes: int, schema: str, tmp_path: Path) -> None:
    """P3, P4, P6: processes write four threads, and one after the other is stopped for longer than its leases last,
    or killed and replaced. Each thread is one chain of all stored checkpoints, under epochs that never decrease, and
    contains every acknowledged commit."""
    rng = random.Random(f"{SEED} {processes}")
    log, threads, killed = tmp_path / "log", 4, 0
    children = [Child(schema, f"p{number}", log, threads) for number in range(processes)]
    try:
        for child in children:
            child.wait_for_commits(1)
        for blow in range(BLOWS):
            for child in children:
                child.drain()
            victim = rng.randrange(processes)
            children[victim].wait_for_commits(rng.randint(1, 8))
            time.sleep(rng.random() ** 3 * 0.01)  # between a process's reports, too
            if rng.random() < 0.6:
                children[victim].send(signal.SIGSTOP)
                time.sleep(rng.uniform(0.0, 0.4))  # the others continue meanwhile, and take its threads over
                children[victim].send(signal.SIGCONT)
            else:
                killed += 1
                children[victim].send(signal.SIGKILL)
                children[victim].process.communicate()
                children[victim] = Child(schema, f"p{victim}+{blow}", log, threads)
        for child in children:
            child.wait_for_commits(1)
        for child in children:
            _, error = child.process.communicate(timeout=60)
            assert child.process.returncode == 0, error.decode()
    finally:
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.communicate()
    acknowledged = [line.split("\t") for line in log.read_text().splitlines()]
    found = anyio.run(all_headers, schema, threads)
    stored = {(header.thread_id, str(header.checkpoint_id)) for headers in found for header in headers}
    assert {(thread, checkpoint) for thread, checkpoint in acknowledged} <= stored
    assert len({tuple(line) for line in acknowledged}) == len(acknowledged)
    # Stored but not reported: at most one commit of each of a process's three tasks, for each process that was killed.
    assert len(stored) <= len(acknowledged) + 3 * killed
    for headers in found:
        check_chain(headers)


async def all_headers(schema: str, threads: int) -> list[tuple[Header, ...]]:
    """The checkpoint headers of each thread, newest first; each thread's head is the newest."""
    async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
        found: list[tuple[Header, ...]] = []
        for number in range(threads):
            headers = await saver.scan(f"t{number}", None, limit=1_000_000)
            chain = await saver.read(f"t{number}")
            if headers:
                assert chain is not None and chain.head == headers[0].checkpoint_id
                found.append(headers)
        return found


def check_chain(headers: tuple[Header, ...]) -> None:
    """Check that every checkpoint is the only child of the one before it, one step later, under an epoch that is not
    smaller."""
    for newer, older in zip(headers, headers[1:], strict=False):
        assert newer.parent_id == older.checkpoint_id
        assert newer.step == older.step + 1
        assert newer.metadata["epoch"] >= older.metadata["epoch"]
    assert headers[-1].parent_id is None and headers[-1].step == 1


KILLED = """if True:
    import anyio, sys
    from checkpoint_savers import PostgresSaver
    from checkpoint_savers.conformance.savers.suite import commit, event, record, row, take
    from checkpoint_savers.postgres.writing import WriteStatements

    whole, dies = WriteStatements.store, []

    async def halfway(self, cursor, writes):
        if not dies:
            return await whole(self, cursor, writes)
        await cursor.execute("BEGIN")
        await whole(self, cursor, writes)
        print("all of it is written, and not committed", flush=True)
        sys.stdin.read()

    WriteStatements.store = halfway

    async def main():
        async with PostgresSaver.from_conn_string(sys.argv[1], schema=sys.argv[2]) as saver:
            claim = await take(saver, run="run-killed")
            await saver.commit(claim, commit(row(1), records=[record(1, "a")], events=[event(1)]))
            dies.append(True)
            await saver.commit(claim, commit(row(2, 1), head=1, records=[record(2, "b")], clears=[record(1, "a")]))

    anyio.run(main)
"""


@pytest.mark.anyio
async def test_killed_before_the_commit(schema: str) -> None:
    """P3, P4, P6: nothing of the interrupted superstep is stored, everything before it is, and the next run starts
    as soon as the server has noticed that the client is gone."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, conninfo(), schema], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENV
    ) as process:
        assert process.stdout is not None
        assert b"not committed" in process.stdout.readline()
        async with PostgresSaver.from_conn_string(unsynced(), schema=schema, busy_timeout=30) as saver:
            chain = await saver.read("t")
            assert chain is not None and chain.head == cid(1)
            process.send_signal(signal.SIGKILL)
            process.wait()
            lease = await take(saver)
            assert (lease.epoch, lease.newest) == (2, cid(1))
            chain = await saver.read("t")
            assert chain is not None and chain.head == cid(1) and chain.records == (record(1, "a"),)
            assert await saver.events("t") == (event(1),)
            await saver.commit(lease, commit(row(2, 1), head=1))
