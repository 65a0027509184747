"""Threads that LangGraph has written go on here: each test runs a program there, imports its thread, and goes on."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import Command
from pregel_async.errors import ConfigError, StorageError
from pregel_async.from_langgraph import ThreadReport, import_threads
from pregel_async.from_langgraph.sources import open_source
from tests.from_langgraph import programs
from tests.from_langgraph.programs import OURS, Names, Program, langgraph_saver, needs_langgraph
from tests.helpers.postgres_tools import conninfo, new_schema

# `one_loop`: the importer waits for nothing but worker threads and the saver.
pytestmark = [pytest.mark.anyio, pytest.mark.one_loop, needs_langgraph]


@pytest.fixture
def theirs() -> Names:
    return Names(langgraph=True)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "langgraph.db")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, file: str) -> Iterator[str]:
    """A file or a database for LangGraph's saver."""
    if request.param == "sqlite":
        yield file
        return
    with new_schema() as schema:
        with psycopg.connect(conninfo(), autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{schema}"')
        yield f"{conninfo()}?options=-csearch_path%3D{schema}"


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    programs.calls.clear()


def config(thread: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}, "metadata": {"user": "ada"}}


def run_there(place: str, program: Program, *inputs: Any, thread: str = "t", **options: Any) -> list[Any]:
    """Run a program with LangGraph, and return its history, newest first."""
    with langgraph_saver(place) as saver:
        graph = program(Names(langgraph=True)).compile(saver, **options)
        for each in inputs:
            graph.invoke(each, config(thread))
        return list(graph.get_state_history(config(thread)))


async def imported(graph: Any, place: str, **options: Any) -> list[ThreadReport]:
    return [report async for report in import_threads(graph, place, **options)]


async def test_a_conversation_goes_on(place: str) -> None:
    """The latest state comes over with its messages, ids and classes, and a new input continues it."""
    newest = run_there(place, programs.chat, *[{"messages": [("user", each)]} for each in ("hi", "and?")])[0]
    graph = programs.chat(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place)
    assert (report.status, report.step, report.checkpoints) == ("imported", newest.metadata["step"], 1)
    assert (report.keys, report.messages, report.next) == (("messages",), 4, ())
    assert (report.questions, report.lost) == ((), ())
    state = await graph.aget_state("t")
    assert state.values == newest.values
    assert state.created_at == newest.created_at
    assert state.metadata["langgraph_checkpoint_id"] == newest.config["configurable"]["checkpoint_id"]
    result = await graph.ainvoke({"messages": [{"role": "user", "content": "more"}]}, "t")
    assert result["messages"][:4] == newest.values["messages"]
    assert result["messages"][5].content == "answer 5"
    (thread,) = [each async for each in graph.checkpointer.alist_threads(filter={"user": "ada"})]
    assert thread.thread_id == "t"


async def test_history(place: str) -> None:
    """With `history`, the checkpoints of the branch come over with values, next nodes, times and results, and a run may
    start from any of them."""
    theirs = run_there(place, programs.review, {"topic": "owls"}, thread="h")
    graph = programs.review(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place, history=True)
    assert report.checkpoints == len(theirs) == 3
    ours = [state async for state in graph.aget_state_history("h")]
    for one, other in zip(ours, theirs, strict=True):
        values = {key: value for key, value in other.values.items() if value != []}
        assert {key: value for key, value in one.values.items() if value != []} == values
        assert one.created_at == other.created_at
        assert (one.metadata["step"], one.metadata["source"]) == (other.metadata["step"], other.metadata["source"])
        assert one.metadata["user"] == "ada"
    assert [state.next for state in ours[1:]] == [("first",), ("__start__",)]
    assert ours[1].tasks[0].result == {"log": ["first"]}
    programs.calls.clear()
    await graph.ainvoke(None, ours[1].config)
    assert programs.calls[0] == "first"


async def test_a_pending_question(place: str) -> None:
    """The question keeps its value and gets an id here; the answer goes on; recorded siblings do not run again."""
    there = run_there(place, programs.review, {"topic": "owls"})[0]
    graph = programs.review(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place)
    (question,) = report.questions
    assert (question.node, question.value) == ("ask", "one?")
    assert question.langgraph_id == there.interrupts[0].id
    assert report.next == ("ask",)
    state = await graph.aget_state("t")
    assert [(each.id, each.value) for each in state.interrupts] == [(question.id, "one?")]
    programs.calls.clear()
    asked: Any = await graph.ainvoke(Command(resume={question.id: "yes"}), "t")
    assert [each.value for each in asked["__interrupt__"]] == [{"then": "two?"}]
    result = await graph.ainvoke(Command(resume="no"), "t")
    assert result["log"] == ["first", "yes", "no", "beside", "last"]
    assert programs.calls == ["ask", "ask", "last"]


