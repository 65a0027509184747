"""P5, P15: a recorded call never runs again when the code of the node changes while processes die at each write."""

from __future__ import annotations

import operator
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, StateGraph, patched, task
from pregel_async.errors import CallsChangedError
from pregel_async.testing import Crash, Fault, FaultySaver
from tests.helpers.each_saver import opened
from tests.helpers.environments import SeededEnvironment

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

Style = Literal["positions", "patched", "names"]

OLD = ("broken", "charge", "mail")
CHANGES = {
    "inserted": ("audit", *OLD),
    "inserted between": ("broken", "audit", "charge", "mail"),
    "removed": ("broken", "mail"),
    "removed without a record": ("charge", "mail"),
    "reordered": ("mail", "charge", "broken"),
    "replaced": ("broken", "audit", "mail"),
    "inserted a search": ("search", *OLD),
}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Office:
    """A node that makes calls one by one. It has noted which calls ran, and which ones gave it a result."""

    def __init__(self, style: Style) -> None:
        self.ran: Counter[str] = Counter()
        self.done: set[str] = set()
        self.ran_again: set[str] = set()
        self.environment = SeededEnvironment()
        self.style = style

        def made(name: str) -> Any:
            @task(name=name, on_change="run" if name == "search" else "error")
            async def call() -> str:
                self.ran[name] += 1
                if name in self.done and name != "search":
                    self.ran_again.add(name)
                if name == "broken":
                    raise ConnectionError
                return name

            return call

        self.tasks = {name: made(name) for name in (*OLD, "audit", "search")}

    async def make(self, calls: tuple[str, ...]) -> State:
        log: list[str] = []
        for name in calls:
            called = self.tasks[name]
            try:
                log.append(await (called.named("the only one")() if self.style == "names" else called()))
            except ConnectionError:
                continue
            self.done.add(name)
        return {"log": log}

    def graph(self, saver: BaseCheckpointSaver, calls: tuple[str, ...], *, version: int) -> Any:
        async def node(state: State) -> State:
            if version == 2 and self.style == "patched" and not patched("other calls"):
                return await self.make(OLD)
            return await self.make(calls)

        builder = StateGraph(State).add_node("node", node).add_edge(START, "node")
        return builder.compile(saver, version=version, environment=self.environment)

    async def attempt(
        self, inner: BaseCheckpointSaver, calls: tuple[str, ...], thread: Any, at: int, *, version: int
    ) -> Any:
        """Run the node or resume it, and die at a write. Return the result; None if the process died."""
        saver = FaultySaver(inner, Fault(how="crash", at=at, when="before" if at % 2 else "after"))
        graph = self.graph(saver, calls, version=version)
        found = await graph.aget_state({"configurable": {"thread_id": thread}})
        if found.values and not found.next:
            return found.values  # the last process died after its last write
        try:
            return await graph.ainvoke(None if found.next else {"log": []}, thread)
        except Crash:
            return None
        finally:
            self.environment.time += 100
            await saver.restart()


@pytest.mark.parametrize("style", ["positions", "patched", "names"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_crash_of_both_codes_at_each_write(change: str, style: Style) -> None:
    """The old code dies at a write, the new code too, and the new code runs to its end, or is refused. No call that
    had given a result runs again. Code with `patched` or with names is never refused."""
    refused = 0
    for first in range(1, 9):
        for second in range(1, 9):
            office, saver = Office(style), InMemorySaver()
            if await office.attempt(saver, OLD, "t", first, version=1) is not None:
                break
            begun = office.done.copy()
            office.ran.clear()
            try:
                result = await office.attempt(saver, CHANGES[change], "t", second, version=2)
                result = result or await office.attempt(saver, CHANGES[change], "t", 99, version=2)
            except CallsChangedError:
                refused += 1
                assert style == "positions"
                assert begun
                # Behind a call that left no record, the new code may have recorded one of its own.
                if not office.ran.keys() - set(OLD):
                    assert (await office.attempt(saver, OLD, "t", 99, version=2))["log"] == ["charge", "mail"]
            else:
                expected = [name for name in CHANGES[change] if name != "broken"]
                stayed = style == "patched" and begun
                assert result["log"] == (["charge", "mail"] if stayed else expected)
            assert not office.ran_again
        else:
            continue
        break
    else:
        raise AssertionError("the old code never ended")
    assert bool(refused) == (style == "positions")


@pytest.mark.parametrize("style", ["positions", "patched", "names"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_crash_at_each_write_of_a_database(kind: str, style: Style, tmp_path: Path) -> None:
    """The same on files and on PostgreSQL, with one crash of either code in turn."""
    calls = CHANGES["inserted"]
    async with opened(kind, tmp_path) as inner:
        for at in range(1, 9):
            office = Office(style)
            ended = await office.attempt(inner, OLD, f"{at}", at, version=1)
            if ended is not None:
                break
            begun = office.done.copy()
            try:
                result = await office.attempt(inner, calls, f"{at}", 9 - at, version=2)
                result = result or await office.attempt(inner, calls, f"{at}", 99, version=2)
            except CallsChangedError:
                assert style == "positions"
            else:
                stayed = style == "patched" and begun
                assert result["log"] == [*(() if stayed else ["audit"]), "charge", "mail"]
            assert not office.ran_again
        else:
            raise AssertionError("the old code never ended")
