"""The table: its groups and rows, the target of each row, and the plots."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NewType

from .engines import ENGINES, LIMIT, MICROSOFT, OURS, PEER, PYDANTIC, TRIO, UVLOOP

CellId = NewType("CellId", str)

ALL = tuple(ENGINES)
AGENTS = (OURS, UVLOOP, TRIO, PEER, LIMIT)  # what has a prebuilt agent, and bare code
ONE_LOOP = (OURS, PEER, PYDANTIC, MICROSOFT, LIMIT)  # what has nothing to do with the event loop


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A workload with its parameters, which every engine runs in a process of its own.

    Attributes:
        workload: the name of the engines' methods.
        params: their arguments.
        engines: those that are measured.
        rounds: how many rounds at most; None is as many as the run has.
    """

    workload: str
    params: tuple[tuple[str, Any], ...] = ()
    engines: tuple[str, ...] = ALL
    rounds: int | None = None

    @property
    def id(self) -> CellId:
        return CellId(f"{self.workload} {json.dumps(dict(self.params))}")


def cell(workload: str, engines: tuple[str, ...] = ALL, rounds: int | None = None, **params: Any) -> Cell:
    return Cell(workload=workload, params=tuple(params.items()), engines=engines, rounds=rounds)


def count(n: int) -> str:
    return str(n) if n < 10_000 else f"{n:,}".replace(",", " ")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of a cell, by engine.

    Attributes:
        title: what is measured.
        cell: where it is measured.
        figure: which of the cell's figures.
        unit: what the figures are.
        more_is_better: a rate, not a cost.
    """

    title: str
    cell: Cell
    unit: str = "µs"
    figure: str = "us"
    more_is_better: bool = False


@dataclass(frozen=True)
class Group:
    """Rows under one heading, with an introduction."""

    title: str
    about: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Faster:
    """At least this many times faster than LangGraph."""

    row: Row
    bound: float


@dataclass(frozen=True)
class Within:
    """At most this many times the limit's cost."""

    row: Row
    bound: float


@dataclass(frozen=True)
class AtMost:
    """An absolute figure."""

    row: Row
    bound: float


@dataclass(frozen=True)
class Grows:
    """At most this ratio of a row to a smaller one."""

    row: Row
    under: Row
    bound: float


Target = Faster | Within | AtMost | Grows

_FAN = {n: cell("fanout", n=n) for n in (100, 1000, 10_000)}
_THREAD = {n: cell("thread", n=n) for n in (100, 300, 1000)}
_STREAM = {mode: cell("stream", n=1000, mode=mode) for mode in ("updates", "values")}
_MANY = {how: cell("many", threads=1000, saver="sqlite", durability=how) for how in ("sync", "async")}
_TEN_THOUSAND = cell("many", engines=(OURS, LIMIT), rounds=3, threads=10_000, saver="sqlite")
_MILLION = cell("flat", engines=(OURS, LIMIT), rounds=1, n=1_000_000, early=10_000)
_IMPORT = cell("importing", engines=ONE_LOOP, times=4)

