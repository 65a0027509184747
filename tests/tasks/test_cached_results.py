"""Cached results: `CachePolicy`, `compile(cache=...)`, and `aclear_cache`."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypedDict

import anyio
import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.caches import InMemoryCache, SqliteCache
from checkpoint_savers.errors import StorageError, UnstorableValueError
from pregel_async import (
    END,
    START,
    CachePolicy,
    Command,
    NodeBuilder,
    Pregel,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.channels import LastValue
from pregel_async.errors import ConfigError, GraphValidationError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[Any], operator.add]


def of_x(state: State) -> int:
    return state["x"]


class Counted:
    """A node that says how often it ran."""

    def __init__(self, then: Callable[[State], Awaitable[Any]] | None = None) -> None:
        self.runs = 0
        self._then = then

    async def __call__(self, state: State) -> Any:
        self.runs += 1
        return {"log": [f"x is {state['x']}"]} if self._then is None else await self._then(state)


def graph_of(node: Any, *, policy: CachePolicy | None = None, saver: Any = None, **options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("node", node, cache_policy=policy or CachePolicy(key_func=of_x), **options)
    return builder.add_edge(START, "node").compile(saver, cache=InMemoryCache())


async def test_an_equal_input_does_not_run_the_node_again() -> None:
    """A node's cached result is used for an equal input, in any thread and run; another input runs the node."""
    node = Counted()
    graph = graph_of(node, saver=InMemorySaver())
    assert await graph.ainvoke({"x": 1}, "a") == {"x": 1, "log": ["x is 1"]}
    assert await graph.ainvoke({"x": 1}, "b") == {"x": 1, "log": ["x is 1"]}
    assert node.runs == 1
    assert await graph.ainvoke({"x": 2}, "c") == {"x": 2, "log": ["x is 2"]}
    assert node.runs == 2


async def test_the_whole_input_counts_where_no_key_func_says_otherwise() -> None:
    """The whole input counts unless a `key_func` says otherwise. The order of keys does not count; types do."""
    node = Counted()
    graph = graph_of(node, policy=CachePolicy())
    await graph.ainvoke({"x": 1, "log": ["a"]})
    await graph.ainvoke({"log": ["a"], "x": 1})
    assert node.runs == 1
    await graph.ainvoke({"x": 1, "log": ["b"]})
    await graph.ainvoke({"x": True, "log": ["a"]})
    assert node.runs == 3


async def test_ten_equal_tasks_at_the_same_time_compute_once() -> None:
    """Single flight: equal concurrent tasks of one superstep, and of ten runs, compute once."""
    gate, begun = anyio.Event(), anyio.Event()

    async def slow(state: Any) -> dict[str, list[str]]:
        begun.set()
        await gate.wait()
        return {"log": ["slow"]}

    node = Counted(slow)
    builder = StateGraph(State).add_node("node", node, cache_policy=CachePolicy(key_func=lambda given: 0))
    builder.add_conditional_edges(START, lambda state: [Send("node", state) for _ in range(10)])
    graph = builder.compile(InMemorySaver(), cache=InMemoryCache())
    results: list[Any] = []

    async def run(thread: str) -> None:
        results.append(await graph.ainvoke({"x": 1}, thread))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(run, f"t{number}")
        await begun.wait()
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert node.runs == 1
    assert results == [{"x": 1, "log": ["slow"] * 10}] * 10


async def test_a_failure_is_not_cached() -> None:
    """A task that waits for another one that fails computes its own result; nothing of the failure is cached."""
    fails = [True]

    async def once(state: State) -> dict[str, list[str]]:
        await anyio.wait_all_tasks_blocked()
        if fails:
            fails.pop()
            raise LookupError("not yet")
        return {"log": ["there"]}

    node = Counted(once)
    graph = graph_of(node)
    outcomes: list[Any] = []

    async def run() -> None:
        try:
            outcomes.append(await graph.ainvoke({"x": 1}))
        except LookupError as error:
            outcomes.append(str(error))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)
    assert sorted(outcomes, key=str) == ["not yet", {"x": 1, "log": ["there"]}, {"x": 1, "log": ["there"]}]
    assert node.runs == 2


