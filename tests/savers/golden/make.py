"""Make the missing golden files, those of formats with a new number. An existing file is never made again.

python -m tests.savers.golden.make
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from checkpoint_savers import SqliteSaver, SqliteStore
from tests.savers.golden import engine_graphs, memories_items, scenarios
from tests.savers.golden.formats import FORMATS, HERE


async def main() -> None:
    for made in FORMATS:
        if made.golden.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, made.golden.name)
            await made.write(path)
            if made.kind == "threads":
                _expect(made.golden, await _with_scenarios(path))
            if made.kind == "items":
                _expect(made.golden, await _items_of(path))
            shutil.move(path, made.golden)
        print(made.golden.name)
    files = sorted(path for path in HERE.iterdir() if path.suffix in (".db", ".json", ".sql", ".threads"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (HERE / "SHA256SUMS").write_text("".join(sums))


async def _with_scenarios(database: Path) -> dict[str, Any]:
    """Add the scenarios' threads after the sample's. Return what is read of them, and the results of finishing them."""
    codec = engine_graphs.codec()
    async with SqliteSaver.from_conn_string(database, codec=codec) as saver:
        filled = json.loads(json.dumps(await scenarios.fill(saver)))
    async with SqliteSaver.from_conn_string(database, codec=codec) as saver:
        expected = {"filled": filled, "read": await scenarios.read(saver, filled)}
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteSaver.from_conn_string(shutil.copy(database, folder), codec=codec) as saver:
            return {**expected, "finished": await scenarios.finish(saver)}


async def _items_of(database: Path) -> dict[str, Any]:
    """Return what is read of a store before and after items have expired."""
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(database, folder)
        for when in ("WHOLE", "LATE"):
            clock = getattr(memories_items, when)
            async with SqliteStore(copy, codec=memories_items.codec(), clock=lambda at=clock: at) as store:
                expected[when] = await memories_items.read(store)
    return expected


def _expect(golden: Path, expected: dict[str, Any]) -> None:
    text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    golden.with_suffix(".json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
