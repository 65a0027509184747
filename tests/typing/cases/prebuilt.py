"""How type checkers see tools and agents. Read by mypy and pyright, and never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, assert_type

from pregel_async import MessagesState, StateGraph
from pregel_async.prebuilt import (
    AgentMiddleware,
    AgentState,
    InjectedState,
    ModelRequest,
    ModelResponse,
    Tool,
    ToolCallRequest,
    ToolNode,
    ToolRuntime,
    as_tool,
    before_model,
    create_agent,
    create_react_agent,
    tool,
    tools_condition,
)


class Context:
    user: str = "ada"


class State(AgentState, total=False):
    user: str


@tool
def plain(city: str) -> str:
    return city


@tool("named", return_direct=True)
async def named(city: str, state: Annotated[State, InjectedState]) -> str:
    return city


def whoami(runtime: ToolRuntime[Context, State]) -> str:
    assert_type(runtime.context, Context)
    assert_type(runtime.state, State)
    return runtime.context.user


def bare(runtime: ToolRuntime) -> Any:
    return runtime.state


async def model(messages: list[Any], tools: list[dict[str, Any]]) -> str:
    return "hi"


async def wrap(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
    return await execute(request.override(tool_call={**request.tool_call, "args": {}}))


class Retry(AgentMiddleware):
    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        return await handler(request.override(system_prompt="again"))


@before_model
async def look(state: State, runtime: Any) -> None:
    return None


@before_model(can_jump_to=["end"], name="stop")
def stop(state: State, runtime: Any) -> dict[str, Any]:
    return {"jump_to": "end"}


before_model(can_jump_to=["home"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # wrong on purpose

assert_type(look, AgentMiddleware)
assert_type(stop, AgentMiddleware)
assert_type(plain, Tool)
assert_type(named, Tool)
assert_type(as_tool(whoami), Tool)

node = ToolNode([plain, named, whoami], awrap_tool_call=wrap, handle_tool_errors=(ValueError, KeyError))
ToolNode([plain], handle_tool_errors=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose

builder = StateGraph(MessagesState).add_node("tools", node).add_conditional_edges("tools", tools_condition)

agent = create_agent(model, [plain, whoami], middleware=[Retry(), look], state_schema=State, approve={"plain": True})
create_agent(model, middleware=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # wrong on purpose
create_react_agent(model, node, version="v1")


async def main() -> None:
    state = await agent.ainvoke({"messages": ["hi"]}, "thread-1")
    print(state["messages"])
