"""What a node may return, and what its update does to the state."""

import operator
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def one(library: Any, node: Any, state: Any = State, **options: Any) -> Any:
    return library.StateGraph(state).add_node("n", node).add_edge(library.START, "n").compile(**options)


@pytest.mark.parametrize("nothing", [None, {}])
def test_a_node_that_returns_nothing_leads_on(library: Any, nothing: Any) -> None:
    """Its edges fire, and its chunk is None."""
    builder = library.StateGraph(State).add_node("a", lambda state: nothing).add_node("b", lambda state: {"note": "b"})
    graph = builder.add_edge(library.START, "a").add_edge("a", "b").compile()
    assert list(graph.stream({"log": []}, stream_mode="updates")) == [{"a": None}, {"b": {"note": "b"}}]


def test_a_node_that_returned_nothing_does_not_run_again(library: Any) -> None:
    """It counts as finished when the thread continues after a sibling's failure."""
    ran: list[str] = []
    a_has_run = threading.Event()

    def a(state: State) -> None:
        ran.append("a")
        a_has_run.set()

    def b(state: State) -> dict[str, Any]:
        ran.append("b")
        if ran.count("b") == 1:
            a_has_run.wait()
            raise ValueError("b fails")
        return {"note": "b"}

    builder = (
        library.StateGraph(State).add_node(a).add_node(b).add_edge(library.START, "a").add_edge(library.START, "b")
    )
    graph = builder.compile(library.InMemorySaver())
    with pytest.raises(ValueError, match="b fails"):
        graph.invoke({"log": []}, CONFIG)
    assert graph.invoke(None, CONFIG)["note"] == "b"
    assert ran.count("b") == 2


def test_unknown_keys_are_refused(library: Any) -> None:
    """`compile(unknown_keys="ignore")` drops them. LangGraph: always."""

    def node(state: State) -> dict[str, Any]:
        return {"note": "known", "nope": 1}

    if library.is_langgraph:
        assert one(library, node).invoke({"log": []}) == {"log": [], "note": "known"}
        return
    with pytest.raises(library.InvalidUpdateError, match="nope"):
        one(library, node).invoke({"log": []})
    assert one(library, node, unknown_keys="ignore").invoke({"log": []}) == {"log": [], "note": "known"}


@pytest.mark.parametrize("way", ["goto", "send"])
def test_a_way_to_an_unknown_node_is_an_error(library: Any, way: str) -> None:
    """LangGraph: it is logged, and the run ends without it."""

    def node(state: State) -> Any:
        return library.Command(update={"note": "n"}, goto="nowhere" if way == "goto" else library.Send("nowhere", {}))

    if library.is_langgraph:
        assert one(library, node).invoke({"log": []})["note"] == "n"
    else:
        with pytest.raises(library.InvalidUpdateError, match="nowhere"):
            one(library, node).invoke({"log": []})


def test_a_goto_adds_to_edges(library: Any) -> None:
    """The command's target runs in the next superstep together with the targets of edges; `goto=END` stops nothing."""

    def first(state: State) -> Any:
        return library.Command(update={"log": ["first"]}, goto=["side", library.END])

    builder = library.StateGraph(State).add_node("first", first, destinations=("side", library.END))
    builder.add_node("side", lambda state: {"log": ["side"]}).add_node("edge", lambda state: {"log": ["edge"]})
    graph = builder.add_edge(library.START, "first").add_edge("first", "edge").compile()
    assert graph.invoke({"log": []})["log"] == ["first", "edge", "side"]


def test_a_list_of_commands_and_updates(library: Any) -> None:
    """Each element is applied in turn, and the chunk lists what was written to one key more than once."""

    def node(state: State) -> Any:
        return [{"log": [1]}, library.Command(update={"log": [2]}, goto="m"), library.Command(update={"note": "n"})]

    builder = (
        library.StateGraph(State).add_node("n", node, destinations=("m",)).add_node("m", lambda state: {"log": ["m"]})
    )
    graph = builder.add_edge(library.START, "n").compile()
    chunks = list(graph.stream({"log": [0]}, stream_mode=["updates", "values"]))
    assert chunks[1] == ("updates", {"n": [{"log": [1]}, {"log": [2]}, {"note": "n"}]})
    assert chunks[-1] == ("values", {"log": [0, 1, 2, "m"], "note": "n"})


