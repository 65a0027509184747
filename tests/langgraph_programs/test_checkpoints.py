"""What a thread stores: how many checkpoints, with which steps, sources and parents, and when."""

import operator
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def chain(library: Any, *names: str, **options: Any) -> Any:
    builder = library.StateGraph(State)
    for name in names:
        builder.add_node(name, lambda state, name=name: {"log": [name]})
    for left, right in zip((library.START, *names), names):
        builder.add_edge(left, right)
    return builder.compile(library.InMemorySaver(), **options)


def steps(graph: Any, config: Any = CONFIG) -> list[tuple[Any, ...]]:
    return [(each.metadata["step"], each.metadata["source"]) for each in graph.get_state_history(config)]


def test_a_chain_of_n_nodes_stores_n_and_two(library: Any) -> None:
    """One checkpoint is the input, one the state that nodes begin with, and one follows each node."""
    graph = chain(library, "a", "b")
    graph.invoke({"log": ["in"]}, CONFIG)
    assert steps(graph) == [(2, "loop"), (1, "loop"), (0, "loop"), (-1, "input")]
    states = list(graph.get_state_history(CONFIG))
    assert states[-1].next == ("__start__",) and states[-1].values == {"log": []}
    assert states[-2].next == ("a",) and states[-2].values == {"log": ["in"]}
    assert all(later.parent_config == earlier.config for later, earlier in zip(states, states[1:]))


def test_a_graph_of_channels_has_no_start(library: Any) -> None:
    """Its input checkpoint is followed by those of its nodes' supersteps."""
    node = library.NodeBuilder().subscribe_only("a").write_to(b=lambda value: value + 1)
    channels = {"a": library.EphemeralValue(int), "b": library.LastValue(int)}
    app = library.Pregel(
        nodes={"n": node},
        channels=channels,
        input_channels="a",
        output_channels="b",
        checkpointer=library.InMemorySaver(),
    )
    assert app.invoke(1, CONFIG) == 2
    assert steps(app) == [(0, "loop"), (-1, "input")]


def test_steps_go_on_in_the_next_run(library: Any) -> None:
    """A second input is one step after the last, and its parent is the last checkpoint."""
    graph = chain(library, "a")
    graph.invoke({"log": ["1"]}, CONFIG)
    last = graph.get_state(CONFIG).config
    graph.invoke({"log": ["2"]}, CONFIG)
    assert steps(graph) == [(4, "loop"), (3, "loop"), (2, "input"), (1, "loop"), (0, "loop"), (-1, "input")]
    assert list(graph.get_state_history(CONFIG))[2].parent_config == last


def test_a_resume_makes_no_input_checkpoint(library: Any) -> None:
    """A call with None or a command continues the last checkpoint."""
    graph = chain(library, "a", "b", interrupt_before=["b"])
    graph.invoke({"log": []}, CONFIG)
    graph.invoke(library.Command(update={"note": "by command"}), CONFIG)
    assert [source for _, source in steps(graph)].count("input") == 1
    assert graph.get_state(CONFIG).values == {"log": ["a", "b"], "note": "by command"}


def test_metadata_has_scalars_of_the_config(library: Any) -> None:
    """Texts, numbers and booleans of `metadata` and `configurable` are stored; ids and private names are not."""
    graph = chain(library, "a")
    config = {
        "configurable": {"thread_id": "1", "user": "ann", "__private": "x", "many": [1, 2]},
        "metadata": {"team": "owls", "size": 3, "nested": {"a": 1}},
    }
    graph.invoke({"log": []}, config)
    metadata = graph.get_state(config).metadata
    assert {key: metadata.get(key) for key in ("source", "step", "parents", "user", "team", "size")} == {
        "source": "loop",
        "step": 1,
        "parents": {},
        "user": "ann",
        "team": "owls",
        "size": 3,
    }
    assert not {"thread_id", "__private", "many", "nested", "checkpoint_id"} & set(metadata)


def test_history_is_filtered_by_metadata_and_counted_afterwards(library: Any) -> None:
    """`filter` compares metadata, `before` excludes a checkpoint and all after it, and `limit` counts what is left."""
    graph = chain(library, "a", "b")
    graph.invoke({"log": []}, CONFIG)
    whole = list(graph.get_state_history(CONFIG))

    def found(**arguments: Any) -> list[int]:
        return [state.metadata["step"] for state in graph.get_state_history(CONFIG, **arguments)]

    assert found(filter={"source": "loop"}, limit=2) == [2, 1]
    assert found(filter={"step": 0}) == [0]
    assert found(before=whole[1].config) == [0, -1]


def test_the_newest_branch_is_the_threads_head(library: Any) -> None:
    """After a replay from an old checkpoint, the thread continues at the end of that branch."""
    graph = chain(library, "a", "b")
    graph.invoke({"log": []}, CONFIG)
    first = graph.get_state(CONFIG).config
    old = next(state for state in graph.get_state_history(CONFIG) if state.next == ("b",))
    graph.invoke(None, old.config)
    assert graph.get_state(CONFIG).config != first
    assert graph.get_state(CONFIG).next == () and graph.get_state(first).next == ()


