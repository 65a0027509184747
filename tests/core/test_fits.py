"""`fits` refuses a value only if it can be no instance of its annotation."""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from enum import Enum, IntEnum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pregel_async._core.fits import fits

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Typed(TypedDict):
    x: int


@dataclasses.dataclass
class Data:
    x: int


class Record(msgspec.Struct):
    x: int


class Model(pydantic.BaseModel):
    x: int


class Pair(NamedTuple):
    x: int


class Speaks(Protocol):
    def speak(self) -> str: ...


class Box(Generic[T]):
    pass


class Own(list[int]):
    pass


FITS: list[tuple[Any, Any]] = [
    (int, 1),
    (int, True),
    (int, Number.ONE),
    (float, 1),
    (float, 1.5),
    (complex, 1),
    (complex, 1.5),
    (complex, 1j),
    (bool, True),
    (str, "a"),
    (bytes, b"a"),
    (object, 1),
    (Any, object()),
    ("Forward", 1),
    (T, 1),
    (UserId, 1),
    (list, []),
    (list[int], []),
    (list[int], ["what is inside is not its business"]),
    (list[int], Own()),
    (typing.List[int], [1]),  # noqa: UP006  # people write it in every way
    (dict[str, int], {}),
    (tuple[int, ...], (1,)),
    (set[int], {1}),
    (frozenset[int], frozenset()),
    (Sequence[int], [1]),
    (Sequence[int], (1,)),
    (Sequence[str], "text"),
    (Mapping[str, int], {}),
    (Iterable[int], [1]),
    (Callable[[int], int], len),
    (Callable, len),
    (type[int], int),
    (Literal["a", 1], "a"),
    (Literal["a", 1], 1),
    (int | str, "a"),
    (Optional[int], 1),  # noqa: UP045  # people write it in every way
    (int | None, None),
    (list[int] | dict[str, int], {}),
    (Annotated[int, "meta"], 1),
    (Required[int], 1),
    (NotRequired[int], 1),
    (Annotated[int | None, "meta"], 1),
    (Typed, {"x": 1}),
    (Typed, {"any": "keys"}),
    (Data, Data(1)),
    (Data, {"x": 1}),
    (Record, Record(1)),
    (Record, {"x": 1}),
    (Model, Model(x=1)),
    (Model, {"x": 1}),
    (Pair, Pair(1)),
    (Speaks, 1),
    (Box[int], Box()),
    (Colour, Colour.RED),
    (datetime.date, datetime.datetime(2020, 1, 1)),
    (datetime.datetime, datetime.datetime(2020, 1, 1)),
    (pathlib.Path, pathlib.Path("a")),
    (uuid.UUID, uuid.UUID(int=1)),
    (Decimal, Decimal(1)),
    (None, 1),
    (typing.LiteralString, 1),
]

UNFIT: list[tuple[Any, Any]] = [
    (int, "1"),
    (int, 1.0),
    (float, "1"),
    (float, True),
    (complex, True),
    (bool, 1),
    (str, 1),
    (str, b"a"),
    (bytes, "a"),
    (list, (1,)),
    (list[int], {"a": 1}),
    (list[int], "text"),
    (dict[str, int], []),
    (tuple[int, ...], [1]),
    (set[int], [1]),
    (Mapping[str, int], [1]),
    (Sequence[int], 1),
    (Sequence[int], {1}),
    (type[int], 1),
    (Literal["a", 1], "b"),
    (Literal["a", 1], True),
    (int | str, []),
    (int | None, "a"),
    (list[int] | dict[str, int], 1),
    (Annotated[int, "meta"], "a"),
    (Required[int], "a"),
    (Typed, [1]),
    (Data, 1),
    (Record, 1),
    (Record, Data(1)),
    (Model, "a"),
    (Box[int], 1),
    (Colour, "red"),
    (datetime.datetime, datetime.date(2020, 1, 1)),
]


@pytest.mark.parametrize(("hint", "value"), FITS, ids=range(len(FITS)))
def test_fits(hint: Any, value: Any) -> None:
    """Bad input: a value that its annotation may allow is accepted."""
    assert fits(hint, value)


@pytest.mark.parametrize(("hint", "value"), UNFIT, ids=range(len(UNFIT)))
def test_unfit(hint: Any, value: Any) -> None:
    """Bad input: a value of the wrong type is refused."""
    assert not fits(hint, value)


@given(hint=st.sampled_from([hint for hint, _ in FITS + UNFIT]))
def test_none_always_fits(hint: Any) -> None:
    """`fits` accepts None for every annotation, as many programs write None for "not yet"."""
    assert fits(hint, None)


@given(
    hint=st.sampled_from([hint for hint, _ in FITS + UNFIT]),
    value=st.sampled_from([value for _, value in FITS + UNFIT]),
)
def test_fits_never_raises(hint: Any, value: Any) -> None:
    """`fits` returns True or False for any annotation and value, and never raises."""
    assert fits(hint, value) in (True, False)
    assert fits(hint | None if isinstance(hint, type) else hint, None)
