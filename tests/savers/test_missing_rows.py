"""P11: a checkpoint whose key is damaged is missing from every query. Code that reads a whole thread detects that."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver, Retention, SqliteSaver
from checkpoint_savers.conformance import Cell
from checkpoint_savers.conformance.savers.random_threads import RandomThread
from checkpoint_savers.errors import CorruptCheckpointError, StorageError
from pregel_async import START, StateGraph
from tests.helpers.postgres_tools import conninfo, made_schema, unsynced
from tests.savers import postgres_cells, sqlite_cells

pytestmark = pytest.mark.anyio

Damaged = tuple[BaseCheckpointSaver, Callable[[], Sequence[Cell]], str]


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Damaged]:
    """A saver, its stored values as cells, and the column whose damage hides a checkpoint from queries."""
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path / "threads.db"
            saver: BaseCheckpointSaver = await stack.enter_async_context(SqliteSaver(path))
            yield saver, stack.enter_context(sqlite_cells.cells_of(path)), "checkpoint.thread"
        else:
            schema = stack.enter_context(made_schema())
            saver = await stack.enter_async_context(PostgresSaver.from_conn_string(unsynced(), schema=schema))
            cells = stack.enter_context(postgres_cells.cells_of(conninfo(), schema))
            yield saver, cells, "pregel_checkpoints.checkpoint_id"


def flipped(value: object) -> object:
    """A key with one bit changed: a later id for some rows, an earlier one for others."""
    if isinstance(value, int):
        return value ^ (1 << 40)
    if isinstance(value, str):
        return value[:9] + chr(ord(value[9]) ^ 1) + value[10:]
    assert isinstance(value, bytes)
    return value[:5] + bytes([value[5] ^ 1]) + value[6:]


async def listed(saver: BaseCheckpointSaver, **how: Any) -> set[tuple[str, str]]:
    found = [one.config["configurable"] async for one in saver.alist("t", **how)]
    return {(place["checkpoint_ns"], place["checkpoint_id"]) for place in found}


async def test_a_listing_is_complete_or_an_error(opened: Damaged) -> None:
    """P11: with one bit of a checkpoint's key changed, a listing without that checkpoint raises, except for the tip
    of an old branch."""
    saver, cells, place = opened
    growing = RandomThread(saver, "t", 5)
    await growing.grow(12)
    whole = await listed(saver)
    parents = {
        one.parent_config["configurable"]["checkpoint_id"] async for one in saver.alist("t") if one.parent_config
    }
    chain = await saver.read("t")
    assert chain is not None
    found = raised = 0
    for cell in cells():
        if cell.place != place:
            continue
        right = cell.get()
        cell.put(flipped(right))
        for how in ({}, {"filter": {"source": "loop"}}):
            try:
                left = whole - await listed(saver, **how)
            except CorruptCheckpointError:
                raised += 1
            else:
                found += 1
                if not how:
                    assert not left & {("", chain.head)}
                    assert not {id for _, id in left} & parents, f"{left} of {sorted(whole)}"
        cell.put(right)
    assert raised > found
    assert await listed(saver) == whole


@pytest.mark.parametrize(
    "verb",
    [
        lambda saver: saver.acopy_thread("t", "u"),
        lambda saver: saver.aexport_thread("t", BytesIO()),
        lambda saver: saver.aprune("t", retention=Retention(keep=100)),
    ],
    ids=["copy", "export", "prune"],
)
async def test_upkeep_detects_a_missing_checkpoint(
    opened: Damaged, verb: Callable[[BaseCheckpointSaver], Awaitable[object]]
) -> None:
    """P11: copying, exporting and pruning never hide that a checkpoint was missing."""
    saver, cells, place = opened
    await RandomThread(saver, "t", 5).grow(6)
    ids = [cell for cell in cells() if cell.place == place]
    cell = ids[len(ids) // 2]
    cell.put(flipped(cell.get()))
    with pytest.raises(CorruptCheckpointError):
        await verb(saver)
    assert [thread.thread_id for thread in await saver.threads()] == ["t"]


async def test_rows_pruned_meanwhile_are_not_missing(opened: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that retention deletes between two pages of a listing are not reported as damage."""
    monkeypatch.setattr("checkpoint_savers.history.PAGE", 4)
    saver, _, _ = opened
    await RandomThread(saver, "t", 5).grow(12)
    count = 0
    async for _ in saver.alist("t"):
        count += 1
        if count == 3:
            await saver.aprune("t", retention=Retention(keep=1))
    assert count >= 3


