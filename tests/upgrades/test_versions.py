"""The version of a graph's code in stored threads."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, Pregel, StateGraph, entrypoint, interrupt
from pregel_async.channels import LastValue
from pregel_async.errors import GraphChangedError, GraphValidationError, GraphVersionError
from pregel_async.node import NodeBuilder

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    n: int


ran: list[str] = []


def graph(saver: Any, **options: Any) -> Any:
    def ask(state: State) -> State:
        ran.append("ask")
        return {"n": interrupt("how many?")}

    return StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(saver, blocking=False, **options)


async def test_each_checkpoint_has_the_version(saver: BaseCheckpointSaver) -> None:
    """P15: the metadata of each checkpoint has the version of the code that made it; listings filter by it."""
    await graph(saver).ainvoke({}, "t")
    assert "__version__" not in (await graph(saver).aget_state("t")).metadata
    two = graph(saver, version=2)
    assert await two.ainvoke(Command(resume=7), "t") == {"n": 7}
    assert [s.metadata.get("__version__") async for s in two.aget_state_history("t")] == [2, None, None]
    assert [s.values async for s in two.aget_state_history("t", filter={"__version__": 2})] == [{"n": 7}]
    await two.aupdate_state("t", {"n": 8})
    assert (await two.aget_state("t")).metadata["__version__"] == 2
    given = {"configurable": {"thread_id": "u"}, "metadata": {"__version__": 9}}  # the runtime's own key
    await two.ainvoke({}, given)
    assert (await two.aget_state("u")).metadata["__version__"] == 2


async def test_a_greater_version_is_not_run(saver: BaseCheckpointSaver) -> None:
    """P15: a thread of a greater version is refused by calls, resumes and edits before anything runs; it can be read."""
    await graph(saver, version=4).ainvoke({}, "t")
    ran.clear()
    before = await graph(saver, version=4).aget_state("t")
    for options, version in (({"version": 3}, 3), ({}, 1)):
        old = graph(saver, **options)
        for value in (None, {}, Command(resume=1)):
            with pytest.raises(GraphVersionError, match="'t'.*version 4 of graph 'StateGraph'.*version") as caught:
                await old.ainvoke(value, "t")
            assert (caught.value.stored, caught.value.version, caught.value.thread_id) == (4, version, "t")
        with pytest.raises(GraphChangedError):
            await old.aupdate_state("t", {"n": 1})
        state = await old.aget_state("t")
        assert (state.next, state.interrupts) == (before.next, before.interrupts)
        assert [(each.kind, each.blocks) for each in state.changed] == [("version", "all")]
        assert state.changed == caught.value.mismatches
    assert ran == [] and await graph(saver, version=4).aget_state("t") == before
    assert await graph(saver, version=5).ainvoke(Command(resume=1), "t") == {"n": 1}


async def test_a_fork_keeps_the_version_of_its_values() -> None:
    """P15: a copy of an old checkpoint has the old values, and so the old version."""
    saver = InMemorySaver()
    await graph(saver).ainvoke({}, "t")
    first = (await graph(saver).aget_state("t")).config
    await graph(saver).ainvoke(Command(resume=7), "t")
    await graph(saver, version=3).ainvoke(None, first)  # asks again, on a copy of the checkpoint
    copy = await graph(saver, version=3).aget_state("t")
    assert (copy.metadata["source"], "__version__" in copy.metadata) == ("fork", False)
    await graph(saver, version=3).ainvoke(Command(resume=7), "t")
    assert (await graph(saver, version=3).aget_state("t")).metadata["__version__"] == 3


@pytest.mark.parametrize("version", [0, -1, True, 1.5, "2"])
def test_an_invalid_version(version: Any) -> None:
    """A version is a whole number from 1 on."""
    with pytest.raises(GraphValidationError, match="version is a whole number"):
        graph(None, version=version)


async def test_all_graphs_take_a_version() -> None:
    """`Pregel` and `@entrypoint` take a version too."""
    saver = InMemorySaver()
    nodes = {"n": NodeBuilder().subscribe_only("in").write_to("out")}
    channels = {"in": LastValue(int), "out": LastValue(int)}
    pregel = Pregel(
        nodes=nodes, channels=channels, input_channels="in", output_channels="out", checkpointer=saver, version=2
    )
    await pregel.ainvoke(1, "t")

    @entrypoint(saver, version=3)
    async def work(n: int) -> int:
        return n

    await work.ainvoke(1, "u")
    graphs: list[Any] = [pregel, work]
    assert [(await each.aget_state(at)).metadata["__version__"] for each, at in zip(graphs, "tu", strict=True)] == [
        2,
        3,
    ]