async def test_a_cancelled_leader_leaves_the_others_a_result() -> None:
    """P7: a task that waits for a task of another run does not end with that run."""
    begun, gate = anyio.Event(), anyio.Event()

    async def slow(state: State) -> dict[str, list[str]]:
        begun.set()
        await gate.wait()
        return {"log": ["done"]}

    node = Counted(slow)
    graph = graph_of(node)
    results: list[Any] = []

    async def wait() -> None:
        results.append(await graph.ainvoke({"x": 1}))

    async with anyio.create_task_group() as group:
        leader = anyio.CancelScope()

        async def lead() -> None:
            with leader:
                await graph.ainvoke({"x": 1})

        group.start_soon(lead)
        await begun.wait()
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        leader.cancel()
        await anyio.wait_all_tasks_blocked()
        gate.set()
    assert results == [{"x": 1, "log": ["done"]}]
    assert node.runs == 2


async def test_conditional_edges_run_each_time() -> None:
    """Conditional edges run each time: they read the state, and the node's input may be only a part of it."""
    node, asked = Counted(), list[list[str]]()

    def where(state: State) -> str:
        asked.append(state["log"])
        return "other" if len(state["log"]) > 1 else END

    builder = StateGraph(State).add_node("node", node, cache_policy=CachePolicy(key_func=of_x))
    builder.add_node("other", lambda state: {"log": ["other"]})
    builder.add_edge(START, "node").add_conditional_edges("node", where)
    graph = builder.compile(cache=InMemoryCache())
    assert (await graph.ainvoke({"x": 1}))["log"] == ["x is 1"]
    assert (await graph.ainvoke({"x": 1, "log": ["before"]}))["log"] == ["before", "x is 1", "other"]
    assert node.runs == 1
    assert asked == [["x is 1"], ["before", "x is 1"]]


async def test_streams_mark_cached_results() -> None:
    """`updates` marks a cached result; the `tasks` stream has no result of a task that did not run."""
    graph = graph_of(Counted())
    await graph.ainvoke({"x": 1})
    chunks = [chunk async for chunk in graph.astream({"x": 1}, stream_mode=["updates", "tasks"])]
    assert [mode for mode, _ in chunks] == ["tasks", "updates"]
    assert chunks[1][1] == {"node": {"log": ["x is 1"]}, "__metadata__": {"cached": True}}


async def test_a_context_that_a_node_asks_for_is_part_of_its_input() -> None:
    """A result computed with one user's context is not used for another; a `key_func` may say that it is."""
    runs: list[Any] = []

    async def greet(state: State, runtime: Runtime[dict[str, str]]) -> dict[str, list[str]]:
        runs.append(runtime.context)
        return {"log": [f"hello {runtime.context['user']}"]}

    graph = graph_of(greet, policy=CachePolicy())
    for user in ("ada", "bob", "ada"):
        assert (await graph.ainvoke({"x": 1}, context={"user": user}))["log"] == [f"hello {user}"]
    assert len(runs) == 2
    shared = graph_of(greet, policy=CachePolicy(key_func=of_x))
    for user in ("ada", "bob"):
        assert (await shared.ainvoke({"x": 1}, context={"user": user}))["log"] == ["hello ada"]


async def test_commands_and_sends_are_cached_with_the_update() -> None:
    """All writes of the node itself are cached."""
    runs = 0

    async def node(state: State) -> Command[Any]:
        nonlocal runs
        runs += 1
        return Command(update={"log": ["commands"]}, goto=[Send("other", {"x": 7}), "third"])

    builder = StateGraph(State).add_node("node", node, cache_policy=CachePolicy(key_func=of_x))
    builder.add_node("other", lambda state: {"log": [f"sent {state['x']}"]})
    builder.add_node("third", lambda state: {"log": ["third"]})
    graph = builder.add_edge(START, "node").compile(cache=InMemoryCache())
    first = await graph.ainvoke({"x": 1})
    assert await graph.ainvoke({"x": 1}) == first == {"x": 1, "log": ["commands", "third", "sent 7"]}
    assert runs == 1


