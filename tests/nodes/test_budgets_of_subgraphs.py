"""What is spent is neither lost nor counted twice, in whatever arrangement of tasks, graphs inside and failures."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import START, Budget, Command, RetryPolicy, StateGraph, interrupt, spend, task
from pregel_async.errors import BudgetExceededError
from pregel_async.types import Durability
from tests.helpers.passing_saver import WRITES, Through

pytestmark = pytest.mark.anyio

Node = Callable[[Any], Awaitable[Any]]

BUDGETS = {"usd": Budget()}
AGAIN = RetryPolicy(initial_interval=0, jitter=False, retry_on=ConnectionError)


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


@pytest.fixture(params=["sync", "async", "exit"])
def durability(request: pytest.FixtureRequest) -> Durability:
    chosen: Durability = request.param
    return chosen


async def five(state: State) -> State:
    spend("usd", 5)
    return {}


def graph_of(**nodes: Node) -> StateGraph[State, State, State]:
    """These nodes, side by side."""
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node).add_edge(START, name)
    return builder


async def spent(graph: Any) -> Any:
    return dict((await graph.aget_state("t")).spent).get("usd", 0)


async def test_what_a_graph_inside_has_spent_belongs_to_the_result_of_its_node(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """A node has finished, and its sibling fails: a resume does not run the node again, and still counts what it ran."""
    inside = graph_of(five=five).compile()
    done, tries = anyio.Event(), 0

    async def runs(state: State) -> State:
        await inside.ainvoke({})
        done.set()
        return {}

    async def fails(state: State) -> State:
        nonlocal tries
        tries += 1
        await done.wait()
        if tries == 1:
            raise ValueError("once")
        return {}

    graph = graph_of(runs=runs, fails=fails).compile(saver, budgets=BUDGETS, on_failure="finish")
    with pytest.raises(ValueError, match="once"):
        await graph.ainvoke({}, "t", durability=durability)
    assert await spent(graph) == 5
    await graph.ainvoke(None, "t", durability=durability)
    assert await spent(graph) == 5


async def test_a_graph_that_goes_on_in_a_second_attempt_is_not_counted_twice(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """Neither in the thread's total, nor where a limit is checked."""
    inside = graph_of(five=five).compile()
    attempts = 0

    async def runs(state: State) -> State:
        nonlocal attempts
        attempts += 1
        await inside.ainvoke({})
        if attempts == 1:
            raise ConnectionError("once")
        return {}

    builder = StateGraph(State).add_node("runs", runs, retry_policy=AGAIN).add_node("last", five)
    builder.add_edge(START, "runs").add_edge("runs", "last")
    graph = builder.compile(saver, budgets={"usd": Budget(thread=9)})
    await graph.ainvoke({}, "t", durability=durability)
    assert await spent(graph) == 10


async def test_a_graph_of_which_nothing_is_stored_spends_for_the_node_that_runs_it(saver: BaseCheckpointSaver) -> None:
    """`compile(checkpointer=False)`."""
    inside = graph_of(five=five).compile(False)
    graph = StateGraph(State).add_node("inside", inside).add_edge(START, "inside").compile(saver, budgets=BUDGETS)
    await graph.ainvoke({}, "t")
    assert await spent(graph) == 5


async def test_a_kept_graph_that_two_tasks_run_in_turn_spends_twice(saver: BaseCheckpointSaver) -> None:
    """Each call is counted, though they write to one state."""
    inside = graph_of(five=five).compile(True)

    @task
    async def run() -> None:
        await inside.ainvoke({})

    async def node(state: State) -> State:
        await run()
        await run()
        return {}

    graph = graph_of(node=node).compile(saver, budgets=BUDGETS)
    await graph.ainvoke({}, "t")
    assert await spent(graph) == 10


