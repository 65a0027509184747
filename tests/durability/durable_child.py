"""The process that is killed: python durable_child.py DATABASE LOG JOB.

A job is a list of threads, each with its graph. What is stored of each is written to the log first; then it is begun,
or resumed at once. Every node tells the log when it starts, before it does anything else. A byte goes to standard
output for each thing that happens, so that whoever kills this process can choose the moment.
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
from tests.durability.durable_graphs import Probe, random_graph
from tests.durability.durable_world import Stored
from tests.helpers.passing_saver import Through

T = TypeVar("T")


class Job(msgspec.Struct):
    """Attributes:
    threads: thread id -> seed of its graph; or the root and the report of an audit.
    together: run all threads at once, or one after the other.
    trio: on trio.
    mode: of durability.
    """

    threads: dict[str, int | tuple[str, str]]
    together: bool
    trio: bool
    mode: Durability


class Told(Probe):
    """A probe that writes what it is told to the log."""

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
    """A byte before and after each verb, so that a kill can hit between and within them."""

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
    probe = Told(log, thread)
    what = job.threads[thread]
    if isinstance(what, int):
        stored = await Stored.of(inner, thread)
        probe.say("stored", [stored.length, sorted(stored.keys)])
        builder: StateGraph[Any, Any, Any] = random_graph(probe, what)
        given: Any = {"log": ["in"]}
    else:
        from tests.durability.durable_audit import audit_graph, stored_audit  # its example takes a while to import

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
