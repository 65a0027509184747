"""A write that a run has begun is finished, however the run is cancelled meanwhile, with a saver of any kind."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict, TypeVar

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver, Retention
from checkpoint_savers.abc import BaseCheckpointSaver
from pregel_async import START, Command, StateGraph, interrupt
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class CancellingSaver(Through):
    """A saver that takes some turns of the event loop for each verb; the run is cancelled during one of these turns.

    Attributes:
        at: the verb at whose next call the run is cancelled; "" for none.
        scope: the cancel scope around the run.
        cut: the verbs that were interrupted.
        done: the verbs that finished.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.at = ""
        self.scope = anyio.CancelScope()
        self.cut: list[str] = []
        self.done: list[str] = []

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb == self.at:
            self.at = ""
            self.scope.cancel()
        try:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            result = await call()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.cut.append(verb)
            raise
        self.done.append(verb)
        return result

    async def cancelled(self, at: str, call: Callable[[], Awaitable[Any]]) -> None:
        """Call the graph, and cancel it when the verb begins."""
        self.scope, self.done, self.at = anyio.CancelScope(), [], at
        with anyio.fail_after(30), self.scope:
            await call()
        assert self.scope.cancel_called


def graph(saver: BaseCheckpointSaver, environment: SeededEnvironment, **nodes: Any) -> Any:
    made = StateGraph(State)
    for name, node in nodes.items():
        made.add_node(name, node).add_edge(START, name)
    return made.compile(saver, environment=environment)


async def ends(state: State) -> State:
    return {"log": ["ends"]}


async def waits(state: State) -> None:
    await anyio.sleep_forever()


async def asks(state: State) -> State:
    return {"log": [interrupt("who?")]}


async def fails(state: State) -> None:
    raise LookupError("nothing there")


@pytest.fixture
def slow(saver: BaseCheckpointSaver) -> CancellingSaver:
    return CancellingSaver(saver)


async def test_a_result(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P5, P7: the result of a task that finished while siblings ran is stored."""
    made = graph(slow, environment, ends=ends, waits=waits)
    await slow.cancelled("record", lambda: made.ainvoke({}, "t"))
    assert slow.cut == [] and "record" in slow.done
    snapshot = await made.aget_state("t")
    assert {each.name: each.result for each in snapshot.tasks} == {"ends": {"log": ["ends"]}, "waits": None}


async def test_a_question(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P7, P8: the question that a run ends with is stored."""
    made = graph(slow, environment, asks=asks)
    await slow.cancelled("record", lambda: made.ainvoke({}, "t"))
    assert slow.cut == [] and "record" in slow.done
    assert [each.value for each in (await made.aget_state("t")).interrupts] == ["who?"]


async def test_an_answer(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P7, P8: the answer that a run begins with is stored, so that the next call need not pass it again."""
    made = graph(slow, environment, asks=asks)
    await made.ainvoke({}, "t")
    await slow.cancelled("record", lambda: made.ainvoke(Command(resume="me"), "t"))
    assert slow.cut == [] and "record" in slow.done
    assert await made.ainvoke(None, "t") == {"log": ["me"]}


async def test_a_failure(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P3, P7: the failure that a run ends with is stored."""
    made = graph(slow, environment, fails=fails)
    with pytest.raises(LookupError):
        await slow.cancelled("record", lambda: made.ainvoke({}, "t"))
    assert slow.cut == [] and "record" in slow.done
    (task,) = (await made.aget_state("t")).tasks
    assert task.error is not None and task.error.message == "nothing there"


async def test_a_superstep(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P3, P7: a superstep's own transaction is finished by a saver that does not shield itself."""
    made = graph(slow, environment, ends=ends)
    await slow.cancelled("commit", lambda: made.ainvoke({}, "t"))
    assert slow.cut == [] and "commit" in slow.done
    assert (await made.aget_state("t")).next == ("ends",)


async def test_an_edit(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P3, P7: an edit (`aupdate_state`) is stored."""
    made = graph(slow, environment, ends=ends)
    await made.ainvoke({}, "t")
    await slow.cancelled("commit", lambda: made.aupdate_state("t", {"log": ["edited"]}, as_node="ends"))
    assert slow.cut == [] and "commit" in slow.done
    assert (await made.aget_state("t")).values == {"log": ["ends", "edited"]}


async def test_releasing_the_thread(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P6, P7: a cancelled run releases its thread, however long that takes."""

    async def leaves(state: State) -> None:
        slow.scope.cancel()
        await anyio.sleep_forever()

    made = graph(slow, environment, leaves=leaves)
    await slow.cancelled("", lambda: made.ainvoke({}, "t"))
    assert slow.cut == [] and slow.done[-1] == "release"
    assert await graph(slow, environment, leaves=ends).ainvoke(None, "t") == {"log": ["ends"]}


async def test_a_lease(slow: CancellingSaver, environment: SeededEnvironment) -> None:
    """P6, P7: a run that is cancelled while it acquires its lease still learns the outcome and releases the lease."""
    made = graph(slow, environment, ends=ends)
    await slow.cancelled("acquire", lambda: made.ainvoke({}, "t"))
    assert "acquire" not in slow.cut  # on trio the read that follows may be cancelled
    assert slow.done == ["acquire", "release"]
    assert await made.ainvoke({}, "t") == {"log": ["ends"]}


@pytest.mark.parametrize("verb", ["edit", "resume", "prune"])
async def test_a_loop_with_a_saver_that_never_waits(verb: str) -> None:
    """P7: a loop of edits, resumes or upkeep yields to the other tasks, and a cancellation ends it."""
    saver = InMemorySaver()
    made = StateGraph(State).add_node("ends", ends).add_edge(START, "ends").compile(saver)
    await made.ainvoke({}, "t")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "edit": lambda: made.aupdate_state("t", {"log": ["edited"]}),
        "resume": lambda: made.ainvoke(None, "t"),
        "prune": lambda: saver.aprune("t", retention=Retention(keep=1)),
    }
    count = 0
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel, group.cancel_scope)
        while count < 10:
            count += 1
            await calls[verb]()
    assert count < 10


async def _cancel(scope: anyio.CancelScope) -> None:
    scope.cancel()


@pytest.mark.parametrize("exists", [False, True], ids=["a new thread", "a thread that exists"])
async def test_a_run_that_is_cancelled_before_it_begins(exists: bool) -> None:
    """P7: it stores nothing, also with a saver that never waits."""
    saver = InMemorySaver()
    graph = StateGraph(State).add_node("ends", ends).add_edge(START, "ends").compile(saver)
    if exists:
        await graph.ainvoke({"log": ["before"]}, "t")
    before = await saver.dump("t")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await graph.ainvoke({"log": ["given"]}, "t")
    assert scope.cancelled_caught and await saver.dump("t") == before
    assert all(header.owner is None for header in await saver.threads())
