"""Pruning, pins and deletion by run (P3, P6, P8, P10): what is removed, what stays, and that it stays unchanged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest
from msgspec.structs import replace

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.conformance.savers.random_threads import RandomThread, checkpoint_tuples
from checkpoint_savers.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    StorageError,
    ThreadBusyError,
    ThreadNotFoundError,
)
from checkpoint_savers.records import CheckpointId, Lease
from checkpoint_savers.upkeep.retention import Pruned, Retention, Stayed, created
from checkpoint_savers.upkeep.threads import load_thread
from pregel_async import Command
from pregel_async.testing import Crash, Fault, FaultySaver
from pregel_async.testing.saver import SaverVerb
from tests.savers.upkeep_graphs import KINDS, Ran, asking, at, ids_of, nested, opened, steps

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture(params=KINDS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as saver:
        yield saver


def why(pruned: Pruned) -> dict[str, str]:
    return {one.checkpoint_id: one.why for thread in pruned.threads for one in thread.stayed}


class During(FaultySaver):
    """Does something once during a reading call of another: before it reads, or after."""

    def __init__(
        self, saver: BaseCheckpointSaver, verb: SaverVerb, when: str, do: Callable[[], Awaitable[object]]
    ) -> None:
        super().__init__(saver)
        self._verb: SaverVerb | None = verb
        self._when = when
        self._do = do

    async def around(self, verb: SaverVerb, call: Callable[[], Awaitable[T]]) -> T:
        due, self._verb = verb == self._verb, None if verb == self._verb else self._verb
        if due and self._when == "before":
            await self._do()
        found = await super().around(verb, call)
        if due and self._when == "after":
            await self._do()
        return found


async def test_the_newest_checkpoints_stay(saver: BaseCheckpointSaver) -> None:
    """P10: so many newest checkpoints stay; a dry run reports the same and changes nothing."""
    graph = steps(saver)
    for _ in range(3):
        await graph.ainvoke({"log": ["in"]}, "t")
    before = await saver.dump("t")
    ids = await ids_of(saver, "t")
    values = [(await graph.aget_state(at("t", each))).values for each in ids]
    looked = await saver.aprune("t", retention=Retention(keep=4), dry_run=True)
    assert looked.dry_run and await saver.dump("t") == before
    assert [thread.gone for thread in looked.threads] == [tuple(("", each) for each in ids[:-4])]
    done = await saver.aprune(["t"], retention=Retention(keep=4))
    assert done.threads == looked.threads and (done.checkpoints, done.busy) == (len(ids) - 4, ())
    assert done.freed == sum(len(row.frame) for row in before.rows if row.checkpoint_id in ids[:-4])
    assert await ids_of(saver, "t") == ids[-4:]
    assert [(await graph.aget_state(at("t", each))).values for each in ids[-4:]] == values[-4:]
    oldest = await graph.aget_state(at("t", ids[-4]))
    assert oldest.parent_config is None
    await graph.ainvoke({"log": ["in"]}, "t")
    assert (await graph.aget_state("t")).values["log"] == [*values[-1]["log"], "in", "one", "two"]


async def test_by_age_and_size(saver: BaseCheckpointSaver) -> None:
    """P10: a checkpoint stays if it is within all limits; the head always stays."""
    graph = steps(saver)
    await graph.ainvoke({"log": ["in"]}, "t")
    ids = await ids_of(saver, "t")
    made = created(ids[-1])
    assert made is not None and abs(made - saver.clock()) < 60
    saver.clock = lambda: made + 100
    assert not (await saver.aprune("t", retention=Retention(max_age=timedelta(days=1)), dry_run=True)).checkpoints
    aged = await saver.aprune("t", retention=Retention(keep=9, max_age=timedelta(seconds=9)), dry_run=True)
    assert aged.checkpoints == len(ids) - 1 and why(aged) == {ids[-1]: "head"}
    sizes = [header.size for header in await saver.scan("t", "")]
    fits = Retention(max_bytes=sum(sizes[:2]))
    assert (await saver.aprune("t", retention=fits, dry_run=True)).checkpoints == len(ids) - 2
    await saver.aprune("t", retention=Retention(max_bytes=0))
    assert await ids_of(saver, "t") == ids[-1:]


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({}, ValueError),
        ({"keep": 0}, ValueError),
        ({"keep": -1}, ValueError),
        ({"keep": 1.5}, TypeError),
        ({"keep": True}, TypeError),
        ({"max_bytes": -1}, ValueError),
        ({"max_bytes": "1"}, TypeError),
        ({"max_age": 3}, TypeError),
        ({"max_age": timedelta(seconds=-1)}, ValueError),
    ],
)
async def test_an_invalid_retention(limits: dict[str, Any], error: type[Exception]) -> None:
    """P10: an invalid retention raises when created, and so does a call without one."""
    with pytest.raises(error):
        Retention(**limits)
    for wrong in ({}, {"retention": Retention(keep=1), "strategy": "delete"}, {"strategy": "keep"}):
        with pytest.raises(ValueError):
            await InMemorySaver().aprune("t", **wrong)


async def test_strategies(saver: BaseCheckpointSaver) -> None:
    """P10: "keep_latest" keeps the head, "delete" nothing; threads that do not exist are ignored."""
    graph = steps(saver)
    for name in ("a", "b", "c"):
        await graph.ainvoke({"log": [name]}, name)
    await saver.apin(at("b", (await ids_of(saver, "b"))[0]))
    assert (await saver.aprune(["a", "unknown", "a"], strategy="keep_latest")).checkpoints == 3
    assert len(await ids_of(saver, "a")) == 1
    looked = await saver.aprune("b", strategy="delete", dry_run=True)
    assert looked.checkpoints == 4 == len(await ids_of(saver, "b"))
    assert (await saver.aprune("b", strategy="delete")).threads == looked.threads
    assert [one.thread_id async for one in saver.alist_threads()] == ["a", "c"]
    done = await saver.aprune(strategy="keep_latest")
    assert [(thread.thread_id, len(thread.gone)) for thread in done.threads] == [("c", 3)]


async def test_an_open_question(saver: BaseCheckpointSaver) -> None:
    """P8, P5: an open question stays with the records of its superstep, also on a branch without the head: it can be
    answered, and recorded work does not run again."""
    ran = Ran()
    graph = asking(saver, ran)
    await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke(Command(resume="1"), "t")
    asks = (await graph.aget_state("t")).config
    first = (await ids_of(saver, "t"))[0]
    await graph.ainvoke({"log": ["again"]}, at("t", first))
    assert (await graph.aget_state("t")).config != asks
    ran.take()
    await saver.aprune("t", retention=Retention(keep=1))
    state = await graph.aget_state(asks)
    assert [question.value for question in state.interrupts] == ["two?"]
    assert [task.result for task in state.tasks] == [None, {"log": ["work"]}]
    done = await graph.ainvoke(Command(resume="2"), asks)
    assert done["log"] == ["in", "first", "1", "2", "work", "end"]
    assert ran.take() == ["ask", "end"]


@pytest.mark.parametrize("keeps", [None, True])
async def test_a_question_in_a_subgraph(saver: BaseCheckpointSaver, keeps: bool | None) -> None:
    """P8: the state of a subgraph with an open question stays, so that it continues from there."""
    ran = Ran()
    graph = nested(saver, ran, keeps=keeps)
    await graph.ainvoke({"log": ["in"]}, "t")
    before = await graph.aget_state("t", subgraphs=True)
    pruned = await saver.aprune("t", retention=Retention(keep=1))
    assert pruned.checkpoints
    assert await graph.aget_state("t", subgraphs=True) == _without_parents(before)
    ran.take()
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"][-2:] == ["yes", "after"]
    assert ran.take() == ["inner ask", "after"]


def _without_parents(snapshot: Any) -> Any:
    tasks = [
        task
        if task.state is None or isinstance(task.state, dict)
        else replace(task, state=_without_parents(task.state))
        for task in snapshot.tasks
    ]
    return snapshot.__replace__(parent_config=None, tasks=tuple(tasks))


async def test_a_persistent_subgraph_state(saver: BaseCheckpointSaver) -> None:
    """P10: the root's state refers to the state that a subgraph keeps between calls; that state stays although the
    rest of its call is removed, one for each branch."""
    ran = Ran()
    graph = nested(saver, ran, keeps=True, asks=False)
    await graph.ainvoke({"log": ["in"]}, "t")
    old = (await graph.aget_state("t")).config
    await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke({"log": ["fork"]}, old)
    ids = await ids_of(saver, "t", None)
    other = InMemorySaver()
    await _moved_to(other, saver)
    done = await saver.aprune("t", retention=Retention(keep=1))
    assert set(why(done).values()) == {"tip", "inside"}
    assert len(await ids_of(saver, "t", None)) < len(ids) / 2
    tips = [each.config async for each in graph.aget_state_history("t")]
    twin = nested(other, ran, keeps=True, asks=False)
    for tip in tips:
        assert await graph.ainvoke({"log": ["next"]}, tip) == await twin.ainvoke({"log": ["next"]}, tip)


async def _moved_to(other: BaseCheckpointSaver, saver: BaseCheckpointSaver) -> None:
    dump = await saver.dump("t")
    assert dump is not None
    await load_thread(other, "t", dump)


async def test_history_shows_subgraph_states(saver: BaseCheckpointSaver) -> None:
    """P10: each checkpoint that stays still shows the state of the subgraph that its task has run."""
    graph = nested(saver, Ran(), keeps=True, asks=False)
    for _ in range(4):
        await graph.ainvoke({"log": ["in"]}, "t")

    async def inside() -> dict[str, Any]:
        shown: dict[str, Any] = {}
        async for each in graph.aget_state_history("t"):
            for task in each.tasks:
                if task.state is not None:
                    shown[each.config["configurable"]["checkpoint_id"]] = (await graph.aget_state(task.state)).values
        return shown

    before = await inside()
    await saver.aprune("t", retention=Retention(keep=9))
    after = await inside()
    assert after and after == {key: before[key] for key in after}
    assert len(after) == 2


async def test_a_branch_of_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """P10: the branch of a subgraph that an edit has left stays, too."""
    graph = nested(saver, Ran())
    await graph.ainvoke({"log": ["in"]}, "t")
    (task,) = (await graph.aget_state("t", subgraphs=True)).tasks
    left = task.state.config
    before = (await graph.aget_state(left)).values
    await graph.aupdate_state(task.state.parent_config, {"log": ["edit"]}, as_node="work")
    await saver.aprune("t", retention=Retention(keep=1))
    assert (await graph.aget_state(left)).values == before


async def test_a_pin(saver: BaseCheckpointSaver) -> None:
    """P10: a pinned checkpoint stays unchanged, with its tasks' results, until it is unpinned; then it is removed,
    as it is no branch."""
    ran = Ran()
    graph = steps(saver, ran)
    await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke({"log": ["in"]}, "t")
    ids = await ids_of(saver, "t")
    await saver.apin(at("t", ids[2]))
    await saver.apin(at("t", ids[2]))
    await saver.apin("t")
    assert [one.pinned for one in reversed(await saver.scan("t", ""))] == [each in (ids[2], ids[-1]) for each in ids]
    before = await graph.aget_state(at("t", ids[2]))
    followed = await graph.aget_state(at("t", ids[3]))
    assert before.next == ("two",) and before.tasks[0].result == {"log": ["two"]}
    done = await saver.aprune("t", retention=Retention(keep=1))
    assert why(done) == {ids[2]: "pinned", ids[3]: "follows"}
    now = await graph.aget_state(at("t", ids[2]))
    assert (now.values, now.next, now.tasks, now.created_at) == (
        before.values,
        before.next,
        before.tasks,
        before.created_at,
    )
    assert (await graph.aget_state(at("t", ids[3]))).next == followed.next
    ran.take()
    forked = await graph.ainvoke(None, at("t", ids[2]))
    assert forked["log"] == ["in", "one", "two"] and ran.take() == ["two"]
    await saver.aunpin(at("t", ids[2]))
    done = await saver.aprune("t", retention=Retention(keep=1))
    assert {checkpoint_id for _, checkpoint_id in done.threads[0].gone} >= {ids[2], ids[3]}


async def test_a_pin_in_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """P10: a pinned checkpoint of a subgraph keeps the checkpoints that it was made on: a run can continue from it."""
    ran = Ran()
    graph = nested(saver, ran)
    await graph.ainvoke({"log": ["in"]}, "t")
    (task,) = (await graph.aget_state("t", subgraphs=True)).tasks
    config = task.state.config
    await graph.ainvoke(Command(resume="yes"), "t")
    await graph.ainvoke({"log": ["in"]}, "t")
    await saver.apin(config)
    done = await saver.aprune("t", retention=Retention(keep=1))
    assert {"around", "pinned", "follows"} <= set(why(done).values())
    ran.take()
    assert [each.value for each in (await graph.ainvoke(None, config))["__interrupt__"]] == ["inside?"]
    assert ran.take() == ["inner ask"]


async def test_nothing_to_pin(saver: BaseCheckpointSaver) -> None:
    """P10: pinning a checkpoint or thread that does not exist raises, and leaves no trace."""
    await steps(saver).ainvoke({"log": ["in"]}, "t")
    with pytest.raises(CheckpointNotFoundError):
        await saver.apin(at("t", "never"))
    with pytest.raises(ThreadNotFoundError):
        await saver.aunpin("unknown")
    with pytest.raises(ValueError):
        await saver.apin({"configurable": {}})
    assert await saver.acount_threads() == 1


@pytest.mark.pairwise
@pytest.mark.parametrize("keep", [1, 7, 40, 75])
async def test_pruning_does_not_enlarge_a_long_thread(saver: BaseCheckpointSaver, keep: int) -> None:
    """P10: what stays is read as before, wherever its chain is cut, and its values are stored once, not once for
    each checkpoint."""
    graph = steps(saver)
    await graph.ainvoke({"large": "large" * 2000}, "t")
    for turn in range(40):
        await graph.ainvoke({"log": [f"in {turn} " + "x" * 200]}, "t")
    before = {header.checkpoint_id: header.size for header in await saver.scan("t", "", limit=1000)}
    values = {each.config["configurable"]["checkpoint_id"]: each.values async for each in graph.aget_state_history("t")}
    await saver.aprune("t", retention=Retention(keep=keep))
    stays = await ids_of(saver, "t")
    assert stays == sorted(before)[-keep:]
    assert {
        each.config["configurable"]["checkpoint_id"]: each.values async for each in graph.aget_state_history("t")
    } == {each: values[each] for each in stays}
    for each in stays:
        assert (await graph.aget_state(at("t", each))).values == values[each]
    oldest, *others = [header.size for header in reversed(await saver.scan("t", "", limit=1000))]
    assert oldest < len(values[stays[0]]["log"]) * 80 + 11_000
    assert sum(others) <= 1.5 * sum([before[each] for each in stays[1:]]) + 2048
    for turn in range(40):
        await graph.ainvoke({"log": [f"more {turn}"]}, "t")
    assert len((await graph.aget_state("t")).values["log"]) == 242


async def test_deleting_a_run(saver: BaseCheckpointSaver) -> None:
    """P10: the run's checkpoints are removed from all threads and namespaces, and the rest reads as before; the head
    is the one before the run."""

    def facts(snapshot: Any) -> Any:
        tasks = [(task.id, task.result) for task in snapshot.tasks]
        return snapshot.values, snapshot.config, snapshot.metadata, snapshot.parent_config, snapshot.next, tasks

    graph = nested(saver, Ran(), keeps=True, asks=False)
    for number in range(3):
        await graph.ainvoke({"log": [f"in {number}"]}, {"configurable": {"thread_id": "t"}, "run_id": f"run-{number}"})
    await graph.ainvoke({"log": ["in"]}, {"configurable": {"thread_id": "u"}, "run_id": "run-2"})
    await graph.ainvoke({"log": ["in"]}, {"configurable": {"thread_id": "v"}, "run_id": "run-9"})
    before = {one.checkpoint_id: one for one in await saver.scan("t", None)}
    values = [facts(each) async for each in graph.aget_state_history("t")]
    await saver.adelete_for_runs(["run-2", "unknown"])
    after = {one.checkpoint_id: one for one in await saver.scan("t", None)}
    assert after.keys() == {key for key, one in before.items() if one.metadata["run_id"] != "run-2"}
    assert [facts(each) async for each in graph.aget_state_history("t")] == [
        each for each in values if each[2]["run_id"] != "run-2"
    ]
    assert [one.thread_id async for one in saver.alist_threads()] == ["t", "v"]
    await saver.adelete_for_runs({"run-0"})
    assert {one.metadata["run_id"] for one in await saver.scan("t", None)} == {"run-1"}
    head = await graph.aget_state("t")
    assert facts(head)[:3] == next(each for each in values if each[2]["run_id"] == "run-1")[:3]
    with pytest.raises(TypeError):
        await saver.adelete_for_runs("run-1")


async def test_pruning_a_leased_thread(saver: BaseCheckpointSaver) -> None:
    """P6: no call that writes changes the thread; calls for all threads skip it."""
    graph = steps(saver)
    await graph.ainvoke({"log": ["in"]}, "s")
    await graph.ainvoke({"log": ["in"]}, "t")
    going, goes = anyio.Event(), anyio.Event()

    async def wait(state: Any) -> Any:
        going.set()
        await goes.wait()

    waiting = steps(saver).builder.add_node("wait", wait).add_edge("two", "wait").compile(saver)

    async with anyio.create_task_group() as group:
        group.start_soon(waiting.ainvoke, {"log": ["in"]}, "t")
        await going.wait()
        before = await saver.dump("t")
        ids = await ids_of(saver, "t")
        for verb in (
            lambda: saver.aprune("t", strategy="keep_latest"),
            lambda: saver.aprune("t", strategy="delete"),
            lambda: saver.apin(at("t", ids[0])),
            lambda: saver.aerase_thread("t"),
            lambda: saver.acopy_thread("t", "copy"),
            lambda: saver.acopy_thread("s", "t"),
            lambda: saver.adelete_for_runs([str((before.rows[0]).metadata["run_id"])]),
        ):
            with pytest.raises(ThreadBusyError) as caught:
                await verb()
            assert not caught.value.lost
        assert (await saver.aprune("t", strategy="keep_latest", dry_run=True)).checkpoints
        pruned = await saver.aprune(strategy="keep_latest")
        assert (pruned.busy, [thread.thread_id for thread in pruned.threads]) == (("t",), ["s"])
        assert await saver.dump("t") == before and await saver.dump("copy") is None
        goes.set()
    assert (await saver.aprune("t", strategy="keep_latest")).checkpoints


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_listing_during_a_prune(saver: BaseCheckpointSaver, when: str) -> None:
    """P3, P10: a listing has all checkpoints that exist before and after the prune, whatever it has read by then."""
    growing = RandomThread(saver, "t", 1)
    await growing.grow(70)
    listed = During(saver, "segment", when, lambda: saver.aprune("t", retention=Retention(keep=20)))
    found = await checkpoint_tuples(listed)
    left = await checkpoint_tuples(saver)
    assert 0 < len(left) < len(growing.states)
    assert found.keys() >= left.keys()
    for key, one in found.items():
        assert one.checkpoint["channel_values"] == growing.states[key]
    for key, one in left.items():
        assert (found[key].checkpoint, found[key].pending_writes) == (one.checkpoint, one.pending_writes)


async def test_a_page_during_a_prune(saver: BaseCheckpointSaver) -> None:
    """P3: `limit` counts the checkpoints that are returned, not those that were removed after the query."""
    graph = steps(saver)
    for _ in range(5):
        await graph.ainvoke({"log": ["in"]}, "t")
    pins = (await ids_of(saver, "t"))[:4]
    for each in pins:
        await saver.apin(at("t", each))
    listed = During(saver, "segment", "before", lambda: saver.aprune("t", retention=Retention(keep=2)))
    found = [one.config["configurable"]["checkpoint_id"] async for one in listed.alist("t", limit=4)]
    assert found == list(reversed(await ids_of(saver, "t")))[:4]


@pytest.mark.parametrize("goes", ["all of it", "what is not needed"])
async def test_a_dry_run_during_a_deletion(saver: BaseCheckpointSaver, goes: str) -> None:
    """P6: a dry run acquires no lease, so that another's lease does not prevent it, and reports what a prune would
    remove now."""
    graph = nested(saver, Ran(), keeps=True, asks=False)
    for _ in range(3):
        await graph.ainvoke({"log": ["in"]}, "t")
    strategy: Any = "delete" if goes == "all of it" else "keep_latest"
    looking = During(saver, "scan", "after", lambda: saver.aprune("t", strategy=strategy))
    facts = await looking.aprune("t", retention=Retention(keep=2), dry_run=True)
    assert facts == await saver.aprune("t", retention=Retention(keep=2), dry_run=True)
    assert not facts.checkpoints


async def test_pruning_all_threads_during_a_deletion(saver: BaseCheckpointSaver) -> None:
    """P6, P10: a thread that is deleted meanwhile does not prevent the others from being pruned."""
    graph = nested(saver, Ran(), keeps=True, asks=False)
    for name in ("a", "b"):
        for _ in range(3):
            await graph.ainvoke({"log": ["in"]}, name)
    pruning = During(saver, "scan", "after", lambda: saver.adelete_thread("a"))
    done = await pruning.aprune(retention=Retention(keep=1))
    assert [thread.thread_id for thread in done.threads] == ["b"]
    assert len(await ids_of(saver, "b")) == 1


async def test_the_lease_is_released(saver: BaseCheckpointSaver) -> None:
    """P6: the lease is released in every outcome."""
    graph = steps(saver)
    await graph.ainvoke({"log": ["in"]}, "t")
    for turn in range(2):
        await saver.aprune("t", retention=Retention(keep=2 - turn))
        (header,) = await saver.threads()
        assert header.owner is None
        await graph.ainvoke({"log": ["in"]}, "t")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["prune", "delete runs", "copy", "pin", "erase"])
async def test_a_crash_anywhere(what: str, when: Any) -> None:
    """P3: all changes are stored or none, wherever the process dies; the next prune does the rest."""
    for number in range(1, 40):
        saver = FaultySaver(InMemorySaver())
        graph = nested(saver, Ran(), keeps=True, asks=False)
        for run in range(3):
            await graph.ainvoke({"log": ["in"]}, {"configurable": {"thread_id": "t"}, "run_id": f"run-{run}"})

        async def work(saver: BaseCheckpointSaver = saver) -> None:
            if what == "prune":
                await saver.aprune("t", retention=Retention(keep=2))
            elif what == "delete runs":
                await saver.adelete_for_runs(["run-1"])
            elif what == "copy":
                await saver.acopy_thread("t", "copy")
            elif what == "pin":
                await saver.apin("t")
            else:
                await saver.aerase_thread("t")

        before = await saver.dump("t"), await saver.dump("copy")
        twin = InMemorySaver()
        await _moved_to(twin, saver)
        await work(twin)
        after = await twin.dump("t"), await twin.dump("copy")
        saver.add(Fault(how="crash", on="any", at=number, when=when))
        try:
            await work()
        except Crash:
            pass
        else:
            assert number > 3
            return
        await saver.restart()
        assert (await saver.dump("t"), await saver.dump("copy")) in (before, after)
        if (await saver.dump("t"), await saver.dump("copy")) == before:
            await work()
        assert (await saver.dump("t"), await saver.dump("copy")) == after
    raise AssertionError("it does not end")


async def test_cancelled_anywhere() -> None:
    """P7: a cancelled call has made all changes or none, and the thread is not leased."""
    for number in range(60):
        saver = _CancelsLater(InMemorySaver())
        await steps(saver).ainvoke({"log": ["in"]}, "t")
        before = await saver.dump("t")
        twin = InMemorySaver()
        await _moved_to(twin, saver)
        await twin.aprune("t", strategy="keep_latest")
        after = await twin.dump("t")
        with anyio.CancelScope() as scope:
            saver.left, saver.scope = number, scope
            await saver.aprune("t", strategy="keep_latest")
        saver.left = -1
        assert await saver.dump("t") in (before, after)
        (header,) = await saver.threads()
        assert header.owner is None
        if not scope.cancelled_caught:
            assert await saver.dump("t") == after
            if number > 20:
                return
    raise AssertionError("it does not end")


class _CancelsLater(FaultySaver):
    """Cancels a scope after so many iterations of the event loop in its methods."""

    left = -1
    scope: anyio.CancelScope | None = None

    async def around(self, verb: Any, call: Any) -> Any:
        for then in (False, True):
            if self.left == 0 and self.scope is not None:
                self.scope.cancel()
            self.left -= 1
            await anyio.lowlevel.checkpoint()
            if not then:
                result = await call()
        return result


async def test_storage_fails(saver: BaseCheckpointSaver) -> None:
    """P3: an error of storage is raised, and nothing was changed."""
    faulty = FaultySaver(saver)
    await steps(faulty).ainvoke({"log": ["in"]}, "t")
    before = await saver.dump("t")
    faulty.add(Fault(how="fail", on="rewrite"))
    with pytest.raises(StorageError):
        await faulty.aprune("t", strategy="keep_latest")
    assert await saver.dump("t") == before
    assert (await saver.threads())[0].owner is None


def test_results_are_comparable_records() -> None:
    """P10: each call returns a record of what it has done, and records can be compared."""
    assert Stayed("", "x", "tip") == Stayed("", "x", "tip")
    assert (Pruned().checkpoints, Pruned().freed) == (0, 0)


async def test_a_preview_of_a_damaged_thread() -> None:
    """P11: a listed checkpoint that cannot be read is damage, if the thread does not change: no run has taken it over."""

    class LosesARow(InMemorySaver):
        lost: object = ...

        async def read(self, thread_id: str, ns: str = "", checkpoint_id: Any = None) -> Any:
            return None if checkpoint_id == self.lost else await super().read(thread_id, ns, checkpoint_id)

    saver = LosesARow()
    await nested(saver, Ran(), keeps=True, asks=False).ainvoke({"log": []}, "t")
    limits = Retention(keep=1)
    ids = sorted([header.checkpoint_id for header in await saver.scan("t", "")], reverse=True)
    assert (await saver.aprune("t", retention=limits, dry_run=True)).checkpoints
    saver.lost = ids[0]
    with pytest.raises(CorruptCheckpointError, match="'t'"):
        await saver.aprune("t", retention=limits, dry_run=True)


@pytest.mark.parametrize("newest", ["", "x", "0193A1B2-C3D4-7000-8000-00000000000F"])
async def test_a_damaged_newest_id_is_refused(newest: str) -> None:
    """P11: the ids of the next checkpoints are computed from it. P6: the lease is released again."""

    class DamagedNewest(InMemorySaver):
        damaged = False

        async def acquire(self, *args: Any, **kwargs: Any) -> Lease:
            lease = await super().acquire(*args, **kwargs)
            return replace(lease, newest=CheckpointId(newest)) if self.damaged else lease

    saver = DamagedNewest()
    graph = nested(saver, Ran(), asks=False)
    await graph.ainvoke({"log": []}, "t")
    saver.damaged = True
    for work in (lambda: graph.ainvoke({"log": []}, "t"), lambda: saver.aprune("t", retention=Retention(keep=1))):
        with pytest.raises(CorruptCheckpointError, match="'t'"):
            await work()
    saver.damaged = False
    await graph.ainvoke({"log": []}, "t")
