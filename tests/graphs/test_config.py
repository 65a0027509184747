"""Configs and arguments of calls: what is accepted, refused and bound."""

from __future__ import annotations

import operator
import uuid
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, Command, RunnableConfig, Send, StateGraph, get_config
from pregel_async._checks.config import merge_configs
from pregel_async.errors import ConfigError, GraphRecursionError, PregelError, UnsettableAttributeError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def graph(*names: str, saver: Any = None, **settings: Any) -> Any:
    made = StateGraph(State)
    made.add_sequence([(name, lambda state, name=name: {"log": [name]}) for name in names or ("n",)])
    return made.add_edge(START, names[0] if names else "n").compile(saver, blocking=False, **settings)


ON_A_THREAD = {"configurable": {"thread_id": "t"}}
WRONG: list[tuple[Any, str]] = [
    ({"thread_id": "t"}, "'thread_id' belongs under 'configurable'"),
    ({"checkpoint_id": "c"}, "'checkpoint_id' belongs under 'configurable'"),
    ({"checkpoint_ns": ""}, "'checkpoint_ns' belongs under 'configurable'"),
    ({"recursionlimit": 5}, "unknown config key 'recursionlimit'"),
    ({"callbacks": "x"}, "callbacks"),
    ({"callbacks": object()}, "callbacks"),
    ({1: 2}, "unknown config key 1"),
    ({"configurable": {"recursion_limit": 5}}, "'recursion_limit' belongs at the top"),
    ({"configurable": {"metadata": {}}}, "'metadata' belongs at the top"),
    ({"configurable": {"max_concurrency": 1}}, "'max_concurrency' belongs at the top"),
    ({"configurable": {"tags": []}}, "'tags' belongs at the top"),
    ({"configurable": "t"}, "configurable"),
    ({"configurable": ["t"]}, "configurable"),
    ({"metadata": ["x"]}, "metadata"),
    ({"metadata": "x"}, "metadata"),
    ({"tags": "x"}, "tags"),
    ({"tags": ("x",)}, "tags"),
    ({"run_id": 5}, "run_id"),
    ({"run_name": 5}, "run_name"),
    ({"recursion_limit": 0, **ON_A_THREAD}, "recursion_limit"),
    ({"recursion_limit": -1, **ON_A_THREAD}, "recursion_limit"),
    ({"recursion_limit": 1.5, **ON_A_THREAD}, "recursion_limit"),
    ({"recursion_limit": "5", **ON_A_THREAD}, "recursion_limit"),
    ({"recursion_limit": True, **ON_A_THREAD}, "recursion_limit"),
    ({"max_concurrency": 0, **ON_A_THREAD}, "max_concurrency"),
    ({"max_concurrency": "1", **ON_A_THREAD}, "max_concurrency"),
    ({"configurable": {"thread_id": ""}}, "thread_id"),
    ({"configurable": {"thread_id": "\ud800"}}, "thread_id"),
    ({"configurable": {"thread_id": "t", "checkpoint_id": 5}}, "checkpoint_id"),
    ({"configurable": {"thread_id": "t", "checkpoint_ns": 5}}, "checkpoint_ns"),
    ({"configurable": {"thread_id": "t", "checkpoint_ns": "n:1"}}, "checkpoint_ns"),
    ("", "thread_id"),
    (5, "mapping"),
    ([("configurable", {})], "mapping"),
]


