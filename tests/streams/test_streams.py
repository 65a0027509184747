"""The shapes and the order of streamed chunks."""

# ruff: noqa: PERF401  # chunks read before an error, or a stop, count

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, NodeBuilder, Pregel, Send, StateGraph
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import GraphRecursionError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def logging_node(name: str) -> Any:
    return lambda state: {"log": [name]}


def chain(*names: str) -> StateGraph[State]:
    made = StateGraph(State).add_sequence([(name, logging_node(name)) for name in names])
    return made.add_edge(START, names[0])


async def chunks(graph: Any, given: Any, config: Any = None, **arguments: Any) -> list[Any]:
    async with graph.astream(given, config, **arguments) as stream:
        return [chunk async for chunk in stream]


async def test_values() -> None:
    """The state after the start if the input wrote something, then after each superstep."""
    graph = chain("a", "b").compile(blocking=False)
    assert await chunks(graph, {"note": "x"}, stream_mode="values") == [
        {"log": [], "note": "x"},
        {"log": ["a"], "note": "x"},
        {"log": ["a", "b"], "note": "x"},
    ]


async def test_values_after_an_empty_input() -> None:
    """No first chunk when the input wrote nothing."""
    assert await chunks(chain("a").compile(blocking=False), {}, stream_mode="values") == [{"log": ["a"]}]


async def test_values_of_a_superstep_that_changed_nothing() -> None:
    """No chunk for a superstep that changed none of the channels shown."""
    made = StateGraph(State).add_sequence(
        [("a", logging_node("a")), ("idle", lambda state: None), ("b", logging_node("b"))]
    )
    graph = made.add_edge(START, "a").compile(blocking=False)
    assert await chunks(graph, {}, stream_mode="values") == [{"log": ["a"]}, {"log": ["a", "b"]}]
    assert await chunks(graph, {"note": "x"}, stream_mode="values", output_keys=["note"]) == [{"note": "x"}]


async def test_values_of_a_resumed_run() -> None:
    """A resumed run streams the loaded state first."""
    graph = chain("a", "b").compile(InMemorySaver(), blocking=False)
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke({}, {"configurable": {"thread_id": "t"}, "recursion_limit": 1})
    assert await chunks(graph, None, "t", stream_mode="values") == [{"log": ["a"]}, {"log": ["a", "b"]}]
    assert await chunks(graph, {"note": "x"}, "t", stream_mode="values") == [
        {"log": ["a", "b"], "note": "x"},
        {"log": ["a", "b", "a"], "note": "x"},
        {"log": ["a", "b", "a", "b"], "note": "x"},
    ]


async def test_updates() -> None:
    """One chunk per finished task, named by its node; the hidden start is not shown."""
    assert await chunks(chain("a", "b").compile(blocking=False), {"note": "x"}) == [
        {"a": {"log": ["a"]}},
        {"b": {"log": ["b"]}},
    ]


async def test_updates_come_as_tasks_finish() -> None:
    """Chunks of one superstep arrive in the order in which its tasks finish; the fold does not depend on that order."""
    first, second = anyio.Event(), anyio.Event()

    async def slow(state: Any) -> dict[str, Any]:
        await second.wait()
        return {"log": ["a"]}

    async def middle(state: Any) -> dict[str, Any]:
        await first.wait()
        return {"log": ["b"]}

    async def quick(state: Any) -> dict[str, Any]:
        return {"log": ["c"]}

    made = StateGraph(State).add_node("a", slow).add_node("b", middle).add_node("c", quick)
    for name in "abc":
        made.add_edge(START, name)
    got: list[Any] = []
    async with made.compile().astream({}, stream_mode=["updates", "values"]) as stream:
        async for chunk in stream:
            got.append(chunk)
            if chunk[1].keys() == {"c"}:
                first.set()
            elif chunk[1].keys() == {"b"}:
                second.set()
    assert got == [
        ("updates", {"c": {"log": ["c"]}}),
        ("updates", {"b": {"log": ["b"]}}),
        ("updates", {"a": {"log": ["a"]}}),
        ("values", {"log": ["a", "b", "c"]}),
    ]


async def test_an_update_is_streamed_before_its_siblings_finish() -> None:
    """Chunks are not held back until the superstep ends."""
    shown = anyio.Event()

    async def waits_for_the_reader(state: Any) -> dict[str, Any]:
        await shown.wait()
        return {"log": ["late"]}

    made = StateGraph(State).add_node("early", logging_node("early")).add_node("late", waits_for_the_reader)
    made.add_edge(START, "early").add_edge(START, "late")
    seen: list[Any] = []
    with anyio.fail_after(30):
        async with made.compile(blocking=False).astream({}) as stream:
            async for chunk in stream:
                seen.append(chunk)
                shown.set()
    assert seen == [{"early": {"log": ["early"]}}, {"late": {"log": ["late"]}}]


