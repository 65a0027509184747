"""Callbacks of langchain-core see runs of graphs as LangGraph's: graph run, node run, then what the node calls."""

from __future__ import annotations

import operator
import subprocess
import sys
import uuid
from typing import Annotated, Any, TypedDict

import anyio
import pytest

pytest.importorskip("langchain_core", reason="langchain-core is not installed here: nox -s langchain installs it")

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from checkpoint_savers import InMemorySaver
from checkpoint_savers.caches import InMemoryCache
from pregel_async import (
    END,
    START,
    CachePolicy,
    Command,
    RetryPolicy,
    RunnableConfig,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from pregel_async._runtime.tasks import attempt
from pregel_async.errors import NodeTimeoutError
from pregel_async.langchain import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent, tracing
from tests.langchain.recorder import Recorder, model

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[str], operator.add]


@tool
def add(a: int) -> str:
    """Add one."""
    return str(a + 1)


def one_node(node: Any, name: str = "n") -> StateGraph[Any]:
    return StateGraph(State).add_node(name, node).add_edge(START, name)


def whole_program() -> Any:
    """A node that awaits a model, a router, a sync node with a tool, a node that runs a graph, and a graph as node."""
    talks = model()

    async def ask(state: State) -> Any:
        return {"x": 1, "log": [str((await talks.ainvoke("hi")).content)]}

    def route(state: State) -> list[str]:
        return ["act"]

    def act(state: State) -> Any:
        return {"log": [add.invoke({"a": 1})]}

    inner = one_node(lambda state: {"log": [str(talks.invoke("yo").content)]}, "within").compile(name="inner")

    async def call(state: State) -> Any:
        await inner.ainvoke({"x": 5})

    builder = StateGraph(State).add_node(ask).add_node(act).add_node(call).add_node("sub", inner)
    builder.add_edge(START, "ask").add_conditional_edges("ask", route, ["act"])
    return builder.add_edge("act", "call").add_edge("call", "sub").compile(InMemorySaver(), name="outer")


WHOLE_TREE = [
    "outer done",
    "  ask done",
    "    model done",
    "    route done",
    "  act done",
    "    add done",
    "  call done",
    "    inner done",
    "      within done",
    "        model done",
    "  sub done",
    "    inner done",
    "      within done",
    "        model done",
]


@pytest.mark.one_loop
async def test_the_tree_of_runs() -> None:
    """Models, tools, routers and graphs that nodes call without passing a config are nested in their node's run."""
    recorder = Recorder()
    run_id = uuid.uuid4()
    config = {
        "callbacks": [recorder],
        "configurable": {"thread_id": "t"},
        "metadata": {"user": "ada"},
        "tags": ["mine"],
        "run_id": run_id,
    }
    result = await whole_program().ainvoke({"x": 0}, config)
    assert recorder.tree == WHOLE_TREE
    assert next(iter(recorder.runs)) == run_id
    outer, ask, talked, route = [*recorder.runs.values()][:4]
    assert (outer.inputs, outer.output) == ({"x": 0}, result)
    assert (ask.inputs, ask.output) == ({"x": 0, "log": []}, {"x": 1, "log": ["hello there"]})
    assert (route.inputs, route.output) == ({"x": 1, "log": ["hello there"]}, ["act"])
    assert [run.tags for run in (outer, ask, talked, route)] == [
        ["mine"],
        ["graph:step:1", "mine"],
        ["seq:step:1", "mine"],
        ["seq:step:3", "mine"],
    ]
    assert outer.metadata == {"user": "ada", "thread_id": "t"}
    expected = {
        "user": "ada",
        "thread_id": "t",
        "langgraph_step": 1,
        "langgraph_node": "ask",
        "langgraph_triggers": ("branch:to:ask",),
        "langgraph_path": ("__pregel_pull", "ask"),
        "langgraph_checkpoint_ns": ask.metadata["langgraph_checkpoint_ns"],
    }
    assert ask.metadata == route.metadata == expected
    assert talked.metadata.items() >= {**expected, "checkpoint_ns": ask.metadata["langgraph_checkpoint_ns"]}.items()
    call, inner, within = recorder.named("call"), recorder.named("inner"), recorder.named("within")
    assert inner.metadata == {**call.metadata, "checkpoint_ns": call.metadata["langgraph_checkpoint_ns"]}
    assert within.metadata["langgraph_node"] == "within"
    assert within.metadata["checkpoint_ns"] == call.metadata["langgraph_checkpoint_ns"]


