"""A graph's retention (P10, P5, P8): its threads are pruned as runs end, and nobody notices but the storage."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.records import Lease, Rewrite
from checkpoint_savers.upkeep.retention import Retention
from pregel_async import START, Command, NodeBuilder, Pregel, StateGraph, entrypoint, interrupt
from pregel_async.channels import LastValue, Topic
from pregel_async.errors import GraphValidationError, InvalidCursorError, RetentionWarning
from pregel_async.testing import Crash, Fault, FaultySaver
from pregel_async.types import Durability
from tests.durability.durable_world import MODES
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def lined(saver: BaseCheckpointSaver | None, *nodes: Callable[[Any], Any], **options: Any) -> Any:
    """Nodes one after the other."""
    made: Any = StateGraph(State)
    before = START
    for each in nodes:
        made.add_node(each.__name__, each).add_edge(before, each.__name__)
        before = each.__name__
    return made.compile(saver, **options)


def one(state: State) -> State:
    return {"log": ["one"]}


def two(state: State) -> State:
    return {"log": ["two"]}


async def ids_of(saver: BaseCheckpointSaver, ns: str | None = "") -> list[str]:
    return [header.checkpoint_id for header in reversed(await saver.scan("t", ns, limit=10_000))]


@pytest.mark.parametrize("mode", MODES)
async def test_a_thread_is_pruned_as_its_runs_end(saver: BaseCheckpointSaver, mode: Durability) -> None:
    """P10: in each mode; what runs give is the same, and the thread is free afterwards."""
    graph, plain = lined(saver, one, two, retention=Retention(keep=2)), lined(InMemorySaver(), one, two)
    for turn in range(4):
        given = {"log": [f"in {turn}"]}
        result = await graph.ainvoke(given, "t", durability=mode)
        assert result == await plain.ainvoke(given, "t")
        assert len(await ids_of(saver)) <= 2
        assert [header.owner for header in await saver.threads()] == [None]
        assert (await graph.aget_state("t")).values == result
    assert len([each async for each in graph.aget_state_history("t")]) == 2


async def test_a_question_is_answered_all_the_same(saver: BaseCheckpointSaver) -> None:
    """P8, P5: a run that asks is pruned too: what stands open stays, and nothing that has a result runs again."""
    ran: list[str] = []

    def ask(state: State) -> State:
        ran.append("ask")
        return {"log": [interrupt("?")]}

    def work(state: State) -> State:
        ran.append("work")
        return {"log": ["work"]}

    made = StateGraph(State).add_node("one", one).add_node("ask", ask).add_node("work", work).add_edge(START, "one")
    graph = made.add_edge("one", "ask").add_edge("one", "work").compile(saver, retention=Retention(keep=1))
    asked = await graph.ainvoke({"log": ["in"]}, "t")
    assert [question.value for question in asked["__interrupt__"]] == ["?"] and len(await ids_of(saver)) == 1
    ran.clear()
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["in", "one", "yes", "work"]
    assert ran == ["ask"] and len(await ids_of(saver)) == 1


async def test_after_a_failure(saver: BaseCheckpointSaver) -> None:
    """P10, P9: a run that fails is pruned too, so that a thread of failing runs does not grow; its own error is raised."""
    fails = [True]

    def fail(state: State) -> State:
        if fails[0]:
            raise ValueError("not yet")
        return {"log": ["at last"]}

    graph = lined(saver, one, fail, retention=Retention(keep=1))
    for _ in range(3):
        with pytest.raises(ValueError, match="not yet"):
            await graph.ainvoke({"log": ["in"]}, "t")
        assert len(await ids_of(saver)) == 1
        assert (await saver.threads())[0].owner is None
    fails[0] = False
    assert (await graph.ainvoke(None, "t"))["log"][-1] == "at last"


async def test_cancelled_runs_leave_it(saver: BaseCheckpointSaver) -> None:
    """P7: a cancelled run does nothing more than it has to."""

    async def stop(state: State) -> State:
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        return {}

    graph = lined(saver, one, stop, retention=Retention(keep=1))
    with anyio.CancelScope() as scope:
        await graph.ainvoke({"log": ["in"]}, "t")
    assert scope.cancelled_caught and len(await ids_of(saver)) == 3


async def test_pruning_fails(saver: BaseCheckpointSaver) -> None:
    """P9: the run's result is what it is; a warning tells that and why, and the next run's end does it."""
    faulty = FaultySaver(saver, Fault(how="fail", on="rewrite"))
    graph = lined(faulty, one, two, retention=Retention(keep=1))
    with pytest.warns(RetentionWarning, match="thread 't' was not pruned .* the database refuses") as told:
        result = await graph.ainvoke({"log": ["in"]}, "t")
    assert result == {"log": ["in", "one", "two"]} and len(told) == 1
    assert isinstance(told[0].message.__cause__, Exception)
    assert len(await ids_of(saver)) == 4 and (await saver.threads())[0].owner is None
    await graph.ainvoke({"log": ["in"]}, "t")
    assert len(await ids_of(saver)) == 1


async def test_pruning_fails_after_a_failure() -> None:
    """P9: where warnings are errors it is the failure's note, and a good run raises it, with everything stored."""

    def fail(state: State) -> State:
        raise ValueError("no")

    saver = FaultySaver(InMemorySaver(), Fault(how="fail", on="rewrite"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="no") as caught:
            await lined(saver, one, fail, retention=Retention(keep=1)).ainvoke({"log": ["in"]}, "t")
        assert any("was not pruned" in note for note in caught.value.__notes__)
        saver.add(Fault(how="fail", on="rewrite"))
        with pytest.raises(RetentionWarning):
            await lined(saver, one, two, retention=Retention(keep=1)).ainvoke({"log": ["in"]}, "u")
    assert (await lined(saver, one, two).aget_state("u")).values == {"log": ["in", "one", "two"]}


async def test_storage_that_has_failed(saver: BaseCheckpointSaver) -> None:
    """P4: a run that could not store is not pruned after it."""
    faulty = FaultySaver(saver)
    graph = lined(faulty, one, two, retention=Retention(keep=1))
    await graph.ainvoke({"log": ["in"]}, "t")
    faulty.add(Fault(how="fail", on="commit", at=2))
    before = len(faulty.operations)
    with pytest.raises(Exception, match="refuses"):
        await graph.ainvoke({"log": ["in"]}, "t")
    assert "rewrite" not in faulty.operations[before:]


async def test_readers_can_come_back(saver: BaseCheckpointSaver) -> None:
    """P4: with keep_events, what was shown since the last input stays; then it goes, and whoever comes back to it is told."""
    graph = lined(saver, one, two, retention=Retention(keep=1))

    async def read(given: Any = None, **how: Any) -> list[Any]:
        return [part async for part in graph.astream(given, "t", stream_mode="updates", version="v2", **how)]

    first = await read({"log": ["in"]}, keep_events=True)
    assert len(first) == 2
    assert [part["data"] for part in await read(after=first[0]["cursor"])] == [first[1]["data"]]
    second = await read({"log": ["in"]}, keep_events=True)
    assert [part["data"] for part in await read(after=second[0]["cursor"])] == [second[1]["data"]]
    with pytest.raises(InvalidCursorError):
        await read(after=first[0]["cursor"])
    events = await saver.events("t", limit=100)
    assert {event.checkpoint_id for event in events} <= set(await ids_of(saver))
    await graph.ainvoke({"log": ["in"]}, "t")
    assert len(await ids_of(saver)) == 1 and await saver.events("t") == ()


async def test_every_face_takes_one(saver: BaseCheckpointSaver) -> None:
    """StateGraph, @entrypoint and Pregel; of a graph inside, that of the graph around counts."""

    @entrypoint(checkpointer=saver, retention=Retention(keep=1))
    async def flow(given: int, *, previous: int | None) -> int:
        return given + (previous or 0)

    low = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("in").do(lambda value: value + 1).write_to("out")},
        channels={"in": LastValue(int), "out": LastValue(int), "all": Topic(int)},
        input_channels="in",
        output_channels="out",
        checkpointer=saver,
        retention=Retention(keep=1),
    )
    assert [await flow.ainvoke(each, "flow") for each in (1, 2, 3)] == [1, 3, 6]
    assert [await low.ainvoke(each, "low") for each in (1, 2)] == [2, 3]
    for name in ("flow", "low"):
        assert len(await saver.scan(name, "")) == 1
    inner = lined(None, one, two, retention=Retention(keep=1))
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(saver)
    await graph.ainvoke({"log": ["in"]}, "t")
    assert len(await ids_of(saver)) == 3 and len(await ids_of(saver, None)) == 7
    with pytest.raises(GraphValidationError, match="retention is a Retention"):
        lined(saver, one, retention=timedelta(days=1))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mode", MODES)
