"""An output schema limits the result of a call; states, streams and task results show all keys."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import START, GraphOutput, NodeBuilder, Pregel, StateGraph, entrypoint, interrupt
from pregel_async.channels import BinaryOperatorAggregate, EphemeralValue, LastValue
from pregel_async.types import Command

pytestmark = pytest.mark.anyio


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


class State(Question, Answer, total=False):
    notes: str


class Draft(TypedDict):
    draft: str


def writes_a_draft(state: State) -> dict[str, str]:
    return {"draft": "d", "notes": "n"}


def answers(state: Draft) -> dict[str, str]:
    return {"answer": state["draft"] + "!"}


def answering(saver: Any = None, **settings: Any) -> Any:
    made = StateGraph(State, input_schema=Question, output_schema=Answer)
    made.add_node(writes_a_draft).add_node(answers).add_edge(START, "writes_a_draft")
    return made.add_edge("writes_a_draft", "answers").compile(saver, blocking=False, **settings)


WHOLE = {"question": "q", "draft": "d", "notes": "n", "answer": "d!"}


async def test_only_the_result_is_limited(saver: BaseCheckpointSaver) -> None:
    """State, history and task results show the keys of every schema, including a node's own; a call's result has the
    keys of the output schema."""
    graph = answering(saver)
    assert await graph.ainvoke({"question": "q"}, "t") == {"answer": "d!"}
    assert (await graph.ainvoke({"question": "q"}, "v", version="v2")).value == {"answer": "d!"}
    assert (await graph.aget_state("t")).values == WHOLE
    history = [state async for state in graph.aget_state_history("t")]
    assert [state.values for state in history] == [
        WHOLE,
        {"question": "q", "draft": "d", "notes": "n"},
        {"question": "q"},
        {},
    ]
    results = [task.result for state in history[:3] for task in state.tasks]
    assert results == [{"answer": "d!"}, {"draft": "d", "notes": "n"}]


async def test_streams_show_all_keys(saver: BaseCheckpointSaver) -> None:
    """`values`, `updates`, `tasks` and `checkpoints` show a node's own keys; `output_keys` chooses."""
    graph = answering(saver)
    modes = ["values", "updates", "tasks", "checkpoints"]
    chunks = [chunk async for chunk in graph.astream({"question": "q"}, "t", stream_mode=modes)]
    shown = {mode: [chunk for kind, chunk in chunks if kind == mode] for mode in modes}
    assert shown["values"][-1] == WHOLE
    assert shown["updates"] == [{"writes_a_draft": {"draft": "d", "notes": "n"}}, {"answers": {"answer": "d!"}}]
    assert [task["result"] for task in shown["tasks"] if "result" in task] == [
        {"draft": "d", "notes": "n"},
        {"answer": "d!"},
    ]
    assert shown["checkpoints"][-1]["values"] == WHOLE
    chosen = [chunk async for chunk in graph.astream({"question": "q"}, "u", output_keys=["answer"])]
    assert chosen == [{"writes_a_draft": None}, {"answers": {"answer": "d!"}}]


async def test_a_subgraphs_state_shows_all_keys(saver: BaseCheckpointSaver) -> None:
    """The state of a subgraph shows all keys; its node passes only the output to the parent graph."""
    around: Any = (
        StateGraph(State).add_node("inner", answering(interrupt_after=["writes_a_draft"])).add_edge(START, "inner")
    )
    graph = around.compile(saver)
    await graph.ainvoke({"question": "q"}, "t")
    (task,) = (await graph.aget_state("t", subgraphs=True)).tasks
    assert task.state.values == {"question": "q", "draft": "d", "notes": "n"}
    assert await graph.ainvoke(None, "t") == {"question": "q", "answer": "d!"}


async def test_a_class_state_has_its_own_keys_in_v2(saver: BaseCheckpointSaver) -> None:
    """A state class is created in spite of keys of a node's own schema."""

    class Model(BaseModel, extra="forbid"):
        question: str = ""

    def writes(state: Model) -> Any:
        return {"draft": "d"}

    def reads(state: Draft) -> None:
        assert state == {"draft": "d"}

    made: Any = StateGraph(Model).add_sequence([writes, reads]).add_edge(START, "writes")
    graph = made.compile(saver)
    parts = [part async for part in graph.astream({"question": "q"}, "t", stream_mode="values", version="v2")]
    assert parts[-1]["data"] == Model(question="q")
    assert [part async for part in graph.astream({"question": "q"}, "u", stream_mode="values")][-1] == {
        "question": "q",
        "draft": "d",
    }


