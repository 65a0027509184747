"""`interrupt(value, response_schema=...)`: answers are checked, and a refused answer can be given again."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field, ValidationError

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START, Command, Interrupt, RetryPolicy, StateGraph, entrypoint, interrupt, task
from pregel_async.errors import ConfigError, InvalidAnswerError, InvalidResumeError, UnknownInterruptError
from tests.helpers.each_saver import SAVERS, opened

pytestmark = pytest.mark.anyio

CONFIG: Any = {"configurable": {"thread_id": "form-1"}}


@pytest.fixture(params=SAVERS)
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseCheckpointSaver]:
    async with opened(request.param, tmp_path) as made:
        yield made


class Review(BaseModel):
    decision: Literal["approve", "reject"]
    amount: int = Field(gt=0)


class Person(TypedDict):
    age: int


@dataclass
class Address:
    street: str
    number: int


class Point(msgspec.Struct):
    x: int


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def review(state: State) -> dict[str, Any]:
    answer = interrupt("Review the refund.", response_schema=Review)
    return {"log": [answer.decision, answer.amount]}


def reviews(saver: Any, node: Any = review, **options: Any) -> Any:
    return StateGraph(State).add_node("review", node, **options).add_edge(START, "review").compile(checkpointer=saver)


async def test_an_answer_becomes_the_type(saver: BaseCheckpointSaver) -> None:
    """The question shows the JSON schema, in the result, the state and the history; the node gets a checked object."""
    graph = reviews(saver)
    [question] = (await graph.ainvoke({}, CONFIG))["__interrupt__"]
    assert question.response_schema == Review.model_json_schema()
    assert (await graph.aget_state(CONFIG)).interrupts == (question,)
    result = await graph.ainvoke(Command(resume={"decision": "approve", "amount": "7"}), CONFIG)
    assert result == {"log": ["approve", 7]}
    asked = [state async for state in graph.aget_state_history(CONFIG) if state.next == ("review",)]
    assert asked[0].interrupts == (question,)


async def test_a_refused_answer(saver: BaseCheckpointSaver) -> None:
    """The error says what does not fit and where; the question stays open, nothing of the answer is kept, and another
    answer is accepted, in this or in a new process."""
    graph = reviews(saver)
    [question] = (await graph.ainvoke({}, CONFIG))["__interrupt__"]
    for answer in ({"decision": "burn-it-all", "amount": 1}, {question.id: {"decision": "burn-it-all", "amount": 1}}):
        with pytest.raises(InvalidAnswerError, match=r"decision: .*question is open again") as raised:
            await graph.ainvoke(Command(resume=answer), CONFIG)
        assert (raised.value.id, raised.value.node) == (question.id, "review")
        assert isinstance(raised.value.__cause__, ValidationError)
        assert any("in node 'review'" in note for note in raised.value.__notes__)
        state = await graph.aget_state(CONFIG)
        assert (state.next, state.interrupts) == (("review",), (question,))
        assert state.tasks[0].error.type.endswith("InvalidAnswerError")
        chain = await saver.read("form-1", "", None)
        assert chain is not None
        assert not any(b"burn-it-all" in record.frame for record in chain.records)
    [again] = (await reviews(saver).ainvoke(None, CONFIG))["__interrupt__"]
    assert again == question
    result = await reviews(saver).ainvoke(Command(resume={question.id: {"decision": "reject", "amount": 2}}), CONFIG)
    assert result == {"log": ["reject", 2]}


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_with_other_durabilities(saver: BaseCheckpointSaver, durability: Any) -> None:
    """A refused answer is dropped with each durability."""
    graph = reviews(saver)
    await graph.ainvoke({}, CONFIG, durability=durability)
    with pytest.raises(InvalidAnswerError):
        await graph.ainvoke(Command(resume="no"), CONFIG, durability=durability)
    assert len((await graph.aget_state(CONFIG)).interrupts) == 1
    good = Command(resume={"decision": "approve", "amount": 3})
    assert await graph.ainvoke(good, CONFIG, durability=durability) == {"log": ["approve", 3]}


@pytest.mark.parametrize(
    ("schema", "good", "made", "bad"),
    [
        (int, "4", 4, "four"),
        (Person, {"age": "5"}, {"age": 5}, {"age": None}),
        (Address, {"street": "Main", "number": 1}, Address("Main", 1), {"street": "Main"}),
        (list[int], ["1", 2], [1, 2], [1, "x"]),
        (Point, {"x": 1}, Point(1), {"x": "one"}),
        (Literal["yes", "no"], "yes", "yes", "maybe"),
        (Annotated[int, Field(le=9)], 9, 9, 10),
    ],
    ids=str,
)
async def test_types(schema: Any, good: Any, made: Any, bad: Any) -> None:
    """Any type that pydantic or msgspec knows will do; a container in an answer is isolated as all answers are."""
    seen: list[Any] = []

    def asks(state: State) -> None:
        seen.append(interrupt("?", response_schema=schema))

    graph = reviews(InMemorySaver(), asks)
    [question] = (await graph.ainvoke({}, CONFIG))["__interrupt__"]
    assert isinstance(question.response_schema, dict)
    with pytest.raises(InvalidAnswerError):
        await graph.ainvoke(Command(resume=bad), CONFIG)
    await graph.ainvoke(Command(resume=good), CONFIG)
    assert (seen, [type(each) for each in seen]) == ([made], [type(made)])


async def test_a_json_schema(saver: BaseCheckpointSaver) -> None:
    """A JSON schema is shown as it is, for the caller's form, and checks nothing."""
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}}

    def asks(state: State) -> dict[str, Any]:
        return {"log": [interrupt("age?", response_schema=schema)]}

    graph = reviews(saver, asks)
    [question] = (await graph.ainvoke({}, CONFIG))["__interrupt__"]
    assert question.response_schema == schema
    assert await graph.ainvoke(Command(resume="old"), CONFIG) == {"log": ["old"]}


