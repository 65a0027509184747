"""The workloads of all engines: the same node coroutines, states and messages; and `Case`, one workload ready to run.

Nodes take a state and return an update. They use no event loop of their own, so that they run on all of them.
"""

from __future__ import annotations

import operator
import os
import sqlite3
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio

from .memory import resident

UNLIMITED = 10_000_000


class CannotError(Exception):
    """The engine does not support this workload; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The timed part of a workload. It is built before the clock starts.

    Attributes:
        run: one operation.
        units: supersteps, tasks, chunks or conversations that it does.
        right: whether its result is right.
        figures: figures made of its result, in addition to the time; `us` here replaces the time per unit by one that the
            operation took itself.
    """

    run: Callable[[], Awaitable[Any]]
    units: int
    right: Callable[[Any], bool]
    figures: Callable[[Any], dict[str, float]] = field(default=lambda result: {})


class Counter(TypedDict):
    x: int


class Talk(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Chat(TypedDict):
    messages: Annotated[list[Any], operator.add]
    left: int


class Reading(TypedDict):
    messages: Annotated[list[Any], operator.add]
    x: int


class Fan(TypedDict):
    n: int
    out: Annotated[list[int], operator.add]
    total: int


class Subject(TypedDict):
    subject: str


class Jokes(TypedDict):
    jokes: list[str]


class Joke(TypedDict):
    subject: str
    jokes: list[str]


class Show(TypedDict):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


async def increment(state: Any) -> dict[str, int]:
    return {"x": state["x"] + 1}


def waiting(pause: float) -> Callable[[Any], Awaitable[dict[str, int]]]:
    """A node that waits as if for a service."""

    async def node(state: Any) -> dict[str, int]:
        await anyio.sleep(pause)
        return {"x": state["x"] + 1}

    return node


def message(number: int, role: str = "assistant") -> dict[str, Any]:
    """A chat message of plain data, about 270 bytes."""
    return {
        "id": f"msg-{number:08d}",
        "role": role,
        "content": ("The quick brown fox jumps over the lazy dog. " * 4)[:160] + str(number),
        "meta": {"tokens": 40 + number % 7, "finish": "stop", "model": "m-1"},
    }


def conversation(count: int, *, flat: bool) -> list[dict[str, Any]]:
    """Return chat messages. If `flat`, a message has no dict of metadata: all its values are strings and numbers."""
    messages = [message(number) for number in range(count)]
    if flat:
        for each in messages:
            each |= {f"meta_{name}": value for name, value in each.pop("meta").items()}
    return messages


async def say(state: Any) -> dict[str, Any]:
    return {"messages": [message(len(state["messages"]))]}


def question(turns: int) -> dict[str, Any]:
    """The input of the agent loop."""
    return {"messages": [{"id": "0", "role": "user", "content": "hi?"}], "left": turns}


async def agent(state: Any) -> dict[str, Any]:
    said = message(len(state["messages"]))
    if state["left"] > 0:
        said["tool_calls"] = [{"id": f"call-{said['id']}", "name": "search", "args": {"query": "q" * 40}}]
    return {"messages": [said]}


async def tool(state: Any) -> dict[str, Any]:
    return {"messages": [message(len(state["messages"]), "tool")], "left": state["left"] - 1}


def asks(state: Any) -> bool:
    """Return True if the agent has called a tool."""
    return "tool_calls" in state["messages"][-1]


def answered(number: int, turns: int) -> dict[str, Any]:
    """The answer of a scripted model to so many messages: a call of the tool in each of the turns, and then a text."""
    if number > 2 * turns:
        return {"id": f"msg-{number}", "role": "assistant", "content": "done"}
    call = {"type": "tool_call", "id": f"call-{number}", "name": "search", "args": {"query": "q" * 40}}
    return {"id": f"msg-{number}", "role": "assistant", "content": "", "tool_calls": [call]}


async def search(query: str) -> str:
    """Search."""
    return f"found {query}"


async def work(item: Any) -> dict[str, list[int]]:
    return {"out": [item["i"]]}


async def work_later(item: Any) -> dict[str, list[int]]:
    """The same, after one turn of the event loop."""
    await anyio.lowlevel.checkpoint()
    return {"out": [item["i"]]}


async def total(state: Any) -> dict[str, int]:
    return {"total": sum(state["out"])}


SUBJECT = "abcdefghij" * 10
BUMPS = 10
INNER = 2 + BUMPS  # supersteps of the subgraph


async def edit(state: Any) -> dict[str, str]:
    return {"subject": f"{state['subject']} - hohoho"}


async def generate(state: Any) -> dict[str, list[str]]:
    return {"jokes": [f"Joke about {state['subject']}"]}


async def bump(state: Any) -> dict[str, list[str]]:
    return {"jokes": [state["jokes"][0] + " a"]}


def ends_with_bumps(state: Any) -> bool:
    return bool(state["jokes"][0].endswith(" a" * BUMPS))


READS = 3  # of a thread's state, one after another: their mean counts

WIDE = ("one", "two", "three", "four", "five", "six")  # one, two, three and four, five, six, and again


def wide_keys(count: int) -> list[str]:
    return [f"k{place:03d}" for place in range(count)]


def wide_node(place: int, keys: list[str]) -> Callable[[Any], Awaitable[dict[str, int]]]:
    """Reads two keys and writes two; the last node of a round counts it."""
    first, second, third, fourth = keys[place * 4 : place * 4 + 4]

    async def node(state: Any) -> dict[str, int]:
        update = {third: (state[first] or 0) + 1, fourth: (state[second] or 0) + 1}
        return {**update, "round": state["round"] + 1} if place == len(WIDE) - 1 else update

    return node


class MessageReader:
    """A node that reads the last message, or each of them, and records when its first and last calls began."""

    def __init__(self, how: str) -> None:
        self.how, self.began, self.ended = how, 0.0, 0.0

    async def __call__(self, state: Any) -> dict[str, int]:
        self.ended = time.perf_counter()
        if state["x"] == 0:
            self.began = self.ended
        if self.how == "last":
            size = len(state["messages"][-1]["content"])
        else:
            size = sum(len(each["content"]) for each in state["messages"])
        assert size
        return {"x": state["x"] + 1}

    def figures(self, result: Any) -> dict[str, float]:
        """Return µs from one call to the next, so that the run's input and output do not count."""
        return {"us": (self.ended - self.began) / (result["x"] - 1) * 1e6}


class Gauge:
    """A node that measures the process's memory after a number of calls, and at its last call."""

    def __init__(self, early: int, late: int) -> None:
        self.seen: dict[str, float] = {}
        self.early, self.late = early, late

    async def __call__(self, state: Any) -> dict[str, int]:
        x: int = state["x"] + 1
        if x == self.early:
            self._look("early")
        elif x == self.late:
            self._look("late")
        return {"x": x}

    def _look(self, when: str) -> None:
        self.seen[f"rss_{when}_mb"] = resident()
        self.seen[f"blocks_{when}"] = sys.getallocatedblocks()


class Laps:
    """A stopwatch: seconds from one call to the next, by the name of the work between."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def __call__(self, done: str) -> None:
        now = time.perf_counter()
        self.seconds[done] = now - self.last
        self.last = now

    def milliseconds(self, *names: str) -> dict[str, float]:
        return {f"{name}_ms": self.seconds[name] * 1e3 for name in names}


def database(stack: AsyncExitStack) -> str:
    """Return the path of a new SQLite database in a directory that is removed with the stack."""
    return str(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))) / "threads.db")


def file_size(path: str) -> int:
    """Return the bytes of a database, with its log."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(path).stat().st_size


def postgres(stack: AsyncExitStack) -> tuple[str, str]:
    """Return the database that PREGEL_POSTGRES names, and a new schema in it that is removed with the stack."""
    import psycopg

    url = os.environ.get("PREGEL_POSTGRES", "postgresql://127.0.0.1:5432/test")
    schema = f"bench_{uuid.uuid4().hex}"
    try:
        admin = stack.enter_context(psycopg.connect(url, autocommit=True))
    except psycopg.OperationalError as error:
        raise CannotError("no PostgreSQL server: PREGEL_POSTGRES names one") from error
    admin.execute(f'CREATE SCHEMA "{schema}"'.encode())
    stack.callback(admin.execute, f'DROP SCHEMA "{schema}" CASCADE'.encode())
    return url, schema
