"""Subjects of a topic are worked on at the same time by `Send`, and reduced to one."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel

from tests.langgraph_programs.libraries import ScriptedModel


class Subjects(BaseModel):
    subjects: list[str]


class Joke(BaseModel):
    joke: str


class BestJoke(BaseModel):
    id: int


class OverallState(TypedDict):
    topic: str
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best_selected_joke: str


class JokeState(TypedDict):
    subject: str


def jokes(library: Any) -> Any:
    model = ScriptedModel(
        {
            "2 and 3 examples of animals": Subjects(subjects=["lions", "penguins", "elephants"]),
            "a joke about lions": Joke(joke="a lion's joke"),
            "a joke about penguins": Joke(joke="a penguin's joke"),
            "a joke about elephants": Joke(joke="an elephant's joke"),
            "the best one": BestJoke(id=1),
        }
    )

    def generate_topics(state: OverallState) -> dict[str, Any]:
        return {"subjects": model.invoke(f"between 2 and 3 examples of {state['topic']}").subjects}

    def generate_joke(state: JokeState) -> dict[str, Any]:
        return {"jokes": [model.invoke(f"a joke about {state['subject']}").joke]}

    def continue_to_jokes(state: OverallState) -> list[Any]:
        return [library.Send("generate_joke", {"subject": subject}) for subject in state["subjects"]]

    def best_joke(state: OverallState) -> dict[str, Any]:
        best = model.invoke("the best one of " + "; ".join(state["jokes"]))
        return {"best_selected_joke": state["jokes"][best.id]}

    graph = library.StateGraph(OverallState)
    graph.add_node("generate_topics", generate_topics)
    graph.add_node("generate_joke", generate_joke)
    graph.add_node("best_joke", best_joke)
    graph.add_edge(library.START, "generate_topics")
    graph.add_conditional_edges("generate_topics", continue_to_jokes, ["generate_joke"])
    graph.add_edge("generate_joke", "best_joke")
    graph.add_edge("best_joke", library.END)
    return graph.compile()


def test_results_are_in_the_order_of_the_sends(library: Any) -> None:
    """The reducer gets the results by the index of their sends, so an index into them is stable."""
    assert jokes(library).invoke({"topic": "animals"}) == {
        "topic": "animals",
        "subjects": ["lions", "penguins", "elephants"],
        "jokes": ["a lion's joke", "a penguin's joke", "an elephant's joke"],
        "best_selected_joke": "a penguin's joke",
    }


def test_each_send_has_its_own_chunk(library: Any) -> None:
    """Three sends to one node give three chunks with the node's name, before the reduction's chunk."""
    chunks = list(jokes(library).stream({"topic": "animals"}))
    assert chunks[0] == {"generate_topics": {"subjects": ["lions", "penguins", "elephants"]}}
    assert sorted(chunk["generate_joke"]["jokes"][0] for chunk in chunks[1:4]) == [
        "a lion's joke",
        "a penguin's joke",
        "an elephant's joke",
    ]
    assert chunks[4:] == [{"best_joke": {"best_selected_joke": "a penguin's joke"}}]


class SummaryState(TypedDict):
    contents: list[str]
    summaries: Annotated[list[str], operator.add]
    collapsed_summaries: list[str]
    final_summary: str


def summaries(library: Any) -> Any:
    """Build the summary of a long document: map over its parts, and collapse summaries until they are short enough."""

    def generate_summary(state: dict[str, str]) -> dict[str, Any]:
        return {"summaries": [state["content"][:4]]}

    def map_summaries(state: SummaryState) -> list[Any]:
        return [library.Send("generate_summary", {"content": content}) for content in state["contents"]]

    def collect_summaries(state: SummaryState) -> dict[str, Any]:
        return {"collapsed_summaries": state["summaries"]}

    def collapse_summaries(state: SummaryState) -> dict[str, Any]:
        whole = state["collapsed_summaries"]
        return {"collapsed_summaries": ["".join(whole[at : at + 2])[:6] for at in range(0, len(whole), 2)]}

    def should_collapse(state: SummaryState) -> Literal["collapse_summaries", "generate_final_summary"]:
        too_long = sum(len(each) for each in state["collapsed_summaries"]) > 8
        return "collapse_summaries" if too_long else "generate_final_summary"

    def generate_final_summary(state: SummaryState) -> dict[str, Any]:
        return {"final_summary": "/".join(state["collapsed_summaries"])}

    graph = library.StateGraph(SummaryState)
    for node in (generate_summary, collect_summaries, collapse_summaries, generate_final_summary):
        graph.add_node(node)
    graph.add_conditional_edges(library.START, map_summaries, ["generate_summary"])
    graph.add_edge("generate_summary", "collect_summaries")
    graph.add_conditional_edges("collect_summaries", should_collapse)
    graph.add_conditional_edges("collapse_summaries", should_collapse)
    graph.add_edge("generate_final_summary", library.END)
    return graph.compile()


def test_summaries_are_collapsed_until_they_are_short(library: Any) -> None:
    """A router after a node and after itself loops, and names of nodes come from their functions."""
    chunks = list(
        summaries(library).stream({"contents": ["alpha", "bravo", "gamma", "delta"]}, {"recursion_limit": 20})
    )
    assert [next(iter(chunk)) for chunk in chunks] == ["generate_summary"] * 4 + [
        "collect_summaries",
        "collapse_summaries",
        "collapse_summaries",
        "generate_final_summary",
    ]
    assert chunks[-1] == {"generate_final_summary": {"final_summary": "alphbr"}}
