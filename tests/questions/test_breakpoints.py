"""Static breakpoints: where a run stops between two supersteps, and how it resumes."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import END, START, Command, Send, StateGraph, interrupt
from pregel_async.errors import ConfigError, EmptyInputError, GraphRecursionError, InvalidResumeError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


class Chain:
    """`a`, `b`, `c`, one after the other; nodes marked as broken fail."""

    def __init__(self, saver: BaseCheckpointSaver | None, **settings: Any) -> None:
        self.ran = Counter[str]()
        self.broken: set[str] = set()
        made = StateGraph(State).add_sequence([(name, self.node(name)) for name in "abc"])
        self.graph: Any = made.add_edge(START, "a").compile(saver, **settings)

    def node(self, name: str) -> Any:
        async def call(state: State) -> Any:
            self.ran[name] += 1
            if name in self.broken:
                raise ValueError(name)
            return {"log": [name]}

        return call


async def steps(graph: Any, *calls: Any, thread: str = "t", **settings: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Return what has run and what is next after each call: the input, and then None until nothing is left."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for given in calls or ({},):
        result = await graph.ainvoke(given, thread, **settings)
        found.append(("".join(result["log"]), (await graph.aget_state(thread)).next))
    while found[-1][1]:
        result = await graph.ainvoke(None, thread, **settings)
        found.append(("".join(result["log"]), (await graph.aget_state(thread)).next))
        assert len(found) < 20
    return found


STOPS: list[tuple[dict[str, Any], list[tuple[str, tuple[str, ...]]]]] = [
    ({"interrupt_before": ["a"]}, [("", ("a",)), ("abc", ())]),
    ({"interrupt_before": None, "interrupt_after": None}, [("abc", ())]),
    ({"interrupt_before": ["b"]}, [("a", ("b",)), ("abc", ())]),
    ({"interrupt_after": ["b"]}, [("ab", ("c",)), ("abc", ())]),
    ({"interrupt_after": ["c"]}, [("abc", ())]),
    ({"interrupt_before": ["b"], "interrupt_after": ["a"]}, [("a", ("b",)), ("abc", ())]),
    ({"interrupt_before": ["b"], "interrupt_after": ["b"]}, [("a", ("b",)), ("ab", ("c",)), ("abc", ())]),
    ({"interrupt_before": "*"}, [("", ("a",)), ("a", ("b",)), ("ab", ("c",)), ("abc", ())]),
    ({"interrupt_after": "*"}, [("a", ("b",)), ("ab", ("c",)), ("abc", ())]),
    ({"interrupt_before": "*", "interrupt_after": "*"}, [("", ("a",)), ("a", ("b",)), ("ab", ("c",)), ("abc", ())]),
    ({"interrupt_before": [], "interrupt_after": ()}, [("abc", ())]),
]


@pytest.mark.parametrize("per_call", [False, True])
@pytest.mark.parametrize(("settings", "expected"), STOPS)
async def test_where_a_run_stops(
    saver: BaseCheckpointSaver, settings: dict[str, Any], expected: list[Any], per_call: bool
) -> None:
    """A run stops before or after the nodes named by compile or the call, "*" for all but hidden ones; the same
    breakpoint does not stop the resumed run; no node runs twice."""
    made = Chain(saver, **({} if per_call else settings))
    assert await steps(made.graph, **(settings if per_call else {})) == expected
    assert made.ran == {"a": 1, "b": 1, "c": 1}


async def test_a_call_instead_of_the_compiled(saver: BaseCheckpointSaver) -> None:
    """Breakpoints of a call replace those of compile, before and after separately."""
    made = Chain(saver, interrupt_before=["b"], interrupt_after=["b"])
    assert await steps(made.graph, interrupt_before=[]) == [("ab", ("c",)), ("abc", ())]
    assert await steps(made.graph, thread="u", interrupt_after=[]) == [("a", ("b",)), ("abc", ())]
    assert await steps(made.graph, thread="v", interrupt_before=["c"]) == [("ab", ("c",)), ("abc", ())]
    assert await steps(made.graph, thread="w", interrupt_before=[], interrupt_after=[]) == [("abc", ())]


async def test_later_breakpoints_of_a_resumed_run(saver: BaseCheckpointSaver) -> None:
    """A resumed run stops at its own breakpoints that come later."""
    graph = Chain(saver).graph
    await graph.ainvoke({}, "t", interrupt_before=["a"])
    assert (await graph.ainvoke(None, "t", interrupt_after=["a"]))["log"] == ["a"]
    assert (await graph.ainvoke(None, "t", interrupt_before=["b", "c"]))["log"] == ["a", "b"]
    assert (await graph.ainvoke(None, "t", interrupt_before="*"))["log"] == ["a", "b", "c"]


async def test_a_stop_after_the_last_node(saver: BaseCheckpointSaver) -> None:
    """A run that stops after the last node reports it in its stream; nothing is left, and a resume does nothing."""
    made = Chain(saver, interrupt_after=["c"])
    chunks = [chunk async for chunk in made.graph.astream({}, "t")]
    assert chunks[-2:] == [{"c": {"log": ["c"]}}, {"__interrupt__": ()}]
    state = await made.graph.aget_state("t")
    assert (state.next, state.interrupts) == ((), ())
    assert await made.graph.ainvoke(None, "t") == {"log": ["a", "b", "c"]}
    assert [chunk async for chunk in made.graph.astream(None, "t")] == []
    assert made.ran == {"a": 1, "b": 1, "c": 1}
    assert await made.graph.aget_state("t") == state


async def test_streams_of_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """A stop is streamed as one `{"__interrupt__": ()}` among the updates, and no chunk of values; the result holds
    only the state."""
    made = Chain(saver, interrupt_before=["b"])
    modes = ["updates", "values", "tasks"]
    chunks = [chunk async for chunk in made.graph.astream({}, "t", stream_mode=modes)]
    assert [chunk for mode, chunk in chunks if mode == "updates"] == [{"a": {"log": ["a"]}}, {"__interrupt__": ()}]
    assert chunks[-1] == ("updates", {"__interrupt__": ()})
    assert [chunk for mode, chunk in chunks if mode == "values"] == [{"log": ["a"]}]
    assert [chunk["name"] for mode, chunk in chunks if mode == "tasks"] == ["a", "a"]
    assert await made.graph.ainvoke({}, "u") == {"log": ["a"]}
    state = await made.graph.aget_state("u")
    assert (state.interrupts, [task.interrupts for task in state.tasks]) == ((), [()])


async def test_without_a_checkpointer() -> None:
    """A breakpoint also stops a run without a checkpointer, which cannot be resumed."""
    made = Chain(None, interrupt_before=["b"])
    assert await made.graph.ainvoke({}) == {"log": ["a"]}
    with pytest.raises(EmptyInputError):
        await made.graph.ainvoke(None)


@pytest.mark.parametrize("what", ["interrupt_before", "interrupt_after"])
async def test_bad_names(what: str) -> None:
    """A breakpoint at a node that does not exist, or at a hidden one, is an error at once."""
    for names in (["nowhere"], [START], [END], "a", ["a", 7]):
        with pytest.raises(ConfigError, match=what):
            Chain(None, **{what: names})
        made = Chain(None)
        with pytest.raises(ConfigError, match=what):
            await made.graph.ainvoke({}, **{what: names})
        with pytest.raises(ConfigError, match=what):
            made.graph.astream({}, **{what: names})
        assert not made.ran


async def test_a_failure_after_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """A node that fails after its breakpoint was passed is resumed without stopping there again."""
    made = Chain(saver, interrupt_before=["b"])
    made.broken = {"b"}
    await made.graph.ainvoke({}, "t")
    for _ in range(2):
        with pytest.raises(ValueError, match="b"):
            await made.graph.ainvoke(None, "t")
    made.broken = set()
    assert await made.graph.ainvoke(None, "t") == {"log": ["a", "b", "c"]}
    assert made.ran == {"a": 1, "b": 3, "c": 1}


async def test_a_new_input_at_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """A new input discards the pending nodes, starts at the entry, and stops at the breakpoint again."""
    made = Chain(saver, interrupt_before=["a", "b"])
    assert await steps(made.graph, {}, {"log": ["-"]}, None, {"log": ["-"]}) == [
        ("", ("a",)),
        ("-", ("a",)),
        ("-a", ("b",)),
        ("-a-", ("a",)),
        ("-a-a", ("b",)),
        ("-a-abc", ()),
    ]


async def test_an_answer_at_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """A breakpoint is no question: an answer there lets the run continue, as None does, and answers nothing; answers by
    id are refused. A thread that has finished, or whose node has failed, refuses an answer."""
    made = Chain(saver, interrupt_before=["b", "c"])
    await made.graph.ainvoke({}, "t")
    with pytest.raises(InvalidResumeError):
        await made.graph.ainvoke(Command(resume={"0" * 32: "x"}), "t")
    assert made.ran == {"a": 1}
    assert (await made.graph.ainvoke(Command(resume="x", update={"note": "y"}), "t")) == {
        "log": ["a", "b"],
        "note": "y",
    }
    made.broken = {"c"}
    with pytest.raises(ValueError, match="c"):
        await made.graph.ainvoke(Command(resume="x"), "t")
    with pytest.raises(InvalidResumeError):
        await made.graph.ainvoke(Command(resume="x"), "t")
    made.broken = set()
    assert (await made.graph.ainvoke(None, "t"))["log"] == ["a", "b", "c"]
    with pytest.raises(InvalidResumeError):
        await made.graph.ainvoke(Command(resume="x"), "t")
    assert made.ran == {"a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_an_answer_at_a_breakpoint_before_an_error_handler(saver: BaseCheckpointSaver, durability: Any) -> None:
    """There too, `Command(resume=...)` lets the run continue. A handler that has failed is no breakpoint."""
    ran: list[str] = []

    def fails(state: State) -> None:
        ran.append("node")
        raise ValueError("node")

    def handles(state: State) -> dict[str, Any]:
        ran.append("handler")
        if ran.count("handler") == 1:
            raise ValueError("handler")
        return {"log": ["handled"]}

    builder = StateGraph(State).add_node("a", fails, error_handler=handles).add_edge(START, "a")
    graph: Any = builder.compile(saver, interrupt_before=["__error_handler__a"])
    await graph.ainvoke({}, "t", durability=durability)
    assert ran == ["node"]
    with pytest.raises(ValueError, match="handler"):
        await graph.ainvoke(Command(resume=True), "t", durability=durability)
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume=True), "t", durability=durability)
    assert await graph.ainvoke(None, "t", durability=durability) == {"log": ["handled"]}
    assert ran == ["node", "handler", "handler"]


async def test_an_answer_at_a_breakpoint_is_for_no_later_question(saver: BaseCheckpointSaver) -> None:
    """P8: the node after the breakpoint asks its question: the answer was given before that."""

    async def asks(state: State) -> Any:
        return {"log": [interrupt("?")]}

    graph = StateGraph(State).add_node("a", asks).add_edge(START, "a").compile(saver, interrupt_before=["a"])
    await graph.ainvoke({}, "t")
    asked: Any = await graph.ainvoke(Command(resume="go"), "t")
    assert [each.value for each in asked["__interrupt__"]] == ["?"]
    assert (await graph.ainvoke(Command(resume="yes"), "t")) == {"log": ["yes"]}


async def test_an_update_at_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """A command at a breakpoint resumes the run with its update, to the pending nodes and its goto."""
    made = Chain(saver, interrupt_before=["b", "c"])
    await made.graph.ainvoke({}, "t")
    assert (await made.graph.ainvoke(Command(update={"log": ["edited"]}, goto="a"), "t"))["log"] == [
        "a",
        "edited",
        "a",
        "b",
    ]
    assert (await made.graph.aget_state("t")).next == ("b", "c")


async def test_a_command_that_begins_at_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """A thread that starts with a command has not stopped yet: it stops before the node that goto names."""
    made = Chain(saver, interrupt_before=["b"])
    assert await steps(made.graph, Command(goto="b", update={"log": ["-"]})) == [("-", ("b",)), ("-bc", ())]


async def test_a_loop(saver: BaseCheckpointSaver) -> None:
    """A breakpoint in a loop stops every round, because progress counts and not the node's name."""

    async def a(state: State) -> Any:
        return Command(update={"log": ["a"]}, goto=END if len(state["log"]) == 2 else "a")

    graph = StateGraph(State).add_node("a", a).add_edge(START, "a").compile(saver, interrupt_before=["a"])
    assert await steps(graph) == [("", ("a",)), ("a", ("a",)), ("aa", ("a",)), ("aaa", ())]


