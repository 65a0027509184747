"""`create_agent`: a model, tools and middleware as one graph, with langchain's parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Union, get_type_hints, is_typeddict

from checkpoint_savers import ports
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.caches.abc import BaseCache

from ..adapters.conversation import calls_of, is_langchain
from ..adapters.fields import get_field
from ..channels import EphemeralValue
from ..errors import GraphValidationError, InvalidInputError
from ..graph import CompiledStateGraph, StateGraph
from ..messages import add_messages
from ..policies import Budget
from ..runtime import Runtime
from ..types import END, START, TAG_NOSTREAM, Command, RunnableConfig, Send
from . import middleware as own_middleware
from .agent_state import AgentState, extended_schema, private_keys, schema_without, with_langchain_messages
from .any_model import as_model, speaks_langchain
from .approval import Approve, approval_wrapper
from .conversation import (
    answered_calls,
    check_answered,
    last_answer,
    make_message,
    pending_calls,
    uses_langchain,
    with_fields,
)
from .human_interrupt import QuestionShape
from .middleware.base import (
    HOOKS,
    AgentMiddleware,
    ExtendedModelResponse,
    JumpTo,
    ModelRequest,
    ModelResponse,
    as_hook_update,
    chain_model_calls,
    chain_tool_calls,
    jumps_of,
    method_of,
)
from .models import ModelCall
from .structured_output.strategies import ResponseFormat, answer_in_form, check_model, strategy_of
from .tool_node import ToolNode
from .tools import Tool, as_tool
from .usage import Price, PricesInForce, budgets_of_agent, check_prices

__all__ = ["create_agent"]

MODEL, TOOLS = "model", "tools"


def create_agent(
    model: Any,
    tools: Sequence[Any] | None = None,
    *,
    system_prompt: Any = None,
    middleware: Sequence[AgentMiddleware] = (),
    response_format: Any = None,
    approve: Approve | None = None,
    approve_shape: QuestionShape | None = None,
    state_schema: type[Any] | None = None,
    context_schema: type[Any] | None = None,
    checkpointer: BaseCheckpointSaver | bool | None = None,
    store: ports.BaseStore | None = None,
    interrupt_before: Sequence[str] | None = None,
    interrupt_after: Sequence[str] | None = None,
    debug: bool = False,
    name: str | None = None,
    cache: BaseCache | None = None,
    prices: Mapping[str, Price] | None = None,
    budgets: Mapping[str, Budget] | None = None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Make an agent: a graph in which a model calls tools until it answers.

    The nodes are "model" and "tools", and one for each hook of the middleware, such as "log.before_model". Each tool
    call is a task of its own, which is recorded when it ends. If the step limit does not allow another round, the agent
    ends with a message that says so.

    Args:
        model: anything that `as_model` takes.
        tools: anything that `as_tool` takes, and dicts that describe tools of the provider itself.
        system_prompt: a text, or a system message.
        middleware: hooks and wrappers; see `AgentMiddleware`.
        response_format: a pydantic model, Struct, dataclass, TypedDict or JSON Schema, or a union of them. The agent
            ends with an object of this form under `structured_response`: by the provider's means if the model follows
            schemas, and else by a tool that the model calls at the end. The model is shown its errors. Or a
            `ToolStrategy` or a `ProviderStrategy`, which says by what means.
        approve: which tool calls ask a person first: by the tool's name True, or a function of the `ToolCallRequest`;
            or one such function. Each call asks for itself, with a `ToolApprovalRequest`. Needs a checkpointer.
        approve_shape: "human_interrupt" to ask with a list of a `HumanInterrupt`, as older user interfaces expect it;
            the answer is a list of a `HumanResponse`.
        state_schema: a schema with `messages`; `AgentState` by default. Keys of the middleware are added.
        context_schema: the schema of a call's `context=`.
        checkpointer: stores threads; see `StateGraph.compile`.
        store: long-term memory; see `StateGraph.compile`.
        interrupt_before: names of nodes; see `StateGraph.compile`.
        interrupt_after: names of nodes; see `StateGraph.compile`.
        debug: see `StateGraph.compile`.
        name: the name of the graph, and of the agent in its messages.
        cache: see `StateGraph.compile`.
        prices: prices by the name of the model: `{"gpt-5": Price(input=1.25, output=10)}`, in US dollars per million
            tokens. The cost of models that are not in it is unknown, and their tokens are counted all the same.
        budgets: limits of what the agent spends: "input_tokens", "output_tokens", "cost_usd", and names that tools and
            hooks `spend`. A call may set limits of the first three without it. See `StateGraph.compile`.

    Returns:
        The compiled graph. Its input is `{"messages": [...]}`.

    Raises:
        InvalidModelError: the model cannot be one.
        InvalidToolError: a tool cannot be one.
        GraphValidationError: middleware have one name, a schema lacks a key, `approve` names a tool that an agent
            without middleware does not have, or another argument is invalid.
    """
    for each in middleware:
        if not isinstance(each, AgentMiddleware):
            raise GraphValidationError(f"{each!r} is no middleware: {_instead_of(each)}")
    names = [each.name for each in middleware]
    if len(set(names)) < len(names):
        raise GraphValidationError(f"each middleware needs a name of its own, and the names are {', '.join(names)}")
    given = [*(tool for each in middleware for tool in each.tools), *(tools or ())]
    wrappers = [wrap for each in middleware if (wrap := method_of(each, "wrap_tool_call")) is not None]
    if approve is not None:
        wrappers.append(approval_wrapper(approve, approve_shape))
    elif approve_shape is not None:
        raise GraphValidationError("approve_shape says how approve= asks, and approve is not given")
    node = ToolNode([tool for tool in given if not isinstance(tool, dict)], awrap_tool_call=chain_tool_calls(wrappers))
    # Middleware may add tools to a call of the model; without any, a name that no tool has would never be asked about.
    if isinstance(approve, Mapping) and not middleware and (unknown := set(approve) - set(node.tools_by_name)):
        raise GraphValidationError(
            f"approve names {', '.join(sorted(unknown))}, and the tools are {', '.join(node.tools_by_name) or 'none'}"
        )
    output = None if response_format is None else strategy_of(response_format)
    for form in () if output is None else output.schemas:
        if form.name in node.tools_by_name:
            raise GraphValidationError(f"a tool has the name of response_format, {form.name!r}")
    charged = check_prices(prices)
    layout = _HookLayout(middleware, charged, has_output=output is not None)
    agent = _ModelNode(
        model=model,
        tools=[*node.tools_by_name.values(), *(tool for tool in given if isinstance(tool, dict))],
        system_prompt=system_prompt,
        middleware=middleware,
        output=output,
        node=node,
        layout=layout,
        name=name,
        prices=charged,
    )
    schema = _schema(state_schema, middleware, output)
    if speaks_langchain(model):
        schema = with_langchain_messages(schema)
    shown, hidden = None, private_keys(schema)
    if any(jumps_of(each, hook) for each in middleware for hook in HOOKS):
        schema = extended_schema(schema, schema.__name__, {"jump_to": Annotated[str | None, EphemeralValue(str)]})
        hidden.append("jump_to")
    if hidden and is_typeddict(schema):
        shown = schema_without(schema, f"{schema.__name__}Output", *hidden)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(schema, context_schema, output_schema=shown)
    builder.add_node(MODEL, agent.answer)
    has_tools = bool(node.tools_by_name or wrappers)
    if has_tools:
        builder.add_node(TOOLS, node)
    layout.add_to(builder, _AgentRouter(node, output, layout, has_tools=has_tools))
    options: dict[str, Any] = {
        "interrupt_before": interrupt_before,
        "interrupt_after": interrupt_after,
        "name": name,
        "cache": cache,
        "budgets": budgets_of_agent(budgets),
    }
    return builder.compile(
        checkpointer, store=store, debug=debug, **{key: value for key, value in options.items() if value is not None}
    )


