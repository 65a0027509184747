"""`ProcrastinateDispatcher`: queued threads as jobs of procrastinate, on PostgreSQL.

A thread's job is inserted by the transaction that queues the thread. procrastinate wakes a worker by NOTIFY, and
places the job: by priority, and with `SKIP LOCKED` on one worker. What a run needs to be executed once is not its
business: its retries, locks and cancellations are not used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from base64 import b32encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import anyio
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.postgres import PostgresSaver
from checkpoint_savers.runs.rows import RunThreadRow

from ...errors import ConfigError
from .port import Crew, Dispatcher

log = logging.getLogger("pregel_async.service")

TASK: Final = "pregel_async.work_on"
"""The name of the task of all jobs."""

RESTART_AFTER: Final = 1.0
"""Seconds after which procrastinate's worker is started again if it has stopped, as it does if its listener fails."""

_VERSION_TABLE: Final = "pregel_jobs_version"


class ProcrastinateDispatcher(Dispatcher):
    """Brings queued threads to workers on many machines, as jobs of procrastinate. Needs asyncio, for workers.

    Install `pregel-async[service]`, and call `RunService.setup` once when you deploy: it makes procrastinate's tables
    in a schema of their own, or upgrades them.

    Args:
        schema: the schema of the jobs, in the saver's database. Services with other schemas of threads may share it.
        conn_string: a connection string for procrastinate's own connections; None for that of the saver. They LISTEN,
            so that a pooler in transaction mode cannot be between them and the server.
    """

    def __init__(self, *, schema: str = "pregel_jobs", conn_string: str | None = None) -> None:
        try:
            engine = import_module("procrastinate")
        except ImportError as error:
            raise ConfigError(
                "ProcrastinateDispatcher needs procrastinate: pip install 'pregel-async[service]'. Without it, "
                "RowDispatcher() finds queued threads by their rows"
            ) from error
        self.schema = schema
        self._conn_string = conn_string
        self._engine: Any = engine
        self._app: Any = None
        self._namespace = ""

    async def setup(self, saver: BaseCheckpointSaver) -> None:
        """Make procrastinate's tables, or upgrade them, in one transaction.

        Args:
            saver: the open saver of the service.

        Raises:
            ConfigError: the saver is no `PostgresSaver`.
        """
        from psycopg import sql

        manager = import_module("procrastinate.schema").SchemaManager
        migrations = _scripts(manager.get_migrations_path())
        async with await psycopg.AsyncConnection.connect(self._url(saver)) as connection:
            schema, version = sql.Identifier(self.schema), sql.Identifier(self.schema, _VERSION_TABLE)
            await connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"pregel jobs {self.schema}",))
            await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
            await connection.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} (newest text NOT NULL)").format(version))
            await connection.execute("SELECT set_config('search_path', %s, true)", (self.schema,))
            row = await (await connection.execute(sql.SQL("SELECT newest FROM {}").format(version))).fetchone()
            if row is None:
                await connection.execute(manager.get_schema())
                await connection.execute(sql.SQL("INSERT INTO {} VALUES (%s)").format(version), (max(migrations),))
                return
            for name, text in sorted(migrations.items()):
                if name > row[0]:
                    await connection.execute(text)
                    await connection.execute(sql.SQL("UPDATE {} SET newest = %s").format(version), (name,))

    def announcing(self, saver: BaseCheckpointSaver) -> AbstractAsyncContextManager[object]:
        return self._announcing(saver)

    @asynccontextmanager
    async def _announcing(self, saver: BaseCheckpointSaver) -> AsyncGenerator[None, None]:
        url = self._url(saver)
        assert isinstance(saver, PostgresSaver)  # `_url` has checked it
        self._namespace = saver.schema
        # An app keeps the pool that it was opened with, so that each open service has an app of its own.
        self._app = self._engine.App(
            connector=self._engine.PsycopgConnector(conninfo=_of_jobs(url, self.schema), min_size=1, max_size=4)
        )
        saver.runs.on_queued = self._insert_job
        try:
            async with self._app.open_async():
                yield
        finally:
            saver.runs.on_queued = None
            self._app = None

    async def _insert_job(self, connection: Any, thread: RunThreadRow) -> None:
        """Insert the job of a queued thread, in the transaction that queues it."""
        await connection.execute("SELECT set_config('search_path', %s, true)", (self.schema,))
        job = self._app.configure_task(
            TASK, queue=self._queue_of(thread.route), connection=connection, priority=thread.priority
        )
        try:
            await job.defer_async(thread_id=thread.thread_id, no=thread.activation_no)
        except self._engine.exceptions.ConnectorException as error:
            # The saver repeats a transaction whose connection broke. It knows that by the driver's own error.
            if isinstance(error.__cause__, psycopg.Error):
                raise error.__cause__ from None
            raise

    async def work(self, crew: Crew) -> None:
        async def work_on(thread_id: str, no: int) -> None:
            await crew.work_on(thread_id, no)

        self._app.task(work_on, name=TASK)
        queues = [self._queue_of(route) for route in crew.routes]
        while True:
            # No options for the handlers of signals and for deadlines: the service drains the runs itself.
            worker = import_module("procrastinate.worker").Worker(
                self._app,
                queues=queues,
                concurrency=crew.slots,
                fetch_job_polling_interval=1.0,
                delete_jobs="always",
                install_signal_handlers=False,
            )
            await _run(worker)
            log.error("procrastinate's worker has stopped: starting it again")
            await crew.environment.sleep(RESTART_AFTER)

    async def unannounced(self, queued: Sequence[RunThreadRow]) -> Sequence[RunThreadRow]:
        if not queued:
            return ()
        # Jobs of workers that died remain `doing` for ever. The threads of their runs are found by their leases.
        await self._app.connector.execute_query_async(
            "DELETE FROM procrastinate_jobs j WHERE j.status = 'doing' AND j.task_name = %(task)s AND NOT EXISTS "
            "(SELECT FROM procrastinate_workers w WHERE w.id = j.worker_id)",
            task=TASK,
        )
        rows = await self._app.connector.execute_query_all_async(
            "SELECT args ->> 'thread_id' AS thread_id, (args ->> 'no')::bigint AS no FROM procrastinate_jobs "
            "WHERE status IN ('todo', 'doing') AND task_name = %(task)s AND args ->> 'thread_id' = ANY(%(threads)s)",
            task=TASK,
            threads=[thread.thread_id for thread in queued],
        )
        there = {(row["thread_id"], row["no"]) for row in rows}
        return [thread for thread in queued if (thread.thread_id, thread.activation_no) not in there]

    def _queue_of(self, route: str) -> str:
        """Return the name of a route's queue. Names are part of a channel's name, which has 63 bytes at most."""
        digest = hashlib.blake2b(f"{self._namespace}\x00{route}".encode(), digest_size=12).digest()
        return f"pa_{b32encode(digest).decode().rstrip('=').lower()}"

    def _url(self, saver: BaseCheckpointSaver) -> str:
        if not isinstance(saver, PostgresSaver):
            raise ConfigError(f"procrastinate keeps its jobs in PostgreSQL, and the saver is a {type(saver).__name__}")
        url = self._conn_string or saver.runs.conn_string
        if url is None:
            raise ConfigError("the saver was given a pool: pass ProcrastinateDispatcher(conn_string=...), too")
        return url


def _of_jobs(url: str, schema: str) -> str:
    """Return the connection string of procrastinate's own connections."""
    given = conninfo_to_dict(url)
    # What a crash of the server loses of procrastinate's bookkeeping, the keeper finds by the threads' rows.
    options = f"{given.pop('options', '')} -c synchronous_commit=off -c search_path={schema}"
    return make_conninfo("", **given, options=options.strip())


def _scripts(folder: str) -> dict[str, Any]:
    """Return procrastinate's scripts of migration, by name. The names sort by version."""
    return {path.name: path.read_text("utf-8") for path in Path(folder).glob("*.sql")}


async def _run(worker: Any) -> None:
    """Run procrastinate's worker until it stops.

    If this is cancelled, the worker stops to fetch jobs, and those that were fetched are waited for.

    Args:
        worker: the worker.
    """
    # In a task of asyncio's own: a cancel scope would cancel again and again what the worker does to stop in order.
    task = asyncio.create_task(worker.run(), name="procrastinate worker")  # noqa: TID251  # see above
    try:
        await asyncio.wait((task,))
    except anyio.get_cancelled_exc_class():
        worker.stop()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task,))
        raise
    finally:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            log.error("procrastinate's worker has failed", exc_info=error)
