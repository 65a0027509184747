"""Each kind of change, under a thread in each situation, with each verb, on each saver.

A thread is left by the old code in one superstep with a finished sibling, a node that calls a task, a send that has
finished, a send whose error handler runs, a called graph and a kept graph; a join of two of them is incomplete.

Change: what the new code changes, with the rules that declare it, or without. Situation: the thread is idle; its
superstep is open and nothing of it has run; it asks (node, handler and called graph); it has failed (all three). There
is no wait yet but for answers. Verb: read, history, resume, new input, edit, and fork; each is done on a copy of the
thread, and resume on the thread itself too.

The new code must do what the old code does on another copy: the same functions run, and the same state and tasks
result. Where a change is not declared and cannot be taken as it is, exactly the verbs of `Change.refused` are refused,
before anything runs.

The other modules have what only one change has: which error is raised, what it says, what is stored afterwards.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, get_args

import pytest

from checkpoint_savers import BaseCheckpointSaver, stored_type
from checkpoint_savers.errors import StoredTypeChangedError
from pregel_async import START, Command, Send, StateGraph, interrupt, task
from pregel_async.channels import DeltaChannel
from pregel_async.errors import GraphChangedError, NodeError
from pregel_async.types import REMOVED, Added, Renamed, Retyped
from tests.upgrades.graphs import Stopped, states

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    pytest.mark.filterwarnings("ignore::pregel_async.errors.UnknownStoredKeyWarning"),
]

Situation = Literal["idle", "open", "asking", "failed"]
Verb = Literal["read", "history", "resume", "input", "edit", "fork"]

VERBS: tuple[Verb, ...] = get_args(Verb)
RUNS: tuple[Verb, ...] = ("resume", "input", "edit", "fork")
PENDING: tuple[Situation, ...] = ("open", "asking", "failed")

make_schema: Any = TypedDict
"""For keys that depend on the change."""


def item(**fields: Any) -> Any:
    given = [(name, type(value), dataclasses.field(default=value)) for name, value in fields.items()]
    return dataclasses.make_dataclass("Item", given)


Item = stored_type("Item")(item(name="pen"))
WithDefault = stored_type("Item")(item(name="pen", vat=19))
Upcast = stored_type("Item", version=2, upcast={1: lambda fields: {"title": fields["name"]}})(item(title="pen"))
Needing = stored_type("Item")(dataclasses.make_dataclass("Item", [("name", str), ("vat", int)]))

KEYS: dict[str, Any] = {
    "log": Annotated[list[str], operator.add],
    "name": str,
    "cents": int,
    "item": Item,
}
"""The keys of the old code. An input gives `name` once; the sibling writes `cents` and `item`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A version of the code, as it differs from the old one.

    Attributes:
        keys: the keys that differ; None for one that does not exist.
        writes: what the sibling writes to them.
        names: the names of nodes that differ.
        rules: the options of `add_node` for these.
        options: of `compile`.
        detour: a node runs between the join and the end.
        back: the old key and its value, by new key.
        ignored: keys that are not compared.
        refused: the verbs that are refused, by situation.
    """

    keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    writes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"cents": 300, "item": Item()})
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    rules: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    detour: bool = False
    back: Mapping[str, tuple[str, Callable[[Any], Any]]] = dataclasses.field(default_factory=dict)
    ignored: Sequence[str] = ()
    refused: Mapping[Situation, Sequence[Verb]] = dataclasses.field(default_factory=dict)


def renamed_nodes(*, declared: bool) -> dict[str, Any]:
    names = {each: f"new {each}" for each in ("sibling", "approve", "work", "called", "kept", "join", "end")}
    return {"names": names, "rules": {each: {"was": each} for each in names} if declared else {}}


def joined(one: list[str], other: list[str]) -> list[str]:
    return [*one, *other]


def all_joined(one: list[str], others: list[list[str]]) -> list[str]:
    return [*one, *(each for other in others for each in other)]


def same(value: Any) -> Any:
    return value


LINES = Annotated[list[str], Renamed("log"), operator.add]
PRICE = Annotated[str, Retyped(lambda cents: f"{cents / 100:.2f}", was="cents")]

CHANGES: dict[str, Change] = {
    "nothing": Change(),
    "key added": Change(keys={"more": int}),
    "key added with a value": Change(keys={"vat": Annotated[int, Added(19)]}, ignored=["vat"]),
    "type widened": Change(keys={"cents": int | str}),
    "key removed": Change(keys={"name": None}),
    "key removed, declared": Change(keys={"name": None}, options={"removed": ["name"]}, ignored=["name"]),
    "keys renamed": Change(
        keys={"name": None, "customer": Annotated[str, Renamed("name")], "log": None, "lines": LINES},
        back={"customer": ("name", same), "lines": ("log", same)},
    ),
    "another reducer": Change(keys={"log": Annotated[list[str], joined]}),
    "delta channel": Change(keys={"log": Annotated[list[str], DeltaChannel(all_joined)]}),
    "reducer added": Change(keys={"cents": Annotated[int | float, max]}),
    "key retyped, declared": Change(
        keys={"cents": Annotated[str, Retyped(str)]},
        writes={"cents": "300", "item": Item()},
        back={"cents": ("cents", int)},
    ),
    "key renamed and retyped": Change(
        keys={"cents": None, "price": PRICE},
        writes={"price": "3.00", "item": Item()},
        back={"price": ("cents", lambda price: int(float(price) * 100))},
    ),
    "key retyped": Change(
        keys={"cents": str},
        writes={"cents": "300", "item": Item()},
        refused={"idle": RUNS[1:], **dict.fromkeys(PENDING, RUNS)},
    ),
    "field added": Change(
        keys={"item": WithDefault},
        writes={"cents": 300, "item": WithDefault()},
        back={"item": ("item", lambda item: Item(item.name))},
    ),
    "class upcast": Change(
        keys={"item": Upcast},
        writes={"cents": 300, "item": Upcast()},
        back={"item": ("item", lambda item: Item(item.title))},
    ),
    "field required": Change(
        keys={"item": Needing},
        writes={"cents": 300, "item": Needing("pen", 19)},
        refused=dict.fromkeys(get_args(Situation), VERBS),
    ),
    "migration": Change(
        keys={"name": None, "title": str},
        options={
            "version": 2,
            "migrations": {2: lambda old: {"title": f"Dr {old['name']}", "name": REMOVED} if "name" in old else {}},
            "removed": ["name"],
        },
        back={"title": ("name", lambda title: title.removeprefix("Dr "))},
    ),
    "nodes renamed, declared": Change(**renamed_nodes(declared=True)),
    "pending nodes renamed": Change(
        names={"approve": "sign_off", "work": "labour", "called": "asked"},
        refused={"idle": ["fork"], **dict.fromkeys(PENDING, ("resume", "edit", "fork"))},
    ),
    "other node renamed": Change(names={"end": "finish"}),
    "pending node handed over": Change(names={"approve": "sign_off"}, options={"retired": {"approve": "sign_off"}}),
    "edges changed": Change(detour=True),
}

ran: list[str] = []
mood: dict[str, str] = {}


async def act(role: str) -> str:
    """Ask, fail, or return, as the situation says."""
    if mood["now"] == "asking":
        return str(interrupt(f"{role}?"))
    if mood["now"] == "failed":
        raise Stopped(role)
    return "yes"


@task
async def charge() -> str:
    ran.append("charge")
    return "charged"


def shop(saver: Any, change: Change) -> Any:
    """Compile a version of the graph that the module's docstring describes."""
    keys = {name: hint for name, hint in {**KEYS, **change.keys}.items() if hint is not None}
    lines = "lines" if "lines" in keys else "log"

    def named(role: str) -> str:
        return change.names.get(role, role)

    def says(role: str, **more: Any) -> Callable[[Any], Any]:
        def call(state: Any) -> Any:
            ran.append(role)
            return {lines: [role], **more}

        return call

    async def approve(state: Any) -> Any:
        ran.append("approve")
        return {lines: [await charge(), f"approve {await act('approve')}"]}

    async def work(arg: str) -> Any:
        ran.append(f"work {arg}")
        if arg == "2":
            raise Stopped(arg)
        return {lines: [f"work {arg}"]}

    async def handle(arg: str, error: NodeError) -> Any:
        ran.append(f"handle {arg}")
        return {lines: [f"handled {arg} {await act('work')}"]}

    class Inner(TypedDict, total=False):
        count: int
        answer: str

    def count(state: Inner) -> Any:
        ran.append("count")
        return {"count": state.get("count", 0) + 1}

    async def ask(state: Inner) -> Any:
        ran.append("ask")
        return {"answer": await act("ask")}

    counter = StateGraph(Inner).add_node("count", count).add_edge(START, "count")
    asker = StateGraph(Inner).add_node("count", count).add_node("ask", ask)
    asker.add_edge(START, "count").add_edge("count", "ask")
    inner: Any = asker.compile(blocking=False)
    keeper: Any = counter.compile(checkpointer=True, blocking=False)

    async def called(state: Any) -> Any:
        return {lines: [f"called {(await inner.ainvoke({}))['answer']}"]}

    async def kept(state: Any) -> Any:
        return {lines: [f"kept {(await keeper.ainvoke({}))['count']}"]}

    builder: Any = StateGraph(make_schema("schema", keys, total=False))
    nodes = {"approve": approve, "called": called, "kept": kept, "join": says("join"), "end": says("end")}
    for role, node in {**nodes, "sibling": says("sibling", **change.writes), "work": work}.items():
        options = {"error_handler": handle} if role == "work" else {}
        builder.add_node(named(role), node, **options, **change.rules.get(role, {}))
    starts = [named(role) for role in ("sibling", "approve", "called", "kept")]
    builder.add_conditional_edges(START, lambda state: [Send(named("work"), "1"), Send(named("work"), "2"), *starts])
    builder.add_edge([named("approve"), named("called")], named("join"))
    if change.detour:
        builder.add_node("detour", says("detour")).add_edge(named("join"), "detour").add_edge("detour", named("end"))
    else:
        builder.add_edge(named("join"), named("end"))
    return builder.compile(saver, blocking=False, **change.options)


