"""Reading threads: snapshots, history, and their information about tasks."""

# ruff: noqa: PERF401  # chunks read before an error, or a stop, count

from __future__ import annotations

import copy
import operator
import pickle
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Send, StateGraph, StateSnapshot
from pregel_async.errors import CheckpointNotFoundError, GraphRecursionError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


def logging_node(name: str) -> Any:
    return lambda state: {"log": [name]}


def chain(*names: str) -> StateGraph[State]:
    made = StateGraph(State).add_sequence([(name, logging_node(name)) for name in names])
    return made.add_edge(START, names[0])


async def history(graph: Any, config: Any = "t", **arguments: Any) -> list[StateSnapshot]:
    return [state async for state in graph.aget_state_history(config, **arguments)]


def step_of(state: StateSnapshot) -> Any:
    assert state.metadata is not None
    return state.metadata["source"], state.metadata["step"]


def id_of(config: Any) -> Any:
    return config["configurable"]["checkpoint_id"]


async def stopped(graph: Any, limit: int, given: Any = None, thread: str = "t") -> None:
    """Run until a limit of supersteps."""
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(given or {}, {"configurable": {"thread_id": thread}, "recursion_limit": limit})


async def test_a_fresh_run(saver: BaseCheckpointSaver) -> None:
    """A fresh run of n chained nodes stores n + 2 checkpoints: the input at -1, the start at 0, then 1 to n."""
    graph = chain("a", "b", "c").compile(saver, blocking=False)
    await graph.ainvoke({"note": "x"}, "t")
    states = (await history(graph))[::-1]
    assert [step_of(state) for state in states] == [("input", -1), ("loop", 0), ("loop", 1), ("loop", 2), ("loop", 3)]
    assert [state.next for state in states] == [(START,), ("a",), ("b",), ("c",), ()]
    assert [state.values for state in states] == [
        {"log": []},
        {"log": [], "note": "x"},
        {"log": ["a"], "note": "x"},
        {"log": ["a", "b"], "note": "x"},
        {"log": ["a", "b", "c"], "note": "x"},
    ]


async def test_the_chain_of_parents(saver: BaseCheckpointSaver) -> None:
    """Each checkpoint names its parent; ids sort by creation; the first has none."""
    graph = chain("a", "b").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.ainvoke({}, "t")
    states = (await history(graph))[::-1]
    ids = [id_of(state.config) for state in states]
    assert ids == sorted(set(ids))
    assert [state.parent_config and id_of(state.parent_config) for state in states] == [None, *ids[:-1]]


