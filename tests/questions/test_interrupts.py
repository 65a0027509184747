"""Questions to people: how they are asked, shown, answered and stored, wherever in a node's code they are."""

from __future__ import annotations

import contextvars
import operator
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async import (
    END,
    START,
    Command,
    GraphInterrupt,
    NodeBuilder,
    Pregel,
    Send,
    StateGraph,
    interrupt,
    task,
)
from pregel_async.channels import LastValue
from pregel_async.errors import (
    EmptyInputError,
    GraphBubbleUp,
    GraphValidationError,
    InterruptSwallowedError,
    InvalidResumeError,
    NoCheckpointerError,
    OutsideRunError,
    UnstorableValueError,
)

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def one_node(node: Any, saver: BaseCheckpointSaver | None = None, **settings: Any) -> Any:
    return StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, **settings)


def concurrent_nodes(saver: BaseCheckpointSaver | None = None, **nodes: Any) -> Any:
    """Return a graph with all nodes in one superstep."""
    made = StateGraph(State)
    for name, node in nodes.items():
        made.add_node(name, node).add_edge(START, name)
    return made.compile(saver)


def asker(*questions: Any) -> Any:
    """Return a node that asks the questions one after the other, and logs the answers."""

    async def node(state: State) -> dict[str, Any]:
        return {"log": [interrupt(question) for question in questions]}

    return node


def values_of(result: Any) -> list[Any]:
    """Return the open questions of a result, in order."""
    return [question.value for question in result["__interrupt__"]]


def ids_of(result: Any) -> dict[Any, str]:
    """Return question -> id."""
    return {question.value: question.id for question in result["__interrupt__"]}


def gate(*, opens: anyio.Event | None = None, waits: anyio.Event | None = None, writes: Any = None) -> Any:
    """Return a node that waits for one event, and sets another."""

    async def node(state: State) -> Any:
        if waits is not None:
            await waits.wait()
        if opens is not None:
            opens.set()
        return writes

    return node


@pytest.mark.parametrize("awaits", [False, True])
async def test_questions_of_a_router_and_its_node_are_separate(saver: BaseCheckpointSaver, awaits: bool) -> None:
    """P8, P3: a router's question has an id of its own, the same when only the router runs again; the node's answer is
    not used for the router's question, and the node does not run again."""
    ran = Counter[str]()

    async def node(state: State) -> Any:
        ran["node"] += 1
        return {"log": [interrupt("node?")]}

    async def later(state: State) -> Any:
        await anyio.lowlevel.checkpoint()
        return now(state)

    def now(state: State) -> Any:
        ran["router"] += 1
        return interrupt(f"router, after {state['log']}?")

    made = StateGraph(State).add_node("n", node).add_edge(START, "n").add_node("end", gate(writes={"log": ["end"]}))
    graph = made.add_conditional_edges("n", later if awaits else now, ["end", END]).compile(saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["node?"]
    asked = await graph.ainvoke(Command(resume="yes"), "t")
    assert values_of(asked) == ["router, after ['yes']?"]
    assert await graph.ainvoke(None, "t") == asked
    assert await graph.ainvoke(Command(resume="end"), "t") == {"log": ["yes", "end"]}
    assert ran == {"node": 2, "router": 3}


async def test_calls_of_a_router_and_its_node_are_separate(saver: BaseCheckpointSaver) -> None:
    """P5, P8: a task that a router calls is recorded as the router's, and not as the node's call of the same number."""
    ran: list[str] = []

    @task
    async def look(what: str) -> str:
        ran.append(what)
        return what

    async def node(state: State) -> Any:
        return {"log": [await look("node")]}

    async def route(state: State) -> Any:
        found = await look("router")
        return END if interrupt(found) else "n"

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").add_conditional_edges("n", route).compile(saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["router"]
    assert values_of(await graph.ainvoke(None, "t")) == ["router"]
    assert await graph.ainvoke(Command(resume=True), "t") == {"log": ["node"]}
    assert ran == ["node", "router"]


async def test_a_question_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11, P3, P5: an unstorable question fails its task with a typed error that names the place, recorded and shown as
    any failure is; results of siblings are kept."""
    ran = Counter[str]()
    things: list[Any] = [object(), "a?", "a?"]

    async def asks(state: State) -> Any:
        await done.wait()
        return {"log": [interrupt({"form": things.pop(0)})]}

    async def works(state: State) -> Any:
        ran["works"] += 1
        done.set()
        return {"log": ["works"]}

    done = anyio.Event()
    graph = concurrent_nodes(saver, asks=asks, works=works)
    with pytest.raises(UnstorableValueError, match="interrupt") as caught:
        await graph.ainvoke({}, "t")
    assert any("'asks'" in note for note in caught.value.__notes__)
    state = await graph.aget_state("t")
    assert (state.next, state.interrupts) == (("asks",), ())
    assert [task.error is not None for task in state.tasks] == [True, False]
    assert values_of(await graph.ainvoke(None, "t")) == [{"form": "a?"}]
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes", "works"]}
    assert ran == {"works": 1}


@pytest.mark.parametrize("asks_first", [False, True])
async def test_a_sibling_result_that_cannot_be_stored(saver: BaseCheckpointSaver, asks_first: bool) -> None:
    """P11: an unstorable result of a sibling fails it, whether it comes before the question or after."""
    there = anyio.Event()
    works = gate(writes={"note": object()}, **{"waits" if asks_first else "opens": there})

    async def asks(state: State) -> Any:
        if asks_first:
            there.set()
        else:
            await there.wait()
        interrupt("?")

    with pytest.raises(UnstorableValueError, match="note"):
        await concurrent_nodes(saver, asks=asks, works=works).ainvoke({}, "t")


async def test_writes_that_cannot_be_stored_when_a_router_asks(saver: BaseCheckpointSaver) -> None:
    """P11, P3: unstorable writes of a node whose router asks are not lost either: they are refused."""
    writes: list[Any] = [object(), "kept"]

    async def node(state: State) -> Any:
        return {"note": writes.pop(0)}

    made = StateGraph(State).add_node("n", node).add_edge(START, "n")
    graph = made.add_conditional_edges("n", lambda state: interrupt("?") or END).compile(saver)
    with pytest.raises(UnstorableValueError, match="note"):
        await graph.ainvoke({}, "t")
    assert values_of(await graph.ainvoke(None, "t")) == ["?"]
    assert await graph.ainvoke(Command(resume=END), "t") == {"log": [], "note": "kept"}


async def test_an_answer_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11: an unstorable answer is refused before anything runs; the question stays open."""
    graph = one_node(asker("?"), saver)
    asked = await graph.ainvoke({}, "t")
    with pytest.raises(UnstorableValueError, match=asked["__interrupt__"][0].id):
        await graph.ainvoke(Command(resume=object()), "t")
    assert (await graph.aget_state("t")).interrupts == tuple(asked["__interrupt__"])
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1]}


