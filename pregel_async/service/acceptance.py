"""A run that is to be accepted, on its way from the caller to the transaction that stores it, and back."""

from __future__ import annotations

from typing import Any

import anyio

from checkpoint_savers.bridge import WorkItem
from checkpoint_savers.runs.decisions import TakenRun, WantedLease
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunRequest, RunRow


class Acceptance(WorkItem[RunRow]):
    """A run to accept; then its row once it is stored, or the error that refused it.

    Args:
        thread_id: its thread.
        request: what is asked for.
        route: the thread's route, as for `RunStore.start`.
        metadata: for the thread: keys that its metadata lacks are set.
        is_new: the thread's id was just made, so that nothing is stored of it.
    """

    def __init__(
        self,
        thread_id: str,
        request: RunRequest,
        route: str,
        *,
        metadata: dict[str, Any] | None = None,
        is_new: bool = False,
    ) -> None:
        super().__init__()
        self.thread_id = thread_id
        self.request = request
        self.route = route
        self.metadata = metadata
        self.is_new = is_new
        self._is_known = anyio.Event()

    async def store(self, runs: RunStore) -> RunRow:
        """Accept the run. It waits for a worker. See `RunStore.start`, also for the errors.

        Args:
            runs: the run store.
        """
        return await runs.start(
            self.thread_id, self.request, metadata=self.metadata, route=self.route, is_new=self.is_new
        )

    async def store_and_take(self, runs: RunStore, wants: WantedLease, worker: str) -> TakenRun | None:
        """Accept the run, and take it. See `RunStore.start_and_take`, also for the errors. The caller of `wait` has it.

        Args:
            runs: the run store.
            wants: the lease.
            worker: the id of the worker that takes the run.

        Returns:
            The run to execute; None if it waits for its time or for a worker.
        """
        try:
            started = await runs.start_and_take(
                self.thread_id,
                self.request,
                wants,
                worker=worker,
                metadata=self.metadata,
                route=self.route,
                is_new=self.is_new,
            )
        except Exception as error:
            # Noted here: if the worker's task is cancelled meanwhile, its cancellation takes the place of this error,
            # which may say that the run is stored perhaps.
            self.refuse(error)
            raise
        self.value = started.run
        self._is_known.set()
        return started.taken

    def refuse(self, error: Exception) -> None:
        """Note why the run is not stored. Does nothing if it is, or if another error was noted."""
        if not self._is_known.is_set():
            self.error = error
            self._is_known.set()

    async def wait(self) -> RunRow:
        """Return the run when another task has stored it. Raises the error that refused it."""
        await self._is_known.wait()
        return self.result()