async def test_steps_continue_in_the_next_run(saver: BaseCheckpointSaver) -> None:
    """A second input has step last + 1 and source "input", and its parent is the last checkpoint."""
    graph = chain("a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.ainvoke({}, "t")
    states = (await history(graph))[::-1]
    assert [step_of(state) for state in states] == [
        ("input", -1),
        ("loop", 0),
        ("loop", 1),
        ("input", 2),
        ("loop", 3),
        ("loop", 4),
    ]


async def test_resuming_makes_no_input_checkpoint(saver: BaseCheckpointSaver) -> None:
    """Resuming with None adds loop checkpoints only."""
    graph = chain("a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.ainvoke(None, "t")
    assert [step_of(state) for state in (await history(graph))[::-1]] == [
        ("input", -1),
        ("loop", 0),
        ("loop", 1),
        ("loop", 2),
    ]


async def test_metadata(saver: BaseCheckpointSaver) -> None:
    """Metadata is source, step, parents (none at the root) and run_id."""
    graph = chain("a").compile(saver, blocking=False)
    await graph.ainvoke({}, {"configurable": {"thread_id": "t"}, "run_id": "run"})
    state = await graph.aget_state("t")
    assert state.metadata == {"source": "loop", "step": 1, "parents": {}, "run_id": "run"}


async def test_created_at(saver: BaseCheckpointSaver) -> None:
    """Checkpoint: the time in ISO 8601, UTC."""
    graph = chain("a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    times = [datetime.fromisoformat(state.created_at or "") for state in await history(graph)]
    assert all(time.utcoffset() == timedelta(0) for time in times)
    assert times == sorted(times, reverse=True)


async def test_an_unknown_thread(saver: BaseCheckpointSaver) -> None:
    """An unknown thread gives an empty snapshot and an empty history; no error."""
    graph = chain("a").compile(saver)
    state = await graph.aget_state("unknown")
    assert state == StateSnapshot(
        values={}, next=(), config={"configurable": {"thread_id": "unknown", "checkpoint_ns": ""}}
    )
    assert await history(graph, "unknown") == []


async def test_an_unknown_checkpoint(saver: BaseCheckpointSaver) -> None:
    """P9: the error for a checkpoint that a thread does not have names it, when reading and when running from it."""
    graph = chain("a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    config = {"configurable": {"thread_id": "t", "checkpoint_id": "00000000-0000-7000-8000-000000000000"}}
    for wrong in (graph.aget_state(config), graph.ainvoke(None, config), graph.ainvoke({}, config)):
        with pytest.raises((CheckpointNotFoundError, LookupError), match=r"'t'.*00000000"):
            await wrong
    assert await graph.ainvoke(None, "t") == {"log": ["a"]}


async def test_a_snapshots_config_addresses_it(saver: BaseCheckpointSaver) -> None:
    """`config` of a snapshot, passed back, reads the same snapshot; `parent_config` the one before."""
    graph = chain("a", "b").compile(saver, blocking=False)
    await graph.ainvoke({"note": "x"}, "t")
    states = await history(graph)
    for state in states:
        assert await graph.aget_state(state.config) == state
    assert states[0].parent_config is not None
    assert await graph.aget_state(states[0].parent_config) == states[1]
    assert await graph.aget_state("t") == states[0]


async def test_arguments_of_history(saver: BaseCheckpointSaver) -> None:
    """Newest first; `limit`, `before` and `filter` select."""
    graph = chain("a", "b", "c").compile(saver, blocking=False)
    await graph.ainvoke({}, {"configurable": {"thread_id": "t"}, "metadata": {"who": "me"}})
    await graph.ainvoke({}, {"configurable": {"thread_id": "t"}, "metadata": {"who": "you"}})
    everything = await history(graph)
    assert len(everything) == 10
    assert await history(graph, limit=3) == everything[:3]
    assert await history(graph, limit=0) == []
    assert await history(graph, before=everything[4].config) == everything[5:]
    assert await history(graph, before=everything[4].config, limit=2) == everything[5:7]
    assert await history(graph, filter={"source": "input"}) == [everything[4], everything[9]]
    assert await history(graph, filter={"who": "me", "step": 1}) == [everything[7]]
    assert await history(graph, filter={"who": "unknown"}) == []
    assert await history(graph, everything[3].config) == [everything[3]]


async def test_next_lists_sends_first(saver: BaseCheckpointSaver) -> None:
    """P2: `next` and `tasks` list sends by index, then triggered nodes by name; registration order is never
    used."""
    made = chain("s").add_node("z", logging_node("z")).add_node("b", logging_node("b")).add_node("w", logging_node("w"))
    made.add_conditional_edges("s", lambda state: ["z", Send("w", {}), "b", Send("b", {})])
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    state = await graph.aget_state("t")
    assert state.next == ("w", "b", "b", "z")
    assert [task.name for task in state.tasks] == ["w", "b", "b", "z"]
    assert [task.path for task in state.tasks] == [
        ("__pregel_push", 0, False),
        ("__pregel_push", 1, False),
        ("__pregel_pull", "b"),
        ("__pregel_pull", "z"),
    ]
    assert all((task.error, task.result) == (None, None) for task in state.tasks)
    assert len({task.id for task in state.tasks}) == 4


async def test_tasks_show_their_results(saver: BaseCheckpointSaver) -> None:
    """In history, the tasks of a superstep show their writes; {} for none."""
    made = StateGraph(State).add_sequence([("a", logging_node("a")), ("idle", lambda state: None)]).add_edge(START, "a")
    graph = made.compile(saver, blocking=False)
    await graph.ainvoke({"note": "x"}, "t")
    results = {task.name: task.result for state in await history(graph) for task in state.tasks}
    assert results["a"] == {"log": ["a"]}
    assert results["idle"] == {}


async def test_results_of_a_wide_superstep(saver: BaseCheckpointSaver) -> None:
    """P2: each task of a wide superstep has its own result, by its own id."""
    made = (
        StateGraph(State)
        .add_node("w", lambda arg: {"log": [f"w{arg}"]})
        .add_node("p", logging_node("p"))
        .add_edge(START, "p")
    )
    made.add_conditional_edges(START, lambda state: [Send("w", number) for number in range(5)])
    graph = made.compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    (state,) = [state for state in await history(graph) if len(state.tasks) == 6]
    assert [(task.name, task.result) for task in state.tasks] == [
        *(("w", {"log": [f"w{number}"]}) for number in range(5)),
        ("p", {"log": ["p"]}),
    ]
    assert (await graph.aget_state("t")).values == {"log": ["p", "w0", "w1", "w2", "w3", "w4"]}


async def test_task_ids_are_the_same_everywhere(saver: BaseCheckpointSaver) -> None:
    """P2: a task has one id in state, history and stream, on every attempt; another thread's differ."""
    fail = [True]

    def flaky(state: Any) -> None:
        if fail.pop() if fail else False:
            raise ValueError

    graph = StateGraph(State).add_node("n", flaky).add_edge(START, "n").compile(saver, blocking=False)
    seen_ids: list[str] = []
    with pytest.raises(ValueError) as caught:
        async with graph.astream({}, "t", stream_mode="tasks") as chunks:
            async for chunk in chunks:
                seen_ids.append(chunk["id"])
    before = (await graph.aget_state("t")).tasks[0].id
    async with graph.astream(None, "t", stream_mode="tasks") as chunks:
        async for chunk in chunks:
            seen_ids.append(chunk["id"])
    after = [task.id for state in await history(graph) for task in state.tasks if task.name == "n"]
    assert {*seen_ids, before, *after} == {before}
    assert any(before in note for note in caught.value.__notes__)
    await graph.ainvoke({}, "t2")
    assert before not in [task.id for state in await history(graph, "t2") for task in state.tasks]


async def test_reading_does_not_wait_for_a_run() -> None:
    """P3: a reader sees the thread before or after a superstep, also during a run, and never between."""
    graph_saver = InMemorySaver()
    seen: list[Any] = []

    async def looks(state: Any) -> dict[str, Any]:
        seen.append(await graph.aget_state("t"))
        return {"log": ["looks"]}

    made = chain("a").add_node("looks", looks).add_node("another", logging_node("another")).add_edge("a", "looks")
    graph = made.add_edge("a", "another").compile(graph_saver, blocking=False)
    await graph.ainvoke({}, "t")
    (state,) = seen
    assert state.values == {"log": ["a"]}
    assert set(state.next) <= {"another", "looks"}
    assert "looks" in state.next


async def test_replaying_from_an_older_checkpoint(saver: BaseCheckpointSaver) -> None:
    """P5: None with an older checkpoint runs again the supersteps after it, and none before."""
    ran: list[str] = []

    def noting(name: str) -> Any:
        return lambda state: ran.append(name) or {"log": [f"{name}{len(ran)}"]}

    made = StateGraph(State).add_sequence([(name, noting(name)) for name in "abc"]).add_edge(START, "a")
    graph = made.compile(saver, blocking=False)
    first = await graph.ainvoke({}, "t")
    (middle,) = [state for state in await history(graph) if state.next == ("b",)]
    second = await graph.ainvoke(None, middle.config)
    assert ran == ["a", "b", "c", "b", "c"]
    assert (first["log"], second["log"]) == (["a1", "b2", "c3"], ["a1", "b4", "c5"])
    assert (await graph.aget_state("t")).values == second, "the branch that was last run is the head"
    old = [state for state in await history(graph) if state.next == () and state.values == first]
    assert len(old) == 1, "history keeps the other branch"


async def test_a_new_input_on_an_older_checkpoint(saver: BaseCheckpointSaver) -> None:
    """Input with an older checkpoint's config starts a branch from that state."""
    graph = chain("a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    config = (await graph.aget_state("t")).config
    await graph.ainvoke({}, "t")
    assert await graph.ainvoke({"note": "branch"}, config) == {"log": ["a", "a"], "note": "branch"}
    assert (await graph.aget_state("t")).values == {"log": ["a", "a"], "note": "branch"}
    parents = [id_of(state.parent_config) for state in await history(graph) if state.parent_config]
    assert parents.count(id_of(config)) == 2


async def test_a_branch_has_its_own_results(saver: BaseCheckpointSaver) -> None:
    """P2: a branch sees nothing of its siblings: a task's results there are neither shown nor used here."""
    number = iter(range(10))
    made = StateGraph(State).add_sequence([("a", logging_node("a")), ("b", lambda state: {"note": str(next(number))})])
    graph = made.add_edge(START, "a").compile(saver, blocking=False)
    assert (await graph.ainvoke({}, "t"))["note"] == "0"
    (middle,) = [state for state in await history(graph) if state.next == ("b",)]
    assert (await graph.ainvoke(None, middle.config))["note"] == "1"
    assert (await graph.ainvoke(None, middle.config))["note"] == "2"
    shown = await graph.aget_state(middle.config)
    assert shown.tasks[0].id == middle.tasks[0].id
    assert len([state for state in await history(graph) if state.next == ()]) == 3


async def test_threads_are_isolated(saver: BaseCheckpointSaver) -> None:
    """Each thread has its own state; concurrent runs on several threads do not affect each other."""

    async def node(state: Any) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        return {"log": [state["note"]]}

    made = StateGraph(State).add_sequence([(name, node) for name in "abc"]).add_edge(START, "a").add_edge("c", END)
    graph = made.compile(saver)
    await graph.abatch([{"note": str(n)} for n in range(5)], [f"t{n}" for n in range(5)])
    for number in range(5):
        assert (await graph.aget_state(f"t{number}")).values["log"] == [str(number)] * 3


REFUSES: list[bool] = []


def fold(left: list[str], right: list[str]) -> list[str]:
    """A reducer that refuses the writes of b on request."""
    if "b" in right and REFUSES:
        raise ArithmeticError("not yet")
    return left + right


class Folded(TypedDict, total=False):
    log: Annotated[list[str], fold]


async def test_a_thread_whose_results_are_not_folded_has_not_finished(saver: BaseCheckpointSaver) -> None:
    """`next` is empty only when a thread has finished: a superstep that could not be folded is still open, though none
    of its nodes has to run."""
    REFUSES.append(True)
    ran: list[str] = []

    def node(name: str) -> Any:
        async def run(state: Folded) -> Folded:
            ran.append(name)
            return {"log": [name]}

        return run

    builder = StateGraph(Folded).add_node("a", node("a")).add_node("b", node("b"))
    graph = builder.add_edge(START, "a").add_edge(START, "b").compile(saver)
    with pytest.raises(ArithmeticError):
        await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).next == ("a", "b")
    REFUSES.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"]}
    assert (await graph.aget_state("t")).next == ()
    assert sorted(ran) == ["a", "b"]


async def test_a_listed_snapshot_does_not_change(saver: BaseCheckpointSaver) -> None:
    """P3: later changes of the thread, even its deletion, do not show in a listed snapshot."""
    graph = chain("a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    listed, again = await history(graph), await history(graph)
    expected = [(state.values, state.next, state.tasks, state.created_at) for state in again]
    assert expected[0][:2] == ({"log": ["a"]}, ("b",))
    await graph.ainvoke(None, "t")
    await saver.adelete_thread("t")
    assert [(state.values, state.next, state.tasks, state.created_at) for state in listed] == expected


async def test_a_listed_snapshot_equals_a_read_one(saver: BaseCheckpointSaver) -> None:
    """P2: a snapshot is the same whether it is listed or read by its config."""
    graph = chain("a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    for state in await history(graph):
        assert state == await graph.aget_state(state.config)
        assert state != StateSnapshot(values={}, next=(), config=state.config)


async def test_a_snapshot_cannot_be_changed(saver: BaseCheckpointSaver) -> None:
    """P1: a snapshot is immutable. It can be copied, with changes, and sent to another process."""
    graph = chain("a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    state, *_ = await history(graph)
    for name in ("values", "next", "config", "metadata", "other"):
        with pytest.raises(AttributeError):
            setattr(state, name, None)
    assert copy.deepcopy(state) == pickle.loads(pickle.dumps(state)) == state
    assert repr(state) == repr(copy.copy(state)) and "values={'log': ['a']}" in repr(state)
    assert state.__replace__(next=("b",)).next == ("b",) and state.next == ()
    with pytest.raises(TypeError):
        hash(state)
