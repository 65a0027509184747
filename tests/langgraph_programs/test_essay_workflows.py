"""Essays written by workflows of plain code: tasks, an entrypoint, a human's review, and a memory from call to call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.langgraph_programs.libraries import ScriptedModel

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "essay"}}


def reviewed_essay(library: Any, ran: list[str]) -> Any:
    interrupt = library.interrupt

    @library.task
    def write_essay(topic: str) -> str:
        """Write an essay about a topic."""
        ran.append(topic)
        return f"an essay about {topic}"

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(topic: str) -> dict[str, Any]:
        """Write an essay and ask for a review."""
        essay = write_essay(topic).result()
        is_approved = interrupt({"essay": essay, "action": "approve or reject the essay"})
        return {"essay": essay, "is_approved": is_approved}

    return workflow


def test_an_essay_is_reviewed(library: Any) -> None:
    """The stream shows the task's result and the question; after the answer, the task does not run again."""
    ran: list[str] = []
    workflow = reviewed_essay(library, ran)
    first, second = workflow.stream("cats", CONFIG)
    assert first == {"write_essay": "an essay about cats"}
    (question,) = second["__interrupt__"]
    assert question.value == {"essay": "an essay about cats", "action": "approve or reject the essay"}
    assert workflow.get_state(CONFIG).next == ("workflow",)

    assert list(workflow.stream(library.Command(resume=True), CONFIG)) == [
        {"workflow": {"essay": "an essay about cats", "is_approved": True}}
    ]
    assert ran == ["cats"]


def test_what_a_call_returns(library: Any) -> None:
    """A workflow that asks returns its question, and the answered one the function's result."""
    workflow = reviewed_essay(library, [])
    (question,) = workflow.invoke("cats", CONFIG)["__interrupt__"]
    answer = library.Command(resume={question.id: False})
    assert workflow.invoke(answer, CONFIG) == {"essay": "an essay about cats", "is_approved": False}


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_paragraphs_are_written_at_the_same_time(library: Any) -> None:
    """Tasks begin when they are called; `asyncio.gather` awaits them in the order of the calls."""
    begun: list[str] = []
    all_begun = asyncio.Event()

    @library.task
    async def write_paragraph(topic: str) -> str:
        begun.append(topic)
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        return f"on {topic}"

    @library.entrypoint()
    async def essay(topics: list[str]) -> str:
        return "; ".join(await asyncio.gather(*(write_paragraph(topic) for topic in topics)))

    assert await essay.ainvoke(["owls", "cats", "dogs"]) == "on owls; on cats; on dogs"


def test_an_evaluator_sends_the_essay_back(library: Any) -> None:
    """A loop in plain code calls tasks until the evaluator is content; each call has its chunk."""
    model = ScriptedModel({"better": "a good essay", "owls": "an essay"})
    evaluator = ScriptedModel({"a good essay": "accept", "an essay": "make it better"})

    @library.task
    def generate(wish: str) -> str:
        return model.invoke(wish)

    @library.task
    def evaluate(essay: str) -> str:
        return evaluator.invoke(essay)

    @library.entrypoint()
    def optimizer(topic: str) -> str:
        wish = topic
        while True:
            essay = generate(wish).result()
            wish = evaluate(essay).result()
            if wish == "accept":
                return essay

    assert list(optimizer.stream("owls", stream_mode="updates")) == [
        {"generate": "an essay"},
        {"evaluate": "make it better"},
        {"generate": "a good essay"},
        {"evaluate": "accept"},
        {"optimizer": "a good essay"},
    ]


def test_a_workflow_remembers(library: Any) -> None:
    """`previous` is what the thread's last call saved, which may differ from what it returned."""

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def chat(sentence: str, *, previous: Any = None) -> Any:
        history = (previous or []) + [sentence]
        return library.entrypoint.final(value=f"{len(history)}: {sentence}", save=history)

    assert chat.invoke("hello", CONFIG) == "1: hello"
    assert chat.invoke("owls?", CONFIG) == "2: owls?"
    assert chat.invoke("hello", {"configurable": {"thread_id": "another"}}) == "1: hello"


def test_a_failed_workflow_goes_on_behind_its_finished_tasks(library: Any) -> None:
    """A call with None continues after a failure, and tasks that have finished do not run again."""
    attempts = {"slow": 0, "shaky": 0}

    @library.task
    def slow_task() -> str:
        attempts["slow"] += 1
        return "ran slowly"

    @library.task
    def shaky_task() -> str:
        attempts["shaky"] += 1
        if attempts["shaky"] == 1:
            raise ValueError("failed")
        return "ok"

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def main(inputs: dict[str, Any]) -> list[str]:
        return [slow_task().result(), shaky_task().result()]

    with pytest.raises(ValueError, match="failed"):
        main.invoke({"any": "thing"}, CONFIG)
    assert main.invoke(None, CONFIG) == ["ran slowly", "ok"]
    assert attempts == {"slow": 1, "shaky": 2}
