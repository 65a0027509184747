"""P2, P8: wherever a process dies, no state of a subgraph is used for another input: crash points at each call of each
saver."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, StateGraph
from pregel_async.errors import CallsChangedError
from pregel_async.types import Durability
from tests.durability.streaming_graphs import Crashing, died
from tests.helpers.each_saver import SAVERS, Open, opener
from tests.helpers.environments import SeededEnvironment

pytestmark = pytest.mark.anyio

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")


@pytest.fixture(params=SAVERS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with opener(request.param, tmp_path) as opens:
        yield opens


class State(TypedDict, total=False):
    name: str
    log: Annotated[list[str], operator.add]


def graph_of(saver: BaseCheckpointSaver, names: list[str], environment: SeededEnvironment) -> Any:
    """Return a node that runs a graph of two supersteps for each name."""
    builder = StateGraph(State).add_node("read", lambda state: {"log": [f"read {state['name']}"]})
    builder.add_node("pay", lambda state: {"log": [f"paid {state['name']}"]})
    inside = builder.add_edge(START, "read").add_edge("read", "pay").compile()

    async def office(state: State) -> State:
        return {"log": [line for name in names for line in (await inside.ainvoke({"name": name, "log": []}))["log"]]}

    made = StateGraph(State).add_node("office", office).add_edge(START, "office")
    return made.compile(saver, environment=environment)


def lines(*names: str) -> list[str]:
    return [line for name in names for line in (f"read {name}", f"paid {name}")]


@pytest.mark.pairwise
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_crash_at_every_call(durability: Durability, after: bool, opened: Open) -> None:
    """The process dies at a call of storage, and the resumed node gets its files in another order. The node refuses
    that, or has stored nothing of the subgraphs and runs them for each file. No file gets the state of another."""
    environment, refused = SeededEnvironment(), 0
    async with opened() as saver:
        for at in range(1, 100):
            thread: Any = f"{at}"
            try:
                graph = graph_of(Crashing(saver, at, after=after), ["b", "c"], environment)
                await graph.ainvoke({"log": []}, thread, durability=durability)
            except BaseException as error:
                assert died(error), error
            else:
                break
            environment.time += 100
            changed = graph_of(saver, ["a", "b", "c"], environment)
            if (await changed.aget_state({"configurable": {"thread_id": thread}})).next:
                try:
                    assert (await changed.ainvoke(None, thread))["log"] == lines("a", "b", "c")
                except CallsChangedError as error:
                    assert (error.kind, error.number) == ("graph", 1)
                    refused += 1
                    assert (await graph_of(saver, ["b", "c"], environment).ainvoke(None, thread))["log"] == lines(
                        "b", "c"
                    )
        else:
            raise AssertionError("it never got through")
    assert (refused > 2) == (durability != "exit")
