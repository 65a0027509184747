"""Store what the declared rules of a graph make of stored threads, so that the rules can be removed from the code.

`Graph.amigrate_threads` loads this module: most programs never migrate threads. A thread is checked first, as
`Graph.acheck_threads` does, and its states are found by the check. What changes them is stored in one transaction:

    the root graph's state of an idle thread            a new checkpoint, with the source "update"
    a kept state of a renamed node of an idle thread    a new checkpoint in the namespace of the present name
    all other states                                    a record of the checkpoint (`MIGRATED`)
    records of an open superstep                        the same records, with the present names and values
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import structs

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.chain import ChainReader, ChainWriter
from checkpoint_savers.deltas import SENDS, Delta, TaskResult, read_record, write_record
from checkpoint_savers.errors import ThreadBusyError
from checkpoint_savers.records import (
    MADE_IN,
    VERSION,
    Chain,
    CheckpointRow,
    Commit,
    NamespaceChange,
    TaskId,
    TaskRecord,
)

from .._checks.options import CheckOptions, MigrateOptions
from .._core.program import NO_UPGRADES
from .._runtime.persistence.encoder import Encoder
from .._runtime.persistence.lease import ThreadLease
from .._runtime.persistence.namespaces import CallSite, ids_in
from .._runtime.persistence.records import AMENDED, MIGRATED, amend_again, migrated_result
from .._runtime.persistence.restore import Restored, restore
from .._runtime.persistence.upgrading import Place, renamed_record
from .._runtime.platform.environment import Environment
from ..errors import ConfigError
from ..types import ThreadMigration
from .checking import Checkers, Found, FoundState, check_found, checkers_of, find_in_threads
from .definition import Definition


async def migrate_threads(
    graph: Definition,
    saver: BaseCheckpointSaver | None,
    given: MigrateOptions,
    choose: Callable[[str, Chain], Definition] | None = None,
) -> AsyncGenerator[ThreadMigration, None]:
    """See `Graph.amigrate_threads`. `choose` is as for `check_threads`."""
    checkers, dry_run = checkers_of(graph, saver, choose), bool(given.get("dry_run"))
    options: CheckOptions = {
        "open": bool(given.get("open")),
        "of_version": given.get("of_version"),
        "filter": given.get("filter"),
        "thread_ids": given.get("thread_ids"),
    }
    async with aclosing(find_in_threads(checkers, options)) as threads:
        async for thread_id, found in threads:
            made = _judged(thread_id, found)
            if made.status == "migrated" and not dry_run:
                made = await _migrate(checkers, graph.environment, thread_id, made)
            yield made


def _judged(thread_id: str, found: Found) -> ThreadMigration:
    """Return what is to be done with a thread: "migrated" if something is to be stored."""
    check = found.check(thread_id)
    if not check.loads:
        return ThreadMigration(check=check, status="refused")
    is_changed = any(_Change(thread_id, each, found).is_any for each in found.states)
    return ThreadMigration(check=check, status="migrated" if is_changed else "unchanged")


async def _migrate(
    checkers: Checkers, environment: Environment, thread_id: str, expected: ThreadMigration
) -> ThreadMigration:
    """Migrate a thread, under its lease.

    Args:
        checkers: the checkers of the graphs.
        environment: makes ids.
        thread_id: the thread.
        expected: what the check without the lease has found.
    """
    try:
        async with await ThreadLease.acquire(checkers.saver, environment, thread_id, "reject") as lease:
            return await lease.keep_alive_during(lambda: _migrate_leased(checkers, lease, expected))
    except ThreadBusyError:
        return structs.replace(expected, status="busy")


async def _migrate_leased(checkers: Checkers, lease: ThreadLease, expected: ThreadMigration) -> ThreadMigration:
    thread_id, saver = lease.thread_id, checkers.saver
    # Again, as the thread may have changed before the lease was acquired.
    found = await check_found(checkers, thread_id, await saver.read(thread_id))
    if found is None:
        return structs.replace(expected, status="unchanged")  # deleted meanwhile
    made = _judged(thread_id, found)
    if made.status == "migrated":
        changes = [_Change(thread_id, each, found) for each in found.states]

        def note_release(commit: Commit) -> None:
            lease.released = True

        await lease.commit(await _commit_of(changes, lease), note_release)
    return made


async def _commit_of(changes: Sequence[_Change], lease: ThreadLease) -> Commit:
    """Return the transaction of a thread.

    Raises:
        ConfigError: it has several namespaces, and the saver cannot store these in one transaction.
    """
    root, *others = changes
    moved: list[NamespaceChange] = []
    tips: dict[str, str] = {}
    for change in others:
        if change.is_moved:
            chain = await lease.saver.read(lease.thread_id, change.ns)
            row = change.moved_row(lease)
            tips[change.ns] = row.checkpoint_id
            moved.append(NamespaceChange(rows=(row,), expected_head=None if chain is None else chain.head))
    rows = [root.root_row(lease, tips)] if root.is_idle_root and (root.is_any or tips) else []
    if moved and not lease.saver.commits_others:
        raise ConfigError(
            f"the thread has kept states of renamed nodes, and {type(lease.saver).__name__} cannot store several "
            "namespaces in one transaction: keep was= in the code, which moves them with the next run"
        )
    return Commit(
        rows=tuple(rows),
        expected_head=root.chain.head if rows else None,
        others=tuple(moved),
        records=tuple([record for change in changes for record in change.records(has_row=bool(rows))]),
        expires_at=lease.expiry(),
        releases=True,
    )


class _Change:
    """What rules change in a stored state.

    Args:
        thread_id: the thread.
        state: the stored state.
        found: what was found in the thread.

    Attributes:
        chain: the checkpoint's rows and records.
        ns: the present name of the namespace.
        is_idle_root: the state is that of the root graph, and nothing is pending in the thread.
        is_moved: the state is to be stored under the present name of its namespace.
        is_any: something is changed.
    """

    def __init__(self, thread_id: str, state: FoundState, found: Found) -> None:
        self.chain, self.ns = state.chain, state.ns
        self._program, self._codec, self._thread_id = state.program, state.codec, thread_id
        self._row = state.chain.rows[-1]
        self.is_idle_root = not self._row.ns and not found.is_open
        # While the root's superstep is open, a resume and a new input may continue with different states of a kept
        # graph, under one name: they stay where they are, and `was=` stays in the code.
        self.is_moved = self.ns != self._row.ns and not found.is_open
        self._results = {each.task_id: (each, read_record(each, thread_id)) for each in self.chain.records}
        self._state = ChainReader(thread_id, self._row.ns, self.chain.rows).state(self._row.checkpoint_id)
        self._renamed: dict[TaskId, TaskResult] = {}
        self._is_converted = False
        if self._program.upgrades is not NO_UPGRADES:
            place = Place(self._program, thread_id, self._row.checkpoint_id)
            for task_id, (_, result) in self._results.items():
                writes = renamed_record(place, result, self._codec).writes
                if writes != result.writes:
                    self._renamed[task_id] = structs.replace(result, writes=writes, version=self._version_of(result))
            self._is_converted = bool(self._restored().converted)
        self.is_any = self.is_moved or self._is_converted or bool(self._renamed)

    def _version_of(self, result: TaskResult) -> int:
        """Return the version of a record in terms of the graph's code, which code of an earlier version refuses."""
        version = self._program.version
        return version if version > self._row.metadata.get(VERSION, 1) else result.version

    def _restored(self) -> Restored:
        row = self._row
        return restore(
            self._program,
            self._state,
            row.step,
            self._codec,
            thread_id=self._thread_id,
            ns=row.ns,
            at=row.checkpoint_id,
            version=row.metadata.get(VERSION, 1),
            results={task_id: result for task_id, (_, result) in self._results.items()},
        )

    def _delta(self, now: float, amended: TaskResult | None = None) -> Delta:
        """Return what changes in the state as its row stores it.

        Args:
            now: the time, in unix seconds.
            amended: the record of updates by `Command(update=...)`, which are folded into the state; None for none.
        """
        restored, state = self._restored(), self._state
        if amended is not None:
            scope = self._row.metadata.get(MADE_IN, self._thread_id), ids_in("", "")
            amend_again(restored.program, restored.board, amended, self._codec, scope)
        # Pending sends refer to values by the names under which these are stored.
        sends = {SENDS} & state.values.keys()
        restored.board.changed = tuple(sorted(restored.board.amended | sends))
        return Encoder(restored.program, self._codec).delta(restored.board, state, (), (), {}, now)

    def records(self, *, has_row: bool) -> list[TaskRecord]:
        """Return the records to store. `has_row`: the root graph's state gets a new checkpoint."""
        if has_row and not self._row.ns:
            return []  # the new checkpoint contains the recorded updates, and earlier checkpoints are not migrated
        made = [structs.replace(self._results[id][0], frame=write_record(new)) for id, new in self._renamed.items()]
        if self._is_converted and not self.is_moved:
            result = migrated_result(self._delta(self._state.ts), self._program.version)
            at = self._row.checkpoint_id
            made.append(
                TaskRecord(
                    ns=self._row.ns,
                    checkpoint_id=at,
                    task_id=MIGRATED,
                    index=-1,
                    kind="result",
                    frame=write_record(result),
                )
            )
        return made

    def moved_row(self, lease: ThreadLease) -> CheckpointRow:
        """Return the first checkpoint of a kept state under its present name. What is pending in it is discarded."""
        now = lease.environment.now()
        return self._row_of(ChainWriter(self.ns, self._state.copy(), None, None), self._delta(now), lease)

    def root_row(self, lease: ThreadLease, tips: dict[str, str]) -> CheckpointRow:
        """Return the checkpoint that follows the root graph's head.

        Args:
            lease: the thread's lease.
            tips: the new checkpoints of kept states, by namespace.
        """
        reader = ChainReader(self._thread_id, "", self.chain.rows)
        # Updates of an idle thread by `Command(update=...)` are a record of its head. This record does not apply to the
        # new checkpoint, so the updates are folded into its state.
        _, amended = self._results.get(AMENDED, (None, None))
        delta = self._delta(lease.environment.now(), self._renamed.get(AMENDED, amended))
        delta = structs.replace(delta, tips=tips)
        return self._row_of(ChainWriter.resume(reader, self._row.checkpoint_id), delta, lease, steps=1)

    def _row_of(self, writer: ChainWriter, delta: Delta, lease: ThreadLease, *, steps: int = 0) -> CheckpointRow:
        step, version = self._row.step + steps, self._program.version
        metadata = {
            **CallSite.of(self._row).metadata,
            "run_id": lease.token.owner.run_id,
            "source": "update",
            "step": step,
            **({VERSION: version} if version else {}),
        }
        return writer.append(delta, checkpoint_id=lease.ids.next(delta.ts), step=step, metadata=metadata)
