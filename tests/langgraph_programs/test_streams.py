"""The chunks of each stream mode, and their order."""

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


def ai_message(text: str, id: str) -> Any:
    """Return a message: an object where langchain-core is installed, since LangGraph's streams show no dicts."""
    try:
        from langchain_core.messages import AIMessage
    except ImportError:
        return {"role": "assistant", "content": text, "id": id}
    return AIMessage(content=text, id=id)


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def says(text: Any) -> Any:
    return lambda state: {"log": [text]}


def chain(library: Any, saver: Any = None, **nodes: Any) -> Any:
    builder = library.StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
    for left, right in zip((library.START, *nodes), nodes):
        builder.add_edge(left, right)
    return builder.compile(saver)


def test_updates_come_as_nodes_finish_and_values_after_all(library: Any) -> None:
    """The faster sibling is shown first, whatever its name."""
    b_was_read = threading.Event()

    def slow(state: State) -> dict[str, Any]:
        b_was_read.wait(60)
        return {"log": ["a"]}

    builder = library.StateGraph(State).add_node("a", slow).add_node("b", says("b"))
    graph = builder.add_edge(library.START, "a").add_edge(library.START, "b").compile()
    chunks = []
    for chunk in graph.stream({"log": []}, stream_mode=["updates", "values"]):
        chunks.append(chunk)
        if chunk == ("updates", {"b": {"log": ["b"]}}):
            b_was_read.set()
    assert chunks == [
        ("values", {"log": []}),
        ("updates", {"b": {"log": ["b"]}}),
        ("updates", {"a": {"log": ["a"]}}),
        ("values", {"log": ["a", "b"]}),
    ]


def test_values_begin_with_what_the_input_wrote(library: Any) -> None:
    """A superstep that changes no key has no chunk."""
    graph = chain(library, a=lambda state: None, b=says("b"))
    assert list(graph.stream({"note": "x"}, stream_mode="values")) == [
        {"log": [], "note": "x"},
        {"log": ["b"], "note": "x"},
    ]


def test_values_of_a_resumed_run_begin_with_the_stored_state(library: Any) -> None:
    """The first chunk is the state from which the run continues."""
    saver = library.InMemorySaver()
    graph = chain(library, saver, a=says("a"), b=says("b"))
    graph.invoke({"log": []}, CONFIG, interrupt_before=["b"])
    assert list(graph.stream(None, CONFIG, stream_mode="values")) == [{"log": ["a"]}, {"log": ["a", "b"]}]


def test_a_graph_of_channels_has_no_first_values(library: Any) -> None:
    """Its first chunk is the state after its first nodes."""
    node = library.NodeBuilder().subscribe_only("a").write_to(b=lambda value: value + 1)
    channels = {"a": library.EphemeralValue(int), "b": library.LastValue(int)}
    app = library.Pregel(nodes={"n": node}, channels=channels, input_channels="a", output_channels="b")
    assert list(app.stream(1, stream_mode="values")) == [{"b": 2}]


def test_the_start_is_in_no_update(library: Any) -> None:
    """It shows in the history only."""
    graph = chain(library, library.InMemorySaver(), a=says("a"))
    chunks = list(graph.stream({"log": []}, CONFIG, stream_mode=["updates", "tasks"]))
    assert [mode for mode, _ in chunks] == ["tasks", "updates", "tasks"]
    assert [state.next for state in graph.get_state_history(CONFIG)][-1] == ("__start__",)


def test_the_start_and_the_end_of_a_task(library: Any) -> None:
    """The first has the node's input and triggers, the second its result; both have the task's id."""
    begun, ended = chain(library, a=says("a")).stream({"log": ["in"]}, stream_mode="tasks")
    assert begun["name"] == ended["name"] == "a" and begun["id"] == ended["id"]
    assert begun["input"] == {"log": ["in"]} and tuple(begun["triggers"]) == ("branch:to:a",)
    assert "metadata" not in begun
    assert (ended["error"], ended["result"], ended["interrupts"]) == (None, {"log": ["a"]}, [])