@pytest.mark.parametrize(("config", "says"), WRONG, ids=[str(index) for index in range(len(WRONG))])
async def test_configs_that_are_refused(config: Any, says: str) -> None:
    """Unknown top-level keys, known keys in the wrong place and wrong types raise before anything is run or stored; a
    stream raises when it is created."""
    saver = InMemorySaver()
    made = graph(saver=saver)
    with pytest.raises(ConfigError, match=says) as caught:
        await made.ainvoke({}, config)
    assert isinstance(caught.value, PregelError)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(ConfigError, match=says):
        made.astream({}, config)
    assert [header async for header in saver.alist(None)] == []


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        "t",
        {"configurable": {}},
        {"configurable": None},
        {"configurable": {"thread_id": "t", "user_key": object(), "other": 1}},
        {"configurable": {"thread_id": 5}},
        {
            "recursion_limit": 5,
            "max_concurrency": 2,
            "metadata": {"a": 1},
            "tags": ["x"],
            "run_id": "r",
            "run_name": "n",
        },
        {"max_concurrency": None, "recursion_limit": None, "tags": None, "metadata": None},
        {"callbacks": None, "run_id": None, "run_name": None},
        {"callbacks": [object()], "run_id": uuid.UUID(int=5)},
    ],
    ids=[str(index) for index in range(11)],
)
async def test_configs_that_are_taken(config: Any) -> None:
    """A config is LangGraph's mapping, or only the thread's id; other keys under `configurable` belong to the user."""
    assert await graph().ainvoke({}, config) == {"log": ["n"]}
    assert [chunk async for chunk in graph().astream({}, config)] == [{"n": {"log": ["n"]}}]


@pytest.mark.parametrize("config", [None, {}, {"configurable": {}}, {"configurable": {"user_key": 1}}], ids=repr)
async def test_a_stored_run_needs_a_thread(config: Any) -> None:
    """A call with a checkpointer but no thread_id raises an error that says what to pass."""
    with pytest.raises(ConfigError, match="thread_id"):
        await graph(saver=InMemorySaver()).ainvoke({}, config)


async def test_a_thread_id_may_be_a_string_or_a_number() -> None:
    """A thread's id as the whole config, under `configurable`, or as another type, names the same thread."""
    made = graph(saver=InMemorySaver())
    await made.ainvoke({}, "7")
    await made.ainvoke({}, {"configurable": {"thread_id": "7"}})
    await made.ainvoke({}, {"configurable": {"thread_id": 7}})
    assert (await made.aget_state("7")).values == {"log": ["n", "n", "n"]}


async def test_a_config_is_left_as_it_is() -> None:
    """P1: the caller's config is neither changed nor kept."""
    config: dict[str, Any] = {"configurable": {"thread_id": "t", "key": [1]}, "metadata": {"a": 1}, "tags": ["x"]}
    made = graph(saver=InMemorySaver())
    bound = made.with_config(config)
    await bound.ainvoke({}, {"metadata": {"b": 2}, "tags": ["y"]})
    assert config == {"configurable": {"thread_id": "t", "key": [1]}, "metadata": {"a": 1}, "tags": ["x"]}
    config["configurable"]["thread_id"] = "other"
    assert (await bound.aget_state(None)).values == {"log": ["n"]}


def test_how_configs_merge() -> None:
    """Later values override earlier ones; `configurable` and `metadata` are merged by key, `tags` are joined."""
    merged = merge_configs(
        {"configurable": {"thread_id": "a", "x": 1}, "metadata": {"m": 1}, "tags": ["one"], "recursion_limit": 5},
        None,
        "b",
        {
            "configurable": {"y": 2},
            "metadata": {"m": 2, "n": 3},
            "tags": ["two"],
            "run_name": "r",
            "recursion_limit": None,
        },
    )
    assert merged == {
        "configurable": {"thread_id": "b", "x": 1, "y": 2},
        "metadata": {"m": 2, "n": 3},
        "tags": ["one", "two"],
        "recursion_limit": 5,
        "run_name": "r",
    }


