"""What runs in which superstep, in which order its writes are folded, and what a node reads."""

import operator
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def says(text: str) -> Any:
    return lambda state: {"log": [text]}


def test_the_next_nodes_are_listed_by_name(library: Any) -> None:
    """The order in which nodes were added does not show. LangGraph: `next` lists them in the order of `add_node`."""
    builder = library.StateGraph(State).add_node("b", says("b")).add_node("a", says("a"))
    builder.add_edge(library.START, "b").add_edge(library.START, "a")
    graph = builder.compile(library.InMemorySaver(), interrupt_before="*")
    graph.invoke({"log": []}, CONFIG)
    assert graph.get_state(CONFIG).next == (("b", "a") if library.is_langgraph else ("a", "b"))
    assert graph.invoke(None, CONFIG)["log"] == ["a", "b"]


def fan_out(library: Any, **options: Any) -> Any:
    def plan(state: State) -> Any:
        return library.Command(goto=[library.Send("w", {"n": 2}), library.Send("w", {"n": 1}), "z", "a"])

    builder = library.StateGraph(State).add_node("plan", plan, destinations=("w", "z", "a"))
    builder.add_node("w", lambda sent: {"log": [f"w{sent['n']}"]}).add_node("z", says("z")).add_node("a", says("a"))
    return builder.add_edge(library.START, "plan").compile(library.InMemorySaver(), **options)


def test_sends_are_listed_before_triggered_nodes(library: Any) -> None:
    """In `next` and `tasks`, sends come first, by their index."""
    graph = fan_out(library, interrupt_after=["plan"])
    graph.invoke({"log": []}, CONFIG)
    state = graph.get_state(CONFIG)
    assert state.next[:2] == ("w", "w") and sorted(state.next[2:]) == ["a", "z"]
    assert [task.path for task in state.tasks[:2]] == [("__pregel_push", 0, False), ("__pregel_push", 1, False)]
    assert sorted(task.path for task in state.tasks[2:]) == [("__pregel_pull", "a"), ("__pregel_pull", "z")]


def test_writes_are_folded_by_name_and_then_by_send(library: Any) -> None:
    """Triggered nodes' writes come before those of sends, whatever ended first."""
    assert fan_out(library).invoke({"log": []}, CONFIG)["log"] == ["a", "z", "w2", "w1"]


def test_a_replay_has_the_task_ids_of_its_origin(library: Any) -> None:
    """An id depends on the thread, the superstep and the node. LangGraph: on the checkpoint, so a replay has new ids."""
    builder = library.StateGraph(State).add_node("a", says("a")).add_node("b", says("b"))
    graph = builder.add_edge(library.START, "a").add_edge("a", "b").compile(library.InMemorySaver())
    graph.invoke({"log": []}, CONFIG)
    before_b = next(state for state in graph.get_state_history(CONFIG) if state.next == ("b",))
    begun, _ = graph.stream(None, before_b.config, stream_mode="tasks")
    assert begun["name"] == "b" and (begun["id"] == before_b.tasks[0].id) is not library.is_langgraph


def test_a_node_runs_once_however_many_edges_fired(library: Any) -> None:
    """Two edges from one superstep trigger one run; each send is a run of its own."""

    def twice(state: State) -> Any:
        return library.Command(goto=["j", "j", library.Send("j", {}), library.Send("j", {})])

    builder = library.StateGraph(State).add_node("a", says("a")).add_node("b", twice, destinations=("j",))
    builder.add_node("j", says("j")).add_edge(library.START, "a").add_edge(library.START, "b").add_edge("a", "j")
    assert builder.compile().invoke({"log": []})["log"] == ["a", "j", "j", "j"]


def test_an_ephemeral_value_lives_for_one_superstep(library: Any) -> None:
    """The channel is empty in the superstep after the one that could read it."""
    seen: list[Any] = []
    first = library.NodeBuilder().subscribe_only("a").write_to(b=lambda value: value + 1)
    second = library.NodeBuilder().subscribe_to("b").read_from("a").do(seen.append).write_to(c=lambda value: "end")
    channels = {"a": library.EphemeralValue(int), "b": library.LastValue(int), "c": library.LastValue(str)}
    app = library.Pregel(
        nodes={"one": first, "two": second}, channels=channels, input_channels="a", output_channels="c"
    )
    assert app.invoke(1) == "end"
    assert seen == [{"b": 2}]


