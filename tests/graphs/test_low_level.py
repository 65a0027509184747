"""`Pregel` and `NodeBuilder`: nodes that subscribe to channels and write to channels."""

from __future__ import annotations

import operator
from typing import Any

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, NodeBuilder, Pregel, PregelNode, PregelProtocol
from pregel_async.channels import (
    AnyValue,
    BinaryOperatorAggregate,
    EphemeralValue,
    LastValue,
    NamedBarrierValue,
    Topic,
    UntrackedValue,
)
from pregel_async.errors import (
    EmptyInputError,
    GraphRecursionError,
    GraphValidationError,
    InvalidInputError,
    InvalidUpdateError,
    PregelError,
)
from pregel_async.node import PASSTHROUGH, ChannelWriteEntry

pytestmark = pytest.mark.anyio


def double(value: Any) -> Any:
    return value + value


def doubling() -> Pregel:
    """Return nodes that subscribe to channels."""
    node1 = NodeBuilder().subscribe_only("a").do(lambda x: x + x).write_to("b")
    return Pregel(
        nodes={"node1": node1},
        channels={"a": EphemeralValue(str), "b": EphemeralValue(str)},
        input_channels="a",
        output_channels="b",
        blocking=False,
    )


async def test_seed_003s_example() -> None:
    """NodeBuilder: subscribe to "a", process, and write to "b"."""
    assert await doubling().ainvoke("foo") == "foofoo"


def test_what_build_makes() -> None:
    """`build` returns a PregelNode with channels, triggers and writers."""
    node = NodeBuilder().subscribe_only("a").do(double).write_to("b").meta("tag", author="me").build()
    assert isinstance(node, PregelNode)
    assert (node.channels, node.triggers, node.writers) == ("a", ("a",), (ChannelWriteEntry("b"),))
    assert (node.action, node.tags, node.metadata) == (double, ("tag",), {"author": "me"})
    assert (node.trigger_channels, node.read_channels) == (["a"], ["a"])


def test_triggers_and_reads() -> None:
    """Triggers are the channels whose update schedules the node; channels are those that it reads."""
    node = NodeBuilder().subscribe_to("a", "b").subscribe_to("c", read=False).read_from("d").build()
    assert (node.trigger_channels, node.read_channels) == (["a", "b", "c"], ["a", "b", "d"])
    twice = NodeBuilder().subscribe_to("a", "a").subscribe_to("a").read_from("a").build()
    assert (twice.trigger_channels, twice.read_channels) == (["a"], ["a"])


def test_a_builder_can_be_built_twice_and_goes_on() -> None:
    """`build` leaves the builder as it is; a later change of the builder does not affect the built node."""
    builder = NodeBuilder().subscribe_to("a").write_to("b").meta("x")
    one = builder.build()
    other = builder.subscribe_to("c").write_to("d").meta("y", z=1).build()
    assert (one.triggers, len(one.writers), one.tags, one.metadata) == (("a",), 1, ("x",), {})
    assert (other.triggers, len(other.writers), other.tags, other.metadata) == (("a", "c"), 2, ("x", "y"), {"z": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: NodeBuilder().subscribe_only("a").subscribe_only("b"),
        lambda: NodeBuilder().subscribe_to("a").subscribe_only("b"),
        lambda: NodeBuilder().read_from("a").subscribe_only("b"),
        lambda: NodeBuilder().subscribe_only("a").subscribe_to("b"),
        lambda: NodeBuilder().subscribe_only("a").read_from("b"),
        lambda: NodeBuilder().subscribe_to("a", read=False).subscribe_only("b"),
        lambda: NodeBuilder().do(1),
        lambda: NodeBuilder().build(),
        lambda: NodeBuilder().read_from("a").build(),
    ],
)
def test_what_a_node_builder_refuses(wrong: Any) -> None:
    """Bad input: "Cannot subscribe to single channels when other channels are already subscribed to", and the like."""
    with pytest.raises(GraphValidationError):
        wrong()


