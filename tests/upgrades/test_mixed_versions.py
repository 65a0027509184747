"""Open supersteps that two versions of a graph have run in part."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, Command
from pregel_async.errors import GraphChangedError, GraphVersionError
from pregel_async.types import INPUT, REMOVED, Retyped, StoredState
from pregel_async.versions import Versions
from tests.upgrades.graphs import Stopped, asks, built, failed, failing, of, ran, says, states

pytestmark = pytest.mark.anyio


class Order(TypedDict, total=False):
    net: int
    log: Annotated[list[str], operator.add]


def in_cents(old: StoredState) -> dict[str, Any]:
    return {"net": 100 * old["net"]} if "net" in old else {}


def order(saver: Any, net: int, schema: Any = Order, **options: Any) -> Any:
    """A node that writes a net amount, next to one that asks."""
    nodes = {"a": says("a", {"net": net}), "b": asks("b")}
    return built(schema, nodes, [(START, "a"), (START, "b")], saver, **options)


def new_order(saver: Any, **options: Any) -> Any:
    return order(saver, 300, **{"version": 2, "migrations": {2: in_cents}, **options})


async def test_records_of_a_greater_version(saver: BaseCheckpointSaver) -> None:
    """P15: version 1 does not run a superstep of which version 2 has run a part, whose result is in other terms."""
    one, two = order(saver, 3), new_order(saver)
    await failed(one, "a", given={"net": 7})
    await two.ainvoke(None, "t")  # a finishes, and b asks
    ran.clear()
    assert of(await one.aget_state("t")) == [("version", "StateGraph", "all")]
    for value in (None, {}, Command(resume="yes"), Command(update={"net": 1})):
        with pytest.raises(GraphVersionError, match="was stored by version 2 .*this is version 1"):
            await one.ainvoke(value, "t")
    with pytest.raises(GraphVersionError):
        await one.aupdate_state("t", {"net": 1}, as_node="b")
    assert ran == []
    versions = Versions({1: one, 2: two}, pin="open")
    assert await versions.version_of("t") == 2
    assert await versions.ainvoke(Command(resume="yes"), "t") == {"net": 300, "log": ["b: yes"]}
    assert (await two.aget_state("t")).values["net"] == 300
    past = (await states(one))[1]  # its superstep has closed: a fork runs it again, with no results of version 2
    assert (past.values, past.changed) == ({"net": 7, "log": []}, ())
    assert (await one.ainvoke(None, past.config))["net"] == 7


@pytest.mark.parametrize("way", ["update", "by hand", "question"])
async def test_each_kind_of_record_has_the_version(saver: BaseCheckpointSaver, way: str) -> None:
    """P15: so it is after an update of the open superstep, an update as one of its nodes, and a question."""
    one, two = order(saver, 3), new_order(saver)
    await failed(one, "a", "b", given={"log": []})
    failing.add("a")
    failing.update([] if way == "question" else ["b"])
    try:
        if way == "by hand":
            await two.aupdate_state("t", {"log": ["two"]}, as_node="b")
        else:
            with pytest.raises((Stopped, ExceptionGroup)):
                await two.ainvoke(
                    Command(update={"log": ["two"]}) if way == "update" else None, "t", on_failure="finish"
                )
    finally:
        failing.clear()
    with pytest.raises(GraphVersionError):
        await one.ainvoke(None, "t")
    await two.ainvoke(None, "t")


async def test_a_failure_of_a_greater_version(saver: BaseCheckpointSaver) -> None:
    """P15: a failure holds nothing in terms of the code: version 1 tries again after one of version 2."""
    one, two = (built(Order, {"a": says("a", {"net": 3})}, [(START, "a")], saver, version=each) for each in (1, 2))
    await failed(one, "a", given={"net": 7})
    await failed(two, "a")
    assert (await one.aget_state("t")).changed == ()
    assert (await one.ainvoke(None, "t"))["net"] == 3


async def test_a_recorded_write_to_a_migrated_key(saver: BaseCheckpointSaver) -> None:
    """P15: what version 1 has recorded for a key that a migration changes is refused: the migration changes the state
    alone. The version that recorded it ends the superstep, or a new input discards it."""
    one, two = order(saver, 3), new_order(saver)
    await one.ainvoke({"net": 7}, "t")
    ran.clear()
    state = await two.aget_state("t")
    assert (state.values["net"], of(state)) == (700, [("key", "net", "resume")])
    with pytest.raises(GraphChangedError, match=r"'a' has written to key 'net', which a migration changes.*Versions"):
        await two.ainvoke(Command(resume="yes"), "t")
    assert ran == []
    await saver.acopy_thread("t", "input")
    assert (await two.ainvoke({}, "input"))["net"] == 700
    done = await Versions({1: one, 2: two}, pin="open").ainvoke(Command(resume="yes"), "t")
    assert done["net"] == 3 and (await two.aget_state("t")).values["net"] == 300


@pytest.mark.parametrize("way", ["record", "update", "input"])
async def test_a_recorded_value_that_the_state_does_not_have(saver: BaseCheckpointSaver, way: str) -> None:
    """P15: so it is if the key has no value in the state, on which the migration works."""
    one, two = order(saver, 3 if way == "record" else 0), new_order(saver)
    if way == "record":
        await one.ainvoke({"log": []}, "t")
    elif way == "update":
        await failed(one, "a", given={"log": []})
        await failed(one, "a", given=Command(update={"net": 3}))
    else:
        await one.aupdate_state("t", {"net": 3}, as_node=INPUT)
    ran.clear()
    blocks = "all" if way == "update" else "resume"  # an update is a part of the state, which an input does not discard
    assert of(await two.aget_state("t")) == [("key", "net", blocks)]
    for value in (None, {}) if way == "update" else (None,):
        with pytest.raises(GraphChangedError, match=r"key 'net', which a migration changes.*Versions"):
            await two.ainvoke(value, "t")
    assert ran == []
    await failed(two, "a", given={"net": 500} if way == "update" else {})
    assert (await two.aget_state("t")).values.get("net") == (500 if way == "update" else None)


async def test_recorded_writes_with_a_rule(saver: BaseCheckpointSaver) -> None:
    """P15: a recorded write to a key that a migration changes follows the key's own rule, if it has one."""

    class Text(TypedDict, total=False):
        net: Annotated[str, Retyped(str, update=lambda net: f"{net}00")]
        log: Annotated[list[str], operator.add]

    class Gone(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    def to_2(old: StoredState) -> dict[str, Any]:
        return {"net": f"{old['net']}00"}

    await order(saver, 3).ainvoke({"net": 7}, "t")
    await saver.acopy_thread("t", "removed")
    text = new_order(saver, schema=Text, migrations={2: to_2})
    assert (await text.aget_state("t")).values["net"] == "700"
    assert (await text.ainvoke(Command(resume="yes"), "t"))["net"] == "300"
    takes_away: Any = {2: lambda old: {"net": REMOVED}}
    undeclared = new_order(saver, schema=Gone, migrations=takes_away)
    assert of(await undeclared.aget_state("removed")) == [("key", "net", "resume")]
    gone = new_order(saver, schema=Gone, migrations=takes_away, removed=["net"])
    assert await gone.ainvoke(Command(resume="yes"), "removed") == {"log": ["b: yes"]}
