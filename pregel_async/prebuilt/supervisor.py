"""`create_supervisor`: an agent that hands work to other agents, with the parameters of langgraph-supervisor."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NotRequired, TypeAlias, get_args, get_type_hints

from .._api.compiled import Graph
from .._checks.options import takes_deprecated
from ..adapters.conversation import calls_of, content_of, role_of
from ..adapters.fields import get_field
from ..errors import GraphValidationError, InvalidUpdateError
from ..graph import StateGraph
from ..graph.compile import call_of_graph
from ..messages import MessagesState
from ..runtime import Runtime
from ..types import END, START, Command, Send
from .agent_state import extended_schema
from .any_model import as_model
from .conversation import make_message, make_tool_message, uses_langchain, with_fields
from .handoff import Handoff, destinations_of, make_handoff_tool, normalized
from .injection import ToolRuntime
from .models import ChatModel, ModelCall
from .react import create_react_agent, is_dynamic, schema_for_model
from .tool_node import ToolNode
from .tools import Tool, tool

__all__ = ["create_forward_message_tool", "create_handoff_tool", "create_supervisor"]

OutputMode: TypeAlias = Literal["full_history", "last_message"]
AgentNameMode: TypeAlias = Literal["inline"]

_BACK: Final = "transfer_back_to_"
_NAMED: Final = re.compile(r"<name>.*?</name>.*?<content>(.*?)</content>", re.DOTALL)

_WITHOUT_PARALLEL_SETTING: Final = frozenset(("o3", "o3-mini", "o4-mini"))
"""Models whose provider refuses the setting `parallel_tool_calls`."""


@takes_deprecated("config_schema")
def create_supervisor(
    agents: Sequence[Graph[Any, Any]],
    *,
    model: Any,
    tools: Sequence[Any] | ToolNode | None = None,
    prompt: Any = None,
    response_format: Any = None,
    pre_model_hook: Any = None,
    post_model_hook: Any = None,
    parallel_tool_calls: bool = False,
    state_schema: type[Any] | None = None,
    context_schema: type[Any] | None = None,
    output_mode: OutputMode = "last_message",
    add_handoff_messages: bool = True,
    handoff_tool_prefix: str | None = None,
    add_handoff_back_messages: bool | None = None,
    supervisor_name: str = "supervisor",
    include_agent_name: AgentNameMode | None = None,
) -> StateGraph[Any, Any, Any, Any]:
    """Make a graph in which a supervisor, an agent of `create_react_agent`, hands work to agents by calling tools.

    Each agent is a node of its name. When it ends, the supervisor continues. The supervisor's node runs a graph, too,
    so its tool calls are stored one by one.

    Args:
        agents: compiled graphs with names of their own: agents, other supervisors, entrypoints. Each takes and returns
            `messages`. Further keys of the state that an agent's schema has are shared with it; its other keys are
            private, and last from call to call if it is compiled with `checkpointer=True`.
        model: the supervisor's model; see `create_react_agent`.
        tools: further tools of the supervisor. Without handoff tools among them, one is made for each agent.
        prompt: see `create_react_agent`.
        response_format: see `create_react_agent`.
        pre_model_hook: see `create_react_agent`.
        post_model_hook: see `create_react_agent`.
        parallel_tool_calls: True if the supervisor may hand over to several agents at once, which then run at the same
            time. Providers without such a setting decide themselves.
        state_schema: the schema of the graph and of the supervisor, with `messages`.
        context_schema: the schema of a call's `context=`.
        output_mode: which messages of an agent the conversation gets: "last_message" or "full_history".
        add_handoff_messages: False leaves the supervisor's calls of handoff tools out of the conversation.
        handoff_tool_prefix: what the names of the handoff tools begin with; "transfer_to_" by default.
        add_handoff_back_messages: True adds two messages when an agent ends: that it hands back, and the confirmation.
            By default as `add_handoff_messages`.
        supervisor_name: the name of the supervisor and of its node.
        include_agent_name: "inline" shows the supervisor's model the author of each message, by tags around its text:
            for providers that have no names in messages. None shows the model the names as its provider does.

    Returns:
        The builder; compile it with a checkpointer.

    Raises:
        GraphValidationError: an agent has no name of its own, two have one name, a handoff tool is missing, or another
            argument is invalid.
        InvalidModelError: the model cannot be one.
        InvalidToolError: a tool cannot be one.
    """
    if output_mode not in get_args(OutputMode):
        raise GraphValidationError(f"output_mode is 'full_history' or 'last_message', not {output_mode!r}")
    if include_agent_name not in (None, "inline"):
        raise GraphValidationError(f"include_agent_name is 'inline' or None, not {include_agent_name!r}")
    names = names_of_agents(agents)
    if supervisor_name in names:
        raise GraphValidationError(f"the supervisor and an agent have one name, {supervisor_name!r}")
    schema = schema_for_model(MessagesState if state_schema is None else state_schema, model)
    if response_format is not None and state_schema is None:
        schema = extended_schema(schema, "SupervisorState", {"structured_response": NotRequired[Any]})
    supervisor = create_react_agent(
        _supervising(model, parallel_tool_calls, inline=include_agent_name == "inline"),
        _tool_node(tools, names, handoff_tool_prefix, add_handoff_messages),
        name=supervisor_name,
        prompt=prompt,
        state_schema=state_schema,
        context_schema=context_schema,
        response_format=response_format,
        pre_model_hook=pre_model_hook,
        post_model_hook=post_model_hook,
    )
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(schema, context_schema)
    builder.add_node(supervisor_name, supervisor, destinations=(*names, END))
    builder.add_edge(START, supervisor_name)
    back = supervisor_name if add_handoff_back_messages or add_handoff_back_messages is None else None
    if add_handoff_back_messages is None and not add_handoff_messages:
        back = None
    keys = frozenset(get_type_hints(schema))
    for name, agent in zip(names, agents, strict=True):
        builder.add_node(name, _AgentNode(agent, keys, output_mode, back))
        builder.add_edge(name, supervisor_name)
    return builder


def create_handoff_tool(
    *, agent_name: str, name: str | None = None, description: str | None = None, add_handoff_messages: bool = True
) -> Tool:
    """Make a tool by which a supervisor hands over to an agent.

    The agent gets the supervisor's conversation. Of several handoffs in one message each agent gets its own call only,
    and all agents run at the same time. Together with calls of other tools, handoffs are not carried out: the model is
    asked to call them again, alone.

    Args:
        agent_name: the agent, which is a node of the graph that the supervisor is a node of.
        name: the tool's name; "transfer_to_" and the agent's name by default.
        description: what it does, for the model.
        add_handoff_messages: False leaves the message with the call out of the conversation.

    Returns:
        The tool.

    Raises:
        GraphValidationError: `agent_name` is empty.
    """

    def hand_over(handoff: Handoff) -> Any:
        if not handoff.is_alone(among_handoffs=True):
            return handoff.refused()
        pair = [handoff.answer_alone(), handoff.confirmed()] if add_handoff_messages else []
        update = handoff.update([*handoff.before, *pair])
        if len(handoff.calls) == 1:
            return Command(graph=Command.PARENT, goto=agent_name, update=update)
        private = {**handoff.shared(), "messages": [*handoff.before, *pair]}
        # Of several commands at once each may update keys that have no reducer: the first alone does.
        return Command(
            graph=Command.PARENT,
            goto=[Send(agent_name, private)],
            update=update if handoff.is_first() else {"messages": pair},
        )

    return make_handoff_tool(agent_name, name, description, hand_over)


def create_forward_message_tool(supervisor_name: str = "supervisor") -> Tool:
    """Make a tool by which a supervisor ends with the newest message of an agent, without writing it again.

    Args:
        supervisor_name: the name of the speaker of the copy.

    Returns:
        The tool, "forward_message".
    """

    def forward(from_agent: str, runtime: ToolRuntime) -> Any:
        handoff = Handoff("", runtime)
        if not handoff.is_alone(among_handoffs=False):
            return handoff.refused()
        wanted = from_agent.lower()
        spoken = [message for message in handoff.messages if role_of(message) == "assistant"]
        found = next(
            (each for each in reversed(spoken) if _speaker(each).lower() == wanted and not _is_back(each)), None
        )
        if found is None:
            names = ", ".join(sorted({_speaker(each) for each in spoken} - {"", supervisor_name})) or "none"
            return f"There is no message of {from_agent!r}. Messages are of: {names}."
        # Its id comes from the call: a second copy of one message is another message.
        copied = make_message(
            "assistant",
            content_of(found),
            langchain=handoff.langchain,
            name=supervisor_name,
            id=handoff.id_of("forward"),
        )
        return Command(graph=Command.PARENT, goto=END, update=handoff.update([*handoff.before, copied]))

    description = (
        "End by passing on an agent's newest message to the user, word for word. Use it if the message needs nothing "
        "added: that is faster, and nothing is lost."
    )
    return tool("forward_message", description=description)(forward)


def names_of_agents(agents: Sequence[Any]) -> list[str]:
    """Return the names of agents.

    Args:
        agents: compiled graphs.

    Raises:
        GraphValidationError: there is none, one is no graph or has no name of its own, or two have one name.
    """
    names: list[str] = []
    for agent in agents:
        if not isinstance(agent, Graph):
            raise GraphValidationError(f"an agent is a compiled graph, not {agent!r}: compile() makes one")
        if agent.name in ("StateGraph", "Pregel"):
            raise GraphValidationError("an agent has no name: pass name= to create_agent() or compile()")
        if agent.name in names:
            raise GraphValidationError(f"two agents have the name {agent.name!r}: each needs a name of its own")
        names.append(agent.name)
    if not names:
        raise GraphValidationError("agents is empty: there is none to hand over to")
    return names


def _speaker(message: Any) -> str:
    return get_field(message, "name") or ""


def _is_back(message: Any) -> bool:
    """Return True for the message in which an agent hands back."""
    return any(call["name"].startswith(_BACK) for call in calls_of(message))


def _tool_node(
    tools: Sequence[Any] | ToolNode | None, names: Sequence[str], prefix: str | None, adds: bool
) -> ToolNode:
    """Return the node of the supervisor's tools, with handoff tools."""
    node = tools if isinstance(tools, ToolNode) else ToolNode(tools or ())
    given = destinations_of(list(node.tools_by_name.values()))
    if not given:
        return node.with_tools(
            [
                create_handoff_tool(
                    agent_name=name,
                    name=None if prefix is None else f"{prefix}{normalized(name)}",
                    add_handoff_messages=adds,
                )
                for name in names
            ]
        )
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        what = f"none leads to {', '.join(missing)}" if missing else f"there is no agent {', '.join(unknown)}"
        raise GraphValidationError(f"tools has handoff tools of your own, and {what}: pass one for each agent, or none")
    return node


