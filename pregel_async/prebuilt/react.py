"""`create_react_agent`: a model that calls tools until it answers, with LangGraph's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from checkpoint_savers import ports
from checkpoint_savers.abc import BaseCheckpointSaver

from .._runtime.tasks.injection import injections_of
from ..adapters.conversation import calls_of, content_of, is_langchain, role_of
from ..adapters.fields import get_field
from ..channels import EphemeralValue
from ..errors import GraphValidationError, InvalidInputError
from ..graph import CompiledStateGraph, StateGraph
from ..messages import add_messages
from ..policies import Budget
from ..runtime import Runtime
from ..types import END, START, RunnableConfig, Send
from .agent_state import AgentState, extended_schema, with_langchain_messages
from .any_model import as_model, speaks_langchain
from .conversation import (
    answered_calls,
    check_answered,
    last_answer,
    make_message,
    pending_calls,
    uses_langchain,
    with_fields,
)
from .langchain_models import is_langchain_model
from .models import ChatModel, ModelCall
from .structured_output.schemas import OutputSchema, ask_for, output_schema
from .tool_node import ToolNode
from .usage import Price, PricesInForce, budgets_of_agent, check_prices

__all__ = ["create_react_agent"]

AGENT, TOOLS, PRE, POST, STRUCTURED = (
    "agent",
    "tools",
    "pre_model_hook",
    "post_model_hook",
    "generate_structured_response",
)


def create_react_agent(
    model: Any,
    tools: Sequence[Any] | ToolNode,
    *,
    prompt: Any = None,
    response_format: Any = None,
    pre_model_hook: Any = None,
    post_model_hook: Any = None,
    state_schema: type[Any] | None = None,
    context_schema: type[Any] | None = None,
    checkpointer: BaseCheckpointSaver | bool | None = None,
    store: ports.BaseStore | None = None,
    interrupt_before: Sequence[str] | None = None,
    interrupt_after: Sequence[str] | None = None,
    debug: bool = False,
    version: Literal["v1", "v2"] = "v2",
    name: str | None = None,
    prices: Mapping[str, Price] | None = None,
    budgets: Mapping[str, Budget] | None = None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Make an agent: a graph in which a model calls tools until it answers.

    The nodes are "agent" and "tools", and those of the hooks. With "v2", each tool call is a task of its own. With
    "v1", one task runs all calls of a message, and each call is recorded nevertheless.

    If the step limit does not allow another round of tools and model, the agent ends with a message that says so.

    Args:
        model: anything that `as_model` takes; or a function of `(state, runtime)` that returns a model for each call.
            Its second parameter is named `runtime`, or annotated with `Runtime`.
        tools: anything that `as_tool` takes, dicts that describe tools of the provider itself, or a `ToolNode`.
        prompt: a text or a system message, which is put before the conversation; or a function of the state, or a
            Runnable, which returns the messages for the model.
        response_format: a pydantic model, Struct, dataclass, TypedDict or JSON Schema. After the last answer, the model
            is asked for an object of this form, which is under `structured_response`. A pair of a prompt and a form
            adds the prompt.
        pre_model_hook: a node before each call of the model. It may return `llm_input_messages`, which the model gets
            instead of `messages`.
        post_model_hook: a node after each call of the model, before the tools.
        state_schema: a schema with `messages`; `AgentState` by default.
        context_schema: the schema of a call's `context=`.
        checkpointer: stores threads; see `StateGraph.compile`.
        store: long-term memory; see `StateGraph.compile`.
        interrupt_before: names of nodes; see `StateGraph.compile`.
        interrupt_after: names of nodes; see `StateGraph.compile`.
        debug: see `StateGraph.compile`.
        version: how tools are run, as above.
        name: the name of the graph, and of the agent in its messages.
        prices: prices by the name of the model: `{"gpt-5": Price(input=1.25, output=10)}`, in US dollars per million
            tokens. The cost of models that are not in it is unknown, and their tokens are counted all the same.
        budgets: limits of what the agent spends: "input_tokens", "output_tokens", "cost_usd", and names that tools and
            hooks `spend`. A call may set limits of the first three without it. See `StateGraph.compile`.

    Returns:
        The compiled graph. Its input is `{"messages": [...]}`.

    Raises:
        InvalidModelError: the model cannot be one.
        InvalidToolError: a tool cannot be one.
        GraphValidationError: a schema lacks a key, or another argument is invalid.
    """
    if version not in ("v1", "v2"):
        raise GraphValidationError(f"version is 'v1' or 'v2', not {version!r}")
    schema: Any = AgentState if state_schema is None else state_schema
    schema = extended_schema(schema, schema.__name__, {"messages": Annotated[list[Any], add_messages]})
    schema = schema_for_model(schema, model)
    provider_tools = [] if isinstance(tools, ToolNode) else [tool for tool in tools if isinstance(tool, dict)]
    node = tools if isinstance(tools, ToolNode) else ToolNode([tool for tool in tools if not isinstance(tool, dict)])
    format_prompt, form = response_format if isinstance(response_format, tuple) else (None, response_format)
    output = None if form is None else output_schema(form)
    if output is not None:
        schema = extended_schema(schema, schema.__name__, {"structured_response": output.kind})
    direct = {tool.name for tool in node.tools_by_name.values() if tool.return_direct}
    agent = _Agent(
        model=model,
        tools=[*node.tools_by_name.values(), *provider_tools],
        prompt=prompt,
        name=name,
        direct=direct,
        before=int(pre_model_hook is not None),
        after=int(post_model_hook is not None),
        end=int(output is not None),
        prices=check_prices(prices),
    )
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(schema, context_schema)
    agent_input = None
    if pre_model_hook is not None:
        key = {"llm_input_messages": Annotated[list[Any], EphemeralValue(list)]}
        agent_input = extended_schema(schema, "AgentInput", key)
        builder.add_node(PRE, _as_node(pre_model_hook))
        builder.add_edge(PRE, AGENT)
    builder.add_node(AGENT, agent.answer, input_schema=agent_input)
    entry = AGENT if pre_model_hook is None else PRE
    builder.add_edge(START, entry)
    end = END
    if output is not None:
        builder.add_node(STRUCTURED, _StructuredResponse(agent, output, format_prompt).answer)
        builder.add_edge(STRUCTURED, END)
        end = STRUCTURED
    if post_model_hook is not None:
        builder.add_node(POST, _as_node(post_model_hook))
        builder.add_edge(AGENT, POST)
    after_model = AGENT if post_model_hook is None else POST
    if not node.tools_by_name:
        builder.add_edge(after_model, end)
    else:
        router = _LoopRouter(entry=entry, end=end, sends=version == "v2", direct=direct)
        builder.add_node(TOOLS, node)
        ends = [TOOLS, end] if post_model_hook is None else [TOOLS, end, entry]
        builder.add_conditional_edges(after_model, router.after_model, ends)
        if direct:
            builder.add_conditional_edges(TOOLS, router.after_tools, [entry, END])
        else:
            builder.add_edge(TOOLS, entry)
    options: dict[str, Any] = {
        "interrupt_before": interrupt_before,
        "interrupt_after": interrupt_after,
        "name": name,
        "budgets": budgets_of_agent(budgets),
    }
    return builder.compile(
        checkpointer, store=store, debug=debug, **{key: value for key, value in options.items() if value is not None}
    )


