"""Databases of stores that earlier versions made, which every later version reads and goes on with (P4, P11).

See corpus/README.md.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import SqliteStore

pytestmark = pytest.mark.anyio

CORPUS = Path(__file__).with_name("corpus")
ENTRIES = sorted(folder.parent.name for folder in CORPUS.glob("*/items.db"))


class Entry:
    """One database, and what its makers were told of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = Path(shutil.copy(CORPUS / name / "items.db", folder))
        self.expected: dict[str, Any] = json.loads((CORPUS / name / "expected.json").read_text(encoding="utf-8"))
        self.items: Any = importlib.import_module(f"{name}_items")

    def open(self, when: float, *, read_only: bool = False) -> SqliteStore:
        name = f"file:{self.path}?mode=ro" if read_only else self.path
        return SqliteStore.from_conn_string(name, codec=self.items.codec(), clock=lambda: when)


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    monkeypatch.syspath_prepend(str(CORPUS / request.param))
    yield Entry(request.param, tmp_path)
    sys.modules.pop(f"{request.param}_items", None)


def test_there_are_some() -> None:
    """The entries are found."""
    assert ENTRIES == ["memories"]


@pytest.mark.parametrize("read_only", [True, False])
async def test_items_are_read_as_they_were(entry: Entry, read_only: bool) -> None:
    """P11: in value, type, order and time, and what has expired is gone; opened read-only, too."""
    for when in ("WHOLE", "LATE"):
        async with entry.open(getattr(entry.items, when), read_only=read_only) as store:
            assert json.loads(json.dumps(await entry.items.read(store))) == entry.expected[when]


async def test_a_store_goes_on_with_them(entry: Entry) -> None:
    """P4: what is put beside them and in their place is there with them, and a sweep takes what has expired alone."""
    async with entry.open(entry.items.LATE) as store:
        await store.aput(("users", "ann"), "plain", {"put": "once more"})
        await store.aput(("users", "cleo"), "plain", {"put": "first"})
        await store.asweep_ttl()
        await store.adelete(("usersx",), "plain")
        found = await entry.items.read(store)
    gone = [["usersx"], "plain"], [["users", "ann"], "plain"]
    left = [item for item in entry.expected["LATE"]["items"] if item[:2] not in gone]
    assert [item for item in found["items"] if item[0] != ["users", "cleo"] and item[:2] not in gone] == left
    assert [item[2] for item in found["items"][:2]] == ["{'put': 'once more'}", "{'put': 'first'}"]