CHAIN = Row(title="a superstep, chain of 100", cell=cell("chain", n=100))
LONG_CHAIN = Row(title="a superstep, chain of 1000", cell=cell("chain", n=1000))
LOOP = Row(title="a superstep, loop of 1000", cell=cell("loop", n=1000))
NARROW = Row(title="a superstep, state of 30 keys", cell=cell("wide", keys=30, turns=20))
WIDE = Row(title="a superstep, state of 300 keys", cell=cell("wide", keys=300, turns=20))
SUBGRAPH = Row(
    title="a call of a graph of 12 supersteps, 100 at once",
    cell=cell("subgraph", calls=100),
    unit="ms",
    figure="unit_ms",
)
AGENT = Row(title="a superstep, agent loop up to 202 messages", cell=cell("agent", turns=100))
_SAVERS: tuple[tuple[str, dict[str, str], float], ...] = (
    ("no saver", {}, 10),
    ("saver in memory", {"saver": "memory"}, 6),
    ("SQLite, sync", {"saver": "sqlite"}, 4),
)
PREBUILT = {
    (turns, bound): Row(
        title=f"a turn, {turns} turns, {where}",
        cell=Cell(workload="prebuilt", params=(("turns", turns), *saver.items()), engines=AGENTS),
    )
    for where, saver, bound in _SAVERS
    for turns in (10, 100)
}
FAN = {n: Row(title=f"a task, fan-out of {count(n)}", cell=_FAN[n]) for n in _FAN}
FAN_LATER = Row(title="a task that waits once, fan-out of 1000", cell=cell("fanout", n=1000, waits=True))
FAN_PEAK = Row(title="the process at most, fan-out of 10 000", cell=_FAN[10_000], unit="MB", figure="peak_mb")
FAN_GROWN = Row(title="of which for the run, fan-out of 10 000", cell=_FAN[10_000], unit="MB", figure="grown_mb")
FIRST_CHUNK = Row(title="until the first chunk", cell=_STREAM["updates"], unit="ms", figure="first_ms")
FIRST_OF_TWO = Row(
    title="until the first chunk, of two", cell=cell("stream", n=2, mode="updates"), unit="ms", figure="first_ms"
)
LAST = {n: Row(title=f"the last one of {count(n)}", cell=cell("reads", messages=n, how="last")) for n in (10, 10_000)}
EACH = {n: Row(title=f"each of {count(n)}", cell=cell("reads", messages=n, how="each")) for n in (10, 1000, 10_000)}
EACH_FLAT = {
    n: Row(title=f"each of {count(n)} flat ones", cell=cell("reads", messages=n, how="each", flat=True))
    for n in (1000, 10_000)
}
MEMORY = Row(title="a superstep, chain of 100, saver in memory", cell=cell("chain", n=100, saver="memory"))
AGENT_IN_MEMORY, AGENT_ON_SQLITE = (
    Row(title=f"a superstep, agent loop up to 202 messages, {where}", cell=cell("agent", turns=100, saver=saver))
    for where, saver in (("saver in memory", "memory"), ("sync", "sqlite"))
)
SQLITE = {
    how: Row(title=f"a superstep, chain of 100, {how}", cell=cell("chain", n=100, saver="sqlite", durability=how))
    for how in ("sync", "async")
}
PAUSES = {
    how: Row(
        title=f"a superstep that waits for 0.3 ms, chain of 100, {how}",
        cell=cell("chain", n=100, saver="sqlite", durability=how, pause=0.0003),
    )
    for how in ("sync", "async")
}
MANY = {
    how: Row(
        title=f"1000 conversations at once, {how}",
        cell=_MANY[how],
        unit="per s",
        figure="per_s",
        more_is_better=True,
    )
    for how in ("sync", "async")
}
MANY_COLLECTED_LESS = Row(
    title="1000 conversations at once, sync, `gc.set_threshold(20_000, 10, 10)`",
    cell=cell(
        "many",
        engines=(OURS, PEER, LIMIT),
        rounds=3,
        threads=1000,
        saver="sqlite",
        durability="sync",
        gc_threshold=20_000,
    ),
    unit="per s",
    figure="per_s",
    more_is_better=True,
)
TEN_THOUSAND = Row(
    title="10 000 conversations at once, sync",
    cell=_TEN_THOUSAND,
    unit="per s",
    figure="per_s",
    more_is_better=True,
)
FILE = {
    n: Row(title=f"the file of a thread of {n} messages", cell=_THREAD[n], unit="MB", figure="file_mb") for n in _THREAD
}
READ = Row(title="reading the state of 1000 messages", cell=_THREAD[1000], unit="ms", figure="read_ms")
LIST = Row(title="listing its 1000 checkpoints", cell=_THREAD[1000], unit="ms", figure="list_ms")
LOOK = Row(title="listing them, with a look at each state", cell=_THREAD[1000], unit="ms", figure="look_ms")
RESUME = Row(title="resuming it for a superstep", cell=_THREAD[1000], unit="ms", figure="resume_ms")
IMPORT = Row(title="import", cell=_IMPORT, unit="ms", figure="ms")
RESIDENT = Row(title="resident memory after it", cell=_IMPORT, unit="MB", figure="resident_mb")
EARLY = Row(title="resident memory after 10 000 supersteps", cell=_MILLION, unit="MB", figure="rss_early_mb")
LATE = Row(title="resident memory after 1 000 000 supersteps", cell=_MILLION, unit="MB", figure="rss_late_mb")

