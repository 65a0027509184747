"""Concurrent tasks that a node starts itself: questions, calls and graphs keep their identity.

The event loop runs such tasks in an arbitrary order (trio shuffles them), so that counting would mix them up.
"""

from __future__ import annotations

import asyncio
import contextvars
import operator
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt, task
from pregel_async.errors import InvalidResumeError, InvalidUpdateError, QuestionChangedWarning

pytestmark = pytest.mark.anyio

NAMES = [f"n{index}" for index in range(6)]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Named(State, total=False):
    who: str


def alone(node: Any) -> Any:
    return StateGraph(State).add_node("n", node).add_edge(START, "n").compile(InMemorySaver())


async def shuffled(work: Any, names: list[str]) -> dict[str, Any]:
    """Run the work once per name, started in a different order on each attempt."""
    got: dict[str, Any] = {}

    async def one(name: str) -> None:
        for _ in range(random.randrange(4)):
            await anyio.lowlevel.checkpoint()
        got[name] = await work(name)

    mixed = random.sample(names, len(names))
    async with anyio.create_task_group() as group:
        for name in mixed:
            group.start_soon(one, name)
    return got


@pytest.mark.parametrize("seed", range(5))
async def test_questions_get_their_own_answers(seed: int) -> None:
    """P8: each question has an id of its own, stable across resumes, in whatever order the tasks run."""
    random.seed(seed)

    async def ask(name: str) -> Any:
        return interrupt(f"who is {name}?")

    graph = alone(lambda state: logged(shuffled(ask, NAMES)))
    result = await graph.ainvoke({"log": []}, "t")
    questions: dict[str, str] = {}
    while "__interrupt__" in result:
        for question in result["__interrupt__"]:
            assert questions.setdefault(question.id, question.value) == question.value, "an id is one question's"
        answers = {question.id: question.value.split()[2] for question in result["__interrupt__"]}
        result = await graph.ainvoke(Command(resume=answers), "t")
    assert result["log"] == [f"{name}: {name}?" for name in NAMES]
    assert len(questions) == len(NAMES)


async def logged(work: Any) -> dict[str, Any]:
    got = await work
    return {"log": [f"{name}: {got[name]}" for name in sorted(got)]}


@pytest.mark.parametrize("seed", range(5))
async def test_calls_get_their_own_results(seed: int) -> None:
    """P5: a recorded result is that of the same call, in whatever order the tasks run; none is computed again."""
    random.seed(seed)
    ran: list[str] = []

    @task
    async def double(name: str) -> str:
        ran.append(name)
        return name * 2

    async def node(state: State) -> State:
        got = await shuffled(double, [*NAMES, "same", "same "])
        if interrupt("go on?"):
            return {"log": [f"{name}: {got[name]}" for name in sorted(got)]}
        return {}

    graph = alone(node)
    await graph.ainvoke({"log": []}, "t")
    result = await graph.ainvoke(Command(resume=True), "t")
    assert result["log"] == [f"{name}: {name * 2}" for name in sorted([*NAMES, "same", "same "])]
    assert sorted(ran) == sorted([*NAMES, "same", "same "])


@pytest.mark.parametrize("seed", range(5))
async def test_graphs_get_their_own_states(seed: int) -> None:
    """P8, P5: each of several concurrent graphs continues from its own state, in whatever order they run."""
    random.seed(seed)
    ran: list[str] = []

    def first(state: State) -> State:
        ran.append(state["log"][0])
        return {"log": ["first"]}

    def second(state: State) -> State:
        return {"log": [interrupt({"for": state["log"][0]})]}

    inner = StateGraph(State).add_node("first", first).add_node("second", second)
    inner.add_edge(START, "first").add_edge("first", "second")
    compiled = inner.compile(name="inner", blocking=False)

    async def run(name: str) -> str:
        return "/".join((await compiled.ainvoke({"log": [name]}))["log"])

    graph = alone(lambda state: logged(shuffled(run, NAMES)))
    result = await graph.ainvoke({"log": []}, "t")
    rounds = 0
    while "__interrupt__" in result:
        rounds += 1
        answers = {question.id: f"hello {question.value['for']}" for question in result["__interrupt__"]}
        result = await graph.ainvoke(Command(resume=answers), "t")
    assert result["log"] == [f"{name}: {name}/first/hello {name}" for name in NAMES]
    assert rounds <= len(NAMES)