async def test_a_mapping_or_a_bare_value() -> None:
    """`subscribe_only` gives the bare value, `subscribe_to` and `read_from` a mapping of the available channels."""
    got: dict[str, Any] = {}
    graph = Pregel(
        nodes={
            "only": NodeBuilder().subscribe_only("a").do(lambda value: got.update(only=value)),
            "map": NodeBuilder().subscribe_to("a", "never").read_from("b").do(lambda value: got.update(map=value)),
            "blind": NodeBuilder().subscribe_to("a", read=False).do(lambda value: got.update(blind=value)),
        },
        channels={"a": LastValue(int), "b": LastValue(int), "never": LastValue(int)},
        input_channels=["a", "b"],
        output_channels="a",
        blocking=False,
    )
    assert await graph.ainvoke({"a": 1, "b": 2}) == 1
    assert got == {"only": 1, "map": {"a": 1, "b": 2}, "blind": {}}


async def test_several_steps() -> None:
    """A second `do` adds a step that gets the result of the first; async and sync steps mix."""

    async def waited(value: Any) -> Any:
        return value + ["async"]

    for blocking in (True, False):
        node = NodeBuilder().subscribe_only("a").do(lambda x: [x]).do(waited).do(lambda x: [*x, "sync"]).write_to("b")
        graph = Pregel(
            nodes={"n": node},
            channels={"a": LastValue(), "b": LastValue()},
            input_channels="a",
            output_channels="b",
            blocking=blocking,
        )
        assert await graph.ainvoke(1) == [1, "async", "sync"]


async def test_a_node_without_an_action_passes_its_input_on() -> None:
    """`do` is optional: without it the node writes its input."""
    graph = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("a").write_to("b")},
        channels={"a": LastValue(), "b": LastValue()},
        input_channels="a",
        output_channels="b",
    )
    assert await graph.ainvoke([1]) == [1]


async def test_what_write_to_takes() -> None:
    """A name takes the result; a keyword takes its function's result, or a constant; entries set all options."""
    node = (
        NodeBuilder()
        .subscribe_only("a")
        .do(double)
        .write_to("plain", ChannelWriteEntry("entry", skip_none=True), mapped=lambda x: x * 10, constant=7)
        .write_to(
            ChannelWriteEntry("skipped", mapper=lambda x: None, skip_none=True),
            ChannelWriteEntry("none", mapper=lambda x: None),
            ChannelWriteEntry("given", value="v"),
        )
    )
    names = ["plain", "entry", "mapped", "constant", "skipped", "none", "given"]
    graph = Pregel(
        nodes={"n": node},
        channels={"a": LastValue(int), **{name: LastValue() for name in names}},
        input_channels="a",
        output_channels=names,
        blocking=False,
    )
    assert await graph.ainvoke(2) == {
        "plain": 4,
        "entry": 4,
        "mapped": 40,
        "constant": 7,
        "none": None,
        "given": "v",
    }
    assert repr(PASSTHROUGH) == "PASSTHROUGH"


async def test_a_chain_of_channels() -> None:
    """Raw Pregel has no start node: a chain of n nodes runs n supersteps, numbered from 0, and needs a limit of n."""
    nodes = {f"n{i}": NodeBuilder().subscribe_only(f"c{i}").do(lambda x: x + 1).write_to(f"c{i + 1}") for i in range(4)}
    graph = Pregel(
        nodes=nodes,
        channels={f"c{i}": EphemeralValue(int) for i in range(5)},
        input_channels="c0",
        output_channels="c4",
        checkpointer=InMemorySaver(),
        blocking=False,
    )
    config = {"configurable": {"thread_id": "t"}}
    assert await graph.ainvoke(0, {**config, "recursion_limit": 4}) == 4
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(0, {**config, "recursion_limit": 3})
    history = [snapshot async for snapshot in graph.aget_state_history("t")][::-1]
    assert [(s.metadata or {}).get("step") for s in history] == [-1, 0, 1, 2, 3, 4, 5, 6, 7]
    assert [(s.metadata or {}).get("source") for s in history] == ["input", *["loop"] * 4, "input", *["loop"] * 3]


