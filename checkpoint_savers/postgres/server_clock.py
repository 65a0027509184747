"""`ServerClock`: the server's time, by which leases are timed on all machines."""

from __future__ import annotations

import sys
import time
from functools import partial

from .connections import PostgresCursor

# On Linux, the monotonic clock stops while the machine is suspended. By a clock that is an hour late, a lease would
# have lapsed when it is acquired.
counter = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic

SERVER_TIME = "extract(epoch FROM clock_timestamp())::float8"
"""An expression for the server's time, in unix seconds."""


# The clocks of two machines may differ by minutes. If each compared a lease's expiry with its own, one would take over
# live leases, and the other would wait for dead ones. The times are not made by the statements themselves, because
# keepers and listings compare expiries in Python, where they also see whether the owner's process has ended.
class ServerClock:
    """Returns the server's time in unix seconds, without asking the server for it.

    The server's time was read between the moments at which a statement was sent and its answer received. A counter of
    this machine, which cannot be set, measures what has passed since. The error is less than the duration of the
    fastest statement. Each answer to a statement that acquires a lease or commits has the time, so the clock follows if
    the server's is set.

    Before the first answer, it returns this machine's time. A saver has one answer when it is open.
    """

    def __init__(self) -> None:
        self._offset: float | None = None

    def __call__(self) -> float:
        """Return the server's time, in unix seconds."""
        offset = self._offset
        return time.time() if offset is None else counter() + offset

    def update(self, sent: float, time_of_server: float, received: float) -> None:
        """Correct the clock by an answer.

        Args:
            sent: the counter when the statement was sent.
            time_of_server: what the statement has read.
            received: the counter when the answer was there.
        """
        # The offset is certainly between these. If it is already, a slow answer must not make it less exact.
        low, high = time_of_server - received, time_of_server - sent
        self._offset = (low + high) / 2 if self._offset is None else min(max(self._offset, low), high)

    async def read(self, cursor: PostgresCursor) -> None:
        """Correct the clock by asking the server.

        Args:
            cursor: of any connection.
        """
        sent = counter()
        await cursor.execute(f"SELECT {SERVER_TIME}".encode())
        ((time_of_server,),) = await cursor.fetchall()
        self.update(sent, time_of_server, counter())
