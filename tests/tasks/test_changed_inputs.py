"""P2: a subgraph's stored state is compared with the input of the graph that the node runs at the same position when it
runs again."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import (
    START,
    Command,
    NodeError,
    RetryPolicy,
    StateGraph,
    add_messages,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.errors import CallsChangedError
from pregel_async.types import Durability

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "t"}}
DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Invoice(TypedDict, total=False):
    name: str
    log: Annotated[list[str], operator.add]


class Interruption(Exception):
    """Raised in place of anything that ends a run in the middle of a node."""


class Office:
    """A node that runs a graph for each file of a folder, one by one.

    Args:
        dies_before: the file before whose second superstep the run ends; None for none.
        options: options of the graph. A graph named "asking" asks about each file before it pays.
    """

    def __init__(self, *names: str, dies_before: str | None = None, **options: Any) -> None:
        self.names = list(names)
        self.dies_before = dies_before
        self.paid: list[str] = []

        async def read(state: Invoice) -> Invoice:
            return {"log": [f"read {state['name']}"]}

        async def pay(state: Invoice) -> Invoice:
            if state["name"] == self.dies_before:
                raise Interruption
            said = interrupt(f"Pay {state['name']}?") if self.graph.name == "asking" else "paid"
            self.paid.append(state["name"])
            return {"log": [f"{said} {state['name']}"]}

        builder = StateGraph(Invoice).add_node("read", read).add_node("pay", pay)
        self.graph = builder.add_edge(START, "read").add_edge("read", "pay").compile(**{"name": "invoice", **options})

    async def __call__(self, state: State) -> State:
        log: list[str] = []
        for name in sorted(self.names):
            log += (await self.graph.ainvoke({"name": name, "log": []}))["log"]
        return {"log": log}


def graph_of(node: Any, saver: BaseCheckpointSaver, **options: Any) -> Any:
    return StateGraph(State).add_node("office", node, **options).add_edge(START, "office").compile(saver)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("kept", [None, True])
async def test_a_state_is_not_given_to_another_input(
    saver: BaseCheckpointSaver, durability: Durability, kept: bool | None
) -> None:
    """The graph that ran for b.txt is not continued for a.txt, which was added since; nothing runs, and the old code
    can resume."""
    office = Office("b.txt", "c.txt", dies_before="c.txt", checkpointer=kept)
    graph = graph_of(office, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG, durability=durability)
    office.names.append("a.txt")
    office.dies_before = None
    with pytest.raises(CallsChangedError, match=r"has other input.*run each graph in a @task") as failed:
        await graph.ainvoke(None, CONFIG, durability=durability)
    error = failed.value
    assert (error.node, error.superstep, error.number) == ("office", 1, 1)
    assert (error.kind, error.recorded, error.asked) == ("graph", "invoice", "invoice")
    assert office.paid == ["b.txt"]
    office.names.remove("a.txt")
    done = await graph.ainvoke(None, CONFIG, durability=durability)
    assert done["log"] == ["read b.txt", "paid b.txt", "read c.txt", "paid c.txt"]
    assert office.paid == ["b.txt", "c.txt"]


async def test_an_answer_is_not_given_to_the_graph_of_another_input(saver: BaseCheckpointSaver) -> None:
    """P8: "yes" to one payment is not used for another."""
    office = Office("b.txt", name="asking")
    graph = graph_of(office, saver)
    (question,) = (await graph.ainvoke({"log": []}, CONFIG))["__interrupt__"]
    office.names.append("a.txt")
    with pytest.raises(CallsChangedError):
        await graph.ainvoke(Command(resume={question.id: "yes"}), CONFIG)
    assert office.paid == []
    office.names.remove("a.txt")
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["read b.txt", "yes b.txt"]


async def test_another_graph_is_not_given_the_state(saver: BaseCheckpointSaver) -> None:
    """Two graphs with the same nodes are distinguished by their names."""
    first, second = Office("b.txt", dies_before="b.txt"), Office("b.txt", name="refund")
    using = [first]

    async def office(state: State) -> State:
        return await using[0](state)

    graph = graph_of(office, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    using[0] = second
    with pytest.raises(CallsChangedError, match="runs graph 'refund' instead") as failed:
        await graph.ainvoke(None, CONFIG)
    assert (failed.value.recorded, failed.value.asked) == ("invoice", "refund")


async def test_the_node_cannot_swallow_it(saver: BaseCheckpointSaver) -> None:
    """The node fails with the error, is not retried, and no error handler runs."""
    office, handled, tries = Office("b.txt", dies_before="b.txt"), list[NodeError](), list[None]()

    async def careful(state: State) -> State:
        tries.append(None)
        try:
            return await office(state)
        except CallsChangedError:
            return {"log": ["swallowed"]}

    def handle(state: State, error: NodeError) -> State:
        handled.append(error)
        return {}

    with pytest.raises(Interruption):
        await graph_of(careful, saver).ainvoke({"log": []}, CONFIG)
    office.names, office.dies_before = ["a.txt"], None
    retry = RetryPolicy(retry_on=Exception, initial_interval=0.0, jitter=False)
    graph = graph_of(careful, saver, retry_policy=retry, error_handler=handle)
    with pytest.raises(CallsChangedError):
        await graph.ainvoke(None, CONFIG)
    assert (len(tries), handled) == (2, [])


async def test_graphs_in_named_calls_may_come_in_another_order(saver: BaseCheckpointSaver) -> None:
    """The remedy that the message names: each state belongs to a call that is identified by a name."""
    office = Office("b.txt", "c.txt", dies_before="c.txt")

    @task
    async def work(name: str) -> list[str]:
        log: list[str] = (await office.graph.ainvoke({"name": name, "log": []}))["log"]
        return log

    async def each(state: State) -> State:
        return {"log": [line for name in sorted(office.names) for line in await work.named(name)(name)]}

    graph = graph_of(each, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    office.names.append("a.txt")
    office.dies_before = None
    done = await graph.ainvoke(None, CONFIG)
    assert [line for line in done["log"] if "paid" in line] == ["paid a.txt", "paid b.txt", "paid c.txt"]
    assert office.paid == ["b.txt", "a.txt", "c.txt"]


async def test_graphs_in_tasks_of_the_nodes_own_are_found_by_their_input(saver: BaseCheckpointSaver) -> None:
    """Graphs in concurrent tasks of the node have no order, so another file is another run."""
    office = Office("b.txt", "c.txt", dies_before="c.txt")

    async def each(state: State) -> State:
        got: dict[str, list[str]] = {}

        async def one(name: str) -> None:
            got[name] = (await office.graph.ainvoke({"name": name, "log": []}))["log"]

        for name in sorted(office.names):
            async with anyio.create_task_group() as group:
                group.start_soon(one, name)
        return {"log": [line for name in sorted(got) for line in got[name]]}

    graph = graph_of(each, saver)
    with pytest.raises(BaseExceptionGroup):
        await graph.ainvoke({"log": []}, CONFIG)
    office.names.append("a.txt")
    office.dies_before = None
    await graph.ainvoke(None, CONFIG)
    assert office.paid == ["b.txt", "a.txt", "c.txt"]


class Chat(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[Any], add_messages]


async def test_differences_between_attempts_do_not_count(saver: BaseCheckpointSaver) -> None:
    """A message that the node makes without an id counts as the same one again."""
    dies = [True]

    async def work(state: Chat) -> Chat:
        if dies:
            raise Interruption
        return {"log": [f"{len(state['messages'])} messages"]}

    inside = StateGraph(Chat).add_node("work", work).add_edge(START, "work").compile()

    async def outside(state: Chat) -> Chat:
        said = {"role": "user", "content": "hello"}
        given: Any = {**state, "messages": [*state["messages"], said]}
        return {"log": (await inside.ainvoke(given))["log"]}

    builder = StateGraph(Chat).add_node("first", lambda state: {}).add_node("outside", outside)
    graph = builder.add_edge(START, "first").add_edge("first", "outside").compile(saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": [], "messages": [{"role": "user", "content": "hi"}]}, CONFIG)
    dies.clear()
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["2 messages"]


async def test_a_workflow_as_a_subgraph_is_compared_too(saver: BaseCheckpointSaver) -> None:
    given, dies = [{"name": "b.txt"}], [True]

    @entrypoint()
    async def inside(invoice: dict[str, str]) -> str:
        if dies:
            raise Interruption
        return invoice["name"]

    async def outside(state: State) -> State:
        return {"log": [await inside.ainvoke(given[0])]}

    graph = graph_of(outside, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    dies.clear()
    given[0] = {"name": "a.txt"}
    with pytest.raises(CallsChangedError):
        await graph.ainvoke(None, CONFIG)
    given[0] = {"name": "b.txt"}
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["b.txt"]


async def test_an_edited_subgraph_state_stays_with_its_input(saver: BaseCheckpointSaver) -> None:
    """A checkpoint that `aupdate_state` makes in a subgraph records the graph's input, like the one before it."""
    office = Office("b.txt", dies_before="b.txt")
    inside = office.graph

    async def pay(state: State) -> State:
        return {"log": (await inside.ainvoke({"name": office.names[0], "log": []}))["log"]}

    graph = graph_of(pay, saver)
    with pytest.raises(Interruption):
        await graph.ainvoke({"log": []}, CONFIG)
    (pending,) = (await graph.aget_state(CONFIG)).tasks
    inner = {"configurable": {"thread_id": "t", "checkpoint_ns": f"office:{pending.id}"}}
    await graph.aupdate_state(inner, {"log": ["edited"]}, as_node="read")
    office.names, office.dies_before = ["a.txt"], None
    with pytest.raises(CallsChangedError):
        await graph.ainvoke(None, CONFIG)


async def test_the_state_of_a_graph_as_a_node_is_not_digested(saver: BaseCheckpointSaver) -> None:
    """The input of a graph as a node is the state, which is the same for each attempt: a digest of all messages would
    be wasted."""
    inside = StateGraph(Invoice).add_node("n", lambda state: {"log": ["n"]}).add_edge(START, "n").compile()
    graph = StateGraph(Invoice).add_node("inside", inside).add_edge(START, "inside").compile(saver)
    await graph.ainvoke({"name": "x", "log": []}, CONFIG)
    found = [each.metadata async for each in saver.alist(CONFIG)]
    assert len(found) > 3
    assert not any("__given__" in metadata for metadata in found)
