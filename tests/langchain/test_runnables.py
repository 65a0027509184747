"""Graphs as runnables of langchain-core, and runnables as nodes of graphs."""

from __future__ import annotations

import operator
import subprocess
import sys
from typing import Annotated, Any

import pytest
from typing_extensions import TypedDict

pytest.importorskip("langchain_core", reason="langchain-core is not installed here: nox -s langchain installs it")

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableSequence

from pregel_async import END, START, NodeBuilder, Pregel, StateGraph
from pregel_async.channels import LastValue
from pregel_async.langchain import GraphRunnable
from tests.langchain.recorder import Recorder, model

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int
    log: Annotated[list[str], operator.add]


def count(state: State) -> Any:
    return {"log": [f"x{state.get('x')}"]}


def graph() -> Any:
    return StateGraph(State).add_node(count).add_edge(START, "count").compile(name="g")


def test_a_graph_is_a_runnable() -> None:
    """A graph that is compiled after langchain-core's runnables were imported is a virtual subclass; `as_runnable()`
    makes a real one."""
    assert isinstance(graph(), Runnable)
    made = graph().as_runnable()
    assert type(made) is GraphRunnable
    assert isinstance(made, Runnable)
    assert made.get_name() == graph().get_name() == "g"
    assert made.invoke({"x": 1}) == {"x": 1, "log": ["x1"]}


