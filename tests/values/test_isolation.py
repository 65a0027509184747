"""P1 in the public API: nodes, routers, reducers, readers and callers that change values in place, for every schema."""

from __future__ import annotations

import operator
import warnings
from collections import deque
from copy import deepcopy
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, NodeBuilder, Pregel, Send, StateGraph
from pregel_async.channels import EphemeralValue, LastValue, Topic
from pregel_async.errors import InPlaceChangeWarning, InvalidUpdateError
from tests.helpers.schema_kinds import KINDS, DictState, ModelState, get, put

pytestmark = pytest.mark.anyio

each_kind = pytest.mark.parametrize("kind", KINDS)


def given() -> dict[str, Any]:
    return {"items": [{"n": 1}, [2]], "table": {"t": {"deep": [3]}}, "log": [{"l": 4}], "note": "x"}


def vandalise(state: Any) -> None:
    """Change every mutable part of a value in place."""
    get(state, "items")[0]["n"] = "changed"
    get(state, "items")[1].append("changed")
    get(state, "items").append("changed")
    for item in get(state, "items"):
        if isinstance(item, dict):
            item["all"] = "changed"
    get(state, "table")["t"]["deep"].append("changed")
    get(state, "table")["new"] = "changed"
    get(state, "log")[0]["l"] = "changed"
    get(state, "log").clear()
    put(state, "note", "changed")


def plain(state: Any) -> dict[str, Any]:
    return {key: deepcopy(get(state, key)) for key in ("items", "table", "log", "note")}


@each_kind
async def test_a_node_reaches_no_sibling(kind: Any) -> None:
    """P1: a node's change to its input affects no sibling of the superstep, whichever runs first. (In LangGraph,
    siblings see it.)"""
    seen: list[Any] = []
    turns = [anyio.Event(), anyio.Event()]

    async def vandal(state: Any) -> None:
        vandalise(state)
        turns[0].set()
        await turns[1].wait()
        vandalise(state) if get(state, "log") else None

    async def witness(state: Any) -> None:
        await turns[0].wait()
        seen.append(plain(state))
        turns[1].set()
        await anyio.lowlevel.checkpoint()
        seen.append(plain(state))

    made = StateGraph(kind).add_node(vandal).add_node(witness).add_edge(START, "vandal").add_edge(START, "witness")
    assert await made.compile().ainvoke(given()) == given()
    assert seen == [given(), given()]


@each_kind
async def test_a_node_reaches_no_channel(kind: Any) -> None:
    """P1: only a node's result counts: the next node, the result and the checkpoint do not see changes to its input."""
    seen: list[Any] = []
    made = (
        StateGraph(kind)
        .add_node("vandal", vandalise_and_return_nothing)
        .add_node("after", lambda s: seen.append(plain(s)))
    )
    graph = made.add_edge(START, "vandal").add_edge("vandal", "after").compile(InMemorySaver(), blocking=False)
    assert await graph.ainvoke(given(), "t") == given()
    assert seen == [given()]
    assert [state.values async for state in graph.aget_state_history("t")] == [given()] * 3 + [{"log": []}]


def vandalise_and_return_nothing(state: Any) -> None:
    vandalise(state)


@each_kind
async def test_only_the_returned_part_counts(kind: Any) -> None:
    """P1: if a node changes its input and returns a part of it, this part counts, with its changes."""

    def node(state: Any) -> dict[str, Any]:
        vandalise(state)
        return {"items": get(state, "items")}

    graph = StateGraph(kind).add_node("n", node).add_edge(START, "n").compile(blocking=False)
    result = await graph.ainvoke(given())
    assert result == {**given(), "items": [{"n": "changed", "all": "changed"}, [2, "changed"], "changed"]}


@each_kind
async def test_what_a_node_keeps_and_changes_later(kind: Any) -> None:
    """P1: later changes to an input or a result that a node keeps affect nothing."""
    kept: list[Any] = []

    def first(state: Any) -> dict[str, Any]:
        update = {"items": [{"mine": [1]}], "table": {"k": [1]}}
        kept.extend([state, update])
        return update

    def second(state: Any) -> None:
        vandalise(kept[0])
        kept[1]["items"][0]["mine"].append("changed")
        kept[1]["table"]["k"] = "changed"
        kept[1]["items"].clear()

    made = (
        StateGraph(kind)
        .add_sequence([first, second, ("third", lambda state: {"note": "end"})])
        .add_edge(START, "first")
    )
    graph = made.compile(InMemorySaver(), blocking=False)
    expected = {**given(), "items": [{"mine": [1]}], "table": {"k": [1]}, "note": "end"}
    assert await graph.ainvoke(given(), "t") == expected
    assert (await graph.aget_state("t")).values == expected


