"""`create_swarm`: agents that hand a conversation to each other, with the parameters of langgraph-swarm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NotRequired, get_type_hints

from .._api.compiled import Graph
from .._checks.options import takes_deprecated
from .._core.fits import is_typed_dict
from ..adapters.fields import get_field
from ..errors import GraphValidationError, InvalidInputError
from ..graph import StateGraph
from ..messages import MessagesState
from ..types import START, Command
from .agent_state import replaced_hints
from .handoff import Handoff, destinations_of_agent, make_handoff_tool
from .supervisor import names_of_agents
from .tools import Tool

__all__ = ["SwarmState", "add_active_agent_router", "create_handoff_tool", "create_swarm"]

ACTIVE = "active_agent"


class SwarmState(MessagesState):
    """The state of a swarm. Subclass it for more keys, which agents share whose schemas have them.

    Keys:
        active_agent: the agent that answers next; absent until the first handoff. An input may set it.
    """

    active_agent: NotRequired[str | None]


@takes_deprecated("config_schema")
def create_swarm(
    agents: Sequence[Graph[Any, Any]],
    *,
    default_active_agent: str,
    state_schema: type[Any] = SwarmState,
    context_schema: type[Any] | None = None,
) -> StateGraph[Any, Any, Any, Any]:
    """Make a graph of agents that hand the conversation to each other. The agent that has it answers the next input.

    Args:
        agents: compiled graphs with names of their own. Each takes and returns `messages`. Further keys of the state
            that an agent's schema has are shared with it; its other keys are private, and last from call to call if it
            is compiled with `checkpointer=True`.
        default_active_agent: the agent that answers first.
        state_schema: a schema with `messages` and `active_agent`.
        context_schema: the schema of a call's `context=`.

    Returns:
        The builder; compile it with a checkpointer, which stores who is active.

    Raises:
        GraphValidationError: an agent has no name of its own, two have one name, `default_active_agent` is none of
            them, a handoff tool leads to another one, or the schema lacks a key.
    """
    names = names_of_agents(agents)
    hint = get_type_hints(state_schema).get(ACTIVE)
    if is_typed_dict(state_schema) and hint in (str, str | None):
        # So JSON schemas of the graph list the names.
        literal: Any = Literal[tuple(names)]
        state_schema = replaced_hints(state_schema, {ACTIVE: NotRequired[literal if hint is str else literal | None]})
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(state_schema, context_schema)
    add_active_agent_router(builder, route_to=names, default_active_agent=default_active_agent)
    for name, agent in zip(names, agents, strict=True):
        unknown = [each for each in destinations_of_agent(agent) if each not in names]
        if unknown:
            raise GraphValidationError(
                f"a tool of {name!r} hands over to {unknown[0]!r}, and the agents are {', '.join(names)}"
            )
        builder.add_node(name, agent, destinations=tuple(destinations_of_agent(agent)))
    return builder


def add_active_agent_router(
    builder: StateGraph[Any, Any, Any, Any], *, route_to: Sequence[str], default_active_agent: str
) -> StateGraph[Any, Any, Any, Any]:
    """Route each input of a graph to the agent that is active.

    Args:
        builder: the graph, whose schema has `active_agent`.
        route_to: the names of the agents' nodes.
        default_active_agent: the agent that answers while none is active.

    Returns:
        The builder.

    Raises:
        GraphValidationError: the schema has no `active_agent`, or `default_active_agent` is not in `route_to`.
    """
    if ACTIVE not in builder.channels:
        raise GraphValidationError(f"the state has no key {ACTIVE!r}: use SwarmState, or a subclass of it")
    if default_active_agent not in route_to:
        raise GraphValidationError(
            f"default_active_agent is {default_active_agent!r}, and the agents are {', '.join(route_to)}"
        )

    def active_agent(state: Any) -> str:
        active = get_field(state, ACTIVE) or default_active_agent
        if active not in route_to:
            raise InvalidInputError(
                f"the active agent is {active!r}, and the agents are {', '.join(route_to)}. Set {ACTIVE!r} in the "
                "input to one of them"
            )
        return active

    return builder.add_conditional_edges(START, active_agent, list(route_to))


def create_handoff_tool(*, agent_name: str, name: str | None = None, description: str | None = None) -> Tool:
    """Make a tool by which an agent of a swarm hands the conversation to another one, which stays active.

    Together with calls of other tools, a handoff is not carried out: the model is asked to call it again, alone. Of
    several handoffs in one message the first counts.

    Args:
        agent_name: the other agent.
        name: the tool's name; "transfer_to_" and the agent's name by default.
        description: what it does, for the model.

    Returns:
        The tool.

    Raises:
        GraphValidationError: `agent_name` is empty.
    """

    def hand_over(handoff: Handoff) -> Any:
        if not handoff.is_alone(among_handoffs=True) or not handoff.is_first():
            return handoff.refused()
        update = handoff.update([*handoff.before, handoff.answer_alone(), handoff.confirmed()])
        return Command(graph=Command.PARENT, goto=agent_name, update={**update, ACTIVE: agent_name})

    return make_handoff_tool(agent_name, name, description, hand_over)