async def test_a_node_without_an_update(saver: BaseCheckpointSaver) -> None:
    """Progress does not need a change of the state."""

    async def nothing(state: State) -> None:
        return None

    made = StateGraph(State).add_sequence([("a", nothing), ("b", nothing)]).add_edge(START, "a")
    graph = made.compile(saver, interrupt_before="*", interrupt_after="*")
    assert await steps(graph) == [("", ("a",)), ("", ("b",)), ("", ())]


async def test_several_in_one_superstep(saver: BaseCheckpointSaver) -> None:
    """One node of a superstep is enough to stop before or after all of it; sends too."""
    ran: list[str] = []

    async def node(state: Any) -> Any:
        ran.append("w")
        return {"log": ["w"]}

    async def a(state: State) -> Any:
        return Command(update={"log": ["a"]}, goto=[Send("w", 0), Send("w", 1), "b"])

    made = StateGraph(State).add_node("a", a).add_node("b", node).add_node("w", node).add_edge(START, "a")
    graph = made.compile(saver, interrupt_before=["w"], interrupt_after=["w"])
    assert await steps(graph) == [("a", ("w", "w", "b")), ("awww", ())]
    assert len(ran) == 3


async def test_a_question_after_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """P8: a question in a node past its breakpoint is answered without stopping there again, and the breakpoint
    after it stops once the superstep is whole."""

    async def asks(state: State) -> Any:
        return {"log": [interrupt("?")]}

    made = StateGraph(State).add_node("a", asks).add_node("b", asks).add_edge(START, "a").add_edge("a", "b")
    graph = made.compile(saver, interrupt_before=["a"], interrupt_after=["a"])
    assert await graph.ainvoke({}, "t") == {"log": []}
    assert "__interrupt__" in await graph.ainvoke(None, "t")
    assert await graph.ainvoke(Command(resume="1"), "t") == {"log": ["1"]}
    assert (await graph.aget_state("t")).next == ("b",)
    assert "__interrupt__" in await graph.ainvoke(None, "t")
    assert await graph.ainvoke(Command(resume="2"), "t") == {"log": ["1", "2"]}