def test_an_update_of_pairs_may_repeat_a_key(library: Any) -> None:
    """Each pair is a write of its own."""
    graph = one(library, lambda state: library.Command(update=[("log", [1]), ("log", [2])]))
    assert graph.invoke({"log": []})["log"] == [1, 2]


def test_a_router_sees_its_own_nodes_writes_alone(library: Any) -> None:
    """It reads the state with its node's update, and without those of siblings of the same superstep."""
    seen: list[Any] = []

    def route(state: State) -> str:
        seen.append(list(state["log"]))
        return library.END

    builder = (
        library.StateGraph(State)
        .add_node("a", lambda state: {"log": ["a"]})
        .add_node("b", lambda state: {"log": ["b"]})
    )
    builder.add_edge(library.START, "a").add_edge(library.START, "b")
    builder.add_conditional_edges("a", route).add_conditional_edges("b", route)
    builder.compile().invoke({"log": ["given"]})
    assert sorted(seen) == [["given", "a"], ["given", "b"]]


@pytest.mark.parametrize(
    ("destination", "path_map", "langgraphs"),
    [(None, None, ValueError), ("c", {"a": "m"}, KeyError), ("send to the end", None, None)],
)
def test_bad_destinations(library: Any, destination: Any, path_map: Any, langgraphs: Any) -> None:
    """A router's result that leads nowhere fails its node's task, as an `InvalidUpdateError`. LangGraph: as various errors."""

    def route(state: State) -> Any:
        return library.Send(library.END, {}) if destination == "send to the end" else destination

    builder = library.StateGraph(State).add_node("n", lambda state: None).add_node("m", lambda state: None)
    graph = builder.add_edge(library.START, "n").add_conditional_edges("n", route, path_map).compile()
    error = langgraphs if library.is_langgraph and langgraphs else library.InvalidUpdateError
    with pytest.raises(error):
        graph.invoke({"log": []})


def test_an_overwrite_wins_over_all_writes_of_its_superstep(library: Any) -> None:
    """The reducer is not called for that superstep, whichever node the overwrite comes from."""
    builder = library.StateGraph(State).add_node("a", lambda state: {"log": library.Overwrite(["new"])})
    builder.add_node("b", lambda state: {"log": ["b"]}).add_edge(library.START, "a").add_edge(library.START, "b")
    assert builder.compile().invoke({"log": ["old"]})["log"] == ["new"]


def test_two_overwrites_of_one_superstep_are_refused(library: Any) -> None:
    """Neither could win."""
    builder = library.StateGraph(State)
    for name in "ab":
        builder.add_node(name, lambda state: {"log": library.Overwrite([])}).add_edge(library.START, name)
    with pytest.raises(library.InvalidUpdateError):
        builder.compile().invoke({"log": []})


def test_the_chunk_of_an_overwrite_shows_the_overwrite(library: Any) -> None:
    """The chunk has what the node returned, and not the state that comes of it."""
    graph = one(library, lambda state: {"log": library.Overwrite(["new"])})
    (chunk,) = graph.stream({"log": ["old"]}, stream_mode="updates")
    assert chunk == {"n": {"log": library.Overwrite(["new"])}}


def test_the_first_write_of_a_key_without_an_empty_value(library: Any) -> None:
    """The reducer is not called for it."""
    calls: list[Any] = []

    def joined(left: Any, right: Any) -> Any:
        calls.append((left, right))
        return left + right

    class Keys(TypedDict, total=False):
        key: Annotated[Literal["a", "b", "ab"], joined]

    graph = one(library, lambda state: {"key": "b"}, Keys)
    assert graph.invoke({"key": "a"}) == {"key": "ab"}
    assert calls == [("a", "b")]


