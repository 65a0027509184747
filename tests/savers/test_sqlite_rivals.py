"""Several processes that write one file, stopped and killed at random moments (P3, P4, P6).

`PREGEL_KILLS` is the number of disturbances (20 by default, as in tests/durability/test_kills.py), `PREGEL_SEED` the
seed of the moments.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from checkpoint_savers import SqliteSaver
from checkpoint_savers.conformance.savers.suite import cid
from checkpoint_savers.sqlite import worker
from tests.savers.sqlite_rival import SHARED, SHORT, numbered
from tests.savers.sqlite_tools import ENV

KILLS = int(os.environ.get("PREGEL_KILLS", "20"))
SEED = os.environ.get("PREGEL_SEED", "0")

RIVAL = Path(__file__).with_name("sqlite_rival.py")

PATIENCE = 0.3
"""Seconds without a superstep after which a stopped process continues, as it may hold the lock."""


class StoredWrite(NamedTuple):
    """A superstep that was acknowledged to a process."""

    thread: str
    number: int
    epoch: int
    mark: str


class Rival:
    """A process, and what it has printed."""

    def __init__(self, path: Path, name: str, seed: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(RIVAL), str(path), name, seed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self.output_bytes = b""
        self.ended = False

    def read(self) -> None:
        """Read the available output; all of the rest after a kill."""
        found = self.output.read()
        self.ended = found == b""
        self.output_bytes += found or b""

    @property
    def acknowledged(self) -> list[StoredWrite]:
        """The complete lines of output: a kill may have cut the last one."""
        lines = self.output_bytes.decode().split("\n")[:-1]
        fields = [line.split("\t") for line in lines if line != "ready"]
        return [StoredWrite(thread, int(number), int(epoch), mark) for thread, number, epoch, mark in fields]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.wait()
        os.set_blocking(self.output.fileno(), True)
        self.read()
        assert self.process.stderr is not None
        errors = self.process.stderr.read().decode()
        assert errors == "", errors
        self.process.stderr.close()
        self.output.close()


def disturb(path: Path, count: int, disturbances: int) -> list[StoredWrite]:
    """Let processes write, stop and kill them; return all that was acknowledged to any of them.

    A stopped process continues after a while. By then its lease has usually expired, and another process has taken its
    thread.
    """
    rng = random.Random(f"{SEED} {count}")
    rivals = [Rival(path, f"{number}", f"{SEED} {number}") for number in range(count)]
    gone: list[Rival] = []
    stopped: dict[Rival, float] = {}  # the time at which each one continues
    try:
        while disturbances or len(_all([*gone, *rivals])) < 50:
            progressed = all([_wait_for_output(rivals, PATIENCE) for _ in range(rng.randrange(1, 8))])
            now = time.monotonic()
            for one, until in [*stopped.items()]:
                if now >= until or not progressed:
                    one.send(signal.SIGCONT)
                    del stopped[one]
            if disturbances and progressed and len(stopped) < count - 1:
                disturbances -= 1
                victim = rng.choice(rivals)
                if rng.random() < 0.6:
                    victim.send(signal.SIGSTOP)
                    stopped[victim] = now + rng.uniform(0, 4 * SHORT)
                else:
                    victim.kill()
                    gone.append(victim)
                    stopped.pop(victim, None)
                    rivals[rivals.index(victim)] = Rival(path, victim.name, f"{SEED} {victim.name} {disturbances}")
    finally:
        for one in stopped:
            one.send(signal.SIGCONT)
        for one in rivals:
            one.kill()
    return _all([*gone, *rivals])


def _all(rivals: list[Rival]) -> list[StoredWrite]:
    return [acknowledged for one in rivals for acknowledged in one.acknowledged]


def _wait_for_output(rivals: list[Rival], patience: float) -> bool:
    """Wait until a process prints something. Return False if none does within so many seconds."""
    with selectors.DefaultSelector() as selector:
        for one in rivals:
            if not one.ended:
                selector.register(one.output, selectors.EVENT_READ, one)
        ready = selector.select(patience)
        for key, _ in ready:
            key.data.read()
        return bool(ready)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_rivals(count: int, tmp_path: Path) -> None:
    """P3, P4, P6: every thread is one chain on which epochs never decrease; each superstep is stored completely or
    not at all; and every acknowledged one is stored."""
    path = tmp_path / "threads.db"
    acknowledged = disturb(path, count, KILLS)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    anyio.run(_check, path, acknowledged)
    assert len({one.thread for one in acknowledged}) >= 3
    assert {one.thread for one in acknowledged} >= set(SHARED)


async def _check(path: Path, acknowledged: list[StoredWrite]) -> None:
    async with SqliteSaver.from_conn_string(path) as saver:
        headers = await saver.threads()
        dumps = {one.thread_id: await saver.dump(one.thread_id) for one in headers}
        assert {one.thread for one in acknowledged} <= dumps.keys()
        found: set[StoredWrite] = set()
        for thread, dump in dumps.items():
            if dump is None:
                continue  # leased by a process that was killed before its first superstep
            last = len(dump.rows)
            marks = [one.frame.decode().split(" ")[0] for one in dump.rows]
            assert dump.rows == tuple(numbered(number, mark) for number, mark in enumerate(marks, 1))
            assert dump.heads == {"": cid(last)}
            assert [(one.checkpoint_id, one.frame.decode()) for one in dump.records] == [(cid(last), marks[-1])]
            assert [(one.checkpoint_id, one.frame.decode()) for one in dump.events] == [
                (cid(number), mark) for number, mark in enumerate(marks, 1)
            ]
            epochs = [one.epoch for one in dump.events]
            assert epochs == sorted(epochs)
            assert len({(epoch, mark.split(".")[0]) for epoch, mark in zip(epochs, marks, strict=True)}) == len(
                set(epochs)
            ), "one epoch has several runs"
            found |= {
                StoredWrite(thread, n, epoch, mark)
                for n, (epoch, mark) in enumerate(zip(epochs, marks, strict=True), 1)
            }
            chain = await saver.read(thread)
            assert chain is not None and chain.head == cid(last)
            assert chain.rows[0] == dump.rows[(last - 1) // 20 * 20]
        assert set(acknowledged) <= found, "lost, although it was acknowledged"
        assert len(acknowledged) == len(set(acknowledged))


def test_waits_for_a_lock_are_not_in_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P6: processes that find the file busy wait for different times, up to twenty milliseconds."""
    path = tmp_path / "threads.db"
    waited: list[float] = []

    async def main() -> None:
        async with SqliteSaver.from_conn_string(path, busy_timeout=60) as saver:
            with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
                other.execute("BEGIN IMMEDIATE")

                def sleep(seconds: float) -> None:
                    waited.append(seconds)
                    if len(waited) == 20:
                        other.execute("COMMIT")

                monkeypatch.setattr(worker.time, "sleep", sleep)

                def at_once(db: sqlite3.Cursor) -> None:
                    db.execute("PRAGMA busy_timeout = 0").fetchall()

                assert saver._worker is not None
                await saver._worker.run(worker.Job(at_once, writes=False))
                await saver.adelete_thread("t")

    anyio.run(main)
    assert len(waited) == 20 == len(set(waited))
    assert all(0.001 <= seconds <= 0.02 for seconds in waited)
