"""A process of one version in a rolling deployment, which may be killed.

The process runs threads in a random order until each has enough rounds, or is refused. It writes one byte per event to
a connection, so that the test can choose the moment of a kill.
"""

from __future__ import annotations

import json
import operator
import os
import random
import traceback
import warnings
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import msgspec

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver, SqliteSaver, ThreadBusyError
from pregel_async import START, Command, StateGraph, interrupt, task
from pregel_async.errors import (
    EmptyInputError,
    GraphChangedError,
    GraphVersionError,
    InvalidResumeError,
    UnknownStoredKeyWarning,
)
from pregel_async.types import Added, Durability, Renamed, StoredState

UNIT = {1: 1, 2: 100}
"""What a round adds to the amount, by version. The migration multiplies the amount accordingly."""


class Job(msgspec.Struct):
    """One job of the child process.

    Attributes:
        version: of the code.
        database: a path, or the connection string and the schema.
        log: the file to which all processes append what they do.
        threads: the threads.
        rounds: the number of rounds of each.
        seed: chooses the order.
        durability: the durability mode.
    """

    version: int
    database: str | tuple[str, str]
    log: str
    threads: list[str]
    rounds: int
    seed: int
    durability: Durability

    def open(self) -> AbstractAsyncContextManager[BaseCheckpointSaver]:
        if isinstance(self.database, str):
            return SqliteSaver.from_conn_string(self.database, synchronous="NORMAL")
        url, schema = self.database
        return PostgresSaver(url, schema=schema, setup=False)


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str
    net: int
    rounds: int


class New(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    customer: Annotated[str, Renamed("name")]
    net: int
    rounds: int
    vat: Annotated[int, Added(19)]


def in_cents(old: StoredState) -> dict[str, Any]:
    return {"net": 100 * old["net"]} if "net" in old else {}


def graph_of(saver: BaseCheckpointSaver | None, version: int, say: Any, thread: str) -> Any:
    """Compile a version. Threads whose names end with "late" change the amount in the last node."""
    late, unit, key = thread.endswith("late"), UNIT[version], "name" if version == 1 else "customer"

    def amount(state: Any) -> Any:
        assert state[key] == thread, "code of this version cannot run this thread"
        return {"net": state.get("net", 0) + unit}

    def add(state: Any) -> Any:
        say("ran", version, state.get("rounds", 0))
        return {"log": ["add"], **({} if late else amount(state))}

    @task
    async def charge(number: int) -> str:
        say("charged", version, number)
        return f"paid {number}"

    async def approve(state: Any) -> Any:
        number = len(state["log"])
        paid = await charge(number)
        say("paid", version, number)
        return {"log": [paid, interrupt("good?")]}

    def end(state: Any) -> Any:
        return {"log": ["end"], "rounds": state.get("rounds", 0) + 1, **(amount(state) if late else {})}

    builder: Any = StateGraph(Old if version == 1 else New)
    name, was = ("approve", {}) if version == 1 else ("sign_off", {"was": "approve"})
    builder.add_node("add", add).add_node(name, approve, **was).add_node("end", end)
    builder.add_edge(START, "add").add_edge(START, name).add_edge(["add", name], "end")
    options: dict[str, Any] = {} if version == 1 else {"version": 2, "migrations": {2: in_cents}}
    return builder.compile(saver, blocking=False, **options)


class Process:
    """A process of the deployment."""

    def __init__(self, job: Job, saver: BaseCheckpointSaver, events: Connection) -> None:
        self.job = job
        self.events = events.fileno()
        self.saver = saver
        self.file = os.open(job.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.left = [*job.threads]

    def say(self, *what: Any) -> None:
        os.write(self.file, f"{json.dumps(what)}\n".encode())
        os.write(self.events, b".")

    async def run(self) -> None:
        rng = random.Random(self.job.seed)
        while self.left:
            thread = rng.choice(self.left)
            try:
                if await self.step(thread, rng):
                    self.left.remove(thread)
            except ThreadBusyError:
                await anyio.sleep(0.001 * rng.random())  # the other process has it
            except GraphVersionError:
                assert self.job.version == 1
                self.left.remove(thread)
            except (InvalidResumeError, EmptyInputError):
                pass  # the other process was faster

    async def step(self, thread: str, rng: random.Random) -> bool:
        """Make one call on a thread. Return True if the thread needs this process no longer."""
        version, key = self.job.version, "name" if self.job.version == 1 else "customer"
        graph = graph_of(self.saver, version, lambda *what: self.say(thread, *what), thread)
        state = await graph.aget_state(thread)
        if any(each.kind == "version" for each in state.changed):
            assert version == 1
            return True
        given: Any = {key: thread, "log": ["in"]}
        if state.next:
            if state.interrupts and rng.random() < 0.8:
                given = Command(resume={each.id: "yes" for each in state.interrupts})
            else:
                given = None
        elif state.values.get("rounds", 0) >= self.job.rounds:
            if version == 1 or state.metadata.get("__version__") == 2:
                return True
        try:
            await graph.ainvoke(given, thread, durability=self.job.durability)
        except GraphChangedError as error:
            if isinstance(error, GraphVersionError):
                raise
            assert version == 2 and not thread.endswith("late"), error
            assert [each.name for each in error.mismatches] == ["net"], error
            if rng.random() < 0.3:  # the old process may end the superstep before
                await graph.ainvoke({key: thread, "log": ["in"]}, thread, durability=self.job.durability)
        return False


async def run(job: Job, events: Connection) -> None:
    async with job.open() as saver:
        await Process(job, saver, events).run()


def main(job: bytes, events: Connection) -> None:
    """Run the process. An error goes to a file, whose name is that of the log with `.error`."""
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", UnknownStoredKeyWarning)
    os.write(events.fileno(), b".")
    todo = msgspec.json.decode(job, type=Job)
    try:
        anyio.run(run, todo, events)
    except BaseException:
        Path(f"{todo.log}.error").write_text(traceback.format_exc(), "utf-8")
        raise
