"""Makes the corpus's entry of a store, with the code of the version whose format it is to keep. See README.md.

    PYTHONPATH=<checkout of that version> python tests/savers/corpus/make_items.py NAME

It is run once for each entry. What it has made is never made again.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


async def main(name: str) -> None:
    sys.path.insert(0, str(HERE / name))
    corpus: Any = importlib.import_module(f"{name}_items")
    from checkpoint_savers import SqliteStore

    database = HERE / name / "items.db"
    if database.exists():
        raise SystemExit(f"{database} is there already. It is never made again: give a new entry a new name.")
    async with SqliteStore.from_conn_string(database, codec=corpus.codec(), clock=lambda: corpus.PUT) as store:
        await corpus.fill(store)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")
    expected = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(database, folder))
        for when in ("WHOLE", "LATE"):
            clock = getattr(corpus, when)
            async with SqliteStore.from_conn_string(copy, codec=corpus.codec(), clock=lambda at=clock: at) as store:
                expected[when] = await corpus.read(store)
    text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    (HERE / name / "expected.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