def _instead_of(given: Any) -> str:
    """Return what to use instead of a value that was given as middleware."""
    kinds = [kind for kind in type(given).__mro__ if kind.__module__.partition(".")[0] == "langchain"]
    if not kinds:
        return "it is an instance of a subclass of AgentMiddleware, or made by a decorator such as @before_model"
    # Not adapted: docs/agents.md has the reasons.
    name = next((kind.__name__ for kind in kinds if kind.__name__ in own_middleware.__all__), "AgentMiddleware")
    return (
        f"it is langchain's, and its hooks need a run of langgraph. Use {name} of pregel_async.prebuilt, which has the "
        "parameters of langchain's"
    )


def _schema(given: Any, middleware: Sequence[AgentMiddleware], output: ResponseFormat | None) -> Any:
    """Return the schema of the state, with the keys of the middleware."""
    schema: Any = AgentState if given is None else given
    more: dict[str, Any] = {"messages": Annotated[list[Any], add_messages]}
    for each in middleware:
        if each.state_schema is not AgentState:
            more |= get_type_hints(each.state_schema, include_extras=True)
    if output is not None:
        # An answer without an object clears that of the turn before.
        more["structured_response"] = Union[(*(form.kind for form in output.schemas), None)]  # of a tuple
    return extended_schema(schema, schema.__name__, more)


