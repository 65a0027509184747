"""Ask the server whether a transaction was committed, after the connection broke that was to answer.

The server knows a transaction by its number. After a crash it gives the numbers of lost transactions to others. So
"committed" may be said of another transaction, and the caller also looks whether its own writes are there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import psycopg

from ..errors import StorageError
from .connections import PostgresCursor

_STATUS: Final = b"SELECT pg_xact_status(%b::text::xid8)"
_PAUSE: Final = 0.02
"""Seconds between two questions."""


async def was_committed(
    cursor: PostgresCursor, xid: str, name: str, timeout: float, *, lacks_writes: Callable[[], Awaitable[bool]]
) -> bool:
    """Return True if a transaction was committed, and False if it was rolled back or lost.

    Args:
        cursor: of a connection in autocommit mode.
        xid: the transaction's number, as `pg_current_xact_id()` returned it.
        name: how messages name the database.
        timeout: seconds to wait until the server has ended it.
        lacks_writes: returns True if the database shows that what the transaction was to write is not there.

    Raises:
        StorageError: the server has not ended it within that time.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            await cursor.execute(_STATUS, (xid,), binary=True)
        except psycopg.errors.InvalidParameterValue:  # the server crashed and never assigned that number
            return False
        ((status,),) = await cursor.fetchall()
        if status != "in progress":
            return status == "committed" and not await lacks_writes()
        if time.monotonic() >= deadline:
            raise StorageError(
                f"{name}: the connection broke while a transaction was being committed, and the server has not ended "
                "it yet. Read what is stored before you write it again."
            )
        await asyncio.sleep(_PAUSE)  # the server has not noticed yet that the client is gone