async def test_updates_of_sends() -> None:
    """Each send is a task and has a chunk of its own."""
    made = (
        StateGraph(State)
        .add_node("s", lambda state: None)
        .add_node("w", lambda arg: {"log": [arg]})
        .add_edge(START, "s")
    )
    made.add_conditional_edges("s", lambda state: [Send("w", "1"), Send("w", "2")])
    got = await chunks(made.compile(blocking=False), {})
    assert got[0] == {"s": None}
    assert sorted(got[1:], key=repr) == [{"w": {"log": ["1"]}}, {"w": {"log": ["2"]}}]


async def test_a_key_that_was_written_more_than_once() -> None:
    """A task that writes a key more than once is streamed as a list of one-entry mappings, in order."""
    node = NodeBuilder().subscribe_only("in").write_to("out", "log", log=lambda x: x + 1)
    graph = Pregel(
        nodes={"n": node},
        channels={"in": EphemeralValue(int), "out": LastValue(int), "log": EphemeralValue(int, guard=False)},
        input_channels="in",
        output_channels=["out", "log"],
        blocking=False,
    )
    assert await chunks(graph, 1, stream_mode="updates") == [{"n": [{"out": 1}, {"log": 1}, {"log": 2}]}]
    assert await chunks(graph, 1, stream_mode="updates", output_keys="log") == [{"n": [1, 2]}]


async def test_updates_are_written_values_and_not_the_fold() -> None:
    """The update as the node returned it."""
    graph = chain("a", "b", "c").compile(blocking=False)
    assert (await chunks(graph, {"log": ["in"]}))[-1] == {"c": {"log": ["c"]}}


async def test_updates_of_a_resumed_superstep() -> None:
    """A task whose result was recorded earlier is streamed again, marked as cached, and not run."""
    finished = anyio.Event()
    broken = [True]
    ran: list[str] = []

    async def flaky(state: Any) -> dict[str, Any]:
        await finished.wait()
        if broken:
            raise ValueError
        return {"log": ["flaky"]}

    async def good(state: Any) -> dict[str, Any]:
        ran.append("good")
        finished.set()
        return {"log": ["good"]}

    made = StateGraph(State).add_node(flaky).add_node(good).add_edge(START, "flaky").add_edge(START, "good")
    graph = made.compile(InMemorySaver())
    with pytest.raises(ValueError):
        await chunks(graph, {}, "t")
    broken.clear()
    got = await chunks(graph, None, "t")
    assert {"flaky": {"log": ["flaky"]}} in got
    assert {"good": {"log": ["good"]}, "__metadata__": {"cached": True}} in got
    assert ran == ["good"]


async def test_one_mode_is_bare_and_several_are_labelled() -> None:
    """A string gives bare payloads; a list gives pairs, also a list of one, and so does a tuple."""
    graph = chain("a").compile(blocking=False)
    assert await chunks(graph, {}, stream_mode="updates") == [{"a": {"log": ["a"]}}]
    assert await chunks(graph, {}, stream_mode=["updates"]) == [("updates", {"a": {"log": ["a"]}})]
    both = [("updates", {"a": {"log": ["a"]}}), ("values", {"log": ["a"]})]
    assert await chunks(graph, {}, stream_mode=["updates", "values"]) == both
    assert await chunks(graph, {}, stream_mode=("values", "updates")) == both


async def test_values_follow_all_updates_of_their_superstep() -> None:
    """`values` comes once per superstep, after all of its `updates`."""
    made = StateGraph(State)
    for name in "abc":
        made.add_node(name, logging_node(name)).add_edge(START, name)
    made.add_node("d", logging_node("d")).add_edge(["a", "b", "c"], "d")
    got = await chunks(made.compile(blocking=False), {"note": "x"}, stream_mode=["values", "updates"])
    assert [mode for mode, _ in got] == ["values", "updates", "updates", "updates", "values", "updates", "values"]


async def test_ainvoke_with_modes() -> None:
    """`ainvoke` with a mode other than values, or a list of modes, returns the list of chunks."""
    graph = chain("a").compile(blocking=False)
    assert await graph.ainvoke({}) == await graph.ainvoke({}, stream_mode="values") == {"log": ["a"]}
    assert await graph.ainvoke({}, stream_mode="updates") == [{"a": {"log": ["a"]}}]
    assert await graph.ainvoke({}, stream_mode=["updates", "values"]) == [
        ("updates", {"a": {"log": ["a"]}}),
        ("values", {"log": ["a"]}),
    ]
    assert await graph.ainvoke({}, stream_mode=["values"]) == [("values", {"log": ["a"]})]


