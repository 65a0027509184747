"""`ValidationNode`: check the tool calls of the newest message without running tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..adapters.conversation import calls_of, is_langchain, role_of
from ..errors import GraphValidationError, InvalidInputError
from .conversation import make_tool_message, messages_of, with_fields
from .errors import ToolInvocationError
from .tool_results import as_content
from .tools import Tool, tools_by_name

__all__ = ["ValidationNode"]


class ValidationNode:
    """A node that validates the tool calls of the newest message, and runs none of them.

    Each call is answered with its validated arguments as JSON, or with the error, from which the model can correct
    itself. Messages of errors have the status "error", and `{"is_error": True}` under `additional_kwargs`. A call of a
    tool that is not known, and one whose arguments are no JSON, are errors as well.

    Its input is a state with messages, or a list of messages. `add_node("validation", ValidationNode([...]))` makes it
    a node; `invoke` and `ainvoke` run it without a graph.

    Args:
        schemas: pydantic models, Structs, dataclasses and TypedDicts; functions, whose annotations are the schema; and
            tools of langchain-core.
        format_error: a function of the error of the validation, the call and the schema that returns the text for the
            model. The schema is the class or function; of a tool of langchain-core, its `args_schema`.
        name: the node's name, if `add_node` is given none.
        tags: kept for tracing.

    Attributes:
        name, tags: as the arguments.
        schemas_by_name: the schemas by the name of the tool.

    Raises:
        InvalidToolError: a schema cannot be one, or two have the same name.
        GraphValidationError: `format_error` is no function.
    """

    def __init__(
        self,
        schemas: Sequence[Any],
        *,
        format_error: Callable[[BaseException, Any, Any], str] | None = None,
        name: str = "validation",
        tags: Sequence[str] | None = None,
    ) -> None:
        if format_error is not None and not callable(format_error):
            raise GraphValidationError(
                f"format_error is a function of the error, the call and the schema, not {format_error!r}"
            )
        self.name = self.__name__ = name
        self.tags = list(tags or ())
        self._tools = tools_by_name(schemas)
        self._format_error = format_error
        self.schemas_by_name = {name: _schema_of(tool) for name, tool in self._tools.items()}

    async def __call__(self, input: Any) -> Any:
        """Validate the calls as a node of a graph.

        Args:
            input: as described above.

        Returns:
            An update: messages under "messages", or a list of messages if the input is one.

        Raises:
            InvalidInputError: the newest message is not a model's.
        """
        return self.invoke(input)

    async def ainvoke(self, input: Any, config: Any = None) -> Any:
        """Validate the calls without a graph.

        Args:
            input: as described above.
            config: not used.

        Returns:
            As if the node ran in a graph.

        Raises:
            InvalidInputError: the newest message is not a model's.
        """
        return self.invoke(input, config)

    def invoke(self, input: Any, config: Any = None) -> Any:
        """Validate the calls without a graph. No event loop is needed.

        Args:
            input: as described above.
            config: not used.

        Returns:
            As if the node ran in a graph.

        Raises:
            InvalidInputError: the newest message is not a model's.
        """
        messages = messages_of(input, "messages")
        if not messages or role_of(messages[-1]) != "assistant":
            raise InvalidInputError(
                f"ValidationNode {self.name!r} validates the calls of the newest message, and that is not a model's: "
                "run it after the model"
            )
        answers = [self._answer(call, langchain=is_langchain(messages[-1])) for call in calls_of(messages[-1])]
        return answers if isinstance(input, list) else {"messages": answers}

    def _answer(self, call: Any, *, langchain: bool) -> Any:
        tool = self._tools.get(call["name"])
        if tool is None:
            said = f"There is no tool {call['name']!r}. The tools are: {', '.join(self._tools) or 'none'}."
        elif call["type"] == "invalid_tool_call":
            said = ToolInvocationError(call["name"], call["error"], {"text": call["args"]}).message
        else:
            try:
                return make_tool_message(call, as_content(tool.validate(call["args"])), langchain=langchain)
            except ToolInvocationError as error:
                schema = self.schemas_by_name[call["name"]]
                custom = self._format_error
                said = error.message if custom is None else custom(error.source or error, call, schema)
        message = make_tool_message(call, said, langchain=langchain, failed=True)
        return with_fields(message, additional_kwargs={"is_error": True})


def _schema_of(tool: Tool) -> Any:
    return getattr(tool.source, "args_schema", None) or tool.source