@each_kind
async def test_a_router_affects_no_other_object(kind: Any) -> None:
    """P1: a router's change in place affects neither the state, nor its node's writes, nor another router."""
    seen: list[Any] = []

    def a_vandal(state: Any) -> str:
        vandalise(state)
        return END

    def b_witness(state: Any) -> str:
        seen.append(plain(state))
        return "after"

    made = StateGraph(kind).add_node("n", lambda state: {"note": "n", "items": [{"n": 1}, [2]]})
    made.add_node("after", lambda state: seen.append(plain(state))).add_edge(START, "n")
    made.add_conditional_edges("n", a_vandal).add_conditional_edges("n", b_witness)
    graph = made.compile(blocking=False)
    assert await graph.ainvoke(given()) == {**given(), "note": "n"}
    assert seen == [{**given(), "note": "n"}] * 2


@each_kind
async def test_an_argument_shared_by_several_sends(kind: Any) -> None:
    """P1: sends that share one argument, or the state, each get a copy."""
    seen: list[Any] = []
    shared: dict[str, Any] = {"deep": [[1]]}

    def worker(arg: Any) -> None:
        seen.append(deepcopy(arg))
        arg["deep"][0].append("changed")
        arg["deep"].append("changed")

    def fan_out(state: Any) -> list[Send]:
        return [Send("worker", shared), Send("worker", shared), Send("worker", {"deep": [get(state, "items")[1]]})]

    made = StateGraph(kind).add_node(worker).add_conditional_edges(START, fan_out)
    assert await made.compile(blocking=False).ainvoke(given()) == given()
    assert sorted(seen, key=repr) == [{"deep": [[1]]}, {"deep": [[1]]}, {"deep": [[2]]}]
    assert shared == {"deep": [[1]]}


async def test_an_argument_that_is_changed_after_it_was_sent() -> None:
    """P1: a send's argument counts as it was when the router returned."""
    sent: dict[str, Any] = {"n": [1]}
    seen: list[Any] = []

    def late_change(state: Any) -> None:
        sent["n"].append("changed")

    made = StateGraph(DictState).add_node("s", lambda state: None).add_node("w", lambda arg: seen.append(deepcopy(arg)))
    made.add_node("a", late_change).add_edge(START, "s").add_conditional_edges(
        "s", lambda state: [Send("w", sent), "a"]
    )
    await made.compile(blocking=False).ainvoke({})
    assert seen == [{"n": [1]}]


@each_kind
@pytest.mark.parametrize("as_instance", [False, True])
async def test_the_callers_input_stays_as_it_is(kind: Any, as_instance: bool) -> None:
    """P1: no node changes the caller's input, and a caller's change to it does not affect the run."""
    mine: Any = kind(**given()) if as_instance else given()

    def meddle(state: Any) -> None:
        get(mine, "items")[0]["n"] = "changed by the caller"
        get(mine, "table")["t"]["deep"].clear()

    seen: list[Any] = []
    made = StateGraph(kind).add_sequence(
        [("v", vandalise_and_return_nothing), meddle, ("w", lambda s: seen.append(plain(s)))]
    )
    graph = made.add_edge(START, "v").compile(blocking=False)
    assert await graph.ainvoke(mine) == given()
    assert seen == [given()]
    expected = given()
    expected["items"][0]["n"] = "changed by the caller"
    expected["table"]["t"]["deep"].clear()
    assert plain(mine) == expected


@each_kind
async def test_the_result_is_the_callers(kind: Any) -> None:
    """P1: a caller's change to a result affects neither the thread nor another result."""
    made = StateGraph(kind).add_node("n", lambda state: None).add_edge(START, "n")
    graph = made.compile(InMemorySaver(), blocking=False)
    result = await graph.ainvoke(given(), "t")
    vandalise(result)
    assert await graph.ainvoke(None, "t") == given()
    other = await graph.ainvoke(None, "t")
    vandalise(other)
    assert (await graph.aget_state("t")).values == given()


@each_kind
async def test_chunks_are_the_readers(kind: Any) -> None:
    """P1: a reader's change to a chunk of any mode affects no node, no other chunk and not the result."""

    def node(state: Any) -> dict[str, Any]:
        return {"items": [{"n": 1}, [2]], "table": {"t": {"deep": [3]}}}

    seen: list[Any] = []
    made = (
        StateGraph(kind)
        .add_sequence([("a", node), ("b", node), ("w", lambda s: seen.append(plain(s)))])
        .add_edge(START, "a")
    )
    graph = made.compile(InMemorySaver(), blocking=False)
    async with graph.astream(given(), "t", stream_mode=["updates", "values", "tasks"]) as chunks:
        async for mode, chunk in chunks:
            if mode == "values":
                assert chunk == given()
                vandalise(chunk)
            else:
                update = chunk.get("result") if mode == "tasks" else next(iter(chunk.values()))
                if update:
                    assert update == {"items": [{"n": 1}, [2]], "table": {"t": {"deep": [3]}}}
                    update["items"][0]["n"] = "changed"
                    update["table"]["t"]["deep"].append("changed")
                if mode == "tasks" and "input" in chunk:
                    vandalise(chunk["input"])
    assert seen == [given()]
    assert (await graph.aget_state("t")).values == given()


