"""P11: a checkpoint whose key is damaged is missing from every query. What reads a whole thread detects that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, PostgresSaver, Retention, SqliteSaver
from checkpoint_savers.conformance import Cell
from checkpoint_savers.conformance.savers.random_threads import Growing
from checkpoint_savers.errors import CorruptCheckpointError
from tests.helpers.postgres_tools import conninfo, made_schema
from tests.savers import postgres_cells, sqlite_cells

pytestmark = pytest.mark.anyio

Damaged = tuple[BaseCheckpointSaver, Callable[[], Sequence[Cell]], str]


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Damaged]:
    """A saver, what it stores as cells, and the place of the cells whose damage hides a checkpoint from queries."""
    async with AsyncExitStack() as stack:
        if request.param == "sqlite":
            path = tmp_path / "threads.db"
            saver: BaseCheckpointSaver = await stack.enter_async_context(SqliteSaver(path))
            yield saver, stack.enter_context(sqlite_cells.cells_of(path)), "checkpoint.thread"
        else:
            schema = stack.enter_context(made_schema())
            saver = await stack.enter_async_context(PostgresSaver.from_conn_string(conninfo(), schema=schema))
            cells = stack.enter_context(postgres_cells.cells_of(conninfo(), schema))
            yield saver, cells, "pregel_checkpoints.checkpoint_id"


def flipped(value: object) -> object:
    """A key with one bit changed: a newer id for some rows, an older one for others."""
    if isinstance(value, int):
        return value ^ (1 << 40)
    if isinstance(value, str):
        return value[:9] + chr(ord(value[9]) ^ 1) + value[10:]
    assert isinstance(value, bytes)
    return value[:5] + bytes([value[5] ^ 1]) + value[6:]


async def listed(saver: BaseCheckpointSaver, **how: Any) -> set[tuple[str, str]]:
    found = [one.config["configurable"] async for one in saver.alist("t", **how)]
    return {(place["checkpoint_ns"], place["checkpoint_id"]) for place in found}


async def test_a_listing_is_whole_or_an_error(opened: Damaged) -> None:
    """P11: with one bit of a checkpoint's key changed, a listing that lacks it raises, but for the tip of an old branch."""
    saver, cells, place = opened
    growing = Growing(saver, "t", 5)
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
async def test_upkeep_does_not_pass_it_on(
    opened: Damaged, verb: Callable[[BaseCheckpointSaver], Awaitable[object]]
) -> None:
    """P11: a copy, an export or a pruned thread never hides that a checkpoint was missing."""
    saver, cells, place = opened
    await Growing(saver, "t", 5).grow(6)
    ids = [cell for cell in cells() if cell.place == place]
    cell = ids[len(ids) // 2]
    cell.put(flipped(cell.get()))
    with pytest.raises(CorruptCheckpointError):
        await verb(saver)
    assert [thread.thread_id for thread in await saver.threads()] == ["t"]


async def test_rows_that_are_pruned_meanwhile_are_not_missing(opened: Damaged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that retention deletes between two pages of a listing are not reported as damage."""
    monkeypatch.setattr("checkpoint_savers.abc.PAGE", 4)
    saver, _, _ = opened
    await Growing(saver, "t", 5).grow(12)
    count = 0
    async for _ in saver.alist("t"):
        count += 1
        if count == 3:
            await saver.aprune("t", retention=Retention(keep=1))
    assert count >= 3
