"""Listing, counting, copying and erasing threads (P2, P5, P6, P8): a copy continues as its original would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.errors import ThreadExistsError, ThreadNotFoundError
from checkpoint_savers.records import MADE_IN
from pregel_async import START, Command, StateGraph, get_runtime, interrupt
from tests.savers.upkeep_graphs import KINDS, Ran, State, asking, ids_of, nested, opened, steps

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


def without(ids: Any) -> Any:
    return None if ids is None else {key: value for key, value in ids.items() if key != MADE_IN}


async def test_threads_are_listed(saver: BaseCheckpointSaver) -> None:
    """P11: threads are listed in the order of their ids, filtered by their metadata, page by page, and counted."""
    graph = steps(saver)
    for number in range(5):
        config = {"configurable": {"thread_id": f"t{number}"}, "metadata": {"user": "eve" if number % 2 else "bob"}}
        await graph.ainvoke({"log": ["in"]}, config)
    await graph.ainvoke({"log": ["in"]}, {"configurable": {"thread_id": "t0"}, "metadata": {"user": "eve"}})
    await saver.aupdate_thread("t0", {"user": "ann"})

    async def listed(**asked: Any) -> list[str]:
        return [one.thread_id async for one in saver.alist_threads(**asked)]

    assert await listed() == ["t0", "t1", "t2", "t3", "t4"] and await saver.acount_threads() == 5
    assert await listed(limit=2) == ["t0", "t1"] == await listed(limit=2, after="t")
    assert await listed(limit=2, after="t1") == ["t2", "t3"]
    assert await listed(filter={"user": "bob"}) == ["t2", "t4"] and await listed(filter={"user": "bob"}, limit=1) == [
        "t2"
    ]
    assert [await saver.acount_threads(filter={"user": user}) for user in ("ann", "eve", "x")] == [1, 2, 0]
    assert await listed(limit=0) == []
    (one,) = [one async for one in saver.alist_threads(filter={"user": "ann"})]
    assert (
        one.head == one.newest == (await ids_of(saver, "t0"))[-1]
        and one.owner is None
        and one.metadata == {"user": "ann"}
    )


async def test_many_threads(saver: BaseCheckpointSaver) -> None:
    """P10: many threads are listed once each, in pages; also if they are copies, with the same checkpoint ids."""
    await steps(saver).ainvoke({"log": ["in"]}, "a")
    names = [f"b{number:03}" for number in range(300 if isinstance(saver, InMemorySaver) else 70)]
    for name in names:
        await saver.acopy_thread("a", name)
    assert [one.thread_id async for one in saver.alist_threads()] == ["a", *names]
    assert await saver.acount_threads() == len(names) + 1
    checkpoints = [
        (one.config["configurable"]["thread_id"], one.config["configurable"]["checkpoint_id"])
        async for one in saver.alist(None)
    ]
    assert len(checkpoints) == (len(names) + 1) * 4 == len(set(checkpoints))
    assert [key for _, key in checkpoints] == sorted([key for _, key in checkpoints], reverse=True)


async def test_everything_is_copied(saver: BaseCheckpointSaver) -> None:
    """P11: frames are copied byte for byte, with the same checkpoint ids, records, heads and pins, of all
    namespaces."""
    graph = nested(saver, Ran(), keeps=True)
    await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke(Command(resume="yes"), "t")
    await graph.ainvoke({"log": ["in"]}, "t")
    await saver.apin("t")
    await saver.acopy_thread("t", "copy")
    one, other = await saver.dump("t"), await saver.dump("copy")
    assert one is not None and other is not None
    assert (one.heads, one.records, one.events) == (other.heads, other.records, other.events)
    for row, copied in zip(one.rows, other.rows, strict=True):
        assert (row.ns, row.checkpoint_id, row.parent_id, row.base_id, row.step, row.frame, row.pinned) == (
            (
                copied.ns,
                copied.checkpoint_id,
                copied.parent_id,
                copied.base_id,
                copied.step,
                copied.frame,
                copied.pinned,
            )
        )
        assert row.metadata == without(copied.metadata)


async def test_a_question_is_answered_in_the_copy(saver: BaseCheckpointSaver) -> None:
    """P8, P5: a question is answered in the copy as in the original, which is unchanged; recorded work runs in
    neither."""
    ran = Ran()
    graph = asking(saver, ran)
    await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke(Command(resume="1"), "t")
    await saver.acopy_thread("t", "copy")
    state, copied = await graph.aget_state("t"), await graph.aget_state("copy")
    assert (copied.values, copied.next, copied.tasks, copied.interrupts) == (
        state.values,
        state.next,
        state.tasks,
        state.interrupts,
    )
    ran.take()
    done = await graph.ainvoke(Command(resume={copied.interrupts[0].id: "copied"}), "copy")
    assert done["log"] == ["in", "first", "1", "copied", "work", "end"] and ran.take() == ["ask", "end"]
    assert await graph.aget_state("t") == state
    done = await graph.ainvoke(Command(resume="2"), "t")
    assert done["log"] == ["in", "first", "1", "2", "work", "end"] and ran.take() == ["ask", "end"]
    for call, asked in (({"log": ["again"]}, "one?"), (Command(resume="3"), "two?")):
        again = await graph.ainvoke(call, "copy")
        assert [question.value for question in again["__interrupt__"]] == [asked]
    assert (await graph.ainvoke(Command(resume="4"), "copy"))["log"][6:] == ["again", "first", "3", "4", "work", "end"]


@pytest.mark.parametrize("keeps", [None, True])
async def test_a_question_of_a_subgraph(saver: BaseCheckpointSaver, keeps: bool | None) -> None:
    """P8: a subgraph continues in the copy from its open question, and in a copy of the copy, too."""
    ran = Ran()
    graph = nested(saver, ran, keeps=keeps)
    await graph.ainvoke({"log": ["in"]}, "t")
    await saver.acopy_thread("t", "copy")
    await saver.acopy_thread("copy", "second")
    for name in ("second", "copy", "t"):
        assert (await graph.aget_state(name, subgraphs=True)).tasks[0].state.values["log"] == ["in", "inner 1"]
        ran.take()
        assert (await graph.ainvoke(Command(resume="yes"), name))["log"][-2:] == ["yes", "after"]
        assert ran.take() == ["inner ask", "after"]
        assert (await graph.ainvoke({"log": ["more"]}, name))["__interrupt__"][0].value == "inside?"
        ran.take()


async def test_a_failure_in_the_copy(saver: BaseCheckpointSaver) -> None:
    """P5: recorded work next to a failure does not run again in the copy; history shows the same as the original's."""
    ran, works = Ran(), [False]

    def work(state: Any) -> Any:
        ran.names.append("work")
        return {"log": ["work"]}

    def fail(state: Any) -> Any:
        ran.names.append("fail")
        if not works[0]:
            raise ValueError("not yet")
        return {"log": ["failed"]}

    made = steps(None).builder
    made.add_node("work", work).add_node("fail", fail).add_edge("two", "work").add_edge("two", "fail")
    graph = made.compile(saver)
    with pytest.raises(ValueError, match="not yet"):
        await graph.ainvoke({"log": ["in"]}, "t", on_failure="finish")
    await saver.acopy_thread("t", "copy")
    for mine, theirs in zip(
        [each async for each in graph.aget_state_history("copy")],
        [each async for each in graph.aget_state_history("t")],
        strict=True,
    ):
        assert (mine.values, mine.next, mine.tasks) == (theirs.values, theirs.next, theirs.tasks)
    works[0] = True
    ran.take()
    assert sorted((await graph.ainvoke(None, "copy"))["log"]) == ["failed", "in", "one", "two", "work"]
    assert ran.take() == ["fail"]