@each_kind
async def test_snapshots_are_the_readers(kind: Any) -> None:
    """P1: a reader's change to a snapshot affects neither the thread nor another snapshot."""
    made = StateGraph(kind).add_node("n", lambda state: {"note": "n"}).add_edge(START, "n")
    graph = made.compile(InMemorySaver(), blocking=False)
    await graph.ainvoke(given(), "t")
    for _ in range(2):
        state = await graph.aget_state("t")
        assert state.values == {**given(), "note": "n"}
        vandalise(state.values)
        state.config["configurable"]["thread_id"] = "changed"
        assert state.metadata is not None
        state.metadata["step"] = 99
        async for old in graph.aget_state_history("t"):
            for task in old.tasks:
                if task.result:
                    task.result["note"] = "changed"
            if old.values.get("note"):
                vandalise(old.values)
    results = {task.name: task.result async for old in graph.aget_state_history("t") for task in old.tasks}
    assert results["n"] == {"note": "n"}


async def test_concurrent_runs_do_not_meet() -> None:
    """P13, P1: concurrent runs of one compiled graph share nothing."""

    async def node(state: Any) -> dict[str, Any]:
        before = list(state["items"])
        vandalise(state)
        await anyio.lowlevel.checkpoint()
        return {"items": [*before, "n"], "log": [len(before)]}

    graph = StateGraph(DictState).add_sequence([("a", node), ("b", node)]).add_edge(START, "a").compile()
    results = await graph.abatch([given() for _ in range(5)])
    assert [len(result["items"]) for result in results] == [4] * 5
    assert all(result["log"] == [{"l": 4}, 2, 3] for result in results)


def extend(current: list[Any], update: list[Any]) -> list[Any]:
    current.extend(update)
    return current


