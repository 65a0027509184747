"""A graph's retention (P10, P5, P8): its threads are pruned as runs end, without any effect on results."""

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
from tests.durability.durable_environment import MODES
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def sequence_of(saver: BaseCheckpointSaver | None, *nodes: Callable[[Any], Any], **options: Any) -> Any:
    """Return a graph of nodes in sequence."""
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
    """P10: in each mode, a thread is pruned as its runs end; results of runs are the same, and the thread is free
    afterwards."""
    graph, plain = sequence_of(saver, one, two, retention=Retention(keep=2)), sequence_of(InMemorySaver(), one, two)
    for turn in range(4):
        given = {"log": [f"in {turn}"]}
        result = await graph.ainvoke(given, "t", durability=mode)
        assert result == await plain.ainvoke(given, "t")
        assert len(await ids_of(saver)) <= 2
        assert [header.owner for header in await saver.threads()] == [None]
        assert (await graph.aget_state("t")).values == result
    assert len([each async for each in graph.aget_state_history("t")]) == 2


async def test_a_question_survives_pruning(saver: BaseCheckpointSaver) -> None:
    """P8, P5: a run that asks is pruned too: open questions stay, and no task with a result runs again."""
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
    """P10, P9: a run that fails is pruned too, so that a thread of failing runs does not grow; the run's own error is
    raised."""
    fails = [True]

    def fail(state: State) -> State:
        if fails[0]:
            raise ValueError("not yet")
        return {"log": ["at last"]}

    graph = sequence_of(saver, one, fail, retention=Retention(keep=1))
    for _ in range(3):
        with pytest.raises(ValueError, match="not yet"):
            await graph.ainvoke({"log": ["in"]}, "t")
        assert len(await ids_of(saver)) == 1
        assert (await saver.threads())[0].owner is None
    fails[0] = False
    assert (await graph.ainvoke(None, "t"))["log"][-1] == "at last"


async def test_cancelled_runs_do_not_prune(saver: BaseCheckpointSaver) -> None:
    """P7: a cancelled run does not prune."""

    async def stop(state: State) -> State:
        scope.cancel()
        await anyio.lowlevel.checkpoint()
        return {}

    graph = sequence_of(saver, one, stop, retention=Retention(keep=1))
    with anyio.CancelScope() as scope:
        await graph.ainvoke({"log": ["in"]}, "t")
    assert scope.cancelled_caught and len(await ids_of(saver)) == 3


async def test_pruning_fails(saver: BaseCheckpointSaver) -> None:
    """P9: when pruning fails, the run returns its result; a warning gives the reason, and the end of the next run
    prunes."""
    faulty = FaultySaver(saver, Fault(how="fail", on="rewrite"))
    graph = sequence_of(faulty, one, two, retention=Retention(keep=1))
    with pytest.warns(RetentionWarning, match="thread 't' was not pruned .* the database refuses") as warned:
        result = await graph.ainvoke({"log": ["in"]}, "t")
    assert result == {"log": ["in", "one", "two"]} and len(warned) == 1
    assert isinstance(warned[0].message.__cause__, Exception)
    assert len(await ids_of(saver)) == 4 and (await saver.threads())[0].owner is None
    await graph.ainvoke({"log": ["in"]}, "t")
    assert len(await ids_of(saver)) == 1


async def test_pruning_fails_after_a_failure() -> None:
    """P9: where warnings are errors, a failed run gets the warning as a note, and a successful run raises it with
    everything stored."""

    def fail(state: State) -> State:
        raise ValueError("no")

    saver = FaultySaver(InMemorySaver(), Fault(how="fail", on="rewrite"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="no") as caught:
            await sequence_of(saver, one, fail, retention=Retention(keep=1)).ainvoke({"log": ["in"]}, "t")
        assert any("was not pruned" in note for note in caught.value.__notes__)
        saver.add(Fault(how="fail", on="rewrite"))
        with pytest.raises(RetentionWarning):
            await sequence_of(saver, one, two, retention=Retention(keep=1)).ainvoke({"log": ["in"]}, "u")
    assert (await sequence_of(saver, one, two).aget_state("u")).values == {"log": ["in", "one", "two"]}


async def test_failed_storage_is_not_pruned(saver: BaseCheckpointSaver) -> None:
    """P4: a run that could not store is not pruned."""
    faulty = FaultySaver(saver)
    graph = sequence_of(faulty, one, two, retention=Retention(keep=1))
    await graph.ainvoke({"log": ["in"]}, "t")
    faulty.add(Fault(how="fail", on="commit", at=2))
    before = len(faulty.operations)
    with pytest.raises(Exception, match="refuses"):
        await graph.ainvoke({"log": ["in"]}, "t")
    assert "rewrite" not in faulty.operations[before:]


async def test_readers_can_reconnect(saver: BaseCheckpointSaver) -> None:
    """P4: with keep_events, the events since the last input stay; then they are pruned, and a reader that reconnects to
    them gets an error."""
    graph = sequence_of(saver, one, two, retention=Retention(keep=1))

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


async def test_every_kind_of_graph_takes_a_retention(saver: BaseCheckpointSaver) -> None:
    """StateGraph, @entrypoint and Pregel take a retention; for a subgraph the parent's retention counts."""

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
    inner = sequence_of(None, one, two, retention=Retention(keep=1))
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(saver)
    await graph.ainvoke({"log": ["in"]}, "t")
    assert len(await ids_of(saver)) == 3 and len(await ids_of(saver, None)) == 7
    with pytest.raises(GraphValidationError, match="retention is a Retention"):
        sequence_of(saver, one, retention=timedelta(days=1))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mode", MODES)
async def test_killed_anywhere(mode: Durability, when: Any) -> None:
    """P5, P3: wherever the process dies, the next one ends with the same state, and no stored task runs again."""
    for number in range(1, 60):
        ran: list[str] = []

        def node(state: State) -> State:
            ran.append("node")
            return {"log": [f"node {len(state['log'])}"]}

        saver = FaultySaver(InMemorySaver())
        graph = sequence_of(saver, one, node, two, retention=Retention(keep=2))
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


class WriteCountingSaver(Through):
    """A saver that counts the bytes of the frames that were written."""

    rewritten = 0

    async def rewrite(self, lease: Lease, change: Rewrite) -> None:
        self.rewritten += sum([len(row.frame) for row in change.rows])
        await super().rewrite(lease, change)


@pytest.mark.parametrize("keep", [1, 5])
async def test_pruning_does_not_rewrite_a_large_thread(keep: int) -> None:
    """P10: pruning writes in proportion to what runs write, and storage grows with what the thread holds."""
    saver = WriteCountingSaver(InMemorySaver())
    graph = sequence_of(saver, one, retention=Retention(keep=keep))
    sizes: Sequence[int] = ()
    for turn in range(150):
        await graph.ainvoke({"log": [f"{turn:05}" + "x" * 4000]}, "t")
        sizes = [header.size for header in await saver.scan("t", "", limit=10_000)]
        assert sum(sizes) < 4 * 4100 * (turn + 1) + 3 * 64 * 1024
    assert saver.rewritten < 6 * 150 * 4100 + 150 * 4096
    assert len((await graph.aget_state("t")).values["log"]) == 300
