"""`astream_events` without langchain-core: events of graphs, nodes, tasks and tokens, made of the stream's own parts."""

from __future__ import annotations

import operator
import sys
import uuid
from typing import Annotated, Any, TypedDict

import anyio.to_thread
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.caches import InMemoryCache
from pregel_async import START, CachePolicy, StateGraph, entrypoint, get_stream_writer, interrupt, task
from pregel_async.errors import ConfigError

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def without_langchain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the program did not use langchain-core, where it is installed."""
    monkeypatch.delitem(sys.modules, "langchain_core.runnables", raising=False)


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[str], operator.add]


@task
async def double(n: int) -> int:
    return n * 2


async def speak(state: State) -> Any:
    writer = get_stream_writer()
    for token in ("hel", "lo"):
        await writer.message({"role": "assistant", "content": token, "id": "m"}, {"tags": ["k"], "about": 1})
    return {"x": await double(2), "log": ["spoken"]}


inner = StateGraph(State).add_node("within", lambda state: {"log": ["i"]}).add_edge(START, "within").compile(name="sub")


def program(**options: Any) -> Any:
    builder = StateGraph(State).add_node(speak).add_node("calls", inner)
    return builder.add_edge(START, "speak").add_edge("speak", "calls").compile(**options)


async def events(graph: Any, given: Any, config: Any = None, **options: Any) -> list[Any]:
    return [event async for event in graph.astream_events(given, config, **options)]


def outline(found: list[Any]) -> list[str]:
    return [f"{'  ' * len(event['parent_ids'])}{event['event']} {event['name']}" for event in found]


EVENTS = """
on_chain_start LangGraph
  on_chain_start speak
    on_chat_model_start chat_model
    on_chat_model_stream chat_model
    on_chat_model_stream chat_model
    on_chain_start double
    on_chain_stream double
    on_chain_end double
on_chain_stream LangGraph
    on_chat_model_end chat_model
  on_chain_stream speak
  on_chain_end speak
on_chain_stream LangGraph
  on_chain_start calls
    on_chain_start sub
      on_chain_start within
      on_chain_stream within
      on_chain_end within
    on_chain_end sub
  on_chain_stream calls
  on_chain_end calls
on_chain_stream LangGraph
on_chain_end LangGraph
"""


async def test_the_events_of_a_run() -> None:
    """Starts, chunks and ends come in order, nested by `parent_ids`, with inputs, outputs, tags and metadata."""
    run_id = uuid.UUID(int=7)
    config = {"tags": ["t"], "metadata": {"u": 1}, "run_id": run_id}
    found = await events(program(), {"x": 0}, config, version="v2")
    assert outline(found) == EVENTS.split("\n")[1:-1]
    root, speaks, model = found[:3]
    assert root == {
        "event": "on_chain_start",
        "data": {"input": {"x": 0}},
        "name": "LangGraph",
        "run_id": str(run_id),
        "tags": ["t"],
        "metadata": {"u": 1},
        "parent_ids": [],
    }
    assert speaks["tags"] == ["graph:step:1", "t"]
    ns = speaks["metadata"].pop("langgraph_checkpoint_ns")
    assert ns.startswith("speak:")
    assert speaks["metadata"] == {
        "u": 1,
        "langgraph_step": 1,
        "langgraph_node": "speak",
        "langgraph_triggers": ("branch:to:speak",),
        "langgraph_path": ("__pregel_pull", "speak"),
    }
    assert model["tags"] == ["t", "k"]
    assert model["metadata"]["about"] == 1
    assert model["metadata"]["langgraph_checkpoint_ns"] == ns
    assert [event["data"]["chunk"]["content"] for event in found[3:5]] == ["hel", "lo"]
    ends = {event["name"]: event["data"] for event in found if event["event"].endswith("_end")}
    assert ends["chat_model"] == {"output": {"role": "assistant", "content": "hello", "id": "m"}}
    assert ends["double"] == {"output": 4, "input": ((2,), {})}
    assert ends["speak"] == {"output": {"x": 4, "log": ["spoken"]}, "input": {"x": 0, "log": []}}
    assert ends["sub"] == {"output": {"x": 4, "log": ["spoken", "i"]}, "input": {"x": 4, "log": ["spoken"]}}
    assert ends["LangGraph"] == {"output": {"x": 4, "log": ["spoken", "spoken", "i"]}}
    assert found[12]["data"] == {"chunk": {"speak": {"x": 4, "log": ["spoken"]}}}
    runs = {event["run_id"]: event for event in found}
    assert len(runs) == 7
    for event in found:
        assert [runs[outer]["name"] for outer in event["parent_ids"]][:1] in ([], ["LangGraph"])


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ({"include_names": ["speak"]}, ["speak"]),
        ({"include_types": ["chat_model"]}, ["chat_model"]),
        ({"include_tags": ["k"]}, ["chat_model"]),
        ({"include_names": ["calls"], "include_types": ["chat_model"]}, ["calls", "chat_model"]),
        ({"include_types": ["chain"], "exclude_names": ["LangGraph", "double", "sub", "within"]}, ["calls", "speak"]),
        ({"exclude_types": ["chain"]}, ["chat_model"]),
        ({"exclude_tags": ["graph:step:1", "graph:step:2", "k"]}, ["LangGraph", "sub"]),
        ({"include_names": []}, []),
    ],
    ids=str,
)
async def test_filters(filters: Any, shown: list[str]) -> None:
    """A name, type or tag in an `include` option shows a run, and one in an `exclude` option hides it."""
    assert sorted({event["name"] for event in await events(program(), {}, **filters)}) == shown


@pytest.mark.one_loop
async def test_the_chunks_of_the_graph_have_the_modes_of_the_call() -> None:
    """`stream_mode` decides what the graph's `on_chain_stream` events have; several modes are labelled."""
    graph = StateGraph(State).add_node("n", lambda state: {"x": 1}).add_edge(START, "n").compile()

    async def chunks(**options: Any) -> list[Any]:
        found = await events(graph, {"x": 0}, **options)
        return [one["data"]["chunk"] for one in found if one["name"] == "LangGraph" and "chunk" in one["data"]]

    assert await chunks() == [{"n": {"x": 1}}]
    assert await chunks(stream_mode="values") == [{"x": 0, "log": []}, {"x": 1, "log": []}]
    assert await chunks(stream_mode=["updates", "values"]) == [
        ("values", {"x": 0, "log": []}),
        ("updates", {"n": {"x": 1}}),
        ("values", {"x": 1, "log": []}),
    ]


