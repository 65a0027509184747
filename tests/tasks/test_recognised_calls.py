"""P2, P5: the questions and calls of a node that runs again are recognised, in another process and in another order
too."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import msgspec
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, RemainingSteps, RetryPolicy, StateGraph, task
from pregel_async.channels import UntrackedValue
from pregel_async.errors import CallsChangedError
from pregel_async.runtime import ExecutionInfo, Runtime

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Interruption(Exception):
    """Raised in place of anything that ends a run in the middle of a node."""


class Client:
    """A type that cannot be stored."""


class Invoice(msgspec.Struct):
    name: str


def graph_of(node: Any, saver: BaseCheckpointSaver | None, schema: Any = State, **options: Any) -> Any:
    builder = StateGraph(schema).add_node("first", lambda state: {"log": ["first"]}).add_node("node", node, **options)
    return builder.add_edge(START, "first").add_edge("first", "node").compile(saver)


async def at_once(*works: Any) -> None:
    """Await each work in a task of its own, one after the other, so that the test chooses the order."""

    async def one(work: Any) -> None:
        await work

    for work in works:
        async with anyio.create_task_group() as group:
            group.start_soon(one, work)


async def test_the_order_of_keys_is_no_part_of_a_concurrent_calls_identity(saver: BaseCheckpointSaver) -> None:
    """P5: a dict built from a set has another order in another process; the call does not run again."""
    keys, ran, dies = ["a", "b"], list[Any](), [True]

    @task
    async def charge(invoice: dict[str, int], *, note: Any) -> None:
        ran.append(invoice)

    async def pay(state: State) -> State:
        async def call() -> None:
            await charge(dict.fromkeys(keys, 1), note={key: key for key in keys})

        await at_once(call())
        if dies:
            raise Interruption
        return {"log": ["done"]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    keys.reverse()
    dies.clear()
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["first", "done"]
    assert len(ran) == 1


async def test_types_of_one_call_are_no_part_of_anothers_identity(saver: BaseCheckpointSaver) -> None:
    """P5: calls of which one uses a type that another uses too are recognised in any order."""
    ran, dies, order = list[str](), [True], [0, 1]

    @task
    async def knows(invoice: Invoice) -> None:
        ran.append(f"knows {invoice.name}")

    @task
    async def takes(invoice: Any) -> None:
        ran.append(f"takes {invoice.name}")

    async def pay(state: State) -> State:
        async def one() -> None:
            await knows(Invoice("a"))

        async def other() -> None:
            await takes(Invoice("b"))

        works = [one, other]
        await at_once(*[works[at]() for at in order])
        if dies:
            raise Interruption
        return {"log": ["done"]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    order.reverse()
    dies.clear()
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["first", "done"]
    assert sorted(ran) == ["knows a", "takes b"]


async def test_concurrent_calls_of_a_graph_without_a_saver_are_recognised(saver: BaseCheckpointSaver) -> None:
    """P5: a retry finds the results of calls that come in another order."""
    ran, fails, order = list[str](), [True], ["a", "b"]

    @task
    async def charge(name: str) -> str:
        ran.append(name)
        return name

    async def pay(state: State) -> State:
        got: dict[str, str] = {}

        async def call(name: str) -> None:
            got[name] = await charge(name)

        await at_once(*map(call, order))
        order.reverse()
        if fails:
            fails.clear()
            raise Interruption
        return {"log": [got["a"], got["b"]]}

    graph = graph_of(pay, None, retry_policy=RetryPolicy(retry_on=Interruption, initial_interval=0.0, jitter=False))
    assert (await graph.ainvoke({"log": []}))["log"] == ["first", "a", "b"]
    assert ran == ["a", "b"]


class Counted(State, total=False):
    remaining: RemainingSteps
    client: Annotated[Any, UntrackedValue]


@pytest.mark.parametrize("concurrent", [False, True])
async def test_a_state_counts_without_unstored_parts(saver: BaseCheckpointSaver, concurrent: bool) -> None:
    """P5: a resumed run counts its own supersteps and lacks unstored keys; neither difference makes it another call."""
    ran, dies = list[Any](), [True]

    @task
    async def model(state: Counted, text: str) -> None:
        ran.append(state)

    async def pay(state: Counted) -> State:
        async def call() -> None:
            await model(state, "hello")

        await (at_once(call()) if concurrent else call())
        if dies:
            raise Interruption
        return {"log": ["done"]}

    graph = graph_of(pay, saver, Counted)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": [], "client": Client()}, CONFIG)
    dies.clear()
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["first", "done"]
    assert [sorted(state) for state in ran] == [["client", "log", "remaining"]]


async def test_values_that_name_the_run_count_by_type(saver: BaseCheckpointSaver) -> None:
    """P5: a resume is a run with an id of its own; values that name the run count by their type."""
    ran, dies = list[str](), [True]

    @task
    async def call(info: ExecutionInfo, runtime: Runtime[Any], text: str) -> None:
        ran.append(text)

    async def pay(state: State, runtime: Runtime[Any]) -> State:
        await call(runtime.execution_info, runtime, "hello")
        if dies:
            raise Interruption
        return {"log": ["done"]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    dies.clear()
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["first", "done"]
    assert ran == ["hello"]


@pytest.mark.parametrize("concurrent", [False, True])
@pytest.mark.parametrize("kind", ["list", "dict", "set", "tuple"])
async def test_values_next_to_an_unstorable_object_count(
    saver: BaseCheckpointSaver, kind: str, concurrent: bool
) -> None:
    """P2: a list of a client and a name is identified by the client's type and by the name, and not by the type of the
    list alone."""
    client = Client()
    names, ran, dies = ["b.txt"], list[str](), [True]
    made: dict[str, Any] = {
        "list": lambda name: [client, name],
        "dict": lambda name: {"client": client, "files": [{"name": name}]},
        "set": lambda name: {client, name},
        "tuple": lambda name: (name, Invoice("x"), client),
    }

    @task
    async def charge(given: Any) -> None:
        ran.append("charge")

    async def pay(state: State) -> State:
        async def call() -> None:
            await charge(made[kind](names[0]))

        await (at_once(call()) if concurrent else call())
        if dies:
            raise Interruption
        return {"log": ["done"]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    names[:] = ["a.txt"]
    if concurrent:  # identified by its arguments: it is a new call
        with pytest.raises(Interruption):
            await graph.ainvoke(None, CONFIG)
        assert len(ran) == 2
    else:
        with pytest.raises(CallsChangedError):
            await graph.ainvoke(None, CONFIG)
    names[:] = ["b.txt"]
    dies.clear()
    before = len(ran)
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["first", "done"]
    assert len(ran) == before