HEX = re.compile(r"[0-9a-f]{32}\Z")


async def test_a_question_and_its_answer(saver: BaseCheckpointSaver) -> None:
    """The question is in the result and in the thread's state, with an id of 32 hex digits; the
    answer is what `interrupt()` returns; then nothing is open."""
    graph = one_node(asker("how?"), saver)
    result = await graph.ainvoke({"note": "in"}, "t")
    (question,) = result["__interrupt__"]
    assert result == {"log": [], "note": "in", "__interrupt__": [question]}
    assert (question.value, bool(HEX.match(question.id))) == ("how?", True)
    state = await graph.aget_state("t")
    (open_task,) = state.tasks
    assert (state.next, state.interrupts) == (("n",), (question,))
    assert (open_task.interrupts, open_task.error, open_task.result) == ((question,), None, None)
    assert await graph.ainvoke(Command(resume="so"), "t") == {"log": ["so"], "note": "in"}
    state = await graph.aget_state("t")
    assert (state.next, state.interrupts, state.tasks) == ((), (), ())
    asked = [state.interrupts for state in [state async for state in graph.aget_state_history("t")]]
    assert asked == [(), (question,), ()], "the history keeps it"


@pytest.mark.parametrize(
    "answer", [0, False, "", [], {}, {"key": None}, 0.0, b"", ("x",), {"0" * 31: 1}, {"x" * 32: 1}]
)
async def test_falsy_answers(saver: BaseCheckpointSaver, answer: Any) -> None:
    """Falsy answers count, an empty dict too; a dict is an answer unless all its keys are ids."""
    graph = one_node(asker("?"), saver)
    await graph.ainvoke({}, "t")
    (got,) = (await graph.ainvoke(Command(resume=answer), "t"))["log"]
    assert got == answer
    assert isinstance(got, type(answer))


