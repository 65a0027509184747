"""Analysts are proposed, a human corrects them, each interviews an expert in a subgraph, and a report is made of all."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel

from tests.langgraph_programs.libraries import ScriptedModel

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "research"}}


class Analyst(BaseModel):
    name: str
    role: str

    @property
    def persona(self) -> str:
        return f"{self.name}, {self.role}"


class Perspectives(BaseModel):
    analysts: list[Analyst]


class GenerateAnalystsState(TypedDict, total=False):
    topic: str
    human_analyst_feedback: str | None
    analysts: list[Analyst]


class InterviewState(TypedDict, total=False):
    max_num_turns: int
    analyst: Analyst
    interview: Annotated[list[str], operator.add]
    context: Annotated[list[str], operator.add]
    sections: list[str]


class InterviewOutput(TypedDict, total=False):
    sections: list[str]


class ResearchGraphState(GenerateAnalystsState, total=False):
    sections: Annotated[list[str], operator.add]
    final_report: str


def interview(library: Any) -> Any:
    def ask_question(state: InterviewState) -> dict[str, Any]:
        return {"interview": [f"{state['analyst'].name} asks {len(state['interview']) // 2 + 1}"]}

    def search_web(state: InterviewState) -> dict[str, Any]:
        return {"context": [f"web on {state['interview'][-1]}"]}

    def search_wikipedia(state: InterviewState) -> dict[str, Any]:
        return {"context": [f"wiki on {state['interview'][-1]}"]}

    def answer_question(state: InterviewState) -> dict[str, Any]:
        return {"interview": [f"an answer by {len(state['context'])} sources"]}

    def route_messages(state: InterviewState) -> str:
        turns = len(state["interview"]) // 2
        return "write_section" if turns >= state["max_num_turns"] else "ask_question"

    def write_section(state: InterviewState) -> dict[str, Any]:
        return {"sections": [f"{state['analyst'].persona}: {state['interview'][-1]}"]}

    builder = library.StateGraph(InterviewState, output_schema=InterviewOutput)
    for node in (ask_question, search_web, search_wikipedia, answer_question, write_section):
        builder.add_node(node)
    builder.add_edge(library.START, "ask_question")
    builder.add_edge("ask_question", "search_web")
    builder.add_edge("ask_question", "search_wikipedia")
    builder.add_edge("search_web", "answer_question")
    builder.add_edge("search_wikipedia", "answer_question")
    builder.add_conditional_edges("answer_question", route_messages, ["ask_question", "write_section"])
    builder.add_edge("write_section", library.END)
    return builder.compile()


def build(library: Any) -> Any:
    ann, bob, eve = (
        Analyst(name=name, role=role) for name, role in (("Ann", "biologist"), ("Bob", "poet"), ("Eve", "farmer"))
    )
    model = ScriptedModel(
        {"with a farmer": Perspectives(analysts=[ann, eve]), "owls": Perspectives(analysts=[ann, bob])}
    )

    def create_analysts(state: GenerateAnalystsState) -> dict[str, Any]:
        wish = f"{state['topic']} {state.get('human_analyst_feedback') or ''}"
        return {"analysts": model.invoke(wish).analysts}

    def human_feedback(state: GenerateAnalystsState) -> None:
        """Do nothing: the run stops before this node."""

    def initiate_all_interviews(state: ResearchGraphState) -> Any:
        if state.get("human_analyst_feedback"):
            return "create_analysts"
        return [
            library.Send("conduct_interview", {"analyst": analyst, "max_num_turns": 2, "interview": [], "context": []})
            for analyst in state["analysts"]
        ]

    def write_report(state: ResearchGraphState) -> dict[str, Any]:
        return {"final_report": " / ".join(state["sections"])}

    builder = library.StateGraph(ResearchGraphState)
    builder.add_node("create_analysts", create_analysts)
    builder.add_node("human_feedback", human_feedback)
    builder.add_node("conduct_interview", interview(library))
    builder.add_node("write_report", write_report)
    builder.add_edge(library.START, "create_analysts")
    builder.add_edge("create_analysts", "human_feedback")
    builder.add_conditional_edges("human_feedback", initiate_all_interviews, ["create_analysts", "conduct_interview"])
    builder.add_edge("conduct_interview", "write_report")
    builder.add_edge("write_report", library.END)
    return builder.compile(interrupt_before=["human_feedback"], checkpointer=library.InMemorySaver())


def names(graph: Any) -> list[str]:
    return [analyst.name for analyst in graph.get_state(CONFIG).values["analysts"]]


def test_feedback_leads_back_and_no_feedback_leads_on(library: Any) -> None:
    """An update in the name of the node that waits runs its router: with feedback, other analysts are proposed."""
    graph = build(library)
    graph.invoke({"topic": "owls"}, CONFIG)
    assert names(graph) == ["Ann", "Bob"] and graph.get_state(CONFIG).next == ("human_feedback",)
    graph.update_state(CONFIG, {"human_analyst_feedback": "with a farmer"}, as_node="human_feedback")
    assert graph.get_state(CONFIG).next == ("create_analysts",)
    graph.invoke(None, CONFIG)
    assert names(graph) == ["Ann", "Eve"] and graph.get_state(CONFIG).next == ("human_feedback",)

    graph.update_state(CONFIG, {"human_analyst_feedback": None}, as_node="human_feedback")
    assert graph.get_state(CONFIG).next == ("conduct_interview", "conduct_interview")
    result = graph.invoke(None, CONFIG)
    assert result["final_report"] == "Ann, biologist: an answer by 4 sources / Eve, farmer: an answer by 4 sources"
    assert graph.get_state(CONFIG).next == ()


def test_steps_of_each_interview(library: Any) -> None:
    """Subgraphs that run at the same time have namespaces of their own, and only their output schema comes out."""
    graph = build(library)
    graph.invoke({"topic": "owls"}, CONFIG)
    steps: dict[tuple[str, ...], list[str]] = {}
    for namespace, chunk in graph.stream(None, CONFIG, stream_mode="updates", subgraphs=True):
        steps.setdefault(namespace, []).extend(chunk)
    outer = steps.pop(())
    assert outer == ["human_feedback", "conduct_interview", "conduct_interview", "write_report"]
    assert len(steps) == 2
    for namespace, inner in steps.items():
        assert namespace[0].startswith("conduct_interview:")
        for at in (0, 4):
            assert inner[at] == "ask_question" and set(inner[at + 1 : at + 3]) == {"search_web", "search_wikipedia"}
        assert inner[3] == inner[7] == "answer_question" and inner[8:] == ["write_section"]