def test_a_reducer_that_raises_is_called_again_on_resume(library: Any) -> None:
    """The error is the reducer's own; finished nodes do not run again, and their writes are folded anew."""
    broken, ran = [True], []

    def add(left: list[str], right: list[str]) -> list[str]:
        if right == ["n"] and broken:
            raise ZeroDivisionError("the reducer is broken")
        return left + right

    class Keys(TypedDict, total=False):
        log: Annotated[list[str], add]

    def node(state: Keys) -> dict[str, Any]:
        ran.append("n")
        return {"log": ["n"]}

    graph = one(library, node, Keys, checkpointer=library.InMemorySaver())
    with pytest.raises(ZeroDivisionError, match="the reducer is broken"):
        graph.invoke({"log": ["given"]}, CONFIG)
    broken.clear()
    assert graph.invoke(None, CONFIG) == {"log": ["given", "n"]}
    assert ran == ["n"]


def test_only_keys_of_the_input_schema_come_in(library: Any) -> None:
    """A key of the state alone is refused as an input. LangGraph: it is dropped."""

    class Input(TypedDict, total=False):
        note: str

    builder = library.StateGraph(State, input_schema=Input).add_node("n", lambda state: None)
    graph = builder.add_edge(library.START, "n").compile()
    assert graph.invoke({"note": "x"})["note"] == "x"
    if library.is_langgraph:
        assert graph.invoke({"note": "x", "log": ["in"]})["log"] == []
    else:
        with pytest.raises(TypeError, match="log"):
            graph.invoke({"note": "x", "log": ["in"]})


def test_an_empty_input_starts_a_run_and_none_does_not(library: Any) -> None:
    """A fresh thread has no run that a call with None could continue."""
    graph = one(library, lambda state: {"note": "ran"}, checkpointer=library.InMemorySaver())
    with pytest.raises(library.EmptyInputError):
        graph.invoke(None, CONFIG)
    assert graph.invoke({}, CONFIG)["note"] == "ran"


def test_a_models_update_writes_the_fields_that_were_set(library: Any) -> None:
    """Fields that keep the default None are not written; a node reads an object of the model."""

    class Model(BaseModel):
        name: str | None = None
        count: int = 0
        log: Annotated[list[str], operator.add] = []

    def node(state: Model) -> Model:
        assert isinstance(state, Model)
        return Model(count=state.count + 1, log=["n"])

    assert one(library, node, Model).invoke({"name": "a", "count": 1}) == {"name": "a", "count": 2, "log": ["n"]}


def test_a_dataclass_state(library: Any) -> None:
    """Nodes read objects of the class with its defaults, and a call returns a dict."""

    @dataclass
    class Data:
        name: str = "nobody"
        log: Annotated[list[str], operator.add] = field(default_factory=list)

    def node(state: Data) -> dict[str, Any]:
        return {"log": [f"hello {state.name}"]}

    assert one(library, node, Data).invoke({"name": "Ann"}) == {"name": "Ann", "log": ["hello Ann"]}


def test_a_root_state(library: Any) -> None:
    """A state that is no class of keys is one value, and a node's result is its update."""
    builder = library.StateGraph(Annotated[list[str], operator.add])
    builder.add_node("a", lambda state: ["a"]).add_node("b", lambda state: None)
    builder.add_node("c", lambda state: library.Command(update=["c"]))
    builder.add_edge(library.START, "a").add_edge("a", "b").add_edge("b", "c")
    assert builder.compile().invoke(["given"]) == ["given", "a", "c"]


def test_a_node_may_return_one_send(library: Any) -> None:
    """A bare `Send` is routed."""
    builder = library.StateGraph(State).add_node("a", lambda state: library.Send("b", {"n": 3}))
    builder.add_node("b", lambda sent: {"log": [sent["n"]]}).add_edge(library.START, "a")
    assert builder.compile().invoke({"log": []})["log"] == [3]


@pytest.mark.parametrize("result", ["text", 3, [1, 2]])
def test_other_results_are_refused(library: Any, result: Any) -> None:
    """A result that is no update names the node or the value."""
    with pytest.raises(library.InvalidUpdateError):
        one(library, lambda state: result).invoke({"log": []})
