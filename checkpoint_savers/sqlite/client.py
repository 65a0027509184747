"""`SqliteClient`: the file and connection that saver, store and cache in SQLite share."""

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
from ..opening import OpenedAsync, never_closed
from .worker import ClientKind, Job, Worker


class SqliteClient(OpenedAsync):
    """One connection to one file at a time, and a `ResourceWarning` if it is never closed.

    Attributes:
        path: the path or URI of the file, as it was passed.
        busy_timeout: seconds to wait for another process's lock.
    """

    _client_kind: ClassVar[ClientKind]
    path: str
    busy_timeout: float
    _is_uri: bool
    _worker: Worker | None = None

    def _configure(self, path: str | os.PathLike[str], busy_timeout: float, synchronous: str = "FULL") -> None:
        """Check and set the common arguments."""
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
        worker = self._worker = Worker(  # read once: another thread may close it meanwhile
            self.path,
            name=self.path,
            uri=self._is_uri,
            prepare=prepare,
            busy_timeout=self.busy_timeout,
            explain=explain,
            # A URI may name a file that is immutable or in memory, and its path is SQLite's to parse: only plain paths
            # are watched.
            watched=not self._is_uri and self.path not in (":memory:", ""),
            client_kind=self._client_kind,
        )
        try:
            await worker.open()
        except BaseException:
            self._worker = None
            raise

    @property
    def is_open(self) -> bool:
        """True while it is open: within its `async with`."""
        return self._worker is not None

    @property
    def _connection(self) -> Worker:
        """The open connection's worker. Raises `SaverClosedError` if it is not open."""
        worker = self._worker  # read once: another thread may close it meanwhile
        if worker is None:
            raise self._client_kind.closed(self.path)
        return worker

    async def _disconnect(self, *last: Job[Any]) -> None:
        """Finish the jobs that were begun, and close. May be called on any thread and event loop.

        Args:
            last: jobs to run before, whose errors are ignored.
        """
        # Unset first: new jobs are refused while the last ones run.
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
            # A finalizer must not block, so it asks the thread to close the connection and does not join it.
            worker.stop()
            warn(never_closed(self, self.path), ResourceWarning, source=self)