async def test_a_deferred_node(saver: BaseCheckpointSaver) -> None:
    """A breakpoint before a deferred node stops when the node is due, and not before."""
    made = StateGraph(State).add_node("last", Chain(None).node("z"), defer=True)
    for name in "ab":
        made.add_node(name, Chain(None).node(name))
    made.add_edge(START, "a").add_edge(START, "last").add_edge("a", "b")
    graph = made.compile(saver, interrupt_before=["last"])
    assert await steps(graph) == [("ab", ("last",)), ("abz", ())]


async def test_the_limit_and_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """P14: a run that stops at a breakpoint has not reached its limit; each run counts its own supersteps."""
    made = Chain(saver, interrupt_before=["b"])
    config = {"configurable": {"thread_id": "t"}, "recursion_limit": 1}
    assert await made.graph.ainvoke({}, config) == {"log": ["a"]}
    with pytest.raises(GraphRecursionError):
        await made.graph.ainvoke(None, config)
    assert await made.graph.ainvoke(None, config) == {"log": ["a", "b", "c"]}


async def test_the_thread_is_free_at_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """P6: a run that has stopped releases its thread."""
    made = Chain(saver, interrupt_before=["b"])
    await made.graph.ainvoke({}, "t")
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(lambda: made.graph.ainvoke(None, "t", on_conflict="wait"))
    assert (await made.graph.aget_state("t")).values["log"] == ["a", "b", "c"]
    assert made.ran["b"] == 1