def test_sync_methods_show_the_same_tree() -> None:
    """`invoke` and `stream` report the same runs."""
    for call in (lambda graph, *args: graph.invoke(*args), lambda graph, *args: list(graph.stream(*args))):
        recorder = Recorder()
        call(whole_program(), {"x": 0}, {"callbacks": [recorder], "configurable": {"thread_id": "t"}})
        assert recorder.tree == WHOLE_TREE


async def test_on_every_event_loop() -> None:
    """Sync handlers see graphs and nodes on trio too, and what nodes call by sync methods."""
    recorder = Recorder()
    graph = one_node(lambda state: {"log": [add.invoke({"a": 1})]}).compile(name="g")
    await graph.ainvoke({}, {"callbacks": [recorder]})
    assert recorder.tree == ["g done", "  n done", "    add done"]


@pytest.mark.one_loop
async def test_a_node_that_passes_its_config() -> None:
    """A config that a node passes on nests calls in the node's run, and gives each a run of its own."""
    recorder, talks = Recorder(), model()

    async def node(state: State, config: RunnableConfig) -> Any:
        await talks.ainvoke("a", config)
        await talks.ainvoke("b", config)
        await RunnableLambda(lambda x: x).ainvoke(1, config)

    await one_node(node).compile(name="g").ainvoke({}, {"callbacks": [recorder], "run_id": uuid.uuid4()})
    assert recorder.tree == ["g done", "  n done", "    model done", "    model done", "    RunnableLambda done"]


@pytest.mark.one_loop
async def test_failures_and_questions() -> None:
    """A failure ends the runs of node and graph with the error; a question ends the node's run, and not the graph's."""
    recorder = Recorder()

    async def fail(state: State) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await one_node(fail).compile(name="g").ainvoke({}, {"callbacks": [recorder]})
    assert recorder.tree == ["g ValueError", "  n ValueError"]

    recorder = Recorder()
    config = {"callbacks": [recorder], "configurable": {"thread_id": "t"}}
    graph = one_node(lambda state: {"log": [interrupt("?")]}).compile(InMemorySaver(), name="g")
    await graph.ainvoke({}, config)
    await graph.ainvoke(Command(resume="yes"), config)
    assert recorder.tree == ["g done", "  n GraphInterrupt", "g done", "  n done"]


@pytest.mark.one_loop
async def test_a_failing_router() -> None:
    """A router's failure ends the runs of the router, its node and the graph."""
    recorder = Recorder()

    async def route(state: State) -> str:
        raise ValueError("no")

    graph = one_node(lambda state: None).add_conditional_edges("n", route, ["n"]).compile(name="g")
    with pytest.raises(ValueError, match="no"):
        await graph.ainvoke({}, {"callbacks": [recorder]})
    assert recorder.tree == ["g ValueError", "  n ValueError", "    route ValueError"]


@pytest.mark.one_loop
async def test_a_cancelled_run_is_reported() -> None:
    """Handlers learn of a cancellation, although the run's task is cancelled."""
    recorder, started = Recorder(), anyio.Event()

    async def hang(state: State) -> Any:
        started.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(one_node(hang).compile(name="g").ainvoke, {}, {"callbacks": [recorder]})
        await started.wait()
        group.cancel_scope.cancel()
    assert recorder.tree == ["g CancelledError", "  n CancelledError"]


