"""A graph with every kind of work in flight that a run can have, and the checks after it was stopped.

    root        START -> caller, deep, quick, thread -> last
    caller      calls two tasks: `add` finishes and is recorded, `slow` is still running
    deep        runs a graph, whose node runs another, in which `first` is stored and `inner` is still running
    quick       finishes after the others have reached their waits: its record is in flight, in the saver
    thread      a plain function, in a worker thread

The commit that follows can be held in the saver instead of the nodes. Whatever is held is released when the
cancellation has arrived and the event loop has made a few turns.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import sniffio

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.deltas import read_record
from checkpoint_savers.records import (
    Commit,
    Lease,
    TaskRecord,
)
from pregel_async import START, StateGraph, task
from pregel_async._runtime.platform.event_loops import loop, wait_out
from tests.helpers.passing_saver import Through
from tests.runtime.leak_checks import after_turns, tasks

T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


FINAL = ["caller 3", "first", "inner", "middle", "deep", "quick", "thread", "last"]
"""The expected final log, in plan order."""

UNDER_WAY = ("caller", "deep", "inner", "middle", "slow", "thread")
"""The names of the nodes and tasks that are held."""

CLOSED = {
    (0, 1): ("caller", "deep", "quick", "thread"),
    (0, 2): ("last",),
    (1, 1): ("middle",),
    (2, 1): ("first",),
    (2, 2): ("inner",),
}
"""The nodes whose results a row stores, by the depth of its graph and its superstep."""

Where = Literal["nodes", "commit", "nowhere"]
"""The work in flight when the run is stopped: the nodes and a record, or the commit after them."""


class Scene:
    """The graph on a saver, with a record of which node did what.

    Attributes:
        ready: set when everything is in flight.
        released: set when the held work was released.
        running: the nodes between their first and last line now, clean-up included.
        cleaned: how often each node's `finally` ran.
        started: the nodes whose first line ran.
        stored: the nodes whose results the saver has stored before control returned.
    """

    def __init__(self, saver: BaseCheckpointSaver, where: Where) -> None:
        self.where = where
        self.saver = saver
        self.ready = anyio.Event()
        self.released = False
        self.running: list[str] = []
        self.cleaned: Counter[str] = Counter()
        self.started: list[str] = []
        self._arrived: set[str] = set()
        self._before: set[Any] = set()
        self._mine: set[Any] = set()
        self._there = anyio.Event()
        self._leave = threading.Event()
        self.stored: set[str] = set()
        self._go_on = anyio.Event()
        self._lock = threading.Lock()
        self.graph = self._build().compile(_Pausing(saver, self))

    def _build(self) -> StateGraph[Any]:
        scene = self

        @task
        async def add(a: int, b: int) -> int:
            with scene._in("add"):
                await anyio.lowlevel.checkpoint()
                return a + b

        @task
        async def slow() -> None:
            with scene._in("slow"):
                await scene._wait("slow")

        async def caller(state: Any) -> dict[str, Any]:
            with scene._in("caller"):
                number = await add(1, 2)
                await slow()
                return {"log": [f"caller {number}"]}

        async def first(state: Any) -> dict[str, Any]:
            with scene._in("first"):
                return {"log": ["first"]}

        async def inner(state: Any) -> dict[str, Any]:
            with scene._in("inner"):
                await scene._wait("inner")
                return {"log": ["inner"]}

        innermost = StateGraph(State).add_node("first", first).add_node("inner", inner)
        innermost.add_edge(START, "first").add_edge("first", "inner")
        below = innermost.compile(name="innermost")

        async def middle(state: Any) -> dict[str, Any]:
            with scene._in("middle"):
                return {"log": [*(await below.ainvoke({}))["log"], "middle"]}

        between = StateGraph(State).add_node("middle", middle).add_edge(START, "middle").compile(name="between")

        async def deep(state: Any) -> dict[str, Any]:
            with scene._in("deep"):
                return {"log": [*(await between.ainvoke({}))["log"], "deep"]}

        async def quick(state: Any) -> dict[str, Any]:
            with scene._in("quick"):
                if scene.where == "nodes":
                    await scene._there.wait()
                return {"log": ["quick"]}

        def thread(state: Any) -> dict[str, Any]:
            with scene._in("thread"):
                if scene.where == "nodes":
                    anyio.from_thread.run_sync(scene._arrive, "thread")
                    assert scene._leave.wait(60)
                return {"log": ["thread"]}

        async def last(state: Any) -> dict[str, Any]:
            with scene._in("last"):
                return {"log": ["last"]}

        made = StateGraph(State)
        for node in (caller, deep, quick, thread):
            made.add_node(node).add_edge(START, node.__name__)
        return made.add_node(last).add_edge(["caller", "deep", "quick", "thread"], "last")

    @contextmanager
    def _in(self, name: str) -> Iterator[None]:
        with self._lock:
            self.running.append(name)
            self.started.append(name)
        try:
            yield
        finally:
            with self._lock:
                self.running.remove(name)
                self.cleaned[name] += 1

    async def _wait(self, name: str) -> None:
        try:
            if self.where == "nodes":
                self._arrive(name)
                await anyio.sleep_forever()
            await anyio.lowlevel.checkpoint()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()

    def _arrive(self, name: str) -> None:
        self._arrived.add(name)
        if self._arrived == {"slow", "inner", "thread"}:
            self._there.set()

    async def hold_in_saver(self) -> None:
        """Hold the saver's call on behalf of the run until the test releases it, regardless of cancellation."""
        self.ready.set()
        await wait_out(self._go_on)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Remember the tasks that exist before the run: they do not belong to it."""
        self._before = tasks()
        self.mine()
        yield

    def mine(self) -> None:
        """Mark the running task as the test's own."""
        self._mine.add(loop().current_task())

    def stops(self) -> None:
        """Note that the run is being stopped now. A little later the saver is released, and then the thread, if it is
        held: control must wait for each of them."""
        if self.where == "nodes":
            after_turns(20, self._go_on.set)
        after_turns(60, self.release)

    def release(self) -> None:
        self._go_on.set()
        self.released = True
        self._leave.set()

    def left(self) -> set[Any]:
        """Return the tasks that are not the test's own."""
        return tasks() - self._before - self._mine

    def returned(self) -> None:
        """P7: check the state right after control returned, before any other task had a turn."""
        assert self.released, "control returned before what cannot be cancelled had ended"
        assert self.running == [], f"still at work when control returned: {self.running}"
        assert self.left() == set()
        self.check_cleaned()

    def check_cleaned(self) -> None:
        again = [name for name, times in self.cleaned.items() if times != 1]
        assert not again, f"not cleaned up once: {self.cleaned}"
        assert set(self.cleaned) == set(self.started)
        expected = {*UNDER_WAY, "add", "first", "quick"}
        assert set(self.cleaned) == expected, set(self.cleaned) ^ expected

    async def ended(self) -> None:
        """P7: after the stream was only dropped, check that its run ends as soon as the loop runs again."""
        while self.running or self.left() or not self.released:
            await anyio.lowlevel.checkpoint()
        self.check_cleaned()

    async def check_resume(self) -> None:
        """P3, P5, P6: check that the thread is whole and free, that no recorded task runs again, and that the final
        state is the undisturbed one. The task that stopped the run is unaffected."""
        if sniffio.current_async_library() == "asyncio":
            this: Any = loop().current_task()
            assert this.cancelling() == 0
        assert anyio.current_effective_deadline() > 0
        await anyio.lowlevel.checkpoint()
        before = await self.graph.aget_state("t")
        recorded = self.stored | {each.name for each in before.tasks if each.result is not None}
        if self.where == "nodes":
            # The record of `quick` was in flight, and is finished. `thread` may have finished and been recorded after
            # it.
            assert {"add", "first", "quick"} <= recorded
            assert before.next in (("caller", "deep", "thread"), ("caller", "deep"))
        elif self.where == "commit":
            # The commit was in flight. If it was not made after all, the last task to finish runs again.
            assert before.next == ("last",) or len(before.next) == 1
        self.where = "nowhere"
        self.started.clear()
        result = await self.graph.ainvoke({} if before.created_at is None else None, "t")
        assert result["log"] == FINAL
        assert not recorded & set(self.started), f"recorded, and run again: {recorded & set(self.started)}"
        await self.saver.adelete_thread("t")  # refused while another run holds the thread