class _AgentNode:
    """The node that runs an agent, and chooses which of its messages the conversation gets.

    Args:
        agent: the agent.
        keys: the keys of the graph's state.
        output_mode: as in `create_supervisor`.
        back: the supervisor to which messages hand back; None for no such messages.
    """

    def __init__(self, agent: Graph[Any, Any], keys: frozenset[str], output_mode: OutputMode, back: str | None) -> None:
        self.agent = agent
        self._run: Callable[[Any], Awaitable[Any]] = call_of_graph(agent, keys)
        self._output_mode = output_mode
        self._back = back

    async def __call__(self, state: Any, runtime: Runtime[Any]) -> Any:
        output = await self._run(state)
        messages = get_field(output, "messages")
        if not messages:
            raise InvalidUpdateError(f"agent {self.agent.name!r} returned no 'messages', which its supervisor reads")
        kept = list(messages)
        if self._output_mode == "last_message":
            # A tool message must follow the message with its call.
            kept = kept[-2:] if role_of(kept[-1]) == "tool" else kept[-1:]
        if self._back is not None:
            # The task's id is that of each attempt, so the call has the same id if the node runs again.
            kept += self._handing_back(self._back, runtime.execution_info.task_id, langchain=uses_langchain(kept))
        return {**output, "messages": kept}

    def _handing_back(self, to: str, id: str, *, langchain: bool) -> list[Any]:
        call: dict[str, Any] = {"type": "tool_call", "id": id, "name": f"{_BACK}{normalized(to)}", "args": {}}
        said = make_message(
            "assistant", f"I hand back to {to}.", langchain=langchain, tool_calls=[call], name=self.agent.name
        )
        return [said, make_tool_message(call, f"The conversation is with {to} again.", langchain=langchain)]