@pytest.mark.one_loop
async def test_tasks_are_nested_in_their_caller() -> None:
    """A task is a run inside the attempt that calls it, with its arguments by name."""
    recorder, talks = Recorder(), model()

    @task
    async def double(n: int, *, by: int = 2) -> int:
        await talks.ainvoke("q")
        return n * by

    @entrypoint()
    async def flow(n: int) -> int:
        return await double(n) + await double(5, by=3)

    assert await flow.ainvoke(1, {"callbacks": [recorder]}) == 17
    expected = ["  flow done", *(["    double done", "      model done"] * 2)]
    assert recorder.tree == ["LangGraph done", *expected]
    assert [run.inputs for run in recorder.runs.values() if run.name == "double"] == [{"n": 1}, {"n": 5, "by": 3}]


@pytest.mark.one_loop
async def test_each_attempt_is_a_run() -> None:
    """A retried node is a run for each attempt."""
    recorder, failures = Recorder(), [ConnectionError("once")]

    async def node(state: State) -> Any:
        while failures:
            raise failures.pop()

    builder = StateGraph(State).add_node("n", node, retry_policy=RetryPolicy(initial_interval=0, jitter=False))
    await builder.add_edge(START, "n").compile(name="g").ainvoke({}, {"callbacks": [recorder]})
    assert recorder.tree == ["g done", "  n ConnectionError", "  n done"]


@pytest.mark.one_loop
async def test_a_cached_node_is_no_run() -> None:
    """A node that does not run, because its result is cached, is not shown; its router is, as it is evaluated."""

    def route(state: State) -> str:
        return END

    async def tree() -> list[str]:
        graph, recorder = builder.compile(name="g", cache=InMemoryCache()), Recorder()
        await graph.ainvoke({"x": 0})
        assert await graph.ainvoke({"x": 0}, {"callbacks": [recorder]}) == {"x": 1, "log": []}
        return recorder.tree

    builder = StateGraph(State).add_node("n", lambda state: {"x": 1}, cache_policy=CachePolicy()).add_edge(START, "n")
    assert await tree() == ["g done"]
    builder.add_conditional_edges("n", route)
    assert await tree() == ["g done", "  n done", "    route done"]


@pytest.mark.one_loop
async def test_a_graph_inherits_from_the_runnable_that_calls_it() -> None:
    """A graph that a chain or tool calls without a config is nested in that call, on the thread that the caller named,
    with its tags and metadata; a config that is handed on has the same effect."""
    seen: list[Any] = []

    def node(state: State, config: RunnableConfig) -> Any:
        seen.append((config["configurable"]["thread_id"], config["configurable"]["mine"], config["tags"]))

    graph = one_node(node).compile(InMemorySaver(), name="g")

    async def implicit(x: int) -> Any:
        return await graph.ainvoke({"x": x})

    async def handed_on(x: int, config: Any) -> Any:
        return await graph.ainvoke({"x": x}, config)

    @tool
    async def as_tool(x: int) -> str:
        """Run the graph."""
        return str(await graph.ainvoke({"x": x}))

    for caller, given in ((RunnableLambda(implicit), 1), (RunnableLambda(handed_on), 1), (as_tool, {"x": 1})):
        recorder = Recorder()
        configurable = {"thread_id": "t", "mine": 1}
        await caller.ainvoke(given, {"callbacks": [recorder], "tags": ["a"], "configurable": configurable})
        assert recorder.tree[1:] == ["  g done", "    n done"]
        assert [tag for tag in recorder.named("n").tags if not tag.startswith("graph:")] == ["a"]
    assert seen == [("t", 1, ["a"])] * 3
    stored = (await graph.aget_state("t")).metadata
    assert stored is not None
    assert not [key for key in stored if key.startswith("langgraph")]


@pytest.mark.one_loop
async def test_bound_and_given_callbacks_are_joined() -> None:
    """Callbacks of `with_config` and of the call see the run, each once; a manager nests the run in its own."""
    from langchain_core.callbacks import AsyncCallbackManager

    bound, given = Recorder(), Recorder()
    graph = one_node(lambda state: None).compile(name="g").with_config({"callbacks": [bound]})
    await graph.ainvoke({}, {"callbacks": [given, bound]})
    assert bound.tree == given.tree == ["g done", "  n done"]
    manager = AsyncCallbackManager.configure(inheritable_callbacks=[given])
    await graph.ainvoke({}, {"callbacks": manager})
    assert given.tree == bound.tree == ["g done", "  n done"] * 2
    assert manager.handlers == [given]


