"""A worker in a process of its own, whose only run waits for ever at its gate: the test kills it."""

from __future__ import annotations

import sys

import anyio

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver, SqliteSaver
from pregel_async.service import RunService

from .graphs import Gate, talking


async def work(kind: str, place: str) -> None:
    saver: BaseCheckpointSaver
    if kind == "sqlite":
        saver = SqliteSaver(place, synchronous="NORMAL")
    else:
        saver = PostgresSaver(sys.argv[3], schema=place, setup=False)
    async with saver, RunService({"agent": talking(Gate())}, saver):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(work, sys.argv[1], sys.argv[2])
