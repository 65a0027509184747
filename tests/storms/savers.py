"""The saver of a storm, which each of its processes opens by the same words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from checkpoint_savers import BaseCheckpointSaver, SqliteSaver
from pregel_async.service.dispatch import Dispatcher, RowDispatcher

LEASE_SECONDS = 1.0
"""Seconds after which a lease expires in the processes of a storm."""


@asynccontextmanager
async def opened_saver(source: str) -> AsyncIterator[BaseCheckpointSaver]:
    """Open the saver of a storm.

    Args:
        source: `sqlite:PATH`, `postgres:SCHEMA:CONNECTION STRING`, or the same with `procrastinate`.
    """
    kind, _, place = source.partition(":")
    made: BaseCheckpointSaver
    if kind == "sqlite":
        made = SqliteSaver.from_conn_string(place)
    else:
        from checkpoint_savers import PostgresSaver

        schema, _, conninfo = place.partition(":")
        made = PostgresSaver.from_conn_string(conninfo, schema=schema, setup=True)
    made.lease_seconds = LEASE_SECONDS
    async with made as saver:
        yield saver


def dispatcher_of(source: str) -> Dispatcher:
    """Return what brings queued threads to the workers of a storm.

    Args:
        source: see `opened_saver`.
    """
    kind, schema, *_ = source.split(":")
    if kind != "procrastinate":
        return RowDispatcher()
    from pregel_async.service.dispatch.procrastinate import ProcrastinateDispatcher

    return ProcrastinateDispatcher(schema=jobs_of(schema))


def jobs_of(schema: str) -> str:
    """Return the schema of procrastinate's jobs.

    Args:
        schema: of the threads.
    """
    return f"{schema}_jobs"
