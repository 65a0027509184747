"""Managed values: declared in a state, filled in by the runtime, and nowhere else."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from pregel_async.errors import GraphValidationError, InvalidInputError
from pregel_async.graph.schema import Channel, Managed, as_mapping, input_reader, merge_channels, read_schema
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
def test_what_they_say(remaining: int, last: bool) -> None:
    """P14: `IsLastStep` is true in the last superstep that the limit allows, and `RemainingSteps` is 1 there."""
    progress = Progress(step=4, remaining=remaining)
    assert IsLastStepManager.get(progress) is last
    assert RemainingStepsManager.get(progress) == remaining
    assert progress.stop == 4 + remaining


@pytest.mark.parametrize("kind", KINDS)
def test_are_no_channels(kind: Any) -> None:
    """They are neither keys nor channels of a schema that declares them."""
    schema = read_schema(kind, "state schema")
    assert schema.managed == {"last": IsLastStepManager, "left": RemainingStepsManager}
    assert list(schema.channels) == list(schema.keys) == ["n"]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_reach_a_schemas_object(kind: Any) -> None:
    """A node gets them as fields, and may give the whole object back: they are no part of that update."""
    schema = read_schema(kind, "state schema")
    assert schema.shape is not None
    made = schema.shape({"n": 1, "last": True, "left": 1})
    assert type(made) is kind
    assert (made.n, made.last, made.left) == (1, True, 1)
    assert as_mapping(schema, made) == {"n": 1}


def test_are_told_among_other_marks() -> None:
    """Wherever they stand in an annotation."""
    marked: Any = TypedDict("marked", {"left": Annotated[int, "of the run", RemainingStepsManager, "in steps"]})
    assert read_schema(marked, "state schema").managed == {"left": RemainingStepsManager}


class Half(ManagedValue[float]):
    """A user's own."""

    @staticmethod
    def get(scratchpad: Progress) -> float:
        return scratchpad.step / scratchpad.stop


class Unfinished(ManagedValue[int]):
    pass


def test_a_users_own() -> None:
    """A class with `get` is all that it takes."""
    mine: Any = TypedDict("mine", {"half": Annotated[float, Half]})
    assert read_schema(mine, "state schema").managed["half"].get(Progress(1, 1)) == 0.5


@pytest.mark.parametrize(
    ("mark", "said"), [(Unfinished, r"bad\.x, has no get"), (Half(), r"bad\.x.*write Half, and not Half\(\)")]
)
def test_one_that_cannot_be_asked(mark: Any, said: str) -> None:
    """Without `get`, or an object in place of the class."""
    bad: Any = TypedDict("bad", {"x": Annotated[int, mark]})
    with pytest.raises(GraphValidationError, match=said):
        read_schema(bad, "state schema")


@pytest.mark.parametrize("role", ["input schema", "output schema"])
def test_are_refused_where_values_come_in_or_go_out(role: str) -> None:
    """Forbidden in input and output schemas, by name."""
    for kind in KINDS:
        with pytest.raises(GraphValidationError, match=f"the {role} has a managed value, 'last'"):
            read_schema(kind, role, managed=False)


def test_a_state_is_more_than_one_of_them() -> None:
    """As a root there would be nothing to write."""
    with pytest.raises(GraphValidationError, match="the state schema is a managed value"):
        read_schema(IsLastStep, "state schema")


def test_are_not_taken_with_an_input() -> None:
    """Naming one says why; dropped where unknown keys are."""
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
    """A key is not managed in one schema and written in another, nor managed in two ways."""
    channels: dict[str, Channel] = {}
    managed: dict[str, Managed] = {}
    merge_channels(channels, read_schema(kinds[0], "schema"), managed)
    before = dict(channels), dict(managed)
    with pytest.raises(GraphValidationError, match="key 'last' is declared twice"):
        merge_channels(channels, read_schema(kinds[1], "schema"), managed)
    assert (channels, managed) == before


def test_merging_collects_them() -> None:
    """Two schemas may declare the same."""
    channels: dict[str, Channel] = {}
    managed: dict[str, Managed] = {}
    for kind in (DictState, DataState):
        merge_channels(channels, read_schema(kind, "schema"), managed)
    assert managed == {"last": IsLastStepManager, "left": RemainingStepsManager}
    assert list(channels) == ["n"]


def test_an_object_in_place_of_the_dict() -> None:
    """An input given as an instance of the schema leaves them out, too."""
    schema = read_schema(DataState, "input schema")
    assert input_reader(schema, "__start__", ignore_unknown=False)(DataState(1, True, 1)) == [("__start__", {"n": 1})]