async def test_questions_and_failures() -> None:
    """A node that asks, or fails, has a start and no end. A question ends the run; a failure is raised."""

    def ask(state: State) -> Any:
        return {"log": [interrupt("?")]}

    def fail(state: State) -> Any:
        raise ValueError("no")

    asks = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(InMemorySaver())
    found = await events(asks, {}, "t")
    assert outline(found) == [
        "on_chain_start LangGraph",
        "  on_chain_start ask",
        "on_chain_stream LangGraph",
        "on_chain_end LangGraph",
    ]
    assert found[0]["metadata"] == {"thread_id": "t"}
    assert found[2]["data"]["chunk"]["__interrupt__"][0].value == "?"

    seen: list[Any] = []
    fails = StateGraph(State).add_node(fail).add_edge(START, "fail").compile()
    with pytest.raises(ValueError, match="no"):
        async for event in fails.astream_events({}):
            seen.append(event)  # noqa: PERF401  # a comprehension would lose what came before the failure
    assert outline(seen) == ["on_chain_start LangGraph", "  on_chain_start fail"]


@pytest.mark.one_loop
async def test_a_cached_result_ends_its_node() -> None:
    """A node whose result is cached has an end, with the result."""
    builder = StateGraph(State).add_node("n", lambda state: {"x": 1}, cache_policy=CachePolicy())
    graph = builder.add_edge(START, "n").compile(cache=InMemoryCache())
    await graph.ainvoke({})
    found = await events(graph, {}, include_names=["n"])
    assert [(one["event"], one["data"].get("output")) for one in found] == [
        ("on_chain_start", None),
        ("on_chain_end", {"x": 1}),
    ]


async def test_the_events_of_a_workflow() -> None:
    """The output of the entrypoint's node, and of a called task, is what the function returned."""

    @entrypoint()
    async def flow(n: int) -> int:
        return await double(n) + 1

    found = await events(flow, 3, version="v2")
    ends = {event["name"]: event["data"]["output"] for event in found if event["event"] == "on_chain_end"}
    assert ends["double"] == 6 and ends["flow"] == 7


async def test_closing_the_stream_cancels_the_run() -> None:
    """A reader that closes the generator cancels the run, which cleans up first."""
    ended: list[str] = []

    async def hang(state: State) -> Any:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cleaned up")

    stream = StateGraph(State).add_node(hang).add_edge(START, "hang").compile().astream_events({})
    assert (await anext(stream))["name"] == "LangGraph"
    assert (await anext(stream))["name"] == "hang"
    await stream.aclose()
    assert ended == ["cleaned up"]


async def test_the_sync_method_yields_the_same_events() -> None:
    """`stream_events` yields the events of `astream_events`."""

    def read() -> list[Any]:
        with program().stream_events({"x": 0}) as found:
            return list(found)

    assert outline(await anyio.to_thread.run_sync(read)) == EVENTS.split("\n")[1:-1]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"version": "v1"}, ConfigError, "use astream"),
        ({"version": "v3"}, ConfigError, "use astream"),
        ({"transformers": [str]}, ConfigError, "astream"),
        ({"include_names": "speak"}, ConfigError, "include_names is a list"),
        ({"stream_mode": "nothing"}, ConfigError, "nothing"),
        ({"include_name": ["x"]}, TypeError, "Did you mean 'include_names'"),
    ],
    ids=str,
)
def test_what_is_refused(options: Any, error: type[Exception], says: str) -> None:
    """Other versions, transformers and wrong options raise when the stream is made; nothing runs."""
    with pytest.raises(error, match=says):
        program().astream_events({}, **options)
    with pytest.raises(error, match=says):
        program().stream_events({}, **options)