async def paged(saver: BaseCheckpointSaver, size: int, **config: Any) -> set[tuple[str, str]]:
    """As `listed`, in pages that each begin after the last row of the one before."""
    found, before = set[tuple[str, str]](), None
    while True:
        where: Any = {"configurable": {"thread_id": "t", **config}}
        page = [one.config async for one in saver.alist(where, before=before, limit=size)]
        places = [one["configurable"] for one in page]
        found |= {(place["checkpoint_ns"], place["checkpoint_id"]) for place in places}
        if len(page) < size:
            return found
        before = page[-1]


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_pages_are_complete_or_an_error(opened: Damaged, size: int) -> None:
    """P11: a missing checkpoint is also detected at the end of a page and at the beginning of the next."""
    saver, cells, place = opened
    growing = RandomThread(saver, "t", 5)
    await growing.grow(12)
    whole = await paged(saver, size, checkpoint_ns="")
    assert len(whole) > size
    parents = {
        one.parent_config["configurable"]["checkpoint_id"] async for one in saver.alist("t") if one.parent_config
    }
    heads = await saver.heads("t", "")
    raised = 0
    for cell in cells():
        if cell.place != place:
            continue
        right = cell.get()
        cell.put(flipped(right))
        try:
            left = {id for _, id in whole - await paged(saver, size, checkpoint_ns="")}
        except CorruptCheckpointError:
            raised += 1
        else:
            assert not left & (parents | set(heads.values())), f"{left} of {sorted(whole)}"
        cell.put(right)
    assert raised > len(whole) // 2
    assert await paged(saver, size, checkpoint_ns="") == whole


async def test_missing_heads_of_subgraphs(opened: Damaged) -> None:
    """P11: the newest row of a namespace is the parent of none; a listing of the thread detects by the namespace's
    head that it is missing."""
    saver, cells, place = opened
    inside = StateGraph(dict[str, Any]).add_node("n", lambda state: state).add_edge(START, "n").compile()
    graph = StateGraph(dict[str, Any]).add_node("sub", inside).add_edge(START, "sub").compile(saver)
    await graph.ainvoke({}, "t")
    await graph.ainvoke({}, "t")
    heads = await saver.heads("t")
    assert len(heads) == 3
    whole = await listed(saver)
    raised = 0
    for cell in cells():
        if cell.place == place:
            right = cell.get()
            cell.put(flipped(right))
            with pytest.raises(CorruptCheckpointError):
                await listed(saver)
            cell.put(right)
            raised += 1
    assert raised == len(whole)


async def test_damage_of_the_index_of_listings(tmp_path: Path) -> None:
    """P11: intact rows that the index no longer leads to are also missing from a listing."""
    path, copy = tmp_path / "threads.db", tmp_path / "damaged.db"
    async with SqliteSaver(path) as saver:
        inside = StateGraph(dict[str, Any]).add_node("n", lambda state: state).add_edge(START, "n").compile()
        graph = StateGraph(dict[str, Any]).add_node("sub", inside).add_edge(START, "sub").compile(saver)
        for _ in range(3):
            await graph.ainvoke({}, "t")
        whole = await listed(saver)
    with closing(sqlite3.connect(path)) as db:
        (size,) = db.execute("PRAGMA page_size").fetchone()
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'checkpoint_by_id'").fetchone()
    data = path.read_bytes()
    used = [at for at in range((page - 1) * size, page * size) if data[at]]
    raised = 0
    for at in used[:: 1 + len(used) // 300]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        for file in tmp_path.glob("damaged.db*"):
            file.unlink()
        copy.write_bytes(damaged)
        try:
            async with SqliteSaver(copy) as saver:
                assert await listed(saver) == whole, at
        except (CorruptCheckpointError, StorageError):
            raised += 1
    assert raised > 100
