"""A model writes code, which is imported and executed; errors go back to the model, up to a number of attempts."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from pydantic import BaseModel

from tests.langgraph_programs.libraries import ScriptedModel

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class Code(BaseModel):
    prefix: str
    imports: str
    code: str


class GraphState(TypedDict, total=False):
    error: str
    messages: Annotated[list[tuple[str, str]], operator.add]
    generation: Code
    iterations: int


WRONG_IMPORT = Code(prefix="the root of two", imports="import maths", code="print(maths.sqrt(2))")
WRONG_CODE = Code(prefix="the root of two", imports="import math", code="math.root(2)")
RIGHT = Code(prefix="the root of two", imports="import math", code="assert math.sqrt(2) > 1.4")


def build(library: Any, max_iterations: int = 3, flag: str = "reflect") -> Any:
    model = ScriptedModel({"your code failed": RIGHT, "your import failed": WRONG_CODE, "root": WRONG_IMPORT})

    async def generate(state: GraphState) -> dict[str, Any]:
        solution = await model.ainvoke(state["messages"][-1][1])
        message = ("assistant", f"{solution.prefix}\n{solution.imports}\n{solution.code}")
        return {"generation": solution, "messages": [message], "iterations": state.get("iterations", 0) + 1}

    async def code_check(state: GraphState) -> dict[str, Any]:
        solution = state["generation"]
        try:
            exec(solution.imports, {})
        except Exception as error:
            return {"messages": [("user", f"your import failed: {error}")], "error": "yes"}
        try:
            exec(f"{solution.imports}\n{solution.code}", {})
        except Exception as error:
            return {"messages": [("user", f"your code failed: {error}")], "error": "yes"}
        return {"error": "no"}

    async def reflect(state: GraphState) -> dict[str, Any]:
        return {"messages": [("user", f"think again, since {state['messages'][-1][1]}")]}

    def decide_to_finish(state: GraphState) -> str:
        if state["error"] == "no" or state["iterations"] == max_iterations:
            return "end"
        return flag

    workflow = library.StateGraph(GraphState)
    workflow.add_node("generate", generate)
    workflow.add_node("check_code", code_check)
    workflow.add_node("reflect", reflect)
    workflow.set_entry_point("generate")
    workflow.add_edge("generate", "check_code")
    workflow.add_conditional_edges(
        "check_code", decide_to_finish, {"end": library.END, "reflect": "reflect", "generate": "generate"}
    )
    workflow.add_edge("reflect", "generate")
    return workflow.compile()


WISH = {"messages": [("user", "the root of two")]}


async def test_code_is_mended_until_it_runs(library: Any) -> None:
    """A model object is a value of the state, and comes back as the same class."""
    result = await build(library).ainvoke(WISH)
    assert result["error"] == "no" and result["iterations"] == 3
    assert result["generation"] == RIGHT and type(result["generation"]) is Code
    assert [role for role, _ in result["messages"]].count("assistant") == 3


async def test_attempts_are_limited(library: Any) -> None:
    """The last attempt is the result, with its error."""
    result = await build(library, max_iterations=2).ainvoke(WISH)
    assert result["error"] == "yes" and result["generation"] == WRONG_CODE


@pytest.mark.parametrize(("flag", "between"), [("reflect", ["reflect"]), ("generate", [])])
async def test_the_way_of_its_states(library: Any, flag: str, between: list[str]) -> None:
    """A label of the path map leads to the node that it names."""
    nodes = [next(iter(chunk)) async for chunk in build(library, flag=flag).astream(WISH, stream_mode="updates")]
    attempt = ["generate", "check_code"]
    assert nodes == [*attempt, *between, *attempt, *between, *attempt]
