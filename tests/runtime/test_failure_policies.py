"""P9: the effect of a failed task on its siblings, per graph and per call, on every schedule."""

from __future__ import annotations

import operator
import random
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from pregel_async import END, START, Command, NodeBuilder, Pregel, Send, StateGraph, interrupt, task
from pregel_async.channels import LastValue, Topic
from pregel_async.errors import InvalidUpdateError, NodeError, RecordedFailureError
from pregel_async.types import Collect, RetryPolicy
from tests.helpers.virtual_loops import VirtualWorld
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    errors: Annotated[list[NodeError], operator.add]


class Oops(Exception):
    """A node's failure."""


KIND = f"{Oops.__module__}.{Oops.__qualname__}"


def node(name: str, *, fails: bool = False, turns: int = 0) -> Any:
    async def call(state: Any) -> dict[str, Any]:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        if fails:
            raise Oops(name)
        return {"log": [name]}

    return call


def wide(failing: str, names: str = "abcdef", *, seed: int = 0, width: int = 9) -> StateGraph[Any]:
    """Return nodes that finish in an order chosen by the seed."""
    luck = random.Random(seed)
    made = StateGraph(State).add_node("join", node("join"))
    for name in sorted(names, key=lambda _: luck.random()):
        made.add_node(name, node(name, fails=name in failing, turns=luck.randrange(width))).add_edge(START, name)
    return made.add_edge(list(names), "join").add_edge("join", END)


def names_in(error: BaseException) -> list[str]:
    return [str(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else [str(error)]


schedules = pytest.mark.parametrize("seed", range(12))
widths = pytest.mark.parametrize("width", [None, 1, 2])


def config(width: int | None, thread: str = "t") -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}, **({} if width is None else {"max_concurrency": width})}


