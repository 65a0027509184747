"""Any tool: functions, langchain-core's tools, and classes with fields become a `Tool`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, cast, overload

import msgspec

from .._checks.annotations import has_fields, is_model
from .._runtime.tasks.injection import hints_of, is_generator, name_of_call
from .._runtime.tasks.worker_threads import run_in_thread
from .errors import InvalidToolError, ToolInvocationError
from .function_schema import ArgumentSchema, explain, read_docstring, schema_of_class, schema_of_function
from .injection import Injection, injections_in
from .langchain_tools import (
    is_langchain_tool,
    prepare_langchain_tool,
    run_langchain_tool,
    schema_of_langchain_tool,
    validate_langchain_args,
)

__all__ = ["Tool", "as_tool", "tool"]

ResultFormat: TypeAlias = Literal["content", "content_and_artifact"]


class Tool(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A tool as models and `ToolNode` see it. `tool` and `as_tool` make one.

    Attributes:
        name: the name by which a model calls it.
        description: what it does, for the model.
        args_schema: the JSON Schema of its arguments.
        return_direct: True if the agent ends with the result of this tool, without another call of the model.
        response_format: "content" if the result is what the model sees; "content_and_artifact" if it is a pair of that
            and of data that the model does not see.
        injections: the parameters that the run fills in.
        metadata: data about the tool that models do not see.
        source: what the tool was made of.
        needs_runtime: False if the tool's code gets nothing of the run that calls it: neither injections nor a config.
    """

    name: str
    description: str
    args_schema: dict[str, Any]
    return_direct: bool = False
    response_format: ResultFormat = "content"
    injections: tuple[Injection, ...] = ()
    metadata: Mapping[str, Any] = {}  # msgspec gives each tool a copy
    source: Any = None
    needs_runtime: bool = True
    _run: Callable[[Mapping[str, Any], dict[str, Any], Any], Awaitable[Any]]
    _validate: Callable[[dict[str, Any]], Any] = dict

    def validate(self, args: Mapping[str, Any]) -> Any:
        """Check and convert arguments, without running the tool.

        Args:
            args: the arguments that a model has set.

        Returns:
            The arguments, converted: a dict, or an instance of the class of which the tool was made. A tool that only
            has a JSON Schema checks nothing.

        Raises:
            ToolInvocationError: the arguments do not fit.
        """
        return _validated(self.name, self._validate, args, {injection.parameter for injection in self.injections})

    async def arun(self, call: Mapping[str, Any], injected: dict[str, Any] | None = None, config: Any = None) -> Any:
        """Run the tool.

        Args:
            call: the tool call: `args`, `name` and `id`.
            injected: the values of the parameters that the run fills in.
            config: the config of the node, for tools of langchain-core.

        Returns:
            What the tool returned.

        Raises:
            ToolInvocationError: the arguments do not fit.
        """
        return await self._run(call, injected or {}, config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of which the tool was made."""
        return self.source(*args, **kwargs)

    def definition(self) -> dict[str, Any]:
        """Return the tool for a provider's API.

        Returns:
            A dict with `name`, `description` and `parameters`.
        """
        return {"name": self.name, "description": self.description, "parameters": self.args_schema}


@overload
def tool(call: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    name: str | None = None,
    /,
    *,
    description: str | None = None,
    args_schema: type | dict[str, Any] | None = None,
    return_direct: bool = False,
    response_format: ResultFormat = "content",
    metadata: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    call: Callable[..., Any] | str | None = None,
    /,
    *,
    description: str | None = None,
    args_schema: type | dict[str, Any] | None = None,
    return_direct: bool = False,
    response_format: ResultFormat = "content",
    metadata: Mapping[str, Any] | None = None,
) -> Any:
    """Make a function a tool with options: `@tool(return_direct=True)`. Functions without options need no decorator.

    Args:
        call: a plain function, which runs in a worker thread, or a coroutine function; or the tool's name, which is the
            function's name by default: `@tool("search")`.
        description: what the tool does, for the model; the docstring by default.
        args_schema: a class with fields, or a JSON Schema, instead of the function's annotations. Arguments are not
            checked against a JSON Schema.
        return_direct: as in `Tool`.
        response_format: as in `Tool`.
        metadata: as in `Tool`.

    Returns:
        The `Tool`, or a decorator that makes it.

    Raises:
        InvalidToolError: the function cannot be a tool.
    """
    name = call if isinstance(call, str) else None

    def make(function: Callable[..., Any]) -> Tool:
        return _of_function(
            function,
            name=name,
            description=description,
            args_schema=args_schema,
            return_direct=return_direct,
            response_format=response_format,
            metadata=metadata,
        )

    return make if call is None or isinstance(call, str) else make(call)


def as_tool(given: Any) -> Tool:
    """Return what was given as a tool as a `Tool`.

    Args:
        given: a `Tool`, a function, a tool of langchain-core, or a class with fields: a pydantic model, Struct,
            dataclass or TypedDict. A call of a class is answered with its validated arguments as JSON; if the class has
            a method `__call__`, an instance is made and called.

    Returns:
        The tool.

    Raises:
        InvalidToolError: it cannot be a tool.
    """
    if isinstance(given, Tool):
        return given
    if is_langchain_tool(given):
        parameters, hints = _parameters_of(getattr(given, "coroutine", None) or getattr(given, "func", None))
        injections = injections_in(parameters, hints)
        return Tool(
            name=given.name,
            description=given.description,
            args_schema=schema_of_langchain_tool(given, {injection.parameter for injection in injections}),
            return_direct=bool(given.return_direct),
            injections=injections,
            metadata=given.metadata or {},
            source=given,
            _run=partial(run_langchain_tool, prepare_langchain_tool(given)),
            _validate=partial(validate_langchain_args, given),
        )
    if isinstance(given, type) and has_fields(given):
        return _of_class(given)
    if callable(given) and not isinstance(given, type):
        return _of_function(given)
    raise InvalidToolError(
        repr(given), "a tool is a function, a tool of langchain-core, or a class with fields such as a pydantic model"
    )


def tools_by_name(given: Sequence[Any]) -> dict[str, Tool]:
    """Return tools by their names.

    Args:
        given: values that `as_tool` takes.

    Raises:
        InvalidToolError: one cannot be a tool, or two have the same name.
    """
    found: dict[str, Tool] = {}
    for each in given:
        made = as_tool(each)
        if made.name in found and found[made.name].source is not made.source:
            raise InvalidToolError(repr(made.name), "another tool has the same name: rename one by @tool('...')")
        found[made.name] = made
    return found


def _parameters_of(call: Any) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    if call is None:
        return {}, {}
    bound = call.keywords if isinstance(call, partial) else {}
    try:
        signature = inspect.signature(call).parameters
    except (TypeError, ValueError) as error:
        raise InvalidToolError(repr(name_of_call(call)), f"its signature cannot be read: {error}") from error
    parameters = {name: each for name, each in signature.items() if name not in bound}
    # A text is an annotation that cannot be resolved, such as the name of a class that a function defines.
    texts = {name: each.annotation for name, each in parameters.items() if isinstance(each.annotation, str)}
    return parameters, texts | hints_of(call)


def _of_function(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    args_schema: type | dict[str, Any] | None = None,
    return_direct: bool = False,
    response_format: ResultFormat = "content",
    metadata: Mapping[str, Any] | None = None,
) -> Tool:
    called = name or name_of_call(function)
    if is_generator(function):
        raise InvalidToolError(repr(called), "it is a generator: return a value instead of yielding")
    parameters, hints = _parameters_of(function)
    injections = injections_in(parameters, hints)
    injected = {injection.parameter for injection in injections}
    docstring = read_docstring(inspect.getdoc(function.func if isinstance(function, partial) else function))
    seen = {each: parameter for each, parameter in parameters.items() if each not in injected}
    positional = {each.name: each.default for each in parameters.values() if each.kind is each.POSITIONAL_ONLY}
    if isinstance(args_schema, dict):
        arguments = ArgumentSchema(args_schema, dict)
    elif args_schema is not None:
        arguments = _arguments_of(args_schema, called)
    else:
        arguments = schema_of_function(called, seen, hints, docstring.args)
    return Tool(
        name=called,
        description=docstring.text if description is None else description,
        args_schema=arguments.schema,
        return_direct=return_direct,
        response_format=response_format,
        injections=injections,
        metadata=metadata or {},
        source=function,
        needs_runtime=bool(injections),
        _run=partial(_run_function, function, _is_async(function), positional, called, arguments),
        _validate=arguments.validate,
    )


def _arguments_of(kind: type, name: str) -> ArgumentSchema:
    """Return the arguments of a function that gets the fields of a class."""
    made = schema_of_class(kind, name)

    def validate(args: dict[str, Any]) -> dict[str, Any]:
        value = made.validate(args)["value"]
        return value if isinstance(value, dict) else {each: getattr(value, each) for each in made.schema["properties"]}

    return ArgumentSchema(made.schema, validate)


async def _run_function(
    function: Callable[..., Any],
    is_async: bool,
    positional_only: Mapping[str, Any],
    name: str,
    arguments: ArgumentSchema,
    call: Mapping[str, Any],
    injected: dict[str, Any],
    config: Any,
) -> Any:
    values = {**_validated(name, arguments.validate, call["args"], injected), **injected}
    # With defaults: a value that is left out would move those after it to the wrong parameters.
    positional = [values.pop(each, default) for each, default in positional_only.items()]
    if is_async:
        return await function(*positional, **values)
    # In a worker thread, which a cancelled call waits for: nothing that a run started continues after it.
    returned = await run_in_thread(lambda _: function(*positional, **values), None)
    # A plain function may return a coroutine, as a lambda or an undeclared decorator around a coroutine function does.
    return await returned if inspect.isawaitable(returned) else returned


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # an instance's


def _validated(
    name: str, validate: Callable[[dict[str, Any]], Any], args: Mapping[str, Any], injected: Collection[str]
) -> Any:
    """Return converted arguments. A model cannot set parameters that the run fills in: they are left out."""
    given = {key: value for key, value in args.items() if key not in injected}
    try:
        return validate(given)
    except (ValueError, msgspec.ValidationError) as error:  # pydantic's is a ValueError
        raise ToolInvocationError(name, explain(error), given, error) from error


def _of_class(kind: type) -> Tool:
    name = kind.__name__
    arguments = schema_of_class(kind, name)

    def validate(args: dict[str, Any]) -> Any:
        return arguments.validate(args)["value"]

    doc = kind.__dict__.get("__doc__")  # not inherited: pydantic's own docstring describes no tool
    call: Any = cast("Any", kind).__call__ if "__call__" in vars(kind) else None
    parameters, hints = _parameters_of(call)
    injections = injections_in(dict(list(parameters.items())[1:]), hints)

    async def run(given: Mapping[str, Any], injected: dict[str, Any], config: Any) -> Any:
        value = _validated(name, validate, given["args"], injected)
        if call is None:
            return value
        if _is_async(call):
            return await call(value, **injected)
        return await run_in_thread(lambda own: call(own, **injected), value)

    schema = {key: each for key, each in arguments.schema.items() if key not in ("title", "description")}
    description = read_docstring(doc).text if is_model(kind) or not str(doc).startswith(f"{name}(") else ""
    return Tool(
        name=name,
        description=description,
        args_schema=schema,
        injections=injections,
        source=kind,
        _run=run,
        _validate=validate,
    )