@pytest.mark.parametrize("answer", [None, 0, {}, {"0" * 32: "inside"}])
async def test_answers_in_a_map(saver: BaseCheckpointSaver, answer: Any) -> None:
    """`None` inside a map counts, and so does a dict that looks like a map itself."""
    graph = one_node(asker("?"), saver)
    (question,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    assert await graph.ainvoke(Command(resume={question.id: answer}), "t") == {"log": [answer]}


async def test_a_dict_that_looks_like_a_map(saver: BaseCheckpointSaver) -> None:
    """A dict all of whose keys have the form of an id is a map: of an unknown question,
    an error that says which are open."""
    graph = one_node(asker("?"), saver)
    (question,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    for resume in ({"0" * 32: 1}, {question.id: 1, "0" * 32: 1}):
        with pytest.raises(InvalidResumeError, match="0" * 32) as caught:
            await graph.ainvoke(Command(resume=resume), "t")
        assert (caught.value.thread_id, caught.value.open) == ("t", (question.id,))
    assert await graph.ainvoke(Command(resume={question.id: 1, "other": 2}), "t") == {
        "log": [{question.id: 1, "other": 2}]
    }


async def test_resuming_without_an_answer(saver: BaseCheckpointSaver) -> None:
    """A waiting thread returns its question again, with the same id, as often as it is called without an answer; no
    checkpoint is made."""
    graph = one_node(asker("?"), saver)
    first = await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    for _ in range(3):
        assert await graph.ainvoke(None, "t") == first
    assert await graph.aget_state("t") == state
    with pytest.raises(EmptyInputError):
        await graph.ainvoke(Command(resume=None), "t")


async def test_an_answer_without_a_question(saver: BaseCheckpointSaver) -> None:
    """An answer to a thread without an open question is a typed error, by id and without; nothing runs."""
    ran: list[str] = []

    async def node(state: State) -> Any:
        ran.append("n")
        return {"log": [interrupt("?")]}

    graph = one_node(node, saver)
    (question,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    for resume in ("x", {question.id: "x"}):
        with pytest.raises(InvalidResumeError, match="nothing is stored"):
            await graph.ainvoke(Command(resume=resume), "never")
    await graph.ainvoke(Command(resume="x"), "t")
    for resume in ("x", {question.id: "x"}):
        with pytest.raises(InvalidResumeError, match="answered already") as caught:
            await graph.ainvoke(Command(resume=resume), "t")
        assert caught.value.open == ()
    assert len(ran) == 2
    (second,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    assert second.id != question.id
    with pytest.raises(InvalidResumeError, match=question.id):
        await graph.ainvoke(Command(resume={question.id: "x"}), "t")


async def test_without_a_checkpointer() -> None:
    """A run without a checkpointer cannot ask, and an answer to it is an error that says what is missing. (In LangGraph
    it stops, and its question cannot be answered.)"""
    graph = one_node(asker("?"))
    for thread in (None, "t"):
        with pytest.raises(NoCheckpointerError, match="checkpointer"):
            await graph.ainvoke({}, thread)
    with pytest.raises(InvalidResumeError, match="checkpointer"):
        await graph.ainvoke(Command(resume="x"))
    with pytest.raises(InvalidResumeError, match="checkpointer"):
        await graph.ainvoke(Command(resume="x"), "t")


async def test_outside_of_a_run() -> None:
    """`interrupt()` outside a run is a typed error; also in a thread that does not know its node."""
    with pytest.raises(OutsideRunError, match="interrupt"):
        interrupt("?")
    graph = one_node(asker("?"), InMemorySaver())
    await graph.ainvoke({}, "t")
    with pytest.raises(OutsideRunError):
        interrupt("?")


async def test_after_the_node_has_ended() -> None:
    """P8: code that outlives its node gets an error from `interrupt()`."""
    left: list[contextvars.Context] = []

    async def node(state: State) -> None:
        left.append(contextvars.copy_context())

    await one_node(node).ainvoke({})
    with pytest.raises(OutsideRunError, match="'n'.*ended"):
        left[0].run(interrupt, "?")


async def test_questions_and_answers_are_values(saver: BaseCheckpointSaver) -> None:
    """P1: a change in place of a question or an answer, by either side, has no effect elsewhere."""
    seen: list[Any] = []

    async def node(state: State) -> Any:
        form = {"fields": ["name"]}
        try:
            answer = interrupt(form)
        except GraphInterrupt as asked:
            asked.interrupts[0].value["fields"].append("changed by the node")
            form["fields"].append("changed too")
            raise
        seen.append(list(answer))
        answer.append("changed by the node")
        raise ValueError

    graph = one_node(node, saver)
    chunks = [chunk async for chunk in graph.astream({}, "t", stream_mode=["values", "updates", "tasks"])]
    state = await graph.aget_state("t")
    for mode, chunk in chunks:
        if mode == "tasks" and "interrupts" in chunk:
            assert chunk["interrupts"][0]["value"] == {"fields": ["name"]}
            chunk["interrupts"][0]["value"]["fields"].append("changed by a reader")
        elif mode != "tasks" and "__interrupt__" in chunk:
            assert chunk["__interrupt__"][0].value == {"fields": ["name"]}
            chunk["__interrupt__"][0].value["fields"].append("changed by a reader")
    state.interrupts[0].value["fields"].append("changed by a reader")
    assert (await graph.aget_state("t")).interrupts[0].value == {"fields": ["name"]}
    answer = ["x"]
    with pytest.raises(ValueError):
        await graph.ainvoke(Command(resume=answer), "t")
    answer.append("changed by the caller")
    with pytest.raises(ValueError):
        await graph.ainvoke(None, "t")
    assert seen == [["x"], ["x"]]


async def test_several_in_one_node(saver: BaseCheckpointSaver) -> None:
    """P8: each question has an id of its own; one is open at a time; given answers are kept; the state shows only the
    open one, and the node stays next. (LangGraph has one id for all.)"""
    graph = one_node(asker("1", "2", "3"), saver)
    result = await graph.ainvoke({}, "t")
    ids: list[str] = []
    for number in "123":
        (question,) = result["__interrupt__"]
        assert question.value == number
        ids.append(question.id)
        for result in (await graph.ainvoke(None, "t"), result):
            state = await graph.aget_state("t")
            assert (state.next, state.interrupts, state.tasks[0].interrupts) == (("n",), (question,), (question,))
        for old in ids[:-1]:
            with pytest.raises(InvalidResumeError, match=old):
                await graph.ainvoke(Command(resume={old: "late"}), "t")
        result = await graph.ainvoke(Command(resume=number * 2), "t")
    assert result == {"log": ["11", "22", "33"]}
    assert len(set(ids)) == 3


async def test_in_a_loop_of_the_node(saver: BaseCheckpointSaver) -> None:
    """A node may ask until the answer is good; each round's question has its own id and answer."""

    async def node(state: State) -> Any:
        question, rounds = "age?", 0
        while not isinstance(answer := interrupt(question), int):
            question, rounds = f"{answer} is no age; age?", rounds + 1
        return {"log": [answer, rounds]}

    graph = one_node(node, saver)
    asked = [await graph.ainvoke({}, "t")]
    for answer in ("x", "", None):
        asked.append(await graph.ainvoke(Command(resume={asked[-1]["__interrupt__"][0].id: answer}), "t"))
    assert [values_of(each) for each in asked] == [
        ["age?"],
        ["x is no age; age?"],
        [" is no age; age?"],
        ["None is no age; age?"],
    ]
    assert await graph.ainvoke(Command(resume=0), "t") == {"log": [0, 3]}
    assert len({question.id for each in asked for question in each["__interrupt__"]}) == 4


async def test_in_a_loop_of_the_graph(saver: BaseCheckpointSaver) -> None:
    """P8: the same node asks anew in each superstep, with another id; an old answer does not count."""

    async def node(state: State) -> Any:
        answer = interrupt("more?")
        return Command(update={"log": [answer]}, goto="n" if answer else END)

    graph = one_node(node, saver)
    ids: set[str] = set()
    result = await graph.ainvoke({}, "t")
    for answer in (1, 2, 0):
        ids.add(result["__interrupt__"][0].id)
        result = await graph.ainvoke(Command(resume=answer), "t")
    assert result == {"log": [1, 2, 0]}
    assert len(ids) == 3


async def test_in_parallel_nodes(saver: BaseCheckpointSaver) -> None:
    """P8, P2: all questions are returned together, in plan order; answers are addressed by id and come in any order;
    nodes without an answer wait and do not run; finished nodes do not run again."""
    ran = Counter[str]()

    def node(name: str) -> Any:
        async def asks(state: Any) -> Any:
            ran[name] += 1
            return {"log": [name, interrupt(f"{name}?")]}

        return asks

    async def sends(state: State) -> Any:
        return [Send("w", index) for index in range(2)]

    async def w(index: int) -> Any:
        ran[f"w{index}"] += 1
        return {"log": [f"w{index}", interrupt(f"w{index}?")]}

    made = StateGraph(State).add_node("w", w).add_conditional_edges(START, sends, ["w"])
    for name in ("c", "a", "b"):
        made.add_node(name, node(name)).add_edge(START, name)
    graph = made.add_node("free", gate(writes={"log": ["free"]})).add_edge(START, "free").compile(saver)
    result = await graph.ainvoke({}, "t")
    assert values_of(result) == ["a?", "b?", "c?", "w0?", "w1?"]
    ids = ids_of(result)
    assert len(set(ids.values())) == 5
    state = await graph.aget_state("t")
    assert state.next == ("w", "w", "a", "b", "c")
    assert [question.value for question in state.interrupts] == ["w0?", "w1?", "a?", "b?", "c?"]
    with pytest.raises(InvalidResumeError, match="5 questions are open") as caught:
        await graph.ainvoke(Command(resume="which?"), "t")
    assert caught.value.open == tuple(ids.values())
    result = await graph.ainvoke(Command(resume={ids["w1?"]: 1, ids["b?"]: None}), "t")
    assert values_of(result) == ["a?", "c?", "w0?"]
    assert ids_of(result) == {value: key for value, key in ids.items() if value in ("a?", "c?", "w0?")}
    assert (await graph.aget_state("t")).next == ("w", "a", "c")
    assert ran == {"a": 1, "b": 2, "c": 1, "w0": 1, "w1": 2}
    with pytest.raises(InvalidResumeError, match=ids["b?"]):
        await graph.ainvoke(Command(resume={ids["b?"]: 1}), "t")
    assert values_of(await graph.ainvoke(Command(resume={ids["a?"]: 2, ids["c?"]: 3}), "t")) == ["w0?"]
    result = await graph.ainvoke(Command(resume=4), "t")
    assert result["log"] == ["a", 2, "b", None, "c", 3, "free", "w0", 4, "w1", 1]
    assert ran == {"a": 2, "b": 2, "c": 2, "w0": 2, "w1": 2}


async def test_in_tasks(saver: BaseCheckpointSaver) -> None:
    """P8, P5: tasks that a node calls ask together, each for itself, in the order of the calls; a finished task does
    not run again, nor do a task's own called tasks from before its question."""
    ran: list[str] = []

    @task
    async def work(what: str) -> str:
        ran.append(what)
        return what

    @task
    async def approve(what: str) -> Any:
        return (await work(f"draft {what}"), interrupt(f"{what}?"))

    async def node(state: State) -> Any:
        calls = [approve("b"), work("free"), approve("a")]
        return {"log": [await call for call in calls]}

    graph = one_node(node, saver)
    result = await graph.ainvoke({}, "t")
    assert values_of(result) == ["b?", "a?"]
    ids = ids_of(result)
    result = await graph.ainvoke(Command(resume={ids["a?"]: "yes"}), "t")
    assert ids_of(result) == {"b?": ids["b?"]}
    assert (await graph.aget_state("t")).interrupts == tuple(result["__interrupt__"])
    result = await graph.ainvoke(Command(resume="no"), "t")
    assert result == {"log": [("draft b", "no"), "free", ("draft a", "yes")]}
    assert sorted(ran) == ["draft a", "draft b", "free"]


async def test_a_task_continues_with_its_answer(saver: BaseCheckpointSaver) -> None:
    """P8: of two tasks of one node, the answered one continues, and its work is recorded, while the other waits."""
    ran: list[Any] = []

    @task
    async def approve(what: str) -> Any:
        answer = interrupt(what)
        ran.append((what, answer))
        return answer

    async def node(state: State) -> Any:
        return {"log": [await call for call in [approve("a"), approve("b")]]}

    graph = one_node(node, saver)
    ids = ids_of(await graph.ainvoke({}, "t"))
    assert values_of(await graph.ainvoke(Command(resume={ids["b"]: 2}), "t")) == ["a"]
    assert ran == [("b", 2)]
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1, 2]}
    assert ran == [("b", 2), ("a", 1)]


async def test_a_task_that_is_awaited_while_another_asks(saver: BaseCheckpointSaver) -> None:
    """P8, P5: a task that is awaited by one task of the node's group, while another asks, is not cancelled by the
    question: it finishes, and does not run again."""
    ran: list[str] = []
    asked = anyio.Event()

    @task
    async def work() -> str:
        ran.append("begin")
        await asked.wait()
        for _ in range(30):
            await anyio.lowlevel.checkpoint()
        ran.append("end")
        return "work"

    async def node(state: State) -> Any:
        found: list[Any] = []
        began = anyio.Event()

        async def calls() -> None:
            call = work()
            began.set()
            found.append(await call)

        async def asks() -> None:
            await began.wait()
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            try:
                found.append(interrupt("?"))
            finally:
                asked.set()

        async with anyio.create_task_group() as group:
            group.start_soon(calls)
            group.start_soon(asks)
        return {"log": sorted(found)}

    graph = one_node(node, saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["?"]
    assert ran == ["begin", "end"]
    assert await graph.ainvoke(Command(resume="answer"), "t") == {"log": ["answer", "work"]}
    assert ran == ["begin", "end"]


async def test_answers_in_a_subgraph(saver: BaseCheckpointSaver) -> None:
    """P8: an answer to a question of a subgraph is kept there too: a call that answers another question lets an
    answered node that failed before run again without a new answer."""
    broken = [True]

    async def a(state: State) -> Any:
        answer = interrupt("a?")
        if broken[0]:
            raise ValueError("oops")
        return {"log": [answer]}

    inner = concurrent_nodes(None, a=a, b=asker("b?"), c=asker("c?"))
    graph = one_node(inner, saver)
    ids = ids_of(await graph.ainvoke({}, "t"))
    assert list(ids) == ["a?", "b?", "c?"]
    with pytest.raises(ValueError):
        await graph.ainvoke(Command(resume={ids["a?"]: 1}), "t")
    broken[0] = False
    result = await graph.ainvoke(None, "t")
    assert ids_of(result) == {"b?": ids["b?"], "c?": ids["c?"]}
    assert values_of(await graph.ainvoke(Command(resume={ids["c?"]: 3}), "t")) == ["b?"]
    assert await graph.ainvoke(Command(resume=2), "t") == {"log": [1, 2, 3]}


async def test_an_answer_in_a_subgraph_of_a_cancelled_run(saver: BaseCheckpointSaver) -> None:
    """P7, P8: the same holds for an answer of a run that was cancelled before it could be used."""
    answered, block = anyio.Event(), [True]

    async def a(state: State) -> Any:
        answer = interrupt("a?")
        answered.set()
        if block[0]:
            await anyio.sleep_forever()
        return {"log": [answer]}

    graph = one_node(concurrent_nodes(None, a=a, b=asker("b?")), saver)
    ids = ids_of(await graph.ainvoke({}, "t"))
    await cancelled_at(answered, graph, Command(resume={ids["a?"]: 1}))
    block[0] = False
    assert await graph.ainvoke(Command(resume={ids["b?"]: 2}), "t") == {"log": [1, 2]}


async def test_a_task_and_its_node_ask(saver: BaseCheckpointSaver) -> None:
    """P8: a question of the node is listed after those of the calls that it made before, and before those of later
    calls."""

    @task
    async def approve(what: str) -> Any:
        return interrupt(what)

    async def node(state: State) -> Any:
        first, answer = approve("1"), None
        try:
            answer = interrupt("2")
        except GraphInterrupt:
            approve("3")
            raise
        return {"log": [await first, answer, await approve("3")]}

    graph = one_node(node, saver)
    result = await graph.ainvoke({}, "t")
    assert values_of(result) == ["1", "2", "3"]
    assert len(set(ids_of(result).values())) == 3
    answers = {key: value * 2 for value, key in ids_of(result).items()}
    assert await graph.ainvoke(Command(resume=answers), "t") == {"log": ["11", "22", "33"]}


async def test_in_task_groups_of_the_node(saver: BaseCheckpointSaver) -> None:
    """The exception of interrupt() is found inside the groups that the node's own task groups make, at any depth; the
    other tasks of the group are cancelled, and have cleaned up."""
    cleaned: list[str] = []

    async def node(state: State) -> Any:
        answers: list[Any] = []

        async def waits() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                cleaned.append("waits")

        async def asks(inner: anyio.abc.TaskGroup) -> None:
            answers.append(interrupt("1"))
            answers.append(interrupt("2"))
            inner.cancel_scope.cancel()

        async with anyio.create_task_group() as outer, anyio.create_task_group() as middle:
            async with anyio.create_task_group() as inner:
                inner.start_soon(waits)
                inner.start_soon(asks, inner)
            assert not middle.cancel_scope.cancel_called and not outer.cancel_scope.cancel_called
        return {"log": answers}

    graph = one_node(node, saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["1"]
    assert values_of(await graph.ainvoke(Command(resume="a"), "t")) == ["2"]
    assert await graph.ainvoke(Command(resume="b"), "t") == {"log": ["a", "b"]}
    assert set(cleaned) == {"waits"}


async def test_two_tasks_of_one_group_ask(saver: BaseCheckpointSaver) -> None:
    """P8: when several tasks of the node's own have asked before their group ends, all their questions are open."""

    async def node(state: State) -> Any:
        answers: dict[str, Any] = {}
        turns = [anyio.Event() for _ in range(3)]

        async def asks(place: int) -> None:
            with anyio.CancelScope(shield=True):
                await turns[place].wait()
                turns[place + 1].set()
                answers[str(place)] = interrupt(str(place))

        async with anyio.create_task_group() as group:
            group.start_soon(asks, 1)
            group.start_soon(asks, 0)
            turns[0].set()
        return {"log": [answers["0"], answers["1"]]}

    graph = one_node(node, saver)
    result = await graph.ainvoke({}, "t")
    assert values_of(result) == ["0", "1"]
    answers = {key: f"answer to {value}" for value, key in ids_of(result).items()}
    assert await graph.ainvoke(Command(resume=answers), "t") == {"log": ["answer to 0", "answer to 1"]}


async def test_a_failure_and_a_question_in_one_group(saver: BaseCheckpointSaver) -> None:
    """P9: when a node's group holds a question and a failure, the failure is raised, without the question."""
    broken = [True]

    async def node(state: State) -> Any:
        asked = anyio.Event()

        async def asks() -> None:
            asked.set()
            interrupt("?")

        async def fails() -> None:
            with anyio.CancelScope(shield=True):
                await asked.wait()
                if broken[0]:
                    raise ValueError("oops")

        async with anyio.create_task_group() as group:
            group.start_soon(asks)
            group.start_soon(fails)

    graph = one_node(node, saver)
    with pytest.raises(ExceptionGroup) as caught:
        await graph.ainvoke({}, "t")
    assert [str(error) for error in caught.value.exceptions] == ["oops"]
    state = await graph.aget_state("t")
    assert (state.interrupts, state.tasks[0].error is None) == ((), False)
    broken[0] = False
    assert values_of(await graph.ainvoke(None, "t")) == ["?"]
    assert (await graph.aget_state("t")).tasks[0].error is None


async def test_in_a_plain_function(saver: BaseCheckpointSaver) -> None:
    """Questions work in a node and a task that run in worker threads too."""

    @task
    def approve(what: str) -> Any:
        return interrupt(what)

    def node(state: State) -> Any:
        first = interrupt("1")
        calls = [approve("2"), approve("3")]
        return {"log": [first, *(call.result() for call in calls)]}

    graph = one_node(node, saver)
    assert values_of(await graph.ainvoke({}, "t")) == ["1"]
    result = await graph.ainvoke(Command(resume="a"), "t")
    assert values_of(result) == ["2", "3"]
    answers = {key: value * 2 for value, key in ids_of(result).items()}
    assert await graph.ainvoke(Command(resume=answers), "t") == {"log": ["a", "22", "33"]}


async def test_in_the_first_router(saver: BaseCheckpointSaver) -> None:
    """The router of the entry may ask; the input is stored and need not be passed again."""
    made = (
        StateGraph(State)
        .add_node("a", asker("a?"))
        .add_conditional_edges(START, lambda state: interrupt("where?"), ["a"])
    )
    graph = made.compile(saver)
    assert values_of(await graph.ainvoke({"note": "in"}, "t")) == ["where?"]
    assert (await graph.aget_state("t")).next == (START,)
    assert values_of(await graph.ainvoke(Command(resume="a"), "t")) == ["a?"]
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1], "note": "in"}


async def test_the_bases() -> None:
    """The exception of interrupt() is a BaseException: `except Exception` does not catch it."""
    assert issubclass(GraphInterrupt, GraphBubbleUp)
    assert not issubclass(GraphBubbleUp, Exception)

    async def node(state: State) -> Any:
        try:
            return {"log": [interrupt("?")]}
        except Exception:
            return {"log": ["swallowed"]}

    assert values_of(await one_node(node, InMemorySaver()).ainvoke({}, "t")) == ["?"]


@pytest.mark.parametrize("where", ["node", "task", "router", "thread"])
async def test_a_swallowed_question(saver: BaseCheckpointSaver, where: str) -> None:
    """A node that returns although it asked is an error, and its result does not count; so is a node that swallows the
    question of its task, and a router. Answered, the same code continues."""

    def swallow() -> Any:
        try:
            return interrupt("?")
        except BaseException:
            return None

    @task
    async def approve() -> Any:
        return interrupt("?")

    async def node(state: State) -> Any:
        if where == "task":
            try:
                await approve()
            except BaseException:
                pass
        elif where == "node":
            swallow()
        return {"log": ["n"]}

    def plain(state: State) -> Any:
        swallow()
        return {"log": ["n"]}

    made = StateGraph(State).add_node("n", plain if where == "thread" else node).add_edge(START, "n")

    def route(state: State) -> Any:
        assert where == "router", "routers do not run on a result that does not count"
        return swallow() or END

    graph = made.add_conditional_edges("n", route).compile(saver)
    with pytest.raises(InterruptSwallowedError) as caught:
        await graph.ainvoke({}, "t")
    assert caught.value.node == "n"
    state = await graph.aget_state("t")
    assert (state.values["log"], state.next, state.interrupts) == ([], ("n",), ())
    assert state.tasks[0].error is not None


async def test_a_failure_after_a_swallowed_question(saver: BaseCheckpointSaver) -> None:
    """P9: a node's own exception after a swallowed question is raised as it is."""

    async def node(state: State) -> Any:
        try:
            interrupt("?")
        except BaseException:
            raise ValueError("mine") from None

    with pytest.raises(ValueError, match="mine"):
        await one_node(node, saver).ainvoke({}, "t")


async def test_cleaning_up_while_asking(saver: BaseCheckpointSaver) -> None:
    """A node's `finally` blocks and context managers run when its question passes."""
    left: list[str] = []

    async def node(state: State) -> Any:
        try:
            return {"log": [interrupt("?")]}
        finally:
            await anyio.lowlevel.checkpoint()
            left.append("n")

    graph = one_node(node, saver)
    await graph.ainvoke({}, "t")
    assert left == ["n"]
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1]}


