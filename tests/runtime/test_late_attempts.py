"""Attempts after their timeout, and attempts after a failure: no effect of a late attempt reaches the run or the next
attempt."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import (
    START,
    Budget,
    Command,
    RetryPolicy,
    Runtime,
    StateGraph,
    TimeoutPolicy,
    get_stream_writer,
    interrupt,
    spend,
    task,
)
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.errors import BudgetExceededError, NodeTimeoutError, OutsideRunError

pytestmark = pytest.mark.anyio

AT_ONCE = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=ValueError)


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Clock(SystemEnvironment):
    """A clock that advances only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0
        self._passes = anyio.Event()

    def monotonic(self) -> float:
        return self._time

    async def sleep(self, seconds: float) -> None:
        until = self._time + seconds
        while self._time < until:
            await self._passes.wait()

    def advance(self, seconds: float) -> None:
        self._time += seconds
        self._passes.set()
        self._passes = anyio.Event()


@task
async def called(number: int) -> int:
    return number + 1


LATE: dict[str, Callable[[], object]] = {
    "interrupt": lambda: interrupt("anybody?"),
    "writer": lambda: get_stream_writer()("too late"),
    "task": lambda: called(1),
    "spend": lambda: spend("tokens", 1),
}


@pytest.mark.parametrize("what", LATE)
async def test_calls_of_a_late_attempt(what: str) -> None:
    """A late attempt can publish nothing: after its timeout, while it cleans up, it cannot ask, write, call or
    spend."""
    clock = Clock()
    caught_errors: list[BaseException | None] = []

    async def slow(state: State) -> State:
        clock.advance(60)
        try:
            await anyio.sleep_forever()
        finally:
            try:
                LATE[what]()
            except BaseException as error:
                caught_errors.append(error)
            else:
                caught_errors.append(None)
        return {}

    made = StateGraph(State).add_node("slow", slow, timeout=TimeoutPolicy(run_timeout=5)).add_edge(START, "slow")
    graph = made.compile(InMemorySaver(), environment=clock, budgets={"tokens": Budget(run=100)})
    seen: list[Any] = []
    with anyio.fail_after(30) as deadline, pytest.raises(NodeTimeoutError):
        async for chunk in graph.astream({}, "t", stream_mode="custom"):
            seen.append(chunk)
    assert not deadline.cancel_called
    assert seen == []
    assert [type(error) for error in caught_errors] == [OutsideRunError]
    assert "has ended" in str(caught_errors[0])


async def test_the_result_of_a_late_attempt() -> None:
    """A late attempt can publish nothing: a result returned after its timeout, with the cancellation swallowed, does
    not count."""
    clock = Clock()

    async def slow(state: State) -> State:
        clock.advance(60)
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return {"log": ["late"]}  # bad practice, on purpose
        return {}

    made = StateGraph(State).add_node("slow", slow, timeout=TimeoutPolicy(run_timeout=5)).add_edge(START, "slow")
    graph = made.compile(InMemorySaver(), environment=clock)
    with anyio.fail_after(30) as deadline, pytest.raises(NodeTimeoutError):
        await graph.ainvoke({"log": ["given"]}, "t")
    assert not deadline.cancel_called
    snapshot = await graph.aget_state("t")
    assert snapshot.values == {"log": ["given"]}
    assert snapshot.next == ("slow",)


async def test_as_many_attempts_as_the_policy_says() -> None:
    """The first one counts: of three attempts the third is the last, and each knows which it is."""
    attempts: list[int] = []

    async def flaky(state: State, runtime: Runtime[Any]) -> None:
        attempts.append(runtime.execution_info.node_attempt)
        raise ValueError("again")

    graph = StateGraph(State).add_node("flaky", flaky, retry_policy=AT_ONCE).add_edge(START, "flaky").compile()
    with anyio.fail_after(30), pytest.raises(ValueError, match="again"):
        await graph.ainvoke({})
    assert attempts == [1, 2, 3]


async def test_an_attempt_counts_its_questions_anew() -> None:
    """P8: an attempt after a failure starts counting anew: its first question is the first, and is answered."""
    attempts: list[str] = []

    async def flaky(state: State) -> State:
        answer = interrupt("who?")
        attempts.append(answer)
        if len(attempts) < 3:
            raise ValueError("again")
        return {"log": [answer]}

    made = StateGraph(State).add_node("flaky", flaky, retry_policy=AT_ONCE).add_edge(START, "flaky")
    graph = made.compile(InMemorySaver())
    with anyio.fail_after(30):
        await graph.ainvoke({}, "t")
        assert await graph.ainvoke(Command(resume="me"), "t") == {"log": ["me"]}
    assert attempts == ["me"] * 3


async def test_an_attempt_has_its_answers_to_itself() -> None:
    """P1: a change in place of an answer does not reach the next attempt."""
    attempts: list[Any] = []

    async def flaky(state: State) -> State:
        answer = interrupt("who?")
        attempts.append(list(answer))
        answer.append("changed")
        if len(attempts) < 2:
            raise ValueError("again")
        return {}

    made = StateGraph(State).add_node("flaky", flaky, retry_policy=AT_ONCE).add_edge(START, "flaky")
    graph = made.compile(InMemorySaver())
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume=["me"]), "t")
    assert attempts == [["me"], ["me"]]


@pytest.mark.parametrize(("limit", "stops"), [(2, True), (3, False)])
async def test_a_budget_may_be_spent_to_its_end(limit: int, stops: bool) -> None:
    """A run continues when it has spent exactly its budget, and stops when it has spent more."""

    async def node(state: State) -> State:
        spend("tokens", 3)
        return {"log": ["spent"]}

    made = StateGraph(State).add_node("one", node).add_node("two", lambda state: {"log": ["two"]})
    graph = made.add_edge(START, "one").add_edge("one", "two").compile(budgets={"tokens": Budget(run=limit)})
    if stops:
        with pytest.raises(BudgetExceededError):
            await graph.ainvoke({})
    else:
        assert await graph.ainvoke({}) == {"log": ["spent", "two"]}
