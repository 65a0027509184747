"""What snapshots and chunks show of tasks: paths, results, failures and questions."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: Any


def side_by_side(library: Any, **nodes: Any) -> Any:
    builder = library.StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node).add_edge(library.START, name)
    return builder.compile(library.InMemorySaver())


def works(state: State) -> Any:
    return {"log": ["worked"]}


def tasks_of(snapshot: Any) -> list[Any]:
    return sorted(snapshot.tasks, key=lambda task: task.name)


def test_paths_of_tasks(library: Any) -> None:
    """A send has its index, and another task the name of its node."""

    def route(state: State) -> list[Any]:
        return [library.Send("w", {}), library.Send("w", {}), "z"]

    builder = library.StateGraph(State).add_node("a", works).add_node("w", works).add_node("z", works)
    builder.add_edge(library.START, "a").add_conditional_edges("a", route, ["w", "z"])
    graph = builder.compile(library.InMemorySaver(), interrupt_before=["w"])
    graph.invoke({}, CONFIG)
    paths = [task.path for task in graph.get_state(CONFIG).tasks]
    assert paths == [("__pregel_push", 0, False), ("__pregel_push", 1, False), ("__pregel_pull", "z")]


def test_results_of_tasks(library: Any) -> None:
    """A finished task has its update, an empty one if it wrote nothing; a pending one has None."""

    def asks(state: State) -> Any:
        return {"log": [library.interrupt("go on?")]}

    graph = side_by_side(library, asks=asks, empty=lambda state: None, works=works)
    graph.invoke({"log": []}, CONFIG)
    results = [task.result for task in tasks_of(graph.get_state(CONFIG))]
    assert results == [None, {}, {"log": ["worked"]}]


def test_an_update_is_the_result_in_the_snapshot_before_it(library: Any) -> None:
    """The task that would have run shows the update as its result, and the question that it had asked."""

    def asks(state: State) -> Any:
        return {"log": [library.interrupt("go on?")]}

    graph = side_by_side(library, asks=asks)
    graph.invoke({"log": []}, CONFIG)
    graph.update_state(CONFIG, {"log": ["by hand"]}, as_node="asks")
    before = list(graph.get_state_history(CONFIG))[1]
    (task,) = before.tasks
    assert task.result == {"log": ["by hand"]}
    assert [question.value for question in task.interrupts] == ["go on?"]


def test_a_failure_is_replaced_by_the_result(library: Any) -> None:
    """The history of a task that failed and then finished shows its result. LangGraph: the failure too."""
    failed: list[bool] = []

    def flaky(state: State) -> Any:
        if not failed:
            failed.append(True)
            raise ValueError("once")
        return works(state)

    graph = side_by_side(library, flaky=flaky)
    with pytest.raises(ValueError, match="once"):
        graph.invoke({"log": []}, CONFIG)
    assert graph.get_state(CONFIG).tasks[0].error is not None
    graph.invoke(None, CONFIG)
    (task,) = list(graph.get_state_history(CONFIG))[1].tasks
    assert task.result == {"log": ["worked"]}
    assert (task.error is not None) is library.is_langgraph


def test_a_handled_failure_in_the_history(library: Any) -> None:
    """The failed task keeps its failure, and has the update of its handler as result. LangGraph: no result."""

    def fails(state: State) -> None:
        raise ValueError("always")

    builder = library.StateGraph(State).add_node("fails", fails, error_handler=works)
    graph = builder.add_edge(library.START, "fails").compile(library.InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    (task,) = list(graph.get_state_history(CONFIG))[1].tasks
    assert (task.name, task.error is not None) == ("fails", True)
    assert task.result == (None if library.is_langgraph else {"log": ["worked"]})


def test_the_start_of_an_error_handler(library: Any) -> None:
    """`tasks` shows the start and the end of a handler. LangGraph: the end only."""

    def fails(state: State) -> None:
        raise ValueError("always")

    builder = library.StateGraph(State).add_node("fails", fails, error_handler=works)
    graph = builder.add_edge(library.START, "fails").compile()
    chunks = [(chunk["name"], "result" in chunk) for chunk in graph.stream({"log": []}, stream_mode="tasks")]
    start = [] if library.is_langgraph else [("__error_handler__fails", False)]
    assert chunks == [("fails", False), ("fails", True), *start, ("__error_handler__fails", True)]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_cancelled_sibling(library: Any) -> None:
    """It has no result and runs again, and no failure of its own. LangGraph: its failure is the cancellation."""
    began = asyncio.Event()

    async def fails(state: State) -> None:
        await began.wait()
        raise ValueError("now")

    async def hangs(state: State) -> None:
        began.set()
        await asyncio.Event().wait()

    graph = side_by_side(library, fails=fails, hangs=hangs)
    with pytest.raises(ValueError, match="now"):
        await graph.ainvoke({"log": []}, CONFIG)
    state = await graph.aget_state(CONFIG)
    assert sorted(state.next) == ["fails", "hangs"]
    failed, cancelled = tasks_of(state)
    assert failed.error is not None
    assert (cancelled.result, cancelled.error is not None) == (None, library.is_langgraph)


def test_a_subgraphs_question_and_its_custom_chunks(library: Any) -> None:
    """With `subgraphs=True` both have the subgraph's namespace, and the question is shown at the root as well; without it, only the
    question is seen."""

    def asks(state: State) -> Any:
        library.get_stream_writer()("thinking")
        return {"log": [library.interrupt("go on?")]}

    inner = library.StateGraph(State).add_node("asks", asks).add_edge(library.START, "asks").compile()
    graph = side_by_side(library, sub=inner)
    modes = ["updates", "custom"]
    chunks = list(graph.stream({}, CONFIG, stream_mode=modes, subgraphs=True))
    assert [(len(ns), mode) for ns, mode, _ in chunks] == [(1, "custom"), (1, "updates"), (0, "updates")]
    assert all(chunk["__interrupt__"][0].value == "go on?" for _, mode, chunk in chunks if mode == "updates")
    (only,) = graph.stream({}, {"configurable": {"thread_id": "2"}}, stream_mode=modes)
    assert (only[0], list(only[1])) == ("updates", ["__interrupt__"])


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_concurrent_tasks_that_ask(library: Any) -> None:
    """All their questions are asked at once. LangGraph: the one that is awaited first."""

    @library.task
    async def ask(question: str) -> Any:
        return library.interrupt(question)

    @library.entrypoint(checkpointer=library.InMemorySaver())
    async def workflow(given: Any) -> list[Any]:
        return list(await asyncio.gather(ask("who?"), ask("when?")))

    asked = (await workflow.ainvoke(0, CONFIG))["__interrupt__"]
    assert [question.value for question in asked] == ["who?"] if library.is_langgraph else ["who?", "when?"]
    asked = (await workflow.ainvoke(library.Command(resume={asked[0].id: "Ann"}), CONFIG))["__interrupt__"]
    assert [question.value for question in asked] == ["when?"]
    assert await workflow.ainvoke(library.Command(resume="today"), CONFIG) == ["Ann", "today"]


def test_values_of_a_resumed_workflow(library: Any) -> None:
    """They begin with what the thread's last run returned."""

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(given: Any, previous: Any = None) -> Any:
        if given == "ask":
            library.interrupt("go on?")
        return (previous or 0) + 1

    workflow.invoke("count", CONFIG)
    workflow.invoke("ask", CONFIG)
    assert list(workflow.stream(library.Command(resume="yes"), CONFIG, stream_mode="values")) == [1, 2]


