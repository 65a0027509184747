"""Databases that earlier versions made, which every later version reads, upgrades and goes on with (P4, P11).

See corpus/README.md.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import SqliteSaver
from checkpoint_savers.conformance.savers.suite import everything, take
from checkpoint_savers.sqlite.schema import VERSION

pytestmark = pytest.mark.anyio

CORPUS = Path(__file__).with_name("corpus")
ENTRIES = sorted(folder.parent.name for folder in CORPUS.glob("*/threads.db"))


class Entry:
    """One database, and what its makers were told of it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.made = CORPUS / name / "threads.db"
        self.path = Path(shutil.copy(self.made, folder))
        self.expected: dict[str, Any] = json.loads((CORPUS / name / "expected.json").read_text(encoding="utf-8"))
        self.told: Any = importlib.import_module("corpus_told")
        self.graphs: Any = importlib.reload(importlib.import_module(f"{name}_graphs"))

    def open(self, *, read_only: bool = False, path: Path | None = None) -> SqliteSaver:
        name = self.path if path is None else path
        return SqliteSaver.from_conn_string(f"file:{name}?mode=ro" if read_only else name, codec=self.graphs.codec())

    async def read(self, saver: SqliteSaver) -> dict[str, Any]:
        """As make.py has it."""
        found: dict[str, Any] = {
            "threads": {
                thread: await self.told.tell_thread(graph, thread)
                for thread, graph in self.graphs.graphs(saver).items()
            }
        }
        if hasattr(self.graphs, "more"):
            found["more"] = await self.graphs.more(saver)
        return json.loads(json.dumps(found))

    @property
    def readable(self) -> dict[str, Any]:
        return {key: value for key, value in self.expected.items() if key != "finished"}


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    monkeypatch.syspath_prepend(str(CORPUS))
    monkeypatch.syspath_prepend(str(CORPUS / request.param))
    yield Entry(request.param, tmp_path)
    for module in ("corpus_told", f"{request.param}_graphs"):
        sys.modules.pop(module, None)


def test_the_corpus_is_as_it_was_made() -> None:
    """P11: no entry has been made again, or lost."""
    lines = (CORPUS / "SHA256SUMS").read_text().splitlines()
    listed = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = [path for path in CORPUS.glob("*/*") if path.suffix in (".db", ".json")]
    assert listed == {
        path.relative_to(CORPUS).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in found
    }
    assert len(ENTRIES) >= 5
    assert sum(path.stat().st_size for path in found) < 1_200_000


async def test_it_is_upgraded_and_reads_the_same(entry: Entry) -> None:
    """P4: values with their types, what runs next, questions, failures, histories, ids and stream events."""
    async with entry.open() as saver:
        assert await entry.read(saver) == entry.readable
    assert int.from_bytes(entry.path.read_bytes()[60:64], "big") == VERSION
    async with entry.open() as saver:
        assert await entry.read(saver) == entry.readable
        await saver.vacuum()
        assert await entry.read(saver) == entry.readable


async def test_it_is_read_as_it_is(entry: Entry) -> None:
    """P4: where it cannot be written; it is not touched."""
    before = entry.path.read_bytes()
    async with entry.open(read_only=True) as saver:
        assert await entry.read(saver) == entry.readable
    assert entry.path.read_bytes() == before == entry.made.read_bytes()


async def test_what_is_open_is_finished(entry: Entry) -> None:
    """P4, P5, P8: questions are answered and failures resumed; what was stored does not run again."""
    async with entry.open() as saver:
        finished = await entry.graphs.finish(saver)
        assert {thread: entry.told.tell(value) for thread, value in finished.items()} == entry.expected["finished"]


async def test_it_is_moved(entry: Entry, tmp_path: Path) -> None:
    """P4: thread by thread into a new file, byte for byte, from the upgraded file and from the one as it was made."""
    for number, read_only in enumerate((True, False)):
        path = tmp_path / f"new{number}.db"
        async with entry.open(read_only=read_only) as old, entry.open(path=path) as new:
            for header in await old.threads(limit=1000):
                dump = await old.dump(header.thread_id)
                assert dump is not None
                claim = await take(new, header.thread_id)
                await new.load(claim, dump)
                await new.release(claim)
                assert await new.dump(header.thread_id) == dump
            assert await entry.read(new) == entry.readable
            assert await everything(new) == await everything(old)


@pytest.mark.parametrize("entry", ["labels"], indirect=True)
async def test_threads_get_the_metadata_of_their_heads(entry: Entry) -> None:
    """P4: of a file that had none, as long as it is read as it is and when it is upgraded: what the user gave, without the
    runtime's own keys and without those that endpoints stored beside them."""
    given = entry.graphs.GIVEN
    for read_only in (True, False):
        async with entry.open(read_only=read_only) as saver:
            found = {one.thread_id: one.metadata async for one in saver.alist_threads()}
        assert found == {**given, "served": {"user": "bob"}}
        assert [type(value) for value in found["ann"].values()] == [type(value) for value in given["ann"].values()]