async def test_ids_of_tasks(saver: BaseCheckpointSaver) -> None:
    """P2: tasks that had begun keep their ids, in forks of the copy, too; tasks planned in the copy have ids of
    their own, so that services which use them as keys do not mix up the work of two threads."""
    ids: list[str] = []

    def note(state: Any) -> Any:
        ids.append(get_runtime().execution_info.task_id)
        return {"log": [str(interrupt("?"))] if len(state["log"]) == 1 else ["end"]}

    made = StateGraph(State).add_node("ask", note).add_node("then", note)
    graph = made.add_edge(START, "ask").add_edge("ask", "then").compile(saver)
    await graph.ainvoke({"log": ["in"]}, "t")
    await saver.acopy_thread("t", "copy")
    for name in ("t", "copy"):
        await graph.ainvoke(Command(resume="yes"), name)
    first, one, end, other, copied_end = ids
    assert first == one == other and end != copied_end
    ids.clear()
    start = [each.config async for each in graph.aget_state_history("copy")][-2]
    await graph.ainvoke(None, start)
    assert ids == [first]
    assert "__interrupt__" not in await graph.ainvoke(Command(resume="yes"), "copy")
    ids.clear()
    await saver.acopy_thread("t", "finished")
    for name in ("t", "finished"):
        await graph.ainvoke({"log": []}, name)
    assert len(set(ids)) == 4


