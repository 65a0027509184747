"""Metadata of threads, as calls set them and as users list threads by them, on each saver (P3, P6, P11)."""

from __future__ import annotations

import enum
import operator
from collections.abc import AsyncIterator
from enum import IntEnum, StrEnum
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, ThreadBusyError, ThreadNotFoundError
from checkpoint_savers.records import RUN, Commit, Lease
from checkpoint_savers.upkeep.export import export_threads, import_threads
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.errors import EmptyInputError
from tests.savers.upkeep_graphs import opened

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


@pytest.fixture(params=["memory", "sqlite", "postgres", "passing"])
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


def asking(saver: BaseCheckpointSaver) -> Any:
    def ask(state: State) -> State:
        return {"log": [interrupt("?"), interrupt("and?")]}

    made = StateGraph(State).add_node("first", lambda state: {"log": ["first"]}).add_node("ask", ask)
    return made.add_edge(START, "first").add_edge("first", "ask").compile(saver)


def config_of(thread: str = "t", **metadata: Any) -> Any:
    return {"configurable": {"thread_id": thread}, "metadata": metadata}


async def listed(saver: BaseCheckpointSaver, **filter: Any) -> list[str]:
    return [one.thread_id async for one in saver.alist_threads(filter=filter)]


async def metadata_of(saver: BaseCheckpointSaver, thread: str = "t") -> dict[str, Any]:
    (found,) = [one.metadata async for one in saver.alist_threads() if one.thread_id == thread]
    return found


async def test_a_thread_stays_in_its_owners_list(saver: BaseCheckpointSaver) -> None:
    """P3: a call sets the keys that the thread lacks, and changes none: a resume or an edit without metadata keeps
    the thread in its list, and one with other metadata does not give it to another owner. Checkpoints have the
    metadata of their own call."""
    graph = asking(saver)
    await graph.ainvoke({}, config_of(user="ann", n=1))
    assert await listed(saver, user="ann") == ["t"]
    await graph.ainvoke(Command(resume="a"), "t")
    await graph.aupdate_state("t", {"log": ["edited"]}, as_node="first")
    assert await metadata_of(saver) == {"user": "ann", "n": 1}
    await graph.ainvoke(None, config_of(user="eve", n=None, plan="free", many=[1], nan="x"))
    assert await metadata_of(saver) == {"user": "ann", "n": 1, "plan": "free", "nan": "x"}
    assert (await listed(saver, user="ann"), await listed(saver, user="eve")) == (["t"], [])
    await graph.aupdate_state(config_of(edited=True), {"log": ["edited"]}, as_node="first")
    assert (await metadata_of(saver))["edited"] is True
    users = [one.metadata.get("user") async for one in graph.aget_state_history("t")]
    assert {"ann", None} == set(users)


class Plan(StrEnum):
    FREE = "free"


class Level(IntEnum):
    LOW = 1


class Safe(str):
    """A str subclass, as the texts of template engines are."""

    def __str__(self) -> str:
        return "<escaped>"


async def test_constants_and_subclasses_are_stored_as_plain_values(saver: BaseCheckpointSaver) -> None:
    """P3, P11: dropping such metadata would keep the thread out of its owner's list without an error."""
    graph = asking(saver)
    given = {"user": Safe("ann"), "plan": Plan.FREE, "level": Level.LOW, Safe("key"): 1}
    await graph.ainvoke({}, config_of(**given))
    plain = {"user": "ann", "plan": "free", "level": 1, "key": 1}
    assert await metadata_of(saver) == plain
    assert {*map(type, (await metadata_of(saver)).values())} == {str, int}
    for wanted in (given, plain):
        assert await listed(saver, **wanted) == ["t"]
        assert [one async for one in graph.aget_state_history("t", filter=wanted)]
    assert await listed(saver, level=True) == []
    await saver.aupdate_thread("t", {"user": Safe("eve"), Safe("plan"): None, "level": Level.LOW})
    assert await metadata_of(saver) == {"user": "eve", "level": 1, "key": 1}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_call_that_stores_only_records_sets_them(saver: BaseCheckpointSaver, durability: Any) -> None:
    """P3: an answer after which the node asks again creates no checkpoint. The call's metadata are stored all the
    same."""
    graph = asking(saver)
    await graph.ainvoke({}, "t", durability=durability)
    asked: Any = await graph.ainvoke(Command(resume="a"), config_of(user="ann"), durability=durability)
    assert asked["__interrupt__"]
    assert await metadata_of(saver) == {"user": "ann"}
    (thread,) = [one async for one in saver.alist_threads()]
    assert thread.owner is None, "the lease was not released"


