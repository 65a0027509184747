"""`pregel-async threads check` and `migrate`: which threads the graph's code loads, and what its rules make of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest

from checkpoint_savers import Codec, SqliteSaver, SqliteStore
from pregel_async import START, StateGraph
from pregel_async.service import RunService
from tests.helpers.postgres_tools import conninfo, made_schema


class Colour(TypedDict, total=False):
    colour: str


GRAPHS = """
from typing import TypedDict
from pregel_async import START, StateGraph, interrupt

class Old(TypedDict, total=False):
    name: str
    colour: str

class New(TypedDict, total=False):
    name: str

def ask(state):
    return {"name": interrupt("who?")} if state["name"] == "?" else {}

old = StateGraph(Old).add_node("ask", ask).add_edge(START, "ask")
new = StateGraph(New).add_node("sign_off", ask).add_edge(START, "sign_off")
removing = StateGraph(New).add_node("ask", ask).add_edge(START, "ask").compile(removed=("colour",))
fitting = StateGraph(New).add_node("sign_off", ask, was="ask").add_edge(START, "sign_off")
"""


@pytest.fixture
def graphs(shell: Any) -> None:
    Path(shell.cwd, "graphs.py").write_text(GRAPHS)


@pytest.fixture
def schema() -> Iterator[str]:
    with made_schema() as name:
        yield name


def run(call: Any, *names: str, where: tuple[str, ...] = ()) -> None:
    for name in names:
        given = json.dumps({"name": "?" if name.startswith("open") else "Ada", "colour": "red"})
        call("run", "graphs.py:old", "--thread", name, "--input", given, *where)


@pytest.mark.usefixtures("graphs")
def test_threads_are_grouped_by_what_does_not_fit(call: Any) -> None:
    """P15: one row for each reason, with threads and the declaration; exit code 1 if a thread does not load."""
    run(call, "idle", "open-1", "open-2", "open-3")
    ended = call("threads", "check", "graphs.py:old")
    assert (ended.code, ended.out, ended.err) == (0, "4 threads: 4 load\n", "")
    ended = call("threads", "check", "graphs.py:new")
    assert ended.code == 1, ended.err
    summary, head, first, second = ended.out.splitlines()
    assert summary == "4 threads: 1 load, 3 do not"
    assert head.split() == ["threads", "reason", "which", "advice"]
    assert first.startswith("3        a task of node 'ask' is pending, and there is no such node  open-1, open-2, ...")
    assert "was='ask'" in first
    assert second.startswith("4        key 'colour' is stored and unknown") and "they load" in second
    ended = call("threads", "check", "graphs.py:fitting", "--open")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("3 threads: 3 load, 3 of them by a migration\n")


@pytest.mark.usefixtures("graphs")
def test_json_names_all_threads(call: Any) -> None:
    """The document has all threads that do not load, and counts the others."""
    run(call, "idle", "open-1", "open-2", "open-3")
    ended = call("threads", "check", "graphs.py:new", "--json", "--branches")
    found = json.loads(ended.out)
    assert (ended.code, found["threads"], found["load"], found["do_not_load"]) == (1, 4, 1, 3)
    assert [(each["kind"], each["count"], each["thread_ids"]) for each in found["mismatches"]] == [
        ("node", 3, ["open-1", "open-2", "open-3"]),
        ("key", 4, []),
    ]
    assert json.loads(call("threads", "check", "graphs.py:new", "--json", "--sample", "2").out)["threads"] == 2
    assert call("threads", "check", "graphs.py:new", "--filter", "graph=other").out == "0 threads: 0 load\n"
    assert call("threads", "check", "graphs.py:new", "--version", "2").out == "0 threads: 0 load\n"
    refused = call("threads", "list", "--filter", "__version__=2")
    assert refused.code == 2 and "threads check --open --version" in refused.err


@pytest.mark.usefixtures("graphs")
def test_threads_are_migrated(call: Any) -> None:
    """P15: what the rules make is stored once. The exit code is 1 if a thread does not load; a dry run stores nothing."""
    run(call, "idle", "open-1", "open-2")
    for dry, out in (
        (("--dry-run",), "3 threads: 3 would be migrated, 0 unchanged\n"),
        (("--open",), "2 threads: 2 migrated, 0 unchanged\n"),
        ((), "3 threads: 1 migrated, 2 unchanged\n"),
        ((), "3 threads: 0 migrated, 3 unchanged\n"),
    ):
        ended = call("threads", "migrate", "graphs.py:removing", *dry)
        assert (ended.code, ended.out, ended.err) == (0, out, "")
    ended = call("threads", "migrate", "graphs.py:new", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["threads"], found["unchanged"], found["refused_ids"]) == (1, 3, 1, ["open-1", "open-2"])
    assert [each["kind"] for each in found["mismatches"]] == ["node"]
    ended = call("threads", "migrate", "graphs.py:new")
    assert ended.out.splitlines()[0] == "3 threads: 0 migrated, 1 unchanged, 2 not loaded"


@pytest.mark.usefixtures("graphs")
def test_threads_of_other_graphs(call: Any, shell: Any) -> None:
    """--graph chooses the threads of one graph of a service: the rules do not change those of another one."""
    run(call, "no service")

    async def start(count: int) -> None:
        keeping = StateGraph(Colour).add_node("paint", lambda state: {}).add_edge(START, "paint").compile()
        saver = SqliteSaver.from_conn_string(Path(shell.cwd, "pregel.db"))
        async with RunService({"ask": keeping, "paint": keeping}, saver) as service:
            for number in range(count):
                for graph in ("ask", "paint"):
                    row = await service.start(graph, {"colour": "red"}, thread_id=f"{graph}-{number:03}")
                    await service.join(row.run_id)

    anyio.run(start, 3)
    for command, out in (
        ("check", "3 threads: 3 load, 3 of them by a migration\n"),
        ("migrate", "3 threads: 3 migrated, 0 unchanged\n"),
        ("migrate", "3 threads: 0 migrated, 3 unchanged\n"),
    ):
        ended = call("threads", command, "graphs.py:removing", "--graph", "ask")
        assert (ended.code, ended.out, ended.err) == (0, out, "")
    found = json.loads(call("threads", "migrate", "graphs.py:removing", "--dry-run", "--json").out)
    assert found["migrated_ids"] == ["no service", "paint-000", "paint-001", "paint-002"]
    assert call("threads", "migrate", "graphs.py:removing", "--graph", "no such graph").out.startswith("0 threads: ")


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("command", ["check", "migrate"])
def test_a_filter_by_version(call: Any, command: str) -> None:
    """The exit code of an option that is used wrongly is 2, and the message names the right option."""
    run(call, "idle")
    ended = call("threads", command, "graphs.py:removing", "--filter", "__version__=1")
    assert ended.code == 2 and "use --version" in ended.err


STORE = """
from dataclasses import dataclass
from checkpoint_savers import Codec, SqliteStore
from graphs import new as builder

