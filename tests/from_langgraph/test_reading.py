"""The tables of LangGraph's savers, read from a file that LangGraph has written. Values stay encoded: LangGraph is not
needed."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from checkpoint_savers import SqliteSaver
from pregel_async import START, StateGraph
from pregel_async.from_langgraph import LangGraphNotInstalledError, NotLangGraphError, import_threads
from pregel_async.from_langgraph.sources import branch_of, open_source
from pregel_async.from_langgraph.stored import StoredThread
from tests.from_langgraph.golden import FILE
from tests.helpers.postgres_tools import conninfo


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A copy: SQLite makes further files beside it."""
    return str(shutil.copy(FILE, tmp_path / "langgraph.db"))


def read(file: str, thread: str, *, history: bool = False) -> StoredThread:
    with closing(open_source(file)) as source:
        found = source.thread(thread, history=history)
    assert found is not None
    return found


def test_threads(file: str) -> None:
    """All threads are listed, sorted; one that is not stored is None."""
    with closing(open_source(file)) as source:
        assert source.thread_ids() == ["asks", "fork", "hand"]
        assert source.thread("nobody", history=True) is None


def test_the_newest_checkpoint(file: str) -> None:
    """It has its encoded body, its metadata, and the writes of the open superstep in the order of the tasks."""
    thread = read(file, "asks")
    (newest,) = thread.checkpoints
    assert (thread.thread_id, thread.others, thread.namespaces, thread.kept) == ("asks", 0, {}, {})
    assert newest.body is not None
    assert newest.body.type == "msgpack"
    assert b"branch:to:ask" in newest.body.data
    assert {key: newest.metadata[key] for key in ("source", "step", "user")} == {
        "source": "loop",
        "step": 1,
        "user": "ada",
    }
    assert [(write.path, write.channel) for write in newest.writes] == [
        ("~__pregel_pull, ask", "__interrupt__"),
        ("~__pregel_pull, beside", "log"),
        ("~__pregel_pull, beside", "join:ask+beside:last"),
    ]
    assert newest.writes[1].value == ("msgpack", b"\x91\xa6beside")


def test_the_branch_of_the_newest_checkpoint(file: str) -> None:
    """History is the newest checkpoint's branch, oldest first; checkpoints of other branches are counted."""
    assert [each.metadata["step"] for each in read(file, "asks", history=True).checkpoints] == [-1, 0, 1]
    fork = read(file, "fork", history=True)
    assert fork.checkpoints[-1].checkpoint_id == max(each.checkpoint_id for each in fork.checkpoints)
    assert fork.others > 0
    assert [each.metadata["source"] for each in read(file, "hand", history=True).checkpoints] == ["update"]


def test_a_branch() -> None:
    """A branch ends at a checkpoint without a parent, or one whose parent was deleted."""
    parents = {"1": None, "2": "1", "3": "1", "4": "3", "6": "5"}
    assert branch_of("4", parents) == ["1", "3", "4"]
    assert branch_of("6", parents) == ["6"]
    assert branch_of("a", {"a": "b", "b": "a"}) == ["b", "a"]  # a damaged database: not for ever


def test_nothing_is_written(file: str) -> None:
    """SQLite refuses writes, and the file keeps its bytes."""
    before = Path(file).read_bytes()
    with closing(open_source(file)) as source:
        source.thread("asks", history=True)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            vars(source)["_connection"].execute("DELETE FROM checkpoints")
    assert Path(file).read_bytes() == before


async def other_database(path: Path) -> None:
    async with SqliteSaver.from_conn_string(str(path)):
        pass


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_other_sources(tmp_path: Path) -> None:
    """What is no database of LangGraph's is refused, by an error that says what to name. Nothing is made."""
    text, ours = tmp_path / "text.db", tmp_path / "ours.db"
    text.write_text("no database at all, but some text that is long enough")
    await other_database(ours)
    missing = tmp_path / "missing.db"
    for path, reason in ((missing, "there is no such file"), (text, "SQLite says"), (ours, "no tables of LangGraph's")):
        with pytest.raises(NotLangGraphError, match=reason) as caught:
            open_source(str(path))
        assert caught.value.source == str(path)
        assert "langgraph-checkpoint-sqlite (a file)" in str(caught.value)
    assert not missing.exists()


def test_other_postgresql_databases() -> None:
    """The same for PostgreSQL, and the password is not shown."""
    with pytest.raises(NotLangGraphError, match="no tables of LangGraph's"):
        open_source(f"{conninfo()}?options=-csearch_path%3Dno_such_schema_anywhere")
    with pytest.raises(NotLangGraphError, match="PostgreSQL says") as caught:
        open_source("postgresql://someone:secret@127.0.0.1:1/test")
    assert "secret" not in str(caught.value)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_without_langgraph(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where LangGraph is missing, an import says what to install, before anything is read or stored."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "langgraph":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langgraph", None)

    def node(state: dict[str, Any]) -> None: ...

    async with SqliteSaver.from_conn_string(str(tmp_path / "ours.db")) as saver:
        graph = StateGraph(dict).add_node("n", node).add_edge(START, "n").compile(saver)
        with pytest.raises(LangGraphNotInstalledError, match="pip install langgraph"):
            async for _ in import_threads(graph, file):
                pass
        assert [each async for each in saver.alist_threads()] == []
