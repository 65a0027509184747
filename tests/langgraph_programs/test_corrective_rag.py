"""Retrieved documents are graded; if they do not serve, the question is rewritten and the web is searched."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from tests.langgraph_programs.libraries import ScriptedModel


class GradeDocuments(BaseModel):
    binary_score: str


class GraphState(TypedDict):
    question: str
    generation: str
    web_search: str
    documents: list[str]


LIBRARY = ["owls hunt at night", "owls have soft feathers", "agents have memory"]


def retriever(question: str) -> list[str]:
    return [document for document in LIBRARY if document.split()[0] in question]


def build(library: Any) -> Any:
    yes, no = GradeDocuments(binary_score="yes"), GradeDocuments(binary_score="no")
    grader = ScriptedModel({"feathers": no, "hunt": yes, "memory": no})
    rewriter = ScriptedModel({"agents": "which kinds of memory do agents have?"})
    generator = ScriptedModel({"hunt at night": "at night", "web: short and long": "short-term and long-term"})

    def retrieve(state: GraphState) -> dict[str, Any]:
        question = state["question"]
        return {"documents": retriever(question), "question": question}

    def grade_documents(state: GraphState) -> dict[str, Any]:
        get_stream_writer = library.get_stream_writer
        writer, filtered, web_search = get_stream_writer(), [], "No"
        for document in state["documents"]:
            grade = grader.invoke(document)
            writer({"graded": document, "score": grade.binary_score})
            if grade.binary_score == "yes":
                filtered.append(document)
            else:
                web_search = "Yes"
        return {"documents": filtered, "question": state["question"], "web_search": "No" if filtered else web_search}

    def transform_query(state: GraphState) -> dict[str, Any]:
        return {"documents": state["documents"], "question": rewriter.invoke(state["question"])}

    def web_search(state: GraphState) -> dict[str, Any]:
        documents = state["documents"]
        documents.append("web: short and long")
        return {"documents": documents, "question": state["question"]}

    def generate(state: GraphState) -> dict[str, Any]:
        return {"generation": generator.invoke("\n".join(state["documents"]))}

    def decide_to_generate(state: GraphState) -> str:
        return "transform_query" if state["web_search"] == "Yes" else "generate"

    workflow = library.StateGraph(GraphState)
    workflow.add_node("retrieve", retrieve)
    workflow.add_node("grade_documents", grade_documents)
    workflow.add_node("generate", generate)
    workflow.add_node("transform_query", transform_query)
    workflow.add_node("web_search_node", web_search)
    workflow.add_edge(library.START, "retrieve")
    workflow.add_edge("retrieve", "grade_documents")
    workflow.add_conditional_edges(
        "grade_documents",
        decide_to_generate,
        {"transform_query": "transform_query", "generate": "generate"},
    )
    workflow.add_edge("transform_query", "web_search_node")
    workflow.add_edge("web_search_node", "generate")
    workflow.add_edge("generate", library.END)
    return workflow.compile()


def test_good_documents_are_enough(library: Any) -> None:
    """One relevant document keeps the run off the web."""
    result = build(library).invoke({"question": "when do owls hunt?"})
    assert result == {
        "question": "when do owls hunt?",
        "documents": ["owls hunt at night"],
        "web_search": "No",
        "generation": "at night",
    }


def test_bad_documents_lead_to_the_web(library: Any) -> None:
    """A rewritten question replaces the first one, and a list that a node got and appended to is its update."""
    result = build(library).invoke({"question": "do agents remember?"})
    assert result == {
        "question": "which kinds of memory do agents have?",
        "documents": ["web: short and long"],
        "web_search": "Yes",
        "generation": "short-term and long-term",
    }


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_grades_updates_and_values_in_one_stream(library: Any) -> None:
    """Several modes label their chunks: what a node wrote to the stream, its update, and the state after its superstep."""
    stream = build(library).astream(
        {"question": "when do owls hunt?"}, stream_mode=["custom", "updates", "values"], output_keys=["documents"]
    )
    assert [chunk async for chunk in stream] == [
        ("updates", {"retrieve": {"documents": ["owls hunt at night", "owls have soft feathers"]}}),
        ("values", {"documents": ["owls hunt at night", "owls have soft feathers"]}),
        ("custom", {"graded": "owls hunt at night", "score": "yes"}),
        ("custom", {"graded": "owls have soft feathers", "score": "no"}),
        ("updates", {"grade_documents": {"documents": ["owls hunt at night"]}}),
        ("values", {"documents": ["owls hunt at night"]}),
        ("updates", {"generate": None}),
    ]