@dataclass
class Note:
    text: str

@dataclass
class NewNote:
    text: str
    author: str

def of(kind):
    store = SqliteStore.from_conn_string("notes.db", codec=Codec().with_types(kind, tag="Note"))
    return builder.compile(store=store)

old, new = of(Note), of(NewNote)
"""


@pytest.mark.usefixtures("graphs")
def test_items_of_the_store(call: Any, shell: Any) -> None:
    """P15: items of the graph's store that the code cannot read are in a table of their own, and in the document; the
    exit code is 1. A store that does not exist is not created."""
    run(call, "idle")
    Path(shell.cwd, "notes.py").write_text(STORE)
    loads = "1 thread: 1 load\n"
    ended = call("threads", "check", "notes.py:new")
    assert (ended.code, ended.out[: len(loads)]) == (0, loads), ended.err
    assert not Path(shell.cwd, "notes.db").exists()

    @dataclass
    class Note:
        text: str

    async def put() -> None:
        path = str(Path(shell.cwd, "notes.db"))
        async with SqliteStore.from_conn_string(path, codec=Codec().with_types(Note, tag="Note")) as store:
            for key in "abc":
                await store.aput(("notes",), key, {"note": Note("hello")})

    anyio.run(put)
    assert call("threads", "check", "notes.py:old").code == 0
    ended = call("threads", "check", "notes.py:new")
    assert ended.code == 1 and "store: 3 items cannot be read" in ended.out, ended.err
    assert "lacks field 'author'" in ended.out and "item 'c' of namespace ('notes',), " in ended.out
    found = json.loads(call("threads", "check", "notes.py:new", "--json").out)
    assert found["do_not_load"] == 0 and found["store"]["do_not_load"] == 3
    assert [(each["kind"], each["count"]) for each in found["store"]["mismatches"]] == [("type", 3)]


@pytest.mark.usefixtures("graphs")
def test_damage_has_a_row(call: Any, shell: Any) -> None:
    """A damaged thread does not load; the other threads are checked."""
    run(call, "a", "b")
    with closing(sqlite3.connect(shell.db)) as db, db:
        db.execute("UPDATE frame SET data = substr(data, 1, 20) WHERE key = (SELECT min(key) FROM frame)")
    ended = call("threads", "check", "graphs.py:old")
    assert ended.code == 1
    assert ended.out.startswith("2 threads: 1 load, 1 do not\n") and "cannot be read" in ended.out


@pytest.mark.usefixtures("graphs")
def test_in_postgresql(call: Any, schema: str) -> None:
    """Threads of a PostgreSQL database are checked."""
    where = ("--postgres", conninfo(), "--schema", schema)
    run(call, "open", where=where)
    ended = call("threads", "check", "graphs.py:new", *where)
    assert ended.code == 1, ended.err
    assert "open" in ended.out


def test_nothing_to_check(call: Any) -> None:
    """A missing database and a missing graph are errors."""
    ended = call("threads", "check", "flows:greeting")
    assert (ended.code, ended.out) == (1, "") and "no database" in ended.err
    assert call("threads", "check", "flows:missing").code == 2