class _Agent:
    """The node that calls the model.

    Attributes:
        prices: prices by the name of the model.
    """

    def __init__(
        self,
        *,
        model: Any,
        tools: Sequence[Any],
        prompt: Any,
        name: str | None,
        direct: set[str],
        before: int,
        after: int,
        end: int,
        prices: Mapping[str, Price],
    ) -> None:
        self.prices = prices
        self._choose: Callable[..., Any] | None = model if is_dynamic(model) else None
        self._model: ChatModel | None = None if self._choose is not None else as_model(model)
        self._tools = tools
        self._prompt = prompt
        self._name = name
        self._direct = direct
        # Supersteps that are needed after this one to run tools, and for another answer after that.
        self._for_tools = after + 1
        self._for_answer = before + 1 + after + end
        if not (prompt is None or isinstance(prompt, str) or callable(prompt) or _is_message(prompt)) and not hasattr(
            prompt, "ainvoke"
        ):
            raise GraphValidationError(f"prompt is a text, a system message or a function of the state, not {prompt!r}")

    async def answer(self, state: Any, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        messages = get_field(state, "llm_input_messages") or get_field(state, "messages")
        if not messages:
            raise InvalidInputError("an agent needs a message to answer, and the state has none in 'messages'")
        check_answered(messages)
        model = await self.model_for(state, runtime)
        given = await self._with_prompt(state, messages, config)
        with PricesInForce(self.prices):
            answer = await model.answer(ModelCall(messages=given, tools=self._tools, config=config))
        if self._name is not None:
            answer = with_fields(answer, name=self._name)
        remaining = get_field(state, "remaining_steps")
        if remaining is not None and not self._has_time(answer, remaining):
            said = "The step limit ends this run before the request is done."
            answer = make_message("assistant", said, langchain=is_langchain(answer), id=get_field(answer, "id"))
        return {"messages": [answer]}

    async def model_for(self, state: Any, runtime: Runtime[Any]) -> ChatModel:
        """Return the model for a state."""
        if self._choose is None:
            assert self._model is not None
            return self._model
        chosen = self._choose(state, runtime)
        return as_model(await chosen if inspect.isawaitable(chosen) else chosen)

    def _has_time(self, answer: Any, remaining: int) -> bool:
        if remaining - 1 >= self._for_tools + self._for_answer:
            return True
        calls = calls_of(answer)
        all_direct = all(call["name"] in self._direct for call in calls)
        return not calls or (all_direct and remaining - 1 >= self._for_tools)

    async def _with_prompt(self, state: Any, messages: Sequence[Any], config: RunnableConfig) -> list[Any]:
        prompt = self._prompt
        if prompt is None:
            return list(messages)
        if isinstance(prompt, str):
            return [make_message("system", prompt, langchain=uses_langchain(messages)), *messages]
        if _is_message(prompt):
            return [prompt, *messages]
        shown = {**state, "messages": messages} if isinstance(state, Mapping) else state
        made = prompt.ainvoke(shown, config) if hasattr(prompt, "ainvoke") else prompt(shown)
        made = await made if inspect.isawaitable(made) else made
        return made.to_messages() if hasattr(made, "to_messages") else list(made)


class _StructuredResponse:
    """The node that asks for the answer in a form."""

    def __init__(self, agent: _Agent, schema: OutputSchema, prompt: str | None) -> None:
        self._agent = agent
        self._schema = schema
        self._prompt = prompt

    async def answer(self, state: Any, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        messages = list(get_field(state, "messages"))
        if self._prompt is not None:
            messages.insert(0, make_message("system", self._prompt, langchain=uses_langchain(messages)))
        model = await self._agent.model_for(state, runtime)
        with PricesInForce(self._agent.prices):
            return {"structured_response": await ask_for(self._schema, model, messages, config, {})}


class _LoopRouter:
    """Decides what runs after the model and after the tools."""

    def __init__(self, *, entry: str, end: str, sends: bool, direct: set[str]) -> None:
        self._entry = entry
        self._end = end
        self._sends = sends
        self._direct = direct

    def after_model(self, state: Any) -> Any:
        messages = get_field(state, "messages")
        pending = pending_calls(messages)
        if pending:
            return [Send(TOOLS, [call]) for call in pending] if self._sends else TOOLS
        # A hook after the model may have answered the calls itself: the model must see that.
        return self._entry if role_of(messages[-1]) == "tool" else self._end

    def after_tools(self, state: Any) -> str:
        messages = get_field(state, "messages")
        answered = answered_calls(messages)
        called = [call["name"] for call in calls_of(last_answer(messages)) if call["id"] in answered]
        return END if any(name in self._direct for name in called) else self._entry


def _is_message(value: Any) -> bool:
    return is_langchain(value) or (isinstance(value, Mapping) and content_of(value) is not None)


def schema_for_model(schema: Any, model: Any) -> Any:
    """Return a schema whose messages are of the kind that a model writes, whatever callers pass.

    Args:
        schema: the schema of the state.
        model: the model, or a function that returns one for each call.
    """
    return with_langchain_messages(schema) if not is_dynamic(model) and speaks_langchain(model) else schema


def is_dynamic(model: Any) -> bool:
    """Return True for a function of the state and the runtime, and False for one of messages and tools."""
    if is_langchain_model(model) or not callable(model) or isinstance(model, type):
        return False
    try:
        second = list(inspect.signature(model).parameters)[1:2]
    except (TypeError, ValueError):
        return False
    return [(name, "runtime") for name in second] == list(injections_of(model, after=1))[:1] != []


def _as_node(hook: Any) -> Any:
    """Return a hook as a node: a function, a compiled graph, or a Runnable of langchain-core."""
    if is_langchain_model(hook):

        async def run(state: Any, config: RunnableConfig) -> Any:
            return await hook.ainvoke(state, config)

        return run
    return hook
