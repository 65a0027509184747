"""What an open service has."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import RunNotFoundError, StorageError
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunRow

from .._api.compiled import Graph
from .acceptance import Acceptance
from .early_parts import FOLLOWED_FOR
from .errors import UnknownGraphError
from .watching import RunWatcher
from .worker import WorkLoop


class OpenService:
    """What an open service has.

    Attributes:
        saver, runs: the saver and its run store.
        graphs: the graphs, bound to the saver.
        loop: the worker; None if this process only accepts runs.
        watcher: wakes tasks that wait for runs.
    """

    watcher: RunWatcher

    def __init__(
        self, saver: BaseCheckpointSaver, runs: RunStore, graphs: Mapping[str, Graph[Any, Any]], loop: WorkLoop | None
    ) -> None:
        self.saver = saver
        self.runs = runs
        self.graphs = graphs
        self.loop = loop

    def graph(self, name: str) -> Graph[Any, Any]:
        """Return a graph. Raises `UnknownGraphError`."""
        found = self.graphs.get(name)
        if found is None:
            raise UnknownGraphError(name, self.graphs)
        return found

    async def accept(self, acceptance: Acceptance) -> RunRow:
        """Store a run. The worker of this process takes it in the same transaction if it has a spare slot.

        Args:
            acceptance: the run.

        Returns:
            The stored row. See `RunStore.start`, also for the errors.
        """
        return await (acceptance.store(self.runs) if self.loop is None else self.loop.accept(acceptance))

    def look_for_cancellations(self) -> None:
        """Have the worker of this process stop cancelled runs at once."""
        if self.loop is not None:
            self.loop.look.set()

    async def row(self, run_id: str) -> RunRow:
        """Return a run. Raises `RunNotFoundError`, also if it was rolled back."""
        row = await self.runs.get_run(run_id)
        if row is None or row.hidden:
            raise RunNotFoundError(run_id)
        return row

    async def note_follower(self, run: RunRow) -> None:
        """Have the worker of a run store its parts early, for a follower of this process.

        Does nothing if the run is not running, is in this process, or is noted as followed for a while.

        Args:
            run: the run, as it was just read.
        """
        if run.status != "running" or (self.loop is not None and run.worker == self.loop.worker_id):
            return
        if run.followed_until - self.saver.clock() < FOLLOWED_FOR * 2 / 3:
            # Without the note, parts come later. A follower may have no right to write, and needs none.
            with contextlib.suppress(StorageError):
                await self.runs.follow(run, FOLLOWED_FOR)

    async def has_begun(self, thread_id: str) -> bool:
        """Return True if a thread has a checkpoint, or will have one when its open runs are executed."""
        row = await self.runs.get_thread(thread_id)
        return (row is not None and row.status == "busy") or await self.saver.read(thread_id) is not None