def test_a_kept_subgraph_is_stored_at_exit(library: Any) -> None:
    """One with `checkpointer=True` keeps its state with durability "exit" too."""
    inner = library.StateGraph(State).add_node("works", works).add_edge(library.START, "works")
    graph = side_by_side(library, sub=inner.compile(checkpointer=True))
    for _ in range(2):
        graph.invoke({"log": []}, CONFIG, durability="exit")
    state = graph.get_state({"configurable": {"thread_id": "1", "checkpoint_ns": "sub"}})
    assert state.values["log"].count("worked") > 1


def test_a_command_continues_a_stopped_thread(library: Any) -> None:
    """Its update is folded with the next superstep, and its goto adds to what is pending; neither makes an input."""
    builder = library.StateGraph(State).add_node("a", works).add_node("b", works)
    builder.add_edge(library.START, "a").add_edge("a", "b")
    graph = builder.compile(library.InMemorySaver(), interrupt_before=["b"])
    graph.invoke({"log": []}, CONFIG)
    assert graph.invoke(library.Command(update={"log": ["added"]}), CONFIG)["log"] == ["worked", "added", "worked"]
    assert graph.get_state(CONFIG).next == ()
    assert [each.metadata["source"] for each in graph.get_state_history(CONFIG)] == ["loop"] * 3 + ["input"]


