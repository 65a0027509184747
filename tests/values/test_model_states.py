"""Pydantic states with validators over several fields: an input is validated together with the thread's values."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pydantic
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, StateGraph
from pregel_async.errors import InvalidInputError, InvalidUpdateError
from pregel_async.types import Command

pytestmark = pytest.mark.anyio


class Range(pydantic.BaseModel):
    low: int = 0
    high: int = 0
    width: int = 0
    log: Annotated[list[str], operator.add] = []

    @pydantic.model_validator(mode="after")
    def check_and_measure(self) -> Range:
        if self.low > self.high:
            raise ValueError("low is above high")
        self.width = self.high - self.low
        return self


def graph(schema: Any, saver: Any = None, **schemas: Any) -> Any:
    made: Any = StateGraph(schema, **schemas).add_node("n", lambda state: {"log": ["n"]}).add_edge(START, "n")
    return made.compile(saver, blocking=False)


async def history_of(made: Any, thread: str) -> int:
    return len([state async for state in made.aget_state_history(thread)])


async def test_an_input_is_validated_with_the_threads_values(saver: BaseCheckpointSaver) -> None:
    """An input with some of the fields is validated together with the thread's values of the others: it is accepted if
    it fits these, even if it would not fit the defaults, and otherwise refused before anything is stored."""
    made = graph(Range, saver)
    with pytest.raises(InvalidInputError, match="the input is refused: .*low is above high") as refused:
        await made.ainvoke({"low": 5}, "t")
    assert refused.value.path == ""
    assert [thread async for thread in saver.alist_threads()] == []

    await made.ainvoke({"high": 10}, "t")
    assert (await made.ainvoke({"low": 5}, "t"))["low"] == 5
    await made.aupdate_state("t", {"low": 7}, "n")
    stored = await history_of(made, "t")
    with pytest.raises(InvalidInputError, match="low is above high"):
        await made.ainvoke({"high": 6}, "t")
    for update in ({"high": 6}, Command(update={"high": 6})):
        with pytest.raises(InvalidUpdateError, match="the update is refused: .*low is above high"):
            await made.aupdate_state("t", update, "n")
    with pytest.raises(InvalidInputError, match="low is above high"):
        await made.aupdate_state("t", {"high": 6}, "__input__")
    with pytest.raises(InvalidUpdateError, match="low is above high"):
        await made.ainvoke(Command(update={"high": 6}, goto="n"), "t")
    assert await history_of(made, "t") == stored
    assert (await made.aget_state("t")).values["width"] == 3


async def test_what_a_validator_sets_is_stored(saver: BaseCheckpointSaver) -> None:
    """All values of the validated model are stored, not only those in the input."""
    made = graph(Range, saver)
    await made.ainvoke({"high": 10}, "t")
    tuple_ = await saver.aget_tuple({"configurable": {"thread_id": "t"}})
    assert tuple_ is not None
    assert tuple_.checkpoint["channel_values"]["width"] == 10


async def test_a_reducers_key_leaves_the_whole_to_the_nodes() -> None:
    """With a reducer key the whole model is not validated on input, as its validator would see a list before the
    fold."""

    class Talk(pydantic.BaseModel):
        log: Annotated[list[str], operator.add] = []
        closed: bool = False

        @pydantic.model_validator(mode="after")
        def begins_politely(self) -> Talk:
            if self.log and self.log[0] != "hello":
                raise ValueError("rude")
            return self

    made = graph(Talk, InMemorySaver())
    await made.ainvoke({"log": ["hello"]}, "t")
    assert (await made.ainvoke({"log": ["what?"], "closed": True}, "t"))["log"] == ["hello", "n", "what?", "n"]


async def test_validators_may_raise_anything() -> None:
    """An input is refused whatever a validator raises because a field is missing."""

    class Pair(pydantic.BaseModel):
        first: int
        second: int

        @pydantic.field_validator("second")
        @classmethod
        def is_greater(cls, second: int, info: pydantic.ValidationInfo) -> int:
            assert info.data["first"] < second
            return second

    class Logged(Pair):
        log: Annotated[list[str], operator.add] = []

    made = graph(Logged, InMemorySaver())
    with pytest.raises(InvalidInputError, match="the input is refused: KeyError: 'first'"):
        await made.ainvoke({"second": 2}, "t")
    assert (await made.aget_state("t")).metadata is None
    await made.ainvoke({"first": 1, "second": 2}, "t")
    assert (await made.ainvoke({"second": 3}, "t"))["second"] == 3
    with pytest.raises(InvalidInputError, match="input 'second' is refused"):
        await made.ainvoke({"second": 0}, "t")


class Priced(pydantic.BaseModel):
    amount: int = pydantic.Field(1, gt=0)
    log: Annotated[list[str], operator.add] = []


class Amount(TypedDict):
    amount: int


async def test_an_instance_is_validated_too() -> None:
    """An instance of the model is validated, as it may have been changed after its validation or created without
    one."""
    changed = Priced(amount=1)
    changed.amount = -1
    made = graph(Priced, InMemorySaver())
    for given in (changed, Priced.model_construct(amount="many")):
        with pytest.raises(InvalidInputError, match="input 'amount' is refused"):
            await made.ainvoke(given, "t")
    assert (await made.aget_state("t")).metadata is None
    assert (await made.ainvoke(Priced(amount=2), "t"))["amount"] == 2


async def test_the_state_validates_what_another_schema_takes_in() -> None:
    """The pydantic state also validates an input that a less strict input schema accepts."""
    made = graph(Priced, InMemorySaver(), input_schema=Amount)
    with pytest.raises(InvalidInputError, match="input 'amount' is refused"):
        await made.ainvoke({"amount": -1}, "t")
    assert (await made.aget_state("t")).metadata is None
    assert (await made.ainvoke({"amount": 2}, "t"))["amount"] == 2


async def test_an_update_as_the_start_may_be_an_instance() -> None:
    """An update as the start may be an instance of the state's class; any other object is refused as an update."""
    made = graph(Priced, InMemorySaver())
    for given in (None, {"amount": 3}, Priced(amount=3)):
        await made.aupdate_state("t", given, "__start__")
    assert (await made.aget_state("t")).values["amount"] == 3
    with pytest.raises(InvalidUpdateError, match="an update as the start is a mapping of amount, log"):
        await made.aupdate_state("t", 5, "__start__")