def test_an_edge_of_several_starts_waits_for_all_in_each_round(library: Any) -> None:
    """A join resets when its node runs, so it works again in a loop."""

    def again(state: State) -> str:
        return "split" if state["log"].count("join") < 2 else library.END

    builder = library.StateGraph(State)
    for name in ("split", "short", "long", "longer", "join"):
        builder.add_node(name, says(name))
    builder.add_edge(library.START, "split").add_edge("split", "short").add_edge("split", "long")
    builder.add_edge("long", "longer").add_edge(["short", "longer"], "join")
    builder.add_conditional_edges("join", again, ["split", library.END])
    one_round = ["split", "long", "short", "longer", "join"]
    assert builder.compile().invoke({"log": []})["log"] == one_round * 2


def test_a_deferred_node_runs_when_nothing_else_is_left(library: Any) -> None:
    """It waits for the longest branch, and runs once."""
    builder = library.StateGraph(State)
    for name in ("split", "short", "long", "longer"):
        builder.add_node(name, says(name))
    builder.add_node("last", says("last"), defer=True)
    builder.add_edge(library.START, "split").add_edge("split", "short").add_edge("split", "long")
    builder.add_edge("long", "longer").add_edge("longer", "last").add_edge("short", "last")
    assert builder.compile().invoke({"log": []})["log"] == ["split", "long", "short", "longer", "last"]


def test_a_deferred_node_runs_at_every_end_of_a_loop(library: Any) -> None:
    """What a deferred node starts may end again, and the deferred node runs again."""

    def again(state: State) -> str:
        return "work" if state["log"].count("last") < 2 else library.END

    builder = library.StateGraph(State).add_node("work", says("work")).add_node("last", says("last"), defer=True)
    builder.add_edge(library.START, "work").add_edge("work", "last")
    builder.add_conditional_edges("last", again, ["work", library.END])
    assert builder.compile().invoke({"log": []})["log"] == ["work", "last", "work", "last"]


def test_a_key_that_was_never_written_is_absent(library: Any) -> None:
    """Keys with a reducer start with an empty value, and are there."""
    seen: list[Any] = []

    class Keys(TypedDict, total=False):
        plain: str
        log: Annotated[list[str], operator.add]
        given: int

    def node(state: Keys) -> None:
        seen.append(dict(state))

    library.StateGraph(Keys).add_node("n", node).add_edge(library.START, "n").compile().invoke({"given": 1})
    assert seen == [{"log": [], "given": 1}]


def test_siblings_do_not_see_changes_in_place(library: Any) -> None:
    """Only what a node returns counts. LangGraph: a change in place reaches siblings, and the state without a write."""

    def changes(state: State) -> None:
        state["log"].append("in place")

    builder = library.StateGraph(State).add_node("a", changes).add_node("b", says("b"))
    graph = builder.add_edge(library.START, "a").add_edge("a", "b").compile()
    expected = ["given", "in place", "b"] if library.is_langgraph else ["given", "b"]
    assert graph.invoke({"log": ["given"]})["log"] == expected


def test_a_sends_argument_is_the_nodes_whole_input(library: Any) -> None:
    """It is neither merged with the state nor made an object of its schema."""
    seen: list[Any] = []

    def node(sent: Any) -> None:
        seen.append(sent)

    def start(state: State) -> Any:
        return [library.Send("n", {"other": 1}), library.Send("n", "text")]

    builder = library.StateGraph(State).add_node("n", node).add_conditional_edges(library.START, start, ["n"])
    builder.compile().invoke({"log": ["state"]})
    assert sorted(seen, key=str) == ["text", {"other": 1}]


def test_values_that_are_equal_in_a_step(library: Any) -> None:
    """`AnyValue` takes several writes of a superstep; a plain key refuses them and says which key it is."""

    class Keys(TypedDict, total=False):
        same: Annotated[str, library.AnyValue]
        one: str

    def build(key: str) -> Any:
        builder = (
            library.StateGraph(Keys).add_node("a", lambda state: {key: "x"}).add_node("b", lambda state: {key: "x"})
        )
        return builder.add_edge(library.START, "a").add_edge(library.START, "b").compile()

    assert build("same").invoke({"one": "y"})["same"] == "x"
    with pytest.raises(library.InvalidUpdateError, match="one"):
        build("one").invoke({"one": "y"})
