"""Workers take only threads that a version of their graph can continue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver
from checkpoint_savers.runs.port import RunStore
from checkpoint_savers.runs.rows import RunThreadRow
from pregel_async import START, Command, StateGraph
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.errors import ConfigError
from pregel_async.service import RunService
from pregel_async.service.activation import Activation
from pregel_async.service.dispatch import RowDispatcher
from pregel_async.service.keeper import Keeper
from pregel_async.service.worker import WorkLoop
from pregel_async.versions import Versions
from tests.helpers.versioned_graphs import Log, graph, versions

from .schedules import Clock

pytestmark = pytest.mark.anyio


def service(saver: Any, *numbers: int, **options: Any) -> RunService:
    return RunService({"orders": versions(None, *numbers)}, saver, **options)


@pytest.mark.parametrize(("stored", "lacking"), [(2, 3), (3, 2)], ids=["an older thread", "a newer thread"])
async def test_a_worker_takes_threads_of_versions_that_it_has(
    saver: BaseCheckpointSaver, stored: int, lacking: int
) -> None:
    """P15, P16: a worker that lacks the version of an open thread leaves its run to a worker that has it."""
    await graph(stored, saver).ainvoke({}, "t")
    async with service(saver, 2, 3, work=False) as web:
        run = await web.start("orders", Command(resume="yes"), thread_id="t")
        async with service(saver, lacking):
            other = await web.start("orders", {}, thread_id="new")
            result = await web.join(other.run_id)
            assert [each.value for each in result.interrupts] == [f"{lacking}?"]
            waiting = await web.get_run(run.run_id)
            assert (waiting.status, waiting.attempt) == ("pending", 0)
            async with service(saver, 2, 3):
                result = await web.join(run.run_id)
        assert (result.run.status, result.values) == ("success", {"log": [f"{stored}: yes"]})


async def test_an_idle_thread_moves(saver: BaseCheckpointSaver) -> None:
    """P15: a new input to an idle thread is run by the newest version that the worker has."""
    await graph(2, saver).ainvoke({}, "t")
    async with service(saver, 2, 3) as both:
        answered = await both.join((await both.start("orders", Command(resume="yes"), thread_id="t")).run_id)
        assert answered.values == {"log": ["2: yes"]}
        asked = await both.join((await both.start("orders", {}, thread_id="t")).run_id)
        assert [each.value for each in asked.interrupts] == ["3?"]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[int, ...]]]:
    """What workers have looked at: threads, the routes on which they found them, and the workers' versions."""
    seen: list[tuple[str, str, tuple[int, ...]]] = []
    work = Activation.work

    async def recorded(self: Activation, thread: RunThreadRow) -> None:
        orders: Any = self._tools.graphs["orders"]
        seen.append((thread.thread_id, thread.route, orders.versions))
        await work(self, thread)

    monkeypatch.setattr(Activation, "work", recorded)
    return seen


async def route_of(saver: BaseCheckpointSaver, thread_id: str = "t") -> str:
    assert saver.runs is not None
    thread = await saver.runs.get_thread(thread_id)
    assert thread is not None
    return thread.route


async def until_route(saver: BaseCheckpointSaver, route: str) -> None:
    assert saver.runs is not None
    seen = 0
    while await route_of(saver) != route:
        seen = await saver.runs.wait_for_change(seen)


async def test_a_worker_looks_at_threads_of_its_versions_only(saver: BaseCheckpointSaver, looks: list[Any]) -> None:
    """P16: a run whose version no worker has waits, is found by searches, and costs the other workers nothing."""
    await graph(3, saver).ainvoke({}, "t")
    async with service(saver, 2, 3, work=False) as web:
        run = await web.start("orders", Command(resume="yes"), thread_id="t", priority=10)
        async with service(saver, 2):
            for _ in range(3):
                await web.join((await web.start("orders", {}, thread_id="other")).run_id)
        assert {thread for thread, _, _ in looks} == {"other"}
        found = await web.search_runs(graph="orders", status="pending")
        assert [(each.run_id, each.attempt) for each in found.items] == [(run.run_id, 0)]
        assert [each.thread_id for each in (await web.search_threads(status="busy")).items] == ["t"]
        async with service(saver, 3):
            assert (await web.join(run.run_id)).values == {"log": ["3: yes"]}
        assert looks[-1] == ("t", "orders@3", (3,))


async def test_the_route_follows_the_version_of_the_thread(saver: BaseCheckpointSaver, looks: list[Any]) -> None:
    """P16: a run that is queued behind another one gets the route of what that one has stored."""
    await graph(2, saver).ainvoke({}, "t")
    asked: list[Any] = [Command(resume="yes"), {}, Command(resume="yes")]
    async with service(saver, 2, 3, work=False) as web:
        runs = [await web.start("orders", each, thread_id="t") for each in asked]
        async with service(saver, 2, 3):
            results = [await web.join(run.run_id) for run in runs]
        assert results[-1].values == {"log": ["2: yes", "3: yes"]}
    assert [route for _, route, _ in looks] == ["orders@2", "orders", "orders@3"]


async def test_the_end_of_a_failed_run_has_a_route(saver: BaseCheckpointSaver, looks: list[Any]) -> None:
    """P16: so has an end that is stored by itself; and a graph that is no `Versions` any more has its name again."""

    def fail(state: Log) -> Log:
        raise ValueError("failed")

    failing = StateGraph(Log).add_node(fail).add_edge(START, "fail").compile(version=3, blocking=False)
    graphs = {"orders": Versions({3: failing})}
    inputs: list[Any] = [{}, None]
    async with RunService(graphs, saver, work=False) as web:
        runs = [await web.start("orders", each, thread_id="t") for each in inputs]
        async with RunService(graphs, saver):
            for run in runs:
                assert (await web.join(run.run_id)).status == "error"
    assert [route for _, route, _ in looks] == ["orders", "orders@3"]
    async with RunService({"orders": failing}, saver, work=False) as web:
        await web.retry(runs[0].run_id)
        assert await route_of(saver) == "orders"