class _HookLayout:
    """Where each hook is, and what runs before and after the model.

    Attributes:
        entry: the first node of a round: the first hook before the model, or the model.
        last: the node after which tools are called: the last hook after the model, or the model.
        exit: the first node after the last answer: a hook after the agent, or END.
        for_tools: supersteps that are needed after the model's to run tools.
        for_answer: supersteps that are needed after that for another answer.
    """

    def __init__(self, middleware: Sequence[AgentMiddleware], prices: Mapping[str, Price], *, has_output: bool) -> None:
        self._prices = prices
        self._of = {hook: [each for each in middleware if method_of(each, hook) is not None] for hook in HOOKS}
        before, after = self._of["before_model"], self._of["after_model"]
        ends = self._of["after_agent"]
        self.entry = f"{before[0].name}.before_model" if before else MODEL
        self.last = f"{after[0].name}.after_model" if after else MODEL
        self.exit = f"{ends[-1].name}.after_agent" if ends else END
        self.for_tools = len(after) + 1
        self.for_answer = len(before) + 1 + len(after) + len(ends)

    def add_to(self, builder: StateGraph[Any, Any, Any, Any], router: _AgentRouter) -> None:
        """Add the nodes of the hooks, and all edges."""
        for hook, found in self._of.items():
            for each in found:
                tags = {"tags": [TAG_NOSTREAM]} if hook in each.quiet_hooks else None
                builder.add_node(f"{each.name}.{hook}", _hook_node(each, hook, self._prices), metadata=tags)
        starts = self._of["before_agent"]
        builder.add_edge(START, f"{starts[0].name}.before_agent" if starts else self.entry)
        self._chain(builder, router, "before_agent", starts, self.entry)
        self._chain(builder, router, "before_model", self._of["before_model"], MODEL)
        after = self._of["after_model"][::-1]
        if after:
            builder.add_edge(MODEL, f"{after[0].name}.after_model")
            self._chain(builder, router, "after_model", after, None)
        ends = [TOOLS] if router.has_tools else []
        jumps = jumps_of(after[-1], "after_model") if after else ()
        builder.add_conditional_edges(self.last, router.after_model(jumps), list({*ends, self.entry, self.exit}))
        if router.has_tools:
            if router.may_end_after_tools:
                builder.add_conditional_edges(TOOLS, router.after_tools, list({self.entry, self.exit}))
            else:  # a router would read the conversation once for each call
                builder.add_edge(TOOLS, self.entry)
        self._chain(builder, router, "after_agent", self._of["after_agent"][::-1], END)

    def _chain(
        self,
        builder: StateGraph[Any, Any, Any, Any],
        router: _AgentRouter,
        hook: str,
        found: Sequence[AgentMiddleware],
        then: str | None,
    ) -> None:
        """Connect hooks of one kind with each other, and the last one with what follows; None for no edge of it."""
        names = [f"{each.name}.{hook}" for each in found]
        pairs = [*pairwise(names), *([(names[-1], then)] if names and then is not None else [])]
        for each, (source, target) in zip(found, pairs, strict=False):
            jumps = jumps_of(each, hook)
            if jumps:
                builder.add_conditional_edges(source, router.jump(target), router.places(jumps, target))
            else:
                builder.add_edge(source, target)


