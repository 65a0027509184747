"""Records that are stored before dependent code starts, so that a crash does not undo them: a failure before its error
handler, a node's writes before its router, a checkpoint before those that are made on it."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, TypedDict, TypeVar

import anyio
import pytest

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError
from checkpoint_savers.records import CheckpointId, Commit, Lease
from pregel_async import END, START, NodeError, RetryPolicy, StateGraph, task
from pregel_async.errors import RecordedFailureError
from tests.durability.durable_environment import EXPIRY, Died
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class DyingSaver(Through):
    """A saver of a process that dies.

    Attributes:
        dead: if True, nothing is stored any more.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.dead = False

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.dead:
            raise Died(verb)
        return await call()


class Story:
    """A failing node, its error handler and a sibling, with the number of runs of each."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.kills: DyingSaver | None = None  # while the handler runs
        self.broken = False  # the sibling
        self.errors: list[Exception] = []
        self.handled = anyio.Event()

    async def node(self, state: State) -> State:
        self.ran["node"] += 1
        raise LookupError("nothing there")

    async def handler(self, state: State, error: NodeError) -> State:
        self.ran["handler"] += 1
        self.errors.append(error.error)
        if self.kills is not None:
            self.kills.dead = True
            raise Died("in the handler")
        return {"log": ["handled"]}

    async def sibling(self, state: State) -> State:
        self.ran["sibling"] += 1
        if self.broken:
            raise ConnectionError("later")
        return {"log": ["sibling"]}

    def builder(self) -> StateGraph[State]:
        made = StateGraph(State).add_node("node", self.node, error_handler=self.handler)
        return made.add_edge(START, "node")


async def test_a_crash_in_the_handler(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P5: a node's failure is stored before its handler starts: after a crash in the handler the handler runs again,
    and the node does not."""
    story = Story()
    story.kills = mortal = DyingSaver(saver)
    with pytest.raises(Died):
        await story.builder().compile(mortal, environment=environment).ainvoke({}, "t")
    environment.time += EXPIRY
    story.kills = None
    assert await story.builder().compile(saver, environment=environment).ainvoke(None, "t") == {"log": ["handled"]}
    assert story.ran == {"node": 1, "handler": 2}
    first, second = story.errors
    assert isinstance(first, LookupError) and isinstance(second, RecordedFailureError)
    assert str(second) == "LookupError: nothing there"


