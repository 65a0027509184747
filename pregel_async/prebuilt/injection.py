"""Parameters of tools that the run fills in, so that models neither see nor set them.

async def remember(fact: str, store: Annotated[Any, InjectedStore()], runtime: ToolRuntime) -> str: ...
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, cast, get_args, get_origin

import msgspec

from checkpoint_savers import ports

from ..runtime import ExecutionInfo, Runtime
from ..types import RunnableConfig, StreamWriter
from .conversation import messages_of
from .errors import ToolInjectionError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ContextT = TypeVar("ContextT", default=Any)
    StateT = TypeVar("StateT", default=Any)
else:
    from typing import TypeVar

    ContextT = TypeVar("ContextT")
    StateT = TypeVar("StateT")

__all__ = ["InjectedState", "InjectedStore", "InjectedToolArg", "InjectedToolCallId", "ToolRuntime"]


class InjectedToolArg:
    """Mark a parameter that models must not see, in `Annotated[T, InjectedToolArg()]`. It needs a default.

    The subclasses say what the parameter gets.
    """


class InjectedState(InjectedToolArg):
    """Mark a parameter that gets the state of the graph, or one key of it: `Annotated[str, InjectedState("user")]`.

    Args:
        field: the key; None for the whole state.

    Attributes:
        field: the key; None for the whole state.
    """

    def __init__(self, field: str | None = None) -> None:
        self.field = field


class InjectedStore(InjectedToolArg):
    """Mark a parameter that gets the store with which the graph is compiled."""


class InjectedToolCallId(InjectedToolArg):
    """Mark a parameter that gets the id of the tool call, for a tool that makes its tool message itself."""


@dataclasses.dataclass
class ToolRuntime(Generic[ContextT, StateT]):
    """What a tool gets besides its arguments: a parameter annotated `ToolRuntime`, or one named `runtime` without an
    annotation.

    A unit test may make one, with the fields that the tool uses.

    Attributes:
        state: the state of the graph, as the node that runs the tools gets it. Changes in place reach no other code.
        context: the `context=` of the call; None if it had none.
        config: the config of the node.
        stream_writer: writes to the `custom` and `messages` streams.
        tool_call_id: the id of the tool call.
        store: the store with which the graph is compiled; None if there is none.
        tools: all tools of the node.
        execution_info: where the call runs; None outside of a run. Its `task_id` is the same whenever this call runs
            again, so it may serve as an idempotency key.
        server_info: None: the field exists for programs that also run on LangGraph's server.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(GenericAlias)  # type variables of Python 3.11 have no defaults

    state: StateT = dataclasses.field(default_factory=lambda: cast("Any", {}))
    context: ContextT = cast("Any", None)
    config: RunnableConfig = dataclasses.field(default_factory=lambda: RunnableConfig())
    stream_writer: StreamWriter = dataclasses.field(default_factory=lambda: Runtime[Any]().stream_writer)
    tool_call_id: str | None = None
    store: ports.BaseStore | None = None
    tools: list[Any] = dataclasses.field(default_factory=lambda: list[Any]())
    execution_info: ExecutionInfo | None = None
    server_info: None = None

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return a schema that accepts any value, for functions that langchain-core's `@tool` makes a model of."""
        from pydantic_core import core_schema  # imported here: it is installed, since pydantic calls this

        return core_schema.any_schema()


Wanted: TypeAlias = Literal["state", "store", "call_id", "tool_runtime", "runtime", "config", "writer", "default"]

_MARKS: Final[Mapping[str, Wanted]] = {
    "InjectedState": "state",
    "InjectedStore": "store",
    "InjectedToolCallId": "call_id",
    "InjectedToolArg": "default",
}
"""The class names of marks. Compared by name, so that the marks of langgraph and langchain-core work too."""

_CLASSES: Final[tuple[tuple[Any, Wanted], ...]] = (
    (ToolRuntime, "tool_runtime"),
    (Runtime, "runtime"),
    (RunnableConfig, "config"),
    (StreamWriter, "writer"),
)