async def leave(graph: Any, situation: Situation) -> None:
    """Leave a thread of the old code."""
    mood["now"] = situation
    options: dict[str, Any] = {"on_failure": "finish"}
    if situation == "open":
        options["interrupt_before"] = ["approve"]
    given = {"log": ["in"], "name": "Ada", "cents": 250, "item": Item("cap")}
    try:
        await graph.ainvoke(given, "t", **options)
    except* Stopped:
        assert situation == "failed"
    mood["now"] = "done"


class Seen:
    """Do verbs by one version of the code, and show what happens in the terms of the old code."""

    def __init__(self, saver: BaseCheckpointSaver, change: Change) -> None:
        self.change = change
        self.graph = shop(saver, change)
        self.roles = {name: role for role, name in change.names.items()}
        self.lines = "lines" if "lines" in change.keys else "log"

    async def do(self, verb: Verb, thread: str) -> Any:
        """Do a verb on a thread. Return what is seen, and what ran; or the error if it is refused."""
        ran.clear()
        try:
            seen = await getattr(self, verb)(thread)
        except (GraphChangedError, StoredTypeChangedError) as error:
            assert ran == [] and (not isinstance(error, GraphChangedError) or error.mismatches)
            return type(error)
        return seen, sorted(each for each in ran if each != "detour")

    async def read(self, thread: str) -> Any:
        return self.shown(await self.graph.aget_state(thread), ids=True)

    async def history(self, thread: str) -> Any:
        return [self.shown(state, ids=True) for state in await states(self.graph, thread)]

    async def resume(self, thread: str) -> Any:
        state = await self.graph.aget_state(thread)
        if state.next:
            answers = {each.id: "yes" for each in state.interrupts}
            await self.graph.ainvoke(Command(resume=answers) if answers else None, thread)
        return await self.ended(thread)

    async def input(self, thread: str) -> Any:
        await self.graph.ainvoke({self.lines: ["again"]}, thread)
        return await self.ended(thread)

    async def edit(self, thread: str) -> Any:
        role = self.change.names.get("sibling", "sibling")
        await self.graph.aupdate_state(thread, {self.lines: ["by hand"]}, as_node=role)
        if (await self.graph.aget_state(thread)).next:
            await self.graph.ainvoke(None, thread)
        return await self.ended(thread)

    async def fork(self, thread: str) -> Any:
        past = [state for state in await states(self.graph, thread) if len(state.next) > 2][0]
        await self.graph.ainvoke(None, past.config)
        return await self.ended(thread)

    async def ended(self, thread: str) -> Any:
        state = await self.graph.aget_state(thread)
        assert state.changed == () or not ran
        return self.shown(state)

    def shown(self, state: Any, *, ids: bool = False) -> Any:
        """Return a state's values, questions and pending tasks; the ids too for those that the old code has planned."""
        values: dict[str, Any] = {}
        for name, value in {**state.values, **state.unknown}.items():
            old, make = self.change.back.get(name, (name, same))
            values[old] = make(value)
        log = sorted(str(each) for each in values.pop("log", ()) if each != "detour")
        tasks = [(self.roles.get(each.name, each.name), *([each.id] if ids else [])) for each in state.tasks]
        questions = [(each.value, *([each.id] if ids else [])) for each in state.interrupts]
        return values, log, sorted(str(self.roles.get(each, each)) for each in state.next), tasks, questions