async def test_no_schema() -> None:
    """What is no type that can be checked fails the node before it asks."""

    def asks(state: State) -> None:
        interrupt("?", response_schema=object())

    graph = reviews(InMemorySaver(), asks)
    with pytest.raises(ConfigError, match="response_schema"):
        await graph.ainvoke({}, CONFIG)
    assert (await graph.aget_state(CONFIG)).interrupts == ()


async def test_a_refusal_is_final(saver: BaseCheckpointSaver) -> None:
    """The node cannot catch the error, no retry policy tries again, and no error handler runs."""
    ran: list[str] = []

    def asks(state: State) -> dict[str, Any]:
        ran.append("node")
        try:
            return {"log": [interrupt("?", response_schema=int)]}
        except Exception:
            return {"log": ["swallowed"]}

    def handle(state: State) -> dict[str, Any]:
        return {"log": ["handled"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False, retry_on=Exception)
    graph = reviews(saver, asks, retry_policy=policy, error_handler=handle)
    await graph.ainvoke({}, CONFIG)
    with pytest.raises(InvalidAnswerError):
        await graph.ainvoke(Command(resume="x"), CONFIG)
    assert ran == ["node", "node"]
    assert await graph.ainvoke(Command(resume=1), CONFIG) == {"log": [1]}


async def test_the_second_question_of_a_node(saver: BaseCheckpointSaver) -> None:
    """Only the refused answer is dropped: the answer to the first question stays."""
    graph = reviews(
        saver,
        lambda state: {"log": [interrupt("first", response_schema=int), interrupt("second", response_schema=int)]},
    )
    await graph.ainvoke({}, CONFIG)
    await graph.ainvoke(Command(resume=1), CONFIG)
    with pytest.raises(InvalidAnswerError):
        await graph.ainvoke(Command(resume="two"), CONFIG)
    assert [each.value for each in (await graph.aget_state(CONFIG)).interrupts] == ["second"]
    assert await graph.ainvoke(Command(resume=2), CONFIG) == {"log": [1, 2]}


async def test_in_a_subgraph_and_a_task(saver: BaseCheckpointSaver) -> None:
    """Wherever a node may ask, a refused answer opens the question again, in each enclosing graph."""

    @task
    async def call() -> int:
        return interrupt("in a task", response_schema=int)

    async def calls(state: State) -> dict[str, Any]:
        return {"log": [await call()]}

    inner = StateGraph(State).add_node(calls).add_edge(START, "calls").compile()
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=saver)
    await graph.ainvoke({}, CONFIG)
    with pytest.raises(InvalidAnswerError):
        await graph.ainvoke(Command(resume="x"), CONFIG)
    state = await graph.aget_state(CONFIG, subgraphs=True)
    assert [each.value for each in state.interrupts] == ["in a task"]
    assert await graph.ainvoke(Command(resume="3"), CONFIG) == {"log": [3]}


async def test_two_refused_answers() -> None:
    """Answers to several nodes are refused each by itself; a node whose answer fits keeps its result."""
    builder = StateGraph(State)
    for name in ("a", "b", "c"):

        def asks(state: State, name: str = name) -> dict[str, Any]:
            return {"log": [interrupt(name, response_schema=int)]}

        builder.add_node(name, asks).add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    asked: Any = await graph.ainvoke({}, CONFIG)
    ids = {each.value: each.id for each in asked["__interrupt__"]}
    with pytest.raises(ExceptionGroup) as raised:
        answers = {ids["a"]: "x", ids["b"]: 2, ids["c"]: "y"}
        await graph.ainvoke(Command(resume=answers), CONFIG, on_failure="finish")
    assert [type(each) for each in raised.value.exceptions] == [InvalidAnswerError] * 2
    state = await graph.aget_state(CONFIG)
    assert ([each.value for each in state.interrupts], state.next) == (["a", "c"], ("a", "c"))
    assert await graph.ainvoke(Command(resume={ids["a"]: 1, ids["c"]: 3}), CONFIG) == {"log": [1, 2, 3]}