async def test_cached_results_are_isolated() -> None:
    """P1: changing a cached result in place does not change what the next task gets."""

    async def nested(state: State) -> dict[str, Any]:
        return {"log": ["a"]}

    async def spoil(state: State) -> None:
        state["log"].append("spoilt")

    builder = StateGraph(State).add_node("nested", nested, cache_policy=CachePolicy(key_func=of_x)).add_node(spoil)
    graph = builder.add_edge(START, "nested").add_edge("nested", "spoil").compile(cache=InMemoryCache())
    first = await graph.ainvoke({"x": 1})
    first["log"].append("mine")
    assert await graph.ainvoke({"x": 1}) == {"x": 1, "log": ["a"]}


async def test_results_expire_and_can_be_cleared() -> None:
    """`ttl`, by the cache's clock; `aclear_cache`, for some nodes or all."""
    now = [1000.0]
    cache = InMemoryCache(clock=lambda: now[0])
    node, other = Counted(), Counted()
    builder = StateGraph(State)
    builder.add_node("node", node, cache_policy=CachePolicy(key_func=of_x, ttl=10))
    builder.add_node("other", other, cache_policy=CachePolicy(key_func=of_x))
    graph = builder.add_edge(START, "node").add_edge(START, "other").compile(cache=cache)
    await graph.ainvoke({"x": 1})
    now[0] += 9.9
    await graph.ainvoke({"x": 1})
    assert (node.runs, other.runs) == (1, 1)
    now[0] += 0.2
    await graph.ainvoke({"x": 1})
    assert (node.runs, other.runs) == (2, 1)
    await graph.aclear_cache(["other"])
    await graph.ainvoke({"x": 1})
    assert (node.runs, other.runs) == (2, 2)
    await graph.aclear_cache()
    await graph.ainvoke({"x": 1})
    assert (node.runs, other.runs) == (3, 3)


async def test_bad_requests_to_clear() -> None:
    """Bad requests to clear the cache change nothing."""
    graph = graph_of(Counted())
    with pytest.raises(ConfigError, match="no such node"):
        await graph.aclear_cache(["unknown"])
    with pytest.raises(ConfigError, match="list of nodes"):
        await graph.aclear_cache("node")
    plain = StateGraph(State).add_node("node", Counted()).add_edge(START, "node").compile()
    with pytest.raises(ConfigError, match="has no cache"):
        await plain.aclear_cache()


async def test_tasks_and_entrypoints_cache_results_too() -> None:
    """`@task(cache_policy=)`, whose `key_func` gets the task's own arguments; `@entrypoint(cache_policy=)`."""
    ran: list[str] = []

    @task(cache_policy=CachePolicy(key_func=lambda x, *, noise: x))
    async def square(x: int, *, noise: str) -> int:
        ran.append(f"square {x} {noise}")
        return x * x

    @entrypoint(cache=InMemoryCache(), cache_policy=CachePolicy())
    async def work(x: int) -> int:
        ran.append(f"work {x}")
        return await square(x, noise="a") + await square(x, noise="b")

    assert (await work.ainvoke(3), await work.ainvoke(3)) == (18, 18)
    assert ran == ["work 3", "square 3 a"]


async def test_a_subgraph_uses_the_cache_of_its_parent() -> None:
    """A subgraph uses the cache of its parent unless it has one of its own."""
    inner = Counted()
    sub = StateGraph(State).add_node("inner", inner, cache_policy=CachePolicy(key_func=of_x))
    outer = StateGraph(State).add_node("sub", sub.add_edge(START, "inner").compile()).add_edge(START, "sub")
    graph = outer.compile(cache=InMemoryCache())
    first = await graph.ainvoke({"x": 1})
    assert await graph.ainvoke({"x": 1}) == first
    assert inner.runs == 1


async def test_a_graph_as_a_node_is_cached_as_a_whole() -> None:
    """A graph as a node is cached as a whole: its result is the node's."""
    inner = Counted()
    sub = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    outer = StateGraph(State).add_node("sub", sub, cache_policy=CachePolicy(key_func=of_x)).add_edge(START, "sub")
    graph = outer.compile(cache=InMemoryCache())
    first = await graph.ainvoke({"x": 1})
    assert await graph.ainvoke({"x": 1}) == first
    assert inner.runs == 1


