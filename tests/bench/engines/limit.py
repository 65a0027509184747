"""The limit: no framework. A task group for each superstep, updates merged into a dict after it, one row and one commit."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import anyio

from ..workloads import (
    READS,
    SUBJECT,
    WIDE,
    Case,
    Gauge,
    Laps,
    MessageReader,
    agent,
    answered,
    asks,
    bump,
    conversation,
    database,
    edit,
    ends_with_bumps,
    file_size,
    generate,
    increment,
    postgres,
    question,
    say,
    search,
    tool,
    total,
    waiting,
    wide_keys,
    wide_node,
    work,
    work_later,
)
from .limit_store import Bytes, Postgres, Sqlite, Store

State = dict[str, Any]
Node = Callable[[Any], Awaitable[Any]]


async def gather(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Run one superstep, and return the calls' results in order."""
    results: list[Any] = [None] * len(calls)

    async def one(place: int) -> None:
        results[place] = await calls[place]()

    async with anyio.create_task_group() as group:
        for place in range(len(calls)):
            group.start_soon(one, place)
    return results


async def fan(node: Node, items: Sequence[Any]) -> list[Any]:
    """Run one superstep of a node for each item."""
    results: list[Any] = [None] * len(items)

    async def one(place: int, item: Any) -> None:
        results[place] = await node(item)

    async with anyio.create_task_group() as group:
        for place, item in enumerate(items):
            group.start_soon(one, place, item)
    return results


async def step(node: Node, state: State) -> Any:
    """Run one superstep of one node, and return its update."""
    (update,) = await fan(node, (state,))
    return update


