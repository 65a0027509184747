"""Parts of `version="v2"`: labelled, with their number, their superstep, and the committed superstep (1.12, P4)."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import (
    START,
    Command,
    GraphDrained,
    GraphOutput,
    Interrupt,
    RunControl,
    StateGraph,
    get_stream_writer,
    interrupt,
)
from pregel_async.errors import GraphRecursionError, ThreadBusyError
from tests.helpers.schema_kinds import KINDS, get

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


ALL: Any = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]


def logging_node(name: str) -> Any:
    async def node(state: State) -> State:
        get_stream_writer()(name)
        return {"log": [name]}

    return node


def chain(*names: str, **more: Any) -> Any:
    made = StateGraph(State).add_sequence([(name, logging_node(name)) for name in names])
    for name, node in more.items():
        made.add_node(name, node).add_edge(names[-1], name)
    return made.add_edge(START, names[0])


async def parts(graph: Any, given: Any, config: Any = None, **arguments: Any) -> list[Any]:
    return [part async for part in graph.astream(given, config, version="v2", **arguments)]


async def until_failure(graph: Any, given: Any, config: Any = None, **arguments: Any) -> tuple[list[Any], Exception]:
    """Return the parts of a run that fails, and its exception."""
    got: list[Any] = []
    with pytest.raises(Exception) as caught:
        async for part in graph.astream(given, config, version="v2", **arguments):
            got.append(part)
    return got, caught.value


async def fails(state: State) -> None:
    raise ValueError("broken")


@pytest.mark.parametrize("modes", [*ALL, ALL])
async def test_a_failure_is_the_last_part_whatever_the_modes(modes: Any, saver: BaseCheckpointSaver) -> None:
    """Failures arrive as the stream's last event, then as the exception."""
    got, raised = await until_failure(chain("a", bad=fails).compile(saver), {}, "t", stream_mode=modes)
    assert isinstance(raised, ValueError)
    last = got[-1]
    assert last == {
        "type": "error",
        "ns": (),
        "data": {"error": "ValueError", "message": "broken"},
        "seq": len(got),
        "step": 2,
        "committed": 1,
        "cursor": None,
        "task": None,
    }
    assert [part["type"] for part in got].count("error") == 1
    if modes == ALL:
        assert [part["type"] for part in got[-3:]] == ["tasks", "debug", "error"]


async def test_failures_outside_nodes() -> None:
    """Failures outside nodes are reported too."""
    got, raised = await until_failure(chain("a", "b").compile(), {}, {"recursion_limit": 1}, stream_mode="custom")
    assert isinstance(raised, GraphRecursionError)
    assert [(part["type"], part["step"]) for part in got] == [("custom", 1), ("error", 2)]

    both = StateGraph(State).add_node("a", lambda state: {"note": "x"}).add_node("b", lambda state: {"note": "y"})
    graph = both.add_edge(START, "a").add_edge(START, "b").compile(blocking=False)
    got, raised = await until_failure(graph, {}, stream_mode="custom")
    assert [part["data"]["error"] for part in got] == ["pregel_async.errors.ConcurrentUpdateError"]

    got, raised = await until_failure(chain("a").compile(), {"nonsense": 1}, stream_mode="custom")
    assert [part["data"]["message"] for part in got] == [str(raised)]

    control = RunControl()
    control.request_drain("deploy")
    got, raised = await until_failure(chain("a").compile(InMemorySaver()), {}, "t", control=control)
    assert isinstance(raised, GraphDrained)
    assert [part["data"]["error"] for part in got] == ["pregel_async.errors.GraphDrained"]

    lease = anyio.Event()
    free = anyio.Event()

    async def holds(state: State) -> None:
        lease.set()
        await free.wait()

    holder = StateGraph(State).add_node("holds", holds).add_edge(START, "holds").compile(InMemorySaver())
    async with anyio.create_task_group() as group:
        group.start_soon(holder.ainvoke, {}, "t")
        await lease.wait()
        got, raised = await until_failure(holder, {}, "t")
        free.set()
    assert isinstance(raised, ThreadBusyError)
    assert [part["data"]["error"] for part in got] == ["checkpoint_savers.errors.ThreadBusyError"]


