"""An agent that plans, works on the first step of the plan, and plans again until it can answer."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel, Field

from tests.langgraph_programs.libraries import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class Plan(BaseModel):
    """What is left to do."""

    steps: list[str] = Field(description="steps in the order of their execution")


class Response(BaseModel):
    """An answer to the user."""

    response: str


class Act(BaseModel):
    """Answer, or go on with a new plan."""

    action: Response | Plan


class PlanExecute(TypedDict):
    input: str
    plan: list[str]
    past_steps: Annotated[list[tuple[str, str]], operator.add]
    response: str


def build(library: Any) -> Any:
    planner = ScriptedModel({"hometown": Plan(steps=["find the winner", "find the town of the winner"])})
    worker = ScriptedModel({"find the winner": "Ann", "town of": "Ann is of Bern"})
    replanner = ScriptedModel(
        {
            "Ann is of Bern": Act(action=Response(response="Bern")),
            "Ann": Act(action=Plan(steps=["find the town of Ann"])),
        }
    )

    async def plan_step(state: PlanExecute) -> dict[str, Any]:
        plan = await planner.ainvoke(state["input"])
        return {"plan": plan.steps}

    async def execute_step(state: PlanExecute) -> dict[str, Any]:
        task = state["plan"][0]
        return {"past_steps": [(task, await worker.ainvoke(task))]}

    async def replan_step(state: PlanExecute) -> dict[str, Any]:
        output = await replanner.ainvoke(str(state["past_steps"]))
        if isinstance(output.action, Response):
            return {"response": output.action.response}
        return {"plan": output.action.steps}

    def should_end(state: PlanExecute) -> str:
        return library.END if state.get("response") else "agent"

    workflow = library.StateGraph(PlanExecute)
    workflow.add_node("planner", plan_step)
    workflow.add_node("agent", execute_step)
    workflow.add_node("replan", replan_step)
    workflow.add_edge(library.START, "planner")
    workflow.add_edge("planner", "agent")
    workflow.add_edge("agent", "replan")
    workflow.add_conditional_edges("replan", should_end, ["agent", library.END])
    return workflow.compile()


async def test_it_answers_when_nothing_is_left_to_do(library: Any) -> None:
    """Steps accumulate by their reducer while the plan is replaced; the last plan is the answer."""
    result = await build(library).ainvoke({"input": "the hometown of the winner?"}, {"recursion_limit": 50})
    assert result["response"] == "Bern"
    assert result["plan"] == ["find the town of Ann"]
    assert [tuple(step) for step in result["past_steps"]] == [
        ("find the winner", "Ann"),
        ("find the town of Ann", "Ann is of Bern"),
    ]


async def test_its_events_show_each_step(library: Any) -> None:
    """The default stream of a compiled graph shows each node's update in turn."""
    events = [event async for event in build(library).astream({"input": "the hometown of the winner?"})]
    assert events == [
        {"planner": {"plan": ["find the winner", "find the town of the winner"]}},
        {"agent": {"past_steps": [("find the winner", "Ann")]}},
        {"replan": {"plan": ["find the town of Ann"]}},
        {"agent": {"past_steps": [("find the town of Ann", "Ann is of Bern")]}},
        {"replan": {"response": "Bern"}},
    ]


async def test_a_limit_ends_a_plan_without_an_end(library: Any) -> None:
    """A run that would take more supersteps than its limit raises."""
    with pytest.raises(library.GraphRecursionError):
        await build(library).ainvoke({"input": "the hometown of the winner?"}, {"recursion_limit": 3})