class Injection(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter that the run fills in.

    Attributes:
        parameter: its name.
        wanted: what it gets; "default" for a parameter that keeps its default.
        field: the key of the state; None for the whole state.
        is_optional: True if the parameter has a default, which it keeps if the state lacks the key.
        kind: the class of the runtime: that of langgraph, if the function names it.
    """

    parameter: str
    wanted: Wanted
    field: str | None = None
    is_optional: bool = False
    kind: Any = ToolRuntime


def injections_in(parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]) -> tuple[Injection, ...]:
    """Return the parameters of a function that the run fills in.

    Args:
        parameters: the function's parameters.
        hints: their annotations, with `Annotated`.
    """
    found: list[Injection] = []
    for name, parameter in parameters.items():
        injection = _injection_of(name, hints.get(name, parameter.empty), parameter.default is not parameter.empty)
        if injection is not None:
            found.append(injection)
    return tuple(found)


def _injection_of(name: str, hint: Any, is_optional: bool) -> Injection | None:
    if hint is inspect.Parameter.empty:
        return Injection(parameter=name, wanted="tool_runtime") if name == "runtime" else None
    if isinstance(hint, str):  # not resolved; its other parts do not matter here
        named = re.search(r"\b(ToolRuntime|Runtime)\b", hint)
        if named is None:
            return None
        wanted: Wanted = "tool_runtime" if named[1] == "ToolRuntime" else "runtime"
        return Injection(parameter=name, wanted=wanted, is_optional=is_optional)
    for part in _parts(hint):
        kind = part if isinstance(part, type) else type(part)
        names = [base.__name__ for base in kind.__mro__]
        for mark, meant in _MARKS.items():
            if mark in names:
                field = getattr(part, "field", None)
                return Injection(parameter=name, wanted=meant, field=field, is_optional=is_optional)
        for known, meant in _CLASSES:
            if part is known:
                return Injection(parameter=name, wanted=meant, is_optional=is_optional)
        if isinstance(part, type) and part.__name__ == "ToolRuntime":
            return Injection(parameter=name, wanted="tool_runtime", is_optional=is_optional, kind=part)
    return None


def _parts(hint: Any) -> Sequence[Any]:
    """Return an annotation, its origin, its alternatives, and the marks of an `Annotated`."""
    options = get_args(hint)
    if hasattr(hint, "__metadata__"):
        return [*hint.__metadata__, *_parts(options[0])]
    origin = get_origin(hint)
    return [hint, *([origin] if origin is not None else []), *options]


def fill(
    tool: str, injections: Sequence[Injection], runtime: ToolRuntime, base: Runtime[Any], messages_key: str
) -> dict[str, Any]:
    """Return the values of the parameters that the run fills in.

    Args:
        tool: the tool's name, for error messages.
        injections: the parameters.
        runtime: the runtime of the tool call.
        base: the runtime of the node.
        messages_key: the key under which a state that is a list has its messages.

    Raises:
        ToolInjectionError: there is no store, or the state lacks a key.
    """
    values: dict[str, Any] = {}
    for injection in injections:
        name = injection.parameter
        match injection.wanted:
            case "state":
                found, value = _read_state(tool, injection, runtime.state, messages_key)
                if found:
                    values[name] = value
            case "store":
                if runtime.store is None:
                    raise ToolInjectionError(tool, name, "the graph has no store: pass store= to compile()")
                values[name] = runtime.store
            case "call_id":
                values[name] = runtime.tool_call_id
            case "tool_runtime":
                values[name] = runtime if injection.kind is ToolRuntime else injection.kind(**_fields(runtime))
            case "runtime":
                values[name] = base
            case "config":
                values[name] = runtime.config
            case "writer":
                values[name] = runtime.stream_writer
            case "default":
                pass
    return values


def _fields(runtime: ToolRuntime) -> dict[str, Any]:
    """Return the fields for a runtime of langgraph's class, whose tools are those of langchain-core."""
    fields = {field.name: getattr(runtime, field.name) for field in dataclasses.fields(runtime)}
    return {**fields, "tools": [tool.source for tool in runtime.tools]}


def _read_state(tool: str, injection: Injection, state: Any, messages_key: str) -> tuple[bool, Any]:
    """Return whether the state has the value, and the value."""
    field = injection.field
    if field is None:
        return True, {messages_key: state} if isinstance(state, list) else state
    value: Any
    if isinstance(state, list):
        found, value = field == messages_key, messages_of(state, messages_key)
    elif isinstance(state, Mapping):
        found, value = field in state, state.get(field)
    else:
        found, value = hasattr(state, field), getattr(state, field, None)
    if not found and not injection.is_optional:
        raise ToolInjectionError(tool, injection.parameter, f"the state has no key {field!r}")
    return found, value
