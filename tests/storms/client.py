"""The client process of a storm: `python -m tests.storms.client SAVER JOURNAL EFFECTS SEED CONVERSATIONS`.

It holds as many conversations at the same time as it is asked to, each on one thread after the other, until its standard
input is closed. Then it waits until all its runs have ended. It appends what it did to the journal, which the audit
reads, and prints a dot for each run that it saw end. It also works in a few slots, so that it takes some runs in the
transaction that starts them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from checkpoint_savers.errors import StorageError, StorageLockedError
from pregel_async import Command
from pregel_async.service import Run, RunNotFoundError, RunOverError, RunService, Worker

from .graphs import attempt_of, graphs, opened_effects
from .savers import dispatcher_of, opened_saver

T = TypeVar("T")

TURNS = 8
"""Number of turns of a conversation: in each, runs are started, and some of them are cancelled."""


class Client:
    """Starts runs, answers questions, cancels, and repeats requests.

    Args:
        service: accepts the runs.
        journal: a file for what happened.
        seed: determines what is drawn.
    """

    def __init__(self, service: RunService, journal: Any, seed: str) -> None:
        self.stopped = False
        self._service = service
        self._journal = journal
        self._rng = random.Random(f"client {seed}")
        self._seed = seed
        self._numbers = count(1)
        self._threads = count(1)

    async def converse(self) -> None:
        """Hold conversations until the client is stopped."""
        while not self.stopped:
            kind = self._rng.choice(("chain", "wide", "ask"))
            # Half of the threads get their ids from the service, and their first runs have no idempotency key. PostgreSQL
            # stores such runs by another statement.
            thread_id = f"{kind}-{self._seed}-{next(self._threads)}" if self._rng.random() < 0.5 else None
            open_runs: list[Run] = []
            for _ in range(TURNS):
                if self.stopped:
                    break
                thread_id = await self._turn(kind, thread_id, open_runs)
            await self._join_all(open_runs)

    async def _turn(self, kind: str, thread_id: str | None, open_runs: list[Run]) -> str:
        """Start runs, and perhaps cancel one and answer. Return the thread's id."""
        rng = self._rng
        for _ in range(rng.choice((1, 1, 2, 3))):
            multitask = rng.choices(("enqueue", "interrupt", "rollback"), (70, 15, 15))[0]
            open_runs.append(await self._start(kind, thread_id, multitask))
            thread_id = open_runs[-1].thread_id
        assert thread_id is not None
        if rng.random() < 0.25:
            await self._cancel(rng.choice(open_runs))
        if kind != "ask" and rng.random() < 0.5:
            return thread_id  # the next turn starts runs while these are open
        if await self._join_all(open_runs) == "interrupted":
            answer = await self._start("answer", thread_id, "enqueue")
            if rng.random() < 0.2:
                await self._cancel(answer)
            await self._join_all([answer])
        return thread_id

    async def _start(self, kind: str, thread_id: str | None, multitask: str) -> Run:
        """Start a run. In a known thread, often send several equal requests, all of which return the same run."""
        rng = self._rng
        mark = f"m{next(self._numbers)}"
        given: Any = Command(resume=mark) if kind == "answer" else {"mark": mark, "log": [f"{mark}.in"]}
        durability: Any = rng.choices(("sync", "async", "exit"), (60, 25, 15))[0]
        stream_mode: Any = rng.choice(((), "updates"))
        key = None if thread_id is None else f"{self._seed} {mark}"
        accepted: list[Run] = []

        async def request() -> None:
            run = await _insisted(
                lambda: self._service.start(
                    "ask" if kind == "answer" else kind,
                    given,
                    thread_id=thread_id,
                    multitask=multitask,
                    idempotency_key=key,
                    durability=durability,
                    stream_mode=stream_mode,
                    max_stalls=1000,
                ),
                # A request without a key may be repeated only if nothing was stored: else it would start a second run.
                StorageError if key is not None else StorageLockedError,
            )
            accepted.append(run)

        async with anyio.create_task_group() as group:
            for _ in range(1 if key is None else rng.choice((1, 1, 1, 2, 3))):
                group.start_soon(request)
        if key is not None and rng.random() < 0.1:
            await request()
        self._note(
            "accepted", accepted[0].run_id, thread=accepted[0].thread_id, mark=mark, kind=kind, durability=durability,
            same=len({run.run_id for run in accepted}) == 1, multitask=multitask, shown=bool(stream_mode),
        )  # fmt: skip
        return accepted[0]

    async def _cancel(self, run: Run) -> None:
        action: Any = self._rng.choice(("interrupt", "rollback"))
        wait = self._rng.random() < 0.5
        try:
            ended = await _insisted(lambda: self._service.cancel(run.run_id, action=action, wait=wait))
        except (RunOverError, RunNotFoundError):
            return
        if wait:
            self._note("confirmed", run.run_id, status=ended.status)

    async def _join_all(self, open_runs: list[Run]) -> str:
        """Wait for the ends of runs. Return the status of the last one; "hidden" if it was rolled back."""
        status = "hidden"
        while open_runs:
            run = open_runs.pop(0)
            try:
                ended = (await _insisted(lambda run=run: self._service.join(run.run_id))).run
            except RunNotFoundError:
                status = "hidden"
                self._note("joined", run.run_id, status=status, ended="")
            else:
                status = ended.status
                self._note("joined", run.run_id, status=status, ended=str(ended.ended_at))
            print(".", end="", flush=True)
        return status

    def _note(self, what: str, run_id: str, **facts: Any) -> None:
        self._journal.write(json.dumps({"what": what, "run": run_id, **facts}) + "\n")


async def _insisted(call: Callable[[], Awaitable[T]], failures: type[StorageError] = StorageError) -> T:
    """Repeat a call until storage does not fail: a process that was stopped may have held the lock of the file.

    Args:
        call: the call.
        failures: the errors after which it is repeated.
    """
    while True:
        try:
            return await call()
        except failures as error:
            print(f"the client tries again: {error}", file=sys.stderr, flush=True)
            await anyio.sleep(0.1)


async def run(source: str, journal: Path, effects: Path, seed: str, conversations: int) -> None:
    """Hold conversations until the standard input is closed."""
    with open(journal, "w", encoding="utf-8") as file, opened_effects(effects) as of_nodes:
        async with opened_saver(source) as saver:
            async with RunService(
                graphs(of_nodes),
                saver,
                work=Worker(slots=2),
                context=attempt_of,
                max_pending=10**9,
                dispatcher=dispatcher_of(source),
            ) as service:
                client = Client(service, file, seed)
                async with anyio.create_task_group() as group:
                    for _ in range(conversations):
                        group.start_soon(client.converse)
                    await anyio.to_thread.run_sync(sys.stdin.read)
                    client.stopped = True


if __name__ == "__main__":
    anyio.run(run, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