async def test_output_keys() -> None:
    """One key gives bare values, and `{node: value}` updates; several keys give mappings of these keys alone."""
    graph = chain("a").compile(blocking=False)
    assert await graph.ainvoke({"note": "x"}, output_keys="log") == ["a"]
    assert await graph.ainvoke({"note": "x"}, output_keys=["note"]) == {"note": "x"}
    assert await graph.ainvoke({}, output_keys="note") is None
    assert await chunks(graph, {"note": "x"}, stream_mode="values", output_keys="log") == [["a"]]
    assert await chunks(graph, {"note": "x"}, stream_mode="updates", output_keys="log") == [{"a": ["a"]}]
    assert await chunks(graph, {"note": "x"}, stream_mode="updates", output_keys="note") == [{"a": None}]


class Narrow(TypedDict):
    note: str


async def test_default_output_keys() -> None:
    """`ainvoke` returns the output schema's keys, `astream` streams all keys of the state."""
    made = StateGraph(State, output_schema=Narrow).add_node("a", logging_node("a")).add_edge(START, "a")
    graph = made.compile(blocking=False)
    assert await graph.ainvoke({"note": "x"}) == {"note": "x"}
    assert await chunks(graph, {"note": "x"}, stream_mode="values") == [
        {"log": [], "note": "x"},
        {"log": ["a"], "note": "x"},
    ]


async def test_tasks() -> None:
    """Each task has a chunk when it is planned, and one when it has ended; the second follows its `updates` chunk."""
    graph = chain("a").compile(InMemorySaver(), blocking=False)
    got = await chunks(graph, {"note": "x"}, "t", stream_mode=["updates", "tasks"])
    (task,) = (await graph.aget_state({"configurable": {"thread_id": "t"}})).tasks or (None,)
    assert task is None
    assert [mode for mode, _ in got] == ["tasks", "updates", "tasks"]
    start, end = got[0][1], got[2][1]
    assert (start["name"], start["input"], start["triggers"]) == ("a", {"log": [], "note": "x"}, ("branch:to:a",))
    assert end == {"id": start["id"], "name": "a", "error": None, "result": {"log": ["a"]}, "interrupts": []}


async def test_tasks_of_a_failed_superstep() -> None:
    """The end of a failed task carries the live exception; its `updates` chunk never comes."""
    error = ValueError("no")

    def fails(state: Any) -> None:
        raise error

    made = StateGraph(State).add_node("bad", fails).add_edge(START, "bad").compile(blocking=False)
    got: list[Any] = []
    with pytest.raises(ValueError):
        async with made.astream({}, stream_mode=["updates", "tasks"]) as stream:
            async for chunk in stream:
                got.append(chunk)
    assert [mode for mode, _ in got] == ["tasks", "tasks"]
    assert got[1][1]["error"] is error


async def test_tasks_of_sends() -> None:
    """A send's triggers show that it was sent, and its input is its argument."""
    made = StateGraph(State).add_node("w", lambda arg: None)
    made.add_conditional_edges(START, lambda state: [Send("w", {"n": 1}), Send("w", {"n": 2})])
    got = await chunks(made.compile(blocking=False), {}, stream_mode="tasks")
    starts = [chunk for chunk in got if "input" in chunk]
    assert [(chunk["input"], chunk["triggers"]) for chunk in starts] == [
        ({"n": 1}, ("__pregel_push",)),
        ({"n": 2}, ("__pregel_push",)),
    ]
    assert len({chunk["id"] for chunk in starts}) == 2


async def test_the_error_follows_the_last_chunk() -> None:
    """`GraphStream`: when the run fails, its exception follows the last chunk."""
    made = chain("a", "b").add_node("bad", lambda state: 1 / 0).add_edge("b", "bad")
    got: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        async for chunk in made.compile(blocking=False).astream({}):
            got.append(chunk)
    assert got == [{"a": {"log": ["a"]}}, {"b": {"log": ["b"]}}]


async def test_the_limits_error_follows_the_last_chunk() -> None:
    """P14: the recursion limit's error follows the last chunk too."""
    made = StateGraph(State).add_node("a", logging_node("a")).add_edge(START, "a").add_edge("a", "a")
    got: list[Any] = []
    with pytest.raises(GraphRecursionError):
        async for chunk in made.compile(blocking=False).astream({}, {"recursion_limit": 3}):
            got.append(chunk)
    assert len(got) == 3


