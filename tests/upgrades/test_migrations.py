"""Migrations of whole states, and what a graph does with keys and states that it does not know."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async import START, Command, StateGraph, StateUpdate, interrupt
from pregel_async.errors import (
    GraphChangedError,
    GraphValidationError,
    GraphVersionError,
    KeptStateWarning,
    MigrationError,
    UnknownStoredKeyWarning,
    UnknownTypeError,
)
from pregel_async.types import REMOVED, Added, Renamed, StoredState
from pregel_async.versions import Versions
from tests.upgrades.graphs import asks, built, failed, of, ran, says, states

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("error::pregel_async.errors.UnknownStoredKeyWarning")]


class One(TypedDict, total=False):
    net: int
    tax: int
    log: Annotated[list[str], operator.add]


class Three(TypedDict, total=False):
    total: int
    lines: Annotated[list[str], Renamed("log"), operator.add]
    kind: Annotated[str, Added("order")]


calls: list[tuple[int, tuple[str, ...], list[str]]] = []


def to_2(old: StoredState) -> Mapping[str, Any]:
    calls.append((old.version, old.next, sorted(old)))
    return {"sum": old["net"] + old["tax"], "tax": REMOVED} if "net" in old else {}


def to_3(old: StoredState) -> Mapping[str, Any]:
    calls.append((old.version, old.next, sorted(old)))
    assert old.thread_id == "t" and "tax" not in old
    return {"total": old["sum"], "sum": REMOVED, "net": REMOVED} if "sum" in old else {}


def one(saver: Any, **options: Any) -> Any:
    return built(One, {"a": says("a"), "b": asks("b")}, [(START, "a"), ("a", "b")], saver, **options)


def three(saver: Any, schema: Any = Three, **options: Any) -> Any:
    def ask(state: Any) -> Any:
        return {"lines": asks("b")(state)["log"]}

    nodes = {"a": says("a", {"lines": ["a"]}), "b": ask}
    declared: dict[str, Any] = {"version": 3, "migrations": {3: to_3, 2: to_2}}
    return built(schema, nodes, [(START, "a"), ("a", "b")], saver, **{**declared, **options})


async def test_a_state_goes_through_all_migrations(saver: BaseCheckpointSaver) -> None:
    """P15: a state of version 1 is converted by migrations[2], then by migrations[3], for each read, run and old
    checkpoint; the next superstep stores the result and the version."""
    await one(saver).ainvoke({"net": 10, "tax": 2}, "t")
    before = await saver.aget_tuple("t")
    new, expected = three(saver), {"total": 12, "lines": ["a"], "kind": "order"}
    calls.clear()
    state = await new.aget_state("t")
    assert (state.values, state.unknown, state.changed, state.next) == (expected, {}, (), ("b",))
    assert calls == [
        (1, ("b",), ["kind", "lines", "net", "tax"]),
        (2, ("b",), ["kind", "lines", "net", "sum"]),
    ]
    assert [each.values.get("total") for each in await states(new)] == [12, 12, None]
    assert await saver.aget_tuple("t") == before  # reading stores nothing
    fork = state.config
    assert await new.ainvoke(Command(resume="yes"), "t") == {**expected, "lines": ["a", "b: yes"]}
    calls.clear()
    state = await new.aget_state("t")
    assert (state.values["total"], state.metadata["__version__"], calls) == (12, 3, [])
    await new.aupdate_state("t", {"total": 13}, as_node="b")
    assert (await new.aget_state("t")).values["total"] == 13
    stored = await saver.aget_tuple("t")
    assert stored is not None and {*stored.checkpoint["channel_versions"]} == {"total", "lines", "kind"}
    await new.ainvoke(None, fork)  # a copy of the old checkpoint has its version, and is converted again
    assert (await new.ainvoke(Command(resume="no"), "t"))["total"] == 12
    with pytest.raises(GraphVersionError):
        await one(saver).ainvoke({}, "t")


async def test_inputs_edits_and_versions_in_between(saver: BaseCheckpointSaver) -> None:
    """P15: a new input and an edit store the converted state; a state of version 2 is converted by migrations[3] alone."""
    for thread, change in (("input", "input"), ("edit", "edit")):
        await one(saver).ainvoke({"net": 10, "tax": 2}, "t")
        new = three(saver)
        if change == "input":
            assert (await new.ainvoke({}, "t"))["total"] == 12
        else:
            await new.aupdate_state("t", {"kind": "offer"}, as_node="b")
        assert (await new.aget_state("t")).values["total"] == 12 and thread
        await saver.adelete_thread("t")

    class Two(TypedDict, total=False):
        net: int
        sum: int
        log: Annotated[list[str], operator.add]

    await built(Two, {"a": says("a")}, [(START, "a")], saver, version=2).ainvoke({"sum": 7}, "t")
    calls.clear()
    assert (await three(saver).aget_state("t")).values["total"] == 7
    assert [version for version, _, _ in calls] == [2]


@dataclass
class Point:
    x: int


async def test_stored_states() -> None:
    """A migration decodes only what it looks at; `plain` gives fields of objects whose classes are gone."""

    class Points(TypedDict, total=False):
        p: Point
        n: int

    seen: list[Any] = []

    def to_two(old: StoredState) -> Mapping[str, Any]:
        seen.extend([old.plain("p").fields["x"], old["n"], len(old), [*old], repr(old), old.get("none")])
        old["m"].append(4)  # a copy
        return {"n": old.plain("p").fields["x"], "p": REMOVED}

    class Plain(TypedDict, total=False):
        n: int
        m: Annotated[list[int], Added([3])]

    saver = InMemorySaver(codec=Codec())
    await built(Points, {"a": says("a", {})}, [(START, "a")], saver).ainvoke({"p": Point(3), "n": 1}, "t")
    new = built(Plain, {"a": says("a", {})}, [(START, "a")], saver, version=2, migrations={2: to_two})
    assert await new.ainvoke({}, "t") == {"n": 3, "m": [3]}
    steps = {2: lambda old: {"m": [1]}, 3: lambda old: {"n": old["m"].append(2) or len(old["m"])}}
    again = built(Plain, {"a": says("a", {})}, [(START, "a")], saver, version=3, migrations=steps)
    assert (await again.aget_state("t")).values == {"n": 1, "m": [3]}  # of version 2, so that steps[2] does not apply
    await built(Points, {"a": says("a", {})}, [(START, "a")], saver).ainvoke({"n": 1}, "u")
    assert (await again.aget_state("u")).values == {"n": 1, "m": [1]}
    assert seen == [3, 1, 3, ["n", "p", "m"], "<StoredState of thread 't', version 1: n, p, m>", None]


async def test_stored_states_without_classes() -> None:
    """A migration that reads with `plain` gets fields, also where the class is there: so it does not depend on the class,
    which later code may change."""

    class Points(TypedDict, total=False):
        p: Point

    saver, seen = InMemorySaver(), list[Any]()
    await built(Points, {"a": says("a", {})}, [(START, "a")], saver).ainvoke({"p": Point(3)}, "t")

    def to_two(old: StoredState) -> Mapping[str, Any]:
        seen.extend([old["p"], old.plain("p").fields])
        return {}

    new = built(Points, {"a": says("a", {})}, [(START, "a")], saver, version=2, migrations={2: to_two})
    await new.aget_state("t")
    assert seen == [Point(3), {"x": 3}]


async def test_a_copy_after_an_edit_has_the_present_version(saver: BaseCheckpointSaver) -> None:
    """P15: a copy has the version of what it copies, which an update of the same call may have made."""
    await one(saver).ainvoke({"net": 10, "tax": 2}, "t")
    new = three(saver, migrations={2: to_2, 3: lambda old: {**to_3(old), "kind": old["kind"] + "!"}})
    await new.abulk_update_state("t", [[StateUpdate({"total": 13}, "b")], [StateUpdate(None, "__copy__")]])
    state = await new.aget_state("t")
    assert (state.metadata["source"], state.metadata["__version__"]) == ("fork", 3)
    assert (state.values["total"], state.values["kind"]) == (13, "order!")
    assert (await new.ainvoke({}, "t"))["kind"] == "order!"
    await new.aupdate_state((await states(new))[-2].config, None, as_node="__copy__")
    state = await new.aget_state("t")
    assert "__version__" not in state.metadata and state.values["kind"] == "order!"


async def test_damage_is_no_failure_of_a_migration() -> None:
    """P15: a migration that looks at a damaged value, or at one of a class that is gone, raises that error."""

    class Points(TypedDict, total=False):
        p: Point

    class Plain(TypedDict, total=False):
        n: int

    saver = InMemorySaver(codec=Codec())
    await built(Points, {"a": says("a", {})}, [(START, "a")], saver).ainvoke({"p": Point(3)}, "t")
    look = {2: lambda old: {"n": old["p"].x, "p": REMOVED} if "p" in old else {}}
    new = built(Plain, {"a": says("a", {})}, [(START, "a")], saver, version=2, migrations=look)
    with pytest.raises(UnknownTypeError):
        await new.aget_state("t")


@pytest.mark.parametrize(
    ("migration", "message"),
    [
        (
            lambda old: {"total": old["none"]},
            r"migrations\[3\] of graph 'StateGraph' failed on thread 't'.*KeyError: 'none'",
        ),
        (lambda old: 5, "TypeError: it returns a mapping of the keys that change, and returned 5"),
        (lambda old: {"else": 5}, "it sets 'else', and the graph has kind, lines, total"),
    ],
)
async def test_a_migration_that_fails(saver: BaseCheckpointSaver, migration: Any, message: str) -> None:
    """P15: a migration that raises, or returns what the graph cannot take, fails runs, and nothing is stored. Reads show
    the state as it is stored, with the failure."""
    await one(saver).ainvoke({"net": 10, "tax": 2}, "t")
    new = three(saver, migrations={3: migration})
    ran.clear()
    for call in (lambda: new.ainvoke(None, "t"), lambda: new.ainvoke({}, "t")):
        with pytest.raises(MigrationError, match=message) as caught:
            await call()
        assert (caught.value.rule, caught.value.thread_id) == ("migrations[3]", "t") and caught.value.__cause__
    assert ran == [] and (await one(saver).aget_state("t")).values["net"] == 10
    for state in [await new.aget_state("t"), *await states(new)]:
        assert ("key", "migrations[3]", "all") in of(state)
    state = await new.aget_state("t")
    assert (state.values, state.unknown) == ({"lines": []}, {"net": 10, "tax": 2, "log": ["a"]})
    assert (state.next, [task.name for task in state.tasks]) == (("b",), ["b"]) and state.interrupts


class Numbers(TypedDict, total=False):
    log: Annotated[list[int], operator.add]


async def test_a_converted_list_is_stored_before_it_grows(saver: BaseCheckpointSaver) -> None:
    """P15 (U4): the first superstep after a migration appends to what the migration made, and not to the stored list."""

    def graph(**options: Any) -> Any:
        return built(Numbers, {"a": (lambda state: {"log": [interrupt("n?")]}, {})}, [(START, "a")], saver, **options)

    def doubled(old: StoredState) -> Mapping[str, Any]:
        return {"log": [2 * each for each in old["log"]]}

    await graph().ainvoke({"log": [*range(1000)]}, "t")
    new = graph(version=2, migrations={2: doubled})
    done = await new.ainvoke(Command(resume=5), "t")
    assert done["log"] == [*range(0, 2000, 2), 5] == (await new.aget_state("t")).values["log"]


async def test_what_a_migration_makes_is_checked(saver: BaseCheckpointSaver) -> None:
    """P15: a value of a migration that does not fit its key is refused."""
    await one(saver).ainvoke({"net": 10, "tax": 2}, "t")
    new = three(saver, migrations={3: lambda old: {"total": "ten", "net": REMOVED, "tax": REMOVED}})
    assert of(await new.aget_state("t")) == [("key", "total", "all")]
    with pytest.raises(
        GraphChangedError, match="'total' gets a value of type str from a migration, which does not fit int"
    ):
        await new.ainvoke(None, "t")


async def test_a_kept_graph_has_its_own_version(saver: BaseCheckpointSaver) -> None:
    """P15: the state of a kept graph is converted by that graph's migrations, also before its node is renamed."""

    def graph(schema: Any, name: str, key: str, was: Any = (), **options: Any) -> Any:
        def add(state: Any) -> Any:
            return {key: state.get(key, 0) + 1}

        inner = built(schema, {"add": add}, [(START, "add")], True, **options)

        async def run(state: Any) -> Any:
            return {"log": [str((await inner.ainvoke({}))[key])]}

        return built(One, {name: (run, {"was": was})}, [(START, name)], saver)

    class Count(TypedDict, total=False):
        count: int

    class Tens(TypedDict, total=False):
        tens: int

    def to_two(old: StoredState) -> Mapping[str, Any]:
        return {"tens": 10 * old["count"], "count": REMOVED} if "count" in old else {}

    old, new = graph(Count, "old", "count"), graph(Tens, "new", "tens", "old", version=2, migrations={2: to_two})
    await old.ainvoke({}, "t")
    for expected in (["1", "11"], ["1", "11", "12"]):
        assert (await new.ainvoke({}, "t"))["log"] == expected


