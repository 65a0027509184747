"""The database that a command names: a SQLite file, a PostgreSQL database, or that of a service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit, urlunsplit

import anyio
import msgspec
import typer

from checkpoint_savers import BaseCheckpointSaver, SqliteSaver
from checkpoint_savers.runs.port import RunStore

from ..service import RunService
from .target import NotStoredError, UsageError, load_service

T = TypeVar("T")

DbOption = Annotated[str, typer.Option("--db", metavar="FILE", help="The SQLite file that keeps threads.")]
PostgresOption = Annotated[
    str | None, typer.Option("--postgres", metavar="URL", help="The PostgreSQL database, instead of --db.")
]
SchemaOption = Annotated[str, typer.Option("--schema", metavar="NAME", help="With --postgres: where the tables are.")]
ServiceOption = Annotated[
    str | None, typer.Option("--service", metavar="MODULE:SERVICE", help="The database of this service, instead.")
]


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """The options that name a database.

    Attributes:
        db: the path of an SQLite file, or a `file:` URI.
        postgres: the URL of a PostgreSQL database, which is used instead; None for the file.
        schema: the schema of its tables.
        service: MODULE:SERVICE, whose database is used instead; None for no service.
    """

    db: str
    postgres: str | None = None
    schema: str = "public"
    service: str | None = None

    @property
    def exists(self) -> bool:
        """True if the database exists. A file is not opened to find out, because opening would create it."""
        return self.postgres is not None or database_exists(self.db)

    @property
    def name(self) -> str:
        """The database, for messages, without a password."""
        return self.db if self.postgres is None else _without_password(self.postgres)

    @property
    def words(self) -> list[str]:
        """The options again, for a command that is printed. A password is left out."""
        if self.postgres is None:
            return ["--db", self.db]
        return ["--postgres", self.name, *(("--schema", self.schema) if self.schema != "public" else ())]

    @asynccontextmanager
    async def open(
        self, *, new: bool = False, service: RunService | None = None
    ) -> AsyncGenerator[BaseCheckpointSaver, None]:
        """Open the database.

        Args:
            new: create a missing SQLite file.
            service: the service, if the options name one.

        Yields:
            Its saver.

        Raises:
            NotStoredError: there is no such file.
            StorageError: it cannot be opened.
        """
        if service is not None:
            async with service.with_work(False) as opened:
                yield opened._require_open().saver
        elif self.postgres is not None:
            from checkpoint_savers import PostgresSaver

            async with PostgresSaver.from_conn_string(self.postgres, schema=self.schema) as postgres:
                yield postgres
        else:
            if not new and not self.exists:
                raise NotStoredError(f"there is no database {self.db}")
            async with SqliteSaver.from_conn_string(self.db) as sqlite:
                yield sqlite

    def run(self, work: Callable[[BaseCheckpointSaver], Awaitable[T]], *, new: bool = False) -> T:
        """Open the database, and call a function with its saver.

        Args:
            work: the function.
            new: create a missing SQLite file.

        Returns:
            What the function returned.

        Raises:
            UsageError: MODULE:SERVICE names no service.
            NotStoredError: there is no such file.
        """
        service = None if self.service is None else load_service(self.service)

        async def opened() -> T:
            async with self.open(new=new, service=service) as saver:
                return await work(saver)

        return anyio.run(opened)


def run_with_service(target: str, work: Callable[[RunService], Awaitable[T]]) -> T:
    """Open a service that executes nothing, and call a function with it.

    Args:
        target: MODULE:SERVICE, as written on the command line.
        work: the function.

    Returns:
        What the function returned.

    Raises:
        UsageError: MODULE:SERVICE names no service.
    """
    service = load_service(target).with_work(False)

    async def opened() -> T:
        async with service:
            return await work(service)

    return anyio.run(opened)


def database_exists(db: str) -> bool:
    """Return True if a database exists, without opening it, because opening would create it.

    Args:
        db: the path of an SQLite file, or a `file:` URI.

    Returns:
        Whether the file exists. Every URI counts as existing.
    """
    return db.startswith("file:") or Path(db).exists()


def runs_of(saver: BaseCheckpointSaver) -> RunStore:
    """Return the run store of a saver.

    Args:
        saver: the saver.

    Raises:
        UsageError: it has none.
    """
    if saver.runs is None:
        raise UsageError(f"a {type(saver).__name__} stores no runs, and so has no statuses of threads")
    return saver.runs


def _without_password(url: str) -> str:
    """Return a connection string without its password, which libpq finds in PGPASSWORD or in a file, too."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return "PostgreSQL"
    if not parts.scheme:  # "host=... password=...": not worth taking apart
        return "PostgreSQL" if "password" in url else url
    if password is None or parts.username is None:
        return "PostgreSQL" if "password=" in parts.query else url
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.netloc.rpartition('@')[2]}"))
