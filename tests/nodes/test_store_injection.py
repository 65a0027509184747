"""A store reaches every node, task, router, handler and subgraph, and their changes to it last."""

from __future__ import annotations

import functools
import operator
from typing import Annotated, Any, Optional, TypedDict
from unittest.mock import MagicMock

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, BaseStore, InMemoryStore, StorageLockedError, SyncCallError
from checkpoint_savers.conformance.stores.suite import BatchRecorder
from checkpoint_savers.errors import UnstorableItemError
from checkpoint_savers.stores import Item, PutOp, SearchItem
from pregel_async import (
    START,
    RetryPolicy,
    Runtime,
    StateGraph,
    entrypoint,
    get_runtime,
    get_store,
    interrupt,
    task,
)
from pregel_async.channels import LastValue
from pregel_async.errors import GraphValidationError
from pregel_async.node import NodeBuilder
from pregel_async.pregel import Pregel
from pregel_async.types import Command, Send

pytestmark = pytest.mark.anyio

SPACE = ("memories", "ann")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore()


def graph_of(node: Any, saver: Any = None, *, start: str = "n", **settings: Any) -> Any:
    """A graph of one node."""
    return StateGraph(State).add_node("n", node).add_edge(START, start).compile(saver, **settings)


async def remembered(store: BaseStore) -> dict[str, Any]:
    return {item.key: item.value for item in await store.asearch((), limit=100)}


async def by_annotation(state: State, memory: BaseStore) -> State:
    return {"log": [memory]}


async def optional(state: State, *, memory: Optional[BaseStore] = None) -> State:  # noqa: UP045  # users write it
    return {"log": [memory]}


async def either(state: State, memory: BaseStore | None = None) -> State:
    return {"log": [memory]}


async def by_name(state, store):  # on purpose
    return {"log": [store]}


async def under_its_own_class(state: State, store: InMemoryStore) -> State:
    return {"log": [store]}


async def by_runtime(state: State, runtime: Runtime) -> State:
    return {"log": [runtime.store]}


async def by_accessor(state: State) -> State:
    return {"log": [get_store()]}


def plain(state: State, store: BaseStore) -> State:
    assert store is get_store() is get_runtime().store
    return {"log": [store]}


class Callable:
    async def __call__(self, state: State, memory: BaseStore) -> State:
        return {"log": [memory]}


NODES = [by_annotation, optional, either, by_name, under_its_own_class, by_runtime, by_accessor, plain, Callable()]


@pytest.mark.parametrize("node", NODES, ids=lambda node: getattr(node, "__name__", "callable"))
async def test_a_node_gets_the_store(node: Any, store: InMemoryStore) -> None:
    """A node gets the very store object by annotation, whatever the parameter's name, or by the name `store`; by the
    runtime, and in nested code."""
    (got,) = (await graph_of(node, store=store).ainvoke({}))["log"]
    assert got is store


@pytest.mark.parametrize("node", NODES[:-2], ids=lambda node: node.__name__)
async def test_without_a_store(node: Any) -> None:
    """Without a store a node gets None."""
    assert (await graph_of(node).ainvoke({}))["log"] == [None]


async def test_bound_parameters_are_kept(store: InMemoryStore) -> None:
    """A parameter that the user has bound is not replaced."""
    mine = InMemoryStore()
    (got,) = (await graph_of(functools.partial(by_annotation, memory=mine), store=store).ainvoke({}))["log"]
    assert got is mine


def unresolved(state: State, memory: BaseStore, other: Unknown = None) -> State:  # noqa: F821  # a name of nothing
    return {"log": [memory, other]}


async def test_an_annotation_that_does_not_resolve(store: InMemoryStore) -> None:
    """An annotation that does not resolve does not affect another parameter's annotation."""
    assert (await graph_of(unresolved, store=store).ainvoke({}))["log"] == [store, None]


async def test_routers_and_handlers_get_the_store(store: InMemoryStore) -> None:
    """A router reads the store to decide, an error handler writes to it."""

    async def fails(state: State) -> State:
        raise LookupError("nothing")

    async def handle(state: State, memory: BaseStore) -> State:
        await memory.aput(SPACE, "handled", {})
        return {}

    async def route(state: State, memory: BaseStore) -> str:
        return "known" if await memory.aget(SPACE, "handled") else "unknown"

    async def known(state: State) -> State:
        return {"log": ["known"]}

    made = StateGraph(State).add_node(fails, error_handler=handle).add_node(known).add_node("unknown", fails)
    made.add_edge(START, "fails").add_conditional_edges("known", lambda state: "__end__")
    made.add_conditional_edges("fails", route)
    made.add_sequence([("first", by_annotation), ("second", by_annotation)])
    made.add_edge(START, "first").add_conditional_edges("second", route, {"known": "known", "unknown": "unknown"})
    assert (await made.compile(store=store).ainvoke({}))["log"][-1] == "known"