def _supervising(model: Any, parallel: bool, *, inline: bool) -> Any:
    """Return the supervisor's model, or the function that chooses it, with the settings of a supervisor."""
    if not is_dynamic(model):
        return _SupervisorModel(as_model(model), parallel, inline=inline)

    async def choose(state: Any, runtime: Runtime[Any]) -> ChatModel:
        chosen = model(state, runtime)
        return _SupervisorModel(
            as_model(await chosen if inspect.isawaitable(chosen) else chosen), parallel, inline=inline
        )

    return choose


class _SupervisorModel:
    """A model that may make several tool calls at once or not, and that is shown the author of each message.

    Args:
        model: the model.
        parallel: True if an answer may have several tool calls.
        inline: True for names in the text of messages.

    Attributes:
        name, follows_schemas: as in `ChatModel`.
    """

    def __init__(self, model: ChatModel, parallel: bool, *, inline: bool) -> None:
        self.name = model.name
        self.follows_schemas = model.follows_schemas
        self._model = model
        self._parallel = None if model.name in _WITHOUT_PARALLEL_SETTING else parallel
        self._inline = inline

    async def answer(self, call: ModelCall) -> Any:
        call = dataclasses.replace(call, parallel_tool_calls=self._parallel)
        if not self._inline:
            return await self._model.answer(call)
        answer = await self._model.answer(
            dataclasses.replace(call, messages=[_with_tags(message) for message in call.messages])
        )
        return _with_text(answer, lambda text: found[1] if (found := _NAMED.search(text)) else text)


def _with_tags(message: Any) -> Any:
    """Return an agent's message with its name in its text; other messages as they are."""
    name = get_field(message, "name") if role_of(message) == "assistant" else None
    return _with_text(message, lambda text: f"<name>{name}</name><content>{text}</content>") if name else message


def _with_text(message: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of a message with another text, of its first block of text if it has blocks."""
    content = content_of(message)
    if not isinstance(content, list):
        return with_fields(message, content=change(content or ""))
    blocks = list(content)
    for index, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") == "text":
            blocks[index] = {**block, "text": change(block["text"])}
            break
    return with_fields(message, content=blocks)
