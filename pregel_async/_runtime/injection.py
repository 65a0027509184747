"""What else a function gets besides its input: by the annotation of a parameter, or by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import GraphValidationError
from ..types import RunnableConfig, StreamWriter
from .context import Runtime

NAMES = ("config", "runtime", "writer", "store", "previous")
"""What can be had. Each is an attribute of `Running`."""

_BY_ANNOTATION: tuple[tuple[Any, str], ...] = (
    (Runtime, "runtime"),
    (RunnableConfig, "config"),
    (StreamWriter, "writer"),
)


def hints_of(call: Callable[..., Any]) -> dict[str, Any]:
    """A callable's annotations; none when they cannot be resolved (they name something local, say)."""
    target = call if inspect.isroutine(call) or inspect.isclass(call) else getattr(call, "__call__", call)  # noqa: B004  # an instance's
    try:
        return get_type_hints(getattr(call, "func", target), include_extras=True)
    except (NameError, TypeError):
        return {}


def injections_of(call: Callable[..., Any], *, after: int) -> tuple[tuple[str, str], ...]:
    """The parameters that the runtime fills in, and with what.

    Args:
        after: how many positional parameters the caller fills in.
    """
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return ()  # a builtin that tells nothing about itself
    hints = hints_of(call)
    found: list[tuple[str, str]] = []
    for place, parameter in enumerate(parameters):
        if place < after or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            continue
        what = _what(parameter, hints)
        if what is not None:
            found.append((parameter.name, what))
    return tuple(found)


def _what(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> str | None:
    hint = hints.get(parameter.name, parameter.annotation)
    for option in (hint, *get_args(hint)):  # Optional[RunnableConfig] too
        kind = get_origin(option) or option
        for known, what in _BY_ANNOTATION:
            if kind is known:
                return what
    if isinstance(hint, str):  # not resolved: by its text, as far as that goes
        for known, what in _BY_ANNOTATION:
            if hint.partition("[")[0].rpartition(".")[2] == known.__name__:
                return what
    return parameter.name if parameter.name in NAMES else None


def check_signature(call: Callable[..., Any], *given: object, what: str, injected: tuple[tuple[str, str], ...]) -> None:
    """Refuse a function that cannot be called with what it will get.

    Args:
        given: stand-ins for the positional arguments.
        what: the function and what it is called with, as the message says it.

    Raises:
        GraphValidationError
    """
    try:
        inspect.signature(call).bind(*given, **dict.fromkeys((name for name, _ in injected)))
    except TypeError as error:
        raise GraphValidationError(
            f"{what}: {error}. Bind what else it needs, with functools.partial; the runtime fills in parameters named "
            f"{', '.join(NAMES)}"
        ) from error
    except ValueError:
        return  # a builtin that tells nothing about itself