async def test_a_failure_after_an_answer(saver: BaseCheckpointSaver) -> None:
    """P8: a node that fails after its answers does not ask again; no answer is used twice."""
    broken = [True]

    async def node(state: State) -> Any:
        answers = [interrupt("1"), interrupt("2")]
        if broken[0]:
            raise ValueError("oops")
        return {"log": [*answers, interrupt("3")]}

    graph = one_node(node, saver)
    ids = ids_of(await graph.ainvoke({}, "t"))
    ids |= ids_of(await graph.ainvoke(Command(resume="a"), "t"))
    with pytest.raises(ValueError):
        await graph.ainvoke(Command(resume="b"), "t")
    state = await graph.aget_state("t")
    assert (state.next, state.interrupts, state.tasks[0].error is not None) == (("n",), (), True)
    for resume in ("c", {ids["1"]: "c"}, {ids["2"]: "c"}):
        with pytest.raises(InvalidResumeError):
            await graph.ainvoke(Command(resume=resume), "t")
    with pytest.raises(ValueError):
        await graph.ainvoke(None, "t")
    broken[0] = False
    assert values_of(await graph.ainvoke(None, "t")) == ["3"]
    assert await graph.ainvoke(Command(resume="c"), "t") == {"log": ["a", "b", "c"]}