async def test_killed_anywhere(mode: Durability, when: Any) -> None:
    """P5, P3: wherever the process dies, the next one ends with the same state, and runs nothing again that was stored."""
    for number in range(1, 60):
        ran: list[str] = []

        def node(state: State) -> State:
            ran.append("node")
            return {"log": [f"node {len(state['log'])}"]}

        saver = FaultySaver(InMemorySaver())
        graph = lined(saver, one, node, two, retention=Retention(keep=2))
        await graph.ainvoke({"log": ["in"]}, "t", durability=mode)
        ran.clear()
        saver.add(Fault(how="crash", on="any", at=number, when=when))
        try:
            await graph.ainvoke({"log": ["again"]}, "t", durability=mode)
        except (Crash, BaseExceptionGroup):
            assert saver.crashed
        else:
            assert number > 5
            return
        await saver.restart()
        state = await graph.aget_state("t")
        if len(state.values["log"]) < 8 and not state.next:
            await graph.ainvoke({"log": ["again"]}, "t", durability=mode)
        elif state.next:
            await graph.ainvoke(None, "t", durability=mode)
        assert (await graph.aget_state("t")).values["log"] == [
            "in",
            "one",
            "node 2",
            "two",
            "again",
            "one",
            "node 6",
            "two",
        ]
        assert len(ran) <= 2 if mode != "sync" else len(ran) <= 1 + (not state.next or "node" in state.next)
        await saver.aprune("t", retention=Retention(keep=2))
        assert len(await ids_of(saver)) == 2
    raise AssertionError("it does not end")


class Weighing(Through):
    """Knows how many bytes of frames were written anew."""

    rewritten = 0

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        self.rewritten += sum([len(row.frame) for row in change.rows])
        await super().rewrite(lease, change)


@pytest.mark.parametrize("keep", [1, 5])
async def test_a_large_thread_is_not_written_anew_each_time(keep: int) -> None:
    """P10: what pruning writes grows with what runs write, and what is stored with what the thread holds."""
    saver = Weighing(InMemorySaver())
    graph = lined(saver, one, retention=Retention(keep=keep))
    sizes: Sequence[int] = ()
    for turn in range(150):
        await graph.ainvoke({"log": [f"{turn:05}" + "x" * 4000]}, "t")
        sizes = [header.size for header in await saver.scan("t", "", limit=10_000)]
        assert sum(sizes) < 4 * 4100 * (turn + 1) + 3 * 64 * 1024
    assert saver.rewritten < 6 * 150 * 4100 + 150 * 4096
    assert len((await graph.aget_state("t")).values["log"]) == 300
