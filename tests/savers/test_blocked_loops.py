"""Savers that were opened on the event loop that a sync verb blocks, as in the first cell of a notebook."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver, PostgresSaver, SqliteSaver
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, Command, StateGraph, interrupt, open_sync
from pregel_async._api.compiled import Graph
from tests.helpers.postgres_tools import reused_schema, unsynced

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:.*blocks the event loop:pregel_async.errors.BlockingCallWarning"),
]


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: Any
) -> AsyncIterator[BaseCheckpointSaver]:
    if request.param == "memory":
        yield InMemorySaver()
    elif request.param == "sqlite":
        async with SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL") as saver:
            yield saver
    else:
        with reused_schema() as schema:
            async with PostgresSaver.from_conn_string(unsynced(), schema=schema) as saver:
                yield saver


async def first(state: State) -> State:
    await anyio.lowlevel.checkpoint()
    return {"log": ["first"]}


def asks(state: State) -> State:
    return {"log": [interrupt("Sure?")]}


def graph_of(saver: BaseCheckpointSaver) -> Graph[Any, Any]:
    return StateGraph(State).add_sequence([first, asks]).add_edge(START, "first").compile(saver)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_saver_that_was_opened_on_the_blocked_loop(saver: BaseCheckpointSaver, durability: Any) -> None:
    """A saver serves the background loop while its own loop is blocked: each verb, sync or async, reads what the one
    before has stored."""
    graph = graph_of(saver)
    with anyio.fail_after(30):
        asked = graph.invoke({}, "t", durability=durability)
        assert asked["__interrupt__"][0].value == "Sure?"
        assert (await graph.aget_state("t")).next == ("asks",)
        assert graph.get_state("t").values == {"log": ["first"]}
        with graph.stream(Command(resume="yes"), "t", durability=durability) as chunks:
            assert list(chunks) == [{"asks": {"log": ["yes"]}}]
        assert graph.get_state("t").values == {"log": ["first", "yes"]}
        assert len(list(graph.get_state_history("t"))) == len([state async for state in graph.aget_state_history("t")])
        graph.update_state("t", {"log": ["by hand"]}, "first")
        assert graph.invoke(None, "t", durability=durability)["__interrupt__"]
        assert await graph.ainvoke(Command(resume="no"), "t") == {"log": ["first", "yes", "by hand", "no"]}


async def test_a_sync_verb_during_a_run_of_the_blocked_loop(saver: BaseCheckpointSaver) -> None:
    """While a run of the blocked loop is in progress, a sync verb stores another thread. In the end both threads are
    stored."""
    began, go_on = anyio.Event(), anyio.Event()

    async def waits(state: State) -> State:
        began.set()
        await go_on.wait()
        return {"log": ["waited"]}

    waiting = StateGraph(State).add_sequence([waits, first]).add_edge(START, "waits").compile(saver)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.ainvoke, {}, "a")
            await began.wait()
            graph_of(saver).invoke({}, "b")
            go_on.set()
        assert (await waiting.aget_state("a")).values == {"log": ["waited", "first"]}
        assert graph_of(saver).get_state("b").values == {"log": ["first"]}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_saver_that_is_opened_where_a_loop_runs(kind: str, tmp_path: Path) -> None:
    """A saver opened with `with open_sync(...)` in a notebook cell also serves awaited verbs, and another cell can
    close it."""
    with reused_schema() as schema:
        closed = (
            SqliteSaver.from_conn_string(tmp_path / "threads.db", synchronous="NORMAL")
            if kind == "sqlite"
            else PostgresSaver.from_conn_string(unsynced(), schema=schema)
        )
        with anyio.fail_after(30):
            cell = open_sync(closed)
            saver: Any = cell.__enter__()
            graph_of(saver).invoke({}, "t")
            await anyio.lowlevel.checkpoint()
            assert (await graph_of(saver).aget_state("t")).values == {"log": ["first"]}
            cell.__exit__(None, None, None)