@pytest.mark.parametrize("first", ["import langchain_core.runnables as r; ", ""], ids=["before", "after"])
def test_when_a_graph_becomes_a_runnable(first: str) -> None:
    """Compiling imports no langchain-core. Graphs are registered by `compile()` if it is imported already, by the import
    of `pregel_async.langchain`, and by `as_runnable()`."""
    code = (
        f"import sys; {first}"
        "from pregel_async import START, StateGraph\n"
        "g = StateGraph(dict).add_node('n', lambda s: {}).add_edge(START, 'n').compile()\n"
        "print('langchain_core' in sys.modules)\n"
        "import langchain_core.runnables as r\n"
        "print(isinstance(g, r.Runnable))\n"
        "import pregel_async.langchain\n"
        "print(isinstance(g, r.Runnable))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = bool(first)
    assert ran.stdout.split() == [str(imported), str(imported), "True"]


@pytest.mark.one_loop
async def test_graphs_compose() -> None:
    """A graph is a step of a chain, on either side of `|`, with all verbs of the chain."""
    before = RunnableLambda(lambda x: {"x": x})
    for chain in (before | graph() | RunnableLambda(lambda state: state), before.pipe(graph()), before | graph()):
        assert isinstance(chain, RunnableSequence)
        assert await chain.ainvoke(3) == {"x": 3, "log": ["x3"]}
        assert await chain.abatch([1, 2]) == [{"x": 1, "log": ["x1"]}, {"x": 2, "log": ["x2"]}]
        assert [chunk async for chunk in chain.astream(5)] == [{"count": {"log": ["x5"]}}]
    after = graph() | (lambda state: state["log"])
    assert await after.ainvoke({"x": 1}) == ["x1"]
    assert await ((lambda x: {"x": x}) | graph()).ainvoke(9) == {"x": 9, "log": ["x9"]}
    assert await graph().pipe(lambda state: state["x"]).ainvoke({"x": 3}) == 3
    assert await graph().map().ainvoke([{"x": 1}, {"x": 2}]) == [{"x": 1, "log": ["x1"]}, {"x": 2, "log": ["x2"]}]
    assert await graph().with_retry().ainvoke({"x": 1}) == {"x": 1, "log": ["x1"]}
    assert await graph().bind().ainvoke({"x": 1}) == {"x": 1, "log": ["x1"]}


def test_chains_run_graphs_by_sync_methods() -> None:
    """`invoke`, `batch` and `stream` of a chain run a graph in it."""
    chain = RunnableLambda(lambda x: {"x": x}) | graph() | RunnableLambda(lambda state: state)
    assert chain.invoke(3) == {"x": 3, "log": ["x3"]}
    assert chain.batch([1, 2]) == [{"x": 1, "log": ["x1"]}, {"x": 2, "log": ["x2"]}]
    assert list(chain.stream(5)) == [{"count": {"log": ["x5"]}}]
    assert list(graph().as_runnable().stream({"x": 1})) == [{"count": {"log": ["x1"]}}]


@pytest.mark.one_loop
async def test_fallbacks() -> None:
    """A graph falls back on another, and is one."""

    def fail(state: State) -> Any:
        raise ValueError("no")

    fails = StateGraph(State).add_node(fail).add_edge(START, "fail").compile()
    assert await fails.with_fallbacks([graph()]).ainvoke({"x": 1}) == {"x": 1, "log": ["x1"]}


@pytest.mark.one_loop
@pytest.mark.filterwarnings("ignore:This API is in beta")
async def test_a_graph_as_a_tool() -> None:
    """`as_tool` makes a tool whose arguments are the keys of the input schema; callbacks see the graph in it."""
    recorder = Recorder()
    made = graph().as_tool(name="counts", description="Counts.")
    assert sorted(made.args) == ["log", "x"]
    assert await made.ainvoke({"x": 1, "log": []}, {"callbacks": [recorder]}) == {"x": 1, "log": ["x1"]}
    assert recorder.tree == ["counts done", "  g done", "    count done"]


@pytest.mark.one_loop
async def test_a_chain_is_a_node() -> None:
    """`prompt | model | parser` is a node as it is: its steps are nested in the node's run, its tokens are streamed, and
    the node's settings reach it."""
    recorder, seen = Recorder(), list[Any]()

    def as_update(text: str, config: Any) -> Any:
        seen.append((config["configurable"]["mine"], config["metadata"]["langgraph_node"]))
        return {"log": [text]}

    chain = ChatPromptTemplate.from_messages([("human", "{x}")]) | model() | StrOutputParser() | as_update
    made = StateGraph(State).add_node("chat", chain).add_edge(START, "chat").compile(name="g")
    config = {"callbacks": [recorder], "configurable": {"mine": 1}}
    assert await made.ainvoke({"x": 1}, config) == {"x": 1, "log": ["hello there"]}
    assert seen == [(1, "chat")]
    assert recorder.tree == [
        "g done",
        "  chat done",
        "    ChatPromptTemplate done",
        "    model done",
        "    StrOutputParser done",
        "    as_update done",
    ]
    assert [run.tags for run in [*recorder.runs.values()][2:]] == [[f"seq:step:{n}"] for n in (1, 2, 3, 4)]
    tokens = [message.content async for message, _ in made.astream({"x": 1}, config, stream_mode="messages")]
    assert tokens == ["hello", " ", "there"]


async def test_runnables_are_nodes_and_routers_on_every_event_loop() -> None:
    """A runnable without a name of its own is named as langchain-core names it; routers and `NodeBuilder.do` take
    runnables too. On trio their sync methods are used."""

    def route(state: State) -> str:
        return "second" if len(state["log"]) < 2 else END

    def second(state: State) -> Any:
        return {"log": ["second"]}

    builder = StateGraph(State).add_node(RunnableLambda(count)).add_node(RunnableLambda(second))
    builder.add_edge(START, "count").add_conditional_edges("count", RunnableLambda(route), ["second", END])
    assert await builder.compile().ainvoke({"x": 1}) == {"x": 1, "log": ["x1", "second"]}

    node = NodeBuilder().subscribe_only("a").do(RunnableLambda(lambda a: a + 1)).write_to("b")
    pregel = Pregel(
        nodes={"n": node}, channels={"a": LastValue(int), "b": LastValue(int)}, input_channels="a", output_channels="b"
    )
    assert await pregel.ainvoke(1) == 2


@pytest.mark.one_loop
async def test_a_graph_as_runnable_is_a_node() -> None:
    """The runnable of a graph is a node too, nested in its callbacks."""
    recorder = Recorder()
    made = StateGraph(State).add_node("n", graph().as_runnable()).add_edge(START, "n").compile(name="outer")
    assert await made.ainvoke({"x": 1}, {"callbacks": [recorder]}) == {"x": 1, "log": ["x1"]}
    assert recorder.tree == ["outer done", "  n done", "    g done", "      count done"]
