"""Tools by which an agent hands the conversation over to another node of the graph that both are nodes of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .._runtime.tasks.context import CURRENT
from ..adapters.conversation import calls_of, content_of, is_langchain, role_of
from ..adapters.fields import get_field
from ..errors import GraphValidationError, InvalidInputError
from ..graph import CompiledStateGraph
from .conversation import make_message, make_tool_message, messages_of, with_fields
from .injection import ToolRuntime
from .tool_node import ToolNode
from .tools import Tool, tool

HANDOFF_DESTINATION: Final = "__handoff_destination"
"""The key of a tool's metadata with the name of the agent that it hands over to. Tools of your own may have it, too."""

_WHITESPACE: Final = re.compile(r"\s+")


def make_handoff_tool(
    agent_name: str, name: str | None, description: str | None, hand_over: Callable[[Handoff], Any]
) -> Tool:
    """Make a tool that hands over to an agent.

    Args:
        agent_name: the agent, which is a node of the parent graph.
        name: the tool's name; None for "transfer_to_" and the agent's name.
        description: what it does, for the model; None for a sentence with the agent's name.
        hand_over: makes the result of a call, which is a `Command` for the parent graph.
    """
    if not agent_name.strip():
        raise GraphValidationError("a handoff tool needs the name of an agent, and agent_name is empty")

    async def transfer(runtime: ToolRuntime) -> Any:
        return hand_over(Handoff(agent_name, runtime))

    return tool(
        name or f"transfer_to_{normalized(agent_name)}",
        description=f"Ask the agent '{agent_name}' for help." if description is None else description,
        metadata={HANDOFF_DESTINATION: agent_name},
    )(transfer)


def normalized(agent_name: str) -> str:
    """Return an agent's name as part of a tool's name: in lower case, with underscores instead of white space."""
    return _WHITESPACE.sub("_", agent_name.strip()).lower()


def destination_of(tool: Any) -> str | None:
    """Return the agent that a tool hands over to; None for other tools."""
    return None if tool is None else tool.metadata.get(HANDOFF_DESTINATION)


def destinations_of(tools: Sequence[Tool]) -> list[str]:
    """Return the agents that tools hand over to."""
    return [name for tool in tools if (name := destination_of(tool)) is not None]


def destinations_of_agent(agent: Any) -> list[str]:
    """Return the agents that the tools of an agent hand over to: of the `ToolNode` that is its node "tools"."""
    node = agent.builder.nodes.get("tools") if isinstance(agent, CompiledStateGraph) else None
    return destinations_of(list(node.call.tools_by_name.values())) if node and isinstance(node.call, ToolNode) else []