async def test_several_failures_are_reported_as_their_group() -> None:
    """P9: the reported failure is the raised one."""
    met: list[anyio.Event] = [anyio.Event(), anyio.Event()]

    def bad(number: int) -> Any:
        async def node(state: State) -> None:
            met[number].set()
            try:
                await met[1 - number].wait()
            finally:
                raise ValueError(number)

        return node

    made = StateGraph(State).add_node("a", bad(0)).add_node("b", bad(1)).add_edge(START, "a").add_edge(START, "b")
    got, raised = await until_failure(made.compile(), {}, stream_mode=["tasks"])
    assert isinstance(raised, ExceptionGroup)
    assert [part["type"] for part in got] == ["tasks"] * 4 + ["error"]
    assert [part["data"]["error"] for part in got[2:4]] == list(raised.exceptions)
    assert got[-1]["data"] == {"error": "ExceptionGroup", "message": str(raised)}


async def test_a_graph_that_a_node_reads_reports_its_failure() -> None:
    """The failure of a graph that a node reads is reported in the node's stream too; and its parts have their own
    `committed`."""
    sub = chain("a", bad=fails).compile()
    got: list[Any] = []

    async def node(state: State) -> None:
        try:
            async for part in sub.astream({}, version="v2", stream_mode=["custom", "checkpoints"]):
                got.append(part)
        except ValueError:
            got.append("raised")

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile(InMemorySaver())
    outer = await parts(graph, {}, "t", stream_mode=["custom", "updates"])
    assert [part["type"] for part in outer] == ["updates"]
    assert got[-1] == "raised"
    assert [part["type"] for part in got[:-1]] == ["checkpoints", "checkpoints", "custom", "checkpoints", "error"]
    assert [part["committed"] for part in got[:-1]] == [0, 0, 0, 1, 1]
    assert [part["ns"] for part in got[:-1]] == [()] * 5


async def test_v1_has_no_part_of_its_own_for_a_failure() -> None:
    """In v1, the end of the failed task among `tasks` and `debug` is the last event."""
    error = ValueError("broken")

    async def bad(state: State) -> None:
        raise error

    for modes in (["tasks"], ["debug"], ["tasks", "debug", "values", "updates", "custom", "messages"]):
        got: list[Any] = []
        with pytest.raises(ValueError):
            async for chunk in chain("a", bad=bad).compile(InMemorySaver()).astream({}, "t", stream_mode=modes):
                got.append(chunk)
        for mode, chunk in got[-len({"tasks", "debug"} & {*modes}) :]:
            ended = chunk if mode == "tasks" else chunk["payload"]
            assert ended["error"] is error
    got = []
    with pytest.raises(ValueError):
        async for chunk in chain("a", bad=bad).compile().astream({}):
            got.append(chunk)
    assert got == [{"a": {"log": ["a"]}}]


async def test_a_failure_needs_no_capacity() -> None:
    """P12: a failed run ends and releases its thread, though its reader is far behind: the buffer takes one
    part more."""

    async def bad(state: State) -> None:
        for number in range(10):
            await get_stream_writer()(number)
        raise ValueError

    graph = StateGraph(State).add_node("bad", bad).add_edge(START, "bad").compile(InMemorySaver())
    stream = graph.astream({}, "t", stream_mode="custom", version="v2", capacity=3, overflow="drop_oldest")
    async with stream:
        await anyio.wait_all_tasks_blocked()
        (failed,) = (await graph.aget_state("t")).tasks
        assert failed.error is not None
        again = graph.astream({}, "t", version="v2")  # the thread is free
        assert (await anext(again))["type"] == "error"
        with pytest.raises(ValueError):
            await anext(again)
        with pytest.raises(ValueError):
            assert [part["type"] async for part in stream] == ["custom"] * 3 + ["error"]


async def test_finished_siblings_of_a_failure_are_streamed(saver: BaseCheckpointSaver) -> None:
    """P12: under "block" nothing is lost: chunks of finished tasks that wait for the reader when a sibling fails are
    delivered."""

    async def bad(state: State) -> None:
        await anyio.wait_all_tasks_blocked()
        raise ValueError

    made = StateGraph(State).add_node("bad", bad).add_edge(START, "bad")
    for number in range(6):
        made.add_node(f"n{number}", lambda state: {"log": ["x"]}).add_edge(START, f"n{number}")
    for stored in (None, saver):
        graph = made.compile(stored, blocking=False)
        got: list[Any] = []
        async with graph.astream({}, "t", capacity=2, version="v2") as stream:
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ValueError):
                async for part in stream:
                    got.append(part)
        assert sorted(next(iter(part["data"])) for part in got[:-1]) == [f"n{number}" for number in range(6)]
        assert [part["seq"] for part in got] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("modes", [["values"], ["custom", "checkpoints"], ALL])