async def test_with_config() -> None:
    """`with_config` binds settings; a call's own settings override them; the graph itself is unchanged."""
    made = graph("a", "b", "c", saver=InMemorySaver())
    bound = made.with_config({"configurable": {"thread_id": "t"}}, recursion_limit=2)
    with pytest.raises(GraphRecursionError, match="limit of 2"):
        await bound.ainvoke({})
    assert (await bound.aget_state(None)).next == ("c",)
    assert await bound.ainvoke({}, {"configurable": {"thread_id": "t2"}, "recursion_limit": 3}) == {
        "log": ["a", "b", "c"]
    }
    again = bound.with_config("t3").with_config(recursion_limit=3)
    assert await again.ainvoke({}) == {"log": ["a", "b", "c"]}
    assert type(again) is type(made)
    with pytest.raises(ConfigError):
        await made.ainvoke({})
    for wrong in ({"thread_id": "t"}, {"bogus": 1}):
        with pytest.raises(ConfigError):
            made.with_config(wrong)
        with pytest.raises(ConfigError):
            made.with_config(**wrong)


async def test_metadata_is_stored() -> None:
    """Each checkpoint stores the scalars of metadata and configurable, and nothing else of them."""
    made = graph(saver=InMemorySaver())
    config = {
        "configurable": {"thread_id": "t", "user": "u", "__private": "x", "object": object()},
        "metadata": {"text": "x", "number": 1, "real": 1.5, "flag": True, "list": [1], "none": None, "source": "mine"},
        "run_id": "r",
    }
    await made.ainvoke({}, config)
    for state in [state async for state in made.aget_state_history("t")]:
        metadata = dict(state.metadata)
        assert metadata.pop("source") in ("input", "loop"), "the runtime's own entries win"
        assert metadata.pop("step") in (-1, 0, 1)
        assert metadata == {
            "user": "u",
            "text": "x",
            "number": 1,
            "real": 1.5,
            "flag": True,
            "parents": {},
            "run_id": "r",
        }


async def test_a_run_id_is_made_up() -> None:
    """Metadata contains a run_id, the same in all checkpoints of a run and different for each run."""
    made = graph(saver=InMemorySaver())
    await made.ainvoke({}, "t")
    await made.ainvoke({}, "t")
    runs = [state.metadata["run_id"] async for state in made.aget_state_history("t")]
    assert len(runs) == 6
    assert [len(set(runs[:3])), len(set(runs[3:])), len(set(runs))] == [1, 1, 2]


@pytest.mark.parametrize("modes", ["everything", ["values", "everything"], [], ["values", "values"], ()], ids=repr)
async def test_stream_modes_that_are_refused(modes: Any) -> None:
    """An unknown mode, no mode, or a mode given twice raises before anything runs."""
    with pytest.raises(ConfigError, match="stream_mode"):
        graph().astream({}, stream_mode=modes)
    with pytest.raises(ConfigError, match="stream_mode"):
        await graph().ainvoke({}, stream_mode=modes)


async def test_other_arguments_that_are_refused() -> None:
    """P6: unknown output keys, and an unknown `on_conflict`, raise before anything runs."""
    made = graph(saver=InMemorySaver())
    for keys in ("zz", ["log", "zz"]):
        with pytest.raises(ConfigError, match="'zz'"):
            await made.ainvoke({}, "t", output_keys=keys)
        with pytest.raises(ConfigError, match="'zz'"):
            made.astream({}, "t", output_keys=keys)
    with pytest.raises(ConfigError, match="on_conflict"):
        await made.ainvoke({}, "t", on_conflict="shrug")
    assert (await made.aget_state("t")).metadata is None


async def test_reading_without_a_checkpointer() -> None:
    """Reading a thread needs a checkpointer and a thread id; the error names the missing one."""
    with pytest.raises(ConfigError, match="checkpointer"):
        await graph().aget_state("t")
    with pytest.raises(ConfigError, match="checkpointer"):
        _ = [state async for state in graph().aget_state_history("t")]
    stored = graph(saver=InMemorySaver())
    with pytest.raises(ConfigError, match="thread_id"):
        await stored.aget_state({})
    with pytest.raises(ConfigError, match="thread_id"):
        _ = [state async for state in stored.aget_state_history({})]


