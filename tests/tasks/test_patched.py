"""P2, P5: `patched()` lets a node's code change while threads have recorded its calls. The decision is recorded."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    END,
    START,
    Command,
    NodeError,
    RetryPolicy,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    patched,
    task,
)
from pregel_async.errors import CallsChangedError, OutsideRunError
from pregel_async.testing import Crash, FaultySaver
from pregel_async.types import Durability

pytestmark = pytest.mark.anyio

Body = Callable[[], Awaitable[object]]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Interruption(Exception):
    """Raised in place of anything that ends a run in the middle of a node."""


class Shop:
    """Tasks that note their calls, and the decisions that nodes got."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.decided: list[bool] = []

        @task
        async def charge(order: str) -> str:
            self.ran.append(f"charge {order}")
            return order

        @task
        async def audit(order: str) -> str:
            self.ran.append(f"audit {order}")
            return order

        @task
        def charge_in_thread(order: str) -> str:
            self.ran.append(f"charge {order}")
            return order

        self.charge, self.audit, self.charge_in_thread = charge, audit, charge_in_thread

    def ask(self, name: str = "audit-first") -> bool:
        self.decided.append(patched(name))
        return self.decided[-1]

    async def old(self, order: str = "1") -> None:
        await self.charge(order)

    async def new(self, order: str = "1") -> None:
        if self.ask():
            await self.audit(order)
        await self.charge(order)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def graph_of(saver: BaseCheckpointSaver | None, *bodies: Body, **options: Any) -> Any:
    """Return a graph of one node for each body, one superstep after the other."""
    builder = StateGraph(State)
    last = START
    for number, body in enumerate(bodies):

        async def node(state: State, body: Body = body) -> State:
            await body()
            return {"log": ["done"]}

        builder.add_node(f"node{number}", node, **options)
        builder.add_edge(last, f"node{number}")
        last = f"node{number}"
    builder.add_edge(last, END)
    return builder.compile(saver)


def dies(body: Body) -> Body:
    async def die() -> None:
        await body()
        raise Interruption

    return die


async def run(graph: Any, *, resumes: bool = False, thread: str = "t", **options: Any) -> Any:
    try:
        return await graph.ainvoke(None if resumes else {"log": []}, thread, **options)
    except Interruption:
        return "interrupted"


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_node_that_old_code_began(durability: Durability, saver: BaseCheckpointSaver, shop: Shop) -> None:
    """P5: the node of which a call is recorded repeats its calls in each attempt; the next node has the new code."""
    await run(graph_of(saver, dies(shop.old), shop.new), durability=durability)
    assert shop.ran == ["charge 1"]
    await run(graph_of(saver, dies(shop.new), shop.new), resumes=True, durability=durability)
    await run(graph_of(saver, shop.new, shop.new), resumes=True, durability=durability)
    assert shop.ran == ["charge 1", "audit 1", "charge 1"]
    assert shop.decided == [False, False, True]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_node_that_new_code_began(durability: Durability, saver: BaseCheckpointSaver, shop: Shop) -> None:
    """P5: the decision is stored with the first record that depends on it, and each later attempt gets it."""
    for _ in range(2):
        await run(graph_of(saver, dies(shop.new)), resumes=bool(shop.ran), durability=durability)
    await run(graph_of(saver, shop.new), resumes=True, durability=durability)
    assert shop.ran == ["audit 1", "charge 1"]
    assert shop.decided == [True, True, True]


async def test_the_decision_has_no_position(saver: BaseCheckpointSaver, shop: Shop) -> None:
    """The decision is found by its name, after other calls and before them, and in concurrent code of the node."""

    async def first() -> None:
        await shop.charge("1")
        shop.ask()
        await shop.charge("2")

    async def second() -> None:
        shop.ask("another")
        shop.ask()
        await shop.charge("1")
        async with anyio.create_task_group() as group:
            group.start_soon(asks)
            group.start_soon(asks)
        await shop.charge("2")
        shop.ask()

    async def asks() -> None:
        shop.ask()

    await run(graph_of(saver, dies(first)))
    await run(graph_of(saver, second), resumes=True)
    assert shop.decided == [True, False, True, True, True, True]  # False for the name that was not asked then
    assert shop.ran == ["charge 1", "charge 2"]


async def test_between_a_recorded_call_and_the_question(saver: BaseCheckpointSaver, shop: Shop) -> None:
    """A node that died after a recorded call, before it asked, counts as begun without the change: nothing shows that
    its code had it."""

    async def body() -> None:
        await shop.charge("1")
        if lives:
            shop.ask()

    lives = False
    await run(graph_of(saver, dies(body)))
    lives = True
    await run(graph_of(saver, dies(body)), resumes=True)
    await run(graph_of(saver, body), resumes=True)
    assert shop.decided == [False, False]


