"""One of several processes that write the threads of one file: `python sqlite_rival.py FILE NAME SEED`.

The process prints one line for each superstep that the saver acknowledged: thread, number, epoch, mark. Its leases are
short, so that others take a thread over while this process is stopped.
"""

from __future__ import annotations

import random
import sys
import time

import anyio

from checkpoint_savers import SqliteSaver, ThreadBusyError
from checkpoint_savers.conformance.savers.suite import cid, commit, event, record, row
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import CheckpointRow, Lease

SHARED = ("shared 1", "shared 2")

SHORT = 0.3
"""The duration of a lease in seconds, from each commit."""


def numbered(number: int, mark: str) -> CheckpointRow:
    """A superstep of a thread. Chains have twenty rows, with snapshot rows."""
    keyframe, snapshot = (number - 1) // 20 * 20 + 1, (number - 1) // 5 * 5 + 1
    base = keyframe if number == snapshot else snapshot
    return row(number, number - 1 or None, base=base, frame=f"{mark} {number} ".encode() * (number % 40 + 1))


async def one_run(saver: SqliteSaver, thread: str, run: str, rng: random.Random) -> None:
    """Acquire a lease on a thread and add some supersteps. Release the lease, or abandon it as a crashed process
    does."""
    now = time.time()
    lease: Lease = await saver.acquire(thread, this_process(run), now=now, expires_at=now + SHORT)
    chain = await saver.read(thread)
    last = 0 if chain is None else int(chain.head.split("-")[0])
    overtaken = lease.newest != (
        None if chain is None else chain.head
    )  # the process was stopped here until its lease expired
    for _ in range(rng.randrange(1, 6)):
        mark = f"{run}.{rng.getrandbits(32)}"
        old = [] if last == 0 else [record(last, "task")]
        await saver.commit(
            lease,
            commit(
                numbered(last + 1, mark),
                head=last or None,
                records=[record(last + 1, "task", frame=mark.encode())],
                clears=old,
                events=[event(last + 1, epoch=lease.epoch, frame=mark.encode())],
                expires_at=time.time() + SHORT,
            ),
        )
        assert not overtaken, "a write under a lease that another process had taken over was stored"
        last += 1
        print(thread, last, lease.epoch, mark, sep="\t", flush=True)
    if rng.random() < 0.7:
        await saver.release(lease)


async def main(path: str, name: str, seed: str) -> None:
    rng = random.Random(seed)
    async with SqliteSaver.from_conn_string(path, synchronous="NORMAL", busy_timeout=60) as saver:
        print("ready", flush=True)
        number = 0
        while True:
            number += 1
            thread = rng.choice([*SHARED * 3, f"own {name}"])
            try:
                await one_run(saver, thread, f"{name}-{number}", rng)
            except ThreadBusyError:
                continue


if __name__ == "__main__":
    assert cid(1) < cid(10)
    anyio.run(main, *sys.argv[1:])
