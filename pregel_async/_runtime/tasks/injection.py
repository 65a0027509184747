"""Find the parameters that the runtime fills in, by their annotation or name."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from ...errors import GraphValidationError, NodeError
from ...types import RunnableConfig, StreamWriter
from .context import Runtime

NAMES = ("config", "runtime", "writer", "store", "previous")
"""Injectable parameters. Each is an attribute of `AttemptContext`."""

_BY_ANNOTATION: tuple[tuple[Any, str], ...] = (
    (Runtime, "runtime"),
    (RunnableConfig, "config"),
    (StreamWriter, "writer"),
)

_INJECTABLE = (_BY_ANNOTATION, NAMES)

_INJECTABLE_IN_HANDLERS = ((*_BY_ANNOTATION, (NodeError, "error")), ("error", *NAMES))

_STORE = ("checkpoint_savers.stores.abc", "BaseStore")
"""Module and name of the class. Compared by name, because importing it here would load the stores for every graph."""


def hints_of(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations of a callable, without those that cannot be resolved, such as local names."""
    target = call if inspect.isroutine(call) or inspect.isclass(call) else getattr(call, "__call__", call)  # noqa: B004  # an instance's
    function = getattr(call, "func", target)
    try:
        return get_type_hints(function, include_extras=True)
    except TypeError:
        return {}
    except NameError:
        return _resolved(function)


def _resolved(function: Any) -> dict[str, Any]:
    """Return the annotations that can be resolved, of a function that also has others."""
    # One by one: `get_type_hints` raises for the first unresolved name, and returns none of the others.
    function = inspect.unwrap(function)
    found: dict[str, Any] = {}
    for name, hint in inspect.get_annotations(function).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        with contextlib.suppress(NameError, TypeError):
            found |= get_type_hints(alone, getattr(function, "__globals__", {}), include_extras=True)
    return found


def name_of_call(call: Any) -> str:
    """Return the name of a function, of the class of a callable object, or of a runnable of langchain-core.

    The name of a partial is its function's.
    """
    if is_runnable(call) and callable(get_name := getattr(call, "get_name", None)):
        return str(get_name())
    while isinstance(call, functools.partial):
        call = call.func
    return getattr(call, "__name__", None) or type(call).__name__


def is_runnable(given: Any) -> bool:
    """Return True if an object is run by its `ainvoke` instead of being called: a chain, a model, a tool, a graph."""
    if callable(given):
        # Some runnables can be called too, in an older way that takes no config.
        known = sys.modules.get("langchain_core.runnables")
        return known is not None and isinstance(given, known.Runnable)
    return callable(getattr(given, "ainvoke", None)) and callable(getattr(given, "invoke", None))


def as_function(given: Any) -> Any:
    """Return a function that runs a runnable with the config of its node. Anything else is returned as it is."""
    if not is_runnable(given):
        return given
    from .runnable_action import RunnableAction  # imported here: most graphs have no runnables

    return RunnableAction(given, name_of_call(given))


def is_generator(call: Any) -> bool:
    """Return True if a call makes a generator. The `__call__` of a callable object counts, too."""
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (call, getattr(call, "__call__", None))  # noqa: B004  # an instance's
    )


def injections_of(call: Callable[..., Any], *, after: int, handles: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the parameters that the runtime fills in, as (parameter, attribute of `AttemptContext`) pairs.

    Args:
        call: the function.
        after: the number of positional parameters that the caller fills in.
        handles: True for an error handler, which may also receive the failure.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return ()  # a builtin without a signature
    hints, given = hints_of(call), _INJECTABLE_IN_HANDLERS if handles else _INJECTABLE
    bound = call.keywords if isinstance(call, functools.partial) else {}  # bound by the user, not by the runtime
    found: list[tuple[str, str]] = []
    for index, parameter in enumerate(parameters):
        if index < after or parameter.name in bound:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        found.extend((parameter.name, what) for what in _injections_for(parameter, hints, *given))
    return tuple(found)


def _injections_for(
    parameter: inspect.Parameter,
    hints: Mapping[str, Any],
    by_annotation: tuple[tuple[Any, str], ...],
    names: tuple[str, ...],
) -> tuple[str, ...]:
    """Return the attribute that a parameter receives, as a tuple of one or none."""
    hint = hints.get(parameter.name, parameter.annotation)
    for option in (hint, *get_args(hint)):  # Optional[RunnableConfig] too
        kind = get_origin(option) or option
        for known, what in by_annotation:
            if kind is known:
                return (what,)
        if (getattr(kind, "__module__", ""), getattr(kind, "__qualname__", "")) == _STORE:
            return ("store",)
    if isinstance(hint, str):  # not resolved, so its text is parsed as far as possible
        options = re.sub(r"^(\w+\.)*(Optional|Union|Annotated)\[(.*)\]$", r"\3", hint.strip("\"' "))
        for option in re.split(r"[|,]", options):
            called = option.partition("[")[0].strip().rpartition(".")[2]
            for known, what in by_annotation:
                if called == known.__name__:
                    return (what,)
            if called == _STORE[1]:
                return ("store",)
    return (parameter.name,) if parameter.name in names else ()


def check_signature(
    call: Callable[..., Any], *given: object, what: str, injected: tuple[tuple[str, str], ...], handles: bool = False
) -> None:
    """Refuse a function whose signature does not match the arguments that it will get.

    Args:
        call: the function.
        given: stand-ins for the positional arguments.
        what: names the function and its arguments in the message.
        injected: the result of `injections_of`.
        handles: True for an error handler, which may also receive the failure.

    Raises:
        GraphValidationError: the function needs other arguments.
    """
    # When the graph is built: the error at the first call would come after other nodes have run.
    try:
        inspect.signature(call).bind(*given, **dict.fromkeys((name for name, _ in injected)))
    except TypeError as error:
        names = ", ".join((_INJECTABLE_IN_HANDLERS if handles else _INJECTABLE)[1])
        raise GraphValidationError(
            f"{what}: {error}. Bind what else it needs, with functools.partial; the runtime fills in parameters named "
            f"{names}{', and one annotated NodeError' if handles else ''}"
        ) from error
    except ValueError:
        return  # a builtin without a signature
