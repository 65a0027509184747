"""A storm: three workers and a client, disturbed at random moments.

A disturbance is drawn from the seed:

| kind | what happens |
| --- | --- |
| kill | SIGKILL, and a new worker at once |
| stop | SIGSTOP for about as long as a lease or longer, and SIGCONT; also of the client, which works, too |
| drain | SIGTERM, and a new worker at once: a rolling restart |
| restart | the server of PostgreSQL is killed, and started again; only of a server that belongs to the storm |
| empty | all jobs of procrastinate are deleted; only if they bring the threads to the workers |
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from .audit import Audit
from .savers import LEASE_SECONDS, opened_saver

WORKERS = 3

PATIENCE = 1.0
"""Seconds without an ended run after which the storm does not wait for more of them before the next disturbance."""

KINDS = {"kill": 40, "stop": 40, "drain": 20}
"""The disturbances of workers, and how often each is drawn."""

RARE = 10
"""How often each disturbance is drawn that is not of a worker."""

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a storm did, and what the audit found.

    Attributes:
        seconds: how long it took, without the audit.
        disturbances: how many of each kind.
        runs, retaken, repeated, slowest, statuses: see `Audit`.
        lost, doubled, wrong: the number of findings.
        found: the findings.
    """

    seconds: float
    disturbances: dict[str, int]
    runs: int
    retaken: int
    repeated: int
    slowest: float
    statuses: dict[str, int]
    lost: int
    doubled: int
    wrong: int
    found: list[str]

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.disturbances.items()))
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.runs} runs in {self.seconds:.0f} s ({self.runs / self.seconds:.1f}/s), {kinds}\n"
            f"{statuses}; {self.retaken} taken by several workers, {self.repeated} nodes repeated, "
            f"slowest {self.slowest:.1f} s\n"
            f"lost {self.lost}, doubled {self.doubled}, wrong {self.wrong}"
        )


