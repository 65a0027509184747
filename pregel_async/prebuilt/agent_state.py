"""The state of an agent, and schemas that are made of a user's schema and further keys."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final, NotRequired, Required, TypedDict, get_args, get_origin, get_type_hints

from .._core.fits import is_typed_dict
from ..errors import GraphValidationError
from ..managed import ManagedValue, RemainingSteps
from ..messages import add_messages

__all__ = ["AgentState"]


class _Private:
    """Marks a key that is not part of the agent's output."""


PRIVATE: Final = _Private()
"""Annotate keys of a middleware with it that callers need not see: they are stored, and left out of the output."""


class AgentState(TypedDict):
    """The state of an agent. Subclass it for more keys, which tools and hooks may read and write.

    Keys:
        messages: the conversation.
        remaining_steps: the number of supersteps that the step limit still allows, for nodes and hooks to read.
        structured_response: the answer in the form of `response_format`; absent without one.
    """

    messages: Annotated[list[Any], add_messages]
    remaining_steps: NotRequired[RemainingSteps]
    structured_response: NotRequired[Any]


def extended_schema(schema: Any, name: str, more: Mapping[str, Any]) -> Any:
    """Return a schema with more keys, which replace keys of the same names that are annotated with Any.

    Args:
        schema: the schema of the state.
        name: the name of the new one.
        more: annotations by key.

    Returns:
        A TypedDict; the schema itself if it has all keys already.

    Raises:
        GraphValidationError: the schema is no TypedDict, and lacks a key.
    """
    hints = get_type_hints(schema, include_extras=True)
    plain = get_type_hints(schema)
    added = {key: hint for key, hint in more.items() if key not in plain or plain[key] is Any}
    if not added:
        return schema
    if not is_typed_dict(schema):
        missing = [key for key in added if key not in plain]
        if not missing:
            return schema
        raise GraphValidationError(
            f"state_schema {schema.__name__!r} lacks {', '.join(map(repr, missing))}, which this agent writes: declare "
            "it there, or make the schema a TypedDict"
        )
    return _typed_dict(name, {**_fields_of(schema, hints), **{key: NotRequired[hint] for key, hint in added.items()}})


def with_langchain_messages(schema: Any) -> Any:
    """Return a schema whose messages become langchain-core's, whatever callers and nodes write.

    Args:
        schema: the schema of the state.

    Returns:
        A TypedDict; the schema itself if it is none, or if its messages have a reducer of their own.
    """
    if not is_typed_dict(schema):
        return schema
    hints = get_type_hints(schema, include_extras=True)
    if add_messages not in _marks_of(hints.get("messages")):
        return schema
    converting = import_module("pregel_async.langchain").add_messages
    return replaced_hints(schema, {"messages": Annotated[list[Any], converting]})


def schema_without(schema: Any, name: str, *keys: str) -> Any:
    """Return a schema for outputs: without some keys, and without managed values, which no output has.

    Args:
        schema: a TypedDict.
        name: the name of the new one.
        keys: the keys to leave out.
    """
    fields = _fields_of(schema, get_type_hints(schema, include_extras=True))
    kept = {key: hint for key, hint in fields.items() if key not in keys and not _is_managed(hint)}
    return _typed_dict(name, kept)


def replaced_hints(schema: Any, hints: Mapping[str, Any]) -> Any:
    """Return a schema with other annotations of some keys.

    Args:
        schema: a TypedDict.
        hints: the annotations by key.
    """
    return _typed_dict(schema.__name__, {**_fields_of(schema, get_type_hints(schema, include_extras=True)), **hints})


def _fields_of(schema: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    optional: frozenset[str] = schema.__optional_keys__
    qualified = (NotRequired, Required)
    return {
        key: NotRequired[hint] if key in optional and get_origin(hint) not in qualified else hint
        for key, hint in hints.items()
    }


def private_keys(schema: Any) -> list[str]:
    """Return the keys of a schema that are marked as private."""
    return [key for key, hint in get_type_hints(schema, include_extras=True).items() if _is_private(hint)]


def _is_private(hint: Any) -> bool:
    return PRIVATE in _marks_of(hint)


def _is_managed(hint: Any) -> bool:
    return any(isinstance(mark, type) and issubclass(mark, ManagedValue) for mark in _marks_of(hint))


def _marks_of(hint: Any) -> tuple[Any, ...]:
    """Return what an annotation is marked with, by `Annotated`."""
    while get_origin(hint) in (NotRequired, Required):  # a key of a schema that was extended has several
        hint = get_args(hint)[0]
    return getattr(hint, "__metadata__", ())


def _typed_dict(name: str, fields: Mapping[str, Any]) -> Any:
    make: Any = TypedDict  # type checkers know the call with literals only
    return make(name, dict(fields))