async def test_a_handler_that_has_its_result(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P5: a handler's update is the task's result: when a sibling has failed, a resume runs the sibling alone."""
    story = Story()
    story.broken = True
    graph = story.builder().add_node("sibling", story.sibling).add_edge(START, "sibling")
    compiled = graph.compile(saver, environment=environment, on_failure="finish")
    with pytest.raises(ConnectionError):
        await compiled.ainvoke({}, "t")
    story.broken = False
    assert await compiled.ainvoke(None, "t") == {"log": ["handled", "sibling"]}
    assert story.ran == {"node": 1, "handler": 1, "sibling": 2}


async def test_a_handled_failure_stays_in_history(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P3: a handled failure stays in the history of the superstep in which it was handled."""
    story = Story()
    graph = story.builder().compile(saver, environment=environment)
    await graph.ainvoke({}, "t")
    history = [snapshot async for snapshot in graph.aget_state_history("t")]
    failures = [each.error for snapshot in history for each in snapshot.tasks if each.error is not None]
    assert [(error.type, error.message) for error in failures] == [("LookupError", "nothing there")]


async def test_storage_errors_are_not_retried(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P4: when storage fails to record a called task, the run stops with that error, whatever the node's retry policy
    and handler."""
    ran: Counter[str] = Counter()

    class Down(Through):
        async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
            if verb == "record":
                raise StorageError("the disk is gone")
            return await call()

    @task
    async def work() -> int:
        ran["task"] += 1
        return 1

    async def node(state: State) -> None:
        ran["node"] += 1
        await work()

    async def handler(state: State) -> None:
        ran["handler"] += 1

    policy = RetryPolicy(initial_interval=0.0, jitter=False, retry_on=Exception)
    made = StateGraph(State).add_node("node", node, retry_policy=policy, error_handler=handler).add_edge(START, "node")
    with pytest.raises(StorageError, match="the disk is gone"):
        await made.compile(Down(saver), environment=environment).ainvoke({}, "t")
    assert ran == {"node": 1, "task": 1}


async def test_a_crash_in_a_router(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P3, P5: a node's writes are stored before its async router gets what it waits for, which may take long: after a
    crash in the router, the router runs again, and the node does not."""
    ran: Counter[str] = Counter()
    mortal = DyingSaver(saver)

    async def node(state: State) -> State:
        ran["node"] += 1
        return {"log": ["node"]}

    async def router(state: State) -> str:
        ran["router"] += 1
        await anyio.lowlevel.checkpoint()
        if ran["router"] == 1:
            mortal.dead = True
            raise Died("in the router")
        return "next"

    async def following(state: State) -> State:
        return {"log": ["next"]}

    made = StateGraph(State).add_node("node", node).add_node("next", following).add_edge(START, "node")
    made.add_conditional_edges("node", router)
    with pytest.raises(Died):
        await made.compile(mortal, environment=environment).ainvoke({}, "t")
    environment.time += EXPIRY
    assert await made.compile(saver, environment=environment).ainvoke(None, "t") == {"log": ["node", "next"]}
    assert ran == {"node": 1, "router": 2}


class CountingSaver(Through):
    """Counts the calls of a saver's methods."""

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.verbs: Counter[str] = Counter()

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self.verbs[verb] += 1
        return await call()


@pytest.mark.parametrize("waits", [False, True])
async def test_a_router_that_does_not_wait_is_part_of_its_nodes_transaction(
    waits: bool, saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P3: its node's writes have a transaction of their own only if the router waits for something."""

    async def node(state: State) -> State:
        return {"log": ["node"]}

    async def router(state: State) -> str:
        if waits:
            await anyio.lowlevel.checkpoint()
        return END if len(state["log"]) == 5 else "node"

    made = StateGraph(State).add_node("node", node).add_edge(START, "node").add_conditional_edges("node", router)
    counts = CountingSaver(saver)
    await made.compile(counts, environment=environment).ainvoke({}, "t")
    assert (counts.verbs["commit"], counts.verbs["record"]) == (6, 5 if waits else 0)


async def test_a_router_continues_when_its_nodes_writes_are_stored(
    saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P3: a router whose wait ends early waits for the transaction as well."""
    log: list[str] = []

    class SlowRecord(Through):
        async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
            if verb == "record":
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            result = await call()
            log.append(verb)
            return result

    async def node(state: State) -> State:
        return {"log": ["node"]}

    async def router(state: State) -> str:
        await anyio.lowlevel.checkpoint()
        log.append("router")
        return END

    made = StateGraph(State).add_node("node", node).add_edge(START, "node").add_conditional_edges("node", router)
    await made.compile(SlowRecord(saver), environment=environment).ainvoke({}, "t")
    assert log.index("record") < log.index("router")


async def test_a_router_that_is_cancelled_while_its_nodes_writes_are_stored(
    saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P7: the cancellation reaches the router's code once the transaction has ended, and the node does not run again."""
    ran: Counter[str] = Counter()
    scope = anyio.CancelScope()

    class CancelsOnRecord(Through):
        async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
            if verb == "record":
                scope.cancel()
            return await call()

    async def node(state: State) -> State:
        ran["node"] += 1
        return {"log": ["node"]}

    async def router(state: State) -> str:
        ran["router"] += 1
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            ran["cancelled"] += 1
            raise
        return END

    made = StateGraph(State).add_node("node", node).add_edge(START, "node").add_conditional_edges("node", router)
    with scope:
        await made.compile(CancelsOnRecord(saver), environment=environment).ainvoke({}, "t")
    assert scope.cancelled_caught
    assert await made.compile(saver, environment=environment).ainvoke(None, "t") == {"log": ["node"]}
    assert ran["node"] == 1 and ran["router"] - ran["cancelled"] == 1


class FailsToRecord(Through):
    """A saver that cannot store task records."""

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb == "record":
            raise StorageError("the disk is gone")
        return await call()


async def waits_in_a_task_group(ended: list[str]) -> None:
    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("child")

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            ended.append("continued")
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
        ended.append("router")


async def waits_for_a_child_that_never_ends(ended: list[str]) -> None:
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
    finally:
        ended.append("router")


async def handles_everything(ended: list[str]) -> None:
    with contextlib.suppress(BaseException):
        await anyio.sleep_forever()
    ended.append("router")


@pytest.mark.parametrize("body", [waits_in_a_task_group, waits_for_a_child_that_never_ends, handles_everything])
async def test_a_router_is_cancelled_if_its_nodes_writes_cannot_be_stored(
    body: Callable[[list[str]], Awaitable[None]], saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P4, P7: the router is cancelled even if its wait would never end; its task groups and `finally` blocks can wait,
    and the run raises the error of storage."""
    ended: list[str] = []

    async def node(state: State) -> State:
        return {"log": ["node"]}

    async def router(state: State) -> str:
        await body(ended)
        return END

    made = StateGraph(State).add_node("node", node).add_edge(START, "node").add_conditional_edges("node", router)
    with anyio.fail_after(30), pytest.raises(StorageError, match="the disk is gone"):
        await made.compile(FailsToRecord(saver), environment=environment).ainvoke({}, "t")
    assert ended == (["child", "router"] if body is waits_in_a_task_group else ["router"])


@pytest.mark.parametrize("calls", ["task", "task without await", "graph"])
async def test_a_nodes_writes_are_stored_before_what_its_router_calls(
    calls: str, saver: BaseCheckpointSaver, environment: SeededEnvironment
) -> None:
    """P3, P5: if the process dies after the first transaction of a router, the node does not run again. It might return
    other writes, and the calls that the router makes for these would differ from the recorded ones."""
    runs = itertools.count()

    class DiesAfterTwo(Through):
        """A saver of a process that dies after two transactions: the input's, and the first of the router."""

        transactions = 0

        async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
            if verb in ("commit", "record"):
                if self.transactions == 2:
                    raise Died(verb)
                self.transactions += 1
            return await call()

    @task
    async def classify(text: str) -> str:
        return END

    async def work(state: State) -> State:
        return {"log": ["inner"]}

    inner = StateGraph(State).add_node("work", work).add_edge(START, "work").compile()

    async def node(state: State) -> State:
        return {"log": [f"run {next(runs)}"]}

    async def router(state: State) -> str:
        if calls == "graph":
            await inner.ainvoke({"log": state["log"]})
        else:
            future = classify(state["log"][-1])
            if calls == "task":
                return await future
        return END

    made = StateGraph(State).add_node("node", node).add_edge(START, "node").add_conditional_edges("node", router)
    with pytest.raises(Died):
        await made.compile(DiesAfterTwo(saver), environment=environment).ainvoke({}, "t")
    environment.time += EXPIRY
    assert await made.compile(saver, environment=environment).ainvoke(None, "t") == {"log": ["run 0"]}


async def test_a_subgraph_of_a_fork(saver: BaseCheckpointSaver, environment: SeededEnvironment) -> None:
    """P2, P3: a subgraph's checkpoint is stored after the parent's checkpoint that it was made on, also if that is the
    first of a branch: a reader that finds one finds the other."""
    missing: list[tuple[str, str]] = []
    seen: Counter[str] = Counter()

    class Looking(Through):
        async def commit(self, lease: Lease, commit: Commit) -> None:
            for row in commit.rows:
                for ns, at in row.metadata["parents"].items():
                    seen[ns] += 1
                    if await self.inner.read(lease.thread_id, ns, CheckpointId(at)) is None:
                        missing.append((row.ns, at))
            await super().commit(lease, commit)

    async def node(state: State) -> State:
        return {"log": ["inside"]}

    inner = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(name="inner")
    made = StateGraph(State).add_node("first", node).add_node("inner", inner)
    graph = made.add_edge(START, "first").add_edge("first", "inner").compile(Looking(saver), environment=environment)
    await graph.ainvoke({}, "t")
    for snapshot in [each async for each in graph.aget_state_history("t")]:
        if snapshot.next:
            await graph.ainvoke(None, snapshot.config)
    assert seen[""] >= 6
    assert missing == []