async def test_a_sibling_that_fails(saver: BaseCheckpointSaver) -> None:
    """P9: a question does not stop siblings; a failing sibling is raised, and the question stays recorded: it can be
    answered, and the answered node need not wait until the other is fixed."""
    ran = Counter[str]()
    broken, asked = [True], anyio.Event()

    async def asks(state: State) -> Any:
        ran["asks"] += 1
        asked.set()
        return {"log": [interrupt("?")]}

    async def fails(state: State) -> Any:
        await asked.wait()
        ran["fails"] += 1
        if broken[0]:
            raise ValueError("oops")
        return {"log": ["mended"]}

    graph = concurrent_nodes(saver, asks=asks, fails=fails)
    with pytest.raises(ValueError, match="oops"):
        await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    assert ([question.value for question in state.interrupts], state.next) == (["?"], ("asks", "fails"))
    assert [task.error is None for task in state.tasks] == [True, False]
    with pytest.raises(ValueError, match="oops"):
        await graph.ainvoke(Command(resume="yes"), "t")
    state = await graph.aget_state("t")
    assert state.interrupts == ()
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume="again"), "t")
    broken[0] = False
    assert await graph.ainvoke(None, "t") == {"log": ["yes", "mended"]}


async def test_a_sibling_that_keeps_running(saver: BaseCheckpointSaver) -> None:
    """P5: a sibling of a question runs to its end, and its result is recorded; its edges are followed only when
    the superstep is whole."""
    asked = anyio.Event()

    async def asks(state: State) -> Any:
        asked.set()
        return {"log": [interrupt("?")]}

    made = StateGraph(State).add_node("asks", asks).add_node("works", gate(waits=asked, writes={"log": ["works"]}))
    made.add_edge(START, "asks").add_edge(START, "works").add_edge("works", "after")
    graph = made.add_node("after", gate(writes={"log": ["after"]})).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == []
    state = await graph.aget_state("t")
    assert [(task.name, task.result) for task in state.tasks] == [("asks", None), ("works", {"log": ["works"]})]
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1, "works", "after"]}