async def test_a_question_is_not_a_result() -> None:
    """P8: neither a question nor the result of an answer, which is one person's, is cached: the next task asks
    again."""
    runs = 0

    async def ask(state: State) -> dict[str, list[str]]:
        nonlocal runs
        runs += 1
        return {"log": [interrupt("why?")]}

    graph = graph_of(ask, saver=InMemorySaver())
    assert "__interrupt__" in await graph.ainvoke({"x": 1}, "a")
    assert "__interrupt__" in await graph.ainvoke({"x": 1}, "b")
    assert (await graph.ainvoke(Command(resume="so"), "a"))["log"] == ["so"]
    assert "__interrupt__" in await graph.ainvoke({"x": 1}, "c")
    assert runs == 4


async def test_retries_come_before_caching_and_handlers_after() -> None:
    """The result of a second attempt is cached; the update of an error handler is not."""
    tries: list[int] = []

    async def second(state: State) -> dict[str, list[str]]:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("once")
        return {"log": ["second"]}

    graph = graph_of(second, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    assert (await graph.ainvoke({"x": 1}))["log"] == ["second"]
    assert (await graph.ainvoke({"x": 1}))["log"] == ["second"]
    assert len(tries) == 2

    async def never(state: State) -> None:
        tries.append(1)
        raise LookupError("never")

    graph = graph_of(never, error_handler=lambda state: {"log": ["handled"]})
    for _ in range(2):
        assert (await graph.ainvoke({"x": 1}))["log"] == ["handled"]
    assert len(tries) == 4


async def test_values_that_cannot_be_digested_or_cached_are_refused() -> None:
    """P11: an input or result that cannot be digested or stored is refused by name, with the remedy."""

    class Opaque:
        pass

    graph = graph_of(Counted(), policy=CachePolicy())
    with pytest.raises(UnstorableValueError, match="the input of node 'node'") as refused:
        await graph.ainvoke({"x": 1, "log": [Opaque()]})
    assert any("key_func" in note for note in refused.value.__notes__)

    async def gives(state: State) -> dict[str, Any]:
        return {"log": [Opaque()]}

    with pytest.raises(UnstorableValueError) as refused:
        await graph_of(gives).ainvoke({"x": 1})
    assert any("cache policy" in note for note in refused.value.__notes__)

    def broken(state: State) -> int:
        raise ArithmeticError("no key")

    with pytest.raises(ArithmeticError, match="no key"):
        await graph_of(Counted(), policy=CachePolicy(key_func=broken)).ainvoke({"x": 1})


async def test_a_cache_that_fails_fails_the_task() -> None:
    """P9: the failure of a cache fails the task."""

    class Down(InMemoryCache):
        async def aget(self, keys: Any) -> Any:
            raise StorageError("the cache is down")

    builder = StateGraph(State).add_node("node", Counted(), cache_policy=CachePolicy(key_func=of_x))
    graph = builder.add_edge(START, "node").compile(cache=Down())
    with pytest.raises(StorageError, match="down"):
        await graph.ainvoke({"x": 1})


async def test_entries_of_another_version_are_computed_again() -> None:
    """A cache is not data: an entry that cannot be read any more is computed again."""
    node = Counted()

    class Foreign(InMemoryCache):
        async def aget(self, keys: Any) -> Any:
            return dict.fromkeys(await super().aget(keys), b"what this version cannot read")

    builder = StateGraph(State).add_node("node", node, cache_policy=CachePolicy(key_func=of_x))
    graph = builder.add_edge(START, "node").compile(cache=Foreign())
    for _ in range(2):
        assert (await graph.ainvoke({"x": 1}))["log"] == ["x is 1"]
    assert node.runs == 2


async def test_a_file_keeps_results_across_processes(tmp_path: Any) -> None:
    """`SqliteCache` keeps results across processes."""
    for _ in range(2):
        node = Counted()
        builder = StateGraph(State).add_node("node", node, cache_policy=CachePolicy(key_func=of_x))
        async with SqliteCache(tmp_path / "cache.db") as cache:
            graph = builder.add_edge(START, "node").compile(cache=cache)
            assert (await graph.ainvoke({"x": 1}))["log"] == ["x is 1"]
        runs = node.runs
    assert runs == 0


async def test_cache_policies_of_the_low_level() -> None:
    """`NodeBuilder.add_cache_policy`, and `Pregel(cache_policy=)` for all nodes."""
    runs: list[int] = []

    def double(x: int) -> int:
        runs.append(x)
        return 2 * x

    node = NodeBuilder().subscribe_only("a").do(double).write_to("b")
    channels = {"a": LastValue(int), "b": LastValue(int)}
    for made, options in ((node.add_cache_policy(CachePolicy()), {}), (node, {"cache_policy": CachePolicy()})):
        graph = Pregel(
            nodes={"one": made},
            channels=channels,
            input_channels="a",
            output_channels="b",
            cache=InMemoryCache(),
            **options,
        )
        assert [await graph.ainvoke(2), await graph.ainvoke(2)] == [4, 4]
    assert runs == [2, 2]


def test_bad_policies_are_refused_at_once() -> None:
    """At declaration, by the node's name."""
    for bad in ({"ttl": 0}, {"ttl": -1}, {"ttl": float("nan")}, {"key_func": 3}, {"ttl": "soon"}):
        with pytest.raises((ValueError, TypeError)):
            CachePolicy(**bad)
    with pytest.raises(GraphValidationError, match="'node'"):
        StateGraph(State).add_node("node", Counted(), cache_policy="yes")
    with pytest.raises(GraphValidationError, match="cache"):
        StateGraph(State).add_node("node", Counted()).add_edge(START, "node").compile(cache="memory")


def closure(log: str) -> Any:
    async def node(state: State) -> Any:
        return {"log": [log]}

    return node


class NodeObject:
    """Nodes that differ in the data of their object."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.client = object()

    async def node(self, state: State) -> Any:
        return {"log": [self.log]}

    async def __call__(self, state: State) -> Any:
        return {"log": [self.log]}


async def log_text(log: str, state: State) -> Any:
    return {"log": [log]}


def node_of_closure(log: str) -> Any:
    return StateGraph(State).add_node("inside", closure(log)).add_edge(START, "inside").compile(name="inside")


@pytest.mark.parametrize(
    "made",
    [
        closure,
        NodeObject,
        node_of_closure,
        lambda log: NodeObject(log).node,
        lambda log: partial(log_text, log),
        lambda log: eval(f"lambda state: {{'log': [{log!r}]}}"),  # two lambdas that differ only in their code
        lambda log: lambda state, log=log: {"log": [log]},
    ],
    ids=["closure", "object", "graph", "method", "partial", "lambda", "default"],
)
async def test_functions_of_one_name_have_separate_results(made: Any) -> None:
    """Two nodes of one name in graphs that share a cache have their own results; the same nodes, built again, find
    them."""
    cache = InMemoryCache()

    async def run(log: str) -> Any:
        builder = StateGraph(State).add_node("node", made(log), cache_policy=CachePolicy(key_func=of_x))
        return (await builder.add_edge(START, "node").compile(cache=cache).ainvoke({"x": 1}))["log"]

    assert [await run("a"), await run("b"), await run("a")] == [["a"], ["b"], ["a"]]
    assert len(cache) == 2


async def test_an_answer_takes_precedence_over_a_cached_result() -> None:
    """P8: after an answer a task gets the result of that answer, though another task's result is cached."""

    async def ask(state: State) -> dict[str, list[str]]:
        return {"log": [interrupt("why?")]}

    graph = graph_of(ask, saver=InMemorySaver())
    for thread in ("a", "b"):
        await graph.ainvoke({"x": 1}, thread)
    assert (await graph.ainvoke(Command(resume="so"), "a"))["log"] == ["so"]
    assert (await graph.ainvoke(Command(resume="thus"), "b"))["log"] == ["thus"]


class Squares:
    """A cached task with a count of its runs."""

    def __init__(self, ask: str | None = None) -> None:
        self.runs = 0

        @task
        async def asked() -> str:
            answer: str = interrupt(ask)
            return answer

        asks = StateGraph(State).add_node("asked", lambda state: {"log": [interrupt(ask)]}).add_edge(START, "asked")
        graphs = {"graph": asks.compile(name="stored"), "forgetful graph": asks.compile(checkpointer=False)}

        @task(cache_policy=CachePolicy())
        async def square(x: int) -> Any:
            self.runs += 1
            if ask is None:
                return x * x
            if ask == "itself":
                return interrupt(ask)
            return await asked() if ask == "task" else (await graphs[ask].ainvoke({}))["log"][0]

        self.square = square


@pytest.mark.parametrize("where", ["node", "entrypoint"])
async def test_an_answer_to_the_caller_does_not_compute_a_task_again(where: str) -> None:
    """An answer to the caller, or to a sibling, does not compute a task again. A task that did not ask keeps its
    result, and gets a cached one."""
    squares = Squares()

    @task
    async def sibling() -> str:
        answer: str = interrupt("sibling?")
        return answer

    async def work(given: Any) -> Any:
        await sibling()
        answer = interrupt("caller?")
        return {"log": [answer, await squares.square(3)]}

    cache, saver = InMemoryCache(), InMemorySaver()
    if where == "entrypoint":
        graph: Any = entrypoint(saver, cache=cache)(work)
    else:
        graph = StateGraph(State).add_node("work", work).add_edge(START, "work").compile(saver, cache=cache)
    for thread in ("a", "b"):
        await graph.ainvoke({"x": 1}, thread)
        await graph.ainvoke(Command(resume="sibling"), thread)
        result = await graph.ainvoke(Command(resume="caller"), thread)
        assert result["log"] == ["caller", 9]
    assert squares.runs == 1


@pytest.mark.parametrize("ask", ["itself", "task", "graph", "forgetful graph"])
async def test_a_task_that_asked_gets_its_answer_and_no_cached_result(ask: str) -> None:
    """P8: a task that asks, itself or through its calls, returns the result of its own thread's answer, and no other
    thread gets it. After a restart the records say which tasks asked."""
    squares = Squares(ask)

    async def work(state: State) -> Any:
        return {"log": [await squares.square(3)]}

    cache, saver = InMemoryCache(), InMemorySaver()
    for answers in (("a1", "b1"), ("a2", "b2")):
        for thread in ("a", "b"):  # both have asked before either is answered
            graph = StateGraph(State).add_node("work", work).add_edge(START, "work").compile(saver, cache=cache)
            assert "__interrupt__" in await graph.ainvoke({"x": 1, "log": []}, thread)
        for thread, answer in zip(("a", "b"), answers, strict=True):
            graph = StateGraph(State).add_node("work", work).add_edge(START, "work").compile(saver, cache=cache)
            assert (await graph.ainvoke(Command(resume=answer), thread))["log"][-1] == answer
    assert len(cache) == 0


async def test_a_node_of_a_graph_that_stores_nothing_caches_no_answer() -> None:
    """P8: a graph with `checkpointer=False` has no records of its own; the answers of its nodes are known all
    the same."""

    async def ask(state: State) -> dict[str, list[str]]:
        return {"log": [interrupt("why?")]}

    inside = StateGraph(State).add_node("ask", ask, cache_policy=CachePolicy(key_func=of_x)).add_edge(START, "ask")
    outer = StateGraph(State).add_node("inside", inside.compile(checkpointer=False)).add_edge(START, "inside")
    cache = InMemoryCache()
    graph = outer.compile(InMemorySaver(), cache=cache)
    for thread in ("a", "b"):
        assert "__interrupt__" in await graph.ainvoke({"x": 1}, thread)
        assert (await graph.ainvoke(Command(resume=thread), thread))["log"] == [thread]
    assert len(cache) == 0


async def test_results_of_tasks_can_be_cleared() -> None:
    """`task.aclear_cache(cache)` clears the task's results for all arguments, and no other task's."""
    squares, others = Squares(), Counted()
    cache = InMemoryCache()

    async def work(state: State) -> Any:
        return {"log": [await squares.square(2), await squares.square(3)]}

    builder = StateGraph(State).add_node("work", work).add_node("others", others, cache_policy=CachePolicy())
    graph = builder.add_edge(START, "work").add_edge(START, "others").compile(cache=cache)
    await graph.ainvoke({"x": 1})
    await graph.ainvoke({"x": 1})
    assert (squares.runs, others.runs) == (2, 1)
    await squares.square.aclear_cache(cache)
    await graph.ainvoke({"x": 1})
    assert (squares.runs, others.runs) == (4, 1)
    await anyio.to_thread.run_sync(squares.square.clear_cache, cache)
    await graph.ainvoke({"x": 1})
    assert (squares.runs, others.runs) == (6, 1)
    wrong: Any = ["square"]
    with pytest.raises(ConfigError, match="task 'square' takes the cache"):
        await squares.square.aclear_cache(wrong)
