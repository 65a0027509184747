"""A question that can never be answered, because nothing is stored, is refused where it is asked."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Command, RetryPolicy, StateGraph, entrypoint, interrupt, task
from pregel_async.errors import NoCheckpointerError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


async def ask(state: State) -> State:
    return {"log": [interrupt("?")]}


def plain(state: State) -> State:
    return {"log": [interrupt("?")]}


async def nothing(state: State) -> State:
    return {}


@task
async def asked() -> str:
    answer: str = interrupt("?")
    return answer


async def calls_a_task(state: State) -> State:
    return {"log": [await asked()]}


def around(node: Any, saver: Any = None, name: str = "shop") -> Any:
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(saver, name=name)


@pytest.mark.parametrize("node", [ask, plain, calls_a_task], ids=lambda node: node.__name__)
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("checkpointer", [None, False])
async def test_a_question_in_a_run_that_stores_nothing(node: Any, depth: int, checkpointer: bool | None) -> None:
    """P8: in a node, a plain function and a task, of the called graph or of a subgraph; the error names the asking code
    and the graph that needs a checkpointer."""
    graph = around(node, name="shop" if depth == 0 else "inside")
    for left in range(depth, 0, -1):
        inside = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(checkpointer, name="inside")
        graph = around(inside if left == depth else graph, name="shop")
    with pytest.raises(NoCheckpointerError) as caught:
        await graph.ainvoke({})
    assert (caught.value.node, caught.value.graph) == ("asked" if node is calls_a_task else "node", "shop")
    assert "compile graph 'shop' with a checkpointer" in str(caught.value)


async def test_it_is_not_retried() -> None:
    """The error is a programming mistake: no retry policy applies to it by default."""
    runs: list[int] = []

    async def node(state: State) -> State:
        runs.append(1)
        return await ask(state)

    builder = StateGraph(State).add_node("node", node, retry_policy=RetryPolicy(initial_interval=0))
    with pytest.raises(NoCheckpointerError):
        await builder.add_edge(START, "node").compile().ainvoke({})
    assert runs == [1]


async def test_routers_and_workflows() -> None:
    """The same holds for a question of a conditional edge or an entrypoint."""

    def router(state: State) -> str:
        answer: str = interrupt("?")
        return answer

    builder = StateGraph(State).add_node("node", nothing).add_edge(START, "node")
    with pytest.raises(NoCheckpointerError, match="node 'node'"):
        await builder.add_conditional_edges("node", router, ["node"]).compile().ainvoke({})

    @entrypoint()
    async def work(given: int) -> str:
        answer: str = interrupt("?")
        return answer

    with pytest.raises(NoCheckpointerError, match="graph 'work'"):
        await work.ainvoke(1)


@pytest.mark.parametrize("where", ["node", "plain function", "caller", "around a graph", "router", "handler"])
async def test_a_node_cannot_swallow_it(where: str) -> None:
    """P8: whatever the code around the question does, the run fails, and no code continues as if it had been answered.
    No error handler runs either."""

    def swallow(state: Any) -> Any:
        try:
            return plain(state)
        except Exception:
            return {"log": ["swallowed"]}

    async def node(state: State) -> Any:
        try:
            if where == "caller":
                return await calls_a_task(state)
            if where == "around a graph":
                return await around(ask, name="inside").ainvoke({})
            return await ask(state)
        except Exception:
            return {"log": ["swallowed"]}

    def route(state: State) -> str:
        swallow(state)
        return END

    def handler(state: State) -> State:
        return {"log": ["handled"]}

    builder = StateGraph(State).add_edge(START, "node")
    if where == "router":
        builder.add_node("node", nothing).add_conditional_edges("node", route, [END])
    elif where == "handler":
        builder.add_node("node", ask, error_handler=handler)
    else:
        builder.add_node("node", swallow if where == "plain function" else node)
    with pytest.raises(NoCheckpointerError) as caught:
        await builder.compile(name="shop").ainvoke({})
    assert caught.value.graph == "shop"


@pytest.mark.parametrize("checkpointer", [None, True, False])
async def test_a_subgraph_asks_with_the_roots_checkpointer(checkpointer: bool | None) -> None:
    """P8: the root stores the question of a graph that stores nothing itself, and passes it the answer."""
    graph = around(around(ask, checkpointer, "inside"), InMemorySaver())
    (question,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    assert question.value == "?"
    assert (await graph.ainvoke(Command(resume="!"), "t"))["log"] == ["!"]


async def test_a_subgraph_asks_with_its_own_checkpointer() -> None:
    """P8: when the parent stores nothing, the question is answered where it is stored."""
    saver: BaseCheckpointSaver = InMemorySaver()
    inside = around(ask, saver, "inside")
    (question,) = (await around(inside).ainvoke({}, "t"))["__interrupt__"]
    assert question.value == "?"
    assert await inside.ainvoke(Command(resume="!"), "t") == {"log": ["!"]}
