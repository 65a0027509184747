"""Spending of nodes and its limits: `spend`, `Budget`, `time_limit`, `BudgetExceededError`."""

from __future__ import annotations

import contextvars
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    END,
    START,
    Budget,
    Command,
    RetryPolicy,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    spend,
    task,
)
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.errors import (
    BudgetExceededError,
    ConfigError,
    GraphValidationError,
    OutsideRunError,
    UnknownBudgetError,
)

pytestmark = pytest.mark.anyio

TOKENS = {"tokens": Budget()}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def ten(state: State) -> State:
    spend("tokens", 10)
    return {"log": ["ten"]}


def loop_of(supersteps: int, node: Any = ten) -> StateGraph[State]:
    """Return a node that runs the given number of times."""

    def again(state: State) -> str:
        return "node" if len(state["log"]) < supersteps else END

    return StateGraph(State).add_node("node", node).add_edge(START, "node").add_conditional_edges("node", again)


async def spent_by(graph: Any, thread: str) -> dict[str, int | Decimal]:
    return dict((await graph.aget_state(thread)).spent)


async def test_a_run_over_its_budget_stops_at_the_barrier(saver: BaseCheckpointSaver) -> None:
    """A run over its budget stops with work left, and everything stored; it can be resumed when the budget is
    raised."""
    graph = loop_of(5).compile(saver, budgets={"tokens": Budget(run=25)})
    with pytest.raises(BudgetExceededError) as stopped:
        await graph.ainvoke({}, "t")
    error = stopped.value
    assert (error.name, error.spent, error.limit, error.per, error.step) == ("tokens", 30, 25, "run", 3)
    assert error.pending == ("node",)
    state = await graph.aget_state("t")
    assert (state.values["log"], state.next, state.tasks[0].error) == (["ten"] * 3, ("node",), None)
    result = await graph.ainvoke(None, "t", budgets={"tokens": Budget(run=100)})
    assert result["log"] == ["ten"] * 5
    assert await spent_by(graph, "t") == {"tokens": 50}


async def test_spending_exactly_the_budget_is_allowed() -> None:
    """Spending exactly the budget is allowed."""
    graph = loop_of(3).compile(budgets={"tokens": Budget(run=30)})
    assert (await graph.ainvoke({}))["log"] == ["ten"] * 3


async def test_the_last_superstep_may_spend_more() -> None:
    """A run with no work left does not stop: its work is done."""
    graph = loop_of(3).compile(budgets={"tokens": Budget(run=25)})
    assert (await graph.ainvoke({}))["log"] == ["ten"] * 3


async def test_a_thread_has_a_budget_over_all_its_runs(saver: BaseCheckpointSaver) -> None:
    """Spending of earlier calls counts."""
    graph = loop_of(100).compile(saver, budgets={"tokens": Budget(run=20, thread=45)})
    seen: list[tuple[str, Any, int]] = []
    for _ in range(4):
        with pytest.raises(BudgetExceededError) as stopped:
            await graph.ainvoke({}, "t")
        seen.append((stopped.value.per, stopped.value.spent, stopped.value.step))
    assert [each[:2] for each in seen] == [("run", 30), ("thread", 50), ("thread", 50), ("thread", 50)]
    assert await spent_by(graph, "t") == {"tokens": 50}
    assert await spent_by(graph, "another") == {}


async def test_decimals_add_up_exactly(saver: BaseCheckpointSaver) -> None:
    """A thousand tenths are a hundred, also after the thread was read back."""

    async def cents(state: State) -> State:
        for _ in range(100):
            spend("usd", Decimal("0.1"))
        spend("usd", 1)
        spend("big", 10**30)
        return {"log": ["x"]}

    graph = loop_of(10, cents).compile(saver, budgets={"usd": Budget(), "big": Budget()})
    await graph.ainvoke({}, "t")
    assert await spent_by(graph, "t") == {"usd": Decimal("110.0"), "big": 10**31}


