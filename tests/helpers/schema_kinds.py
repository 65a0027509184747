"""One state in the four kinds of schema, and access to its keys in any of them."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic


class DictState(TypedDict, total=False):
    items: list[Any]
    table: dict[str, Any]
    log: Annotated[list[Any], operator.add]
    note: str


@dataclasses.dataclass
class DataState:
    items: list[Any] = dataclasses.field(default_factory=list)
    table: dict[str, Any] = dataclasses.field(default_factory=dict)
    log: Annotated[list[Any], operator.add] = dataclasses.field(default_factory=list)
    note: str = ""


class StructState(msgspec.Struct):
    items: list[Any] = []
    table: dict[str, Any] = {}
    log: Annotated[list[Any], operator.add] = []
    note: str = ""


class ModelState(pydantic.BaseModel):
    items: list[Any] = []
    table: dict[str, Any] = {}
    log: Annotated[list[Any], operator.add] = []
    note: str = ""


KINDS: list[type[Any]] = [DictState, DataState, StructState, ModelState]


def get(state: Any, key: str) -> Any:
    """Return a key of a state of any kind."""
    return state[key] if isinstance(state, dict) else getattr(state, key)


def put(state: Any, key: str, value: Any) -> None:
    if isinstance(state, dict):
        state[key] = value
    else:
        setattr(state, key, value)
