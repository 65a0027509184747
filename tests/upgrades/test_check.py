"""Stored threads are checked against the graph's code before a deployment: `acheck_threads` and `threads check`."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from msgspec import structs
from pydantic import BaseModel

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Command, interrupt, patched
from pregel_async._api import checking
from pregel_async.errors import ConfigError, UnknownStoredKeyWarning
from pregel_async.types import Added, Renamed, Retyped, ThreadCheck
from tests.upgrades.graphs import asks, built, failed, line, ran, says

pytestmark = pytest.mark.anyio


class Two(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str


class One(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Called(TypedDict):
    called: Annotated[str, Renamed("name")]


async def checked(graph: Any, *args: Any, **options: Any) -> dict[str, ThreadCheck]:
    return {check.thread_id: check async for check in graph.acheck_threads(*args, **options)}


def asking(saver: Any, node: str = "approve", schema: Any = Two, **options: Any) -> Any:
    """A graph with a finished sibling of a node that asks."""
    given = {key: options.pop(key) for key in ("was",) if key in options}
    nodes = {node: (asks(node), given), "other": says("other")}
    return built(schema, nodes, [(START, node), (START, "other")], saver, **options)


async def test_threads_that_load(saver: BaseCheckpointSaver) -> None:
    """P15: idle and open threads of unchanged code load; nothing is leased, changed or run."""
    graph = asking(saver, version=2)
    await graph.ainvoke({"name": "a"}, "open")
    await graph.ainvoke({"name": "a"}, "idle")
    await graph.ainvoke(Command(resume="yes"), "idle")
    ran.clear()
    before = [await saver.dump(thread) for thread in ("idle", "open")], await saver.threads()
    checks = await checked(graph)
    assert checks == {name: ThreadCheck(thread_id=name, version=2) for name in ("idle", "open")}
    assert all(check.loads for check in checks.values())
    assert ran == [] and before == ([await saver.dump(thread) for thread in ("idle", "open")], await saver.threads())


async def test_a_node_that_is_gone_and_declared(saver: BaseCheckpointSaver) -> None:
    """P15: a pending task of a node that is gone does not load, and does with the declaration that the check names."""
    await asking(saver).ainvoke({"name": "a"}, "t")
    [check] = (await checked(asking(saver, "sign_off"))).values()
    assert (of_check(check), check.loads, check.migrated) == ([("node", "approve", "resume")], False, False)
    assert "was='approve'" in check.mismatches[0].advice
    for graph in (asking(saver, "sign_off", was="approve"), asking(saver, "sign_off", retired={"approve": END})):
        [check] = (await checked(graph)).values()
        assert (check.mismatches, check.loads, check.migrated) == ((), True, True)


async def test_decisions_that_are_false(saver: BaseCheckpointSaver) -> None:
    """P15: a `patched()` decision that is False for a pending task is listed, and blocks nothing; one that is True, or
    of a task that has finished, is not."""

    def graph(ask: Any, **options: Any) -> Any:
        nodes = {"a": ask, "b": asks("b")}
        return built(Two, nodes, [(START, "a"), (START, "b")], saver, **options)

    def decides(state: Any) -> Any:
        return {"log": [f"{patched('first')} {interrupt('a?')}"]}

    await graph(asks("a")).ainvoke({}, "earlier")
    new = graph(decides)
    for thread, expected in (("earlier", [("calls", "first", "nothing")]), ("later", [])):
        await new.ainvoke(None if thread == "earlier" else {}, thread)
        found = await checked(new)
        assert (of_check(found[thread]), found[thread].loads, found[thread].migrated) == (expected, True, False)
    state = await new.aget_state("earlier")
    asked = next(task.interrupts[0].id for task in state.tasks if task.name == "a")
    await new.ainvoke(Command(resume={asked: "yes"}), "earlier")
    assert (await new.aget_state("earlier")).next == ("b",) and (await checked(new))["earlier"].mismatches == ()


def of_check(check: ThreadCheck) -> list[tuple[str, str, str]]:
    return [(each.kind, each.name, each.blocks) for each in check.mismatches]


async def test_an_unknown_key_is_reported_without_a_warning(saver: BaseCheckpointSaver) -> None:
    """P15: a stored key that the code does not have blocks nothing. The check does not warn, and the next run does."""
    await line(Two, "a", saver=saver).ainvoke({"name": "x"}, "t")
    graph = line(One, "a", saver=saver)
    [check] = (await checked(graph)).values()
    assert (of_check(check), check.loads) == ([("key", "name", "nothing")], True)
    with pytest.warns(UnknownStoredKeyWarning):
        await graph.ainvoke({}, "t")
    [check] = (await checked(line(One, "a", saver=saver, removed=("name",)))).values()
    assert (check.mismatches, check.migrated) == ((), True)


async def test_keys(saver: BaseCheckpointSaver) -> None:
    """P15: a retyped key does not load; `Retyped` and `Renamed` make the thread load, by a migration."""
    await line(Two, "a", saver=saver).ainvoke({"name": "x"}, "t")
    for hint, mismatches, migrated in (
        (int, [("key", "name", "all")], False),
        (Annotated[int, Retyped(len)], [], True),
        (Annotated[str, Added("y")], [], False),
    ):
        schema: Any = TypedDict("schema", {"log": Annotated[list[str], operator.add], "name": hint}, total=False)
        [check] = (await checked(line(schema, "a", saver=saver))).values()
        assert (of_check(check), check.migrated, check.loads) == (mismatches, migrated, not mismatches)
    [check] = (await checked(line(Called, "a", saver=saver))).values()
    assert (of_check(check), check.migrated) == ([("key", "log", "nothing")], True)


@pytest.mark.parametrize("is_open", [False, True])
async def test_rules_are_called_twice(is_open: bool) -> None:
    """P15 (U3): a rule that reads a clock is found, in values and in recorded updates; so is a rule that raises."""

    def fails(value: str) -> int:
        raise KeyError(value)

    saver = InMemorySaver()
    nodes = {"a": says("a", {"name": "x"}), "b": says("b")}
    graph = built(Two, nodes, [(START, "a"), (START, "b")], saver)
    if is_open:
        await failed(graph, "b", given={})
    else:
        await graph.ainvoke({"name": "x"}, "t")
    clock = itertools.count()
    for rule, reason in ((lambda value: next(clock), "each time that it is called"), (fails, "raised KeyError: 'x'")):
        schema: Any = TypedDict(
            "schema", {"log": Annotated[list[str], operator.add], "name": Annotated[int, Retyped(rule)]}, total=False
        )
        [check] = (await checked(built(schema, nodes, [(START, "a"), (START, "b")], saver))).values()
        assert not check.loads and reason in check.mismatches[0].reason


@dataclass
class Item:
    cents: int


@dataclass
class NewItem:
    cents: int
    vat: int


class OfItems(TypedDict, total=False):
    items: Annotated[list[Any], operator.add]


async def test_types(saver: BaseCheckpointSaver) -> None:
    """P15: an object that does not fit its class any more is a mismatch of its type, with its advice."""
    before, after = saver.codec.with_types(Item, tag="Item"), saver.codec.with_types(NewItem, tag="Item")
    unknown, saver.codec = saver.codec, before
    await built(OfItems, {"a": says("a", {"items": [Item(1)]})}, [(START, "a")], saver).ainvoke({}, "t")
    for codec, part in ((after, "vat"), (unknown, "no class is registered")):
        saver.codec = codec
        [check] = (await checked(line(OfItems, "a", saver=saver))).values()
        assert (of_check(check), check.loads) == ([("type", "Item", "all")], False)
        assert part in check.mismatches[0].reason and "Codec().with_type" in check.mismatches[0].advice


class Damaging(InMemorySaver):
    """A saver that returns damaged rows of one thread."""

    async def read(self, thread_id: str, ns: str = "", checkpoint_id: Any = None) -> Any:
        chain = await super().read(thread_id, ns, checkpoint_id)
        if chain is None or thread_id != "b":
            return chain
        rows = [structs.replace(row, frame=row.frame[:-3]) for row in chain.rows]
        return structs.replace(chain, rows=tuple(rows))


async def test_damage_is_told_apart() -> None:
    """P15: a damaged thread is no mismatch, and does not end the check."""
    saver = Damaging()
    for name in "abc":
        await line(One, "a", saver=saver).ainvoke({}, name)
    checks = await checked(line(One, "a", saver=saver))
    assert [(name, each.loads, bool(each.damage), each.mismatches) for name, each in checks.items()] == [
        ("a", True, False, ()),
        ("b", False, True, ()),
        ("c", True, False, ()),
    ]


def outer(saver: Any, inner_schema: Any, node: str = "inner", *, keeps: bool, **options: Any) -> Any:
    given = {key: options.pop(key) for key in ("was",) if key in options}
    inside = asking(True if keeps else None, schema=inner_schema)
    return built(One, {node: (inside, given)}, [(START, node)], saver, **options)


@pytest.mark.parametrize("keeps", [False, True])
async def test_graphs_inside(saver: BaseCheckpointSaver, keeps: bool) -> None:
    """P15: the state of a subgraph of a pending task is checked, and a kept state while nothing is pending too."""

    class Other(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        name: int

    graph = outer(saver, Two, keeps=keeps)
    await graph.ainvoke({"log": ["x"]}, "t")
    inside = (await graph.aget_state("t", subgraphs=True)).tasks[0].state
    await graph.aupdate_state(inside.config, {"name": "x"}, "other")
    other = outer(saver, Other, keeps=keeps)
    [check] = (await checked(other)).values()
    assert of_check(check) == [("key", "name", "all")] and check.mismatches[0].namespace.startswith("inner")
    while (await graph.aget_state("t")).next:  # an update of an open superstep takes its question back
        await graph.ainvoke(Command(resume="yes"), "t")
    [check] = (await checked(other)).values()
    assert check.loads == (not keeps)


async def test_a_kept_state_left_behind(saver: BaseCheckpointSaver) -> None:
    """P15: the kept state of a node that was renamed without `was=` is reported; with it, it is checked."""
    graph = outer(saver, Two, keeps=True)
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume="yes"), "t")
    [check] = (await checked(outer(saver, Two, "renamed", keeps=True))).values()
    assert of_check(check) == [("state", "inner", "nothing")] and "was='inner'" in check.mismatches[0].advice
    renamed = outer(saver, Two, "renamed", keeps=True, was="inner")
    [check] = (await checked(renamed)).values()
    assert (check.mismatches, check.migrated) == ((), True)
    await renamed.ainvoke({}, "t")
    await renamed.ainvoke(Command(resume="yes"), "t")
    [check] = (await checked(renamed)).values()
    assert check == ThreadCheck(thread_id="t", version=1)


async def test_what_is_pending_in_an_idle_kept_state(saver: BaseCheckpointSaver) -> None:
    """P15: the next call of a kept state has a new input, so that a task that was abandoned there is not in the way."""
    graph = outer(saver, Two, keeps=True)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", None, END)

    def renamed_inside(saver: Any) -> Any:
        return built(One, {"inner": asking(True, "sign_off")}, [(START, "inner")], saver)

    [check] = (await checked(renamed_inside(saver))).values()
    assert (check.mismatches, check.loads) == ((), True)
    assert (await renamed_inside(saver).ainvoke({}, "t"))["__interrupt__"]


async def test_branches(saver: BaseCheckpointSaver) -> None:
    """P15: with `branches`, the tips of all branches are looked at, and not only the head."""
    graph = asking(saver)
    await graph.ainvoke({"name": "a"}, "t")
    asked = (await graph.aget_state("t")).config
    await graph.ainvoke(Command(resume="yes"), "t")
    [check] = (await checked(asking(saver, "sign_off"), branches=True)).values()
    assert check.loads  # the checkpoint at which the node was pending is no tip
    await graph.aupdate_state(asked, {"name": "b"}, "other")  # a branch on which the question is open
    done = [s.config async for s in graph.aget_state_history("t") if not s.next][0]
    await graph.aupdate_state(done, {"name": "c"}, "other")
    new = asking(saver, "sign_off")
    [check] = (await checked(new)).values()
    assert check.loads
    [check] = (await checked(new, branches=True)).values()
    assert of_check(check) == [("node", "approve", "resume")]


async def test_options(saver: BaseCheckpointSaver) -> None:
    """Only open threads, a sample that is the same each time, a filter; a saver may be given."""
    graph = asking(saver)
    for number in range(12):
        where = {"configurable": {"thread_id": f"t{number:02}"}, "metadata": {"odd": number % 2}}
        await graph.ainvoke({}, where)
        if number % 3:
            await graph.ainvoke(Command(resume="yes"), f"t{number:02}")
    everything = await checked(asking(None), saver)
    assert list(everything) == [f"t{number:02}" for number in range(12)]
    assert list(await checked(graph, open=True)) == ["t00", "t03", "t06", "t09"]
    assert list(await checked(graph, filter={"odd": 1}, open=True)) == ["t03", "t09"]
    sample = list(await checked(graph, sample=5))
    assert len(sample) == 5 and sample == sorted(sample) == list(await checked(graph, sample=5))
    assert set(sample) < set(await checked(graph, sample=6))
    assert await checked(graph, sample=99) == everything


@dataclass
class Named:
    name: str


@dataclass
class Needing:
    name: str
    note: str = ""
    needed: int = field(kw_only=True)


@dataclass
class Given:
    name: str
    needed: Annotated[int, Added(1)]


class NamedModel(BaseModel):
    name: str


class NeedingModel(BaseModel):
    name: str
    note: str = ""
    needed: int


@pytest.mark.parametrize(("old", "new"), [(Named, Needing), (NamedModel, NeedingModel)])
async def test_required_fields(saver: BaseCheckpointSaver, old: Any, new: Any) -> None:
    """P15: a required field that a thread lacks is found for pending nodes, which would fail; an update may give it."""

    def ask(state: Any) -> None:
        interrupt("ok?")

    def graph(schema: Any) -> Any:
        return built(schema, {"ask": ask}, [(START, "ask")], saver)

    await graph(old).ainvoke({"name": "Ada"}, "t")
    assert of_check((await checked(graph(Given)))["t"]) == []
    [check] = (await checked(graph(new))).values()
    assert of_check(check) == [("key", "needed", "resume")] and "Added(value)" in check.mismatches[0].advice
    state = await graph(new).aget_state("t")
    assert state.changed == check.mismatches
    await graph(new).ainvoke(Command(update={"needed": 2}), "t")
    assert (await graph(new).aget_state("t")).changed == ()


async def test_the_threads_of_a_version(saver: BaseCheckpointSaver) -> None:
    """The threads that still need a version are found by the version of their heads: a thread's metadata has none."""
    old = asking(saver)
    for thread in ("done", "moved", "open"):
        await old.ainvoke({}, thread)
    await old.ainvoke(Command(resume="yes"), "done")
    new = asking(saver, version=2)
    await new.ainvoke(Command(resume="yes"), "moved")
    assert list(await checked(new, of_version=1)) == ["done", "open"]
    assert list(await checked(new, of_version=1, open=True)) == ["open"]
    assert list(await checked(new, of_version=2)) == ["moved"]
    with pytest.raises(ConfigError, match="of_version="):
        await checked(new, filter={"__version__": 1})


