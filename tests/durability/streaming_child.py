"""The process of one reader of a stream, which may be killed: python streaming_child.py JOB.

The process starts a run, or reconnects with the cursor of the last part in the reader's file, and appends each part
that it reads to that file as a line of JSON. It writes one byte to standard output per event, so that the test can
choose the moment of a kill.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import msgspec

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver, SqliteSaver
from pregel_async.errors import EmptyInputError
from pregel_async.types import Durability
from tests.durability.durable_child import Ticking
from tests.durability.streaming_graphs import graph_of

ASK: Any = {
    "stream_mode": ["messages", "custom", "updates", "values", "tasks", "checkpoints"],
    "subgraphs": True,
    "version": "v2",
}


class Job(msgspec.Struct):
    """One job of the child process.

    Attributes:
        reader: the reader's file. Its first line holds the thread and the cursor to start from.
        database: a path, or the connection string and the schema.
        trio: run on trio instead of asyncio.
        mode: the durability mode.
    """

    reader: str
    database: str | tuple[str, str]
    trio: bool
    mode: Durability

    def open(self) -> AbstractAsyncContextManager[BaseCheckpointSaver]:
        if isinstance(self.database, str):
            return SqliteSaver.from_conn_string(self.database)
        url, schema = self.database
        return PostgresSaver(url, schema=schema, setup=False)


def lines_of(path: str) -> list[Any]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


async def main(job: Job) -> None:
    seen = lines_of(job.reader)
    file = os.open(job.reader, os.O_WRONLY | os.O_APPEND)

    def say(what: Any) -> None:
        os.write(file, f"{json.dumps(what, default=str)}\n".encode())
        os.write(1, b".")

    async with job.open() as saver:
        graph = graph_of(Ticking(saver))
        if seen:
            how: Any = {"after": seen[-1]["cursor"], "on_conflict": "wait"}
            stream = graph.astream(None, seen[0]["thread"], durability=job.mode, **how, **ASK)
        else:
            thread = f"thread of {os.getpid()}"
            stream = graph.astream({"log": []}, thread, durability=job.mode, keep_events=True, **ASK)
            await stream.begin()
            say({"thread": thread, "cursor": stream.cursor})
        try:
            async with stream as parts:
                async for part in parts:
                    say(part)
        except EmptyInputError:
            assert job.mode == "async", "a run has begun, and nothing of it is stored"
            os.truncate(job.reader, 0)  # send the input again
            return
        assert stream.status == "done", stream.status
    say({"type": "end"})


if __name__ == "__main__":
    os.write(1, b".")
    job = msgspec.json.decode(sys.argv[1], type=Job)
    anyio.run(main, job, backend="trio" if job.trio else "asyncio")