async def test_a_name_asked_for_the_first_time_in_a_later_attempt_of_a_run(shop: Shop) -> None:
    """Calls that the same run has recorded were made by the same code: a retry that asks first gets True."""

    async def body() -> None:
        await shop.charge("1")
        attempts.append(1)
        if len(attempts) < 2:
            raise ConnectionError
        shop.ask()

    for saver in (InMemorySaver(), None):
        attempts: list[int] = []
        policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=ConnectionError)
        await run(graph_of(saver, body, retry_policy=policy), thread="t")
    assert shop.decided == [True, True]


@pytest.mark.parametrize("how", ["failure", "question", "question in a task"])
async def test_what_counts_as_begun(how: str, saver: BaseCheckpointSaver, shop: Shop) -> None:
    """A recorded failure and a recorded question, of the node or of a task that it called, show that it had begun."""

    async def old() -> None:
        if how == "failure":
            raise Interruption
        if how == "question":
            interrupt("pay?")
        await task(asks)()

    async def asks() -> None:
        interrupt("pay?")

    async def new() -> None:
        shop.ask()
        if how != "failure":
            await old()

    await run(graph_of(saver, old))
    graph = graph_of(saver, new)
    await graph.ainvoke(None if how == "failure" else Command(resume="yes"), "t")
    assert shop.decided == [False]


@pytest.mark.parametrize("level", ["root", "subgraph"])
@pytest.mark.parametrize("how", ["node", "task", "kept"])
async def test_a_subgraph_shows_that_its_node_has_begun(how: str, level: str, shop: Shop) -> None:
    """P5: a process that dies in a subgraph leaves no record of the node that ran it. The node repeats its old calls:
    behind a new call, the subgraph would be another call's, and run again."""
    saver = FaultySaver(InMemorySaver())

    async def pay(state: State) -> State:
        await shop.charge("1")
        return {}

    async def crash(state: State) -> State:
        if not shop.decided:
            saver.crash()
        return {}

    inside = StateGraph(State).add_node(pay).add_node(crash).add_edge(START, "pay").add_edge("pay", "crash")
    graph = inside.compile(checkpointer=True if how == "kept" else None)

    async def runs() -> None:
        await graph.ainvoke({"log": []})

    body = task(runs) if how == "task" else runs

    async def new() -> None:
        if shop.ask():
            await shop.audit("1")
        await body()

    def around(body: Body, saver: Any) -> Any:
        made = graph_of(None if level == "subgraph" else saver, body, shop.new)
        return made if level == "root" else graph_of(saver, partial(made.ainvoke, {"log": []}))

    with pytest.raises(Crash):
        await around(body, saver).ainvoke({"log": []}, "t")
    await saver.restart()
    await around(new, saver).ainvoke(None, "t")
    assert shop.decided == [False, True]
    assert shop.ran == ["charge 1", "audit 1", "charge 1"]


async def test_each_task_of_a_fan_out_decides(saver: BaseCheckpointSaver, shop: Shop) -> None:
    """Of concurrent tasks, those of which something is recorded get False, and those that have not begun True."""

    def graph(work: Callable[[str], Awaitable[None]]) -> Any:
        async def node(order: str) -> State:
            await work(order)
            return {}

        builder = StateGraph(State).add_node("node", node)
        builder.add_conditional_edges(START, lambda state: [Send("node", order) for order in "012"], ["node"])
        return builder.compile(saver)

    async def old(order: str) -> None:
        if order == "0":
            await shop.charge(order)
            charged.set()
        elif order == "2":
            await charged.wait()
            raise Interruption  # the siblings are cancelled, which is not recorded
        await anyio.sleep_forever()

    async def new(order: str) -> None:
        decided[order] = patched("audit-first")

    charged = anyio.Event()
    decided: dict[str, bool] = {}
    await run(graph(old))
    await run(graph(new), resumes=True)
    assert decided == {"0": False, "1": True, "2": False}


