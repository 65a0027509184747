"""Attributes of a compiled graph: which ones can be set, what they do, and which are refused."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Annotated, Any, TypedDict
from unittest.mock import AsyncMock, patch

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, InMemoryStore
from checkpoint_savers.caches import InMemoryCache
from pregel_async import (
    START,
    CachePolicy,
    NodeBuilder,
    Pregel,
    RetryPolicy,
    StateGraph,
    entrypoint,
    get_store,
    interrupt,
)
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import (
    ConfigError,
    GraphRecursionError,
    GraphValidationError,
    InPlaceChangeWarning,
    InvalidCheckpointerError,
    StepTimeoutError,
    UnsettableAttributeError,
)
from pregel_async.types import Command

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def graph(saver: Any = None, **nodes: Any) -> Any:
    nodes = nodes or {"a": lambda state: {"log": ["a"]}, "b": lambda state: {"log": ["b"]}}
    made: Any = StateGraph(State).add_sequence(list(nodes.items()))
    return made.add_edge(START, next(iter(nodes))).compile(saver, blocking=False)


async def test_a_checkpointer_that_is_set_stores(saver: BaseCheckpointSaver) -> None:
    """After `graph.checkpointer = saver`, for example in a start-up hook, runs are stored and can be read."""
    made = graph()
    assert await made.ainvoke({"log": []}) == {"log": ["a", "b"]}
    made.checkpointer = saver
    await made.ainvoke({"log": []}, "t")
    assert (await made.aget_state("t")).values == {"log": ["a", "b"]}
    assert made.with_config(recursion_limit=5).checkpointer is saver
    made.checkpointer = None
    assert await made.ainvoke({"log": []}) == {"log": ["a", "b"]}
    with pytest.raises(ConfigError, match="no checkpointer"):
        await made.aget_state("t")


async def test_a_running_run_keeps_its_attributes(saver: BaseCheckpointSaver) -> None:
    """An attribute that is set affects later runs only: a running run is stored where it began."""
    other, made = InMemorySaver(), graph()

    async def sets(state: State) -> Any:
        made.checkpointer = other
        made.name, made.interrupt_before_nodes, made.debug = "later", ["b"], True
        return {"log": ["sets"]}

    built: Any = StateGraph(State).add_sequence([("a", sets), ("b", lambda state: None)]).add_edge(START, "a")
    made = built.compile(saver)
    stream = made.astream({"log": []}, "t", stream_mode="updates", version="v2", keep_events=True)
    chunks = [part["data"] async for part in stream]
    assert chunks == [{"a": {"log": ["sets"]}}, {"b": None}]
    assert await other.read("t", "", None) is None
    assert (await made.ainvoke({}, "t"))["log"] == ["sets"]
    assert (await made.aget_state("t")).next == ("b",)


async def test_checkpointer_of_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """After `checkpointer=True` is set on a subgraph, its state is kept from then on."""

    class Inner(TypedDict, total=False):
        note: str
        seen: Annotated[list[str], operator.add]

    built: Any = StateGraph(Inner).add_node("a", lambda state: {"seen": ["x"], "note": str(len(state["seen"]))})
    counts = built.add_edge(START, "a").compile(blocking=False)
    outer = graph(saver, inner=counts)
    for _ in range(2):
        assert (await outer.ainvoke({"note": "0"}, "t"))["note"] == "0"
    counts.checkpointer = True
    assert [(await outer.ainvoke({"note": "0"}, "u"))["note"] for _ in range(2)] == ["0", "1"]


async def test_store_cache_and_policies() -> None:
    """`store`, `cache`, `cache_policy` and `retry_policy` apply to nodes that were added without their own."""
    ran: list[str] = []

    def node(state: State) -> Any:
        ran.append("a")
        if get_store() is None or len(ran) == 1:
            raise ConnectionError
        return {"note": "stored"}

    made = graph(a=node)
    made.retry_policy = RetryPolicy(initial_interval=0, jitter=False)
    made.store, made.cache, made.cache_policy = InMemoryStore(), InMemoryCache(), CachePolicy()
    assert [(await made.ainvoke({}))["note"] for _ in range(2)] == ["stored", "stored"]
    assert ran == ["a", "a"]
    made.retry_policy = made.cache_policy = made.cache = None
    made.store = None
    with pytest.raises(ConnectionError):  # no store, and no second attempt
        await made.ainvoke({})
    assert (made.retry_policy, made.cache_policy, made.cache) == ((), None, None)


async def test_own_policies_win_over_those_that_are_set() -> None:
    """A node's own retry policy takes precedence, in a `Pregel` and an entrypoint too."""
    tries: list[str] = []

    def fails(given: Any) -> Any:
        tries.append("x")
        raise ConnectionError

    once, thrice = RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=3, initial_interval=0, jitter=False)
    state = StateGraph(State).add_node("own", fails, retry_policy=once).add_edge(START, "own").compile(blocking=False)
    reads = NodeBuilder().subscribe_only("in").do(fails).write_to("out")
    low = Pregel(
        nodes={"n": reads},
        channels={"in": EphemeralValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        retry_policy=once,
        blocking=False,
    )
    flow = entrypoint(blocking=False, retry_policy=once)(fails)
    for made, given, attempts in [(state, {}, 1), (low, 1, 3), (flow, 1, 3)]:
        tries.clear()
        made.retry_policy = thrice
        with pytest.raises(ConnectionError):
            await made.ainvoke(given)
        assert len(tries) == attempts


async def test_breakpoints_streams_and_config(saver: BaseCheckpointSaver) -> None:
    """`interrupt_before_nodes`, `interrupt_after_nodes`, `stream_mode`, `stream_channels` and `config` can be set."""
    made = graph(saver)
    made.interrupt_before_nodes = ["b"]
    await made.ainvoke({"log": []}, "t")
    assert (await made.aget_state("t")).next == ("b",)
    made.interrupt_before_nodes, made.interrupt_after_nodes = [], "*"
    assert (made.interrupt_before_nodes, made.interrupt_after_nodes) == ([], ["a", "b"])
    await made.ainvoke({"log": []}, "u")
    assert (await made.aget_state("u")).next == ("b",)
    made.interrupt_after_nodes = None
    assert made.interrupt_after_nodes == []
    made.stream_mode, made.stream_channels = "values", "log"
    assert [chunk async for chunk in made.astream({"log": []}, "v")] == [[], ["a"], ["a", "b"]]
    made.stream_channels = None
    assert made.stream_channels == ["log", "note"]
    made.config = {"configurable": {"thread_id": "w"}, "recursion_limit": 1}
    with pytest.raises(GraphRecursionError):
        await made.ainvoke({"log": []})
    assert (await made.aget_state({})).next == ("b",)
    made.config = None
    assert made.config == {}


async def test_name_debug_and_step_timeout() -> None:
    """`name`, `debug` and `step_timeout` can be set."""

    async def node(state: State) -> None:
        state["log"].append("in place")
        if state.get("note"):
            await anyio.sleep_forever()

    made = graph(a=node)
    made.name, made.debug, made.step_timeout = "orders", True, timedelta(seconds=0.01)
    assert (made.name, made.step_timeout) == ("orders", 0.01)
    with pytest.raises(StepTimeoutError):
        await made.ainvoke({"log": [], "note": "waits"})
    made.step_timeout = None
    with pytest.warns(InPlaceChangeWarning, match="'a'"):
        await made.ainvoke({"log": []})


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("checkpointer", "threads.db", InvalidCheckpointerError),
        ("checkpointer", InMemorySaver, InvalidCheckpointerError),
        ("store", InMemoryStore, GraphValidationError),
        ("cache", {}, GraphValidationError),
        ("name", "", GraphValidationError),
        ("debug", "yes", GraphValidationError),
        ("step_timeout", -1, GraphValidationError),
        ("retry_policy", 3, GraphValidationError),
        ("cache_policy", 3, GraphValidationError),
        ("interrupt_before_nodes", ["nowhere"], ConfigError),
        ("interrupt_before_nodes", [["a"]], ConfigError),
        ("interrupt_after_nodes", "a", ConfigError),
        ("interrupt_after_nodes", 3, ConfigError),
        ("stream_mode", "everything", ConfigError),
        ("stream_channels", ["nothing"], GraphValidationError),
        ("stream_channels", [["log"]], GraphValidationError),
        ("stream_channels", 3, GraphValidationError),
        ("config", {"thread_id": "t"}, ConfigError),
    ],
)
def test_what_is_set_is_checked(name: str, value: Any, kind: type[Exception]) -> None:
    """A set value is checked as `compile` checks it; after an error the old value stays."""
    made = graph()
    before = getattr(made, name)
    with pytest.raises(kind):
        setattr(made, name, value)
    assert getattr(made, name) == before


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("chekpointer", "checkpointer"),
        ("interrupt_before", "interrupt_before_nodes"),
        ("timeout", "step_timeout"),
        ("nodes", "name"),
        ("builder", "debug"),
        ("interrupt_after_node", "interrupt_after_nodes"),
        ("invok", "invoke"),
        ("observer", "store"),
    ],
)
def test_another_attribute_is_refused(name: str, nearest: str) -> None:
    """Setting any other attribute raises an AttributeError that names the nearest attribute."""
    made = graph()
    with pytest.raises(AttributeError) as raised:
        setattr(made, name, object())
    error = raised.value
    assert isinstance(error, UnsettableAttributeError)
    assert (error.graph, error.name) == ("StateGraph", name)
    assert error.nearest == nearest
    assert repr(nearest) in str(error)
    assert "arguments of compile()" in str(error)  # where `observer` and `durability` are given


async def test_methods_may_be_replaced() -> None:
    """Mocks can replace the methods of a graph, and restore them."""
    made = graph()
    with patch.object(made, "ainvoke", AsyncMock(return_value={"log": ["mock"]})):
        assert await made.ainvoke({}) == {"log": ["mock"]}
    assert await made.ainvoke({"log": []}) == {"log": ["a", "b"]}


async def test_a_question_is_answered_where_it_was_asked(saver: BaseCheckpointSaver) -> None:
    """A graph whose saver was set asks and is answered like one compiled with it."""
    made = graph(a=lambda state: {"note": interrupt("?")})
    made.checkpointer = saver
    await made.ainvoke({"log": []}, "t")
    assert (await made.ainvoke(Command(resume="yes"), "t"))["note"] == "yes"
