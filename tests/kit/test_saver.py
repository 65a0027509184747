"""`FaultySaver`: storage that fails at chosen operations."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError, StorageFullError
from pregel_async import START, StateGraph
from pregel_async.testing import Crash, Fault, FaultySaver, PassingSaver, VirtualClock

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


RAN: list[str] = []


def graph_of(saver: Any, **options: Any) -> Any:
    RAN.clear()

    def node(name: str) -> Callable[[State], Awaitable[dict[str, list[str]]]]:
        async def run(state: State) -> dict[str, list[str]]:
            RAN.append(name)
            return {"log": [name]}

        return run

    graph = StateGraph(State).add_node("a", node("a")).add_node("b", node("b"))
    return graph.add_edge(START, "a").add_edge("a", "b").compile(saver, **options)


async def test_an_operation_fails_once_before_it_is_stored() -> None:
    """The run stops with the injected error; a second call continues from the stored state."""
    saver = FaultySaver(InMemorySaver(), Fault(how="fail", on="commit", at=2))
    graph = graph_of(saver)
    with pytest.raises(StorageError, match="refuses"):
        await graph.ainvoke({"log": []}, "t")
    assert RAN == ["a"]
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"]}
    assert RAN == ["a", "a", "b"] and saver.happened == [Fault(how="fail", on="commit", at=2)]


async def test_an_operation_fails_after_it_was_stored() -> None:
    """After a failure behind the commit, the stored work does not run again."""
    graph = graph_of(FaultySaver(InMemorySaver(), Fault(how="fail", on="commit", at=2, when="after")))
    with pytest.raises(StorageError):
        await graph.ainvoke({"log": []}, "t")
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"]}
    assert RAN == ["a", "b"]


async def test_a_connection_that_is_lost_for_a_while() -> None:
    """The given number of counted operations fails, and then the storage works again."""
    memory = InMemorySaver()
    await graph_of(memory).ainvoke({"log": []}, "t")
    saver = FaultySaver(memory, Fault(how="lose", on="read", at=1, operations=2))
    graph = graph_of(saver)
    for _ in range(2):
        with pytest.raises(StorageError, match="gone"):
            await graph.ainvoke({"log": []}, "t")
    assert await graph.ainvoke({"log": []}, "t") == {"log": ["a", "b", "a", "b"]}
    assert saver.operations.count("commit") == 3


async def test_a_custom_error() -> None:
    """Any exception can be injected instead."""
    graph = graph_of(FaultySaver(InMemorySaver(), Fault(how="fail", on="any", at=1, error=StorageFullError("full"))))
    with pytest.raises(StorageFullError):
        await graph.ainvoke({"log": []}, "t")
    graph = graph_of(FaultySaver(InMemorySaver(), Fault(how="fail", on="any", at=1, error=StorageFullError)))
    with pytest.raises(StorageFullError):
        await graph.ainvoke({"log": []}, "t")


async def test_a_slow_operation_takes_its_time_by_the_clock() -> None:
    """A slow operation takes virtual time, not real time."""
    clock = VirtualClock()
    saver = FaultySaver(InMemorySaver(), Fault(how="slow", on="commit", at=1, seconds=12.0), clock=clock)
    await graph_of(saver, environment=clock).ainvoke({"log": []}, "t")
    assert clock.monotonic() == pytest.approx(12.0)
    with pytest.raises(ValueError, match="clock"):
        FaultySaver(InMemorySaver(), Fault(how="slow", seconds=1.0))
    with pytest.raises(ValueError, match="clock"):
        FaultySaver(InMemorySaver()).add(Fault(how="slow", seconds=1.0))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_and_the_next_process(when: Any) -> None:
    """After a crash a process stores nothing more, not even the release of its lease; the next process finds the stored
    state, and the thread free."""
    saver = FaultySaver(InMemorySaver(), Fault(how="crash", on="commit", at=2, when=when))
    with pytest.raises(Crash):
        await graph_of(saver).ainvoke({"log": []}, "t")
    before = list(RAN)
    with pytest.raises(Crash):
        await saver.read("t")
    await saver.restart()
    assert await graph_of(saver).ainvoke(None, "t") == {"log": ["a", "b"]}
    assert (before, RAN) == (["a"], ["b"] if when == "after" else ["a", "b"])


async def test_a_crash_at_will() -> None:
    """`crash` kills the process between two operations, or during a slow one."""
    clock = VirtualClock()
    saver = FaultySaver(InMemorySaver(), Fault(how="slow", on="commit", at=1, seconds=5.0), clock=clock)
    failed: list[BaseException] = []

    async def run() -> None:
        try:
            await graph_of(saver, environment=clock).ainvoke({"log": []}, "t")
        except BaseException as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await clock.sleep(1.0)
        saver.crash()
    assert isinstance(failed[0], Crash)
    await saver.restart()
    assert await saver.inner.read("t") is None


async def test_faults_out_of_range() -> None:
    """Bad input: operations are counted from 1, and time does not go back."""
    for wrong in ({"at": 0}, {"operations": 0}, {"seconds": -1.0}):
        with pytest.raises(ValueError):
            Fault(how="fail", **wrong)
    assert str(Fault(how="crash", on="commit", at=3, when="after")) == "commit 3 kills the process after it is stored"
    assert str(Fault(how="slow", seconds=2.5)) == "write 1 takes 2.5 s"


async def test_all_verbs_pass() -> None:
    """A wrapper sees each operation by its name, and changes nothing by observing."""
    seen: list[str] = []

    class Looking(PassingSaver):
        async def around(self, verb: Any, call: Any) -> Any:
            seen.append(verb)
            return await super().around(verb, call)

    inner = InMemorySaver()
    graph = graph_of(Looking(inner))
    for _ in range(2):  # a fresh thread is not read
        await graph.ainvoke({"log": []}, "t")
    assert [state.next async for state in graph.aget_state_history("t")][0] == ()
    assert await Looking(inner).events("t") == ()
    await Looking(inner).adelete_thread("t")
    assert await inner.read("t") is None
    assert {"acquire", "read", "commit", "scan", "segment", "events", "delete"} <= set(seen)