async def test_max_concurrency() -> None:
    """With max_concurrency 10, at most 10 of 100 sends run at once, and results are in index order."""
    running = most = 0

    async def worker(arg: Any) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(arg % 3 + 2):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return {"log": [str(arg)]}

    made = StateGraph(State).add_node("worker", worker)
    made.add_conditional_edges(START, lambda state: [Send("worker", number) for number in range(100)])
    compiled = made.compile()
    result = await compiled.ainvoke({}, {"max_concurrency": 10})
    assert result["log"] == [str(number) for number in range(100)]
    assert (most, running) == (10, 0)
    most = 0
    await compiled.ainvoke({}, {"max_concurrency": 1})
    assert most == 1
    await compiled.ainvoke({}, {"max_concurrency": 1000})
    assert most == 100
    await compiled.with_config(max_concurrency=5).ainvoke({}, {"max_concurrency": None})
    assert most == 100


@pytest.mark.parametrize("length", [1, 3, 10])
async def test_the_recursion_limit(length: int) -> None:
    """P14: n chained nodes need a limit of n: the hidden start does not count, and a run without work left ends
    normally."""
    names = [f"n{index}" for index in range(length)]
    made = graph(*names, saver=InMemorySaver())
    assert await made.ainvoke({}, {"configurable": {"thread_id": "t"}, "recursion_limit": length}) == {"log": names}
    if length > 1:
        config = {"configurable": {"thread_id": "t2"}, "recursion_limit": length - 1}
        with pytest.raises(GraphRecursionError) as caught:
            await made.ainvoke({}, config)
        assert (caught.value.limit, caught.value.pending) == (length - 1, (names[-1],))
        state = await made.aget_state("t2")
        assert (state.values, state.next) == ({"log": names[:-1]}, (names[-1],))
        assert await made.ainvoke(None, config) == {"log": names}, "the same limit for the resumed run"


async def test_the_default_limit() -> None:
    """P14: the default limit is 10 007."""
    made = StateGraph(State).add_node("n", lambda state: None).add_edge(START, "n").add_edge("n", "n")
    with pytest.raises(GraphRecursionError, match="limit of 10007") as caught:
        await made.compile(blocking=False).ainvoke({})
    assert caught.value.step == 10_007


async def test_a_loop_that_ends_at_its_limit() -> None:
    """P14: the error is raised only if work is left."""
    made = StateGraph(State).add_node("n", lambda state: {"log": ["n"]}).add_edge(START, "n")
    made.add_conditional_edges("n", lambda state: "n" if len(state["log"]) < 5 else END)
    assert len((await made.compile(blocking=False).ainvoke({}, {"recursion_limit": 5}))["log"]) == 5


async def test_a_run_id_may_be_a_uuid() -> None:
    """A UUID is stored with the checkpoints, and shown to nodes, as its text."""
    run_id, seen = uuid.UUID(int=5), list[Any]()
    builder = StateGraph(State).add_node("n", lambda state, runtime: seen.append(runtime.execution_info.run_id))
    made = builder.add_edge(START, "n").compile(InMemorySaver())
    await made.ainvoke({}, {**ON_A_THREAD, "run_id": run_id})
    metadata = (await made.aget_state("t")).metadata
    assert seen == [str(run_id)]
    assert metadata is not None
    assert metadata["run_id"] == str(run_id)