def test_leaving_a_stream_keeps_what_has_finished(library: Any) -> None:
    """The results of finished nodes are in the state, and the next call goes on behind them."""
    ran: list[str] = []
    builder = library.StateGraph(State)
    for name in "abc":
        builder.add_node(name, lambda state, name=name: ran.append(name) or {"log": [name]})
    builder.add_edge(library.START, "a").add_edge("a", "b").add_edge("b", "c")
    graph = builder.compile(library.InMemorySaver())
    stream = graph.stream({"log": []}, CONFIG, stream_mode="updates", durability="sync")
    for chunk in stream:
        if "b" in chunk:
            break
    stream.close()
    assert "a" in graph.get_state(CONFIG).values["log"]
    assert graph.invoke(None, CONFIG)["log"] == ["a", "b", "c"]
    assert ran.count("a") == ran.count("b") == 1


def test_exit_stores_one_checkpoint_per_stop(library: Any) -> None:
    """A run stores its end only; a thread that stopped three times has as many checkpoints."""
    graph = chain(library, "a", "b", "c", interrupt_after="*")
    lengths = []
    for given in ({"log": []}, None, None):
        graph.invoke(given, CONFIG, durability="exit")
        lengths.append(len(list(graph.get_state_history(CONFIG))))
    assert lengths == [1, 2, 3]


def test_exit_streams_every_checkpoint(library: Any) -> None:
    """What is not stored is streamed all the same."""
    graph = chain(library, "a", "b")
    chunks = list(graph.stream({"log": []}, CONFIG, stream_mode="checkpoints", durability="exit"))
    assert [chunk["metadata"]["step"] for chunk in chunks] == [-1, 0, 1, 2]
    assert len(list(graph.get_state_history(CONFIG))) == 1


def test_a_subgraph_stores_nothing_at_exit(library: Any) -> None:
    """A run that succeeds has one checkpoint, in all namespaces together."""
    saver = library.InMemorySaver()
    inner = library.StateGraph(State).add_node("i", lambda state: {"log": ["i"]}).add_edge(library.START, "i").compile()
    outer = library.StateGraph(State).add_node("sub", inner).add_edge(library.START, "sub").compile(saver)
    outer.invoke({"log": []}, CONFIG, durability="exit")
    assert len(list(outer.get_state_history(CONFIG))) == 1


def test_a_thread_id_may_be_a_number(library: Any) -> None:
    """It names the same thread as its text."""
    graph = chain(library, "a")
    graph.invoke({"log": []}, {"configurable": {"thread_id": 7}})
    assert graph.get_state({"configurable": {"thread_id": "7"}}).values == {"log": ["a"]}


def test_a_stored_graph_needs_a_thread(library: Any) -> None:
    """A call without one is refused, and the error names the key."""
    with pytest.raises(ValueError, match="thread_id"):
        chain(library, "a").invoke({"log": []})


def test_configs_of_snapshots_have_ids_only(library: Any) -> None:
    """Nothing of the run comes back in the config of its state."""
    graph = chain(library, "a")
    config = graph.update_state({"configurable": {"thread_id": "1", "user": "ann"}}, {"note": "x"})
    for each in (config, graph.get_state(CONFIG).config):
        assert set(each["configurable"]) == {"thread_id", "checkpoint_ns", "checkpoint_id"}


def test_an_unknown_thread_is_empty(library: Any) -> None:
    """Reading it is no error."""
    state = chain(library, "a").get_state(CONFIG)
    assert (state.values, state.next, state.metadata, state.tasks, state.interrupts) == ({}, (), None, (), ())


def test_reading_without_a_checkpointer(library: Any) -> None:
    """A graph that stores nothing has no state to read."""
    builder = library.StateGraph(State).add_node("a", lambda state: None).add_edge(library.START, "a")
    with pytest.raises(ValueError, match="[Nn]o checkpointer"):
        builder.compile().get_state(CONFIG)


def test_a_chain_of_n_needs_a_limit_of_n(library: Any) -> None:
    """A run that ends in its last superstep raises nothing. LangGraph: a chain of n nodes needs n + 1."""
    graph = chain(library, "a", "b", "c")
    if library.is_langgraph:
        with pytest.raises(library.GraphRecursionError):
            graph.invoke({"log": []}, {**CONFIG, "recursion_limit": 3})
    else:
        assert graph.invoke({"log": []}, {**CONFIG, "recursion_limit": 3})["log"] == ["a", "b", "c"]
    with pytest.raises(library.GraphRecursionError):
        graph.invoke({"log": []}, {"configurable": {"thread_id": "2"}, "recursion_limit": 2})


def test_a_run_goes_on_after_its_limit(library: Any) -> None:
    """What ran before the error is stored, and a call with None continues with a limit of its own."""
    graph = chain(library, *"abcdef")
    with pytest.raises(library.GraphRecursionError):
        graph.invoke({"log": []}, {**CONFIG, "recursion_limit": 3})
    assert graph.invoke(None, {**CONFIG, "recursion_limit": 3})["log"] == list("abcdef")


def test_managed_values_count_down(library: Any) -> None:
    """`RemainingSteps` is 1, and `IsLastStep` true, in the last superstep of the limit. LangGraph: in the last but one."""
    seen: list[Any] = []

    class Counted(TypedDict, total=False):
        note: str
        left: library.RemainingSteps
        last: library.IsLastStep

    def node(state: Counted) -> dict[str, Any]:
        seen.append((state["left"], state["last"]))
        return {"note": "x"}

    builder = library.StateGraph(Counted).add_node("n", node).add_edge(library.START, "n")
    builder.add_conditional_edges("n", lambda state: library.END if len(seen) == 3 else "n", ["n", library.END])
    limit = 4 if library.is_langgraph else 3
    assert builder.compile().invoke({"note": "y"}, {"recursion_limit": limit}) == {"note": "x"}
    assert seen == [(3, False), (2, False), (1, True)]
