"""Graphs inside graphs: what goes in and comes out, what is stored of them, and how they command the graph around them."""

import operator
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


class Apart(TypedDict, total=False):
    inner: str


def one(library: Any, node: Any, saver: Any = None, name: str = "i", state: Any = State) -> Any:
    return library.StateGraph(state).add_node(name, node).add_edge(library.START, name).compile(saver)


def around(library: Any, inner: Any, saver: Any = None, **more: Any) -> Any:
    builder = library.StateGraph(State).add_node("sub", inner, **more).add_edge(library.START, "sub")
    builder.add_node("after", lambda state: {"log": ["after"]}).add_edge("sub", "after")
    return builder.compile(saver)


def test_a_shared_reducer_folds_the_input_a_second_time(library: Any) -> None:
    """A subgraph's whole result is an update of its parent."""
    inner = one(library, lambda state: {"log": ["i"]})
    assert around(library, inner).invoke({"log": ["s"]})["log"] == ["s", "s", "i", "after"]


def test_a_graph_that_shares_no_key_is_called_in_a_node(library: Any) -> None:
    """The node converts the state on the way in and out."""
    inner = one(library, lambda state: {"inner": state["inner"].upper()}, state=Apart)

    def calls(state: State) -> dict[str, Any]:
        return {"note": inner.invoke({"inner": state["note"]})["inner"]}

    assert around(library, calls).invoke({"note": "text"})["note"] == "TEXT"


def test_a_subgraphs_question_is_the_parents(library: Any) -> None:
    """It is asked at the root and answered there, and the subgraph goes on where it was."""
    ran: list[str] = []
    builder = library.StateGraph(State).add_node("before", lambda state: ran.append("before"))
    builder.add_node("asks", lambda state: {"log": [library.interrupt("?")]})
    inner = builder.add_edge(library.START, "before").add_edge("before", "asks").compile()
    graph = around(library, inner, library.InMemorySaver())
    assert [each.value for each in graph.invoke({"log": []}, CONFIG)["__interrupt__"]] == ["?"]
    state = graph.get_state(CONFIG, subgraphs=True)
    assert state.next == ("sub",) and state.tasks[0].state.next == ("asks",)
    assert graph.invoke(library.Command(resume="A"), CONFIG)["log"] == ["A", "after"]
    assert ran == ["before"]


def test_two_subgraphs_that_ask_have_two_ids(library: Any) -> None:
    """Both questions are asked together, and answered by a map."""
    inner = one(library, lambda state: {"log": [library.interrupt("?")]})
    builder = library.StateGraph(State).add_node("a", inner).add_node("b", inner)
    graph = builder.add_edge(library.START, "a").add_edge(library.START, "b").compile(library.InMemorySaver())
    first, second = graph.invoke({"log": []}, CONFIG)["__interrupt__"]
    assert first.id != second.id
    result = graph.invoke(library.Command(resume={first.id: "A", second.id: "A"}), CONFIG)
    assert result["log"] == ["A", "A"]


def test_the_state_of_a_subgraph_can_be_read(library: Any) -> None:
    """A pending task's `state` is the config of its subgraph, or with `subgraphs=True` its snapshot."""
    inner = one(library, lambda state: {"log": [library.interrupt("?")]})
    graph = around(library, inner, library.InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    (task,) = graph.get_state(CONFIG).tasks
    assert set(task.state["configurable"]) == {"thread_id", "checkpoint_ns"}
    assert task.state["configurable"]["checkpoint_ns"] == f"sub:{task.id}"
    (task,) = graph.get_state(CONFIG, subgraphs=True).tasks
    metadata = task.state.metadata
    assert task.state.next == ("i",) and list(metadata["parents"]) == [""]


def test_a_subgraph_begins_anew_unless_it_keeps_its_state(library: Any) -> None:
    """`checkpointer=True` keeps it from call to call; None and False do not."""

    def counts(state: Any) -> dict[str, Any]:
        return {"inner": state.get("inner", "") + "x"}

    for checkpointer, expected in ((None, ["x", "x"]), (True, ["x", "xx"])):
        inner = one(library, counts, checkpointer, state=Apart)
        seen: list[str] = []

        def calls(state: State) -> None:
            seen.append(inner.invoke({})["inner"])

        graph = one(library, calls, library.InMemorySaver())
        graph.invoke({"log": []}, CONFIG)
        graph.invoke({"log": []}, CONFIG)
        assert seen == expected


def test_kept_states_of_two_nodes_are_separate(library: Any) -> None:
    """Each node's name is a namespace of its own."""
    inner = one(library, lambda state: {"log": ["x"]}, True)
    builder = library.StateGraph(Apart)
    seen: dict[str, int] = {}
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: seen.update({name: len(inner.invoke({"log": []})["log"])}))
        builder.add_edge(library.START, name)
    graph = builder.compile(library.InMemorySaver())
    graph.invoke({"inner": ""}, CONFIG)
    graph.invoke({"inner": ""}, CONFIG)
    assert seen == {"a": 2, "b": 2}


