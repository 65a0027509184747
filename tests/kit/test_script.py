"""`Script`: nodes with scripted attempts."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, StateGraph
from pregel_async.errors import OutsideRunError
from pregel_async.testing import Script, ScriptEndedError, VirtualClock, asks, fails, gives, returns, waits

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def graph_of(script: Script, **options: Any) -> Any:
    return StateGraph(State).add_node("node", script).add_edge(START, "node").compile(InMemorySaver(), **options)


async def test_each_run_is_the_next_attempt() -> None:
    """Each run performs the next attempt, here a failure and then a success; inputs, times and outcomes are
    recorded."""
    script = Script(fails(ConnectionError("reset")), [waits(2.0), returns({"log": ["done"]})])
    clock = VirtualClock(start=100.0)
    graph = graph_of(script, environment=clock)
    with pytest.raises(ConnectionError, match="reset"):
        await graph.ainvoke({"log": ["in"]}, "t")
    assert await graph.ainvoke(None, "t") == {"log": ["in", "done"]}
    assert [(call.node, call.input, call.outcome, call.at) for call in script.calls] == [
        ("node", {"log": ["in"]}, "raised", 100.0),
        ("node", {"log": ["in"]}, "returned", 100.0),
    ]
    assert len({call.task_id for call in script.calls}) == 1
    assert clock.now() == 102.0 and script.left == 0


async def test_an_attempt_that_asks_is_done_again_with_the_answer() -> None:
    """An attempt that asks runs again from its start with the answer, and does not count as a new attempt."""
    script = Script([asks("how many?"), asks("really?"), gives(lambda state, many, sure: {"log": [f"{many} {sure}"]})])
    graph = graph_of(script)
    result = await graph.ainvoke({"log": []}, "t")
    assert [question.value for question in result["__interrupt__"]] == ["how many?"]
    await graph.ainvoke(Command(resume=3), "t")
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["3 yes"]}
    assert [call.outcome for call in script.calls] == ["asked", "asked", "returned"]


async def test_one_run_too_many_fails() -> None:
    """A run beyond the scripted attempts fails the test."""
    graph = graph_of(Script(returns({"log": ["once"]})))
    await graph.ainvoke({"log": []}, "t")
    with pytest.raises(ScriptEndedError, match=r"is executed 2 times.*1 attempts"):
        await graph.ainvoke({"log": []}, "t")


async def test_a_script_that_repeats() -> None:
    """A repeating script performs its last attempt forever; one without attempts returns nothing."""
    graph = graph_of(Script(returns({"log": ["again"]}), repeats=True))
    await graph.ainvoke({"log": []}, "t")
    assert await graph.ainvoke({"log": []}, "t") == {"log": ["again", "again"]}
    assert await graph_of(Script()).ainvoke({"log": ["in"]}, "t") == {"log": ["in"]}


async def test_outside_of_a_run() -> None:
    """Bad input: calling a scripted node outside a run raises."""
    with pytest.raises(OutsideRunError):
        await Script()(None)