async def test_a_loop_with_an_exit() -> None:
    """A node may write the channel that triggers it, and the run ends when it stops doing so."""
    graph = Pregel(
        nodes={
            "n": NodeBuilder()
            .subscribe_only("value")
            .do(lambda x: x + x if len(x) < 10 else None)
            .write_to(ChannelWriteEntry("value", skip_none=True))
        },
        channels={"value": EphemeralValue(str), "seen": Topic(str, accumulate=True)},
        input_channels="value",
        output_channels="value",
        stream_channels=["value"],
        stream_mode="values",
        blocking=False,
    )
    assert [chunk async for chunk in graph.astream("a")] == [{"value": "a" * n} for n in (2, 4, 8, 16)] + [{}]


async def test_the_values_of_a_pregel() -> None:
    """Raw Pregel streams the `values` of all channels, and shows nothing before the first superstep."""
    assert [chunk async for chunk in doubling().astream("x", stream_mode="values")] == [{"b": "xx"}]


async def test_every_kind_of_channel_together() -> None:
    """All kinds of channels work in one graph: folds, topics, barriers, ephemeral and untracked values."""
    graph = Pregel(
        nodes={
            "a": NodeBuilder()
            .subscribe_to("in")
            .do(lambda s: s["in"])
            .write_to("sum", "topic", any=1, both="a", free=object()),
            "b": NodeBuilder().subscribe_to("in").do(lambda s: s["in"]).write_to("sum", "topic", any=1, both="b"),
            "j": NodeBuilder().subscribe_to("both").read_from("sum", "topic", "any", "free").do(sorted).write_to("out"),
        },
        channels={
            "in": EphemeralValue(int),
            "sum": BinaryOperatorAggregate(int, operator.add),
            "topic": Topic(int),
            "any": AnyValue(int),
            "free": UntrackedValue(),
            "both": NamedBarrierValue(str, {"a", "b"}),
            "out": LastValue(list),
        },
        input_channels="in",
        output_channels=["out", "sum", "topic", "any"],
        blocking=False,
    )
    assert await graph.ainvoke(3) == {"out": ["any", "both", "free", "sum", "topic"], "sum": 6}


def two_inputs(**settings: Any) -> Pregel:
    return Pregel(
        nodes={"n": NodeBuilder().subscribe_to("a", "b").do(lambda s: dict(s)).write_to("out")},
        channels={"a": LastValue(int), "b": LastValue(int), "out": LastValue(dict)},
        input_channels=["a", "b"],
        output_channels="out",
        blocking=False,
        **settings,
    )