GROUPS = (
    Group(
        "Supersteps",
        "No saver. A chain has a node for each superstep, a loop one node and a router. A wide state has many keys, of which each of "
        "six nodes reads and writes a few. The agent loop is two nodes that append a message each; what a node does to the list "
        "that it gets reaches nobody else with us and with Agent Framework, which copies; the others share one list.",
        (CHAIN, LONG_CHAIN, LOOP, NARROW, WIDE, AGENT, SUBGRAPH),
    ),
    Group(
        "Prebuilt agents",
        "`create_react_agent` with a scripted model and a tool that the model calls once in each turn: two supersteps. The model is a "
        "coroutine function with us, and a chat model of langchain-core with LangGraph. With a saver, the conversation is a new thread.",
        tuple(PREBUILT.values()),
    ),
    Group(
        "Fan-out",
        "A router sends one task for each item (`Send`), whose lists are joined; a last node adds them up. Tasks compute, and wait "
        "for nothing but where that is said: with us such tasks share one of the event loop's.",
        (*FAN.values(), FAN_LATER, FAN_PEAK, FAN_GROWN),
    ),
    Group(
        "Streams",
        "The loop of 1000, read to its end; and one of two, again and again: the code that starts a stream is in the processor's "
        "caches then, and after a thousand supersteps (or a few milliseconds of anything else) it is not.",
        (
            Row(title="a chunk, updates", cell=_STREAM["updates"]),
            Row(title="a chunk, values", cell=_STREAM["values"]),
            FIRST_CHUNK,
            FIRST_OF_TWO,
        ),
    ),
    Group(
        "Reading a long list",
        "A superstep of a node that reads messages of its state: the last one, or each. A message holds a dict of metadata, unless "
        "it is flat. With us a node gets copies of the messages that it takes, so that it cannot change those of other nodes; a node "
        "that needs the last few of a long list is faster if it takes only these.",
        (*LAST.values(), *EACH.values(), *EACH_FLAT.values()),
    ),
    Group(
        "Storing",
        "SQLite with `synchronous=FULL`: an fsync for each commit. With `sync` a superstep is stored before the next one starts, with "
        "`async` while it runs: nodes that take no time hide nothing, nodes that wait for 0.3 ms do. A conversation is a thread of ten supersteps, whose nodes wait for 10 ms.",
        (
            MEMORY,
            *SQLITE.values(),
            *PAUSES.values(),
            AGENT_IN_MEMORY,
            AGENT_ON_SQLITE,
            *MANY.values(),
            MANY_COLLECTED_LESS,
            TEN_THOUSAND,
        ),
    ),
    Group(
        "Threads that grow",
        "SQLite. Each superstep appends a message of about 270 bytes; then the thread is read, its history is listed, and it is "
        "run again for a superstep.",
        (
            *(Row(title=f"a superstep, up to {n} messages", cell=_THREAD[n]) for n in _THREAD),
            *FILE.values(),
            READ,
            LIST,
            LOOK,
            RESUME,
        ),
    ),
    Group(
        "PostgreSQL",
        "A server on the same machine, with `sync`.",
        (
            Row(title="a superstep, chain of 100", cell=cell("chain", n=100, saver="postgres")),
            Row(
                title="100 conversations at once",
                cell=cell("many", threads=100, saver="postgres"),
                unit="per s",
                figure="per_s",
                more_is_better=True,
            ),
        ),
    ),
    Group(
        "Before the first run",
        "In a fresh interpreter.",
        (
            Row(
                title="building and compiling a chain of 1000 nodes",
                cell=cell("compiling", engines=ONE_LOOP, nodes=1000),
                unit="ms",
                figure="ms",
            ),
            IMPORT,
            RESIDENT,
        ),
    ),
    Group(
        "A million supersteps",
        "One run of the loop, once. Live blocks are those of Python's allocator.",
        (
            Row(title="a superstep", cell=_MILLION),
            EARLY,
            LATE,
            Row(title="live blocks after 10 000 supersteps", cell=_MILLION, unit="", figure="blocks_early"),
            Row(title="live blocks after 1 000 000 supersteps", cell=_MILLION, unit="", figure="blocks_late"),
        ),
    ),
)

TARGETS: tuple[Target, ...] = (
    Faster(CHAIN, 8),
    Faster(LOOP, 8),
    Grows(LONG_CHAIN, CHAIN, 1.1),
    Grows(WIDE, NARROW, 1.15),
    Faster(SUBGRAPH, 8),
    *(Faster(row, bound) for (_, bound), row in PREBUILT.items()),
    Faster(FAN[100], 5),
    Faster(FAN[1000], 8),
    Faster(FAN[10_000], 20),
    Grows(FAN[10_000], FAN[100], 1.5),
    Within(FAN[10_000], 2),
    Within(FAN_PEAK, 1.5),
    Within(FAN_GROWN, 1.5),
    AtMost(FIRST_CHUNK, 0.15),
    Within(EACH_FLAT[1000], 3),
    Within(EACH_FLAT[10_000], 4),
    Within(EACH[1000], 7),
    Within(EACH[10_000], 7),
    Faster(MEMORY, 8),
    Faster(SQLITE["sync"], 2.5),
    Within(SQLITE["sync"], 1.5),
    Faster(AGENT_IN_MEMORY, 6),
    Within(AGENT_ON_SQLITE, 1.1),
    Faster(MANY["sync"], 12),
    Faster(MANY_COLLECTED_LESS, 15),
    AtMost(FILE[1000], 1),
    Grows(FILE[1000], FILE[100], 12),
    Faster(READ, 1),
    Faster(LIST, 50),
    Faster(RESUME, 1.5),
    AtMost(IMPORT, 70),
    AtMost(RESIDENT, 30),
    Grows(LATE, EARLY, 1.1),
)


def cells(only: frozenset[str] = frozenset()) -> list[Cell]:
    """Return each cell once, in the order of the table: all, or those of some workloads."""
    found = {row.cell.id: row.cell for group in GROUPS for row in group.rows}
    return [each for each in found.values() if not only or each.workload in only]