async def cancelled_at(event: anyio.Event, graph: Any, given: Any) -> None:
    """Call a graph, and cancel the call when the event is set."""
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, given, "t")
        await event.wait()
        group.cancel_scope.cancel()


async def test_a_run_cancelled_while_a_sibling_has_asked(saver: BaseCheckpointSaver) -> None:
    """P7, P8: a run that is cancelled while a sibling of the question still runs can be resumed: the question comes
    again, with the same id."""
    asked, block, ids = anyio.Event(), [True], set[str]()

    async def asks(state: State) -> Any:
        try:
            return {"log": [interrupt("?")]}
        except GraphInterrupt as question:
            ids.add(question.interrupts[0].id)
            asked.set()
            raise

    async def works(state: State) -> Any:
        if block[0]:
            await anyio.sleep_forever()
        return {"log": ["works"]}

    graph = concurrent_nodes(saver, asks=asks, works=works)
    await cancelled_at(asked, graph, {})
    state = await graph.aget_state("t")
    assert (state.next, [task.error for task in state.tasks]) == (("asks", "works"), [None, None])
    block[0] = False
    assert values_of(await graph.ainvoke(None, "t")) == ["?"]
    assert len(ids) == 1
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes", "works"]}


async def test_a_run_cancelled_while_its_node_asks(saver: BaseCheckpointSaver) -> None:
    """P7, P13: a node's group that ends with a question and a cancellation of the run is cancelled: that is no failure,
    and none is recorded. (asyncio leaves the cancellation out of the group: there it is a question.)"""
    began = anyio.Event()

    async def node(state: State) -> Any:
        cancelled = anyio.Event()

        async def asks() -> None:
            with anyio.CancelScope(shield=True):
                await cancelled.wait()
            interrupt("?")

        async def waits() -> None:
            try:
                began.set()
                await anyio.sleep_forever()
            finally:
                cancelled.set()

        async with anyio.create_task_group() as group:
            group.start_soon(asks)
            group.start_soon(waits)

    graph = one_node(node, saver)
    await cancelled_at(began, graph, {})
    state = await graph.aget_state("t")
    assert (state.next, [task.error for task in state.tasks]) == (("n",), [None])


