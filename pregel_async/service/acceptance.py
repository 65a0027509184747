"""`Acceptance`: a run that `RunService.start` was asked for, and the answer that its caller waits for.

The caller's task makes it. The worker's task stores the run, or notes the error that refused it.
"""

from __future__ import annotations

from typing import Any

import anyio

from checkpoint_savers.bridge import WorkItem
from checkpoint_savers.runs.decisions import TakenRun, WantedLease
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunRequest, RunRow


class Acceptance(WorkItem[RunRow]):
    """A run to be stored. Its result is the stored row, or the error that refused it.

    Args:
        thread_id: the run's thread.
        request: the input and settings of the run.
        route: the thread's route, as for `RunStore.start`.
        metadata: for the thread: keys that its metadata lacks are set.
        is_new: True if the thread's id was just made; see `RunStore.transact`.
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
        """Store the run, which then waits for a worker. Does not wake the caller of `wait`.

        Args:
            runs: the run store.

        Returns:
            The stored row. See `RunStore.start`, also for the errors.
        """
        return await runs.start(
            self.thread_id, self.request, metadata=self.metadata, route=self.route, is_new=self.is_new
        )

    async def store_and_take(self, runs: RunStore, wants: WantedLease, worker: str) -> TakenRun | None:
        """Store the run, and take it in the same transaction. Wakes the caller of `wait`, with the row or the error.

        See `RunStore.start_and_take`, also for the errors.

        Args:
            runs: the run store.
            wants: the lease to acquire.
            worker: the id of the worker that takes the run.

        Returns:
            The run to execute; None if it was not taken: it waits until it is due, or for a worker.
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
            # Noted here and not in `Activation.start`: if the worker's task is cancelled meanwhile, the cancellation is
            # raised there in place of this error. But only this error says that the run may have been stored.
            self.refuse(error)
            raise
        self.value = started.run
        self._is_known.set()
        return started.taken

    def refuse(self, error: Exception) -> None:
        """Raise an error to the caller of `wait`. Does nothing if the run is stored, or if an error was noted before.

        Args:
            error: why the run is not stored.
        """
        if not self._is_known.is_set():
            self.error = error
            self._is_known.set()

    async def wait(self) -> RunRow:
        """Wait until `store_and_take` or `refuse` was called. Return the stored row, or raise the error."""
        await self._is_known.wait()
        return self.result()
