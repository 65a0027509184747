"""How type checkers see policies. Read by mypy and pyright, and never run."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict, assert_type

from pregel_async import START, NodeBuilder, Runtime, Send, StateGraph, TaskFuture, entrypoint, task
from pregel_async.errors import NodeError
from pregel_async.types import Collect, RetryPolicy, TimeoutPolicy


class State(TypedDict):
    n: int
    errors: Annotated[list[NodeError], operator.add]


class Other(TypedDict):
    text: str


async def node(state: State, runtime: Runtime[Any]) -> dict[str, Any]:
    runtime.heartbeat()
    assert_type(runtime.execution_info.node_attempt, int)
    return {"n": 1}


def plain(state: State) -> State:
    return state


async def handler(state: State, error: NodeError) -> dict[str, Any]:
    assert_type(error.error, Exception)
    return {"n": len(error.node)}


async def narrow(state: Other) -> dict[str, Any]:
    return {}


def again(error: Exception) -> bool:
    return isinstance(error, OSError)


policy = RetryPolicy(retry_on=again)
RetryPolicy(retry_on=OSError, max_attempts=5)
RetryPolicy(retry_on=(OSError, KeyError))
RetryPolicy(max_attempts="many")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
RetryPolicy(retry_on=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
RetryPolicy(0.1, 3.0, 60.0, 5, False)  # by position, as in LangGraph
RetryPolicy("often")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
TimeoutPolicy(run_timeout=timedelta(1), idle_timeout=2, refresh_on="heartbeat")
TimeoutPolicy(refresh_on="never")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
Collect(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
Send("node", {}, timeout=1.5)
Send("node", {}, timeout="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose

made = StateGraph(State)
made.add_node("a", node, retry_policy=policy, timeout=5, error_handler=handler)
made.add_node("b", node, retry_policy=[policy, policy], timeout=timedelta(1))
made.add_node("c", plain, timeout=TimeoutPolicy(idle_timeout=3), on_timeout="abandon")
made.add_node("d", narrow, input_schema=Other, retry_policy=policy)
made.add_node(node, retry_policy=policy)
made.add_node("e", node, retry_policy=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # wrong on purpose
made.add_node("f", node, timeout="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # wrong on purpose
made.add_node("g", plain, on_timeout="kill")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # wrong on purpose
made.add_node("h", node, error_handler=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # wrong on purpose
made.add_node("i", node, retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]  # wrong on purpose
made.set_node_defaults(retry_policy=policy, timeout=5, error_handler=handler).add_edge(START, "a")
made.set_node_defaults(retry_policy=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose

graph = made.compile(on_failure="finish", step_timeout=5)
made.compile(on_failure=Collect("errors"), step_timeout=timedelta(1))
made.compile(on_failure="ignore")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # wrong on purpose
made.compile(step_timeout="1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # wrong on purpose


async def calls() -> None:
    assert_type(await graph.ainvoke({"n": 1, "errors": []}, on_failure=Collect("errors")), State)
    assert_type(graph.invoke({"n": 1, "errors": []}, on_failure="finish"), State)
    async for _ in graph.astream({"n": 1, "errors": []}, on_failure="fail_fast"):
        pass


@task(retry_policy=policy, timeout=5)
async def step(x: int) -> str:
    return str(x)


@task(timeout=5, on_timeout="process")
def heavy(x: int) -> bytes:
    return b"" * x


@entrypoint(retry_policy=[policy], timeout=timedelta(1))
async def flow(x: int) -> str:
    assert_type(step(x), TaskFuture[str])
    assert_type(await heavy(x), bytes)
    return await step(x)


task(retry_policy=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong on purpose
entrypoint(timeout="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose

assert_type(NodeBuilder().add_retry_policies(policy, policy).set_timeout(5, on_timeout="abandon"), NodeBuilder)
NodeBuilder().add_retry_policies([policy])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
