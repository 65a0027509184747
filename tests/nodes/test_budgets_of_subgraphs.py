"""Spending is neither lost nor counted twice, in any arrangement of tasks, subgraphs and failures."""

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


def graph_of(**nodes: Node) -> StateGraph[State]:
    """Return a graph of concurrent nodes."""
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node).add_edge(START, name)
    return builder


async def spent(graph: Any) -> Any:
    return dict((await graph.aget_state("t")).spent).get("usd", 0)


async def test_spending_of_a_subgraph_belongs_to_the_result_of_its_node(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """A node has finished, and its sibling fails: a resume does not run the node again, and still counts its
    spending."""
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


async def test_a_subgraph_that_continues_in_a_second_attempt_is_not_counted_twice(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """Spending is counted once, in the thread's total and where a limit is checked."""
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
    """`compile(checkpointer=False)`: the spending belongs to the node that runs the subgraph."""
    inside = graph_of(five=five).compile(False)
    graph = StateGraph(State).add_node("inside", inside).add_edge(START, "inside").compile(saver, budgets=BUDGETS)
    await graph.ainvoke({}, "t")
    assert await spent(graph) == 5


async def test_a_kept_graph_that_two_tasks_run_in_turn_spends_twice(saver: BaseCheckpointSaver) -> None:
    """Each call is counted, though both write to one kept state."""
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


async def test_spending_of_a_called_task_that_fails(saver: BaseCheckpointSaver, durability: Durability) -> None:
    """The spending of a called task is stored with the failure of the node that called it."""

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


async def test_spending_of_a_cancelled_sibling(saver: BaseCheckpointSaver, durability: Durability) -> None:
    """A cancelled sibling's spending counts, though it has no record of its own: that of its own attempts, and of its
    subgraphs."""
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


async def test_spending_of_an_error_handler_that_fails(saver: BaseCheckpointSaver, durability: Durability) -> None:
    """The handler's spending counts in addition to its node's."""

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


async def test_spending_of_a_paused_subgraph_survives_a_new_input(
    saver: BaseCheckpointSaver, durability: Durability
) -> None:
    """A thread reports the spending while it waits for an answer, and after its question was discarded."""

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


async def test_spending_that_only_a_subgraph_has_recorded_counts_for_a_limit() -> None:
    """When only the subgraph's checkpoint has the spending, because the task that runs it has no record, the thread's
    limit still counts it."""

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