def compared(seen: Any, change: Change) -> Any:
    """Return what is seen without the keys that a change leaves out."""
    if isinstance(seen, list):
        return [compared(each, change) for each in seen]
    values, *others = seen
    return {key: value for key, value in values.items() if key not in change.ignored}, *others


@pytest.mark.parametrize("situation", get_args(Situation))
@pytest.mark.parametrize("name", CHANGES)
async def test_each_cell(saver: BaseCheckpointSaver, situation: Situation, name: str) -> None:
    """P15: changed code does what the old code does, or refuses before anything runs."""
    change = CHANGES[name]
    old, new = Seen(saver, CHANGES["nothing"]), Seen(saver, change)
    await leave(old.graph, situation)
    for verb in VERBS:
        ours, theirs = ("t", "t") if verb not in RUNS else (f"{verb} new", f"{verb} old")
        for copy in {ours, theirs} - {"t"}:
            await saver.acopy_thread("t", copy)
        before = await saver.dump(ours)
        expected, found = await old.do(verb, theirs), await new.do(verb, ours)
        assert isinstance(expected, tuple), expected
        if verb in change.refused.get(situation, ()):
            assert found in (GraphChangedError, StoredTypeChangedError), verb
        else:
            assert isinstance(found, tuple), (verb, found)
            assert compared(found[0], change) == compared(expected[0], change), verb
            assert found[1] == expected[1], verb
        if not isinstance(found, tuple) or verb not in RUNS:
            assert await saver.dump(ours) == before, verb  # nothing was stored
    await saver.acopy_thread("t", "resume old again")
    expected, found = await old.do("resume", "resume old again"), await new.do("resume", "t")
    if isinstance(found, tuple):
        assert compared(found[0], change) == compared(expected[0], change) and found[1] == expected[1]