async def test_it_is_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are read as the checks are taken: a few at a time."""
    monkeypatch.setattr(checking, "READ_AHEAD", 3)
    saver, graph = Counting(), line(One, "a", saver=None)
    for number in range(8):
        await graph.with_checkpointer(saver).ainvoke({}, f"t{number}")
    saver.calls = 0
    checks = graph.acheck_threads(saver)
    assert [(await anext(checks)).thread_id for _ in range(3)] == ["t0", "t1", "t2"]
    assert saver.calls == 3
    assert len([check async for check in checks]) == 5
    assert saver.calls == 8


class Counting(InMemorySaver):
    calls = 0

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return await super().read(*args, **kwargs)


async def test_what_is_wrong() -> None:
    """There must be a saver, and a sample is a positive number."""
    with pytest.raises(ConfigError, match="no checkpointer"):
        await checked(line(One, "a", saver=None))
    for sample in (0, True, "2"):
        with pytest.raises(ConfigError, match="sample"):
            await checked(line(One, "a", saver=InMemorySaver()), sample=sample)


def test_sync() -> None:
    """`check_threads` is the same without an event loop."""
    graph = line(One, "a", saver=InMemorySaver())
    graph.invoke({}, "t")
    assert list(graph.check_threads()) == [ThreadCheck(thread_id="t", version=1)]