class _Pausing(Through):
    """A saver that passes every call on, and pauses where the scenario says."""

    def __init__(self, inner: BaseCheckpointSaver, scene: Scene) -> None:
        super().__init__(inner)
        self.scene = scene
        self._held = False

    async def commit(self, lease: Lease, commit: Commit) -> None:
        scene = self.scene
        done = {"caller", "deep", "quick", "thread"} <= set(scene.cleaned)
        if scene.where == "commit" and done and not self._held and any(row.ns == "" for row in commit.rows):
            self._held = True
            await scene.hold_in_saver()
        await self.inner.commit(lease, commit)
        for row in commit.rows:
            scene.stored |= set(CLOSED.get((len(row.ns.split("|")) if row.ns else 0, row.step), ()))
        self._recorded(commit.records)

    async def record(self, lease: Lease, records: Sequence[TaskRecord], *, expires_at: float) -> None:
        names = {read_record(record, "t").name for record in records}
        if self.scene.where == "nodes" and "quick" in names and not self._held:
            self._held = True
            await self.scene.hold_in_saver()
        await self.inner.record(lease, records, expires_at=expires_at)
        self._recorded(records)

    def _recorded(self, records: Sequence[TaskRecord]) -> None:
        for record in records:
            entry = read_record(record, "t")
            if entry.finished:
                self.scene.stored.add(entry.name)


Way = Callable[[Scene, bool], Awaitable[None]]
"""A way to stop a stream, with `async with` or without."""
