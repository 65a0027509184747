"""Every column of every table of a saver's file is damaged, and read through savers and graphs: each read gives the
right result or an error of this package (P11).

`PREGEL_FUZZ` is the number of cases of test_fuzz.py; here it is a hundredth of that, as each case opens a database.
Each case is made from its own number, so that a failing one can be run alone.
"""

from __future__ import annotations

import operator
import os
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import CorruptCheckpointError, PregelError, SqliteSaver, UnsupportedFormatError
from checkpoint_savers.conformance.savers.damage import damaged_values, ill_typed_records
from checkpoint_savers.errors import ThreadNotFoundError
from checkpoint_savers.upkeep.retention import Retention
from pregel_async import START, Command, StateGraph, StateSnapshot, interrupt, task
from tests.savers import sqlite_cells

CASES = max(80, int(os.environ.get("PREGEL_FUZZ", "20000")) // 200)
BATCHES = 4
"""The number of tests that share the cases, so that they can run in parallel."""

SECONDS = 30.0
"""The limit for a case: one that takes longer hangs."""

THREADS = ("asks", "ended", "failed")

RECORDS = frozenset(("alist_threads", "events", "dump"))
"""The calls that return record types of the port."""

ASK: dict[str, Any] = {"stream_mode": ["updates", "values"], "version": "v2", "keep_events": True}


class State(TypedDict, total=False):
    log: Annotated[list[dict[str, object]], operator.add]
    total: int


@task
async def priced(item: str) -> int:
    return len(item)


async def first(state: State) -> State:
    prices = [await price for price in (priced("tea"), priced("milk"))]
    return {"log": [{"said": "first " * 30, "prices": prices}], "total": sum(prices)}


async def inside(state: State) -> State:
    return {"log": [{"said": "inside"}], "total": state.get("total", 0) + 1}


async def parallel(state: State) -> State:
    return {"log": [{"said": "parallel"}]}


async def ask(state: State) -> State:
    said = interrupt({"buy for": state.get("total")})
    if said == "fail":
        raise ValueError("no")
    return {"log": [{"said": said}]}


def graph_of(saver: SqliteSaver) -> Any:
    child = StateGraph(State).add_node("one", inside).add_node("two", inside)
    child.add_edge(START, "one").add_edge("one", "two")
    graph = StateGraph(State).add_node(first).add_node("child", child.compile(checkpointer=True))
    graph.add_node(parallel).add_node(ask).add_edge(START, "first").add_edge("first", "child")
    graph.add_edge("child", "ask").add_edge("child", "parallel")
    return graph.compile(saver)


async def made(path: Path) -> dict[str, Any]:
    """Create a file with three threads: one with an open question, one that has ended (and has a branch), one that
    has failed. Return the right results of reading it."""
    async with SqliteSaver(path, synchronous="NORMAL") as saver:
        graph = graph_of(saver)
        parts = [part async for part in graph.astream({"log": []}, "asks", **ASK)]
        for thread, answer in (("ended", "yes"), ("failed", "fail")):
            await graph.ainvoke({"log": []}, thread)
            try:
                await graph.ainvoke(Command(resume=answer), thread)
            except ValueError:
                assert thread == "failed"
        await graph.ainvoke({"log": [{"said": "again"}]}, "ended")
        history = [snapshot async for snapshot in graph.aget_state_history("ended")]
        await graph.aupdate_state(history[3].config, {"total": 7}, as_node="parallel")
        await saver.apin(history[2].config)
        right: dict[str, Any] = {"cursor": parts[1]["cursor"], "states": {}}
        for thread in THREADS:
            async for snapshot in graph.aget_state_history(thread):
                right["states"][snapshot.config["configurable"]["checkpoint_id"]] = snapshot.values
    return right


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("whole") / "threads.db"
    right = anyio.run(made, path)
    with sqlite_cells.cells_of(path) as cells:  # the tables accept any value from now on
        assert len({cell.place for cell in cells()}) > 35
    return path, right


def damage(path: Path, chance: random.Random) -> str | None:
    """Change one value of a file. Return what changed, or None if the database refuses the value."""
    with sqlite_cells.cells_of(path) as all_of_them:
        places: dict[str, list[Any]] = {}
        for cell in all_of_them():
            places.setdefault(cell.place, []).append(cell)
        cell = chance.choice(places[chance.choice(sorted(places))])
        before = cell.get()
        value = chance.choice([*damaged_values(before, chance)])
        try:
            cell.put(value)
        except Exception:
            return None
        return f"{cell.place} is {value!r} instead of {before!r}"


def reads(saver: SqliteSaver, graph: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Calls that only read."""

    def state(thread: str) -> Callable[[], Awaitable[object]]:
        return lambda: graph.aget_state(thread, subgraphs=True)

    def history(thread: str) -> Callable[[], Awaitable[object]]:
        async def every() -> object:
            return [snapshot async for snapshot in graph.aget_state_history(thread)]

        return every

    async def listed() -> object:
        return [header async for header in saver.alist_threads()]

    async def exported() -> object:
        await saver.aexport_thread("ended", file := BytesIO())
        return file.getvalue()

    found: dict[str, Callable[[], Awaitable[object]]] = {
        "alist_threads": listed,
        "acount_threads": lambda: saver.acount_threads(filter={"source": "loop"}),
        "aexport_thread": exported,
        "a dry run": lambda: saver.aprune(retention=Retention(keep=2), dry_run=True),
        "events": lambda: saver.events("asks"),
        "dump": lambda: saver.dump("asks"),
    }
    for thread in THREADS:
        found[f"aget_state of {thread}"] = state(thread)
        found[f"aget_state_history of {thread}"] = history(thread)
    return found


def writes(saver: SqliteSaver, graph: Any, right: dict[str, Any]) -> dict[str, Callable[[], Awaitable[object]]]:
    """Calls that continue from the stored state. Errors of all kinds of this package may result: damage may make the
    thread look leased by another run, or its question look like another."""

    async def joined() -> object:
        return [part async for part in graph.astream(None, "asks", after=right["cursor"], **ASK)]

    return {
        "a reader who comes back": joined,
        "an answer": lambda: graph.ainvoke(Command(resume="yes"), "asks"),
        "a new input": lambda: graph.ainvoke({"log": [{"said": "more"}]}, "ended"),
        "a retry": lambda: graph.ainvoke(Command(resume="yes"), "failed"),
        "aupdate_state": lambda: graph.aupdate_state("ended", {"total": 1}, as_node="parallel"),
        "acopy_thread": lambda: saver.acopy_thread("ended", "copy"),
        "aprune": lambda: saver.aprune("ended", retention=Retention(keep=2)),
        "adelete_for_runs": lambda: saver.adelete_for_runs(["unknown"]),
        "aerase_thread": lambda: saver.aerase_thread("failed"),
        "adelete_thread": lambda: saver.adelete_thread("asks"),
    }


async def check(path: Path, right: dict[str, Any], case: str) -> Counter[str]:
    """Run all calls on a damaged file."""
    met: Counter[str] = Counter()
    try:
        async with SqliteSaver(path, synchronous="NORMAL") as saver:
            graph = graph_of(saver)
            for allowed, works in (
                ((CorruptCheckpointError, UnsupportedFormatError, ThreadNotFoundError), reads(saver, graph)),
                ((PregelError, ValueError), writes(saver, graph, right)),
            ):
                for name, work in works.items():
                    met[await outcome(name, work, allowed, right, case)] += 1
    except (CorruptCheckpointError, UnsupportedFormatError):
        met["closed"] += 1
    return met


async def outcome(
    name: str,
    work: Callable[[], Awaitable[object]],
    allowed: tuple[type[Exception], ...],
    right: dict[str, Any],
    case: str,
) -> str:
    try:
        with anyio.fail_after(SECONDS):
            found = await work()
    except allowed as error:
        assert type(error) is not ValueError or str(error) == "no", f"{name} raises {error!r}: {case}"
        return type(error).__name__
    except Exception as error:
        raise AssertionError(f"{name} raises {error!r}: {case}") from error
    if name in RECORDS:
        assert next(ill_typed_records(found), None) is None, f"{name} gives a record of wrong types: {case}"
    for snapshot in found if isinstance(found, list) else [found]:
        if isinstance(snapshot, StateSnapshot):
            known = right["states"].get(snapshot.config["configurable"].get("checkpoint_id"))
            assert known is None or snapshot.values == known, f"{name} gives another state: {case}"
    return "a value"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_rows(whole: tuple[Path, dict[str, Any]], batch: int, tmp_path: Path) -> None:
    """P11: each way to read gives the right state, or raises an error that says the database is damaged; each way to
    continue does so, too, or refuses with an error of this package."""
    template, right = whole
    met: Counter[str] = Counter()
    for number in range(batch, CASES, BATCHES):
        path = tmp_path / "threads.db"
        shutil.copyfile(template, path)
        said = damage(path, random.Random(number))
        if said is not None:
            met += anyio.run(check, path, right, f"case {number}, {said}")
        for left in tmp_path.iterdir():
            left.unlink()
    assert met["a value"] > met["CorruptCheckpointError"] > 0, met


def test_undamaged_rows(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Without damage, the same calls raise only the errors that are expected."""
    template, right = whole
    path = tmp_path / "threads.db"
    shutil.copyfile(template, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        met = anyio.run(check, path, right, "nothing")
    assert met["CorruptCheckpointError"] == met["closed"] == 0 and met["a value"] >= 18, met