def test_a_task_has_the_metadata_of_its_call_and_node(library: Any) -> None:
    """Its tags are among it, and keys of the framework's own are left out."""
    builder = library.StateGraph(State).add_node("a", says("a"), metadata={"team": "owls"}).add_edge(library.START, "a")
    config = {"metadata": {"user": "ann"}, "tags": ["night"]}
    begun, _ = builder.compile().stream({"log": []}, config, stream_mode="tasks")
    assert begun["metadata"] == {"user": "ann", "team": "owls", "tags": ["night"]}


def test_tasks_of_a_workflow(library: Any) -> None:
    """The input of a called task is its arguments; its update comes before its caller goes on."""

    @library.task
    def double(x: int, *, plus: int) -> int:
        return 2 * x + plus

    @library.entrypoint()
    def workflow(x: int) -> int:
        return double(x, plus=1).result() + 1

    chunks = list(workflow.stream(1, stream_mode=["tasks", "updates"]))
    updates = [chunk for mode, chunk in chunks if mode == "updates"]
    assert updates == [{"double": 3}, {"workflow": 4}]
    tasks = [chunk for mode, chunk in chunks if mode == "tasks" and chunk["name"] == "double"]
    assert tasks[0]["input"] == ((1,), {"plus": 1})
    assert tasks[1]["result"] == {"__return__": 3}
    ended = [chunk for mode, chunk in chunks if mode == "tasks" and chunk["name"] == "workflow"][-1]
    assert ended["result"] == {"__end__": 4}


def test_a_failed_task_shows_its_exception(library: Any) -> None:
    """There is no update of it."""
    error = ValueError("failed")

    def fail(state: State) -> None:
        raise error

    chunks = []
    with pytest.raises(ValueError, match="failed"):
        for chunk in chain(library, a=fail).stream({"log": []}, stream_mode=["tasks", "updates"]):
            chunks.append(chunk)
    (_, begun), (_, ended) = chunks
    assert ended["error"] is error and begun["id"] == ended["id"]


def test_a_task_that_asks(library: Any) -> None:
    """The end of the task has its question as data; `updates` has the question itself."""

    def ask(state: State) -> dict[str, Any]:
        return {"note": library.interrupt("which?")}

    graph = chain(library, library.InMemorySaver(), a=ask)
    chunks = list(graph.stream({"log": []}, CONFIG, stream_mode=["tasks", "updates"]))
    (question,) = next(chunk for mode, chunk in chunks if mode == "updates")["__interrupt__"]
    ended = chunks[-1][1] if chunks[-1][0] == "tasks" else chunks[-2][1]
    assert question.value == "which?"
    (shown,) = ended["interrupts"]
    assert (shown["value"], shown["id"], ended["result"]) == ("which?", question.id, {})


def test_an_update_comes_before_its_tasks_end(library: Any) -> None:
    """The order of one finishing task's chunks."""
    chunks = list(chain(library, a=says("a")).stream({"log": []}, stream_mode=["tasks", "updates"]))
    assert [(mode, "result" in chunk) for mode, chunk in chunks] == [
        ("tasks", False),
        ("updates", False),
        ("tasks", True),
    ]


def test_a_retried_task_begins_and_ends_once(library: Any) -> None:
    """What failed attempts wrote to the stream was seen."""
    attempts = []

    def shaky(state: State) -> dict[str, Any]:
        attempts.append(1)
        library.get_stream_writer()(len(attempts))
        if len(attempts) < 3:
            raise ConnectionError("again")
        return {"note": "done"}

    policy = library.RetryPolicy(initial_interval=0.001, jitter=False)
    builder = library.StateGraph(State).add_node("a", shaky, retry_policy=policy).add_edge(library.START, "a")
    chunks = list(builder.compile().stream({"log": []}, stream_mode=["tasks", "custom"]))
    assert [mode for mode, _ in chunks] == ["tasks", "custom", "custom", "custom", "tasks"]
    assert [chunk for mode, chunk in chunks if mode == "custom"] == [1, 2, 3]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_recorded_task_is_marked(library: Any) -> None:
    """A sibling that had finished before the call shows its update again, as a cached one, and no end."""
    broken = [True]
    a_was_read = asyncio.Event()

    async def a(state: State) -> dict[str, Any]:
        return {"log": ["a"]}

    async def b(state: State) -> dict[str, Any]:
        if broken:
            await asyncio.wait_for(a_was_read.wait(), 60)
            raise ValueError("b fails")
        return {"log": ["b"]}

    builder = library.StateGraph(State).add_node(a).add_node(b)
    graph = builder.add_edge(library.START, "a").add_edge(library.START, "b").compile(library.InMemorySaver())
    with pytest.raises(ValueError, match="b fails"):
        async for chunk in graph.astream({"log": []}, CONFIG, stream_mode="updates"):
            assert chunk == {"a": {"log": ["a"]}}
            a_was_read.set()
    broken.clear()
    chunks = [chunk async for chunk in graph.astream(None, CONFIG, stream_mode=["updates", "tasks"])]
    updates = [chunk for mode, chunk in chunks if mode == "updates"]
    assert {"a": {"log": ["a"]}, "__metadata__": {"cached": True}} in updates
    assert [chunk["name"] for mode, chunk in chunks if mode == "tasks" and "result" in chunk] == ["b"]