@pytest.mark.parametrize("subgraphs", [False, True])
async def test_numbers_have_no_gap(modes: Any, subgraphs: bool, saver: BaseCheckpointSaver) -> None:
    """P4: parts are numbered 1, 2, 3, ... over everything that the run streams, subgraphs included; the superstep is
    that of the part's own graph; a new call starts at 1."""
    made = (
        StateGraph(State)
        .add_node("a", logging_node("a"))
        .add_node("sub", chain("x", "y").compile())
        .add_node("b", logging_node("b"))
    )
    graph = made.add_edge(START, "a").add_edge("a", "sub").add_edge("sub", "b").compile(saver)
    for _ in range(2):
        got = await parts(graph, {"note": "n"}, "t", stream_mode=modes, subgraphs=subgraphs)
        assert [part["seq"] for part in got] == list(range(1, len(got) + 1))
        for part in got:
            if part["type"] == "checkpoints":
                assert part["step"] == part["data"]["metadata"]["step"]
            if part["type"] == "debug":
                assert part["step"] == part["data"]["step"]


async def test_the_committed_superstep(saver: BaseCheckpointSaver) -> None:
    """P4: a `checkpoints` part is emitted after its commit, and `committed` is the superstep up to which the called
    graph is stored: None before the first commit, never ahead of storage, never decreasing; the same for subgraphs."""
    got: list[Any] = []
    seen: list[Any] = []

    async def look(state: State) -> State:
        writer = get_stream_writer()
        await writer("look")
        return {"log": ["b"]}

    made = (
        StateGraph(State)
        .add_node("a", logging_node("a"))
        .add_node("sub", chain("x", "y").compile())
        .add_node("b", look)
    )
    graph = made.add_edge(START, "a").add_edge("a", "sub").add_edge("sub", "b").compile(saver)
    async for part in graph.astream({"note": "n"}, "t", stream_mode=ALL, subgraphs=True, version="v2", capacity=1):
        got.append((part["ns"] != (), part["type"], part["step"], part["committed"]))
        if part["committed"] is not None:
            stored = [snapshot.metadata["step"] async for snapshot in graph.aget_state_history("t")]
            assert max(stored) >= part["committed"]
            if part["type"] == "checkpoints" and not part["ns"]:
                assert part["step"] in stored
                assert part["committed"] >= part["step"]
        seen.append(part["committed"])
    assert seen == sorted(seen)
    assert got[0] == (False, "checkpoints", -1, 0)  # the input is stored with the superstep that follows it
    assert [entry for entry in got if entry[1] == "custom"] == [
        (False, "custom", 1, 0),
        (True, "custom", 1, 1),
        (True, "custom", 2, 1),
        (False, "custom", 3, 2),
    ]
    assert got[-1][3] == 3


async def test_nothing_is_committed_without_a_checkpointer() -> None:
    """P4: without a checkpointer `committed` is always None; so is the cursor."""
    got = await parts(chain("a", "b").compile(), {}, stream_mode=ALL)
    assert {part["committed"] for part in got} == {part["cursor"] for part in got} == {None}


async def test_a_resumed_run_begins_where_it_stands(saver: BaseCheckpointSaver) -> None:
    """P4: supersteps stored by earlier runs are committed from the first part on."""

    async def asks(state: State) -> State:
        return {"log": [interrupt("?")]}

    graph = chain("a", asks=asks).compile(saver)
    got = await parts(graph, {}, "t", stream_mode=["values", "updates"])
    assert [(part["type"], part["step"], part["committed"]) for part in got] == [
        ("updates", 1, 1),
        ("values", 1, 1),
        ("updates", 2, 1),
        ("values", 2, 1),
    ]
    got = await parts(graph, Command(resume="x"), "t", stream_mode=["values", "updates"])
    assert [(part["type"], part["step"], part["committed"]) for part in got] == [
        ("values", 1, 1),
        ("updates", 2, 2),
        ("values", 2, 2),
    ]