class Handoff:
    """A call of a tool that ends the run of its agent.

    Args:
        to: the agent that the call hands over to; or empty, if the call ends the parent graph's run.
        runtime: the runtime of the call.

    Attributes:
        to: as the argument.
        messages: the conversation.
        before: the conversation before the message with the call.
        answer: the message with the call.
        calls: the calls of that message.
        call: the call itself.
        langchain: True if messages are made as objects of langchain-core.

    Raises:
        InvalidInputError: the state has no message with the call.
    """

    def __init__(self, to: str, runtime: ToolRuntime) -> None:
        self.to = to
        self.messages = list(messages_of(runtime.state, "messages"))
        index = next((at for at in range(len(self.messages))[::-1] if role_of(self.messages[at]) == "assistant"), None)
        self.before = self.messages[:index]
        self.answer = None if index is None else self.messages[index]
        self.calls = [] if self.answer is None else calls_of(self.answer)
        found = [call for call in self.calls if call["id"] == runtime.tool_call_id]
        if not found:
            raise InvalidInputError("a handoff needs a state with the message that calls it, in 'messages'")
        self.call: Any = found[0]
        self.langchain = is_langchain(self.answer)
        self._state = runtime.state
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in runtime.tools}

    def is_alone(self, *, among_handoffs: bool) -> bool:
        """Return True if ending the agent's run loses no result of another call of the same message.

        Args:
            among_handoffs: True if other handoffs may be among the calls.
        """
        others = [call for call in self.calls if call is not self.call]
        if among_handoffs:
            others = [call for call in others if destination_of(self._tools.get(call["name"])) is None]
        return not others

    def refused(self) -> Any:
        """Return the tool message that asks the model to call the tool again, by itself."""
        # The agent's run would end with the handoff, and the conversation would go on without the results of the
        # other calls, which have run. Models correct this in one turn.
        said = (
            f"{self.call['name']} was not carried out, because other tools were called in the same message. "
            "Read their results, then call it alone."
        )
        return make_tool_message(self.call, said, langchain=self.langchain, failed=True)

    def confirmed(self) -> Any:
        """Return the tool message that answers the call."""
        message = make_tool_message(self.call, f"The conversation is now with {self.to}.", langchain=self.langchain)
        # An id of its own: an agent that is sent this message, and returns it, must not add it a second time.
        return with_fields(message, id=self.id_of(f"{self._position()}-done"))

    def id_of(self, part: str) -> str | None:
        """Return the id of a message that is made of the one with the call; None if that has no id yet."""
        id = get_field(self.answer, "id")
        return None if id is None else f"{id}-{part}"

    def answer_alone(self) -> Any:
        """Return the message with the call, without the other calls, so that no call lacks an answer."""
        if len(self.calls) < 2:
            return self.answer
        more: dict[str, Any] = {"tool_calls": [self.call], "id": self.id_of(str(self._position()))}
        if name := get_field(self.answer, "name"):
            more["name"] = name
        if blocks := get_field(self.answer, "blocks"):
            more["blocks"] = self._without_other_calls(blocks)
        content = content_of(self.answer) or ""
        content = self._without_other_calls(content) if isinstance(content, list) else content
        return make_message("assistant", content, langchain=self.langchain, **more)

    def _position(self) -> int:
        return next(index for index, call in enumerate(self.calls) if call is self.call)

    def _without_other_calls(self, blocks: Sequence[Any]) -> list[Any]:
        """Return content blocks without those of the other calls, in the form of any provider."""
        others = {call["id"] for call in self.calls if call is not self.call}
        return [
            block for block in blocks if isinstance(block, str) or not {block.get("id"), block.get("call_id")} & others
        ]

    def is_first(self) -> bool:
        """Return True for the first handoff of the message."""
        return self.calls[:1] == [self.call]

    def update(self, messages: Sequence[Any]) -> dict[str, Any]:
        """Return the update of the parent graph: what it would be if the agent ended with these messages.

        Args:
            messages: the conversation as the agent leaves it.
        """
        return {**self.shared(), "messages": _unknown_to_parent(messages)}

    def shared(self) -> dict[str, Any]:
        """Return the entries of the agent's state that its parent graph has as well, with other values.

        A key with a reducer would get the same value a second time.
        """
        attempt = CURRENT.get()
        if attempt is None or not attempt.graph.outer:
            return dict(self._state) if isinstance(self._state, Mapping) else {}
        outer, outputs = attempt.graph.outer[0], attempt.graph.program.outputs
        found = {key: get_field(self._state, key) for key in outputs if key in outer.graph.program.keys}
        known = outer.board.values
        return {key: value for key, value in found.items() if value is not None and value != known.get(key)}


def _unknown_to_parent(messages: Sequence[Any]) -> list[Any]:
    """Return the messages that are new to the parent graph, or changed: a handoff does not store others again."""
    attempt = CURRENT.get()
    if attempt is None or not attempt.graph.outer:
        return list(messages)
    outer = attempt.graph.outer[0]
    if not outer.graph.program.assigns_message_ids:
        return list(messages)  # its reducer may be any function
    known = {get_field(message, "id"): message for message in outer.board.values.get("messages") or ()}
    return [message for message in messages if known.get(get_field(message, "id")) != message]