class AsyncHandler(AsyncCallbackHandler):
    """Awaits, as a tracer does that sends what it sees."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.seen.append(f"start {more['name']}")

    async def on_chain_end(self, outputs: Any, **more: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.seen.append("end")


@pytest.mark.one_loop
async def test_async_handlers_are_awaited() -> None:
    """Async handlers run on the run's event loop, in order."""
    handler = AsyncHandler()
    await one_node(lambda state: None).compile(name="g").ainvoke({}, {"callbacks": [handler]})
    assert handler.seen == ["start g", "start n", "end", "end"]


class HangingHandler(AsyncCallbackHandler):
    """Waits for ever when it learns of the start of a run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reached = anyio.Event()

    async def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
        if more["name"] == self.name:
            self.reached.set()
            await anyio.sleep_forever()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("name", "tree"), [("n", ["g CancelledError", "  n CancelledError"]), ("g", ["g CancelledError"])]
)
async def test_a_cancellation_while_a_handler_learns_of_a_start(name: str, tree: list[str]) -> None:
    """Other handlers, which have seen the start, see the end too: no run stays open."""
    recorder, hanging = Recorder(), HangingHandler(name)
    recorder.run_inline = True  # not in a thread, which may come after the handler that hangs
    graph = one_node(lambda state: None).compile(name="g")
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {}, {"callbacks": [recorder, hanging]})
        await hanging.reached.wait()
        group.cancel_scope.cancel()
    assert recorder.tree == tree


@pytest.mark.one_loop
async def test_a_timeout_while_a_handler_learns_of_a_start() -> None:
    """A node's timeout includes the handlers that learn of it; its run is reported as cancelled."""

    async def node(state: State) -> None: ...

    recorder = Recorder()
    recorder.run_inline = True
    graph = StateGraph(State).add_node("n", node, timeout=0.5).add_edge(START, "n").compile(name="g")
    with pytest.raises(NodeTimeoutError):
        await graph.ainvoke({}, {"callbacks": [recorder, HangingHandler("n")]})
    assert recorder.tree == ["g NodeTimeoutError", "  n CancelledError"]