@pytest.mark.parametrize("migrations", [{1: to_2}, {4: to_2}, {True: to_2}, {2: 5}, [to_2], {"2": to_2}])
def test_invalid_migrations(migrations: Any) -> None:
    """Migrations are functions by version, from 2 to the graph's."""
    with pytest.raises(GraphValidationError, match="migrations"):
        three(None, migrations=migrations)
    with pytest.raises(GraphValidationError, match="not given"):
        three(None, version=None)


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


@pytest.mark.parametrize("still_open", [False, True], ids=["idle", "open"])
async def test_unknown_keys(saver: BaseCheckpointSaver, still_open: bool) -> None:
    """P15: unknown keys are kept, with one warning, without, or are refused, as `unknown=` says."""
    nodes = {"a": says("a", {"net": 3, "log": ["a"]}), "b": says("b")}
    edges = [(START, "a"), (START, "b")]
    old = built(One, nodes, edges, saver)
    await (failed(old, "b", given={"tax": 1}) if still_open else old.ainvoke({"tax": 1}, "t"))
    value = None if still_open else {}
    nodes["a"] = says("a")
    strict = built(Log, nodes, edges, saver, unknown="error")
    expected = {("key", "tax", "all"), ("key", "net", "resume" if still_open else "all")}
    assert {*of(await strict.aget_state("t"))} == expected
    with pytest.raises(GraphChangedError, match=r"key 'tax'.*removed=\('tax',\)"):
        await strict.ainvoke(value, "t")
    known = built(Log, nodes, edges, saver, unknown="error", removed=["tax", "net"])
    assert (await known.aget_state("t")).changed == ()
    with pytest.warns(UnknownStoredKeyWarning):
        await built(Log, nodes, edges, saver).aget_state("t")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (await built(Log, nodes, edges, saver, unknown="ignore").ainvoke(value, "t"))["log"][-1:] == ["b"]
    assert (await old.aget_state("t")).values.items() >= {"tax": 1, "net": 3}.items()
    with pytest.raises(GraphValidationError, match="unknown is 'warn'"):
        built(Log, nodes, edges, saver, unknown="no")