def nested(saver: BaseCheckpointSaver | None, levels: int, **settings: Any) -> tuple[Chain, Any]:
    inner = Chain(None, **settings)
    graph = inner.graph
    for level in range(levels):
        made = StateGraph(State).add_node(f"sub{level}", graph).add_edge(START, f"sub{level}")
        graph = made.compile(saver if level == levels - 1 else None)
    return inner, graph


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize(
    ("settings", "logs"),
    [
        ({"interrupt_before": ["a"]}, ["", "abc"]),
        ({"interrupt_before": ["b"], "interrupt_after": ["b"]}, ["", "", "abc"]),
        ({"interrupt_after": ["c"]}, ["", "abc"]),
        ({"interrupt_before": "*"}, ["", "", "", "abc"]),
    ],
)
async def test_a_breakpoint_in_a_subgraph(
    saver: BaseCheckpointSaver, levels: int, settings: dict[str, Any], logs: list[str]
) -> None:
    """A breakpoint of a graph that a node runs stops the whole run; a resume continues in the subgraph, and no node
    runs twice there."""
    inner, graph = nested(saver, levels, **settings)
    given: Any = {}
    for log in logs:
        assert "".join((await graph.ainvoke(given, "t"))["log"]) == log
        state, given = await graph.aget_state("t"), None
        assert (state.next, state.interrupts) == (((), ()) if log else ((f"sub{levels - 1}",), ()))
    assert inner.ran == {"a": 1, "b": 1, "c": 1}