@schedules
async def test_fail_fast_cancels_the_others(seed: int) -> None:
    """P9: by default the siblings are cancelled and awaited; members are in plan order, clean-up errors included."""
    ended: list[str] = []

    async def cleans_up(state: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(seed):
                    await anyio.lowlevel.checkpoint()
            ended.append("cleans_up")
            raise ZeroDivisionError("clean-up")

    async def ends(state: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("ends")

    made = (
        StateGraph(State).add_node("b", cleans_up).add_node("c", ends).add_node("a", node("a", fails=True, turns=seed))
    )
    for name in "abc":
        made.add_edge(START, name)
    for graph in (made.compile(InMemorySaver()), made.compile(InMemorySaver(), on_failure="fail_fast")):
        ended.clear()
        async with nothing_left():
            with pytest.raises((Oops, ExceptionGroup)) as caught:
                await graph.ainvoke({}, "t")
        assert names_in(caught.value) == (["a", "clean-up"] if "cleans_up" in ended else ["a"])
        if seed:
            assert set(ended) == {"cleans_up", "ends"}


@schedules
@widths
async def test_finish_lets_the_others_finish(seed: int, width: int | None) -> None:
    """P9: the siblings finish first, and are recorded; the members are the failed ones, in plan order, on every
    schedule. On resume only the failed ones run again."""
    made = wide("bde", seed=seed)
    graph = made.compile(InMemorySaver(), on_failure="finish")
    with pytest.raises(ExceptionGroup) as caught:
        await graph.ainvoke({}, config(width))
    assert names_in(caught.value) == ["b", "d", "e"]
    assert "3 of 6 tasks of superstep 1" in str(caught.value)
    state = await graph.aget_state("t")
    assert [(each.name, each.error is not None, each.result) for each in state.tasks] == [
        (name, name in "bde", None if name in "bde" else {"log": [name]}) for name in "abcdef"
    ]
    well = wide("", seed=seed).compile(graph.checkpointer)
    assert (await well.ainvoke(None, config(width)))["log"] == [*"abcdef", "join"]


async def test_one_failure_is_itself() -> None:
    """P9: under "finish" a single failure is the very exception, too."""
    with pytest.raises(Oops) as caught:
        await wide("c").compile(on_failure="finish").ainvoke({})
    assert str(caught.value) == "c"


async def test_a_call_overrides_the_policy() -> None:
    """A call's policy takes precedence over the graph's."""
    graph = wide("bd").compile(InMemorySaver(), on_failure="finish")
    assert (await graph.ainvoke({}, "1", on_failure=Collect("errors")))["log"] == [*"acef", "join"]
    with pytest.raises(ExceptionGroup):
        await graph.ainvoke({}, "2", on_failure="finish")
    fast = wide("bd").compile(InMemorySaver())
    parts = [part async for part in fast.astream({}, "3", on_failure=Collect("errors"), stream_mode="values")]
    assert [error.node for error in parts[-1]["errors"]] == ["b", "d"]


async def test_base_exceptions_stop_all_tasks() -> None:
    """An exception that is no `Exception` stops the siblings under every policy, and is not collected."""

    class Quit(BaseException):
        pass

    async def quits(state: Any) -> None:
        raise Quit

    ended: list[str] = []

    async def waits(state: Any) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("waits")

    made = StateGraph(State).add_node(quits).add_node(waits).add_edge(START, "quits").add_edge(START, "waits")
    for policy in ("finish", Collect("errors")):
        with anyio.fail_after(30), pytest.raises(BaseException) as caught:
            await made.compile().ainvoke({}, on_failure=policy)
        assert isinstance(caught.value, Quit)


@schedules
@widths
async def test_collect_continues_the_run(seed: int, width: int | None) -> None:
    """P9: a failed task's update is a `NodeError` in the channel; the join is planned as usual; the same on every
    schedule, with task ids; and reading it back gives an equal value."""
    graph = wide("bde", seed=seed).compile(InMemorySaver(), on_failure=Collect("errors"))
    result = await graph.ainvoke({}, config(width))
    assert result["log"] == ["a", "c", "f", "join"]
    assert [(each.node, each.error) for each in result["errors"]] == [
        (name, RecordedFailureError(KIND, name)) for name in "bde"
    ]
    state = await graph.aget_state("t")
    assert state.values == result
    history = [snapshot async for snapshot in graph.aget_state_history("t")]
    ids = {each.name: each.id for snapshot in history for each in snapshot.tasks}
    assert [each.task_id for each in result["errors"]] == [ids[name] for name in "bde"]


async def test_collected_failures_are_stored(tmp_path: Any) -> None:
    """P11: collected failures come back equal from SQLite, in another process's graph."""
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db") as saver:
        result = await wide("ce").compile(saver, on_failure=Collect("errors")).ainvoke({}, "t")
    async with SqliteSaver.from_conn_string(tmp_path / "threads.db") as saver:
        values = (await wide("ce").compile(saver).aget_state("t")).values
    assert values == result
    assert all(isinstance(each, NodeError) for each in values["errors"])


async def test_a_single_task_is_collected() -> None:
    """P9: a failed task is collected when it is alone in its superstep too, and its edges are followed."""
    made = StateGraph(State).add_node("a", node("a", fails=True)).add_node("b", node("b"))
    graph = made.add_edge(START, "a").add_edge("a", "b").compile(on_failure=Collect("errors"))
    result = await graph.ainvoke({})
    assert ([each.node for each in result["errors"]], result["log"]) == (["a"], ["b"])


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_conditional_edges_see_collected_failures(asynchronous: bool) -> None:
    """A failed node's routers run on the collected state; a router's own failure is not collected, and the router runs
    again alone."""
    ran: list[str] = []

    def decide(state: Any) -> str:
        ran.append("router")
        if ran == ["bad", "router"]:
            raise ZeroDivisionError
        return "mends" if [each.node for each in state["errors"]] == ["bad"] else END

    async def decide_slowly(state: Any) -> str:
        return decide(state)

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops("x")

    made = StateGraph(State).add_node(bad).add_node("mends", node("mended")).add_edge(START, "bad")
    made.add_conditional_edges("bad", decide_slowly if asynchronous else decide)
    graph = made.compile(InMemorySaver(), on_failure=Collect("errors"))
    with pytest.raises(ZeroDivisionError):
        await graph.ainvoke({}, "t")
    result = await graph.ainvoke(None, "t")
    assert result["log"] == ["mended"]
    assert [each.error for each in result["errors"]] == [RecordedFailureError(KIND, "x")]
    assert ran == ["bad", "router", "router"]


async def test_sends_are_collected() -> None:
    """Failed sends are collected each by itself, in plan order."""

    async def worker(number: int) -> dict[str, Any]:
        if number % 2:
            raise Oops(str(number))
        return {"log": [str(number)]}

    made = StateGraph(State).add_node("worker", worker)
    graph = made.add_conditional_edges(START, lambda state: [Send("worker", n) for n in range(5)])
    result = await graph.compile(InMemorySaver(), on_failure=Collect("errors")).ainvoke({}, "t")
    assert result["log"] == ["0", "2", "4"]
    assert [each.error.message for each in result["errors"]] == ["1", "3"]
    assert len({each.task_id for each in result["errors"]}) == 2


async def test_collect_in_a_topic() -> None:
    """A `Topic` collects failures too."""

    def first(value: int) -> int:
        raise Oops("x")

    graph = Pregel(
        nodes={"first": NodeBuilder().subscribe_only("a").do(first)},
        channels={"a": LastValue(int), "errors": Topic(NodeError, accumulate=True)},
        input_channels="a",
        output_channels="errors",
        on_failure=Collect("errors"),
    )
    (error,) = await graph.ainvoke(1)
    assert error == NodeError("first", error.task_id, RecordedFailureError(KIND, "x"))


async def test_a_bad_update_is_collected() -> None:
    """An update that the graph refuses is a failure of its node and collected like any other."""

    async def wrong(state: Any) -> Any:
        return {"nowhere": 1}

    made = StateGraph(State).add_node(wrong).add_edge(START, "wrong")
    (error,) = (await made.compile(on_failure=Collect("errors")).ainvoke({}))["errors"]
    assert error.error.type == f"{InvalidUpdateError.__module__}.{InvalidUpdateError.__name__}"


@pytest.mark.parametrize("policy", ["finish", Collect("errors")])
async def test_a_question_and_a_failure(policy: Any) -> None:
    """Under "finish" a failure is raised before a question, which stays open; a collected failure leaves only the
    question, and its task does not run again when that is answered."""
    ran: list[str] = []

    async def asks(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("?")]}

    async def bad(state: Any) -> dict[str, Any]:
        ran.append("bad")
        if policy == "finish" and len(ran) == 2:
            return {"log": ["bad"]}
        raise Oops("no")

    made = StateGraph(State).add_node(asks).add_node(bad).add_edge(START, "asks").add_edge(START, "bad")
    graph = made.compile(InMemorySaver(), on_failure=policy)
    if policy == "finish":
        with pytest.raises(Oops):
            await graph.ainvoke({}, "t")
    else:
        assert "__interrupt__" in await graph.ainvoke({}, "t")
    (question,) = (await graph.aget_state("t")).interrupts
    result = await graph.ainvoke(Command(resume={question.id: "yes"}), "t")
    if policy == "finish":
        assert result["log"] == ["yes", "bad"]
        assert ran == ["bad", "bad"]
    else:
        assert (result["log"], [each.node for each in result["errors"]]) == (["yes"], ["bad"])
        assert ran == ["bad"]


async def test_retries_come_first() -> None:
    """A failure that a retry resolves is in no list; one that remains is collected after the last attempt."""
    environment = VirtualWorld()
    ran: list[str] = []

    async def passes(state: Any) -> dict[str, Any]:
        ran.append("passes")
        if ran.count("passes") < 3:
            raise ConnectionError
        return {"log": ["passed"]}

    async def never(state: Any) -> None:
        ran.append("never")
        raise ConnectionError

    made = StateGraph(State).set_node_defaults(retry_policy=RetryPolicy()).add_node(passes).add_node(never)
    made.add_edge(START, "passes").add_edge(START, "never")
    result = await made.compile(InMemorySaver(), environment=environment, on_failure=Collect("errors")).ainvoke({}, "t")
    assert (result["log"], [each.node for each in result["errors"]]) == (["passed"], ["never"])
    assert (ran.count("passes"), ran.count("never")) == (3, 3)


async def test_subgraphs_have_their_own_policies() -> None:
    """A policy belongs to its graph: a subgraph fails by its own policy, and its node is collected in the parent."""
    inner = wide("bd").compile(name="inner")
    made = StateGraph(State).add_node(inner).add_node("other", node("other", turns=60))
    graph = (
        made.add_edge(START, "inner").add_edge(START, "other").compile(InMemorySaver(), on_failure=Collect("errors"))
    )
    result = await graph.ainvoke({}, "t")
    assert ([each.node for each in result["errors"]], result["log"]) == (["inner"], ["other"])
    collecting = wide("bd").compile(name="inner", on_failure=Collect("errors"))
    outer = StateGraph(State).add_node(collecting).add_edge(START, "inner").compile(InMemorySaver())
    assert [each.node for each in (await outer.ainvoke({}, "t"))["errors"]] == ["b", "d"]


async def test_a_failed_tasks_tasks_are_not_collected() -> None:
    """A called task's failure is its caller's to catch, whatever the policy."""

    @task
    async def step() -> None:
        raise Oops("task")

    async def catches(state: Any) -> dict[str, Any]:
        try:
            await step()
        except Oops:
            return {"log": ["caught"]}
        raise AssertionError

    made = StateGraph(State).add_node(catches).add_edge(START, "catches")
    result = await made.compile(InMemorySaver(), on_failure=Collect("errors")).ainvoke({}, "t")
    assert (result["log"], result["errors"]) == (["caught"], [])


async def test_a_cancelled_run_collects_nothing() -> None:
    """P7: a node that turns its cancellation into a failure is not collected, and the run ends."""
    begun = anyio.Event()

    async def bad(state: Any) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise Oops("late")

    made = StateGraph(State).add_node("bad", bad).add_node("next", node("next"))
    graph = made.add_edge(START, "bad").add_edge("bad", "next").compile(InMemorySaver(), on_failure=Collect("errors"))
    async with nothing_left():
        with pytest.raises((Oops, ExceptionGroup)):
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: graph.ainvoke({}, "t"))
                await begun.wait()
                group.cancel_scope.cancel()
    state = await graph.aget_state("t")
    assert state.next == ("bad",)
    assert not state.values["errors"]


