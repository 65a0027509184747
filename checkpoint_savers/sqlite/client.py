"""What saver, store and cache in SQLite have in common: a file, and a connection to it while they are open."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import anyio

from ..durations import LONGEST_LOCK_WAIT, read_seconds
from ..errors import CheckpointError, SaverClosedError
from ..opening import OpenedAsync
from .worker import ClientKind, Job, Worker


class SqliteClient(OpenedAsync):
    """One connection at a time to one file, and a warning from whoever forgets to close it.

    Attributes:
        path: of the file, as it was given.
        busy_timeout: seconds to wait for another process's lock.
    """

    _client_kind: ClassVar[ClientKind]
    path: str
    busy_timeout: float
    _is_uri: bool
    _worker: Worker | None = None

    def _configure(self, path: str | os.PathLike[str], busy_timeout: float, synchronous: str = "FULL") -> None:
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous is 'FULL' or 'NORMAL', not {synchronous!r}")
        self.busy_timeout = min(read_seconds("busy_timeout", busy_timeout, zero=True), LONGEST_LOCK_WAIT)
        self.path = os.fspath(path)
        self._is_uri = isinstance(path, str) and path.startswith("file:")

    async def _connect(
        self,
        prepare: Callable[[sqlite3.Connection], object],
        explain: Callable[[sqlite3.Connection], BaseException | None] | None = None,
    ) -> None:
        """Open the file. The arguments are `Worker`'s."""
        if self._worker is not None:
            raise SaverClosedError(
                f"the {self._client_kind.noun} of {self.path} is open already: one 'async with' at a time"
            )
        worker = self._worker = Worker(
            self.path,
            name=self.path,
            uri=self._is_uri,
            prepare=prepare,
            busy_timeout=self.busy_timeout,
            explain=explain,
            watched=not self._is_uri and self.path not in (":memory:", ""),
            client_kind=self._client_kind,
        )
        try:
            await worker.open()
        except BaseException:
            self._worker = None
            raise

    @property
    def _connection(self) -> Worker:
        """Raises `SaverClosedError`."""
        worker = self._worker  # read once: another thread may close it meanwhile
        if worker is None:
            raise self._client_kind.closed(self.path)
        return worker

    async def _disconnect(self, *last: Job[Any]) -> None:
        """Finish what was begun, and close: on any thread and event loop, not just those it was opened on.

        Args:
            last: jobs to be done before, each as far as it can be.
        """
        worker, self._worker = self._worker, None
        if worker is not None:
            with anyio.CancelScope(shield=True):  # else a cancelled scope would not even begin to close
                for job in last:
                    with contextlib.suppress(CheckpointError):
                        await worker.run(job)
                await worker.close()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        worker = self._worker
        if worker is not None and worker.is_open:
            worker.stop()
            warn(f"{self!r} of {self.path} was never closed: use it in 'async with'", ResourceWarning, source=self)
