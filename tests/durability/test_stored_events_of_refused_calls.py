"""Calls that are refused or fail before they begin, on threads with stored events."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError, UnstorableValueError
from checkpoint_savers.records import Commit, Lease
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.errors import InvalidInputError, InvalidResumeError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


async def ask(state: State) -> State:
    return {"log": [interrupt("go on?")]}


def asking(saver: InMemorySaver) -> Any:
    return StateGraph(State).add_node(ask).add_edge(START, "ask").compile(saver)


KEEP: Any = {"stream_mode": ["updates", "values"], "keep_events": True, "version": "v2"}


async def parts_of(stream: Any) -> list[Any]:
    return [part async for part in stream]


@pytest.mark.parametrize("given", [{"log": [object()]}, Command(update={"log": ["x"]})], ids=["unstorable", "update"])
async def test_a_refused_first_call_raises_its_own_error(given: Any) -> None:
    """P9, P11: with keep_events, a thread's first call that was refused raised an AssertionError instead of its own
    error."""
    expected = UnstorableValueError if isinstance(given, dict) else InvalidInputError
    with pytest.raises(expected):
        await parts_of(asking(InMemorySaver()).astream(given, "t", **KEEP))


@pytest.mark.parametrize(
    "given", [Command(resume={"0" * 32: "no such question"}), {"log": [object()]}], ids=["answer", "input"]
)
async def test_a_refused_call_does_not_change_the_previous_run(given: Any) -> None:
    """docs/streaming.md: "It has ended, or asks: you get what you missed, and nothing runs." A call that was refused
    before anything ran was stored as that run's failure: a reader that reconnected to the question got the other call's
    error."""
    graph = asking(InMemorySaver())
    seen = await parts_of(graph.astream({"log": []}, "t", **KEEP))
    with pytest.raises((InvalidResumeError, UnstorableValueError)):
        await parts_of(graph.astream(given, "t", **KEEP))
    back = graph.astream(None, "t", after=seen[0]["cursor"], stream_mode=["updates", "values"], version="v2")
    assert [part["data"] for part in await parts_of(back)] == [part["data"] for part in seen[1:]]
    assert back.status == "interrupted"
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["yes"]


async def test_reconnecting_to_an_interrupted_run_after_a_refused_call() -> None:
    """docs/streaming.md: "It was cut off ...: you get what was committed, then ... the run goes on." That failed after
    another caller had sent the thread an answer without a question."""
    stops = True

    async def work(state: State) -> State:
        if stops:
            await anyio.sleep_forever()
        return {"log": ["x"]}

    graph = StateGraph(State).add_node(work).add_edge(START, "work").compile(InMemorySaver())
    stream = graph.astream({"log": []}, "t", **KEEP)
    first = await anext(stream)
    await stream.aclose()
    stops = False
    with pytest.raises(InvalidResumeError):
        await parts_of(graph.astream(Command(resume={"0" * 32: "?"}), "t", **KEEP))
    back = await parts_of(graph.astream(None, "t", after=first["cursor"], stream_mode="values", version="v2"))
    assert back[-1]["data"] == {"log": ["x"]}


class Broken(InMemorySaver):
    """A saver that fails once it is armed."""

    fails = False

    async def commit(self, lease: Lease, commit: Commit) -> None:
        if self.fails:
            raise StorageError("down")
        await super().commit(lease, commit)


async def test_a_run_whose_question_could_not_be_stored_has_failed() -> None:
    """docs/streaming.md: `stream.status` says how the run has ended. It said "interrupted" where no question was stored
    that could be answered, and StorageError was raised."""
    saver = Broken()

    async def ask(state: State) -> State:
        saver.fails = True
        return {"log": [interrupt("go on?")]}

    graph = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(saver)
    stream = graph.astream({"log": []}, "t", **KEEP)
    with pytest.raises(StorageError):
        await parts_of(stream)
    assert stream.status == "failed"