async def test_streams_of_collected_failures() -> None:
    """A collected failure is streamed as its node's update, and in no stream as the run's failure."""
    graph = wide("b").compile(InMemorySaver(), on_failure=Collect("errors"))
    parts = [part async for part in graph.astream({}, "t", stream_mode=["updates", "tasks"])]
    (update,) = [data["b"] for mode, data in parts if mode == "updates" and "b" in data]
    assert [each.node for each in update["errors"]] == ["b"]
    ended = [data for mode, data in parts if mode == "tasks" and data["name"] == "b" and "result" in data]
    assert len(ended) == 1


async def test_the_result_of_a_collected_task_is_recorded() -> None:
    """P5: a collected failure is its task's result: it is recorded while a sibling cannot finish, and the task does not
    run again."""
    ran: list[str] = []

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops("no")

    async def hangs(state: Any) -> dict[str, Any]:
        if ran.count("hangs"):
            return {"log": ["done"]}
        ran.append("hangs")
        await anyio.sleep_forever()
        raise AssertionError

    made = StateGraph(State).add_node(bad).add_node(hangs).add_edge(START, "bad").add_edge(START, "hangs")
    graph = made.compile(InMemorySaver(), on_failure=Collect("errors"))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: graph.ainvoke({}, "t"))
        with anyio.fail_after(30):
            while True:
                await anyio.lowlevel.checkpoint()
                tasks = (await graph.aget_state("t")).tasks
                if [each.name for each in tasks if each.result] == ["bad"]:
                    break
        group.cancel_scope.cancel()
    result = await graph.ainvoke(None, "t")
    assert ([each.node for each in result["errors"]], result["log"]) == (["bad"], ["done"])
    assert ran.count("bad") == 1