async def test_streams_of_a_breakpoint_in_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """It is streamed as one `{"__interrupt__": ()}`, and no chunk of values, like a breakpoint of the graph's own."""
    _, graph = nested(saver, 1, interrupt_before=["b"])
    chunks = [chunk async for chunk in graph.astream({}, "t", stream_mode=["updates", "values"])]
    assert chunks == [("updates", {"__interrupt__": ()})]
    chunks = [chunk async for chunk in graph.astream(None, "t", stream_mode=["updates", "values"])]
    assert chunks[1:] == [("updates", {"sub0": {"log": ["a", "b", "c"]}}), ("values", {"log": ["a", "b", "c"]})]


async def test_streams_of_subgraphs_at_a_breakpoint(saver: BaseCheckpointSaver) -> None:
    """With `subgraphs=True` too, a stop is one chunk, at the called graph, however many subgraphs have stopped, and
    at whatever depth. A reader that a node has of its own sees the stop of the graph that the node runs."""
    _, inner = nested(None, 1, interrupt_before=["b"])
    made = StateGraph(State).add_node("one", inner).add_node("two", inner).add_edge(START, "one").add_edge(START, "two")
    graph = made.compile(saver)

    async def stops(given: Any) -> list[Any]:
        stream = graph.astream(given, "t", stream_mode="updates", subgraphs=True)
        return [ns for ns, chunk in [part async for part in stream] if chunk == {"__interrupt__": ()}]

    assert await stops({}) == [()]
    assert (await graph.aget_state("t")).next == ("one", "two")
    assert await stops(Command(resume="go")) == []
    assert (await graph.aget_state("t")).values["log"] == list("abcabc")

    seen: list[Any] = []

    async def reads(state: State) -> None:
        async for chunk in Chain(None, interrupt_before=["b"]).graph.astream({}):
            seen.append(chunk)

    read = StateGraph(State).add_node("reads", reads).add_edge(START, "reads").compile(saver)
    chunks = [part async for part in read.astream({}, "u", stream_mode="updates", subgraphs=True)]
    assert (seen, chunks[-1]) == ([{"a": {"log": ["a"]}}, {"__interrupt__": ()}], ((), {"__interrupt__": ()}))


async def test_a_breakpoint_in_a_subgraph_and_a_question(saver: BaseCheckpointSaver) -> None:
    """P8: while a graph in one node is stopped, the question of another node can be answered by itself; the graph
    resumes with the same call."""
    inner = Chain(None, interrupt_before=["b"])

    async def asks(state: State) -> Any:
        return {"log": [interrupt("?")]}

    made = StateGraph(State).add_node("sub", inner.graph).add_node("asks", asks)
    graph = made.add_edge(START, "sub").add_edge(START, "asks").compile(saver)
    result = await graph.ainvoke({}, "t")
    assert [question.value for question in result["__interrupt__"]] == ["?"]
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes", "a", "b", "c"]}
    assert inner.ran == {"a": 1, "b": 1, "c": 1}


async def test_the_outer_graphs_breakpoints_are_its_own(saver: BaseCheckpointSaver) -> None:
    """Breakpoints of a call apply only to the graph that is called."""
    inner, graph = nested(saver, 1)
    assert await steps(graph, interrupt_before="*", interrupt_after="*") == [("", ("sub0",)), ("abc", ())]
    assert inner.ran == {"a": 1, "b": 1, "c": 1}