def test_checkpoints(library: Any) -> None:
    """Each has its config, its parent's, its values, and the next tasks; the stored history has the same."""
    graph = chain(library, library.InMemorySaver(), a=says("a"))
    chunks = list(graph.stream({"log": ["in"]}, CONFIG, stream_mode="checkpoints"))
    states = list(graph.get_state_history(CONFIG))[::-1]
    assert [chunk["config"]["configurable"]["checkpoint_id"] for chunk in chunks] == [
        state.config["configurable"]["checkpoint_id"] for state in states
    ]
    assert [chunk["next"] for chunk in chunks] == [["__start__"], ["a"], []]
    assert [chunk["values"] for chunk in chunks] == [state.values for state in states]
    assert chunks[0]["parent_config"] is None
    assert [task["name"] for task in chunks[1]["tasks"]] == ["a"] and chunks[1]["tasks"][0]["interrupts"] == ()


def test_debug_wraps_tasks_and_checkpoints(library: Any) -> None:
    """A checkpoint's step is its own, and a task's the step of the checkpoint that it makes."""
    graph = chain(library, library.InMemorySaver(), a=says("a"))
    chunks = list(graph.stream({"log": []}, CONFIG, stream_mode="debug"))
    found = {(chunk["type"], chunk["step"]) for chunk in chunks}
    assert found == {("checkpoint", -1), ("checkpoint", 0), ("task", 1), ("task_result", 1), ("checkpoint", 1)}
    assert all(set(chunk) == {"step", "timestamp", "type", "payload"} for chunk in chunks)


def asking(library: Any) -> Any:
    def ask(state: State) -> dict[str, Any]:
        return {"log": [library.interrupt("which?")]}

    return chain(library, library.InMemorySaver(), first=says("first"), ask=ask)


def test_values_of_a_question(library: Any) -> None:
    """The last chunk is the state with the question added."""
    *_, last = asking(library).stream({"log": []}, CONFIG, stream_mode="values")
    assert last["log"] == ["first"] and [each.value for each in last["__interrupt__"]] == ["which?"]


def test_a_call_that_asks_returns_the_state_and_its_questions(library: Any) -> None:
    """The key is absent if there is no question; a state that is no dict has no place for it."""
    graph = asking(library)
    result = graph.invoke({"log": []}, CONFIG)
    assert result["log"] == ["first"] and [each.value for each in result["__interrupt__"]] == ["which?"]
    assert graph.invoke(library.Command(resume="this"), CONFIG) == {"log": ["first", "this"]}


def test_a_breakpoint_shows_an_empty_tuple(library: Any) -> None:
    """It has no value to ask for, and adds nothing to a result."""
    graph = chain(library, library.InMemorySaver(), a=says("a"), b=says("b"))
    chunks = list(graph.stream({"log": []}, CONFIG, stream_mode=["updates", "values"], interrupt_before=["b"]))
    assert chunks[-1] == ("updates", {"__interrupt__": ()})
    assert graph.invoke({"log": []}, {"configurable": {"thread_id": "2"}}, interrupt_before=["b"]) == {"log": ["a"]}


