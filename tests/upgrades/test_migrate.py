"""What declared rules make of stored threads is stored by `amigrate_threads` and `threads migrate`."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, Send, StateGraph, interrupt
from pregel_async._runtime.persistence.lease import ThreadLease
from pregel_async._runtime.platform.environment import SystemEnvironment
from pregel_async.errors import CallsChangedError, ConfigError, GraphChangedError, GraphVersionError
from pregel_async.functional import task
from pregel_async.types import Added, Renamed, Retyped, StoredState
from pregel_async.versions import Versions
from tests.helpers.each_saver import SAVERS, opened
from tests.upgrades.graphs import Log, asks, built, line, ran, says, states

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("error::pregel_async.errors.UnknownStoredKeyWarning")]


def words(cents: Any) -> str:
    return f"{cents} cents"


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str
    price: int


class Ruled(TypedDict, total=False):
    lines: Annotated[list[str], Renamed("log"), operator.add]
    customer: Annotated[str, Renamed("name")]
    price: Annotated[str, Retyped(words)]
    kind: Annotated[str, Added("order")]


class New(TypedDict, total=False):
    lines: Annotated[list[str], operator.add]
    customer: str
    price: str
    kind: str


@task
async def charge(order: str) -> str:
    ran.append(f"charge {order}")
    return f"charged {order}"


async def pay(state: Any) -> Any:
    ran.append("pay")
    paid = await charge("7")
    return {"log" if "log" in state else "lines": [paid, interrupt("good?")]}


def sibling(state: Any) -> Any:
    ran.append("sibling")
    return {"log": ["sibling"], "price": 5} if "log" in state else {"lines": ["sibling"], "price": "5 cents"}


def end(state: Any) -> Any:
    ran.append("end")
    return {}


def office(schema: Any, saver: Any, **options: Any) -> Any:
    """A node that calls a task and asks, next to a node that finishes; and a node after a join of both."""
    nodes = {"pay": pay, "sibling": sibling, "end": end}
    return built(schema, nodes, [(START, "pay"), (START, "sibling"), (["pay", "sibling"], "end")], saver, **options)


async def migrated(graph: Any, *args: Any, **options: Any) -> dict[str, str]:
    return {each.thread_id: each.status async for each in graph.amigrate_threads(*args, **options)}


async def dumps(saver: BaseCheckpointSaver, *threads: str) -> list[Any]:
    return [await saver.dump(thread) for thread in threads]


MADE = {"lines": ["in"], "customer": "Ada", "price": "3 cents", "kind": "order"}


@pytest.mark.parametrize("kind", SAVERS)
async def test_rules_can_be_removed_afterwards(kind: str, tmp_path: Path) -> None:
    """P15: a migrated thread has the state that the rules make, without the rules; an open superstep keeps its tasks,
    questions, ids, recorded calls and results, and nothing runs again. Migrating again writes nothing."""
    async with opened(kind, tmp_path) as saver:
        old, ruled, new = (office(schema, saver) for schema in (Old, Ruled, New))
        await old.ainvoke({"log": ["in"], "name": "Ada", "price": 3}, "open")
        await old.ainvoke({"log": ["in"], "name": "Ada", "price": 3}, "idle")
        await old.ainvoke(Command(resume="yes"), "idle")
        await new.ainvoke({"lines": []}, "new")
        before = await dumps(saver, "open", "idle", "new")
        shown = {thread: await ruled.aget_state(thread) for thread in ("open", "idle")}
        assert shown["open"].values == MADE

        expected = {"idle": "migrated", "new": "migrated", "open": "migrated"}  # "new" lacks the added key
        assert await migrated(ruled, dry_run=True) == expected
        assert await dumps(saver, "open", "idle", "new") == before
        assert await migrated(ruled) == expected
        after = await dumps(saver, "open", "idle", "new")
        assert await migrated(ruled) == dict.fromkeys(expected, "unchanged")
        assert await dumps(saver, "open", "idle", "new") == after
        assert [each.migrated async for each in ruled.acheck_threads()] == [False] * 3

        for graph in (ruled, new):
            state = await graph.aget_state("open")
            assert (state.values, state.next, state.tasks) == (MADE, ("pay",), shown["open"].tasks)
            assert (state.interrupts, state.config) == (shown["open"].interrupts, shown["open"].config)
            assert state.unknown == {} and state.changed == ()
            idle = await graph.aget_state("idle")
            assert (idle.values, idle.next) == (shown["idle"].values, ())
            assert idle.metadata is not None and idle.metadata["source"] == "update"
        ran.clear()
        done = await new.ainvoke(Command(resume="yes"), "open")
        assert done == {**MADE, "lines": ["in", "charged 7", "yes", "sibling"], "price": "5 cents"}
        assert ran == ["pay", "end"]
        assert done == (await new.aget_state("open")).values
        assert (await new.ainvoke({}, "idle"))["price"] == "5 cents"
        stored = await saver.aget_tuple("open")
        assert stored is not None and sorted(stored.checkpoint["channel_versions"]) == sorted(MADE)


@pytest.mark.parametrize("way", ["fork", "edit", "input", "update"])
async def test_what_follows_a_migrated_open_superstep(saver: BaseCheckpointSaver, way: str) -> None:
    """P15: forks, edits, new inputs and updates of the open superstep continue from what is migrated."""
    old, ruled, new = (office(schema, saver) for schema in (Old, Ruled, New))
    await old.ainvoke({"log": ["in"], "name": "Ada", "price": 3}, "t")
    assert await migrated(ruled) == {"t": "migrated"}
    state = await new.aget_state("t")
    if way == "fork":
        await new.aupdate_state(state.config, None, as_node="__copy__")
        copied = await new.aget_state("t")
        assert copied.config != state.config and copied.values == MADE
        await new.ainvoke(None, copied.config)
    elif way == "edit":
        await new.aupdate_state("t", {"customer": "Bob"}, as_node="end")
        assert (await new.aget_state("t")).values == {
            **MADE,
            "customer": "Bob",
            "lines": ["in", "sibling"],
            "price": "5 cents",
        }
        await new.ainvoke(None, "t")
    elif way == "input":
        await new.ainvoke({"customer": "Bob"}, "t")
    else:
        await new.ainvoke(Command(update={"customer": "Bob"}), "t")
        assert await migrated(ruled) == {"t": "unchanged"}
    shown = await new.aget_state("t")
    assert shown.values["customer"] == ("Ada" if way == "fork" else "Bob") and shown.values["kind"] == "order"
    done = await new.ainvoke(Command(resume="yes"), "t")
    assert done["lines"][:1] == ["in"] and sorted(done) == sorted(MADE) and not (await new.aget_state("t")).unknown
    for state in await states(new):
        assert state.values is not None  # the history can be read; rows from before show the undeclared state


async def test_updates_of_an_idle_thread(saver: BaseCheckpointSaver) -> None:
    """P15: updates that calls have made to an idle thread are records of its head: the new checkpoint contains them."""
    old, ruled, new = (line(schema, "a", saver=saver) for schema in (Old, Ruled, New))
    for thread, given in (("both", {"name": "Ada", "price": 3}), ("updated only", {})):
        await old.ainvoke(given, thread)
        for update in ({"name": "Bob", "log": ["1"]}, {"price": 4, "log": ["2"]}):
            await old.ainvoke(Command(update=update), thread)
        before = await ruled.aget_state(thread)
        assert before.values["lines"][-2:] == ["1", "2"] and before.values["customer"] == "Bob"
        assert (await migrated(ruled))[thread] == "migrated"
        for graph in (ruled, new):
            state = await graph.aget_state(thread)
            assert (state.values, state.next, state.changed) == (before.values, (), ())
        earlier = await old.aget_state((await new.aget_state(thread)).parent_config)
        assert earlier.values["log"][-2:] == ["1", "2"]  # earlier checkpoints are not migrated
        assert (await migrated(ruled))[thread] == "unchanged"


def as_object(price: int) -> object:
    """Return a value that cannot be stored for one price."""
    return object() if price == 3 else f"{price} cents"


class Unstorable(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    cost: Annotated[object, Retyped(as_object, was="price")]


async def test_values_that_cannot_be_stored() -> None:
    """P15: a thread for which a rule makes a value that cannot be stored is refused with the reason, and the threads
    after it are migrated."""

    saver = InMemorySaver()
    nodes = {"a": asks("a"), "b": says("b", {"price": 3})}
    edges = [(START, "a"), (START, "b")]
    for thread, price in (("1 state", 3), ("2 fits", 5)):
        await built(Old, {"a": asks("a")}, edges[:1], saver).ainvoke({"price": price}, thread)
    await built(Old, nodes, edges, saver).ainvoke({"price": 5}, "3 record")
    ruled = built(Unstorable, {"a": asks("a"), "b": says("b", {})}, edges, saver)
    before = await dumps(saver, "1 state", "3 record")
    found = {each.thread_id: each async for each in ruled.amigrate_threads()}
    assert {id: each.status for id, each in found.items()} == {
        "1 state": "refused",
        "2 fits": "migrated",
        "3 record": "refused",
    }
    assert await dumps(saver, "1 state", "3 record") == before
    for thread in ("1 state", "3 record"):
        [mismatch] = found[thread].check.mismatches
        assert "cost" in mismatch.name and "cannot be stored" in mismatch.reason and mismatch.blocks == "all"
    (shown,) = (await ruled.aget_state("3 record")).changed
    assert "cannot be stored" in shown.reason


async def test_records_sends_and_inputs(saver: BaseCheckpointSaver) -> None:
    """P15: pending sends that refer to stored values, an input that is not applied yet, and updates of the open superstep
    are migrated."""

    def graph(schema: Any, key: str) -> Any:
        def plan(state: Any) -> Any:
            return [Send("work", {"all": state[key], "n": n}) for n in range(2)]

        def work(arg: Any) -> Any:
            if arg["n"] == 0:
                return {key: ["0"]}
            return {key: [interrupt("?"), str(len(arg["all"]))]}

        builder = StateGraph(schema).add_node("a", says("a", {})).add_node("work", work).add_edge(START, "a")
        return builder.add_conditional_edges("a", plan, ["work"]).compile(saver, blocking=False)

    old, ruled, new = graph(Old, "log"), graph(Ruled, "lines"), graph(New, "lines")
    many = [f"a rather long line {n}" for n in range(300)]
    await old.ainvoke({"log": many}, "sends", interrupt_after=["a"])
    await old.ainvoke({"log": many}, "asks")
    await old.ainvoke(Command(update={"name": "Ada"}), "asks")
    assert set((await migrated(ruled)).values()) == {"migrated"}
    assert set((await migrated(ruled)).values()) == {"unchanged"}
    assert (await new.aget_state("asks")).values == {"lines": many, "customer": "Ada", "kind": "order"}
    for thread in ("sends", "asks"):
        await new.ainvoke(None, thread)
        assert (await new.ainvoke(Command(resume="yes"), thread))["lines"] == [*many, "0", "yes", "300"]

    begun = line(Old, "a", saver=saver)
    await begun.aupdate_state("input", {"log": ["in"], "name": "Ada"}, as_node="__input__")
    assert (await begun.aget_state("input")).next == ("__start__",)
    assert await migrated(line(Ruled, "a", saver=saver), filter=None, open=True) == {"input": "migrated"}
    plain = built(New, {"a": says("a", {})}, [(START, "a")], saver)
    assert await plain.ainvoke(None, "input") == {"lines": ["in"], "customer": "Ada", "kind": "order"}


async def test_versions(saver: BaseCheckpointSaver) -> None:
    """P15: a migrated open thread is refused by code of an earlier version, its migrations are not applied again, and a
    call that is inserted before a recorded one is found, as between versions."""

    def to_2(state: StoredState) -> Any:
        return {"price": state["price"] + 1}

    def to_3(state: StoredState) -> Any:
        return {"price": 10 * state["price"]}

    async def audited(state: Any) -> Any:
        await charge("8")
        return await pay(state)

    def graph(node: Any = pay, **options: Any) -> Any:
        return built(Old, {"pay": node}, [(START, "pay")], saver, **options)

    first, second = graph(version=1), graph(version=2, migrations={2: to_2})
    for thread in ("open", "idle"):
        await first.ainvoke({"log": ["in"], "price": 3}, thread)
    await first.ainvoke(Command(resume="yes"), "idle")
    third = graph(version=3, migrations={2: to_2, 3: to_3})
    assert await migrated(second) == {"idle": "migrated", "open": "migrated"}
    assert [(await graph(version=2).aget_state(thread)).values["price"] for thread in ("open", "idle")] == [4, 4]
    assert await migrated(third) == {"idle": "migrated", "open": "migrated"}
    assert await migrated(third) == {"idle": "unchanged", "open": "unchanged"}
    for thread in ("open", "idle"):
        assert (await graph(version=3).aget_state(thread)).values["price"] == 40
        with pytest.raises(GraphVersionError):
            await second.ainvoke({}, thread)
        assert [each.reason for each in (await second.aget_state(thread)).changed]
    with pytest.raises(CallsChangedError):
        await graph(audited, version=3).ainvoke(Command(resume="yes"), "open")
    ran.clear()
    assert (await graph(version=3).ainvoke(None, "open"))["price"] == 40
    assert ran == ["pay"]

    versions = Versions({1: first, 2: second})
    await first.ainvoke({"log": ["in"], "price": 3}, "pinned")
    assert await migrated(versions, saver, of_version=1) == {"pinned": "unchanged"}  # version 1 continues it
    assert await migrated(Versions({1: first, 2: second}, pin="never"), saver, of_version=1) == {"pinned": "migrated"}


async def test_threads_that_are_left_alone(saver: BaseCheckpointSaver) -> None:
    """P15: threads that do not load, and threads that another run owns, are reported and stay as they are."""
    old, ruled = office(Old, saver), office(Ruled, saver)
    for thread in ("busy", "gone", "ok"):
        await old.ainvoke({"log": ["in"], "name": "Ada", "price": 3}, thread)
    await built(Old, {"gone": asks("gone")}, [(START, "gone")], saver).ainvoke({}, "gone")
    before = await dumps(saver, "busy", "gone")
    async with await ThreadLease.acquire(saver, SystemEnvironment(), "busy", "reject"):
        [busy, gone, ok] = [each async for each in ruled.amigrate_threads()]
    assert [each.status for each in (busy, gone, ok)] == ["busy", "refused", "migrated"]
    assert gone.check.mismatches[0].name == "gone" and busy.check.loads
    assert [each.rows for each in await dumps(saver, "busy", "gone")] == [each.rows for each in before]
    assert [each.records for each in await dumps(saver, "busy", "gone")] == [each.records for each in before]


@pytest.mark.parametrize("kind", ["finished", "deferred"])
async def test_names_that_an_open_superstep_needs(kind: str) -> None:
    """P15: the check shows that `was=` is needed while a superstep is open in which the renamed node has finished, or
    whose end a renamed deferred node waits for. When the superstep has ended, `was=` is not needed."""

    def graph(name: str, **options: Any) -> Any:
        nodes = {"q": asks("q"), name: (says("work"), {"defer": kind == "deferred", **options})}
        edges = [(START, "q"), (START, name)]
        return built(Log, nodes, edges, saver)

    saver = InMemorySaver()
    await graph("old").ainvoke({}, "t")
    renamed = graph("new", was="old")
    assert await migrated(renamed) == {"t": "unchanged"}
    assert [(each.loads, each.migrated) async for each in renamed.acheck_threads()] == [(True, True)]
    with pytest.raises(GraphChangedError):
        await graph("new").ainvoke(Command(resume="yes"), "t")
    done = await renamed.ainvoke(Command(resume="yes"), "t")
    assert sorted(done["log"]) == ["q: yes", "work"]
    assert [each.migrated async for each in renamed.acheck_threads()] == [False]


async def test_threads_are_chosen(saver: BaseCheckpointSaver) -> None:
    """Of a saver with threads of several graphs, only the chosen ones are checked and migrated."""
    old, ruled = line(Old, "a", saver=saver), line(Ruled, "a", saver=saver)
    for thread in ("a", "b", "c", "other"):
        await old.ainvoke({"name": "Ada"}, thread)
    before = await dumps(saver, "b", "other")
    chosen = ["c", "missing", "a"]
    assert [each.thread_id async for each in ruled.acheck_threads(thread_ids=chosen)] == ["a", "c"]
    assert await migrated(ruled, thread_ids=chosen) == {"a": "migrated", "c": "migrated"}
    assert await migrated(ruled, thread_ids=()) == {}
    assert await dumps(saver, "b", "other") == before
    with pytest.raises(ConfigError, match=r"pass \['other'\]"):
        await migrated(ruled, thread_ids="other")


class Count(TypedDict, total=False):
    count: int


class RuledTotal(TypedDict, total=False):
    total: Annotated[int, Renamed("count")]


class Total(TypedDict, total=False):
    total: int


def counting(saver: Any, name: str, schema: Any, *, asking: bool = False, **options: Any) -> Any:
    """A graph with a graph inside that keeps its state, inside of one that does so too; and a sibling that asks."""
    key = [*schema.__annotations__][0]
    kept = built(schema, {"add": lambda state: {key: state.get(key, 0) + 1}}, [(START, "add")], True)

    async def call(state: Any) -> Any:
        return {"rounds": (await kept.ainvoke({}))[key]}

    class Around(TypedDict, total=False):
        rounds: int

    middle = built(Around, {"call": call}, [(START, "call")], True)

    async def run(state: Any) -> Any:
        return {"log": [str((await middle.ainvoke({"rounds": 0}))["rounds"])]}

    def sib(state: Any) -> Any:
        return {"log": [interrupt("?")]} if asking else {}

    return built(Log, {name: (run, options), "sib": sib}, [(START, name), (START, "sib")], saver)


@pytest.mark.parametrize("kind", SAVERS)
async def test_kept_graphs_of_renamed_nodes(kind: str, tmp_path: Path) -> None:
    """P15: kept graphs inside of renamed nodes keep their states without `was=` and without their rules, if nothing is
    pending. While a superstep is open, their rules can be removed, and `was=` stays until it has ended."""
    async with opened(kind, tmp_path) as saver:
        old = counting(saver, "old", Count)
        for _ in range(2):
            await old.ainvoke({}, "idle")
            await old.ainvoke({}, "open")
        await counting(saver, "old", Count, asking=True).ainvoke({}, "open")
        assert await migrated(counting(saver, "new", RuledTotal, was="old")) == {"idle": "migrated", "open": "migrated"}
        again = counting(saver, "new", RuledTotal, was="old")
        assert await migrated(again) == {"idle": "unchanged", "open": "unchanged"}
        assert [each.migrated async for each in again.acheck_threads()] == [False, True]
        plain, new = counting(saver, "new", Total), counting(saver, "new", Total, was="old", asking=True)
        assert (await plain.ainvoke({}, "idle"))["log"] == ["1", "2", "3"]
        await saver.acopy_thread("open", "input")
        await new.ainvoke(Command(resume="yes"), "open")
        assert (await new.aget_state("open")).values["log"] == ["1", "2", "3", "yes"]
        assert await migrated(again, open=False) == {"idle": "unchanged", "input": "unchanged", "open": "migrated"}
        assert (await plain.ainvoke({}, "open"))["log"] == ["1", "2", "3", "yes", "4"]
        await new.ainvoke({}, "input")  # discards what the open superstep has done
        assert (await new.ainvoke(Command(resume="yes"), "input"))["log"] == ["1", "2", "3", "yes"]


@pytest.mark.parametrize("keeps", [None, True])
async def test_graphs_that_ask(saver: BaseCheckpointSaver, keeps: Any) -> None:
    """P15: the state of a graph inside of a pending task is migrated in place; its question and its results stay."""

    def graph(schema: Any) -> Any:
        key = [*schema.__annotations__][0]

        def ask(state: Any) -> Any:
            ran.append("ask")
            return {key: [*state[key], interrupt("?")]}

        def first(state: Any) -> Any:
            ran.append("first")
            return {key: ["first"]}

        inner = built(schema, {"first": first, "ask": ask}, [(START, "first"), ("first", "ask")], keeps)

        async def run(state: Any) -> Any:
            return {"log": (await inner.ainvoke({}))[key]}

        return built(Log, {"run": run}, [(START, "run")], saver)

    class Lines(TypedDict, total=False):
        lines: list[str]

    class RuledText(TypedDict, total=False):
        text: Annotated[list[str], Renamed("lines")]

    class Text(TypedDict, total=False):
        text: list[str]

    await graph(Lines).ainvoke({}, "t")
    assert await migrated(graph(RuledText)) == {"t": "migrated"}
    assert await migrated(graph(RuledText)) == {"t": "unchanged"}
    shown = await graph(Text).aget_state("t", subgraphs=True)
    assert shown.tasks[0].state is not None and shown.tasks[0].state.values == {"text": ["first"]}
    ran.clear()
    assert (await graph(Text).ainvoke(Command(resume="yes"), "t"))["log"] == ["first", "yes"]
    assert ran == ["ask"]


async def test_a_migration_is_one_transaction() -> None:
    """P15: a crash before or after the transaction of a thread leaves it in the old or in the new form."""

    class Crash(BaseException):
        pass

    class Counting(InMemorySaver):
        crashes = ""
        commits = 0

        async def commit(self, lease: Any, commit: Any) -> None:
            self.commits += 1
            if self.crashes == "before":
                raise Crash
            await super().commit(lease, commit)
            if self.crashes == "after":
                raise Crash

        async def record(self, *args: Any, **options: Any) -> None:
            self.commits += 1
            await super().record(*args, **options)

    for is_open in (False, True):
        for crashes in ("before", "after", ""):
            saver = Counting()
            for _ in range(2):
                await counting(saver, "old", Count).ainvoke({}, "t")
            if is_open:
                await counting(saver, "old", Count, asking=True).ainvoke({}, "t")
            ruled = counting(saver, "new", RuledTotal, was="old")
            saver.crashes, saver.commits = crashes, 0
            if crashes:
                with pytest.raises(Crash):
                    await migrated(ruled)
            else:
                await migrated(ruled)
            assert saver.commits == 1
            saver.crashes = ""
            assert await migrated(ruled) == {"t": "migrated" if crashes == "before" else "unchanged"}


def test_without_an_event_loop() -> None:
    """`migrate_threads` migrates in code without an event loop."""
    saver = InMemorySaver()
    line(Old, "a", saver=saver).invoke({"name": "Ada"}, "t")
    with line(Ruled, "a", saver=saver).migrate_threads() as found:
        assert [(each.thread_id, each.status) for each in found] == [("t", "migrated")]
