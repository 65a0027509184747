"""Spellings that LangGraph has deprecated, and small things of its programs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Annotated, Any, ForwardRef, TypedDict, get_args

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, Interrupt, RetryPolicy, StateGraph, entrypoint, task
from pregel_async.channels import (
    BinaryOperatorAggregate,
    DeltaChannel,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
)
from pregel_async.errors import GeneratorNotSupportedError, GraphValidationError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[str], operator.add]


class Small(TypedDict, total=False):
    x: int


class Context(TypedDict, total=False):
    user: str


class Flaky:
    """A function that fails at its first call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise ConnectionError("once")
        return {"x": self.calls}


AGAIN = RetryPolicy(initial_interval=0.0, jitter=False)


async def test_schemas_of_a_graph() -> None:
    """`StateGraph(input=, output=, config_schema=)` and `add_node(input=)` are the parameters with `_schema`."""
    make: Any = StateGraph
    seen: list[Any] = []
    with pytest.warns(DeprecationWarning) as warned:
        builder = make(State, input=Small, output=Small, config_schema=Context)
        builder.add_node("look", lambda state: seen.append(state), input=Small).add_edge(START, "look")
    assert [str(each.message) for each in warned] == [
        *("config_schema= is deprecated: use context_schema=", "input= is deprecated: use input_schema="),
        *("output= is deprecated: use output_schema=", "input= is deprecated: use input_schema="),
    ]
    assert {each.filename for each in warned} == {__file__}
    graph = builder.compile()
    assert (graph.InputType, graph.OutputType, graph.context_schema) == (Small, Small, Context)
    assert await graph.ainvoke({"x": 1}, context={"user": "ada"}) == {"x": 1}
    assert seen == [{"x": 1}]


async def test_retry_policies() -> None:
    """`retry=` of a node, a task and an entrypoint is `retry_policy=`."""
    node, called, flow = Flaky(), Flaky(), Flaky()
    builder: Any = StateGraph(State)
    with pytest.warns(DeprecationWarning, match="retry= is deprecated: use retry_policy="):
        builder.add_node("node", node, retry=AGAIN).add_edge(START, "node")
    assert await builder.compile().ainvoke({}) == {"x": 2, "log": []}
    make_task: Any = task
    with pytest.warns(DeprecationWarning, match="retry= is deprecated"):
        retried = make_task(retry=AGAIN, name="called")(called)
    make_entrypoint: Any = entrypoint
    with pytest.warns(DeprecationWarning, match="retry= is deprecated"):
        decorate = make_entrypoint(retry=AGAIN, name="flow")

    @decorate
    async def workflow(given: int) -> Any:
        flow(given)
        return await retried(given)

    assert await workflow.ainvoke(1) == {"x": 2}
    assert (called.calls, flow.calls) == (2, 2)


async def test_context_schema_of_an_entrypoint() -> None:
    """`entrypoint(config_schema=)` is `context_schema=`."""
    make: Any = entrypoint
    with pytest.warns(DeprecationWarning, match="config_schema= is deprecated"):
        decorate = make(config_schema=Context)
    assert decorate(lambda given: given).context_schema is Context


@pytest.mark.parametrize(("during", "stored"), [(True, 3), (False, 1)])
async def test_checkpoint_during(during: bool, stored: int) -> None:
    """`checkpoint_during=True` is `durability="async"`, and False is "exit": `ainvoke` and `astream` take it."""
    for verb in ("ainvoke", "astream", "abatch"):
        saver = InMemorySaver()
        graph: Any = StateGraph(State).add_sequence([("a", lambda state: {"x": 1}), ("b", lambda state: None)])
        graph = graph.add_edge(START, "a").compile(saver)
        with pytest.warns(DeprecationWarning, match="checkpoint_during= is deprecated: use durability="):
            if verb == "ainvoke":
                await graph.ainvoke({}, "t", checkpoint_during=during)
            elif verb == "abatch":
                await graph.abatch([{}], "t", checkpoint_during=during)
            else:
                assert [each async for each in graph.astream({}, "t", checkpoint_during=during)]
        modes = {state.metadata["step"] async for state in graph.aget_state_history("t")}
        assert len(modes) >= stored


async def test_both_spellings_are_refused() -> None:
    """And an old spelling where the option does not exist is unknown, as before."""
    graph: Any = StateGraph(State).add_node("a", lambda state: None).add_edge(START, "a").compile(InMemorySaver())
    with pytest.raises(TypeError, match="checkpoint_during= is the deprecated spelling of durability="):
        await graph.ainvoke({}, "t", checkpoint_during=True, durability="sync")
    with pytest.raises(TypeError, match="unexpected keyword argument 'retry'"):
        await graph.ainvoke({}, "t", retry=AGAIN)
    builder: Any = StateGraph(State)
    with pytest.raises(TypeError, match="retry= is the deprecated spelling"):
        builder.add_node("a", Flaky(), retry=AGAIN, retry_policy=AGAIN)


def add(x: int, y: int) -> int:
    return x + y


async def test_a_partial_is_named_after_its_function() -> None:
    """A task, an entrypoint and a node, also of a partial of a partial."""
    twice = functools.partial(functools.partial(add), 1)
    assert task(twice).name == "add"
    assert entrypoint()(twice).name == "add"
    builder: Any = StateGraph(int).add_node(twice).add_edge(START, "add")
    assert await builder.compile().ainvoke(2) == 3


def test_a_generator_as_entrypoint() -> None:
    """The error is LangGraph's `NotImplementedError` too."""

    def generates(given: int) -> Any:
        yield given

    with pytest.raises(NotImplementedError, match="generator") as raised:
        entrypoint()(generates)
    assert isinstance(raised.value, GeneratorNotSupportedError) and isinstance(raised.value, GraphValidationError)


def test_types_of_channels() -> None:
    """`ValueType` is what readers get, `UpdateType` what a node may write."""
    assert (LastValue(int).ValueType, LastValue(int).UpdateType) == (int, int)
    assert (EphemeralValue(str).ValueType, NamedBarrierValue(str, {"a"}).UpdateType) == (str, str)
    assert BinaryOperatorAggregate(list, operator.add).ValueType is list
    assert DeltaChannel(lambda state, writes: state, list).UpdateType is list
    assert (Topic(int).ValueType, Topic(int).UpdateType) == (Sequence[int], int | list[int])
    assert get_args(Topic("Later").UpdateType) == (ForwardRef("Later"), list["Later"])  # noqa: F821  # a type's name


def test_a_question_without_an_id() -> None:
    """For tests of code that reads questions. It equals another one with the same value."""
    assert Interrupt("well?") == Interrupt("well?", "placeholder-id")


async def test_several_writes_to_one_key_in_tasks_events() -> None:
    """They are under "$writes", in their order; a key that was written once has its value."""

    def node(state: State) -> Any:
        return [Command(update={"log": ["a"]}), {"log": ["b"], "x": 1}]

    graph: Any = StateGraph(State).add_node(node).add_edge(START, "node").compile()
    *_, ended = [chunk async for chunk in graph.astream({}, stream_mode="tasks")]
    assert ended["result"] == {"log": {"$writes": [["a"], ["b"]]}, "x": 1}
    *_, debug = [chunk async for chunk in graph.astream({}, stream_mode="debug")]
    assert debug["payload"]["result"] == ended["result"]
    [update] = [chunk async for chunk in graph.astream({}, stream_mode="updates")]
    assert update == {"node": [{"log": ["a"]}, {"log": ["b"]}, {"x": 1}]}
