"""One of several processes that write the same threads: python postgres_child.py CONNINFO SCHEMA NAME LOG THREADS.

The process acquires a lease on one of the threads, commits some checkpoints, releases the lease or abandons it, and
starts again. Before the next commit begins, it writes each acknowledged commit to the log in a single write, and one
byte to standard output, so that the parent can choose the moment to stop or kill this process. The process ends when
its standard input does.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import anyio

from checkpoint_savers import PostgresSaver, StorageLockedError, ThreadBusyError
from checkpoint_savers.owner import this_process
from checkpoint_savers.records import CheckpointId, CheckpointRow, Commit

SECONDS = 0.15
"""The duration of a lease in seconds: shorter than a pause."""


async def main(conninfo: str, schema: str, name: str, log: int, threads: int) -> None:
    rng = random.Random(name)
    ending = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ending.set()), daemon=True).start()
    async with PostgresSaver.from_conn_string(conninfo, schema=schema, reconnect_timeout=60) as saver:
        async with anyio.create_task_group() as group:
            for number in range(3):  # several at once, so that they share transactions
                group.start_soon(work, saver, random.Random(rng.random()), f"{name}.{number}", log, threads, ending)


async def work(
    saver: PostgresSaver, rng: random.Random, name: str, log: int, threads: int, ending: threading.Event
) -> None:
    turn = 0
    while not ending.is_set():
        turn += 1
        thread = f"t{rng.randrange(threads)}"
        now = time.time()
        try:
            lease = await saver.acquire(thread, this_process(f"{name} {turn}"), now=now, expires_at=now + SECONDS)
            chain = await saver.read(thread)
            head, step = (None, 0) if chain is None else (chain.head, chain.rows[-1].step)
            for _ in range(rng.randint(1, 6)):
                step += 1
                one = CheckpointRow(
                    ns="",
                    # Each process gives a superstep an id of its own, so a refused commit leaves no trace.
                    checkpoint_id=CheckpointId(f"{step:08d} {name} {turn}"),
                    parent_id=head,
                    base_id=CheckpointId(f"{step:08d} {name} {turn}"),
                    step=step,
                    metadata={"epoch": lease.epoch},
                    frame=name.encode() * rng.randint(1, 2000),
                )
                await saver.commit(lease, Commit(rows=(one,), expected_head=head, expires_at=time.time() + SECONDS))
                os.write(log, f"{thread}\t{one.checkpoint_id}\n".encode())
                os.write(1, b".")
                head = one.checkpoint_id
            if rng.random() < 0.8:
                await saver.release(lease)
        except (ThreadBusyError, StorageLockedError):
            await anyio.sleep(rng.random() * 0.01)


if __name__ == "__main__":
    conninfo, schema, name, path, threads = sys.argv[1:]
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    anyio.run(main, conninfo, schema, name, log, int(threads))
