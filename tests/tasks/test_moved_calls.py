"""P5, P15: a recorded call does not run again because it has another position now, or a name."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.caches import InMemoryCache
from pregel_async import END, START, CachePolicy, RetryPolicy, StateGraph, task
from pregel_async._core.task import Task
from pregel_async.errors import CallsChangedError, InvalidUpdateError

pytestmark = pytest.mark.anyio

Body = Callable[[], Awaitable[object]]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Interruption(Exception):
    """Raised in place of anything that ends a run in the middle of a node."""


ran: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()


@task
async def charge(order: str) -> str:
    ran.append(f"charge {order}")
    return order


@task
async def broken() -> None:
    ran.append("broken")
    raise ConnectionError


@task(on_change="run")
async def search() -> None:
    ran.append("search")


async def broken_then_charge() -> None:
    try:
        await broken()
    except ConnectionError:
        await charge("1")


async def charge_then_broken() -> None:
    await charge("1")
    await broken()


async def charge_once() -> None:
    await charge("1")


async def charge_named() -> None:
    await charge.named("the order")("1")


async def search_then_charge() -> None:
    await search()
    await charge("1")


def graph_of(saver: BaseCheckpointSaver | None, body: Body, version: int | None = None, **options: Any) -> Any:
    async def node(state: State) -> State:
        await body()
        return {"log": ["done"]}

    builder = StateGraph(State).add_node("pay", node, **options).add_edge(START, "pay")
    return builder.compile(saver, version=version) if version else builder.compile(saver)


async def interrupted(graph: Callable[[Body], Any], body: Body) -> None:
    async def die() -> None:
        await body()
        raise Interruption

    with pytest.raises(Interruption):
        await graph(die).ainvoke({"log": []}, "t")


async def refused(graph: Any) -> CallsChangedError:
    before = ran.copy()
    with pytest.raises(CallsChangedError) as failed:
        await graph.ainvoke(None, "t")
    assert ran.count("charge 1") == before.count("charge 1") == 1
    return failed.value


async def test_a_call_behind_one_that_runs_in_another_place(saver: BaseCheckpointSaver) -> None:
    """A search that may run in the place of a recorded charge moves the charge, which is not made again."""
    await interrupted(partial(graph_of, saver), charge_once)
    error = await refused(graph_of(saver, search_then_charge))
    assert (error.number, error.recorded, error.asked, error.moved) == (2, "charge", "charge", True)
    assert "call 2 is not recorded, and an equal call of task 'charge' is, in another position" in str(error)
    assert "patched(name)" in str(error)
    await graph_of(saver, charge_once).ainvoke(None, "t")
    assert ran == ["charge 1", "search"]


async def test_a_recorded_call_gets_a_name(saver: BaseCheckpointSaver) -> None:
    """A name makes another call of it, so it needs `patched()` while threads have recorded it by its position."""
    await interrupted(partial(graph_of, saver), charge_once)
    error = await refused(graph_of(saver, charge_named))
    assert error.number == "the order"
    await graph_of(saver, charge_once).ainvoke(None, "t")
    assert ran == ["charge 1"]


@pytest.mark.parametrize("new", [charge_once, charge_then_broken])
async def test_a_call_behind_one_without_a_record(new: Body, saver: BaseCheckpointSaver) -> None:
    """P15: between versions no call runs again because another was removed before it, although a failed call leaves no
    record."""
    await interrupted(partial(graph_of, saver, version=1), broken_then_charge)
    assert (await refused(graph_of(saver, new, version=2))).number == 1
    await graph_of(saver, broken_then_charge, version=1).ainvoke(None, "t")
    assert ran == ["broken", "charge 1", "broken"]


async def test_the_version_of_an_outer_graph_counts(saver: BaseCheckpointSaver) -> None:
    """A subgraph without a version of its own has the version of the graph that runs it."""

    def around(body: Body, version: int) -> Any:
        inside = graph_of(None, body)
        return graph_of(saver, lambda: inside.ainvoke({"log": []}), version=version)

    await interrupted(partial(around, version=1), broken_then_charge)
    await refused(around(charge_once, 2))


async def test_equal_calls_of_unchanged_code(saver: BaseCheckpointSaver) -> None:
    """Equal calls of one node are two calls. If the second is recorded and the first is not, the first runs again, in a
    superstep that this version planned. The superstep before was planned by another one."""
    charged: list[str] = []
    fails = ["in the first node"]

    @task
    async def pay(order: str) -> None:
        charged.append(order)
        if len(charged) == 1:
            await anyio.sleep_forever()

    async def first(state: State) -> State:
        if fails:
            raise Interruption
        return {}

    async def second(state: State) -> State:
        unfinished = pay("1")
        while not charged:
            await anyio.lowlevel.checkpoint()
        await pay("1")
        if len(charged) == 2:
            raise Interruption
        await unfinished
        return {}

    def graph(version: int) -> Any:
        builder = StateGraph(State).add_node(first).add_node(second)
        return builder.add_edge(START, "first").add_edge("first", "second").compile(saver, version=version)

    with pytest.raises(Interruption):
        await graph(1).ainvoke({"log": []}, "t")
    fails.clear()
    with pytest.raises(Interruption):
        await graph(2).ainvoke(None, "t")
    await graph(2).ainvoke(None, "t")
    assert charged == ["1", "1", "1"]


async def test_named_calls_of_a_fan_out(saver: BaseCheckpointSaver) -> None:
    """P5: a name for each item: items come and go in any order, in concurrent code too, and what is recorded does not
    run again."""

    async def charge_all() -> None:
        async with anyio.create_task_group() as group:
            for order in orders:
                group.start_soon(charge_one, order)

    async def charge_one(order: str) -> None:
        await charge.named(order)(order)

    orders = ["1", "2", "3"]
    await interrupted(partial(graph_of, saver), charge_all)
    orders[:] = ["4", "3", "1"]
    await graph_of(saver, charge_all).ainvoke(None, "t")
    assert sorted(ran) == ["charge 1", "charge 2", "charge 3", "charge 4"]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_named_calls_with_policies(stored: bool) -> None:
    """Retries of the node and of the task, a cache, and `on_change` treat a named call as any other."""
    tries: list[str] = []

    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=ConnectionError)

    @task(retry_policy=policy, cache_policy=CachePolicy(), on_change="run")
    async def fetch(page: int) -> int:
        tries.append(f"fetch {page}")
        if len(tries) == 1:
            raise ConnectionError
        return page

    async def body() -> None:
        number = len(attempts) + 1
        attempts.append(number)
        assert await fetch.named("page")(number) == number
        if number == 1:
            raise ConnectionError

    def graph() -> Any:
        async def node(state: State) -> State:
            await body()
            return {}

        builder = (
            StateGraph(State).add_node("pay", node, retry_policy=policy).add_edge(START, "pay").add_edge("pay", END)
        )
        return builder.compile(InMemorySaver() if stored else None, cache=cache)

    cache = InMemoryCache()
    for _ in range(2):
        attempts: list[int] = []
        await graph().ainvoke({"log": []}, "t" if stored else None)
    # The second attempt has other arguments, which may run; the second run has its results from the cache.
    assert tries == ["fetch 1", "fetch 1", "fetch 2"]


async def test_what_the_search_costs(saver: BaseCheckpointSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of other positions are computed only for a call of which an equal one is recorded: not in a first run, not for
    calls that are recorded themselves, and not for new calls behind them, with or without names."""
    searched: list[str] = []
    monkeypatch.setattr(Task, "has_called", lambda task, name, ids: searched.append(name))

    async def charge_all() -> None:
        for order in orders:
            await charge(order)
            await charge.named(order)(f"named {order}")

    orders = ["1", "2"]
    await interrupted(partial(graph_of, saver, version=1), charge_all)
    orders.append("3")
    await graph_of(saver, charge_all, version=2).ainvoke(None, "t")
    assert len(ran) == 6
    assert not searched


async def test_a_name_is_unique_in_each_attempt() -> None:
    """Two calls of one name in one attempt are refused; another attempt, task or node may use the name again."""

    async def twice() -> None:
        await charge.named("x")("1")
        await charge.named("x")("2")

    with pytest.raises(InvalidUpdateError, match=r"node 'pay' makes two calls of task 'charge' with the name 'x'"):
        await graph_of(None, twice).ainvoke({"log": []})
    assert ran == ["charge 1"]