class Driver:
    """The workloads as bare code. Each method says what is left of it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack

    def _sqlite(self) -> Sqlite:
        store = Sqlite(database(self.stack))
        self.stack.callback(store.close)
        return store

    async def _store(self, kind: str | None) -> Store | None:
        if kind == "memory":
            return Bytes()
        if kind == "sqlite":
            return self._sqlite()
        if kind != "postgres":
            return None
        from psycopg_pool import AsyncConnectionPool

        url, schema = postgres(self.stack)
        options = {"autocommit": True, "options": f"-c search_path={schema}"}
        pool: Any = AsyncConnectionPool(url, min_size=4, max_size=16, kwargs=options, open=False)
        await self.stack.enter_async_context(pool)
        async with pool.connection() as db:
            await db.execute("CREATE TABLE c (thread text, step int, v bytea, PRIMARY KEY (thread, step))")
        return Postgres(pool)

    async def _run(self, nodes: Sequence[Node], store: Store | None = None, durability: str = "sync") -> State:
        state: State = {"x": 0}
        thread = uuid.uuid4().hex
        for number, node in enumerate(nodes):
            state.update(await step(node, state))
            if store is None:
                continue
            if durability == "sync":
                await store.put(thread, number, state)
            else:
                store.send(thread, number, state)
        if store is not None and durability != "sync":
            await store.flush()
        return state

    async def chain(self, n: int, saver: str | None = None, durability: str = "sync", pause: float = 0) -> Case:
        """An anyio task group of one task for each superstep, whose update is merged into a dict. With a saver, the dict is
        encoded by msgspec and stored in one transaction before the next superstep, or behind it with `async`."""
        store, nodes = await self._store(saver), [waiting(pause) if pause else increment] * n
        return Case(run=lambda: self._run(nodes, store, durability), units=n, right=lambda result: result["x"] == n)

    async def loop(self, n: int) -> Case:
        """The same as the chain, until a condition on the dict holds. There is no limit to check and nothing to route."""
        return await self._repeat(increment, n)

    async def _repeat(
        self, node: Node, n: int, figures: Callable[[Any], dict[str, float]] = lambda result: {}, **given: Any
    ) -> Case:
        async def run() -> State:
            state: State = {**given, "x": 0}
            while state["x"] < n:
                state.update(await step(node, state))
            return state

        return Case(run=run, units=n, right=lambda result: result["x"] == n, figures=figures)

    async def flat(self, n: int, early: int) -> Case:
        """The loop. Its node looks at the memory of the process."""
        gauge = Gauge(early, n)
        return await self._repeat(gauge, n, lambda result: gauge.seen)

    async def wide(self, keys: int, turns: int) -> Case:
        """Five task groups for each round, one of them with two tasks, all of which read the one dict. Updates of two keys each
        are merged into it."""
        names = wide_keys(keys)
        nodes = [wide_node(place, names) for place in range(len(WIDE))]
        plan = [nodes[:1], nodes[1:2], nodes[2:4], nodes[4:5], nodes[5:]]

        async def run() -> State:
            state: State = {**dict.fromkeys(names, 0), "round": 0}
            while state["round"] < turns:
                for group in plan:
                    for update in await gather([partial(node, state) for node in group]):
                        state.update(update)
            return state

        return Case(
            run=run,
            units=turns * len(plan),
            right=lambda result: result["round"] == turns and result[names[2]] == 1,
        )

    async def subgraph(self, calls: int) -> Case:
        """One task group of all calls. Each call has a dict of its own and runs its twelve supersteps as task groups."""

        async def joke(item: State) -> State:
            state = dict(item)
            state.update(await step(edit, state))
            state.update(await step(generate, state))
            while not ends_with_bumps(state):
                state.update(await step(bump, state))
            return {"jokes": state["jokes"]}

        async def run() -> State:
            state: State = {"jokes": []}
            for update in await fan(joke, [{"subject": SUBJECT}] * calls):
                state["jokes"].extend(update["jokes"])
            return state

        return Case(
            run=run, units=calls, right=lambda result: len(result["jokes"]) == calls and ends_with_bumps(result)
        )

    async def agent(self, turns: int, saver: str | None = None) -> Case:
        """Two nodes in turn, which read the one list of messages that there is: nothing isolates it. New messages are appended, and
        with a saver what each superstep added is stored."""
        store = await self._store(saver)

        async def run() -> State:
            state, thread, number = question(turns), uuid.uuid4().hex, 0
            while True:
                for node in (agent, tool):
                    update = await step(node, state)
                    state["messages"].extend(update["messages"])
                    state["left"] = update.get("left", state["left"])
                    number += 1
                    if store is not None:
                        await store.put(thread, number, update)
                    if node is agent and not asks(state):
                        return state

        return Case(run=run, units=2 * turns + 1, right=lambda result: len(result["messages"]) == 2 * turns + 2)

    async def prebuilt(self, turns: int, saver: str | None = None) -> Case:
        """A loop that calls the model's function and then the tool's, and appends their messages to the one list. With a saver, each
        is stored."""
        store = await self._store(saver)

        async def model(state: State) -> State:
            return {"messages": [answered(len(state["messages"]), turns)]}

        async def call(state: State) -> State:
            (asked,) = state["messages"][-1]["tool_calls"]
            found = await search(**asked["args"])
            return {"messages": [{"role": "tool", "tool_call_id": asked["id"], "name": "search", "content": found}]}

        async def run() -> State:
            state, thread, number = question(turns), uuid.uuid4().hex, 0
            while True:
                for node in (model, call):
                    update = await step(node, state)
                    state["messages"].extend(update["messages"])
                    number += 1
                    if store is not None:
                        await store.put(thread, number, update)
                    if node is model and not asks(state):
                        return state

        return Case(run=run, units=turns, right=lambda result: len(result["messages"]) == 2 * turns + 2)

    async def reads(self, messages: int, how: str, flat: bool = False, supersteps: int = 20) -> Case:
        """The loop, whose node reads the one list of messages that there is: nothing isolates it. Time is taken from the node's first
        call to its last."""
        reader = MessageReader(how)
        said = conversation(messages, flat=flat)
        return await self._repeat(reader, supersteps, reader.figures, messages=said)

    async def fanout(self, n: int, waits: bool = False) -> Case:
        """One anyio task group of all tasks, whose lists are joined in order. A superstep of one task adds them up."""

        async def run() -> State:
            state: State = {"n": n, "out": []}
            for update in await fan(work_later if waits else work, [{"i": i} for i in range(n)]):
                state["out"].extend(update["out"])
            state.update(await step(total, state))
            return state

        return Case(run=run, units=n, right=lambda result: result["total"] == n * (n - 1) // 2)

    async def stream(self, n: int, mode: str) -> Case:
        """The loop as an async generator, which yields the update or a copy of the dict after each superstep. There is nothing
        between it and its reader."""

        async def chunks() -> AsyncIterator[State]:
            state: State = {"x": 0}
            while state["x"] < n:
                update = await step(increment, state)
                state.update(update)
                yield dict(state) if mode == "values" else {"node": update}

        async def run() -> tuple[int, float]:
            begun, first, count = time.perf_counter(), 0.0, 0
            async for _ in chunks():
                first = first or time.perf_counter() - begun
                count += 1
            return count, first

        return Case(
            run=run, units=n, right=lambda result: result[0] == n, figures=lambda result: {"first_ms": result[1] * 1e3}
        )

    async def many(
        self, threads: int, saver: str, durability: str = "sync", steps: int = 10, pause: float = 0.01
    ) -> Case:
        """Chains in a task group. One thread writes for all of them: what piles up while it commits is its next transaction
        (PostgreSQL: 16 connections, a transaction for each superstep)."""
        store, nodes = await self._store(saver), [waiting(pause)] * steps

        async def run() -> int:
            results = await gather([lambda: self._run(nodes, store, durability)] * threads)
            return sum(result["x"] for result in results)

        return Case(run=run, units=threads, right=lambda result: result == threads * steps)

    async def thread(self, n: int) -> Case:
        """Each superstep stores the message that it added, and nothing else. Reading is one query, whose rows are joined to a list;
        listing is that query, and looking makes a list for each row; resuming reads, and runs and stores one superstep."""
        store, runs = self._sqlite(), 0

        async def state_of(thread: str) -> State:
            return {"messages": [each for update in await store.all(thread) for each in update["messages"]]}

        async def run() -> dict[str, float]:
            nonlocal runs
            runs += 1
            thread, state, lap = uuid.uuid4().hex, {"messages": list[Any]()}, Laps()
            for number in range(n):
                update = await step(say, state)
                state["messages"].extend(update["messages"])
                await store.put(thread, number, update)
            lap("say")
            size = file_size(store.path) / runs
            await state_of(thread)
            lap("size")
            read = [len((await state_of(thread))["messages"]) for _ in range(READS)]
            lap("read")
            count = len(await store.all(thread))
            lap("list")
            listed: list[list[Any]] = [[]]
            for update in await store.all(thread):
                listed.append(listed[-1] + update["messages"])
            lap("look")
            again = await state_of(thread)
            await store.put(thread, n, await step(say, again))
            lap("resume")
            assert set(read) == {len(listed[-1])} == {n} and n == count
            figures = lap.milliseconds("read", "list", "look", "resume")
            figures["read_ms"] /= READS
            return {"us": lap.seconds["say"] / n * 1e6, "file_mb": size / 1e6, **figures}

        return Case(run=run, units=n, right=bool, figures=lambda result: result)