def test_a_call_may_return_its_chunks(library: Any) -> None:
    """A mode other than "values" returns a list of the stream's chunks, several modes a list of pairs."""
    graph = chain(library, a=says("a"))
    assert graph.invoke({"log": []}, stream_mode="updates") == [{"a": {"log": ["a"]}}]
    assert graph.invoke({"log": []}, stream_mode=["updates", "values"])[1] == ("updates", {"a": {"log": ["a"]}})


def test_output_keys(library: Any) -> None:
    """One key as a text makes bare values; an unknown key is refused."""
    graph = chain(library, a=says("a"), b=lambda state: {"note": "b"})
    assert list(graph.stream({"log": []}, stream_mode="values", output_keys="log")) == [[], ["a"]]
    assert list(graph.stream({"log": []}, stream_mode="updates", output_keys="note"))[-1] == {"b": "b"}
    assert graph.invoke({"log": []}, output_keys=["note"]) == {"note": "b"}
    with pytest.raises(ValueError, match="nope"):
        graph.invoke({"log": []}, output_keys="nope")


def subgraph(library: Any, saver: Any = None) -> Any:
    def inside(state: State) -> dict[str, Any]:
        library.get_stream_writer()("inside")
        return {"note": "inside"}

    inner = library.StateGraph(State).add_node("inside", inside).add_edge(library.START, "inside").compile()

    def outside(state: State) -> None:
        library.get_stream_writer()("outside")

    return chain(library, saver, outside=outside, sub=inner)


def test_a_subgraphs_chunks_are_seen_on_request(library: Any) -> None:
    """`subgraphs=True` adds the namespace of the graph that a chunk comes from; without it, a subgraph's are left out."""
    graph = subgraph(library)
    assert list(graph.stream({"log": []}, stream_mode="custom")) == ["outside"]
    chunks = list(graph.stream({"log": []}, stream_mode=["custom", "updates"], subgraphs=True))
    assert [(tuple(part.split(":")[0] for part in namespace), mode) for namespace, mode, _ in chunks] == [
        ((), "custom"),
        ((), "updates"),
        (("sub",), "custom"),
        (("sub",), "updates"),
        ((), "updates"),
    ]


def test_chunks_are_read_while_their_node_runs(library: Any) -> None:
    """Nothing is held back until a node ends, also in a subgraph."""
    was_read = threading.Event()

    def inside(state: State) -> dict[str, Any]:
        library.get_stream_writer()("now")
        assert was_read.wait(60)
        return {"note": "read"}

    inner = library.StateGraph(State).add_node("inside", inside).add_edge(library.START, "inside").compile()
    for _, chunk in chain(library, sub=inner).stream({"log": []}, stream_mode="custom", subgraphs=True):
        assert chunk == "now"
        was_read.set()


def test_messages_are_shown_once(library: Any) -> None:
    """A message that a node returns is shown with metadata, and not again if a later node returns it unchanged."""

    def first(state: Any) -> dict[str, Any]:
        return {"messages": [ai_message("hello", "m1")]}

    def passes_on(state: Any) -> dict[str, Any]:
        return {"messages": [state["messages"][-1]]}

    builder = library.StateGraph(library.MessagesState).add_node(first).add_node(passes_on)
    graph = builder.add_edge(library.START, "first").add_edge("first", "passes_on").compile()
    given = {"messages": [{"role": "user", "content": "hi", "id": "m0"}]}
    chunks = list(graph.stream(given, {"metadata": {"user": "ann"}, "tags": ["night"]}, stream_mode="messages"))
    assert len(chunks) == 1
    _, metadata = chunks[0]
    assert metadata["langgraph_node"] == "first" and metadata["langgraph_step"] == 1
    assert metadata["user"] == "ann" and metadata.get("tags", ["night"]) == ["night"]


def test_version_2_has_one_shape(library: Any) -> None:
    """Each part has its type, namespace and data, for one mode and for several; a call returns an object."""
    graph = chain(library, a=says("a"))
    parts = list(graph.stream({"log": []}, stream_mode=["values", "updates"], version="v2"))
    assert [(part["type"], part["ns"], part["data"]) for part in parts] == [
        ("values", (), {"log": []}),
        ("updates", (), {"a": {"log": ["a"]}}),
        ("values", (), {"log": ["a"]}),
    ]
    result = graph.invoke({"log": []}, version="v2")
    assert result.value == {"log": ["a"]} and tuple(result.interrupts) == ()