async def test_metadata_says_where_a_node_runs() -> None:
    """`config["metadata"]` in a node has LangGraph's entries for superstep, node, triggers, path, namespace and thread,
    the node's own metadata, and the caller's; `get_config()` too. They are not stored with checkpoints, nor passed to
    the checkpoints of a graph that is called with the node's config."""
    seen: dict[str, Any] = {}

    def sent(state: Any, config: RunnableConfig) -> None:
        seen["sent"] = config["metadata"]

    async def first(state: Any, config: RunnableConfig) -> Any:
        seen["first"] = config["metadata"]
        assert get_config()["metadata"] == config["metadata"]
        await inner.ainvoke({}, config)
        return Command(goto=Send("sent", {}))

    def within(state: Any, config: RunnableConfig) -> None:
        seen["within"] = config["metadata"]

    inner = StateGraph(State).add_node(within).add_edge(START, "within").compile()
    builder = StateGraph(State).add_node("first", first, metadata={"own": [1]}).add_node(sent).add_edge(START, "first")
    made = builder.compile(InMemorySaver())
    await made.ainvoke({}, {**ON_A_THREAD, "metadata": {"mine": 1}})
    ns = {name: metadata.pop("langgraph_checkpoint_ns") for name, metadata in seen.items()}
    common = {"mine": 1, "thread_id": "t"}
    assert seen == {
        "first": {
            **common,
            "langgraph_step": 1,
            "langgraph_node": "first",
            "langgraph_triggers": ("branch:to:first",),
            "langgraph_path": ("__pregel_pull", "first"),
            "own": [1],
        },
        "within": {
            **common,
            "langgraph_step": 1,
            "langgraph_node": "within",
            "langgraph_triggers": ("branch:to:within",),
            "langgraph_path": ("__pregel_pull", "within"),
            "own": [1],
        },
        "sent": {
            **common,
            "langgraph_step": 2,
            "langgraph_node": "sent",
            "langgraph_triggers": ("__pregel_push",),
            "langgraph_path": ("__pregel_push", 0, False),
        },
    }
    assert ns["within"].startswith(f"{ns['first']}|within:")
    async for snapshot in made.aget_state_history("t"):
        assert snapshot.metadata is not None
        assert not [key for key in snapshot.metadata if key.startswith("langgraph")]


async def test_a_nodes_metadata_is_not_stored_by_a_graph_that_it_calls() -> None:
    """A node that calls a graph with a thread of its own may pass its metadata on. What describes the node's place is
    not stored with that graph's checkpoints; all else is."""
    alone = graph(saver=InMemorySaver())

    async def calling(state: Any, config: RunnableConfig) -> Any:
        assert config["metadata"]["langgraph_node"] == "calling"
        await alone.ainvoke({}, {"configurable": {"thread_id": "other"}, "metadata": config["metadata"]})
        return {}

    made = StateGraph(State).add_node("calling", calling).add_edge(START, "calling").compile(InMemorySaver())
    await made.ainvoke({}, {**ON_A_THREAD, "metadata": {"mine": 1}})
    stored = [snapshot.metadata async for snapshot in alone.aget_state_history("other")]
    assert stored
    for metadata in stored:
        assert metadata is not None
        assert metadata["mine"] == 1
        assert not [key for key in metadata if key.startswith("langgraph")]


def test_names_and_copies() -> None:
    """`get_name` appends a suffix; `copy` changes attributes of the copy only, and refuses those that cannot be set."""
    made = graph(name="g")
    assert (made.get_name(), made.get_name("_input"), made.get_name("_input", name="h")) == ("g", "g_input", "h_input")
    copied = made.copy({"name": "other", "step_timeout": 5})
    assert (copied.name, copied.step_timeout, made.name, made.step_timeout) == ("other", 5, "g", None)
    assert made.copy().name == "g"
    with pytest.raises(UnsettableAttributeError):
        made.copy({"nam": "other"})


@pytest.mark.one_loop
async def test_an_object_with_ainvoke_and_invoke_is_a_node() -> None:
    """A runnable is recognised by its methods, without langchain-core; it gets the node's config."""

    class Runs:
        def invoke(self, state: Any, config: Any) -> Any:
            raise AssertionError("asyncio uses ainvoke")

        async def ainvoke(self, state: Any, config: Any) -> Any:
            return {"note": config["metadata"]["langgraph_node"]}

    made = StateGraph(State).add_node("n", Runs()).add_node(Runs()).add_edge(START, "n").add_edge("n", "Runs")
    assert (await made.compile().ainvoke({}))["note"] == "Runs"