async def test_a_recorded_task_is_counted_once(saver: BaseCheckpointSaver) -> None:
    """A recorded task is counted once, however often the thread is resumed; the spending of a failed attempt counts
    too."""
    fails = [True, True]

    async def flaky(state: State) -> State:
        spend("tokens", 1)
        if fails:
            fails.pop()
            raise ConnectionError("not yet")
        return {"log": ["flaky"]}

    builder = StateGraph(State).add_node(ten).add_node(flaky).add_edge(START, "ten").add_edge(START, "flaky")
    graph = builder.compile(saver, budgets=TOKENS, on_failure="finish")
    for spent in (11, 12):
        with pytest.raises(ConnectionError):
            await graph.ainvoke({} if spent == 11 else None, "t")
        assert await spent_by(graph, "t") == {"tokens": spent}
    await graph.ainvoke(None, "t")
    assert await spent_by(graph, "t") == {"tokens": 13}


async def test_retries_spend(saver: BaseCheckpointSaver) -> None:
    """All attempts of a task count."""
    tries: list[int] = []

    async def flaky(state: State) -> State:
        tries.append(1)
        spend("tokens", 5)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return {"log": ["flaky"]}

    builder = StateGraph(State).add_node("node", flaky, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    graph = builder.add_edge(START, "node").compile(saver, budgets=TOKENS)
    await graph.ainvoke({}, "t")
    assert await spent_by(graph, "t") == {"tokens": 15}


async def test_handlers_and_the_failures_that_they_handle_spend(saver: BaseCheckpointSaver) -> None:
    """Spending of both the handler and the failed node counts, once each."""

    async def fails(state: State) -> None:
        spend("tokens", 3)
        raise LookupError("no")

    async def handles(state: State) -> State:
        spend("tokens", 4)
        return {"log": ["handled"]}

    builder = StateGraph(State).add_node("node", fails, error_handler=handles).add_edge(START, "node")
    graph = builder.compile(saver, budgets=TOKENS)
    await graph.ainvoke({}, "t")
    assert await spent_by(graph, "t") == {"tokens": 7}


async def test_a_node_that_asks_spends_each_time_it_runs(saver: BaseCheckpointSaver) -> None:
    """A node's code runs again after the answer, and spends again; tasks that it called do not."""

    @task
    async def look(x: int) -> int:
        spend("tokens", 100)
        return x

    async def asks(state: State) -> State:
        spend("tokens", 1)
        await look(3)
        return {"log": [interrupt("go on?")]}

    builder = StateGraph(State).add_node("node", asks).add_edge(START, "node")
    graph = builder.compile(saver, budgets=TOKENS)
    await graph.ainvoke({}, "t")
    assert await spent_by(graph, "t") == {"tokens": 101}
    await graph.ainvoke(Command(resume="yes"), "t")
    assert await spent_by(graph, "t") == {"tokens": 102}


async def test_subgraphs_count_towards_the_budgets_of_the_call(saver: BaseCheckpointSaver) -> None:
    """The run stops as a whole: the thread stands at the subgraph's barrier."""
    inner = loop_of(5).compile(budgets={"tokens": Budget(run=1)})  # used when it is called by itself
    builder = StateGraph(State).add_node("sub", inner).add_node("after", ten)
    graph = builder.add_edge(START, "sub").add_edge("sub", "after").compile(saver, budgets={"tokens": Budget(run=25)})
    with pytest.raises(BudgetExceededError) as stopped:
        await graph.ainvoke({}, "t")
    assert (stopped.value.spent, stopped.value.pending) == (30, ("node",))
    assert (await graph.aget_state("t")).next == ("sub",)
    result = await graph.ainvoke(None, "t", budgets={"tokens": Budget(run=30)})
    assert len(result["log"]) == 6
    assert await spent_by(graph, "t") == {"tokens": 60}


async def test_a_subgraph_is_counted_when_its_thread_is_resumed(saver: BaseCheckpointSaver) -> None:
    """A subgraph's spending before a failure is neither lost nor counted twice."""
    fails = [True]

    async def flaky(state: State) -> State:
        spend("tokens", 10)
        if len(state["log"]) == 2 and fails:
            fails.pop()
            raise ConnectionError("not yet")
        return {"log": ["x"]}

    inner = loop_of(4, flaky).compile()
    graph = StateGraph(State).add_node("sub", inner).add_edge(START, "sub").compile(saver, budgets=TOKENS)
    with pytest.raises(ConnectionError):
        await graph.ainvoke({}, "t")
    await graph.ainvoke(None, "t")
    assert await spent_by(graph, "t") == {"tokens": 50}


async def test_a_subgraph_that_keeps_its_state_counts_each_call_once(saver: BaseCheckpointSaver) -> None:
    """A subgraph's own counters start at zero with each call."""
    inner = StateGraph(State).add_node(ten).add_edge(START, "ten").compile(True)
    graph = loop_of(3, inner).compile(saver, budgets=TOKENS)
    await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    runs = len(state.values["log"])
    assert await spent_by(graph, "t") == {"tokens": 10 * (2 if runs > 3 else 3)}


async def test_a_branch_inherits_its_ancestors_spending() -> None:
    """Counters belong to a checkpoint."""
    graph = loop_of(4).compile(InMemorySaver(), budgets=TOKENS)
    await graph.ainvoke({}, "t")
    states = [state async for state in graph.aget_state_history("t")]
    second = next(state for state in states if len(state.values["log"]) == 2)
    assert dict(second.spent) == {"tokens": 20}
    await graph.ainvoke(None, second.config)
    assert await spent_by(graph, "t") == {"tokens": 40}


async def test_fan_out_in_threads_loses_no_amount() -> None:
    """Plain functions spend concurrently in their worker threads."""

    def many(given: int) -> State:
        for _ in range(200):
            spend("tokens", 1)
        return {"log": [str(given)]}

    builder = StateGraph(State).add_node("node", many).add_edge("node", "after").add_node("after", lambda state: None)
    builder.add_conditional_edges(START, lambda state: [Send("node", each) for each in range(20)])
    graph = builder.compile(InMemorySaver(), budgets={"tokens": Budget(run=3999)})
    with pytest.raises(BudgetExceededError) as stopped:
        await graph.ainvoke({}, "t")
    assert stopped.value.spent == 4000
    assert await spent_by(graph, "t") == {"tokens": 4000}


async def test_an_entrypoint_and_its_tasks_spend(saver: BaseCheckpointSaver) -> None:
    """`@entrypoint(budgets=)` limits an entrypoint and its tasks."""

    @task
    async def one(x: int) -> int:
        spend("tokens", x)
        return x

    @entrypoint(saver, budgets=TOKENS)
    async def work(x: int) -> int:
        return await one(x) + await one(x)

    await work.ainvoke(4, "t")
    assert await spent_by(work, "t") == {"tokens": 8}


async def test_an_unknown_budget_is_an_error_of_the_node() -> None:
    """A misspelled budget fails the run and counts nothing."""
    graph = loop_of(1).compile(budgets={"usd": Budget()})
    with pytest.raises(UnknownBudgetError, match="there are 'usd'"):
        await graph.ainvoke({})
    with pytest.raises(UnknownBudgetError, match="; the graph has none at all: compile"):
        await loop_of(1).compile().ainvoke({})


@pytest.mark.parametrize("amount", [-1, Decimal("-0.1"), 0.5, "1", True, Decimal("nan"), Decimal("inf")])
async def test_bad_amounts_are_refused(amount: Any) -> None:
    """An invalid amount is refused and not counted."""

    async def spends(state: State) -> State:
        with pytest.raises((TypeError, ValueError)):
            spend("tokens", amount)
        return {"log": ["x"]}

    graph = loop_of(1, spends).compile(InMemorySaver(), budgets=TOKENS)
    await graph.ainvoke({}, "t")
    assert await spent_by(graph, "t") == {}


def test_spending_needs_a_run() -> None:
    """`spend` outside a run is an error, like `interrupt`."""
    with pytest.raises(OutsideRunError):
        spend("tokens", 1)


@pytest.mark.parametrize(
    ("budgets", "what"),
    [
        ({"tokens": 5}, "a Budget"),
        ({"": Budget()}, "name"),
        ("tokens", "mapping"),
    ],
)
def test_bad_budgets_are_refused_by_compile(budgets: Any, what: str) -> None:
    """Bad budgets are refused before anything runs."""
    with pytest.raises(GraphValidationError, match=what):
        loop_of(1).compile(budgets=budgets)


@pytest.mark.parametrize("bad", [{"run": -1}, {"run": 1.5}, {"thread": "1"}, {"thread": Decimal("-1")}, {"run": True}])
def test_bad_limits_are_refused_where_they_are_made(bad: Any) -> None:
    """Limits out of range or of the wrong type are refused."""
    with pytest.raises((TypeError, ValueError), match="budget's limit"):
        Budget(**bad)


async def test_a_call_changes_the_limits_that_it_names() -> None:
    """Other limits stay as they were compiled."""
    graph = loop_of(9).compile(InMemorySaver(), budgets={"tokens": Budget(run=15, thread=45)})
    with pytest.raises(BudgetExceededError) as stopped:
        await graph.ainvoke({}, "t", budgets={"tokens": Budget(run=1000)})
    assert (stopped.value.per, stopped.value.limit, stopped.value.spent) == ("thread", 45, 50)


async def test_a_call_changes_known_budgets_only() -> None:
    """An unknown budget in a call is an error."""
    graph = loop_of(1).compile(budgets=TOKENS)
    with pytest.raises(ConfigError, match="no budget 'token'"):
        await graph.ainvoke({}, budgets={"token": Budget()})


class Clock(SystemEnvironment):
    """A clock that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time


@pytest.mark.parametrize("given", ["compile", "call"])
async def test_a_run_stops_when_its_time_is_over(given: str, saver: BaseCheckpointSaver) -> None:
    """The run stops at a barrier, with everything stored."""
    clock = Clock()

    async def takes(state: State) -> State:
        clock.time += 4
        return {"log": ["x"]}

    limit = {"time_limit": 10}
    graph = loop_of(5, takes).compile(saver, environment=clock, **(limit if given == "compile" else {}))
    with pytest.raises(BudgetExceededError) as stopped:
        await graph.ainvoke({}, "t", **(limit if given == "call" else {}))
    assert (stopped.value.name, stopped.value.spent, stopped.value.limit) == ("seconds", 12, 10)
    assert str(stopped.value).startswith(
        "the run has taken 12 s, and its time_limit is 10 s: it stopped after superstep 3"
    )
    assert "Raise the time_limit and call again" in str(stopped.value)
    assert (await graph.aget_state("t")).values["log"] == ["x"] * 3
    assert (await graph.ainvoke(None, "t"))["log"] == ["x"] * 5


@pytest.mark.parametrize("bad", [0, -1, float("nan"), "soon"])
async def test_bad_time_limits_are_refused(bad: Any) -> None:
    """Bad time limits are refused by compile, and by a call before anything runs."""
    with pytest.raises(GraphValidationError, match="time_limit"):
        loop_of(1).compile(time_limit=bad)
    with pytest.raises(ConfigError, match="time_limit"):
        await loop_of(1).compile().ainvoke({}, time_limit=bad)


async def test_a_stream_reports_why_it_has_stopped() -> None:
    """A stream reports the reason of the stop, in v2 as a part, and as the exception."""
    graph = loop_of(5).compile(budgets={"tokens": Budget(run=5)})
    seen: list[Any] = []
    with pytest.raises(BudgetExceededError):
        async with graph.astream({}, stream_mode="updates", version="v2") as parts:
            async for part in parts:
                seen.append(part["type"])
    assert seen == ["updates", "error"]


async def test_spending_after_the_node_has_ended_is_an_error() -> None:
    """Spending after the node has ended is an error, and is not counted."""
    kept: list[Callable[[], None]] = []

    async def node(state: State) -> State:
        async def late() -> None:
            spend("tokens", 1)

        async with anyio.create_task_group() as group:
            group.start_soon(late)
        context = contextvars.copy_context()
        kept.append(lambda: context.run(spend, "tokens", 1))
        return {"log": ["x"]}

    graph = loop_of(1, node).compile(InMemorySaver(), budgets=TOKENS)
    await graph.ainvoke({}, "t")
    with pytest.raises(OutsideRunError, match="has ended"):
        kept[0]()
    assert await spent_by(graph, "t") == {"tokens": 1}