def asking(saver: BaseCheckpointSaver, outputs: Any = "out") -> Pregel:
    """Writes `total`, asks when the input is negative, and writes `out`."""

    def first(value: int) -> int:
        return abs(value)

    def second(value: dict[str, int]) -> int:
        return interrupt("?") if value["in_"] < 0 else value["mid"]

    return Pregel(
        nodes={
            "first": NodeBuilder().subscribe_only("in_").do(first).write_to("mid", "total"),
            "second": NodeBuilder().subscribe_to("mid").read_from("in_").do(second).write_to("out"),
        },
        channels={
            "in_": LastValue(int),
            "mid": EphemeralValue(int),
            "total": BinaryOperatorAggregate(int, int.__add__),
            "out": LastValue(int),
        },
        input_channels="in_",
        output_channels=outputs,
        checkpointer=saver,
        blocking=False,
    )


async def test_a_pause_does_not_return_the_output_of_the_run_before(saver: BaseCheckpointSaver) -> None:
    """A graph of channels that pauses before it has written its output returns no output, called or resumed."""
    graph = asking(saver)
    assert await graph.ainvoke(1, "t") == 1
    paused = await graph.ainvoke(-2, "t", version="v2")
    assert (paused.value, [each.value for each in paused.interrupts]) == (None, ["?"])
    assert (await graph.aget_state("t")).values == {"in_": -2, "mid": 2, "total": 3, "out": 1}
    assert (await graph.ainvoke(None, "t", version="v2")).value is None
    assert await graph.ainvoke(Command(resume=7), "t") == 7


async def test_of_several_outputs_those_of_this_run_are_returned(saver: BaseCheckpointSaver) -> None:
    """Of several output channels, or those in `output_keys`, only those that this run wrote are returned."""
    graph = asking(saver, ["total", "out"])
    assert await graph.ainvoke(1, "t") == {"total": 1, "out": 1}
    paused = await graph.ainvoke(-2, "t", version="v2")
    assert isinstance(paused, GraphOutput)
    assert paused.value == {"total": 3}
    again = await graph.ainvoke(None, "t", output_keys=["mid", "out"], version="v2")
    assert again.value == {"mid": 2}
    assert await graph.ainvoke(Command(resume=7), "t") == {"total": 3, "out": 7}
    assert await graph.ainvoke(-3, "t", interrupt_before=["first"]) == {}


async def test_a_thread_from_before_the_mark(saver: BaseCheckpointSaver) -> None:
    """P15: a thread stored before inputs were marked returns the values of its outputs."""
    graph = asking(saver)
    await graph.aupdate_state("t", 5, "second")
    assert await graph.ainvoke(None, "t") == 5


async def test_an_entrypoint_that_pauses_returns_no_result(saver: BaseCheckpointSaver) -> None:
    """An entrypoint that pauses returns only its questions, not the result of the previous run."""

    @entrypoint(checkpointer=saver)
    async def answer(question: str) -> dict[str, str]:
        return {"answer": interrupt(question) if question.endswith("?") else question}

    assert await answer.ainvoke("one", "t") == {"answer": "one"}
    paused: Any = await answer.ainvoke("two?", "t")
    assert list(paused) == ["__interrupt__"]
    assert (await answer.ainvoke(None, "t", version="v2")).value is None
    assert (await answer.aget_state("t")).values == {"answer": "one"}
    assert await answer.ainvoke(Command(resume="2"), "t") == {"answer": "2"}


def test_the_part_of_a_state_that_a_call_returns() -> None:
    """The output that the command line prints at the end of a run is limited like the result of a call."""
    low = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("in_").do(int).write_to("out")},
        channels={"in_": EphemeralValue(int), "out": LastValue(int)},
        input_channels="in_",
        output_channels="out",
    )
    assert [low.output_from(state) for state in ({"in_": 1, "out": 2}, {"in_": 1})] == [2, None]
    assert answering().output_from(WHOLE) == {"answer": "d!"}
    root: Any = StateGraph(dict).add_node("n", lambda state: state).add_edge(START, "n").compile()
    assert root.output_from({"a": 1}) == {"a": 1}
