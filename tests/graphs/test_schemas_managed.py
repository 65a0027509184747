"""Managed values: declared in a state, computed by the runtime for each task, and neither written nor stored."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from pregel_async.errors import GraphValidationError, InvalidInputError
from pregel_async.graph.schema import AnyChannel, Managed, as_mapping, input_reader, merge_channels, read_schema
from pregel_async.managed import (
    IsLastStep,
    IsLastStepManager,
    ManagedValue,
    Progress,
    RemainingSteps,
    RemainingStepsManager,
)


class DictState(TypedDict):
    n: int
    last: IsLastStep
    left: NotRequired[RemainingSteps]


@dataclasses.dataclass
class DataState:
    n: int
    last: IsLastStep
    left: RemainingSteps


class StructState(msgspec.Struct):
    n: int
    last: IsLastStep
    left: RemainingSteps


class ModelState(pydantic.BaseModel):
    n: int
    last: IsLastStep
    left: RemainingSteps


KINDS: list[Any] = [DictState, DataState, StructState, ModelState]


@pytest.mark.parametrize(
    ("remaining", "last"), [(1, True), (2, False), (10, False)], ids=["the last", "the last but one", "an early one"]
)
def test_is_last_step_and_remaining_steps(remaining: int, last: bool) -> None:
    """P14: `IsLastStep` is true in the last superstep that the limit allows, and `RemainingSteps` is 1 there."""
    progress = Progress(step=4, remaining=remaining)
    assert IsLastStepManager.get(progress) is last
    assert RemainingStepsManager.get(progress) == remaining
    assert progress.stop == 4 + remaining


@pytest.mark.parametrize("kind", KINDS)
def test_are_no_channels(kind: Any) -> None:
    """Managed values are neither keys nor channels of the schema that declares them."""
    schema = read_schema(kind, "state schema")
    assert schema.managed == {"last": IsLastStepManager, "left": RemainingStepsManager}
    assert list(schema.channels) == list(schema.keys) == ["n"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_reach_a_schemas_object(kind: Any) -> None:
    """A node gets managed values as fields, and may return the whole object: they are ignored in its update."""
    schema = read_schema(kind, "state schema")
    assert schema.shape is not None
    made = schema.shape({"n": 1, "last": True, "left": 1})
    assert type(made) is kind
    assert (made.n, made.last, made.left) == (1, True, 1)
    assert as_mapping(schema, made) == {"n": 1}


def test_are_found_at_any_position_of_an_annotation() -> None:
    """A managed value is found at any position in an annotation."""
    marked: Any = TypedDict("marked", {"left": Annotated[int, "of the run", RemainingStepsManager, "in steps"]})
    assert read_schema(marked, "state schema").managed == {"left": RemainingStepsManager}


class Half(ManagedValue[float]):
    """A user-defined managed value."""

    @staticmethod
    def get(scratchpad: Progress) -> float:
        return scratchpad.step / scratchpad.stop


class Unfinished(ManagedValue[int]):
    pass


def test_a_users_own() -> None:
    """A class with a `get` method is a managed value."""
    mine: Any = TypedDict("mine", {"half": Annotated[float, Half]})
    assert read_schema(mine, "state schema").managed["half"].get(Progress(1, 1)) == 0.5


@pytest.mark.parametrize(
    ("mark", "said"), [(Unfinished, r"bad\.x, has no get"), (Half(), r"bad\.x.*write Half, and not Half\(\)")]
)
def test_one_without_get(mark: Any, said: str) -> None:
    """A class without `get`, or an object instead of the class, is refused."""
    bad: Any = TypedDict("bad", {"x": Annotated[int, mark]})
    with pytest.raises(GraphValidationError, match=said):
        read_schema(bad, "state schema")


@pytest.mark.parametrize("role", ["input schema", "output schema"])
def test_are_refused_where_values_come_in_or_go_out(role: str) -> None:
    """Managed values in input and output schemas are refused by name."""
    for kind in KINDS:
        with pytest.raises(GraphValidationError, match=f"the {role} has a managed value, 'last'"):
            read_schema(kind, role, managed=False)


def test_a_state_is_more_than_one_of_them() -> None:
    """A state that is only a managed value is refused, as nodes could write nothing."""
    with pytest.raises(GraphValidationError, match="the state schema is a managed value"):
        read_schema(IsLastStep, "state schema")


def test_are_not_taken_with_an_input() -> None:
    """An input that names a managed value raises an error with the reason; with `unknown_keys="ignore"` it is
    dropped."""
    schema = read_schema(DictState, "state schema")
    with pytest.raises(InvalidInputError, match="'last', a managed value.*leave it out"):
        input_reader(schema, "__start__", ignore_unknown=False)({"n": 1, "last": True})
    assert input_reader(schema, "__start__", ignore_unknown=True)({"n": 1, "last": True}) == [("__start__", {"n": 1})]


class PlainLast(TypedDict):
    last: bool


class OtherLast(TypedDict):
    last: Annotated[bool, Half]


@pytest.mark.parametrize("kinds", [(DictState, PlainLast), (PlainLast, DictState), (DictState, OtherLast)])
def test_one_name_is_one_thing(kinds: tuple[Any, Any]) -> None:
    """A key cannot be managed in one schema and written in another, or managed in two ways."""
    channels: dict[str, AnyChannel] = {}
    managed: dict[str, Managed] = {}
    merge_channels(channels, read_schema(kinds[0], "schema"), managed)
    before = dict(channels), dict(managed)
    with pytest.raises(GraphValidationError, match="key 'last' is declared twice"):
        merge_channels(channels, read_schema(kinds[1], "schema"), managed)
    assert (channels, managed) == before


def test_merging_collects_them() -> None:
    """Two schemas may declare the same managed value."""
    channels: dict[str, AnyChannel] = {}
    managed: dict[str, Managed] = {}
    for kind in (DictState, DataState):
        merge_channels(channels, read_schema(kind, "schema"), managed)
    assert managed == {"last": IsLastStepManager, "left": RemainingStepsManager}
    assert list(channels) == ["n"]


def test_an_object_in_place_of_the_dict() -> None:
    """An input that is an instance of the schema leaves managed values out, too."""
    schema = read_schema(DataState, "input schema")
    assert input_reader(schema, "__start__", ignore_unknown=False)(DataState(1, True, 1)) == [("__start__", {"n": 1})]