async def test_a_question_after_an_answered_one(place: str, theirs: Names) -> None:
    """The answers that LangGraph has recorded are not asked for again."""
    run_there(place, programs.review, {"topic": "owls"}, theirs.Command(resume="yes"))
    graph = programs.review(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place, history=True)
    assert [each.value for each in report.questions] == [{"then": "two?"}]
    result = await graph.ainvoke(Command(resume="no"), "t")
    assert result["log"] == ["first", "yes", "no", "beside", "last"]


async def test_a_static_breakpoint(place: str) -> None:
    """A thread that stands before a node goes on with it, also through pending sends and a deferred node."""
    run_there(place, programs.fan_out, {"topic": "owls"}, interrupt_before=["work"])
    graph = programs.fan_out(OURS).compile(InMemorySaver(), interrupt_before=["work"])
    (report,) = await imported(graph, place)
    assert report.next == ("work", "work")
    programs.calls.clear()
    result = await graph.ainvoke(None, "t")
    assert result["log"] == ["plan", "a", "b", "collect"]
    assert sorted(programs.calls[:2]) == ["work a", "work b"]
    assert programs.calls[2:] == ["collect"]


async def test_a_waiting_edge(place: str, theirs: Names) -> None:
    """An edge from two nodes of which one has run waits for the other one alone."""
    with langgraph_saver(place) as saver:
        there = programs.review(theirs).compile(saver)
        there.update_state(config(), {"log": ["by hand"]}, as_node="beside")
    graph = programs.review(OURS).compile(InMemorySaver())
    await imported(graph, place)
    assert (await graph.aget_state("t")).next == ()
    await graph.aupdate_state("t", {"log": ["too"]}, as_node="ask")
    assert (await graph.aget_state("t")).next == ("last",)
    assert (await graph.ainvoke(None, "t"))["log"] == ["by hand", "too", "last"]


async def test_a_failure(place: str) -> None:
    """The failed node runs again and is named in the report; its sibling's recorded result is kept."""
    with pytest.raises(ConnectionError):
        run_there(place, programs.failing, {"topic": "owls"})
    graph = programs.failing(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place)
    assert [each.partition(" (")[0] for each in report.lost] == ["the failure of node 'bad'"]
    assert "the line is dead" in report.lost[0]
    programs.calls.clear()
    assert (await graph.ainvoke(None, "t"))["log"] == ["bad", "good"]
    assert set(programs.calls) <= {"bad", "good"}
    assert programs.calls.count("bad") == 1


async def test_a_question_of_a_subgraph(place: str) -> None:
    """It is named, and the node asks it again."""
    run_there(place, programs.nested, {"topic": "owls"})
    graph = programs.nested(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place)
    assert report.questions == ()
    assert any("open question(s) of tasks or a subgraph of node 'outer'" in each for each in report.lost)
    assert any("namespace 'outer:" in each and "runs its graph from the start" in each for each in report.lost)
    asked: Any = await graph.ainvoke(None, "t")
    assert asked["__interrupt__"][0].value == "inside?"
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["yes"]


@pytest.mark.parametrize("history", [False, True])
async def test_a_subgraph_that_keeps_its_state(place: str, history: bool) -> None:
    """Its state comes over, and its next call continues it."""
    newest = run_there(place, programs.keeping, {"topic": "a"}, {"topic": "b"})[0]
    assert newest.values["topic"] == "1 before"
    graph = programs.keeping(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, place, history=history)
    assert report.lost == ()
    inner = await graph.aget_state({"configurable": {"thread_id": "t", "checkpoint_ns": "memory"}})
    assert inner.values["seen"] == ["call 0", "call 1"]
    for number in (2, 3):
        assert (await graph.ainvoke({"topic": "c"}, "t"))["topic"] == f"{number} before"


async def test_an_entrypoint(place: str, theirs: Names) -> None:
    """What an entrypoint has saved is `previous` of the next call."""
    with langgraph_saver(place) as saver:
        there = programs.workflow(theirs, saver)
        assert [there.invoke(number, config()) for number in (1, 2)] == [1, 3]
    graph = programs.workflow(OURS, InMemorySaver())
    (report,) = await imported(graph, place)
    assert report.status == "imported"
    assert await graph.ainvoke(4, "t") == 7


async def test_objects_of_the_application(place: str) -> None:
    """Objects of classes that the schema names come over as such."""
    run_there(place, programs.billing, {"invoice": None})
    graph = programs.billing(OURS).compile(InMemorySaver())
    await imported(graph, place)
    assert (await graph.aget_state("t")).values["invoice"] == programs.Invoice(7)


