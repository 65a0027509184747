"""The names and shapes of the specification of the Pregel engine, as its readers use them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import signature
from typing import Any, TypedDict

import pytest

from pregel_async import (
    END,
    START,
    CachePolicy,
    NodeBuilder,
    Pregel,
    PregelNode,
    PregelProtocol,
    RetryPolicy,
    Send,
    StateGraph,
    StateUpdate,
)
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import GraphValidationError
from pregel_async.node import ChannelWriteEntry

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    input: str
    output: str
    decision: str


def process_input(state: State) -> dict[str, Any]:
    return {"output": f"processed {state.get('input')}"}


def make_decision(state: State) -> dict[str, Any]:
    return {"decision": f"decided on {state.get('output')}"}


def value_of(key: str, state: dict[str, Any]) -> Any:
    return state.get(key)


def example(**options: Any) -> Pregel:
    """Return the listing that the specification compiles its StateGraph to, with the writers that it leaves out."""
    keys = ("input", "output", "decision")

    def start(state: State) -> State:
        return state

    return Pregel(
        channels={
            START: EphemeralValue(dict),
            **{key: LastValue(str) for key in keys},
            "branch:to:process_input": EphemeralValue(bool),
            "branch:to:make_decision": EphemeralValue(bool),
        },
        nodes={
            START: PregelNode(
                bound=start,
                triggers=(START,),
                channels=START,
                writers=(
                    *[ChannelWriteEntry(key, mapper=partial(value_of, key), skip_none=True) for key in keys],
                    ChannelWriteEntry("branch:to:process_input", True),
                ),
            ),
            "process_input": PregelNode(
                bound=process_input,
                triggers=("branch:to:process_input",),
                channels=keys,
                writers=(
                    ChannelWriteEntry("output", mapper=lambda update: update["output"]),
                    ChannelWriteEntry("branch:to:make_decision", True),
                ),
            ),
            "make_decision": PregelNode(
                bound=make_decision,
                triggers=("branch:to:make_decision",),
                channels=keys,
                writers=(ChannelWriteEntry("decision", mapper=lambda update: update["decision"]),),
            ),
        },
        input_channels=[START],
        output_channels=["input", "output", "decision"],
        **options,
    )


RESULT = {"input": "x", "output": "processed x", "decision": "decided on processed x"}


def test_the_call_of_the_specification() -> None:
    """With `input_channels=[START]`, the input is the state itself, as the specification calls it."""
    assert example().invoke({"input": "x"}) == RESULT


async def test_the_call_of_the_specification_in_async_code() -> None:
    """The same by `ainvoke`; a mapping of the channel still is one."""
    assert await example().ainvoke({"input": "x"}) == RESULT
    assert await example().ainvoke({START: {"input": "x"}}) == RESULT


async def test_the_default_stream_mode() -> None:
    """A `Pregel` streams updates by default; `stream_mode=` of the graph and of a call change that."""
    assert example().stream_mode == "updates"
    names = [next(iter(chunk)) async for chunk in example().astream({"input": "x"})]
    assert names == [START, "process_input", "make_decision"]
    shown = [chunk async for chunk in example(stream_mode="values").astream({"input": "x"})]
    assert shown[-1]["decision"] == RESULT["decision"]


def test_the_protocol_names_the_stream_mode() -> None:
    """Code that is written for any graph can choose the stream mode."""
    assert "stream_mode" in signature(PregelProtocol.stream).parameters
    assert "stream_mode" in signature(PregelProtocol.astream).parameters

    def last(graph: PregelProtocol, value: Any) -> Any:
        chunks: Iterator[Any] = graph.stream(value, stream_mode="values")
        return list(chunks)[-1]

    assert (
        last(
            StateGraph(State).add_sequence([process_input, make_decision]).add_edge(START, "process_input").compile(),
            {"input": "x"},
        )
        == RESULT
    )


def test_the_parts_of_a_node() -> None:
    """`graph.nodes[...]` shows what was given for a node: its writers, policies, timeout, tags and metadata."""
    retry, cache = RetryPolicy(max_attempts=5), CachePolicy(ttl=60)

    async def slow(state: State) -> dict[str, Any]:
        return {"output": "slow"}

    builder = StateGraph(State).add_node(
        "slow", slow, retry_policy=retry, cache_policy=cache, timeout=2, metadata={"team": "a"}
    )
    graph = builder.add_node(make_decision).add_edge(START, "slow").add_edge("slow", "make_decision").compile()
    node: Any = graph.nodes["slow"]
    assert (node.retry_policy, node.cache_policy, node.metadata, node.tags) == ((retry,), cache, {"team": "a"}, ())
    assert node.timeout.run_timeout == 2
    update, edge = node.writers
    assert update({"output": "made"}) == [("output", "made")]
    assert edge == ChannelWriteEntry("branch:to:make_decision", None)
    plain = graph.nodes["make_decision"]
    assert (plain.retry_policy, plain.cache_policy, plain.timeout, len(plain.writers)) == (None, None, None, 1)
    assert len(graph.nodes[START].writers) == 2


def test_the_parts_of_a_node_of_channels() -> None:
    """A node of a `Pregel` shows its entries and its tags, so that it can be used for another graph."""
    entry = ChannelWriteEntry("b", mapper=str)
    given = NodeBuilder().subscribe_only("a").do(len).write_to(entry, c=1).meta("fast", team="a")
    channels: dict[str, Any] = {"a": EphemeralValue(str), "b": LastValue(str), "c": LastValue(int)}
    graph = Pregel(nodes={"n": given}, channels=channels, input_channels="a", output_channels=["b", "c"])
    node = graph.nodes["n"]
    assert node.writers == (entry, ChannelWriteEntry("c", 1))
    assert (node.tags, node.metadata) == (("fast",), {"team": "a"})
    again = Pregel(nodes={"n": node}, channels=channels, input_channels="a", output_channels=["b", "c"])
    assert again.invoke("four") == graph.invoke("four") == {"b": "4", "c": 1}
    silent = NodeBuilder().subscribe_only("a").build()
    assert (
        Pregel(nodes={"n": silent}, channels=channels, input_channels="a", output_channels="b").nodes["n"].writers == ()
    )
    stranger = (
        StateGraph(State).add_node(process_input).add_edge(START, "process_input").compile().nodes["process_input"]
    )
    with pytest.raises(GraphValidationError, match="ChannelWriteEntry"):
        Pregel(
            nodes={"n": stranger},
            channels={**channels, "branch:to:process_input": EphemeralValue(bool)},
            input_channels="a",
            output_channels="b",
        )


def test_sends_and_updates_unpack() -> None:
    """`Send` and `StateUpdate` unpack as the specification's tuples do; the timeout of a send is an attribute only."""
    node, arg = Send("worker", {"x": 1}, timeout=3)
    assert (node, arg, len(Send("worker", 1)), Send("worker", 1)[1]) == ("worker", {"x": 1}, 2, 1)
    values, as_node, task_id = StateUpdate({"x": 1}, END)
    assert (values, as_node, task_id) == ({"x": 1}, END, None)
    assert StateUpdate({"x": 1})._asdict() == {"values": {"x": 1}, "as_node": None, "task_id": None}