async def test_what_a_called_task_has_spent_is_spent_when_it_fails(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """It is stored with the failure of the node that called it."""

    @task
    async def call() -> None:
        spend("usd", 5)
        raise ValueError("failed")

    async def node(state: State) -> State:
        await call()
        return {}

    graph = graph_of(node=node).compile(saver, budgets=BUDGETS)
    with pytest.raises(ValueError, match="failed"):
        await graph.ainvoke({}, "t", durability=durability)
    assert await spent(graph) == 5


async def test_what_a_sibling_has_spent_is_spent_when_it_is_cancelled(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """Its money is gone, though it has no record of its own: its own attempts', and those of graphs inside."""
    spending = anyio.Event()

    async def hangs(state: State) -> State:
        spend("usd", 5)
        spending.set()
        await anyio.sleep_forever()
        return {}

    inside = graph_of(hangs=hangs).compile()

    async def slow(state: State) -> State:
        await inside.ainvoke({})
        return {}

    async def fails(state: State) -> State:
        await spending.wait()
        raise ValueError("failed")

    graph = graph_of(fails=fails, slow=slow).compile(saver, budgets=BUDGETS)
    with pytest.raises(ValueError, match="failed"):
        await graph.ainvoke({}, "t", durability=durability)
    assert await spent(graph) == 5


async def test_what_an_error_handler_has_spent_is_spent_when_it_fails(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """Beside what its node has."""

    async def node(state: State) -> State:
        spend("usd", 1)
        raise ValueError("the node")

    async def handler(state: State) -> State:
        spend("usd", 10)
        raise RuntimeError("the handler")

    builder = StateGraph(State).add_node("node", node, error_handler=handler).add_edge(START, "node")
    graph = builder.compile(saver, budgets=BUDGETS)
    for times in (1, 2):
        with pytest.raises(RuntimeError, match="the handler"):
            await graph.ainvoke({} if times == 1 else None, "t", durability=durability)
        assert await spent(graph) == 1 + 10 * times  # the node has run once


async def test_what_a_graph_has_spent_that_has_paused_is_told_and_survives_a_new_input(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """A thread says what was spent while it waits for an answer, and after its question was discarded."""

    async def asks(state: State) -> State:
        spend("usd", 5)
        interrupt("?")
        return {}

    inside = graph_of(asks=asks).compile()
    graph = StateGraph(State).add_node("inside", inside).add_edge(START, "inside").compile(saver, budgets=BUDGETS)
    await graph.ainvoke({}, "t", durability=durability)
    assert await spent(graph) == 5
    await graph.ainvoke({}, "t", durability=durability)
    assert await spent(graph) == 10
    await graph.ainvoke(Command(resume="!"), "t", durability=durability)
    assert await spent(graph) == 15


async def test_what_only_a_graph_inside_has_recorded_counts_for_a_limit() -> None:
    """Only that graph's own checkpoint says so: the task that runs it has no record. The limit of the thread holds."""

    class Failing(Through):
        fails = False

        async def around(self, verb: str, call: Any) -> Any:
            if self.fails and verb in WRITES:
                self.fails = False
                raise StorageError("no disk")
            return await call()

    tries = 0

    async def dies(state: State) -> State:
        nonlocal tries
        tries += 1
        saver.fails = tries == 1
        return {}

    saver = Failing(InMemorySaver())
    builder = StateGraph(State).add_node("five", five).add_node("dies", dies).add_node("last", five)
    inside = builder.add_edge(START, "five").add_edge("five", "dies").add_edge("dies", "last").compile()
    outer = StateGraph(State).add_node("inside", inside).add_edge(START, "inside")
    graph = outer.compile(saver, budgets={"usd": Budget(thread=4)})
    with pytest.raises(StorageError, match="no disk"):
        await graph.ainvoke({}, "t", budgets={"usd": Budget(thread=100)})
    with pytest.raises(BudgetExceededError) as raised:
        await graph.ainvoke(None, "t")
    assert (raised.value.spent, raised.value.limit, raised.value.per) == (5, 4, "thread")