async def test_a_call_that_stores_nothing_creates_no_thread(saver: BaseCheckpointSaver) -> None:
    """P6: metadata alone create no thread if a call fails before its first checkpoint."""

    def fails(state: State) -> None:
        raise ValueError("no")

    graph = StateGraph(State).add_node("a", fails).add_edge(START, "a").compile(saver)
    with pytest.raises(EmptyInputError):
        await graph.ainvoke(None, config_of("empty", user="ann"))
    with pytest.raises(ValueError, match="no"):
        await graph.ainvoke({}, config_of("failed", user="ann"))
    assert await listed(saver, user="ann") == ["failed"], "its input was not stored"


async def test_the_runtimes_keys_are_separate(saver: BaseCheckpointSaver) -> None:
    """P11: keys with the runtime's names are the user's own in a thread's metadata, and do not affect the runtime."""
    own = {"parents": "smith", "step": "review", "source": "web", "run_id": "x", "attempt": "b", "stream_mode": "c"}
    graph = asking(saver)
    await graph.ainvoke({}, config_of(**own, graph="g"))
    assert await metadata_of(saver) == {**own, "graph": "g"}
    assert await listed(saver, **own) == ["t"]
    metadata = (await graph.aget_state("t")).metadata
    assert (metadata["source"], metadata["step"], metadata["parents"]) == ("loop", 1, {})
    assert (metadata["attempt"], metadata["graph"]) == ("b", "g")
    await graph.ainvoke(Command(resume="a"), config_of("t", **{RUN: {"attempt": 3}}))
    assert RUN not in await metadata_of(saver)


async def test_aupdate_thread(saver: BaseCheckpointSaver) -> None:
    """P6: `aupdate_thread` sets and deletes keys, by a config or an id, also during a run; checkpoints are
    unchanged."""
    graph = asking(saver)
    await graph.ainvoke({}, config_of(user="ann", n=1))
    before = [one async for one in graph.aget_state_history("t")]
    owner = (await saver.dump("t"), await saver.read("t"))
    await saver.aupdate_thread("t", metadata={"user": "eve", "n": None, "title": "日本"})
    await saver.aupdate_thread({"configurable": {"thread_id": "t"}}, {"done": False})
    assert await metadata_of(saver) == {"user": "eve", "title": "日本", "done": False}
    assert await listed(saver, done=0) == [], "a bool equals a number"
    assert [one.metadata for one in before] == [one.metadata async for one in graph.aget_state_history("t")]
    assert await saver.read("t") == owner[1]
    with pytest.raises(ThreadNotFoundError):
        await saver.aupdate_thread("none", {"a": 1})
    refused: list[Any] = [None, [("a", 1)], {"a": [1]}, {"a": float("nan")}, {"__run__": 1}, {1: 1}, {"a": "\ud800"}]
    for wrong in refused:
        with pytest.raises(ValueError, match="metadata"):
            await saver.aupdate_thread("t", wrong)
    with pytest.raises(ValueError, match="thread_id"):
        await saver.aupdate_thread({}, {"a": 1})
    assert await metadata_of(saver) == {"user": "eve", "title": "日本", "done": False}