class _AgentRouter:
    """Decides what runs next.

    Attributes:
        has_tools: True if the agent has a node of tools.
        may_end_after_tools: True if the agent may end without another answer of the model.
    """

    def __init__(self, node: ToolNode, output: ResponseFormat | None, layout: _HookLayout, *, has_tools: bool) -> None:
        self._node = node
        self._forms = _forms_of(output)
        self._layout = layout
        self.has_tools = has_tools
        self.may_end_after_tools = output is not None or any(tool.return_direct for tool in node.tools_by_name.values())

    def places(self, jumps: Sequence[JumpTo], default: str) -> list[str]:
        """Return the nodes to which a hook may lead."""
        # A jump to the tools without a call to run leads to the model.
        known = {"model": {self._layout.entry}, "end": {self._layout.exit}, "tools": {self._layout.entry}}
        if self.has_tools:
            known["tools"] |= {TOOLS}
        return list({default}.union(*(known[jump] for jump in jumps)))

    def jump(self, default: str) -> Any:
        """Return a router for a hook that may jump."""

        def jump(state: Any) -> Any:
            return self._jump(state) or default

        return jump

    def _jump(self, state: Any) -> Any:
        place = get_field(state, "jump_to")
        if place == "tools":
            calls = self._calls(state) if self.has_tools else []
            return [Send(TOOLS, [call]) for call in calls] or self._layout.entry
        return {"model": self._layout.entry, "end": self._layout.exit}.get(place) if place else None

    def _calls(self, state: Any) -> list[Any]:
        return [call for call in pending_calls(get_field(state, "messages")) if call["name"] not in self._forms]

    def after_model(self, jumps: Sequence[JumpTo]) -> Any:
        """Return the router after the model and its hooks."""

        def after_model(state: Any) -> Any:
            place = self._jump(state) if jumps else None
            if place is not None:
                return place
            calls = self._calls(state)
            if calls and self.has_tools:
                return [Send(TOOLS, [call]) for call in calls]
            answer = last_answer(get_field(state, "messages"))
            if answer is None or not calls_of(answer):
                return self._layout.exit
            # All calls are answered: by the form of the answer, or by a hook.
            return self._layout.exit if self._has_output(state) else self._layout.entry

        return after_model

    def after_tools(self, state: Any) -> str:
        messages = get_field(state, "messages")
        answered = answered_calls(messages)
        names = [call["name"] for call in calls_of(last_answer(messages)) if call["id"] in answered]
        tools = [tool for name in names if (tool := self._node.tools_by_name.get(name)) is not None]
        is_direct = bool(tools) and all(tool.return_direct for tool in tools)
        return self._layout.exit if is_direct or self._has_output(state) else self._layout.entry

    def _has_output(self, state: Any) -> bool:
        """Return True if the newest answer of the model has given an object of the form."""
        messages = get_field(state, "messages")
        answer = last_answer(messages)
        if not self._forms or answer is None:
            return False
        ids = [call["id"] for call in calls_of(answer) if call["name"] in self._forms]
        return any(get_field(each, "tool_call_id") in ids and get_field(each, "status") != "error" for each in messages)


def _hook_node(middleware: AgentMiddleware, hook: str, prices: Mapping[str, Price]) -> Any:
    call = method_of(middleware, hook)
    assert call is not None
    allowed, name = jumps_of(middleware, hook), f"{middleware.name}.{hook}"

    async def run(state: Any, runtime: Runtime[Any]) -> Any:
        with PricesInForce(prices):
            return as_hook_update(await call(state, runtime), name, allowed)

    return run