def test_a_kept_state_needs_a_parent(library: Any) -> None:
    """`checkpointer=True` is refused at the root, before anything runs."""
    with pytest.raises((RuntimeError, ValueError)):
        one(library, lambda state: None, True).invoke({"log": []}, CONFIG)


def test_a_thread_of_its_own_is_separate(library: Any) -> None:
    """A graph that is called with a thread stores in its own saver."""
    saver = library.InMemorySaver()
    inner = one(library, lambda state: {"log": ["i"]}, saver)
    own = {"configurable": {"thread_id": "own"}}

    def calls(state: State) -> dict[str, Any]:
        return {"log": inner.invoke({"log": []}, own)["log"]}

    graph = one(library, calls, library.InMemorySaver())
    assert graph.invoke({"log": []}, CONFIG)["log"] == ["i"]
    assert inner.get_state(own).values == {"log": ["i"]}


def test_a_command_for_the_parent(library: Any) -> None:
    """Its update is the node's, its goto adds to the node's edges, and nothing else of the subgraph comes out."""

    def commands(state: State) -> Any:
        return library.Command(graph=library.Command.PARENT, update={"log": ["command"]}, goto="other")

    builder = (
        library.StateGraph(State).add_node("first", lambda state: {"log": ["lost"]}).add_node("commands", commands)
    )
    inner = builder.add_edge(library.START, "first").add_edge("first", "commands").compile()
    builder = library.StateGraph(State).add_node("sub", inner, destinations=("other",))
    builder.add_node("other", lambda state: {"log": ["other"]}).add_node("edge", lambda state: {"log": ["edge"]})
    graph = builder.add_edge(library.START, "sub").add_edge("sub", "edge").compile()
    chunks = list(graph.stream({"log": []}, stream_mode="updates"))
    assert chunks[0] == {"sub": {"log": ["command"]}}
    assert graph.invoke({"log": []})["log"] == ["command", "edge", "other"]


def test_a_failed_subgraph_goes_on_where_it_was(library: Any) -> None:
    """The parent's retry resumes it, and finished nodes of it do not run again. LangGraph: it begins anew."""
    ran: list[str] = []

    def second(state: State) -> dict[str, Any]:
        ran.append("second")
        if ran.count("second") == 1:
            raise ConnectionError("again")
        return {"log": ["second"]}

    builder = library.StateGraph(State).add_node("first", lambda state: ran.append("first")).add_node(second)
    inner = builder.add_edge(library.START, "first").add_edge("first", "second").compile()
    policy = library.RetryPolicy(initial_interval=0.001, jitter=False)
    graph = around(library, inner, library.InMemorySaver(), retry_policy=policy)
    assert graph.invoke({"log": []}, CONFIG)["log"] == ["second", "after"]
    assert ran == ["first", "second", *(["first"] if library.is_langgraph else []), "second"]


def test_a_subgraph_inherits_context_and_store(library: Any) -> None:
    """They are those of the call, unless the subgraph's call says otherwise."""
    seen: list[Any] = []
    store = library.InMemoryStore()

    def reads(state: State, runtime: library.Runtime) -> None:
        seen.append((runtime.context, runtime.store is store or runtime.store is not None))

    inner = library.StateGraph(State, context_schema=dict).add_node("i", reads).add_edge(library.START, "i").compile()
    builder = library.StateGraph(State, context_schema=dict).add_node("sub", inner).add_edge(library.START, "sub")
    builder.compile(store=store).invoke({"log": []}, context={"user": "ann"})
    assert seen == [({"user": "ann"}, True)]


def test_workflows_and_graphs_contain_each_other(library: Any) -> None:
    """A workflow calls a graph, and a graph's node calls a workflow."""
    inner = one(library, lambda state: {"log": ["graph"]})

    @library.entrypoint()
    def workflow(text: str) -> str:
        return text + inner.invoke({"log": []})["log"][0]

    outer = one(library, lambda state: {"log": [workflow.invoke("workflow and ")]})
    assert outer.invoke({"log": []})["log"] == ["workflow and graph"]


def test_time_travel_into_a_subgraph(library: Any) -> None:
    """A run from a subgraph's old snapshot runs the rest of the subgraph, and then the rest of its parent. LangGraph: a
    config from the history of a pending task's `state` runs the whole subgraph."""
    ran: list[str] = []
    builder = library.StateGraph(State)
    for name in ("first", "second"):
        builder.add_node(name, lambda state, name=name: ran.append(name))
    builder.add_node("asks", lambda state: {"log": [library.interrupt("?")]})
    builder.add_edge(library.START, "first").add_edge("first", "second").add_edge("second", "asks")
    graph = around(library, builder.compile(), library.InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    inner_config = graph.get_state(CONFIG).tasks[0].state
    before = next(state for state in graph.get_state_history(inner_config) if state.next == ("second",))
    ran.clear()
    assert "__interrupt__" in graph.invoke(None, before.config)
    assert ran == (["first", "second"] if library.is_langgraph else ["second"])
    assert graph.invoke(library.Command(resume="A"), CONFIG)["log"] == ["A", "after"]