def test_a_router_sees_no_key_that_the_state_lacks(library: Any) -> None:
    """Keys that are dropped do not reach routers either. LangGraph: they do."""
    seen: list[Any] = []

    def route(state: Any) -> Any:
        seen.append(sorted(state))
        return library.END

    options = {} if library.is_langgraph else {"unknown_keys": "ignore"}
    builder = library.StateGraph(State).add_node("n", lambda state: {"note": 1, "extra": 2})
    builder.add_edge(library.START, "n").add_conditional_edges("n", route)
    builder.compile(**options).invoke({"log": []})
    assert seen == [["extra", "log", "note"] if library.is_langgraph else ["log", "note"]]


def test_previous_and_store_are_none_without_one(library: Any) -> None:
    """A graph has no previous result, and a runtime without a store has none."""
    seen: list[Any] = []

    def node(state: State, runtime: library.Runtime) -> None:
        seen.append((runtime.previous, runtime.store))

    library.StateGraph(State).add_node("n", node).add_edge(library.START, "n").compile().invoke({"log": []})
    assert seen == [(None, None)]


def test_tuples_come_back_as_tuples(library: Any) -> None:
    """What a finished sibling of a question wrote is equal after the resume. LangGraph: tuples become lists."""

    def asks(state: State) -> None:
        library.interrupt("go on?")

    graph = side_by_side(library, asks=asks, pairs=lambda state: {"log": [("a", 1)]})
    graph.invoke({"log": []}, CONFIG)
    log = graph.invoke(library.Command(resume="yes"), CONFIG)["log"]
    assert log == [["a", 1] if library.is_langgraph else ("a", 1)]


def test_edges_to_the_end_in_a_drawing(library: Any) -> None:
    """A drawing has those that the graph has. LangGraph: one from each node that no edge leaves, too."""
    drawing = side_by_side(library, a=works).get_graph()
    ends = [edge.source for edge in drawing.edges if edge.target == library.END]
    assert ends == (["a"] if library.is_langgraph else [])


def test_the_edges_of_a_drawing(library: Any) -> None:
    """An edge has the label of the path map, and says whether a router decides about it; nodes are iterated by name."""
    builder = library.StateGraph(State).add_node("a", works).add_node("b", works).add_edge("b", library.END)
    builder.add_edge(library.START, "a").add_conditional_edges("a", lambda state: "left", {"left": "b"})
    drawing = builder.compile().get_graph()
    assert list(drawing.nodes) == ["__start__", "a", "b", "__end__"]
    edges = [(edge.source, edge.target, edge.data, edge.conditional) for edge in drawing.edges]
    assert edges == [
        ("__start__", "a", None, False),
        ("a", "b", "left", True),
        ("b", "__end__", None, False),
    ]
