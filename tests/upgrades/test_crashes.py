"""A process dies at each write of the first transactions after an upgrade: the thread has its old form or its new one."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, Literal, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt, task
from pregel_async.testing import Crash, Fault, FaultySaver
from pregel_async.types import REMOVED, Added, Durability, Renamed, Retyped, StoredState
from tests.helpers.environments import SeededEnvironment

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    pytest.mark.filterwarnings("ignore::pregel_async.errors.UnknownStoredKeyWarning"),  # of the old code
]

Change = Literal["resume", "input", "edit", "resume with update"]

OLD_KEYS = {"log", "name", "cents", "legacy", "net"}
NEW_KEYS = {"log", "customer", "price", "vat", "total"}


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str
    cents: int
    legacy: str
    net: int


class New(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    customer: Annotated[str, Renamed("name")]
    price: Annotated[str, Retyped(lambda cents: f"{cents / 100:.2f}", was="cents")]
    vat: Annotated[int, Added(19)]
    total: int


class Count(TypedDict, total=False):
    count: int


def to_2(old: StoredState) -> dict[str, Any]:
    return {"total": old["net"] + 1, "net": REMOVED} if "net" in old else {}


class Shop:
    """Two versions of a graph: a sibling, a node that calls a task and asks, a kept graph, a join, and a last node.

    Attributes:
        ran: how often each function ran.
    """

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.environment = SeededEnvironment()

    def graph(self, saver: BaseCheckpointSaver, *, new: bool) -> Any:
        ran = self.ran

        @task
        async def charge() -> str:
            ran["charge"] += 1
            return "charged"

        async def approve(state: Any) -> Any:
            ran["approve"] += 1
            return {"log": [await charge(), interrupt("good?")]}

        def sibling(state: Any) -> Any:
            ran["sibling"] += 1
            return {"log": ["sibling"], **({} if new else {"cents": 300, "legacy": "written"})}

        def add(state: Count) -> Count:
            ran["add"] += 1
            return {"count": state.get("count", 0) + 1}

        kept = StateGraph(Count).add_node("add", add).add_edge(START, "add").compile(checkpointer=True, blocking=False)

        async def counts(state: Any) -> Any:
            return {"log": [f"count {(await kept.ainvoke({})).get('count')}"]}

        def end(state: Any) -> Any:
            ran["end"] += 1
            return {"log": ["end"]}

        was = dict[str, Any](was="approve") if new else {}
        kept_was = dict[str, Any](was="counts") if new else {}
        ask, count = ("sign_off", "tally") if new else ("approve", "counts")
        builder: Any = StateGraph(New if new else Old)
        builder.add_node("sibling", sibling).add_node(ask, approve, **was).add_node(count, counts, **kept_was)
        builder.add_node("end", end).add_edge(START, "sibling").add_edge(START, ask).add_edge(START, count)
        builder.add_edge(["sibling", ask, count], "end")
        options = dict[str, Any](version=2, migrations={2: to_2}, removed=["legacy"]) if new else {}
        return builder.compile(saver, blocking=False, environment=self.environment, **options)

    async def begin(self, saver: BaseCheckpointSaver, *, idle: bool) -> None:
        """Leave a thread of the old code, idle or with an open question."""
        old = self.graph(saver, new=False)
        await old.ainvoke({"name": "Ada", "cents": 250, "legacy": "in", "net": 9}, "t")
        if idle:
            await old.ainvoke(Command(resume="yes"), "t")
        self.ran.clear()

    async def change(self, saver: BaseCheckpointSaver, change: Change, durability: Durability) -> None:
        """Make one call of the new code, which may have been made by a process that has died."""
        graph = self.graph(saver, new=True)
        state = await graph.aget_state("t")
        if change == "edit":
            if "count 9" not in state.values["log"]:
                await graph.aupdate_state("t", {"log": ["count 9"]}, as_node="end")
        elif change == "input":
            if state.values["customer"] != "Bob" or ("end" not in state.values["log"][-1:] and not state.next):
                await graph.ainvoke({"customer": "Bob"}, "t", durability=durability)
            elif state.next and not state.interrupts:
                await graph.ainvoke(None, "t", durability=durability)
        elif state.next:
            answered = not state.interrupts
            given: Any = None if answered else Command(resume="yes")
            if change == "resume with update" and "updated" not in state.values["log"]:
                given = Command(resume="yes", update={"log": ["updated"]})
            await graph.ainvoke(given, "t", durability=durability)


async def keys_in(saver: BaseCheckpointSaver) -> set[str]:
    stored = await saver.aget_tuple("t")
    assert stored is not None
    names = stored.checkpoint["channel_versions"]
    return {name for name in names if not name.startswith(("join", "branch", "__"))}


CASES: list[tuple[bool, Change]] = [
    (True, "input"),
    (True, "edit"),
    (False, "resume"),
    (False, "resume with update"),
    (False, "input"),
    (False, "edit"),
]


async def died_at(
    inner: BaseCheckpointSaver, idle: bool, change: Change, at: int, when: Any, durability: Durability
) -> tuple[Any, Shop, bool]:
    """Make a change whose process dies at a write, and finish it. Return what is stored, what ran, and if it died."""
    shop = Shop()
    await shop.begin(inner, idle=idle)
    saver = FaultySaver(inner, Fault(how="crash", at=at, when=when)) if at else inner
    try:
        await shop.change(saver, change, durability)
    except Crash:
        assert isinstance(saver, FaultySaver)
        await saver.restart()
    found = await keys_in(inner)
    assert found <= OLD_KEYS or found <= NEW_KEYS, found
    happened = isinstance(saver, FaultySaver) and bool(saver.happened)
    if happened:
        # The old code meets the old form and reads it, or the new one and is refused.
        state = await shop.graph(inner, new=False).aget_state("t")
        assert [each.kind for each in state.changed][:1] in ([], ["version"])
        await shop.change(inner, change, durability)
    state = await shop.graph(inner, new=True).aget_state("t")
    assert (state.changed, state.unknown) == ((), {})
    assert await keys_in(inner) <= NEW_KEYS
    return (state.values, state.next, [each.value for each in state.interrupts]), shop, happened


@pytest.mark.parametrize(
    ("idle", "change", "durability"),
    [
        *[(*case, "sync") for case in CASES],
        *[(False, "resume", each) for each in ("async", "exit")],
        (True, "input", "exit"),
    ],
)
async def test_each_write(idle: bool, change: Change, durability: Durability) -> None:
    """P5, P15: after a death at any write, the thread has its old form or its new one, never both; no trigger fires
    twice, and no recorded task runs again."""
    expected, undisturbed, _ = await died_at(InMemorySaver(), idle, change, 0, "before", durability)
    for when in ("before", "after"):
        for at in range(1, 40):
            found, shop, happened = await died_at(InMemorySaver(), idle, change, at, when, durability)
            assert found == expected, (at, when)
            if change.startswith("resume"):
                assert shop.ran["charge"] == shop.ran["sibling"] == shop.ran["add"] == 0
            elif durability == "sync":
                assert shop.ran["charge"] - undisturbed.ran["charge"] <= 1
            if not happened:
                assert at > 2
                break
        else:
            raise AssertionError("it never ended")