async def test_beside_an_unanswered_question(saver: BaseCheckpointSaver) -> None:
    """If a node has several open questions, a refused answer leaves the unanswered ones open, in each enclosing graph;
    one call can answer them all."""

    @task
    async def ask(name: str) -> int:
        return interrupt(name, response_schema=int)

    async def asks(state: State) -> dict[str, Any]:
        first, second = ask("first"), ask("second")
        return {"log": [await first, await second]}

    inner = StateGraph(State).add_node(asks).add_edge(START, "asks").compile()
    graph = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=saver)
    asked: Any = await graph.ainvoke({}, CONFIG)
    ids = {each.value: each.id for each in asked["__interrupt__"]}
    with pytest.raises(InvalidAnswerError):
        await graph.ainvoke(Command(resume={ids["second"]: "x"}), CONFIG)
    state = await graph.aget_state(CONFIG)
    assert sorted([each.value for each in state.interrupts]) == ["first", "second"]
    answers = {ids["first"]: 1, ids["second"]: 2}
    assert await graph.ainvoke(Command(resume=answers), CONFIG) == {"log": [1, 2]}


async def test_in_a_workflow(saver: BaseCheckpointSaver) -> None:
    """An entrypoint's question is checked as well."""

    @entrypoint(checkpointer=saver)
    async def workflow(name: str) -> str:
        return f"{name} is {interrupt('age?', response_schema=Person)['age']}"

    [question] = [each async for each in workflow.astream("Ada", CONFIG)][0]["__interrupt__"]
    assert "age" in str(question.response_schema)
    with pytest.raises(InvalidAnswerError, match="age"):
        await workflow.ainvoke(Command(resume={}), CONFIG)
    assert await workflow.ainvoke(Command(resume={"age": 36}), CONFIG) == "Ada is 36"


def test_without_an_event_loop() -> None:
    """The same by `invoke`."""
    graph = reviews(InMemorySaver())
    graph.invoke({}, CONFIG)
    with pytest.raises(InvalidAnswerError):
        graph.invoke(Command(resume={"decision": "approve", "amount": 0}), CONFIG)
    assert len(graph.get_state(CONFIG).interrupts) == 1
    assert graph.invoke(Command(resume={"decision": "approve", "amount": 1}), CONFIG) == {"log": ["approve", 1]}


async def test_answers_to_unknown_questions() -> None:
    """`UnknownInterruptError` says which answers name no open question, and which questions are open."""
    builder = StateGraph(State)
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: {"log": [interrupt(name)]}).add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    asked: Any = await graph.ainvoke({}, CONFIG)
    a, b = (each.id for each in asked["__interrupt__"])
    unknown = "0" * 32
    with pytest.raises(UnknownInterruptError) as raised:
        await graph.ainvoke(Command(resume={unknown: 1, a: 2}), CONFIG)
    assert (raised.value.reason, raised.value.interrupt_ids, raised.value.pending_ids) == (
        "not_pending",
        (unknown,),
        (a, b),
    )
    with pytest.raises(UnknownInterruptError) as raised:
        await graph.ainvoke(Command(resume=1), CONFIG)
    assert (raised.value.reason, raised.value.interrupt_ids, raised.value.pending_ids) == ("ambiguous", (), (a, b))
    assert isinstance(raised.value, InvalidResumeError)
    assert isinstance(raised.value, RuntimeError)
    assert await graph.ainvoke(Command(resume={a: 1, b: 2}), CONFIG) == {"log": [1, 2]}


async def test_the_fields_of_a_question() -> None:
    """`Interrupt` has LangGraph's fields in its order, can be a key, and asks "during" a node's run; the stream mode
    `tasks` shows all fields."""
    graph = reviews(InMemorySaver())
    chunks = [chunk async for chunk in graph.astream({}, CONFIG, stream_mode=["tasks", "updates"])]
    [question] = chunks[1][1]["__interrupt__"]
    assert chunks[-1][1]["interrupts"] == [asdict(question)]
    assert list(asdict(question)) == ["value", "id", "response_schema"]
    assert (question.when, len({question, question})) == ("during", 1)
    assert Interrupt("?", "id").response_schema is None


def test_without_pydantic() -> None:
    """Without pydantic, msgspec checks the answers; a question without a schema imports neither module."""
    code = """
import sys
sys.modules["pydantic"] = None
from typing import TypedDict
from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph, interrupt
from pregel_async.errors import InvalidAnswerError

class State(TypedDict, total=False):
    age: int
    name: str

def ask(state):
    name = interrupt("name?")
    print("pregel_async._runtime.tasks.answer_schemas" in sys.modules)
    return {"name": name, "age": interrupt("age?", response_schema=int)}

graph = StateGraph(State).add_node(ask).add_edge(START, "ask").compile(InMemorySaver())
graph.invoke({}, "t")
[question] = graph.invoke(Command(resume="Ada"), "t")["__interrupt__"]
print(question.response_schema)
try:
    graph.invoke(Command(resume="x"), "t")
except InvalidAnswerError as error:
    print(error.problem)
print(graph.invoke(Command(resume="4"), "t"))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "False",
        "{'type': 'integer'}",
        "True",
        "Expected `int`, got `str`",
        "True",
        "{'age': 4, 'name': 'Ada'}",
    ]
