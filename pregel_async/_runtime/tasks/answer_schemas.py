"""Check answers against the `response_schema` of their questions. Imported with the first question that has one.

A type is checked by pydantic, as in LangGraph. msgspec checks it if pydantic is not installed, or does not know the
type (a `msgspec.Struct`; before Python 3.12, a `typing.TypedDict`). Both convert where the conversion is clear, such as
"4" to an int. A JSON schema is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..._core.ownership import own
from ...errors import ConfigError

Convert = Callable[[Any], Any]


class MismatchError(ValueError):
    """An answer does not fit a type. The message says where and why."""


def read_schema(schema: Any) -> tuple[dict[str, Any], Convert]:
    """Return the JSON schema of a `response_schema`, and the function that checks and converts an answer.

    Args:
        schema: a JSON schema, or a type.

    Returns:
        The JSON schema, and a function that raises `MismatchError`.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(schema, dict):
        return own(schema), _as_it_is
    try:
        from pydantic import PydanticUserError
    except ImportError:
        return _of_msgspec(schema)
    try:
        return _of_pydantic(schema)
    except PydanticUserError:
        return _of_msgspec(schema)


def _as_it_is(answer: Any) -> Any:
    return answer


def _of_pydantic(schema: Any) -> tuple[dict[str, Any], Convert]:
    from pydantic import TypeAdapter, ValidationError

    adapter: TypeAdapter[Any] = TypeAdapter(schema)

    def convert(answer: Any) -> Any:
        try:
            return adapter.validate_python(answer)
        except ValidationError as error:
            found = [(".".join(map(str, each["loc"])), each["msg"]) for each in error.errors()]
            raise MismatchError("; ".join([f"{at}: {why}" if at else why for at, why in found])) from error

    return adapter.json_schema(), convert


def _of_msgspec(schema: Any) -> tuple[dict[str, Any], Convert]:
    try:
        described = msgspec.json.schema(schema)
    except TypeError as error:
        raise ConfigError(
            f"the response_schema of an interrupt() is a JSON schema (a dict), or a type that pydantic or msgspec "
            f"can check, not {schema!r}: {error}"
        ) from error

    def convert(answer: Any) -> Any:
        try:
            return msgspec.convert(answer, schema, strict=False)
        except msgspec.ValidationError as error:
            raise MismatchError(str(error)) from error

    return described, convert