async def test_tasks_get_the_store(saver: BaseCheckpointSaver, store: InMemoryStore) -> None:
    """A workflow and the tasks that it calls get the store, sync and async, at any depth."""

    @task
    async def one(key: str, memory: BaseStore) -> bool:
        await memory.aput(SPACE, key, {})
        return memory is get_store()

    @task
    def other(key: str, *, store: BaseStore) -> bool:
        store.put(SPACE, key, {})
        return store is get_store()

    @entrypoint(saver, store=store)
    async def flow(keys: list[str], *, memory: BaseStore, runtime: Runtime) -> list[bool]:
        calls = [one(keys[0]), other(keys[1])]
        return [*[await call for call in calls], memory is runtime.store is get_store()]

    assert await flow.ainvoke(["a", "b"], "t") == [True, True, True]
    assert await remembered(store) == {"a": {}, "b": {}}


async def test_graphs_of_channels_get_the_store(store: InMemoryStore) -> None:
    """`Pregel(store=)` works too."""

    async def call(value: int) -> int:
        memory = get_store()
        assert memory is not None
        await memory.aput(SPACE, "k", {"value": value})
        return value + 1

    node = NodeBuilder().subscribe_only("in").do(call).write_to("out")
    graph = Pregel(
        nodes={"n": node},
        channels={"in": LastValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        store=store,
    )
    assert await graph.ainvoke(1) == 2
    assert await remembered(store) == {"k": {"value": 1}}


async def test_subgraphs_inherit_the_store(saver: BaseCheckpointSaver, store: InMemoryStore) -> None:
    """Subgraphs inherit the store as nodes, when called in nodes and in tasks, and with a saver of their own; a store
    that they were given takes precedence, also for everything inside them."""
    own = InMemoryStore()
    names: dict[Any, str] = {store: "outer", own: "own"}

    async def which(state: State, memory: BaseStore) -> State:
        return {"log": [names[memory]]}

    inner, kept = graph_of(which), graph_of(which, saver)
    other = graph_of(inner, store=own)

    @entrypoint()
    async def flow(x: int, *, memory: BaseStore) -> str:
        return names[memory]

    @task
    async def calls() -> list[str]:
        return [*(await inner.ainvoke({}))["log"], *(await kept.ainvoke({}, "own"))["log"], await flow.ainvoke(1)]

    async def node(state: State) -> State:
        return {"log": [*await calls(), *(await other.ainvoke({}))["log"]]}

    made = StateGraph(State).add_node("inner", inner).add_node(node)
    made.add_edge(START, "inner").add_edge("inner", "node")
    log = (await made.compile(store=store).ainvoke({}))["log"]
    assert log == ["outer", "outer", "outer", "outer", "own"]


@pytest.mark.parametrize("wrong", [InMemoryStore, BaseStore])
def test_a_class_is_no_store(wrong: Any) -> None:
    """A class in place of a store is refused when the graph is made, with the remedy."""
    for make in (
        lambda: graph_of(by_name, store=wrong),
        lambda: entrypoint(store=wrong)(lambda x: x),
    ):
        with pytest.raises(GraphValidationError, match=rf"make one, {wrong.__name__}\(\)"):
            make()


async def test_a_test_double_is_passed_on() -> None:
    """A test double for a store is passed to nodes unchanged."""
    double = MagicMock()
    assert (await graph_of(by_name, store=double).ainvoke({}))["log"] == [double]


async def test_memory_lasts_across_threads(saver: BaseCheckpointSaver, store: InMemoryStore) -> None:
    """An item put in one thread is found in another; it is not part of either."""

    async def node(state: State, store: BaseStore) -> State:
        known = await store.aget(SPACE, "visits")
        visits = 1 if known is None else known.value["n"] + 1
        await store.aput(SPACE, "visits", {"n": visits})
        return {"log": [visits]}

    graph = graph_of(node, saver, store=store)
    for visit, thread in enumerate(("a", "b", "c"), 1):
        assert (await graph.ainvoke({}, thread))["log"] == [visit]


async def test_nodes_of_a_superstep_share_a_transaction(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The concurrent requests of a superstep's tasks are one batch."""

    async def node(state: Any, store: BaseStore) -> State:
        await store.aput(SPACE, str(state["number"]), {})
        return {"log": [await store.aget(SPACE, str(state["number"])) is not None]}

    made = StateGraph(State).add_node("n", node)
    made.add_conditional_edges(START, lambda state: [Send("n", {"number": number}) for number in range(20)])
    graph = made.compile(store=store)
    watched = BatchRecorder(store, monkeypatch)
    assert (await graph.ainvoke({}))["log"] == [True] * 20
    assert sum(len(batch.writes) for batch in watched.batches) == 20
    assert len(watched.batches) <= 5  # on trio the first task asks one turn before the others


async def test_plain_nodes_use_the_verbs_without_async(store: InMemoryStore) -> None:
    """Plain nodes run in worker threads, where waiting blocks no event loop."""

    def node(state: State, store: BaseStore) -> State:
        store.put(SPACE, "a", {"n": 1})
        store.batch([PutOp(SPACE, "b", {"n": 2})])
        store.delete(SPACE, "a")
        item = store.get(SPACE, "b")
        assert item is not None
        return {"log": [item.value, [one.key for one in store.search(SPACE)], store.list_namespaces()]}

    graph = graph_of(node, store=store)
    assert (await graph.ainvoke({}))["log"] == [{"n": 2}, ["b"], [SPACE]]
    await anyio.to_thread.run_sync(graph.invoke, {})


class Waiting(InMemoryStore):
    waits = True


async def test_sync_verbs_are_refused_where_a_loop_runs() -> None:
    """An async node that calls a sync verb by mistake gets an error with the remedy."""

    async def node(state: State, store: BaseStore) -> State:
        store.put(SPACE, "a", {})
        return {}

    with pytest.raises(SyncCallError, match=r"await store\.aput"):
        await graph_of(node, store=Waiting()).ainvoke({})


async def test_parts_of_the_state_can_be_put(store: InMemoryStore) -> None:
    """P1: parts of the state can be put in the store as they are, and items may be returned as an update."""

    async def node(state: Any, store: BaseStore) -> State:
        state["log"][0]["tags"].append("seen")
        await store.aput(SPACE, "state", {"first": state["log"][0], "log": state["log"]})
        item = await store.aget(SPACE, "state")
        assert item is not None
        return {"log": [item.value["first"]["tags"]]}

    graph = graph_of(node, store=store)
    result = await graph.ainvoke({"log": [{"tags": ["a"]}]})
    assert result == {"log": [{"tags": ["a"]}, ["a", "seen"]]}
    result["log"][1].append("later")
    assert await remembered(store) == {"state": {"first": {"tags": ["a", "seen"]}, "log": [{"tags": ["a", "seen"]}]}}


async def test_items_in_the_state(saver: BaseCheckpointSaver, store: InMemoryStore) -> None:
    """Items found by a search may be stored in a thread, and come back equal in value and type."""
    await store.aput(SPACE, "k", {"likes": ["pizza"]})

    async def node(state: State, store: BaseStore) -> State:
        return {"log": [await store.aget(SPACE, "k"), await store.asearch(SPACE)]}

    graph = graph_of(node, saver, store=store)
    item, found = (await graph.ainvoke({}, "t"))["log"]
    assert (await graph.aget_state("t")).values["log"] == [item, found]
    assert type(item) is Item and type(found[0]) is SearchItem
    assert found[0].value == {"likes": ["pizza"]}


class Failing(InMemoryStore):
    """A store whose first batches fail."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)

    def transact(self, batch: Any, done: Any) -> None:
        if self.errors:
            raise self.errors.pop(0)
        super().transact(batch, done)


async def put_one(state: State, store: BaseStore) -> State:
    await store.aput(SPACE, "k", {})
    return {"log": ["done"]}


async def test_a_stores_failure_is_the_nodes_own(saver: BaseCheckpointSaver) -> None:
    """P9: a store's failure is raised as it is, with a note that names the node; a resume continues from there."""
    graph = graph_of(put_one, saver, store=Failing(StorageLockedError("busy")))
    with pytest.raises(StorageLockedError, match="busy") as caught:
        await graph.ainvoke({}, "t")
    assert any("node 'n'" in note for note in caught.value.__notes__)
    assert (await graph.aget_state("t")).next == ("n",)
    assert await graph.ainvoke(None, "t") == {"log": ["done"]}


async def test_a_stores_failure_is_retried(saver: BaseCheckpointSaver) -> None:
    """A retry policy retries it like other failures of the node; the default policy retries a locked database, and not
    a programming mistake."""
    policy = RetryPolicy(initial_interval=0.001, jitter=False)
    store = Failing(StorageLockedError("busy"), StorageLockedError("busy"))
    made = StateGraph(State).add_node("n", put_one, retry_policy=policy).add_edge(START, "n")
    assert await made.compile(saver, store=store).ainvoke({}, "t") == {"log": ["done"]}

    tries: list[int] = []

    async def wrong(state: State, store: BaseStore) -> State:
        tries.append(1)
        await store.aput(SPACE, "k", {"x": object()})
        return {}

    made = StateGraph(State).add_node("n", wrong, retry_policy=policy).add_edge(START, "n")
    with pytest.raises(UnstorableItemError, match="item 'k' of namespace"):
        await made.compile(store=store).ainvoke({})
    assert len(tries) == 1


async def test_a_put_is_not_undone(saver: BaseCheckpointSaver, store: InMemoryStore) -> None:
    """A put is done when it returns: not with the superstep, and not undone when the node fails or asks. A node that
    runs again puts again."""

    async def node(state: State, store: BaseStore) -> State:
        known = await store.aget(SPACE, "runs")
        await store.aput(SPACE, "runs", {"n": 1 if known is None else known.value["n"] + 1})
        return {"log": [interrupt("?")]}

    graph = graph_of(node, saver, store=store)
    await graph.ainvoke({}, "t")
    assert await remembered(store) == {"runs": {"n": 1}}
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes"]}
    assert await remembered(store) == {"runs": {"n": 2}}
