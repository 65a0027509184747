"""`python -m tests.storms --count 1000`: a storm, and a report of what it found."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio

from tests.helpers.postgres_tools import execute, own_server

from .savers import dispatcher_of, jobs_of, opened_saver
from .storm import Storm

EMPTY = """
SET search_path TO "{}";
DELETE FROM procrastinate_jobs WHERE id IN (SELECT id FROM procrastinate_jobs FOR UPDATE SKIP LOCKED)
"""
"""Not of jobs that a stopped worker has locked: this would wait for a worker that only the storm continues."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storms", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="the number of disturbances")
    parser.add_argument("--saver", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--postgres", default="postgresql://127.0.0.1:5432/test", help="a connection string")
    parser.add_argument("--own-server", action="store_true", help="start a server of PostgreSQL, and restart it, too")
    parser.add_argument("--procrastinate", action="store_true", help="bring threads as its jobs, and delete these, too")
    parser.add_argument("--schema", help="a new schema of PostgreSQL, which remains; else one is made and dropped")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--conversations", type=int, default=12, help="threads that are used at the same time")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds in which all runs must end at last")
    parser.add_argument("--place", type=Path, help="a new folder for the files, which remain; else they are removed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        place = given.place or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        others: dict[str, Callable[[], object]] = {}
        url = given.postgres
        if given.own_server:
            server = stack.enter_context(own_server())
            url, others["restart"] = server.conninfo, server.restart
        # The report counts all runs that are stored, so that no earlier storm may have used the schema.
        schema = given.schema or f"storm_{os.urandom(6).hex()}"
        source = f"postgres:{schema}:{url}" if given.saver == "postgres" else f"sqlite:{place / 'runs.db'}"
        if given.procrastinate:
            source = source.replace("postgres", "procrastinate", 1)
            anyio.run(make_jobs, source)
            others["empty"] = partial(execute, EMPTY.format(jobs_of(schema)), url=url)
        storm = Storm(source, place, given.seed, given.conversations, others)
        report = anyio.run(storm.report, storm.rage(given.count, given.patience))
        if given.saver == "postgres" and given.schema is None:
            execute(f'DROP SCHEMA IF EXISTS "{schema}", "{jobs_of(schema)}" CASCADE', url=url)
    print(*report.found, report, sep="\n")
    return int(bool(report.found))


async def make_jobs(source: str) -> None:
    """Make the tables of procrastinate."""
    async with opened_saver(source) as saver:
        await dispatcher_of(source).setup(saver)


if __name__ == "__main__":
    sys.exit(main())
