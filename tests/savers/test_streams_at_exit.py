"""With `durability="exit"`, the checkpoints in streams agree with the thread's history."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.types import Durability
from tests.helpers.each_saver import SAVERS, Open, opener

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def chain(*names: str, asks: bool = False) -> StateGraph[State]:
    """Nodes one after the other, each of which logs its name; the last one asks a question."""

    def node(name: str) -> Any:
        async def call(state: State) -> State:
            return {"log": [interrupt(name) if asks and name == names[-1] else name]}

        return call

    made = StateGraph(State)
    for before, name in zip((START, *names), names, strict=False):
        made.add_node(name, node(name)).add_edge(before, name)
    return made


@pytest.fixture(params=SAVERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with opener(request.param, tmp_path) as opens:
        yield opens


class ShownCheckpoints:
    """The checkpoints that the streams of some runs have shown."""

    def __init__(self, graph: Any, durability: Durability = "exit") -> None:
        self.graph = graph
        self.durability = durability
        self.seen: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    async def run(self, given: Any, config: Any = "t") -> None:
        modes: Any = ["checkpoints", "debug"]
        async for ns, mode, chunk in self.graph.astream(
            given, config, stream_mode=modes, subgraphs=True, durability=self.durability
        ):
            if mode == "checkpoints":
                self.seen.append((ns, chunk))
            elif chunk["type"] == "checkpoint":
                assert chunk["payload"]["config"] == self.seen[-1][1]["config"]
                assert chunk["payload"]["parent_config"] == self.seen[-1][1]["parent_config"]

    async def check(self, saver: Any) -> int:
        """Compare them with history. Return how many of them are stored."""
        stored = {each.config["configurable"]["checkpoint_id"] async for each in saver.alist("t")}
        compared = 0
        for _, chunk in self.seen:
            parent = chunk["parent_config"]
            assert parent is None or parent["configurable"]["checkpoint_id"] in stored
            if chunk["config"]["configurable"]["checkpoint_id"] in stored:
                compared += 1
                snapshot = await self.graph.aget_state(chunk["config"])
                assert snapshot.config == chunk["config"]
                assert snapshot.parent_config == chunk["parent_config"]
                assert (snapshot.values, snapshot.metadata) == (chunk["values"], chunk["metadata"])
                assert [task.id for task in snapshot.tasks] == [task["id"] for task in chunk["tasks"]]
                assert list(snapshot.next) == chunk["next"] or snapshot.tasks[0].interrupts
        return compared


async def test_parents_exist(opened: Open) -> None:
    """P4: in new and later runs, with questions, answers and forks, each part's parent is a checkpoint that exists,
    and a part whose checkpoint is stored equals its snapshot."""
    async with opened() as saver:
        graph = chain("a", "b", "c", asks=True).compile(saver)
        shown = ShownCheckpoints(graph)
        await shown.run({"log": ["1"]})
        assert await shown.check(saver) == 1
        await shown.run(Command(resume="c"))
        await shown.run({"log": ["2"]})
        assert await shown.check(saver) == 3
        first = [each async for each in graph.aget_state_history("t")][-1].config
        await shown.run(None, first)
        await shown.run(Command(resume="c"))
        assert await shown.check(saver) == 4
        assert len(shown.seen) > 8


@pytest.mark.parametrize("keeps", [None, True])
async def test_parents_exist_in_subgraphs(keeps: bool | None) -> None:
    """P4: the same holds for subgraphs, whose checkpoints are stored if they stop, or if they keep their state."""
    saver = InMemorySaver()
    inside = chain("a", "b", "c", asks=True).compile(keeps)
    builder = StateGraph(State).add_node("inside", inside).add_node("again", lambda state: {"log": ["again"]})
    graph = builder.add_edge(START, "inside").add_edge("inside", "again").compile(saver)
    shown = ShownCheckpoints(graph)
    for _ in range(2):
        await shown.run({"log": []})
        await shown.run(Command(resume="c"))
    assert await shown.check(saver) >= 4


async def test_other_durabilities_store_each_superstep() -> None:
    """With "sync" each checkpoint is stored, and is the parent of the next."""
    saver = InMemorySaver()
    shown = ShownCheckpoints(chain("a", "b").compile(saver), "sync")
    await shown.run({"log": []})
    assert await shown.check(saver) == len(shown.seen)
    ids = [chunk["config"]["configurable"]["checkpoint_id"] for _, chunk in shown.seen]
    parents = [
        chunk["parent_config"]["configurable"]["checkpoint_id"] for _, chunk in shown.seen if chunk["parent_config"]
    ]
    assert parents == ids[-1 - len(parents) : -1]