async def test_a_mapping_as_input() -> None:
    """With several input channels the input is a mapping of some or all of them."""
    assert await two_inputs().ainvoke({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert await two_inputs().ainvoke({"b": 2}) == {"b": 2}


@pytest.mark.parametrize("given", [1, [("a", 1)], "a", {"a": 1, "c": 2}])
async def test_inputs_that_are_refused(given: Any) -> None:
    """A non-mapping input to several channels, or an unknown key, raises a TypeError that is a PregelError."""
    with pytest.raises(InvalidInputError) as caught:
        await two_inputs().ainvoke(given)
    assert isinstance(caught.value, (TypeError, PregelError))


async def test_unknown_input_keys_can_be_ignored() -> None:
    """`unknown_keys="ignore"` restores LangGraph's silence."""
    assert await two_inputs(unknown_keys="ignore").ainvoke({"a": 1, "c": 2}) == {"a": 1}


async def test_none_is_no_input() -> None:
    """`None` on a graph without a thread raises, as there is nothing to resume."""
    with pytest.raises(EmptyInputError):
        await two_inputs().ainvoke(None)


async def test_an_output_that_was_never_written() -> None:
    """One empty output channel gives None; of several, only those with a value are present."""
    nodes = {"n": NodeBuilder().subscribe_only("a")}
    channels = {"a": EphemeralValue(int), "x": LastValue(int), "y": LastValue(int)}
    one = Pregel(nodes=nodes, channels=channels, input_channels="a", output_channels="x", blocking=False)
    several = Pregel(nodes=nodes, channels=channels, input_channels="a", output_channels=["x", "y"], blocking=False)
    assert await one.ainvoke(1) is None
    assert await several.ainvoke(1) == {}


async def test_two_writers_of_one_channel() -> None:
    """Bad input: two writes to a LastValue in one superstep raise an error."""
    graph = Pregel(
        nodes={name: NodeBuilder().subscribe_only("a").write_to("out") for name in "xy"},
        channels={"a": LastValue(int), "out": LastValue(int)},
        input_channels="a",
        output_channels="out",
    )
    with pytest.raises(InvalidUpdateError, match="'out'"):
        await graph.ainvoke(1)


def built(**changes: Any) -> Pregel:
    given: dict[str, Any] = {
        "nodes": {"n": NodeBuilder().subscribe_only("a").write_to("b")},
        "channels": {"a": LastValue(int), "b": LastValue(int)},
        "input_channels": "a",
        "output_channels": "b",
    }
    return Pregel(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nodes": {}}, "no nodes"),
        ({"nodes": {"n": NodeBuilder().subscribe_only("zz")}}, "'zz'"),
        ({"nodes": {"n": NodeBuilder().subscribe_to("a").read_from("zz")}}, "'zz'"),
        ({"nodes": {"n": NodeBuilder().subscribe_only("a").write_to("zz")}}, "'zz'"),
        ({"nodes": {END: NodeBuilder().subscribe_only("a")}}, "reserved"),
        ({"nodes": {"__pregel_pull": NodeBuilder().subscribe_only("a")}}, "reserved"),
        ({"nodes": {"": NodeBuilder().subscribe_only("a")}}, "reserved"),
        ({"nodes": {"n": NodeBuilder().subscribe_only("b")}}, "nothing would run"),
        ({"channels": {"a": LastValue(), "b": LastValue(), "__pregel_tasks": LastValue()}}, "reserved"),
        ({"channels": {"a": LastValue(), "b": LastValue(), "__pregel_x": LastValue()}}, "reserved"),
        ({"input_channels": "zz"}, "'zz'"),
        ({"input_channels": ["a", "zz"]}, "'zz'"),
        ({"output_channels": "zz"}, "'zz'"),
        ({"output_channels": ["b", "zz"]}, "'zz'"),
        ({"stream_channels": ["zz"]}, "'zz'"),
        ({"checkpointer": "a file"}, "checkpointer"),
        ({"checkpointer": 1}, "checkpointer"),
        ({"nodes": {"n": NodeBuilder().subscribe_only("a").write_to("__pregel_tasks")}}, "__pregel_tasks"),
        ({"stream_mode": "everything"}, "everything"),
        ({"unknown_keys": "drop"}, "unknown_keys"),
        ({"nodes": {"n": NodeBuilder()}}, "subscribes to no channel"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_what_is_known_before_a_run_is_said_before_a_run(changes: dict[str, Any], says: str) -> None:
    """Bad input: an unknown node or channel, a reserved name, or an input that no node reads is refused when the graph
    is built."""
    with pytest.raises(PregelError, match=says) as caught:
        built(**changes)
    assert isinstance(caught.value, (GraphValidationError, ValueError))


def test_what_is_taken_is_copied() -> None:
    """A graph shares no channel or node table with its caller."""
    nodes = {"n": NodeBuilder().subscribe_only("a").write_to("b")}
    channels = {"a": LastValue(int), "b": LastValue(int)}
    graph = built(nodes=nodes, channels=channels)
    nodes.clear()
    channels.clear()
    assert (list(graph.nodes), sorted(graph.channels)) == (["n"], ["a", "b"])


def test_a_pregel_satisfies_the_protocol() -> None:
    """PregelProtocol is the contract for all implementations."""
    assert isinstance(built(), PregelProtocol)
    assert not isinstance(object(), PregelProtocol)