async def test_a_run_cancelled_after_an_answer(saver: BaseCheckpointSaver) -> None:
    """P7, P8: an answer is kept when its run is cancelled: its question is not asked again, and cannot be answered
    again. The other questions are still open."""
    answered, block = anyio.Event(), [True]

    async def asks(state: State) -> Any:
        answer = interrupt("?")
        answered.set()
        if block[0]:
            await anyio.sleep_forever()
        return {"log": [answer]}

    graph = concurrent_nodes(saver, asks=asks, other=asker("other?"))
    ids = ids_of(await graph.ainvoke({}, "t"))
    await cancelled_at(answered, graph, Command(resume={ids["?"]: "yes"}))
    state = await graph.aget_state("t")
    assert (state.next, [question.value for question in state.interrupts]) == (("asks", "other"), ["other?"])
    with pytest.raises(InvalidResumeError, match=ids["?"]):
        await graph.ainvoke(Command(resume={ids["?"]: "again"}), "t")
    block[0] = False
    assert values_of(await graph.ainvoke(None, "t")) == ["other?"]
    assert await graph.ainvoke(Command(resume=0), "t") == {"log": ["yes", 0]}


async def test_a_new_input_instead_of_an_answer(saver: BaseCheckpointSaver) -> None:
    """A new input discards the open question; its id is then invalid."""
    graph = one_node(asker("?"), saver)
    (old,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    (new,) = (await graph.ainvoke({}, "t"))["__interrupt__"]
    assert old.id != new.id
    assert (await graph.aget_state("t")).interrupts == (new,)
    with pytest.raises(InvalidResumeError, match=old.id):
        await graph.ainvoke(Command(resume={old.id: 1}), "t")
    assert await graph.ainvoke(Command(resume=1), "t") == {"log": [1]}


async def test_one_slot(saver: BaseCheckpointSaver) -> None:
    """P8: with `max_concurrency=1` all questions are asked and answered as without."""

    @task
    async def approve(what: str) -> Any:
        return interrupt(what)

    async def calls(state: State) -> Any:
        return {"log": [await call for call in [approve("1"), approve("2")]]}

    graph = concurrent_nodes(saver, a=asker("a"), b=calls)
    config = {"configurable": {"thread_id": "t"}, "max_concurrency": 1}
    result = await graph.ainvoke({}, config)
    assert values_of(result) == ["a", "1", "2"]
    answers = {key: value * 2 for value, key in ids_of(result).items()}
    assert await graph.ainvoke(Command(resume=answers), config) == {"log": ["aa", "11", "22"]}


async def test_ids_in_another_process(tmp_path: Path) -> None:
    """P8, P2: a question's id is the same on every attempt, in every process, on every event loop, in every database:
    it is derived from the thread, the task and the question's number alone."""
    made = StateGraph(State).add_node("n", asker("1", "2")).add_edge(START, "n")
    found: list[list[str]] = []
    for where in ("one", "two"):
        ids: list[str] = []
        for given in ({}, None, Command(resume=1), None):
            async with SqliteSaver.from_conn_string(tmp_path / where) as saver:
                ids += ids_of(await made.compile(saver).ainvoke(given, "t")).values()
        found.append(ids)
    assert found[0] == found[1]
    assert (found[0][0], found[0][2]) == (found[0][1], found[0][3])
    # Of the thread "t", the superstep 1, the node "n", the questions 0 and 1: other systems will store these ids.
    assert found[0][::2] == ["fa5bb3d3232742489f5b0caa9a8ce738", "b6c0b51a5c8f35be6074f6f6263c5b97"]
    other = await made.compile(InMemorySaver()).ainvoke({}, "another thread")
    assert other["__interrupt__"][0].id not in found[0]


async def test_streams(saver: BaseCheckpointSaver) -> None:
    """Each asking task has a chunk of updates, and an ended event with its questions as dicts; the state with
    all of them is one chunk of values; all in plan order, after the siblings' own, and already stored."""
    graph = concurrent_nodes(saver, a=asker("a?"), b=gate(writes={"log": ["b"]}), c=asker("c?"))
    shown: list[Any] = []
    modes = ["values", "updates", "tasks"]
    async for mode, chunk in graph.astream({"note": "x"}, "t", stream_mode=modes):
        shown.append((mode, chunk))
        if "__interrupt__" in chunk:
            assert [question.value for question in (await graph.aget_state("t")).interrupts] == ["a?", "c?"]
    a, c = (await graph.aget_state("t")).interrupts
    assert [chunk for mode, chunk in shown if mode == "updates"] == [
        {"b": {"log": ["b"]}},
        {"__interrupt__": (a,)},
        {"__interrupt__": (c,)},
    ]
    assert [chunk for mode, chunk in shown if mode == "values"] == [
        {"log": [], "note": "x"},
        {"log": [], "note": "x", "__interrupt__": (a, c)},
    ]
    ended = {chunk["name"]: chunk for mode, chunk in shown if mode == "tasks" and "result" in chunk}
    assert (ended["a"]["result"], ended["a"]["error"]) == ({}, None)
    assert ended["a"]["interrupts"] == [{"value": "a?", "id": a.id, "response_schema": None}]
    assert ended["c"]["interrupts"] == [{"value": "c?", "id": c.id, "response_schema": None}]
    assert ended["b"]["interrupts"] == []
    shown = [chunk async for chunk in graph.astream(Command(resume={c.id: 1}), "t", stream_mode="updates")]
    assert shown[-1] == {"__interrupt__": (a,)}
    assert {"c": {"log": [1]}} in shown
    *cached, last = await graph.ainvoke(None, "t", stream_mode=["updates"])
    assert last == ("updates", {"__interrupt__": (a,)})
    assert {name for _, chunk in cached for name in chunk} == {"b", "c", "__metadata__"}  # in any order


async def test_a_state_that_is_no_mapping() -> None:
    """A state that is no mapping has no key for the questions."""
    graph = StateGraph(int).add_node("n", lambda state: interrupt("?")).add_edge(START, "n").compile(InMemorySaver())
    result = await graph.ainvoke(1, "t")
    assert list(result) == ["__interrupt__"]
    chunks = [chunk async for chunk in graph.astream(None, "t", stream_mode="values")]
    assert chunks == [1, {"__interrupt__": tuple(result["__interrupt__"])}]
    assert await graph.ainvoke(Command(resume=5), "t") == 5


@pytest.mark.parametrize(
    "name", ["__interrupt__", "__input__", "__copy__", "__parent__", "__previous__", "__return__", START, END]
)
async def test_reserved_names(name: str) -> None:
    """No node and no key has a name that the runtime reserves: the `__interrupt__` of a result holds nothing but
    questions."""
    with pytest.raises(GraphValidationError):
        StateGraph(State).add_node(name, gate())
    with pytest.raises(GraphValidationError):
        StateGraph(TypedDict("Named", {name: str})).add_node("n", gate()).add_edge(START, "n").compile()
    channels: Any = {"in": LastValue(str)}
    ends: Any = {"input_channels": "in", "output_channels": "in"}
    reads = NodeBuilder().subscribe_only("in")
    if name != START:  # here a channel of that name is the input's
        with pytest.raises(GraphValidationError, match=name):
            Pregel(nodes={name: reads}, channels=channels, **ends)
        with pytest.raises(GraphValidationError, match=name):
            Pregel(nodes={"n": reads}, channels={**channels, name: LastValue(str)}, **ends)
