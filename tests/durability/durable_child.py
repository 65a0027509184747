"""The process that the kill tests kill: python durable_child.py DATABASE LOG JOB.

A job is a list of threads, each with its graph. The process first writes to the log what is stored of each thread, then
starts or resumes the thread. Every node writes to the log when it starts, before any other work. The process writes one
byte to standard output per event, so that the parent process can choose the moment of the kill.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import msgspec

from checkpoint_savers import SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import StateGraph
from pregel_async.types import Durability
from tests.durability.durable_environment import Stored
from tests.durability.durable_graphs import Probe, random_graph
from tests.helpers.passing_saver import Through

T = TypeVar("T")


class Job(msgspec.Struct):
    """One job of the child process.

    Attributes:
        threads: thread id -> seed of its graph; or the root directory and the report of an audit.
        together: run all threads concurrently instead of one after the other.
        trio: run on trio instead of asyncio.
        mode: the durability mode.
    """

    threads: dict[str, int | tuple[str, str]]
    together: bool
    trio: bool
    mode: Durability


class LoggingProbe(Probe):
    """A probe that writes each reported event to the log."""

    def __init__(self, log: int, thread: str) -> None:
        super().__init__()
        self._log = log
        self._thread = thread
        self.started = _Lines(lambda key: self.say("+", key))
        self.finished = _Lines(lambda key: self.say("-", key))

    def say(self, what: str, about: Any) -> None:
        os.write(self._log, f"{json.dumps([what, self._thread, about])}\n".encode())
        os.write(1, b".")


class _Lines(list[str]):
    def __init__(self, each: Callable[[str], None]) -> None:
        super().__init__()
        self.append = each


class Ticking(Through):
    """A saver that writes a byte before and after each verb, so that a kill can hit between and within verbs."""

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        os.write(1, b".")
        value = await call()
        os.write(1, b".")
        return value


async def main(database: str, log: int, job: Job) -> None:
    async with SqliteSaver.from_conn_string(database) as inner:
        saver = Ticking(inner)
        async with anyio.create_task_group() as group:
            for thread in job.threads:
                if job.together:
                    group.start_soon(one, inner, saver, log, thread, job)
                else:
                    await one(inner, saver, log, thread, job)


async def one(inner: BaseCheckpointSaver, saver: BaseCheckpointSaver, log: int, thread: str, job: Job) -> None:
    probe = LoggingProbe(log, thread)
    what = job.threads[thread]
    if isinstance(what, int):
        stored = await Stored.of(inner, thread)
        probe.say("stored", [stored.length, sorted(stored.keys)])
        builder: StateGraph[Any] = random_graph(probe, what)
        given: Any = {"log": ["in"]}
    else:
        # imported here because the example takes a while to import
        from tests.durability.durable_audit import audit_graph, stored_audit

        stored = await stored_audit(inner, thread)
        probe.say("stored", [stored.length, sorted(stored.keys)])
        builder = audit_graph(probe)
        given = {"root": what[0], "report": what[1]}
    await builder.compile(saver).ainvoke(None if stored.length >= 0 else given, thread, durability=job.mode)
    probe.say("end", None)


if __name__ == "__main__":
    os.write(1, b".")
    job = msgspec.json.decode(sys.argv[3], type=Job)
    log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    anyio.run(main, sys.argv[1], log, job, backend="trio" if job.trio else "asyncio")
    os.write(1, b"!")