async def test_a_run_that_was_given_back_has_a_route(saver: BaseCheckpointSaver, looks: list[Any]) -> None:
    """P16: a worker that drains queues its run for workers of the version that has begun it."""

    async def first(state: Log) -> Log:
        worker.drain()
        return {"log": ["first"]}

    new = (
        StateGraph(Log)
        .add_sequence([first, ("second", lambda state: {"log": ["second"]})])
        .add_edge(START, "first")
        .compile(version=3, blocking=False)
    )
    graphs = {"orders": Versions({2: graph(2), 3: new})}
    async with RunService(graphs, saver, work=False) as web:
        run = await web.start("orders", {}, thread_id="t")
        assert await route_of(saver) == "orders"
        async with RunService(graphs, saver) as worker:
            await until_route(saver, "orders@3")
        async with service(saver, 2):
            await web.join((await web.start("orders", {}, thread_id="other")).run_id)
        async with RunService(graphs, saver):
            assert (await web.join(run.run_id)).values == {"log": ["first", "second"]}
    assert looks[:2] == [("t", "orders", (2, 3)), ("other", "orders", (2,))]


@pytest.mark.parametrize("moves", ["before", "while it acquires the lease"])
async def test_a_wrong_route_is_corrected_by_one_look(
    saver: BaseCheckpointSaver, looks: list[Any], monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """P16: a worker that finds a thread which has moved to another version queues it for that version, and is free."""
    await graph(2, saver).ainvoke({}, "t")
    take = RunStore.acquire_and_take
    acquired: list[str] = []
    tried_later: list[str] = []

    async def move() -> None:
        await graph(2, saver).ainvoke(Command(resume="yes"), "t")
        await graph(3, saver).ainvoke({}, "t")

    async def late(self: RunStore, thread_id: str, *args: Any, **options: Any) -> Any:
        if moves != "before" and not acquired:
            await move()
        acquired.append(thread_id)
        return await take(self, thread_id, *args, **options)

    async def try_later(self: WorkLoop, thread_id: str) -> None:
        tried_later.append(thread_id)

    monkeypatch.setattr(RunStore, "acquire_and_take", late)
    monkeypatch.setattr(WorkLoop, "_try_later", try_later)
    async with service(saver, 2, 3, work=False) as web:
        run = await web.start("orders", Command(resume="yes"), thread_id="t")
        assert await route_of(saver) == "orders@2"
        if moves == "before":
            await move()
        async with service(saver, 2):
            await until_route(saver, "orders@3")
            await web.join((await web.start("orders", {}, thread_id="other")).run_id)
        assert looks == [("t", "orders@2", (2,)), ("other", "orders", (2,))] and not tried_later
        assert acquired == (["other"] if moves == "before" else ["t", "other"])
        assert (await web.get_run(run.run_id)).attempt == (0 if moves == "before" else 1)
        async with service(saver, 3):
            assert (await web.join(run.run_id)).values == {"log": ["2: yes", "3: yes"]}


@pytest.mark.parametrize(
    ("made", "route", "corrected", "asked"),
    [
        (versions(None, 4), "orders@4", 1, []),
        (versions(None, 2), "orders@3", 0, []),
        (versions(None, 2, 3), "orders@3", 0, ["t", "open"]),
        (graph(4), "orders", 2, []),
        (graph(2), "orders@3", 0, []),
    ],
    ids=["a newer version", "an older version", "this version", "a newer graph", "an older graph"],
)
async def test_a_run_does_not_wait_for_a_version_that_it_does_not_need(
    saver: BaseCheckpointSaver, made: Any, route: str, corrected: int, asked: list[str]
) -> None:
    """P16: keepers queue idle threads again whose version no worker has any more. Open threads wait for theirs.

    The dispatcher is asked for lost wake-ups of the worker's own routes alone: others may wait for weeks.
    """
    seen: list[str] = []

    class Asked(RowDispatcher):
        async def unannounced(self, queued: Sequence[RunThreadRow]) -> Sequence[RunThreadRow]:
            seen.extend(thread.thread_id for thread in queued)
            return ()

    for name in ("t", "open"):
        await graph(3, saver).ainvoke({}, name)
    await graph(3, saver).ainvoke(Command(resume="yes"), "t")
    async with service(saver, 3, work=False) as web:
        await web.start("orders", {}, thread_id="t")
        await web.start("orders", Command(resume="yes"), thread_id="open")
    assert saver.runs is not None
    graphs = {"orders": made.with_checkpointer(saver)}
    keeper = Keeper(saver, saver.runs, SystemEnvironment(), RowDispatcher(), graphs)
    assert await keeper.look() == 0  # it has not waited for long
    saver.clock = clock = Clock()
    clock.ahead = saver.lease_seconds
    assert await keeper.look() == 0  # routes are looked at once in the length of a lease
    keeper = Keeper(saver, saver.runs, SystemEnvironment(), Asked(), graphs)
    assert await keeper.look() == corrected
    assert seen == asked
    assert await route_of(saver) == route
    assert await route_of(saver, "open") == ("orders" if route == "orders" else "orders@3")


async def test_names_of_the_form_of_routes() -> None:
    with pytest.raises(ConfigError, match="version"):
        RunService({"orders@2": graph(2)}, lambda: pytest.fail("it was opened"))
    RunService({"orders@home": graph(2)}, lambda: pytest.fail("it was opened"))