async def test_unknown_kept_states(saver: BaseCheckpointSaver) -> None:
    """P15: the same for the state of a kept graph whose node does not exist any more."""

    def graph(name: str, **options: Any) -> Any:
        inner = StateGraph(Log).add_node("x", says("x")).add_edge(START, "x").compile(checkpointer=True, blocking=False)

        async def run(state: Any) -> Any:
            return {"log": [str(len((await inner.ainvoke({})).get("log", [])))]}

        return built(Log, {name: run}, [(START, name)], saver, **options)

    await graph("old").ainvoke({}, "t")
    with pytest.raises(GraphChangedError, match="holds the state of node 'old'"):
        await graph("new", unknown="error").ainvoke({}, "t")
    with warnings.catch_warnings():
        warnings.simplefilter("error", KeptStateWarning)
        assert (await graph("new", unknown="ignore").ainvoke({}, "t"))["log"] == ["1", "1"]


async def test_updates_of_an_idle_thread_that_are_only_recorded() -> None:
    """P15: an update that a call made to an idle thread is refused if a migration changes its key, and the advice helps:
    the earlier version takes the next input."""

    def to_two(old: StoredState) -> Mapping[str, Any]:
        return {"total": old["net"] + 1, "net": REMOVED} if "net" in old else {}

    saver = InMemorySaver()
    nodes, edges = {"a": lambda state: {}}, [(START, "a")]
    first = built(One, nodes, edges, saver)
    second = built(Three, nodes, edges, saver, version=2, migrations={2: to_two}, unknown="ignore")
    await first.ainvoke({"net": 1}, "t")
    await first.ainvoke(Command(update={"net": 5}), "t")
    (mismatch,) = (await second.aget_state("t")).changed
    assert mismatch.blocks == "all" and "Versions({...}, pin='thread')" in mismatch.advice
    for pin in ("open", "never"):
        with pytest.raises(GraphChangedError, match="pin='thread'"):
            await Versions({1: first, 2: second}, pin=pin).ainvoke({}, "t")
    await Versions({1: first, 2: second}, pin="thread").ainvoke({}, "t")
    assert (await second.ainvoke({}, "t"))["total"] == 6