async def test_a_node_may_change_them_in_its_run(saver: BaseCheckpointSaver) -> None:
    """P6: no lease is needed, and what the node sets stays when the run commits."""

    async def node(state: State) -> State:
        await saver.aupdate_thread("t", {"title": "from the node", "user": None})
        return {"log": ["a"]}

    graph = StateGraph(State).add_node("a", node).add_edge(START, "a").add_node("b", lambda state: {"log": ["b"]})
    await graph.add_edge("a", "b").compile(saver).ainvoke({}, config_of(user="ann", title="given"))
    assert await metadata_of(saver) == {"title": "from the node"}


async def test_copies_and_imports_have_them_and_forks_keep_them(saver: BaseCheckpointSaver) -> None:
    """P11: a copy and an import have the thread's metadata, a fork does not change them, and an erased thread has
    none."""
    graph = asking(saver)
    await graph.ainvoke({}, config_of(user="ann", f=1.0))
    await saver.aupdate_thread("t", {"title": "x"})
    expected = {"user": "ann", "f": 1.0, "title": "x"}
    await saver.acopy_thread("t", "copy")
    file = BytesIO()
    await export_threads(saver, ["t"], file)
    await import_threads(saver, file.getvalue(), thread_id="imported")
    other = InMemorySaver()
    await import_threads(other, file.getvalue())
    snapshots = [one async for one in graph.aget_state_history("t")]
    await graph.ainvoke({"log": ["fork"]}, {**snapshots[-1].config, "metadata": {"title": "y"}})
    for where, thread in ((saver, "copy"), (saver, "imported"), (other, "t"), (saver, "t")):
        assert await metadata_of(where, thread) == expected
    await saver.aerase_thread("t")
    await graph.ainvoke({}, "t")
    assert await metadata_of(saver) == {}


class WithoutUpdateThread(InMemorySaver):
    """A user's saver that stores no metadata of threads."""

    update_thread = BaseCheckpointSaver.update_thread

    async def commit(self, lease: Lease, commit: Commit) -> None:
        await super().commit(lease, Commit(rows=commit.rows, expected_head=commit.expected_head, expires_at=1e12))


@pytest.mark.one_loop
async def test_a_saver_without_update_thread() -> None:
    """Runs work, and a change of metadata raises an error that names the missing method."""
    saver = WithoutUpdateThread()
    await asking(saver).ainvoke({}, config_of(user="ann"))
    with pytest.raises(NotImplementedError, match=r"WithoutUpdateThread does not offer update_thread\(\).*metadata"):
        await saver.aupdate_thread("t", {"a": 1})


async def test_a_busy_thread_can_be_updated(saver: BaseCheckpointSaver) -> None:
    """P6: another run's lease refuses a call, but not a change of metadata."""
    graph = asking(saver)
    await graph.ainvoke({}, "t")
    from checkpoint_savers.conformance.savers.suite import elsewhere

    now = saver.clock()
    await saver.acquire("t", elsewhere("other"), now=now, expires_at=now + 1e6)
    with pytest.raises(ThreadBusyError):
        await graph.ainvoke(None, config_of(user="ann"))
    await saver.aupdate_thread("t", {"user": "eve"})
    assert await metadata_of(saver) == {"user": "eve"}


class Tenant(str, enum.Enum):  # noqa: UP042  # whose `str()` is not the value
    ANN = "ann"


class Shelf(int, enum.Enum):
    FIRST = 1


@pytest.mark.parametrize(("member", "thread_id"), [(Tenant.ANN, "ann"), (Shelf.FIRST, "1")])
async def test_an_enum_member_names_the_thread_of_its_value(member: Any, thread_id: str) -> None:
    """`str()` of such a member is "Tenant.ANN": a thread that a caller with the plain value does not find."""
    saver = InMemorySaver()
    graph = StateGraph(State).add_node("a", lambda state: {"log": ["a"]}).add_edge(START, "a").compile(saver)
    config = {"configurable": {"thread_id": member}}
    await graph.ainvoke({"log": []}, config)
    assert [header.thread_id async for header in saver.alist_threads()] == [thread_id]
    assert (await graph.aget_state(thread_id)).values == {"log": ["a"]}
    found = await saver.aget_tuple(config)
    assert found is not None and found.config["configurable"]["thread_id"] == thread_id
