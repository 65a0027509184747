"""How type checkers see tasks, entrypoints and their injected parameters. Read by mypy and pyright, and never run."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict, assert_type

from checkpoint_savers import BaseStore, InMemorySaver, InMemoryStore
from checkpoint_savers.stores import GetOp, Item, PutOp, SearchItem
from pregel_async import (
    START,
    RunnableConfig,
    Runtime,
    StateGraph,
    StreamWriter,
    TaskFuture,
    entrypoint,
    get_runtime,
    get_store,
    get_stream_writer,
    patched,
    task,
)


class State(TypedDict):
    n: int


class Context:
    user: str = ""


@task
async def double(x: int, *, plus: int = 0) -> int:
    return 2 * x + plus


@task
def text(x: int) -> str:
    return str(x)


@task(name="other")
async def named(x: int) -> list[str]:
    return [str(x)]


@task()
def bracketed(x: int) -> bytes:
    return b""


@task(abandon_on_cancel=True, on_change="run")
def abandoned(x: int) -> float:
    return x / 2


async def calls() -> None:
    assert_type(patched("audit-first"), bool)
    future = double(1, plus=2)
    assert_type(future, TaskFuture[int])
    assert_type(await future, int)
    assert_type(await text(1), str)
    assert_type(await named(1), list[str])
    assert_type(await abandoned(1), float)
    assert_type(await double.named("first")(1, plus=2), int)
    double.named("first")("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    assert_type(bracketed(1).result(timeout=1.5), bytes)
    assert_type(future.exception(), BaseException | None)
    assert_type(future.cancel(), bool)
    both = await asyncio.gather(double(1), text(2))  # noqa: TID251  # asyncio's own is the point
    assert_type(both, tuple[int, str])
    assert_type(await asyncio.wait_for(named(1), 1), list[str])
    double("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    double()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose
    text(1, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose


@entrypoint(InMemorySaver(), context_schema=Context)
async def flow(x: int, *, previous: int | None = None, runtime: Runtime[Context]) -> int:
    assert_type(runtime.context, Context)
    assert_type(runtime.execution_info.checkpoint_ns, str)
    return x + (previous or 0)


@entrypoint()
def plain(x: int) -> str:
    return text(x).result()


@entrypoint()
async def final(x: int) -> entrypoint.final[str, int]:
    return entrypoint.final(value="", save=1)


@entrypoint()
def plain_final(x: int) -> entrypoint.final[bytes, int]:
    return entrypoint.final(value=b"", save=1)


async def runs() -> None:
    assert_type(await flow.ainvoke(1, "t", context=Context()), int)
    assert_type(await plain.ainvoke(1), str)
    assert_type(await final.ainvoke(1), str)
    assert_type(await plain_final.ainvoke(1), bytes)
    assert_type(await flow.abatch([1, 2]), list[int])
    assert_type((await flow.aget_state("t")).values, int | None)


entrypoint(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
entrypoint.final("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose


async def runtime_node(state: State, runtime: Runtime[Context]) -> dict[str, Any]:
    assert_type(runtime.context, Context)
    return {"n": 1}


def several(state: State, rt: Runtime[Context], *, config: RunnableConfig, writer: StreamWriter, store: Any) -> State:
    writer(state["n"])
    return state


def with_default(state: State, config: RunnableConfig | None = None) -> State:
    return state


def bare(state: State, runtime: Runtime) -> State:
    assert_type(runtime.context, Any)
    return state


def route(state: State, runtime: Runtime[Context]) -> str:
    return runtime.context.user


def nothing() -> None: ...


made = StateGraph(State, Context)
made.add_node("a", runtime_node).add_node(several).add_node("c", with_default).add_node(bare)
made.add_edge(START, "a").add_conditional_edges("a", route)
made.add_node("wrong", nothing)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong on purpose

get_stream_writer()("chunk")
assert_type(get_runtime().context, Any)


async def remembers(state: State, memory: BaseStore, *, runtime: Runtime[Context]) -> State:
    assert_type(runtime.store, BaseStore | None)
    item = await memory.aget(("memories", runtime.context.user), "food")
    assert_type(item, Item | None)
    if item is not None:
        assert_type(item.value, dict[str, Any])
        assert_type(item.namespace, tuple[str, ...])
    await memory.aput(("memories",), "k", {"n": state["n"]}, ttl=5)
    await memory.aput(("memories",), "k", {"n": 1}, ttl=None)
    assert_type(await memory.asearch(("memories",), filter={"n": {"$gt": 1}}), list[SearchItem])
    assert_type(await memory.alist_namespaces(prefix=("*",)), list[tuple[str, ...]])
    await memory.abatch([GetOp(("a",), "k"), PutOp(("a",), "k", None)])
    await memory.asearch((), query="food")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await memory.aput(("a",), "k", {}, index=["n"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    await memory.aget("a", "k")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    return state


def plainly(state: State, store: BaseStore | None = None) -> State:
    if store is not None:
        assert_type(store.get(("a",), "k"), Item | None)
        assert_type(store.put(("a",), "k", {"n": 1}), None)
        assert_type(store.search(("a",)), list[SearchItem])
    return state


@entrypoint(store=InMemoryStore())
async def memory_flow(x: int, *, store: BaseStore) -> int:
    return x


@task
async def memory_task(x: int, store: BaseStore) -> int:
    return x


made.add_node(remembers).add_node("p", plainly).compile(store=InMemoryStore(ttl={"default_ttl": 5}))
made.compile(store="store")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # wrong on purpose
InMemoryStore(ttl={"default": 5})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
assert_type(get_store(), BaseStore | None)