class Storm:
    """Processes that share one saver, and what disturbs them.

    Args:
        source: the saver; see `opened_saver`.
        place: a new folder for the files of the storm.
        seed: determines what is drawn.
        conversations: how many threads the client uses at the same time.
        others: further disturbances by name, each with what is called for it.
    """

    def __init__(
        self,
        source: str,
        place: Path,
        seed: str,
        conversations: int,
        others: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    ) -> None:
        self._others = others
        self._rng = random.Random(f"storm {seed}")
        self._source = source
        self._place = place
        self._errors = open(place / "errors", "ab")
        self._stopped: dict[subprocess.Popen[bytes], float] = {}  # when each one continues
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._disturbances: Counter[str] = Counter()
        self._ended = 0
        self._client = self._process(
            "client", str(place / "journal"), str(place / "effects"), seed, str(conversations), talks=True
        )
        self._workers = [self._worker() for _ in range(WORKERS)]

    def rage(self, count: int, patience: float, *, runs: int = 0) -> float:
        """Disturb the workers so many times, let all runs end, and end the processes.

        Args:
            count: the number of disturbances.
            runs: the number of runs that have ended before the last disturbance: on a slow machine there are more
                disturbances.
            patience: seconds after the last one within which all runs must have ended.

        Returns:
            The seconds that it took.
        """
        began = time.monotonic()
        try:
            self._wait_for_ends(1, patience)  # the client is open then
            while sum(self._disturbances.values()) < count or self._ended < runs:
                self._wait_for_ends(self._rng.randrange(1, 16), PATIENCE * self._rng.random())
                self._continue_stopped(time.monotonic())
                self._start_again()
                self._disturb()
            self._continue_stopped(float("inf"))
            self._start_again()
            self._client.stdin.close()
            self._client.stdin = None
            try:
                self._client.communicate(timeout=patience)
            except subprocess.TimeoutExpired:
                print(f"some runs have not ended within {patience} s", file=sys.stderr)
            self._end_workers()
        finally:
            for process in [self._client, *self._workers, *self._leaving]:
                process.kill()
                process.wait()
            self._errors.close()
        return time.monotonic() - began

    async def report(self, seconds: float) -> Report:
        """Audit what is stored.

        Args:
            seconds: how long the storm took.
        """
        async with opened_saver(self._source) as saver:
            audit = Audit(saver, self._place / "journal", self._place / "effects")
            await audit.check()
        found = [*audit.found(), *self._failures()]
        return Report(
            seconds=seconds,
            disturbances=dict(self._disturbances),
            runs=audit.runs,
            retaken=audit.retaken,
            repeated=audit.repeated,
            slowest=audit.slowest,
            statuses=dict(audit.statuses),
            lost=len(audit.lost),
            doubled=len(audit.doubled),
            wrong=len(found) - len(audit.lost) - len(audit.doubled),
            found=found,
        )

    def _process(self, name: str, *args: str, talks: bool = False) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tests.storms.{name}", self._source, *args]
        pipe = subprocess.PIPE if talks else subprocess.DEVNULL
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._errors, env=ENV)

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._process("worker", str(self._place / "effects"))

    def _wait_for_ends(self, count: int, patience: float) -> None:
        """Wait until so many runs have ended, but no longer than so many seconds."""
        output = self._client.stdout
        assert output is not None
        until = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while count > 0 and selector.select(max(0.0, until - time.monotonic())):
                read = os.read(output.fileno(), count)
                assert read, "the client has ended: see the file of errors"
                count -= len(read)
                self._ended += len(read)

    def _start_again(self) -> None:
        """Start workers again that have ended, as a supervisor does: one that opens while the server is down ends."""
        self._workers = [each if each.poll() is None else self._worker() for each in self._workers]

    def _continue_stopped(self, now: float) -> None:
        for process, until in list(self._stopped.items()):
            if now >= until:
                process.send_signal(signal.SIGCONT)
                del self._stopped[process]

    def _disturb(self) -> None:
        """Disturb one worker, or stop the client. At least one worker is never stopped."""
        kinds = KINDS | dict.fromkeys(self._others, RARE)
        kind = self._rng.choices(list(kinds), list(kinds.values()))[0]
        if kind in self._others:
            self._others[kind]()
            self._disturbances[kind] += 1
            return
        at = self._rng.randrange(WORKERS)
        victim = self._workers[at]
        if kind == "stop":
            victim = self._rng.choice((victim, victim, victim, self._client))
            if len(self._stopped) >= WORKERS - 1 or victim in self._stopped:
                return
            victim.send_signal(signal.SIGSTOP)
            self._stopped[victim] = time.monotonic() + LEASE_SECONDS * self._rng.uniform(0.5, 2.5)
        elif kind == "kill":
            victim.kill()
            self._stopped.pop(victim, None)
            if self._rng.random() < 0.5:  # else it remains a zombie for a while
                victim.wait()
            self._leaving.append(victim)
            self._workers[at] = self._worker()
        else:
            if victim in self._stopped:
                victim.send_signal(signal.SIGCONT)
                del self._stopped[victim]
            victim.terminate()
            self._leaving.append(victim)
            self._workers[at] = self._worker()
        self._leaving = [each for each in self._leaving if each.poll() is None]
        self._disturbances[kind] += 1

    def _end_workers(self) -> None:
        for process in self._workers:
            process.terminate()
        for process in [*self._workers, *self._leaving]:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                print("a worker does not end after SIGTERM", file=sys.stderr)

    def _failures(self) -> list[str]:
        """Errors that the processes have logged and that are no failures of storage."""
        text = (self._place / "errors").read_text("utf-8", "replace")
        strange = ["the work on thread", "was never awaited", "does not end after"]
        if "empty" not in self._others:  # procrastinate's tasks fail if the job on which they work is deleted
            strange.append("Task exception")
        return [f"wrong: logged: {line}" for line in text.splitlines() if any(each in line for each in strange)]