async def test_ids_of_tasks_that_have_not_begun(saver: BaseCheckpointSaver) -> None:
    """P2: if a thread is before a node, each copy runs a task of its own."""
    ids: list[str] = []

    def note(state: Any) -> Any:
        ids.append(get_runtime().execution_info.task_id)

    graph = StateGraph(State).add_node("pay", note).add_edge(START, "pay").compile(saver, interrupt_before=["pay"])
    await graph.ainvoke({"log": ["in"]}, "t")
    for name in ("a", "b"):
        await saver.acopy_thread("t", name)
    for name in ("t", "a", "b"):
        (planned,) = (await graph.aget_state(name)).tasks
        await graph.ainvoke(None, name)
        assert ids[-1] == planned.id
    assert len(set(ids)) == 3


async def test_cut_off_in_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """P5: what a subgraph has stored is found in the copy, although the task that runs it has no record."""
    ran, cuts = Ran(), [True]

    def work(state: Any) -> Any:
        ran.names.append("work")
        return {"log": ["work"]}

    async def rest(state: Any) -> Any:
        if cuts.pop():
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        return {"log": ["rest"]}

    inner = StateGraph(State).add_node("work", work).add_node("rest", rest).add_edge(START, "work")
    outer = StateGraph(State).add_node("inner", inner.add_edge("work", "rest").compile()).add_edge(START, "inner")
    graph = outer.compile(saver)
    with anyio.CancelScope() as scope:
        await graph.ainvoke({"log": ["in"]}, "t")
    await saver.acopy_thread("t", "copy")
    cuts.append(False)
    assert (await graph.ainvoke(None, "copy"))["log"][-2:] == ["work", "rest"]
    assert ran.names == ["work"]


async def test_an_edit_in_the_copy(saver: BaseCheckpointSaver) -> None:
    """P5: an edit as a pending node is the result of that task, whose id is the planned one."""
    ran = Ran()
    graph = asking(saver, ran)
    await graph.ainvoke({"log": ["in"]}, "t")
    await saver.acopy_thread("t", "copy")
    ran.take()
    await graph.aupdate_state("copy", {"log": ["by hand"]}, as_node="ask")
    assert (await graph.ainvoke(None, "copy"))["log"] == ["in", "by hand", "work", "end"]
    assert ran.take() == ["end"]


@pytest.mark.parametrize("runs", [1, 6])
async def test_events_in_the_copy(saver: BaseCheckpointSaver, runs: int) -> None:
    """P4: events are copied, and those of the copy's own runs come after them, however many leases the original has
    had."""
    graph = asking(saver, Ran())
    for _ in range(runs):
        await graph.ainvoke({"log": ["in"]}, "t")

    async def read(name: str, given: Any = None, **how: Any) -> list[Any]:
        return [part async for part in graph.astream(given, name, stream_mode="updates", version="v2", **how)]

    shown = await read("t", {"log": ["last"]}, keep_events=True)
    await saver.acopy_thread("t", "copy")
    more = await read(
        "copy", Command(resume={question.id: "x" for question in await _asked(graph, "copy")}), keep_events=True
    )
    assert more and shown
    events = await saver.events("copy", limit=1000)
    assert [one.key for one in events] == sorted({one.key for one in events})
    assert len(events) > len(await saver.events("t", limit=1000)) > 0
    again = await read("copy", after=shown[0]["cursor"])
    assert [part["data"] for part in again][: len(shown) - 1] == [part["data"] for part in shown[1:]]


async def _asked(graph: Any, name: str) -> Any:
    return (await graph.aget_state(name)).interrupts


async def test_copies_that_are_refused(saver: BaseCheckpointSaver) -> None:
    """P3: an empty thread cannot be copied, and an existing one is not overwritten; nothing is changed."""
    graph = steps(saver)
    await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke({"log": ["in"]}, "u")
    before = await saver.dump("u")
    for target in ("u", "t"):
        with pytest.raises(ThreadExistsError, match=repr(target)):
            await saver.acopy_thread("t", target)
    with pytest.raises(ThreadNotFoundError, match="'never'"):
        await saver.acopy_thread("never", "v")
    assert await saver.dump("u") == before
    assert [one.thread_id async for one in saver.alist_threads()] == ["t", "u"]
    assert all([one.owner is None async for one in saver.alist_threads()])


async def test_an_erased_thread(saver: BaseCheckpointSaver) -> None:
    """Nothing of it is left in any namespace; other threads are unchanged, and it can start anew."""
    graph = nested(saver, Ran())
    for name in ("t", "u"):
        async for _ in graph.astream({"log": ["in"]}, name, keep_events=True, version="v2"):
            pass
    before = await saver.dump("u")
    await saver.aerase_thread("t")
    await saver.aerase_thread("never")
    assert await saver.dump("t") is None and await saver.events("t") == () == await saver.scan("t", None)
    assert await saver.dump("u") == before and await saver.acount_threads() == 1
    assert (await graph.aget_state("t")).values == {}
    assert (await graph.ainvoke({"log": ["anew"]}, "t"))["__interrupt__"]