class SlowHandler(AsyncCallbackHandler):
    """Needs time to report a failure."""

    def __init__(self) -> None:
        self.reported: list[BaseException] = []

    async def on_chain_error(self, error: BaseException, **more: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.reported.append(error)


@pytest.mark.one_loop
async def test_handlers_may_take_their_time_for_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the report of a cancellation is limited: a failure's is awaited to its end."""
    monkeypatch.setattr(tracing, "CLEANUP_SECONDS", 0)

    def fail(state: State) -> None:
        raise ConnectionError

    slow = SlowHandler()
    with pytest.raises(ConnectionError):
        await one_node(fail).compile().ainvoke({}, {"callbacks": [slow]})
    assert [type(error) for error in slow.reported] == [ConnectionError, ConnectionError]


@pytest.mark.one_loop
async def test_settings_reach_runnables_without_callbacks() -> None:
    """Without handlers too, runnables that a node calls inherit configurable values, tags and metadata."""
    seen: list[Any] = []

    def look(x: int, config: Any) -> int:
        seen.append((config["configurable"]["mine"], config["tags"], config["metadata"]["langgraph_node"]))
        return x

    async def node(state: State) -> Any:
        await RunnableLambda(look).ainvoke(1)

    await one_node(node).compile().ainvoke({}, {"configurable": {"mine": 1}, "tags": ["a"]})
    assert seen == [(1, ["a"], "n")]


@pytest.mark.one_loop
async def test_nodes_without_callbacks_copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program that uses langchain-core, nodes of a run without handlers cost no more copies than without it: none of
    the input, and none of the context for tasks of their own."""
    copies: list[str] = []

    def count(name: str) -> None:
        real = getattr(attempt, name)
        monkeypatch.setattr(attempt, name, lambda *args: [copies.append(name), real(*args)][1])

    count("copy_context")
    count("_traced_input")

    async def node(state: State) -> Any:
        await anyio.lowlevel.checkpoint()  # the others get tasks of the event loop

    builder = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, node).add_edge(START, name)
    graph = builder.compile(name="g")
    await graph.ainvoke({}, {"tags": ["t"]})
    assert copies == ["copy_context"]
    copies.clear()
    await graph.ainvoke({}, {"callbacks": [Recorder()]})
    assert sorted(copies) == ["_traced_input"] * 3 + ["copy_context"] * 3


@pytest.mark.one_loop
async def test_tokens_and_callbacks_at_once() -> None:
    """Streaming tokens and reporting runs do not disturb each other; each token is streamed once."""
    recorder, talks = Recorder(), model()

    async def node(state: State) -> Any:
        return {"log": [str((await talks.ainvoke("hi")).content)]}

    graph = one_node(node).compile(name="g")
    config = {"callbacks": [recorder], "metadata": {"user": "ada"}}
    streamed = [chunk async for chunk in graph.astream({}, config, stream_mode="messages")]
    assert [message.content for message, _ in streamed] == ["hello", " ", "there"]
    assert streamed[0][1]["user"] == "ada"
    assert recorder.tree == ["g done", "  n done", "    model done"]


def test_a_program_without_langchain_imports_none() -> None:
    """Running a graph imports no module of langchain-core, and none that uses it."""
    code = (
        "import sys, pregel_async\n"
        "from pregel_async import START, StateGraph\n"
        "b = StateGraph(dict).add_node('n', lambda state: {}).add_edge(START, 'n')\n"
        "b.compile().invoke({}, {'tags': ['x'], 'metadata': {'a': 1}})\n"
        "print([name for name in sys.modules if 'langchain' in name])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


class Pauses(GraphCallbackHandler):
    """Notes pauses and resumes."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        self.seen.append(("paused", event.status, event.checkpoint_id, [one.value for one in event.interrupts]))

    def on_resume(self, event: GraphResumeEvent) -> None:
        ns = [part.partition(":")[0] for part in event.checkpoint_ns]
        self.seen.append(("resumed", event.status, event.checkpoint_id, ns))


async def test_graph_callbacks_see_pauses_and_resumes() -> None:
    """A `GraphCallbackHandler` is told of questions, breakpoints and resumes, with the checkpoint; a new input and an end
    are neither."""
    handler = Pauses()
    config = {"configurable": {"thread_id": "t"}, "callbacks": [handler]}
    builder = one_node(lambda state: {"log": [interrupt("?")]}).add_node("b", lambda state: None).add_edge("n", "b")
    graph = builder.compile(InMemorySaver(), interrupt_before=["b"], interrupt_after=["b"], name="g")

    async def call(given: Any) -> list[Any]:
        handler.seen.clear()
        await graph.ainvoke(given, config)
        return [*handler.seen]

    async def head() -> str:
        return str((await graph.aget_state("t")).config["configurable"]["checkpoint_id"])

    assert await call({}) == [("paused", "pending", await head(), ["?"])]
    asked = await head()
    answered = await call(Command(resume="yes"))
    assert answered == [("resumed", "pending", asked, []), ("paused", "interrupt_before", await head(), [])]
    before = await head()
    went_on = await call(None)
    assert went_on[0] == ("resumed", "pending", before, [])
    assert (await call({}))[0][:2] == ("paused", "pending")


async def test_graph_callbacks_see_resumes_of_subgraphs() -> None:
    """A pause in a subgraph is reported once, for the graph that was called; a resume is reported for each graph."""
    handler = Pauses()
    config = {"configurable": {"thread_id": "t"}, "callbacks": [handler]}
    inner = one_node(lambda state: {"log": [interrupt("?")]}, "asks").compile()
    graph = one_node(inner, "sub").compile(InMemorySaver())
    await graph.ainvoke({}, config)
    await graph.ainvoke(Command(resume="yes"), config)
    assert [(what, given) for what, _, _, given in handler.seen] == [
        ("paused", ["?"]),
        ("resumed", []),
        ("resumed", ["sub"]),
    ]