class _ModelNode:
    """The node that calls the model."""

    def __init__(
        self,
        *,
        model: Any,
        tools: Sequence[Any],
        system_prompt: Any,
        middleware: Sequence[AgentMiddleware],
        output: ResponseFormat | None,
        node: ToolNode,
        layout: _HookLayout,
        name: str | None,
        prices: Mapping[str, Price],
    ) -> None:
        self._model = as_model(model)
        self._prices = prices
        self._tools = list(tools)
        self._prompt = system_prompt
        self._output = output
        self._node = node
        self._layout = layout
        self._name = name
        self._middleware = middleware
        if not (system_prompt is None or isinstance(system_prompt, (str, Mapping)) or is_langchain(system_prompt)):
            raise GraphValidationError(f"system_prompt is a text or a system message, not {system_prompt!r}")
        if output is not None:
            check_model(output, self._model)

    async def answer(self, state: Any, runtime: Runtime[Any], config: RunnableConfig) -> Any:
        messages = list(get_field(state, "messages") or ())
        if not messages:
            raise InvalidInputError("an agent needs a message to answer, and the state has none in 'messages'")
        check_answered(messages)
        prompt = self._prompt
        if isinstance(prompt, str):
            prompt = make_message("system", prompt, langchain=uses_langchain(messages))
        request = ModelRequest(
            model=self._model,
            messages=messages,
            system_message=prompt,
            tools=list(self._tools),
            response_format=self._output,
            state=state,
            runtime=runtime,
        )

        async def call(given: ModelRequest) -> ExtendedModelResponse:
            return ExtendedModelResponse(await self._call(given, config))

        with PricesInForce(self._prices):
            done = await chain_model_calls(self._middleware, call)(request)
        response = self._in_time(done.model_response, get_field(state, "remaining_steps"))
        update: dict[str, Any] = {"messages": response.result}
        if response.structured_response is not None:
            update["structured_response"] = response.structured_response
        elif get_field(state, "structured_response") is not None:
            update["structured_response"] = None
        return update if done.command is None else [update, Command(update=done.command.update)]

    async def _call(self, request: ModelRequest, config: RunnableConfig) -> ModelResponse:
        model = as_model(request.model)
        messages = [*([] if request.system_message is None else [request.system_message]), *request.messages]
        tools: list[Tool | dict[str, Any]] = [
            tool if isinstance(tool, dict) else as_tool(tool) for tool in request.tools
        ]
        call = ModelCall(
            messages=messages,
            tools=tools,
            tool_choice=request.tool_choice,
            settings=request.model_settings,
            config=config,
        )
        if request.response_format is None:
            response = ModelResponse([await model.answer(call)])
        else:
            strategy = strategy_of(request.response_format)
            unknown = _forms_of(strategy) - _forms_of(self._output)
            if unknown:
                raise GraphValidationError(
                    f"a wrapper asks for an answer in the form {', '.join(sorted(unknown))}, which response_format of "
                    "create_agent does not have: give create_agent a union of all forms"
                )
            response = await answer_in_form(strategy, model, call)
        if self._name is None:
            return response
        answer, *answers = response.result
        return dataclasses.replace(response, result=[with_fields(answer, name=self._name), *answers])

    def _in_time(self, response: ModelResponse, remaining: int | None) -> ModelResponse:
        """Return a response, or one that ends the agent if the step limit does not allow to follow it."""
        if remaining is None or remaining - 1 >= self._layout.for_tools + self._layout.for_answer:
            return response
        answer = last_answer(response.result)
        calls = [] if answer is None else calls_of(answer)
        if not calls or response.structured_response is not None:
            return response
        known = [self._node.tools_by_name.get(call["name"]) for call in calls]
        direct = all(tool is not None and tool.return_direct for tool in known)
        if remaining - 1 >= self._layout.for_tools + (0 if direct else self._layout.for_answer):
            return response
        said = "The step limit ends this run before the request is done."
        id = get_field(answer, "id")
        return ModelResponse([make_message("assistant", said, langchain=is_langchain(answer), id=id)])


def _forms_of(strategy: ResponseFormat | None) -> set[str]:
    return set() if strategy is None else {form.name for form in strategy.schemas}