async def test_two_of_one_name_are_refused() -> None:
    """P5, P8: two different concurrent tasks, or graphs, of one name and with equal input are ambiguous: that is an
    error that says so, and never the other's result."""

    def made(value: str) -> Any:
        @task
        async def fetch(given: str) -> str:
            return value

        return fetch

    first, second = made("A"), made("B")

    async def node(state: State) -> State:
        async with anyio.create_task_group() as group:
            group.start_soon(call, first)
            group.start_soon(call, second)
        return {}

    async def call(fetch: Any) -> None:
        await fetch("x")

    with pytest.raises(ExceptionGroup) as caught:
        await alone(node).ainvoke({"log": []}, "t")
    words = "two different tasks named 'fetch'"
    assert all(isinstance(error, InvalidUpdateError) and words in str(error) for error in caught.value.exceptions)


@pytest.mark.parametrize("seed", range(3))
async def test_threads_of_the_nodes_own(seed: int) -> None:
    """P8: in threads that a node starts, which have no defined order, a question is identified by its value too."""
    late = random.Random(seed).sample(NAMES, len(NAMES))

    def node(state: State) -> State:
        turns = {name: threading.Event() for name in NAMES}

        def ask(name: str) -> str:
            turns[name].wait()
            try:
                return f"{name}: {interrupt(f'who is {name}?')}"
            finally:
                following = late[late.index(name) + 1 :]
                for each in following[:1]:
                    turns[each].set()

        turns[late[0]].set()
        with ThreadPoolExecutor(len(NAMES)) as pool:
            questions = [pool.submit(contextvars.copy_context().run, ask, name) for name in NAMES]
        random.shuffle(late)
        return {"log": [each.result() for each in questions]}

    graph = alone(node)
    result = await graph.ainvoke({"log": []}, "t")
    answers = {question.id: question.value.split()[2] for question in result["__interrupt__"]}
    assert len(answers) == len(NAMES)
    random.shuffle(late)
    result = await graph.ainvoke(Command(resume=answers), "t")
    assert result["log"] == [f"{name}: {name}?" for name in NAMES]


async def test_a_late_answer_to_a_discarded_question() -> None:
    """P8: a graph that keeps its state asks again after a new input has discarded its question: the new question is
    another one."""
    inner = StateGraph(Named).add_node("ask", lambda state: {"log": [interrupt(f"pay {state['who']}?")]})
    kept = inner.add_edge(START, "ask").compile(checkpointer=True, blocking=False)
    graph = StateGraph(Named).add_node("n", kept).add_edge(START, "n").compile(InMemorySaver())
    first = (await graph.ainvoke({"who": "ann"}, "t"))["__interrupt__"][0]
    second = (await graph.ainvoke({"who": "bob"}, "t"))["__interrupt__"][0]
    assert first.id != second.id
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume={first.id: "yes, ann"}), "t")
    state = await graph.aget_state("t", subgraphs=True)
    assert [task.state.tasks[0].interrupts[0].id for task in state.tasks] == [second.id]
    assert (await graph.ainvoke(Command(resume="yes, bob"), "t"))["log"] == ["yes, bob"]


async def test_questions_of_the_nodes_own_task_are_counted() -> None:
    """P8: a question of the node's own code is identified by its position: with another value it is the same question,
    which a graph may accept."""
    asked: list[str] = []

    async def node(state: State) -> State:
        asked.append(f"attempt {len(asked)}")
        return {"log": [interrupt(asked[-1])]}

    builder = StateGraph(State).add_node("n", node).add_edge(START, "n")
    graph: Any = builder.compile(InMemorySaver(), changed_questions="accept")
    first = await graph.ainvoke({"log": []}, "t")
    assert first["__interrupt__"][0].value == "attempt 0"
    with pytest.warns(QuestionChangedWarning):
        assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["yes"]}


async def test_a_task_group_of_asyncios_own(anyio_backend_name: str) -> None:
    """P8, P9: a question or a failure in an asyncio.TaskGroup of a node that runs alone, with a saver, is not mistaken
    for a cancellation of the run."""
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own task groups, which trio has not")

    async def ask() -> Any:
        return interrupt("q")

    async def asking(state: State) -> State:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask())
        return {"log": [asked.result()]}

    async def fail() -> None:
        raise ValueError("x")

    async def failing(state: State) -> State:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return {}

    async def catching(state: State) -> State:
        caught: list[str] = []
        try:
            await failing(state)
        except* ValueError:
            caught.append("caught")
        return {"log": caught}

    graph = alone(asking)
    assert [each.value for each in (await graph.ainvoke({"log": []}, "t"))["__interrupt__"]] == ["q"]
    assert await graph.ainvoke(Command(resume="a"), "t") == {"log": ["a"]}
    with pytest.raises(ExceptionGroup) as caught:
        await alone(failing).ainvoke({"log": []}, "t")
    assert isinstance(caught.value.exceptions[0], ValueError)
    assert await alone(catching).ainvoke({"log": []}, "t") == {"log": ["caught"]}
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0
