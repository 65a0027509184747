"""`Versions`: each thread runs on the version of the graph that is to continue it."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, StateGraph
from pregel_async._api.attributes import stored_through
from pregel_async.errors import GraphValidationError, GraphVersionError
from pregel_async.types import StateUpdate
from pregel_async.versions import Versions, _GuardedSaver, _HeadMovedError
from tests.helpers.versioned_graphs import Log, graph, ran, versions

pytestmark = pytest.mark.anyio


async def asked(saver: Any, version: int, thread: str) -> None:
    await graph(version, saver).ainvoke({}, thread)


async def ended(saver: Any, version: int, thread: str) -> None:
    await asked(saver, version, thread)
    await graph(version, saver).ainvoke(Command(resume="yes"), thread)


async def test_an_open_thread_stays_and_an_idle_one_moves(saver: BaseCheckpointSaver) -> None:
    """P15: the version that has asked takes the answer; the next input goes to the newest one."""
    await asked(saver, 2, "t")
    both = versions(saver, 2, 3)
    state = await both.aget_state("t")
    assert (state.next, state.changed) == (("ask2",), ())
    assert await both.version_of("t") == 2
    assert await both.ainvoke(Command(resume="yes"), "t") == {"log": ["2: yes"]}
    assert await both.version_of("t") == 3
    assert [each.value for each in (await both.ainvoke({}, "t"))["__interrupt__"]] == ["3?"]
    assert (await both.aget_state("t")).metadata["__version__"] == 3
    assert [state.metadata.get("__version__") async for state in both.aget_state_history("t")][-1] == 2
    assert (await both.ainvoke({}, "new"))["__interrupt__"][0].value == "3?"


@pytest.mark.parametrize(
    ("pin", "idle", "is_open"), [("open", 3, 2), ("thread", 2, 2), ("never", 3, 3)], ids=["open", "thread", "never"]
)
async def test_pins(saver: BaseCheckpointSaver, pin: Any, idle: int, is_open: int) -> None:
    """P15: what keeps a thread on its version: pending tasks, its life, or nothing."""
    await asked(saver, 2, "open")
    await ended(saver, 2, "idle")
    both = versions(saver, 2, 3, pin=pin)
    assert [await both.version_of(thread) for thread in ("idle", "open", "new")] == [idle, is_open, 3]


WHAT_TO_DO = {
    2: "version 2 has to continue it and is missing: Versions has 3, 4: keep it, Versions({2: ..., 3: ..., 4: ...}), or",
    5: "deploy version 5",
}


async def test_a_missing_version(saver: BaseCheckpointSaver) -> None:
    """P15: a process that lacks the version refuses before it acquires the thread; reading works, and idle threads continue."""
    await asked(saver, 2, "open")
    await ended(saver, 2, "idle")
    await asked(saver, 5, "newer")
    before, graphs = await saver.threads(), versions(saver, 3, 4)
    ran.clear()
    for thread, stored in (("open", 2), ("newer", 5)):
        for call in (
            lambda thread=thread: graphs.ainvoke(Command(resume=1), thread),
            lambda thread=thread: graphs.aupdate_state(thread, {"log": ["x"]}),
            lambda thread=thread: anext(graphs.astream(None, thread)),
        ):
            with pytest.raises(GraphVersionError) as caught:
                await call()
            assert (caught.value.stored, caught.value.thread_id) == (stored, thread) and caught.value.mismatches
            assert WHAT_TO_DO[stored] in str(caught.value)
        state = await graphs.aget_state(thread)
        assert state.next == (f"ask{stored}",) and state.changed[0] == caught.value.mismatches[0]
    assert ran == [] and await saver.threads() == before
    assert (await graphs.ainvoke({}, "idle"))["__interrupt__"][0].value == "4?"


async def test_streams(saver: BaseCheckpointSaver) -> None:
    """A stream has the chunks of the version that continues the thread."""
    await asked(saver, 2, "t")
    both = versions(saver, 2, 3)
    async with both.astream(Command(resume="yes"), "t", stream_mode="updates") as chunks:
        assert [chunk async for chunk in chunks] == [{"ask2": {"log": ["2: yes"]}}]
    assert chunks.status == "done"
    stream = both.astream({}, "t", stream_mode="updates")
    await stream.finish()
    assert stream.status == "interrupted" and (await both.aget_state("t")).next == ("ask3",)
    with pytest.raises(TypeError, match="unknown_option"):
        both.astream({}, "t", unknown_option=1)
    unread = both.astream({}, "t")
    await unread.aclose()
    assert [chunk async for chunk in unread] == []


async def test_updates_and_old_checkpoints(saver: BaseCheckpointSaver) -> None:
    """An update is made by the thread's version, and an old checkpoint is continued by the version that made it."""
    await asked(saver, 2, "t")
    both = versions(saver, 2, 3)
    old = (await both.aget_state("t")).config
    await both.aupdate_state("t", {"log": ["by hand"]}, "ask2")
    assert (await both.aget_state("t")).metadata["__version__"] == 2
    await both.abulk_update_state("t", [[StateUpdate({"log": ["x"]}, "ask3")]])
    assert (await both.aget_state("t")).metadata["__version__"] == 3
    assert await both.version_of(old) == 2
    assert (await both.ainvoke(None, old))["__interrupt__"][0].value == "2?"


