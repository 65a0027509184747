"""What must be true when a storm is over: no run is lost, doubled or wrong."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.queries import RunQuery
from checkpoint_savers.runs.rows import RunRow
from pregel_async.service import RunService

from .graphs import EXPECTED, SUPERSTEP, Effects, attempt_of, graphs

SHOWN = 200
"""Number of ended runs whose stored stream is read."""


class Accepted(NamedTuple):
    """A run that the client was promised, and the row that was found of it."""

    thread_id: str
    kind: str
    mark: str
    durability: str
    multitask: str
    shown: bool
    row: RunRow

    @property
    def names(self) -> list[list[str]]:
        """What the run appends to the log, by superstep."""
        return [[f"{self.mark}.{name}" for name in names] for names in EXPECTED[self.kind]]


class Audit:
    """Checks what a storm has left.

    Args:
        saver: the saver, which no process uses any more.
        journal: what the client noted.
        effects: what the nodes noted.

    Attributes:
        lost, doubled, wrong: what was found, as sentences; empty if all is right.
        runs: the number of accepted runs.
        statuses: how many ended with which status; "hidden" for those that were rolled back.
        retaken: the number of runs that several workers took.
        slowest: seconds from the acceptance to the end of the slowest run.
        repeated: how many nodes began again in a later attempt, as their results were not stored.
    """

    def __init__(self, saver: BaseCheckpointSaver, journal: Path, effects: Path) -> None:
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.wrong: list[str] = []
        self.runs = self.retaken = self.repeated = 0
        self.statuses: dict[str, int] = defaultdict(int)
        self.slowest = 0.0
        assert saver.runs is not None
        self._saver = saver
        self._store: RunStore = saver.runs
        self._journal = [json.loads(line) for line in journal.read_text().splitlines()]
        self._effects = [json.loads(line) for line in effects.read_text().splitlines()]

    async def check(self) -> None:
        """Check all."""
        await self._check_queue()
        accepted = [each async for each in self._accepted()]
        self.runs = len(accepted)
        self._check_ends({each.row.run_id: each.row for each in accepted})
        self._check_effects(accepted)
        threads: dict[str, list[Accepted]] = defaultdict(list)
        for each in accepted:
            threads[each.thread_id].append(each)
        async with RunService(graphs(Effects(None)), self._saver, work=False, context=attempt_of) as service:
            for thread_id, of_thread in threads.items():
                await self._check_thread(service, thread_id, sorted(of_thread, key=lambda each: each.row.seq))
            for each in [each for each in accepted if each.shown and each.row.status == "success"][:SHOWN]:
                await self._check_stream(service, each)

    async def _accepted(self) -> Any:
        for note in self._journal:
            if note["what"] != "accepted":
                continue
            if not note["same"]:
                self.doubled.append(f"{note}: equal requests with one key have returned several runs")
            row = await self._store.get_run(note["run"])
            if row is None:
                self.lost.append(f"{note}: there is no such run")
            else:
                self.retaken += row.attempt > 1
                yield Accepted(
                    note["thread"], note["kind"], note["mark"], note["durability"], note["multitask"],
                    note["shown"], row,
                )  # fmt: skip

    async def _check_queue(self) -> None:
        """Nothing is left to do, and there are no runs of which the client does not know."""
        left = [*await self._store.queued(), *await self._store.active(), *await self._store.due()]
        self.lost += [f"{each}: left in the queue" for each in left]
        open_runs = await self._store.count_runs(RunQuery(status=("pending", "running")))
        if open_runs:
            self.lost.append(f"{open_runs} runs have not ended")
        known = {note["run"] for note in self._journal if note["what"] == "accepted"}
        hidden = {note["run"] for note in self._journal if note.get("status") == "hidden"}
        stored = await self._store.count_runs(RunQuery())
        if not len(known) - len(hidden) - self._rolled_back() <= stored <= len(known):
            self.doubled.append(f"{stored} runs are stored, and {len(known)} were accepted")

    def _rolled_back(self) -> int:
        return sum(note["what"] == "confirmed" for note in self._journal)

    def _check_ends(self, rows: dict[str, RunRow]) -> None:
        """Each run ended once, and a status that was seen is the one that it has."""
        for row in rows.values():
            self.statuses["hidden" if row.hidden else row.status] += 1
            self.slowest = max(self.slowest, row.ended_at - row.created_at)
            if row.is_open:
                self.lost.append(f"{row}: has not ended")
            if row.hidden != (row.status == "cancelled" and row.cancel == "rollback"):
                self.wrong.append(f"{row}: hidden")
            if row.status in ("error", "timeout") or (row.status == "cancelled" and row.cancel is None):
                self.wrong.append(f"{row.run_id}: {row.status}, {row.error}")
        for note in self._journal:
            row = rows.get(note["run"])
            if row is None or note["what"] == "accepted":
                continue
            status = "hidden" if row.hidden else row.status
            if note["what"] == "joined" and note["status"] != status:
                self.doubled.append(f"{note}: ended again, as {status}")
            if note["what"] == "confirmed" and note["status"] != row.status:
                self.doubled.append(f"{note}: ended again, as {status}")

    def _check_effects(self, accepted: Iterable[Accepted]) -> None:
        """P5: what was stored when an attempt began does not run again in it. With `durability="sync"`, a node begins
        after all results of the superstep before it are stored."""
        began: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        for run_id, number, node in self._effects:
            began[run_id][number].append(node)
        for each in accepted:
            attempts = sorted(began.pop(each.row.run_id, {}).items())
            reached, nodes = 0, set[str]()
            for number, names in attempts:
                supersteps = [SUPERSTEP[name] for name in names]
                if len(set(names)) < len(names) or supersteps != sorted(supersteps):
                    self.doubled.append(f"{each.row.run_id}: attempt {number} ran {names}")
                if each.durability == "sync" and supersteps and min(supersteps) < reached:
                    self.doubled.append(f"{each.row.run_id}: attempt {number} ran {names} after superstep {reached}")
                self.repeated += len(nodes & set(names))
                reached, nodes = max([reached, *supersteps]), nodes | set(names)
            missing = {name for names in EXPECTED[each.kind] for name in names if name != "in"} - nodes
            if each.row.status in ("success", "interrupted") and missing:
                self.wrong.append(f"{each.row.run_id}: {each.row.status}, but {missing} never ran")
        self.wrong += [f"{run_id}: has run, and was not accepted" for run_id in began]

    async def _check_thread(self, service: RunService, thread_id: str, accepted: list[Accepted]) -> None:
        """The log has what the runs give, in order, and the thread's status fits its state."""
        graph = accepted[0].kind  # of the first run, which is no answer: an answer's kind names no graph
        state = await service.graph(graph).aget_state(thread_id)
        log = state.values.get("log", [])
        wrong = self._log_error(accepted, log)
        thread = await service.get_thread(thread_id)
        if thread.status != ("interrupted" if state.next else "idle"):
            wrong = wrong or f"its status is {thread.status}, and {state.next} is next"
        if any(not each.row.hidden and each.row.begun for each in accepted) and (thread.values or {}).get("log") != log:
            wrong = wrong or f"its row has other values: {thread.values}"
        if wrong:
            story = [(each.row.seq, each.kind, each.mark, each.durability, each.multitask, each.row.status,
                      each.row.cancel, each.row.attempt, each.row.begun) for each in accepted]  # fmt: skip
            self.wrong.append(f"thread {thread_id}: {wrong}\n    log {log}\n    runs {story}")

    @staticmethod
    def _log_error(accepted: list[Accepted], log: list[str]) -> str:
        """Return what is wrong with a thread's log; "" if it is right."""
        at = 0
        for each in accepted:
            if each.row.hidden:
                continue  # none of its names may occur: they would not fit the next run's
            for number, names in enumerate(each.names):
                if log[at : at + len(names)] == names:
                    at += len(names)
                elif each.row.status == "cancelled" or (each.row.status == "interrupted" and number >= 2):
                    break
                else:
                    return f"{each.mark} ({each.row.status}) lacks {names} at {at}"
        return "" if at == len(log) else f"strange entries from {at} on"

    async def _check_stream(self, service: RunService, each: Accepted) -> None:
        """All parts of a run, once and in order."""
        async with service.follow(each.row.run_id, stream_mode="updates") as parts:
            updates = [part["data"] async for part in parts if part["type"] == "updates"]
        # A worker that resumes a superstep shows the recorded results of it again, marked as cached.
        seen = [name for data in updates if "__metadata__" not in data for name in data]
        expected = [name for names in EXPECTED[each.kind] for name in names if name != "in"]
        if sorted(seen) != sorted(expected) or [SUPERSTEP[name] for name in seen] != sorted(map(SUPERSTEP.get, seen)):
            self.wrong.append(f"{each.row.run_id}: its stream shows {seen}, not {expected}")

    def found(self) -> Iterator[str]:
        """Everything that is not right."""
        yield from (f"lost: {each}" for each in self.lost)
        yield from (f"doubled: {each}" for each in self.doubled)
        yield from (f"wrong: {each}" for each in self.wrong)
