"""A story is written, its past is listed, and another story is made from an earlier state."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from tests.langgraph_programs.libraries import ScriptedModel


class State(TypedDict, total=False):
    topic: str
    joke: str
    log: Annotated[list[str], operator.add]


def build(library: Any) -> Any:
    model = ScriptedModel(
        {
            "a funny topic": ["socks", "ties"],
            "on socks": "a joke on socks",
            "on chickens": "a joke on chickens",
            "on ties": "a joke on ties",
        }
    )

    def generate_topic(state: State) -> dict[str, Any]:
        return {"topic": model.invoke("give me a funny topic"), "log": ["topic"]}

    def write_joke(state: State) -> dict[str, Any]:
        return {"joke": model.invoke(f"write a joke on {state['topic']}"), "log": ["joke"]}

    workflow = library.StateGraph(State)
    workflow.add_node("generate_topic", generate_topic)
    workflow.add_node("write_joke", write_joke)
    workflow.add_edge(library.START, "generate_topic")
    workflow.add_edge("generate_topic", "write_joke")
    workflow.add_edge("write_joke", library.END)
    return workflow.compile(checkpointer=library.InMemorySaver())


CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


def test_the_past_of_a_thread_is_listed_from_its_end(library: Any) -> None:
    """Each snapshot has the state at a superstep's end and the nodes that come next."""
    graph = build(library)
    assert graph.invoke({}, CONFIG) == {"topic": "socks", "joke": "a joke on socks", "log": ["topic", "joke"]}
    states = list(graph.get_state_history(CONFIG))
    assert [state.next for state in states] == [(), ("write_joke",), ("generate_topic",), ("__start__",)]
    assert [state.metadata["step"] for state in states] == [2, 1, 0, -1]
    assert [state.metadata["source"] for state in states] == ["loop", "loop", "loop", "input"]
    assert states[1].values == {"topic": "socks", "log": ["topic"]}
    assert states[0].parent_config == states[1].config and states[-1].parent_config is None


def test_a_replay_runs_only_what_comes_after_a_checkpoint(library: Any) -> None:
    """The topic stays as it was, and the joke is written again, on a branch of its own."""
    graph = build(library)
    graph.invoke({}, CONFIG)
    before_the_joke = next(state for state in graph.get_state_history(CONFIG) if state.next == ("write_joke",))
    assert list(graph.stream(None, before_the_joke.config)) == [
        {"write_joke": {"joke": "a joke on socks", "log": ["joke"]}}
    ]
    sources = [state.metadata["source"] for state in graph.get_state_history(CONFIG)]
    assert sources == ["loop", "fork", "loop", "loop", "loop", "input"]


def test_another_topic_makes_another_story(library: Any) -> None:
    """An update of an old state makes a checkpoint, and the thread goes on from there."""
    graph = build(library)
    graph.invoke({}, CONFIG)
    before_the_joke = next(state for state in graph.get_state_history(CONFIG) if state.next == ("write_joke",))
    new_config = graph.update_state(before_the_joke.config, values={"topic": "chickens"})
    assert new_config["configurable"]["checkpoint_id"] != before_the_joke.config["configurable"]["checkpoint_id"]
    assert graph.get_state(new_config).next == ("write_joke",)
    result = graph.invoke(None, new_config)
    assert result == {"topic": "chickens", "joke": "a joke on chickens", "log": ["topic", "joke"]}
    assert graph.get_state(CONFIG).values == result
    assert [state.values.get("topic") for state in graph.get_state_history(CONFIG)][:2] == ["chickens", "chickens"]


def test_the_other_story_leaves_the_first_as_it_was(library: Any) -> None:
    """The history has the checkpoints of both branches, and the end of the first can still be read."""
    graph = build(library)
    graph.invoke({}, CONFIG)
    end = graph.get_state(CONFIG).config
    old = list(graph.get_state_history(CONFIG))[1].config
    graph.invoke(None, graph.update_state(old, {"topic": "chickens"}))
    assert graph.get_state(end).values["joke"] == "a joke on socks"
    assert len(list(graph.get_state_history(CONFIG))) == 6


def test_a_new_input_at_an_old_checkpoint(library: Any) -> None:
    """A call with values and an old checkpoint begins anew from the state of then."""
    graph = build(library)
    graph.invoke({}, CONFIG)
    old = list(graph.get_state_history(CONFIG))[2].config
    assert graph.invoke({"log": ["again"]}, old) == {
        "topic": "ties",
        "joke": "a joke on ties",
        "log": ["again", "topic", "joke"],
    }