async def test_what_cannot_be_decoded_or_stored(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread with an object whose class is missing, or unknown to the graph, is refused with the reason; other threads
    are imported."""
    run_there(file, programs.billing, {"invoice": None}, thread="a")
    run_there(file, programs.review, {"topic": "owls"}, thread="b")
    graph = programs.review(OURS).compile(InMemorySaver(), unknown_keys="ignore")
    with monkeypatch.context() as patched:
        patched.delattr(programs, "Invoice")
        first, second = await imported(graph, file)
    assert (first.status, second.status) == ("refused", "imported")
    assert "tests.from_langgraph.programs.Invoice" in first.reason
    assert "where the application is installed" in first.reason
    assert [each async for each in graph.checkpointer.alist_threads()][0].thread_id == "b"


@pytest.mark.parametrize(
    ("column", "data", "reason"),
    [
        ("metadata", b"{", "JSONDecodeError"),
        ("metadata", b"[]", "AttributeError"),
        ("checkpoint", b"\x81\xa1v\x04", "KeyError: 'channel_versions'"),
        ("checkpoint", b"\x90", "AttributeError"),
        ("checkpoint", b"\xc1", "cannot decode"),
    ],
)
async def test_damaged_threads(file: str, column: str, data: bytes, reason: str) -> None:
    """A thread whose checkpoint lacks a field, or is none at all, is refused, and the threads after it are imported."""
    for thread in ("a", "b"):
        run_there(file, programs.review, {"topic": "owls"}, thread=thread)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"UPDATE checkpoints SET {column} = ? WHERE thread_id = 'a'", (data,))
        connection.commit()
    graph = programs.review(OURS).compile(InMemorySaver())
    first, second = await imported(graph, file)
    assert (first.status, second.status) == ("refused", "imported")
    assert reason in first.reason


async def test_keys_and_nodes_that_the_graph_lacks(file: str) -> None:
    """They are named, and the rest is imported."""
    run_there(file, programs.review, {"topic": "owls"}, thread="t")
    graph = programs.chat(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, file)
    assert report.status == "imported"
    assert "the value of key 'log': the graph has no such key" in report.lost
    assert "a pending run of node 'ask': the graph has no such node" in report.lost
    assert (await graph.aget_state("t")).next == ()


async def test_other_branches(file: str, theirs: Names) -> None:
    """The branch of the newest checkpoint is imported, as LangGraph continues that; others are named."""
    with langgraph_saver(file) as saver:
        there = programs.chat(theirs).compile(saver)
        there.invoke({"messages": [("user", "hi")]}, config())
        start = list(there.get_state_history(config()))[-1]
        newest = there.invoke(None, start.config)
    graph = programs.chat(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, file, history=True)
    assert any("on other branches" in each for each in report.lost)
    assert (await graph.aget_state("t")).values == newest


async def test_existing_threads(place: str) -> None:
    """An import may be repeated: threads that are there are left alone, unless they are to be replaced."""
    run_there(place, programs.chat, {"messages": [("user", "hi")]})
    graph = programs.chat(OURS).compile(InMemorySaver())
    await imported(graph, place)
    before = (await graph.ainvoke({"messages": [("user", "more")]}, "t"))["messages"]
    assert [each.status for each in await imported(graph, place)] == ["exists"]
    assert (await graph.aget_state("t")).values["messages"] == before
    assert [each.status for each in await imported(graph, place, replace=True, dry_run=True)] == ["would be replaced"]
    assert (await graph.aget_state("t")).values["messages"] == before
    assert [each.status for each in await imported(graph, place, replace=True)] == ["replaced"]
    assert len((await graph.aget_state("t")).values["messages"]) == 2


async def test_chosen_threads_and_dry_runs(place: str) -> None:
    """`thread_ids` selects threads; an unknown one is refused; a dry run reports the same and stores nothing."""
    for thread in ("a", "b"):
        run_there(place, programs.chat, {"messages": [("user", "hi")]}, thread=thread)
    graph = programs.chat(OURS).compile(InMemorySaver())
    reports = await imported(graph, place, thread_ids=["b", "c"], dry_run=True)
    assert [(each.thread_id, each.status, each.messages) for each in reports] == [
        ("b", "would be imported", 2),
        ("c", "refused", 0),
    ]
    assert [each async for each in graph.checkpointer.alist_threads()] == []
    await imported(graph, place, thread_ids=["b"])
    assert [each.thread_id async for each in graph.checkpointer.alist_threads()] == ["b"]


class FailingLoads(InMemorySaver):
    """Storage that fails when a thread is loaded."""

    async def load(self, lease: Any, dump: Any) -> Any:
        raise StorageError("the disk is full")


async def test_a_replacement_that_fails(place: str) -> None:
    """A thread is replaced in one transaction: one that fails, or is killed, leaves the thread as it was."""
    run_there(place, programs.chat, {"messages": [("user", "hi")]})
    saver = FailingLoads()
    graph = programs.chat(OURS).compile(saver)
    before = (await graph.ainvoke({"messages": [("user", "kept")]}, "t"))["messages"]
    with pytest.raises(StorageError):
        await imported(graph, place, replace=True)
    assert (await graph.aget_state("t")).values["messages"] == before


class Breaking(InMemorySaver):
    """Storage that fails when the second thread is stored."""

    loads = 0

    async def load(self, lease: Any, dump: Any) -> Any:
        self.loads += 1
        if self.loads == 2:
            raise StorageError("the disk is full")
        return await super().load(lease, dump)


async def test_an_import_that_breaks_off(file: str) -> None:
    """Each thread is whole or not there; the same command finishes the rest."""
    for thread in ("a", "b", "c"):
        run_there(file, programs.chat, {"messages": [("user", "hi")]}, thread=thread)
    saver: BaseCheckpointSaver = Breaking()
    graph = programs.chat(OURS).compile(saver)
    with pytest.raises(StorageError, match="the disk is full"):
        await imported(graph, file, history=True)
    assert len([state async for state in graph.aget_state_history("a")]) == 3
    assert await saver.dump("b") is None
    assert [each.status for each in await imported(graph, file, history=True)] == ["exists", "imported", "imported"]


async def test_the_source_is_only_read(file: str) -> None:
    """LangGraph's file has the same bytes after an import, while LangGraph has it open."""
    with langgraph_saver(file) as saver:
        there = programs.chat(Names(langgraph=True)).compile(saver)
        there.invoke({"messages": [("user", "hi")]}, config())
        before = hashlib.sha256(Path(file).read_bytes()).digest()
        graph = programs.chat(OURS).compile(InMemorySaver())
        assert [each.messages for each in await imported(graph, file)] == [2]
        assert hashlib.sha256(Path(file).read_bytes()).digest() == before
        there.invoke({"messages": [("user", "on")]}, config())
    with closing(open_source(file)) as source, pytest.raises(sqlite3.OperationalError, match="readonly"):
        vars(source)["_connection"].execute("DELETE FROM checkpoints")


async def test_the_postgresql_server_refuses_writes(place: str) -> None:
    """The connection to LangGraph's database is read-only for the server."""
    run_there(place, programs.chat, {"messages": [("user", "hi")]})
    if not place.startswith("postgresql"):
        return
    with closing(open_source(place)) as source, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        vars(source)["_connection"].execute("DELETE FROM checkpoints")


async def test_old_formats(file: str) -> None:
    """Of a thread that LangGraph wrote before 0.5, the state is imported; what was pending is named."""
    run_there(file, programs.review, {"topic": "owls"})
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    serializer = JsonPlusSerializer()
    with closing(sqlite3.connect(file)) as connection, connection:
        for key, kind, body in connection.execute("SELECT checkpoint_id, type, checkpoint FROM checkpoints").fetchall():
            changed = serializer.dumps_typed({**serializer.loads_typed((kind, body)), "v": 2})
            connection.execute(
                "UPDATE checkpoints SET type = ?, checkpoint = ? WHERE checkpoint_id = ?", (*changed, key)
            )
    graph = programs.review(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, file)
    assert report.lost == ("work that was pending: a version of LangGraph before 0.5 has stored the thread",)
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["first"], "topic": "owls"}, ())


async def test_paths_that_an_old_database_lacks(file: str) -> None:
    """Without the column that names tasks, a question is kept if one task alone is pending."""

    def one(names: Names) -> Any:
        return programs.nested(names).nodes and names.StateGraph(programs.Work).add_node(
            "ask", lambda state: {"log": [names.interrupt("one?")]}
        ).add_edge(names.START, "ask")

    run_there(file, one, {"topic": "owls"})
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ALTER TABLE writes DROP COLUMN task_path")
    graph = one(OURS).compile(InMemorySaver())
    (report,) = await imported(graph, file)
    assert [each.value for each in report.questions] == ["one?"]
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["yes"]


async def test_without_a_checkpointer(file: str) -> None:
    """There must be a saver to import into."""
    with pytest.raises(ConfigError, match="no checkpointer"):
        await imported(programs.chat(OURS).compile(), file)
