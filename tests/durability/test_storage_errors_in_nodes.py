"""P4: when storage fails inside a node, the run fails and not the node: the error is not retried, handled or collected,
and no further node runs."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import START, Collect, NodeError, RetryPolicy, StateGraph, task
from pregel_async.types import Durability
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    errors: Annotated[list[NodeError], operator.add]


class Failing(Through):
    """A saver that fails at one verb, once it is armed."""

    verb = ""
    works = True

    async def around(self, verb: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if verb == self.verb and not self.works:
            raise StorageError("the disk is gone")
        return await call()


@pytest.mark.parametrize("verb", ["commit", "read"])
@pytest.mark.parametrize("on_failure", ["fail_fast", Collect("errors")], ids=["fail_fast", "collect"])
async def test_a_storage_error_in_a_subgraph(verb: str, on_failure: Any) -> None:
    """The failing call is one of a subgraph: its own transactions, and reading its head."""
    ran: list[str] = []
    saver = Failing(InMemorySaver())

    async def breaks(state: State) -> State:
        ran.append("breaks")
        saver.verb, saver.works = verb, False
        return {"log": ["broken"]}

    async def inner(state: State) -> State:
        ran.append("inner")
        return {"log": ["inner"]}

    async def handler(state: State) -> State:
        ran.append("handler")
        return {"log": ["handled"]}

    async def after(state: State) -> State:
        ran.append("after")
        return {"log": ["after"]}

    deep = StateGraph(State).add_sequence([("one", inner), ("two", inner)]).add_edge(START, "one").compile()
    again = StateGraph(State).add_sequence([("breaks", breaks), ("deep", deep)]).add_edge(START, "breaks").compile()
    builder = StateGraph(State)
    builder.add_node(
        "sub",
        again,
        retry_policy=RetryPolicy(initial_interval=0, jitter=False, retry_on=Exception),
        error_handler=handler,
    )
    builder.add_node(after).add_edge(START, "sub").add_edge("sub", "after")
    graph = builder.compile(saver, on_failure=on_failure, environment=SeededEnvironment())
    if verb == "read":  # a run of a new thread reads nothing: this one was interrupted inside the subgraph
        await graph.ainvoke({}, "t", interrupt_after=["sub"])
        ran.clear()
        saver.works = True
    with pytest.raises(StorageError, match="the disk is gone"):
        await graph.ainvoke({}, "t")
    assert ran == ["breaks"]


@pytest.mark.parametrize("durability", ["sync"])
async def test_a_storage_error_in_a_called_task(durability: Durability) -> None:
    """The result of a called task cannot be recorded: the node is not retried."""
    ran: list[str] = []
    saver = Failing(InMemorySaver())
    saver.verb = "record"

    @task
    async def called() -> int:
        ran.append("called")
        saver.works = False
        return 1

    async def node(state: State) -> State:
        ran.append("node")
        await called()
        return {"log": ["node"]}

    async def handler(state: State) -> State:
        ran.append("handler")
        return {"log": ["handled"]}

    builder = StateGraph(State).add_node(
        node, retry_policy=RetryPolicy(initial_interval=0, jitter=False, retry_on=Exception), error_handler=handler
    )
    graph = builder.add_edge(START, "node").compile(saver, environment=SeededEnvironment())
    with pytest.raises(StorageError, match="the disk is gone"):
        await graph.ainvoke({}, "t", durability=durability)
    assert ran == ["node", "called"]