def worker(**settings: Any) -> Any:
    async def work(state: Any) -> dict[str, Any]:
        for _ in range(5 - len(state["note"])):
            await anyio.lowlevel.checkpoint()
        if state["note"].startswith("bad"):
            raise ValueError(state["note"])
        return {"log": [state["note"]]}

    return StateGraph(State).add_node("w", work).add_edge(START, "w").compile(**settings)


async def test_a_batch_keeps_the_order_of_its_inputs() -> None:
    """`abatch`: one run per input, concurrently; the outputs in the inputs' order."""
    results = await worker().abatch([{"note": note} for note in ("a", "ccc", "bb", "dddd")])
    assert [result["log"] for result in results] == [["a"], ["ccc"], ["bb"], ["dddd"]]
    assert await worker().abatch([]) == []


async def test_a_batch_runs_at_once() -> None:
    """`abatch`: all runs at once, or as many as `max_concurrency` allows."""
    running = most = 0

    async def work(state: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        running -= 1

    graph = StateGraph(State).add_node("w", work).add_edge(START, "w").compile()
    await graph.abatch([{} for _ in range(6)])
    assert most == 6
    most = 0
    await graph.abatch([{} for _ in range(6)], max_concurrency=2)
    assert most == 2


async def test_the_first_failure_of_a_batch() -> None:
    """`abatch`: a failure is raised as it is, and the other runs are cancelled; or each failure takes its place in the
    result."""
    started: list[str] = []
    cancelled: list[str] = []
    both = anyio.Event()

    async def work(state: Any) -> dict[str, Any]:
        if state["note"] == "bad":
            await both.wait()
            raise ValueError("bad")
        started.append(state["note"])
        if len(started) == 2:
            both.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(state["note"])
        return {}

    graph = StateGraph(State).add_node("w", work).add_edge(START, "w").compile()
    with anyio.fail_after(30), pytest.raises(ValueError, match="bad"):
        await graph.abatch([{"note": "x"}, {"note": "bad"}, {"note": "y"}])
    assert sorted(cancelled) == ["x", "y"]


async def test_the_failures_of_a_batch_in_their_places() -> None:
    """`abatch(return_exceptions=True)`: a run's exception takes its place in the result; the others run to
    their ends."""
    results: list[Any] = await worker().abatch(
        [{"note": "a"}, {"note": "bad1"}, {"note": "b"}, {"nope": 1}, {"note": "bad2"}], return_exceptions=True
    )
    assert [type(result) for result in results] == [dict, ValueError, dict, *([type(results[3])]), ValueError]
    assert isinstance(results[3], TypeError)
    assert (str(results[1]), str(results[4])) == ("bad1", "bad2")


async def test_configs_of_a_batch() -> None:
    """`abatch`: one config for all, or one for each; another number of them is an error."""
    graph = worker(checkpointer=InMemorySaver())
    await graph.abatch([{"note": "a"}, {"note": "b"}], ["t1", {"configurable": {"thread_id": "t2"}}])
    assert [(await graph.aget_state(thread)).values["note"] for thread in ("t1", "t2")] == ["a", "b"]
    with pytest.raises(ValueError, match="2 inputs and 1 configs"):
        await graph.abatch([{"note": "a"}, {"note": "b"}], ["t1"])
    with pytest.raises(ValueError, match="thread_id"):
        await graph.abatch([{"note": "a"}])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exception_that_ends_a_process_ends_a_batch(kind: type[BaseException], backend: str) -> None:
    """KeyboardInterrupt and SystemExit in a node end a batch too, as themselves, and the other runs clean
    up."""
    cleaned: list[str] = []

    async def node(state: Any) -> None:
        if state["note"] == "end":
            while not cleaned:
                await anyio.lowlevel.checkpoint()
            raise kind
        try:
            cleaned.append("entered")
            await anyio.sleep_forever()
        finally:
            cleaned.append("left")

    graph = StateGraph(State).add_node("w", node).add_edge(START, "w").compile()

    async def main() -> None:
        await graph.abatch([{"note": "end"}, {"note": "other"}])

    with pytest.raises(kind):
        anyio.run(main, backend=backend)
    assert cleaned == ["entered", "left"]


async def test_an_edge_to_end() -> None:
    """An edge to END adds no chunk and no superstep."""
    graph = chain("a").add_edge("a", END).compile(blocking=False)
    assert await chunks(graph, {}, {"recursion_limit": 1}) == [{"a": {"log": ["a"]}}]