class Failing(InMemorySaver):
    """A saver that fails at a commit."""

    left = 2

    async def commit(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StorageError("the disk is gone")
        return await super().commit(*args, **kwargs)


async def test_supersteps_that_could_not_be_stored_are_not_streamed() -> None:
    """P4: no `checkpoints`, no `values`, and no update of a superstep whose commit failed; the failure is reported."""
    got, raised = await until_failure(chain("a", "b", "c").compile(Failing()), {"note": "n"}, "t", stream_mode=ALL)
    assert isinstance(raised, StorageError)
    assert got[-1]["type"] == "error"
    assert got[-1]["data"]["message"] == "the disk is gone"
    stored = [part["step"] for part in got if part["type"] == "checkpoints"]
    assert [part["step"] for part in got if part["type"] == "values"] == stored[1:]
    assert [part["step"] for part in got if part["type"] == "updates"] == stored[2:]
    assert max(part["committed"] or 0 for part in got) == max(stored)


async def test_graph_output(saver: BaseCheckpointSaver) -> None:
    """`ainvoke(version="v2")` returns the value and the questions separately; for other modes the list of parts."""

    async def asks(state: State) -> State:
        return {"log": [interrupt({"q": [1]})]}

    graph = chain("a", asks=asks).compile(saver)
    output = await graph.ainvoke({"note": "n"}, "t", version="v2")
    assert type(output) is GraphOutput
    assert output.value == {"log": ["a"], "note": "n"}
    (question,) = output.interrupts
    assert isinstance(question, Interrupt)
    question.value["q"].append(2)  # P1
    ((again,),) = [task.interrupts for task in (await graph.aget_state("t")).tasks]
    assert again.value == {"q": [1]}
    output = await graph.ainvoke(Command(resume="x"), "t", version="v2")
    assert (output.value, output.interrupts) == ({"log": ["a", "x"], "note": "n"}, ())
    assert (await graph.ainvoke(Command(goto="asks"), "t", version="v2", output_keys="note")).value == "n"
    got = await chain("a").compile().ainvoke({}, stream_mode="updates", version="v2")
    assert [(part["type"], part["data"], part["seq"], part["ns"]) for part in got] == [
        ("updates", {"a": {"log": ["a"]}}, 1, ())
    ]
    got = await chain("a").compile().ainvoke({}, stream_mode=["values", "custom"], version="v2")
    assert [part["type"] for part in got] == ["custom", "values"]


@pytest.mark.parametrize("kind", KINDS)
async def test_states_are_of_their_own_class(kind: Any, saver: BaseCheckpointSaver) -> None:
    """Values, checkpoints and debug have the state as an instance of the schema where it is a class, in v2; not the
    checkpoint before the first superstep, which may have no complete state yet; mappings of some keys stay mappings."""
    made = StateGraph(kind).add_node("a", lambda state: {"note": "x", "log": [1]})
    graph = made.add_edge(START, "a").compile(saver, blocking=False)
    whole = kind is not KINDS[0]
    given = {"items": [1], "note": "in"}
    got = await parts(graph, given if not whole else kind(**given), "t", stream_mode=ALL)
    expected_type = kind if whole else dict
    for part in got:
        if part["type"] == "values":
            assert isinstance(part["data"], expected_type)
        if part["type"] == "checkpoints":
            state = part["data"]["values"]
            assert isinstance(state, dict if part["step"] == -1 else expected_type)
        if part["type"] == "debug" and part["data"]["type"] == "checkpoint":
            state = part["data"]["payload"]["values"]
            assert isinstance(state, dict if part["step"] == -1 else expected_type)
    last = [part for part in got if part["type"] == "values"][-1]["data"]
    assert (get(last, "note"), get(last, "log"), get(last, "items")) == ("x", [1], [1])
    output = await graph.ainvoke(given if not whole else kind(**given), "t2", version="v2")
    assert isinstance(output.value, expected_type)
    some = await parts(graph, given if not whole else kind(**given), "t3", stream_mode="values", output_keys=["note"])
    assert some[-1]["data"] == {"note": "x"}
    v1 = [chunk async for chunk in graph.astream(given if not whole else kind(**given), "t4", stream_mode="values")]
    assert all(isinstance(chunk, dict) for chunk in v1)