@pytest.mark.parametrize("saver", ["memory"], indirect=True)
@pytest.mark.parametrize("where", ["thread", "task", "entrypoint", "subgraph", "router", "handler"])
async def test_where_code_may_ask(where: str, saver: BaseCheckpointSaver, shop: Shop) -> None:
    """Plain functions in worker threads, tasks, entrypoints, nodes of subgraphs, routers and error handlers may ask."""

    def graph(*, is_new: bool) -> Any:
        async def step() -> None:
            await (shop.new() if is_new else shop.old())
            if not is_new:
                raise Interruption

        def in_thread(state: State) -> State:
            if is_new and shop.ask():
                shop.audit("1").result()
            shop.charge_in_thread("1").result()
            if not is_new:
                raise Interruption
            return {}

        if where == "entrypoint":

            @entrypoint(saver)
            async def workflow(state: State) -> None:
                await step()

            return workflow
        if where == "subgraph":
            return graph_of(saver, partial(graph_of(None, step).ainvoke, {"log": []}))
        if where == "task":
            return graph_of(saver, task(step))
        if where == "thread":
            return StateGraph(State).add_node("pay", in_thread).add_edge(START, "pay").compile(saver)

        async def fails(state: State) -> State:
            raise ConnectionError

        async def handler(state: State, error: NodeError) -> State:
            await step()
            return {}

        async def route(state: State) -> str:
            await step()
            return END

        builder = StateGraph(State)
        if where == "handler":
            return builder.add_node("pay", fails, error_handler=handler).add_edge(START, "pay").compile(saver)
        builder.add_node("pay", lambda state: {"log": ["done"]}).add_edge(START, "pay")
        return builder.add_conditional_edges("pay", route).compile(saver)

    await run(graph(is_new=False))
    await run(graph(is_new=True), resumes=True)
    assert shop.decided == [False]
    await run(graph(is_new=True), thread="another")
    assert shop.decided == [False, True]
    assert shop.ran == ["charge 1", "audit 1", "charge 1"]


async def test_a_node_and_its_tasks_share_a_decision(saver: BaseCheckpointSaver, shop: Shop) -> None:
    """A task that a node calls gets the node's decision, also if the task itself has not begun."""

    async def both() -> None:
        shop.ask()
        await task(asks)()

    async def asks() -> None:
        shop.ask()

    await run(graph_of(saver, dies(shop.old)))
    graph = graph_of(saver, lambda: anyio_gather(shop.old, asks_alone, both))
    asks_alone = task(asks)
    await run(graph, resumes=True)
    assert shop.decided == [False, False, False]
    await run(graph, thread="another")
    assert shop.decided[3:] == [True, True, True]


async def anyio_gather(*bodies: Body) -> None:
    for body in bodies:
        await body()


async def test_without_a_saver(shop: Shop) -> None:
    """Nothing outlives the run, so that the running code has begun each node."""
    await run(graph_of(None, shop.new))
    assert shop.decided == [True]
    assert shop.ran == ["audit 1", "charge 1"]


async def test_the_question_is_taken_out_of_the_code(saver: BaseCheckpointSaver, shop: Shop) -> None:
    """Code without the question makes the new calls. Threads with True continue. Those with False are refused before
    anything is called, as after any change: the records are of the old calls."""

    async def final() -> None:
        await shop.audit("1")
        await shop.charge("1")

    await run(graph_of(saver, dies(shop.new)), thread="true")
    await run(graph_of(saver, dies(shop.old)), thread="false")
    await run(graph_of(saver, dies(shop.new)), thread="false", resumes=True)
    assert shop.decided == [True, False]
    ran = list(shop.ran)
    assert await run(graph_of(saver, final), thread="true", resumes=True) == {"log": ["done"]}
    with pytest.raises(CallsChangedError, match="recorded as a call of task 'charge'"):
        await run(graph_of(saver, final), thread="false", resumes=True)
    assert shop.ran == ran
    await run(graph_of(saver, shop.new), thread="false", resumes=True)
    assert shop.ran == ran


async def test_a_new_branch_decides_anew(saver: BaseCheckpointSaver, shop: Shop) -> None:
    """P5: an edit of the open superstep makes it run again, on another branch, with nothing recorded."""
    graph = graph_of(saver, dies(shop.old))
    await run(graph)
    forked = await graph.aupdate_state({"configurable": {"thread_id": "t"}}, {"log": ["edited"]})
    await graph_of(saver, shop.new).ainvoke(None, forked)
    assert shop.decided == [True]


@pytest.mark.one_loop
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_decision_needs_no_transaction(durability: Durability, shop: Shop) -> None:
    """A decision is stored by the transaction of the next call, or not at all if the superstep closes before."""

    async def asks() -> None:
        shop.ask()

    async def asks_and_charges() -> None:
        shop.ask()
        await shop.charge("1")

    operations: list[int] = []
    for body in (nothing, asks, shop.old, asks_and_charges):
        saver = FaultySaver(InMemorySaver())
        await run(graph_of(saver, body), durability=durability)
        operations.append(len(saver.operations))
    assert operations[0] == operations[1]
    assert operations[2] == operations[3]


async def nothing() -> None:
    """Make no call and ask nothing."""


async def test_misuse(shop: Shop) -> None:
    """A name is a string, and only the code of a run may ask."""
    with pytest.raises(OutsideRunError, match=r"patched\(\) was called outside of a run"):
        patched("audit-first")

    async def asks() -> None:
        patched(1)

    with pytest.raises(TypeError, match="the name of a change, not 1"):
        await run(graph_of(None, asks))