class Moving(InMemorySaver):
    """A saver in which another process moves the thread between the first read and the lease."""

    move: Any = None

    async def acquire(self, *args: Any, **kwargs: Any) -> Any:
        if self.move is not None:
            move, self.move = self.move, None
            await move()
        return await super().acquire(*args, **kwargs)


@pytest.mark.parametrize("how", ["invoke", "read", "finish", "begin"])
@pytest.mark.parametrize("new", [False, True])
async def test_a_thread_that_another_process_moves(how: str, new: bool) -> None:
    """P15: the choice holds under the lease: if the head has moved, it is made again, before any node runs."""
    saver = Moving()
    if not new:
        await ended(saver, 2, "t")
    both = versions(saver, 2, 3)
    saver.move = lambda: asked(saver, 2, "t")  # idle or new so far, so that version 3 was chosen
    ran.clear()
    given: Any = {} if new else Command(resume="no")
    if how == "invoke":
        await both.ainvoke(given, "t")
    else:
        stream = both.astream(given, "t")
        if how == "begin":
            await stream.begin()
        if how == "finish":
            await stream.finish()
        assert [chunk async for chunk in stream] or how == "finish"
    state = await both.aget_state("t")
    assert state.values.get("log", [])[-1:] == ([] if new else ["2: no"])
    assert state.metadata["__version__"] == 2 and ran == [2, 2]


async def test_settings_reach_all_versions(saver: BaseCheckpointSaver) -> None:
    """A checkpointer and a config of the whole apply to each version; copies do not change the original."""
    await asked(saver, 2, "t")
    both = versions(None, 2, 3)
    bound = both.with_checkpointer(saver).with_config(metadata={"who": "ada"})
    assert isinstance(bound, Versions) and both.checkpointer is None
    await bound.ainvoke(Command(resume="yes"), "t")
    assert dict((await bound.aget_state("t")).metadata or {})["who"] == "ada"
    assert both.get_graph().to_json() == graph(3).get_graph().to_json()


def test_sync() -> None:
    """The sync methods choose alike."""
    saver = InMemorySaver()
    graph(2, saver).invoke({}, "t")
    both = versions(saver, 2, 3)
    assert list(both.stream(Command(resume="yes"), "t", stream_mode="updates")) == [{"ask2": {"log": ["2: yes"]}}]
    assert both.get_state("t").values == {"log": ["2: yes"]}
    assert both.invoke({}, "t")["__interrupt__"][0].value == "3?"
    assert next(both.get_state_history("t")).next == ("ask3",)
    both.update_state("t", {"log": ["x"]}, "ask3")


def test_what_is_wrong() -> None:
    """Versions are numbers from 1 on of graphs that have no other version."""
    one, unversioned = graph(1), StateGraph(Log).add_node("a", ask_nothing).add_edge(START, "a").compile()
    wrong: list[tuple[Any, Any]] = [({}, "open"), ({0: one}, "open"), ({True: one}, "open"), ({2: one}, "open")]
    wrong += [({1: "graph"}, "open"), ({1: one}, "sometimes"), ({1: versions(None, 1)}, "open")]
    for graphs, pin in wrong:
        with pytest.raises(GraphValidationError):
            Versions(graphs, pin=pin)
    assert Versions({7: unversioned})._definition.program.version == 7
    assert unversioned._definition.program.version == 0


def ask_nothing(state: Log) -> Log:
    return {}


async def test_checks(saver: BaseCheckpointSaver) -> None:
    """P15: a check looks at each thread with the version that continues it, and reports a version that is missing."""
    await asked(saver, 2, "t")
    await ended(saver, 2, "u")
    await asked(saver, 5, "v")
    found = [(each.thread_id, each.loads) async for each in versions(None, 2, 3).acheck_threads(saver)]
    assert found == [("t", True), ("u", True), ("v", False)]
    checks = [each async for each in versions(saver, 3, 4).acheck_threads()]
    assert [(each.loads, [one.kind for one in each.mismatches]) for each in checks] == [
        (False, ["version"]),
        (True, []),
        (False, ["version"]),
    ]


async def test_events(saver: BaseCheckpointSaver) -> None:
    """`astream_events` shows the run of the version that continues the thread, and batches choose for each thread."""
    await asked(saver, 2, "t")
    await asked(saver, 3, "u")
    both = versions(saver, 2, 3)
    outputs = await both.abatch([Command(resume="yes")] * 2, [{"configurable": {"thread_id": each}} for each in "tu"])
    assert outputs == [{"log": ["2: yes"]}, {"log": ["3: yes"]}]
    await asked(saver, 2, "v")
    names = {event["name"] async for event in both.astream_events(Command(resume="yes"), "v")}
    assert "ask2" in names and "ask3" not in names


async def test_a_run_moves_the_head_itself() -> None:
    """The head is compared until the run commits: a later read finds the run's own checkpoint."""
    saver = InMemorySaver()
    guarded: Any = _GuardedSaver(saver, "t", None)
    await stored_through(graph(2, saver), guarded).ainvoke({}, "t")
    assert await guarded.read("t") is not None
    late: Any = _GuardedSaver(saver, "t", None)
    with pytest.raises(_HeadMovedError):
        await late.read("t")