def merge(current: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    for key, value in update.items():
        current.setdefault(key, []).extend(value)
    return current


class InPlace(TypedDict, total=False):
    listed: Annotated[list[Any], extend]
    merged: Annotated[dict[str, list[Any]], merge]
    added: Annotated[list[Any], operator.iadd]


async def test_reducers_that_change_in_place() -> None:
    """P1: a reducer may change its first argument in place without changing earlier values, chunks or checkpoints."""
    update = {"listed": [[1]], "merged": {"k": [1]}, "added": [[1]]}
    made = StateGraph(InPlace).add_sequence([(name, lambda state: update) for name in "abc"]).add_edge(START, "a")
    graph = made.compile(InMemorySaver(), blocking=False)
    chunks = [chunk async for chunk in graph.astream(update, "t", stream_mode="values")]
    expected = [{"listed": [[1]] * n, "merged": {"k": [1] * n}, "added": [[1]] * n} for n in (1, 2, 3, 4)]
    assert chunks == expected
    assert [state.values async for state in graph.aget_state_history("t")][:4] == expected[::-1]
    assert update == {"listed": [[1]], "merged": {"k": [1]}, "added": [[1]]}


class Kinds(TypedDict, total=False):
    seen: set[int]
    queue: deque[Any]
    pair: tuple[list[int], int]
    model: ModelState
    text: bytearray


async def test_other_containers() -> None:
    """P1: sets, deques, tuples with lists in them, models and bytearrays are isolated as lists and dicts are."""
    made_of: dict[str, Any] = {
        "seen": {1},
        "queue": deque([[1]]),
        "pair": ([1], 2),
        "model": ModelState(items=[[1]]),
        "text": bytearray(b"a"),
    }

    def vandal(state: Any) -> None:
        state["seen"].add(2)
        state["queue"][0].append(2)
        state["queue"].append(3)
        state["pair"][0].append(2)
        state["model"].items[0].append(2)
        state["model"].note = "changed"
        state["text"].append(2)

    made = StateGraph(Kinds).add_node(vandal).add_node("witness", lambda state: None).add_edge(START, "vandal")
    graph = made.add_edge("vandal", "witness").compile(blocking=False)
    before = deepcopy(made_of)
    assert await graph.ainvoke(made_of) == before
    assert made_of == before


async def test_the_low_level_is_isolated_too() -> None:
    """P1: raw Pregel isolates bare values, topics and ephemeral channels that several nodes read or that are written to
    several channels."""
    seen: list[Any] = []

    def change(value: Any) -> Any:
        seen.append(deepcopy(value))
        value.append("changed")
        return value

    graph = Pregel(
        nodes={
            "a": NodeBuilder().subscribe_only("in").do(change).write_to("x", "y", "topic"),
            "b": NodeBuilder().subscribe_only("in").do(change),
            "cx": NodeBuilder().subscribe_only("x").do(change),
            "cy": NodeBuilder().subscribe_only("y").do(change),
        },
        channels={"in": EphemeralValue(list), "x": LastValue(list), "y": LastValue(list), "topic": Topic(list)},
        input_channels="in",
        output_channels=["x", "y", "topic"],
        blocking=False,
    )
    mine: list[Any] = [1]
    assert await graph.ainvoke(mine) == {"x": [1, "changed"], "y": [1, "changed"]}
    assert seen == [[1], [1], [1, "changed"], [1, "changed"]]
    assert mine == [1]


@each_kind
async def test_the_debug_mode_names_a_node_that_changes_its_input(kind: Any) -> None:
    """P1: the debug mode names the node that changed an input in place."""
    made = StateGraph(kind).add_node("good", lambda state: {"note": get(state, "note") + "!"})
    made.add_node("bad", lambda state: get(state, "table")["t"]["deep"].append(1)).add_edge(START, "good")
    graph = made.add_edge("good", "bad").compile(blocking=False, debug=True)
    with pytest.warns(InPlaceChangeWarning) as caught:
        await graph.ainvoke(given())
    (warning,) = caught
    assert "'bad'" in str(warning.message)
    assert "'table'" in str(warning.message)


@each_kind
async def test_the_debug_mode_ignores_nodes_that_only_read(kind: Any) -> None:
    """P1: the debug mode does not name a node that only reads or changes its own copies; without the mode no node is
    named."""

    def reads(state: Any) -> dict[str, Any]:
        items = [*get(state, "items"), 1]
        items.append(2)
        table = {**get(state, "table"), "k": 1}
        for value in table.values():
            repr(value)
        return {"items": items, "table": table}

    for debug, node in ((True, reads), (False, vandalise_and_return_nothing)):
        made = StateGraph(kind).add_node("n", node).add_edge(START, "n")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await made.compile(blocking=False, debug=debug).ainvoke(given())


async def test_a_cycle_in_a_send() -> None:
    """A value that contains itself cannot be sent; the error names the node."""

    def router(state: Any) -> Send:
        loop: dict[str, Any] = {}
        loop["self"] = loop
        return Send("n", loop)

    made = (
        StateGraph(DictState).add_node("n", lambda state: None).add_edge(START, "n").add_conditional_edges("n", router)
    )
    with pytest.raises(InvalidUpdateError, match="contains itself") as caught:
        await made.compile(blocking=False).ainvoke({})
    assert any("'n'" in note for note in caught.value.__notes__)


async def test_an_input_that_is_passed_on_whole() -> None:
    """P1, P2: a node's whole input in an update, a send or a chunk keeps the values of that moment; later supersteps do
    not change it."""

    class Snapshots(TypedDict, total=False):
        number: int
        before: Any

    def keep(state: Any) -> Any:
        return {"before": state, "number": state["number"] + 1}

    def more(state: Any) -> Any:
        return {"number": state["number"] + 1}

    builder = StateGraph(Snapshots).add_node(keep).add_node(more).add_edge(START, "keep").add_edge("keep", "more")
    builder.add_conditional_edges("more", lambda state: Send("sent", state), ["sent"])
    builder.add_node("sent", lambda state: {"number": -state["number"]})
    builder.add_node("last", lambda state: {"number": 100}).add_edge("sent", "last")
    result = await builder.compile(InMemorySaver()).ainvoke({"number": 1}, "t")
    assert result == {"number": 100, "before": {"number": 1}}


async def test_an_input_that_is_kept_for_later() -> None:
    """P1: a change to a node's input after its superstep, or after the run, affects neither the state nor the input of
    later runs."""
    kept: list[Any] = []

    async def node(state: Any) -> dict[str, Any]:
        kept.append(state)
        return {"log": ["x"]}

    graph = StateGraph(DictState).add_sequence([("a", node), ("b", node)]).add_edge(START, "a").compile(InMemorySaver())
    first = await graph.ainvoke({"items": [[1]]}, "t")
    for state in kept:
        state["log"].append("changed")
        state["items"][0].append("changed")
    assert await graph.ainvoke({"items": [[1]]}, "t2") == first == {"items": [[1]], "log": ["x", "x"]}
    assert [snapshot.values["log"] async for snapshot in graph.aget_state_history("t")] == [["x", "x"], ["x"], [], []]
