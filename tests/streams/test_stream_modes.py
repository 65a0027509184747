"""The exact payloads of every mode, in both versions, alone and together."""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    START,
    Command,
    Interrupt,
    NodeBuilder,
    Pregel,
    Send,
    StateGraph,
    StreamWriter,
    entrypoint,
    interrupt,
    task,
)
from pregel_async._runtime.streaming import modes as mode_package
from pregel_async._runtime.streaming import publisher as log_module
from pregel_async._runtime.streaming.modes import MODES, Mode
from pregel_async._runtime.streaming.modes.mode import EVENTS
from pregel_async._runtime.streaming.parts import RawPart
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import ConfigError

pytestmark = pytest.mark.anyio

ALL: Any = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug"]
NEEDS_SAVER = {"checkpoints"}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def logging_node(name: str) -> Any:
    async def node(state: State, writer: StreamWriter) -> State:
        await writer({"from": name})
        return {"log": [name]}

    return node


def chain(*names: str) -> Any:
    made = StateGraph(State).add_sequence([(name, logging_node(name)) for name in names])
    return made.add_edge(START, names[0])


async def chunks(graph: Any, given: Any, config: Any = "t", **arguments: Any) -> list[Any]:
    return [chunk async for chunk in graph.astream(given, config, **arguments)]


async def history(graph: Any, config: Any = "t") -> list[Any]:
    """Return a thread's snapshots, oldest first."""
    return [snapshot async for snapshot in graph.aget_state_history(config)][::-1]


def expected(states: list[Any]) -> list[tuple[str, Any]]:
    """Return the expected chunks of a chain of two nodes, in order, given its thread's history; debug without its
    dates."""
    start, first, second, last = states
    task_a, task_b = first.tasks[0], second.tasks[0]

    def checkpoint(snapshot: Any) -> dict[str, Any]:
        return {
            "config": snapshot.config,
            "parent_config": snapshot.parent_config,
            "values": snapshot.values,
            "metadata": snapshot.metadata,
            "next": list(snapshot.next),
            "tasks": [{"id": each.id, "name": each.name, "interrupts": (), "state": None} for each in snapshot.tasks],
        }

    def both(kind: str, step: int, payload: Any) -> list[tuple[str, Any]]:
        mode = "checkpoints" if kind == "checkpoint" else "tasks"
        return [(mode, payload), ("debug", {"step": step, "type": kind, "payload": payload})]

    def ran(name: str, each: Any, step: int, before: Any) -> list[tuple[str, Any]]:
        planned = {"id": each.id, "name": name, "input": before.values, "triggers": (f"branch:to:{name}",)}
        ended = {"id": each.id, "name": name, "error": None, "result": {"log": [name]}, "interrupts": []}
        return [
            *both("task", step, planned),
            ("custom", {"from": name}),
            ("updates", {name: {"log": [name]}}),
            *both("task_result", step, ended),
        ]

    def after(step: int, snapshot: Any) -> list[tuple[str, Any]]:
        return [("values", snapshot.values), *both("checkpoint", step, checkpoint(snapshot))]

    return [
        *both("checkpoint", -1, checkpoint(start)),
        *after(0, first),
        *ran("a", task_a, 1, first),
        *after(1, second),
        *ran("b", task_b, 2, second),
        *after(2, last),
    ]


def undated(mode: str, chunk: Any) -> Any:
    if mode != "debug":
        return chunk
    assert chunk["timestamp"].endswith("+00:00")
    datetime.fromisoformat(chunk["timestamp"])
    return {key: value for key, value in chunk.items() if key != "timestamp"}


@pytest.mark.pairwise
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize(
    "modes", [*ALL, *[[mode] for mode in ALL], ALL, tuple(ALL), ["debug", "custom", "values"]], ids=str
)
async def test_every_mode_alone_and_together(
    modes: Any, subgraphs: bool, version: Any, saver: BaseCheckpointSaver
) -> None:
    """All payloads of all modes, one or several at once, lists and
    tuples, with and without `subgraphs=True`, in both versions; in one order, whatever the order they are named in."""
    graph = chain("a", "b").compile(saver)
    got = await chunks(graph, {"note": "x"}, stream_mode=modes, subgraphs=subgraphs, version=version)
    names = [modes] if isinstance(modes, str) else list(modes)
    seen = [(mode, chunk) for mode, chunk in expected(await history(graph)) if mode in names]
    if version == "v2":
        assert all(part.keys() >= {"type", "ns", "data", "seq", "step", "committed", "cursor"} for part in got)
        assert {part["ns"] for part in got} <= {()}
        bare = [(part["type"], part["data"]) for part in got]
        assert all(part["interrupts"] == () for part in got if part["type"] == "values")
    else:
        bare = []
        for chunk in got:
            if subgraphs:
                assert chunk[0] == ()
                chunk = chunk[1:] if len(chunk) > 2 else chunk[1]
            bare.append((modes, chunk) if isinstance(modes, str) else chunk)
            assert len(bare[-1]) == 2
    assert [(mode, undated(mode, chunk)) for mode, chunk in bare] == seen


async def test_bad_calls() -> None:
    """Unknown modes, keys, versions, policies and capacities are errors at once, before any node runs."""
    graph = chain("a").compile()
    wrong: list[dict[str, Any]] = [
        {"stream_mode": "events"},
        {"stream_mode": []},
        {"stream_mode": ["values", "values"]},
        {"stream_mode": ["values", "nope"]},
        {"version": "v3"},
        {"output_keys": "nope"},
        {"output_keys": ["log", "nope"]},
        {"capacity": 0},
        {"capacity": True},
        {"capacity": "64"},
        {"overflow": "drop"},
        {"overflow": 5},
        {"overflow": {"values": "drop_oldest"}},
        {"stream_mode": ["values"], "overflow": {"values": "nope"}},
    ]
    for arguments in wrong:
        with pytest.raises(ConfigError):
            graph.astream({}, **arguments)
    for arguments in wrong[:7]:
        with pytest.raises(ValueError):
            await graph.ainvoke({}, **arguments)


async def test_without_a_saver() -> None:
    """`checkpoints` needs a checkpointer; the other modes do not."""
    graph = chain("a").compile()
    got = await chunks(graph, {"note": "x"}, None, stream_mode=ALL)
    assert [mode for mode, _ in got] == ["values", "tasks", "debug", "custom", "updates", "tasks", "debug", "values"]
    assert await chunks(graph, {}, None, stream_mode="checkpoints") == []


async def test_values_of_functional_graphs() -> None:
    """A resumed entrypoint streams the previous value first, or None; the first run streams no earlier value."""

    @task
    def double(number: int) -> int:
        return number * 2

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(number: int) -> int:
        if number == 7:
            interrupt("?")
        return await double(number)

    assert await chunks(flow, 1, stream_mode="values") == [2]
    asked = await chunks(flow, 7, stream_mode="values")
    assert [list(chunk) for chunk in asked] == [["__interrupt__"]]
    assert await chunks(flow, Command(resume=0), stream_mode="values") == [2, 14]


async def test_a_tasks_start_has_metadata_if_there_is_any() -> None:
    """The key is present only if the user has set something: metadata, and tags as `tags`."""
    node = NodeBuilder().subscribe_only("in").do(lambda given: given).write_to("out")
    graph = Pregel(
        nodes={"bare": node, "seen": NodeBuilder().subscribe_only("in").meta("t1", "t2", team="x").write_to("seen")},
        channels={"in": EphemeralValue(int), "out": LastValue(int), "seen": LastValue(int)},
        input_channels="in",
        output_channels=["out"],
        blocking=False,
    )
    starts = {chunk["name"]: chunk for chunk in await chunks(graph, 1, None, stream_mode="tasks") if "input" in chunk}
    assert starts["bare"].keys() == {"id", "name", "input", "triggers"}
    assert starts["seen"]["metadata"] == {"team": "x", "tags": ["t1", "t2"]}
    starts["seen"]["metadata"]["tags"].append("mine")  # P1
    again = [chunk for chunk in await chunks(graph, 1, None, stream_mode="tasks") if "metadata" in chunk]
    assert again[0]["metadata"]["tags"] == ["t1", "t2"]


async def test_restored_calls_stream_nothing() -> None:
    """A call's start, update and end are streamed when it runs, and nothing when its result is recorded; the entrypoint
    that asks ends with its question."""

    @task
    def double(number: int, *, by: int = 2) -> int:
        return number * by

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(number: int) -> int:
        return (await double(number, by=3)) + interrupt("more?")

    got = await chunks(flow, 1, stream_mode=["tasks", "updates"])
    assert [(mode, chunk.get("name", next(iter(chunk)))) for mode, chunk in got] == [
        ("tasks", "flow"),
        ("tasks", "double"),
        ("updates", "double"),
        ("tasks", "double"),
        ("updates", "__interrupt__"),
        ("tasks", "flow"),
    ]
    (question,) = got[4][1]["__interrupt__"]
    assert isinstance(question, Interrupt)
    assert got[1][1]["input"] == ((1,), {"by": 3})
    assert got[3][1]["result"] == {"__return__": 3}
    assert got[5][1]["result"] == {}
    assert got[5][1]["interrupts"] == [{"value": "more?", "id": question.id, "response_schema": None}]
    again = await chunks(flow, Command(resume=10), stream_mode=["tasks", "updates"])
    assert [(mode, chunk.get("name", next(iter(chunk)))) for mode, chunk in again] == [
        ("tasks", "flow"),
        ("updates", "flow"),
        ("tasks", "flow"),
    ]


async def test_order_when_a_task_asks() -> None:
    """The question among the updates, the state with it, then the task's end; in v1 the values hold it
    under its key."""

    def node(state: State) -> State:
        return {"log": [interrupt("?")]}

    graph = StateGraph(State).add_node("a", node).add_edge(START, "a").compile(InMemorySaver(), blocking=False)
    got = await chunks(graph, {"note": "x"}, stream_mode=["values", "updates", "tasks", "debug"])
    got = [(mode, chunk) for mode, chunk in got if chunk.get("type") != "checkpoint"]
    assert [mode for mode, _ in got] == ["values", "tasks", "debug", "updates", "values", "tasks", "debug"]
    (asked,) = got[3][1]["__interrupt__"]
    assert got[4][1] == {"log": [], "note": "x", "__interrupt__": (asked,)}
    parts = await chunks(graph, {"note": "x"}, "t2", stream_mode=["values", "updates"], version="v2")
    last = parts[-1]
    assert (last["data"], [each.value for each in last["interrupts"]]) == ({"log": [], "note": "x"}, ["?"])


async def test_custom_chunks_of_failed_attempts_are_visible() -> None:
    """Custom chunks are streamed, whatever the outcome of the attempt; each attempt of a run has one start and
    one end."""
    broken = [True]

    async def node(state: State, writer: StreamWriter) -> None:
        writer("trying")
        if broken:
            raise ValueError

    graph = StateGraph(State).add_node("a", node).add_edge(START, "a").compile(InMemorySaver())
    got: list[Any] = []
    with pytest.raises(ValueError):
        async for chunk in graph.astream({}, "t", stream_mode=["custom", "tasks"]):
            got.append(chunk)
    assert [mode for mode, _ in got] == ["tasks", "custom", "tasks"]
    broken.clear()
    assert [mode for mode, _ in await chunks(graph, None, stream_mode=["custom", "tasks"])] == [
        "tasks",
        "custom",
        "tasks",
    ]


def as_streamed(snapshot: Any, made: bool = True) -> dict[str, Any]:
    """Return a snapshot as the stream has it: without results and without later data (questions and errors)."""

    def state(config: Any) -> Any:
        return config if made or config is None else {"configurable": {"thread_id": "t", "checkpoint_ns": "sub"}}

    return {
        "config": snapshot.config,
        "parent_config": snapshot.parent_config,
        "values": snapshot.values,
        "metadata": snapshot.metadata,
        "next": list(snapshot.next),
        "tasks": [
            {"id": each.id, "name": each.name, "interrupts": (), "state": state(each.state)} for each in snapshot.tasks
        ],
    }


@pytest.mark.parametrize("keeps", [None, True])
async def test_streamed_checkpoints_are_those_of_history(keeps: bool | None, saver: BaseCheckpointSaver) -> None:
    """Payloads equal the later `aget_state_history` entries except `result`: of chains, sends, subgraphs (with kept
    state too), over runs and resumes. (Of a subgraph with kept state, history also has the result of its task.)"""

    async def asks(state: State) -> State:
        return {"log": [interrupt("?")]}

    inner = chain("x", "y").compile(checkpointer=keeps)
    made = StateGraph(State).add_node("a", logging_node("a")).add_node("sub", inner).add_node("w", logging_node("w"))
    made.add_node("asks", asks)
    made.add_edge(START, "a").add_edge("a", "sub").add_edge("w", "asks")
    made.add_conditional_edges("sub", lambda state: [Send("w", {}), Send("w", {})])
    graph = made.compile(saver)
    shown: list[Any] = []
    for given in ({"note": "1"}, Command(resume="yes"), {"note": "2"}):
        shown += await chunks(graph, given, stream_mode="checkpoints", subgraphs=True)
    root = [payload for ns, payload in shown if ns == ()]
    assert root == [as_streamed(snapshot, made=not keeps) for snapshot in await history(graph)]
    assert root[0]["parent_config"] is None
    inside: dict[Any, list[Any]] = {}
    for ns, payload in shown:
        if ns:
            inside.setdefault(payload["config"]["configurable"]["checkpoint_ns"], []).append(payload)
    assert len(inside) == (1 if keeps else 2)
    for ns, payloads in inside.items():
        stored = await history(graph, {"configurable": {"thread_id": "t", "checkpoint_ns": ns}})
        assert payloads == [as_streamed(snapshot) for snapshot in stored]


def spoil(chunk: Any) -> None:
    """Change every mutable part in place, at any depth."""
    if isinstance(chunk, dict):
        for value in list(chunk.values()):
            spoil(value)
        chunk.clear()
        chunk["spoiled"] = True
    elif isinstance(chunk, list):
        for value in list(chunk):
            spoil(value)
        chunk.append("spoiled")
    elif isinstance(chunk, tuple):
        for value in chunk:
            spoil(value)
    elif isinstance(chunk, Interrupt):
        spoil(chunk.value)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_changes_by_a_reader_have_no_effect(version: Any, saver: BaseCheckpointSaver) -> None:
    """P1: changing chunks of any mode in place, as they arrive, affects neither nodes, channels, checkpoints,
    questions, other chunks, nor the reader of a subgraph."""
    inner_seen: list[Any] = []
    shared = {"deep": [[1]]}

    async def first(state: State, writer: StreamWriter) -> State:
        await writer(shared)
        writer.message({"role": "ai", "content": "x", "id": "1", "more": shared}, {"m": shared})
        return {"log": [shared]}

    async def asks(state: State) -> State:
        return {"log": [state["log"], interrupt({"q": [shared]})]}

    inner = StateGraph(State).add_node("asks", asks).add_edge(START, "asks").compile()

    async def runs(state: State) -> State:
        async with inner.astream(state, stream_mode=ALL, version="v2") as stream:
            async for part in stream:
                inner_seen.append(repr(part["data"]))
                spoil(part["data"])
        return {"log": ["end"]}

    async def run(spoiling: bool, thread: str) -> tuple[list[str], Any]:
        made = StateGraph(State).add_node("first", first).add_node("sub", inner)
        graph = made.add_edge(START, "first").add_edge("first", "sub").compile(saver)
        seen = []
        for given in ({"note": "n"}, Command(resume="a")):
            async for chunk in graph.astream(given, thread, stream_mode=ALL, subgraphs=True, version=version):
                seen.append(repr(chunk))
                if spoiling:
                    spoil(chunk if version == "v1" else [chunk["data"], chunk.get("interrupts")])
        state = await graph.aget_state(thread)
        return seen, (state.values, [snapshot.values for snapshot in await history(graph, thread)])

    clean = await run(False, "t1")
    spoiled = await run(True, "t2")
    assert clean[1] == spoiled[1]
    assert len(clean[0]) == len(spoiled[0])
    assert "spoiled" not in "".join(spoiled[0])
    assert shared == {"deep": [[1]]}
    outer = StateGraph(State).add_node("runs", runs).add_edge(START, "runs").compile(saver)
    await chunks(outer, {"log": [shared]}, "t3")
    await chunks(outer, Command(resume="a"), "t3")
    assert "spoiled" not in "".join(inner_seen)
    assert (await outer.aget_state("t3")).values["log"] == [{"deep": [[1]]}, "end"]


@pytest.mark.parametrize("mode", ["updates", "messages", "custom", "tasks", "debug"])
async def test_chunks_arrive_while_their_superstep_runs(mode: str) -> None:
    """Chunks of running and finished tasks reach the reader while a sibling runs."""
    read = anyio.Event()

    async def early(state: State, writer: StreamWriter) -> State:
        writer("x")
        writer.message({"role": "ai", "content": "x", "id": "1"})
        return {"log": ["early"]}

    async def late(state: State) -> None:
        await read.wait()

    made = StateGraph(State).add_node("early", early).add_node("late", late)
    graph = made.add_edge(START, "early").add_edge(START, "late").compile(InMemorySaver())
    ends = {"tasks": 3, "debug": 3}.get(mode, 1)  # two starts before the first end
    with anyio.fail_after(30):
        async with graph.astream({}, "t", stream_mode=mode) as stream:
            count = 0
            async for chunk in stream:
                ended = "result" in chunk.get("payload", chunk) if mode in ("tasks", "debug") else True
                count += 1 if mode != "debug" or chunk["type"] != "checkpoint" else 0
                if ended and count >= ends:
                    read.set()
    assert read.is_set()


async def test_a_reader_is_served_between_completions() -> None:
    """A reader of a wide superstep that is quick enough gets each chunk before the next task has finished."""
    turns: list[Any] = []
    gates = [anyio.Event() for _ in range(4)]

    async def work(number: int) -> State:
        await gates[number].wait()
        turns.append(number)
        return {"log": [number]}

    made = StateGraph(State).add_node("w", work)
    made.add_conditional_edges(START, lambda state: [Send("w", number) for number in range(4)])
    gates[3].set()
    async for chunk in made.compile().astream({}):
        number = chunk["w"]["log"][0]
        turns.append(f"read {number}")
        if number:
            gates[number - 1].set()
    assert turns == [3, "read 3", 2, "read 2", 1, "read 1", 0, "read 0"]


async def test_a_called_tasks_update_is_read_before_its_caller_continues() -> None:
    """A called task's update is read before its caller continues; with a reader that stalls, the caller waits too."""

    @task
    async def step(number: int) -> int:
        return number

    went_on: list[int] = []

    @entrypoint()
    async def flow(given: int) -> None:
        for number in range(10):
            went_on.append(await step(number))

    async with flow.astream(1, capacity=2) as stream:
        await anyio.wait_all_tasks_blocked()
        assert went_on == [0, 1]
        assert [chunk["step"] async for chunk in stream if "step" in chunk] == list(range(10))


@pytest.mark.parametrize("mode", [None, *ALL])
def test_unused_modes_cost_nothing(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same functions are called, equally often, whether or not the other modes exist; and a run without a reader
    makes no part at all."""

    async def node(state: State, writer: StreamWriter) -> State:
        writer("x")
        writer.message({"role": "ai", "content": "x"})
        return {"log": ["x"]}

    def counted() -> Counter[str]:
        async def main() -> None:
            made = StateGraph(State).add_sequence([(f"n{number}", node) for number in range(20)])
            graph = made.add_edge(START, "n0").compile(InMemorySaver())
            if mode is None:
                await graph.ainvoke({}, "warm up")
                counts.append(calls_within(lambda: graph.ainvoke({}, "t")))
            else:
                await chunks(graph, {}, "warm up", stream_mode=mode)
                counts.append(calls_within(lambda: chunks(graph, {}, "t", stream_mode=mode)))
            counts.append(await counts.pop())

        counts: list[Any] = []
        anyio.run(main)
        return counts[0]

    with_all = counted()
    folder = mode_package.__path__[0]
    called = {name.removeprefix(folder) for name in with_all if name.startswith(folder)}
    mine = {None: set(), "debug": {"/debug.py", "/tasks.py", "/checkpoints.py", "/mode.py", "/updates.py"}}.get(
        mode,
        {
            f"/{mode}.py",
            "/mode.py",
            *(["/updates.py"] if mode in ("tasks",) else []),
            *(["/tasks.py"] if mode == "messages" else []),
        },
    )
    assert {name.partition(":")[0] for name in called} <= mine
    if mode is None:
        assert called == set()
        assert not any("/writer.py" in name and "_show" in name for name in with_all)
        return
    # The mode is not even asked about events that it does not stream.
    others = ("__init__", "part", "part_of")
    events = [name for name, what in vars(Mode).items() if callable(what) and name not in others]
    shows = {f"_{name}" for name in events if getattr(MODES[mode], name) is not getattr(Mode, name)}
    seen = {name.rpartition(":")[2] for name in with_all if name.startswith(str(log_module.__file__))}
    assert set(events) == set(EVENTS)
    assert seen & {f"_{name}" for name in events} <= shows
    monkeypatch.setattr(log_module, "MODES", {mode: MODES[mode]})
    assert counted() == with_all


async def calls_within(run: Any) -> Counter[str]:
    """Return the Python functions of this project that are called while a coroutine runs."""
    called: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "pregel_async" in frame.f_code.co_filename:
            called[f"{frame.f_code.co_filename}:{frame.f_code.co_name}"] += 1

    sys.setprofile(note)
    try:
        await run()
    finally:
        sys.setprofile(None)
    return called


async def test_no_part_is_made_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of parts made equals the number read, and is zero without a reader; no mode is made that was not
    named."""
    made_parts: list[RawPart] = []
    made_modes: list[str] = []

    def noted(make: Callable[..., RawPart]) -> Callable[..., RawPart]:
        def part(*args: Any, **kwargs: Any) -> RawPart:
            made_parts.append(make(*args, **kwargs))
            return made_parts[-1]

        return part

    def init(self: Any, view: Any) -> None:
        made_modes.append(type(self).name)
        before(self, view)

    before = Mode.__init__
    monkeypatch.setattr(Mode, "part", noted(Mode.part))
    monkeypatch.setattr(Mode, "part_of", noted(Mode.part_of))
    monkeypatch.setattr(Mode, "__init__", init)
    inner = chain("x", "y").compile()
    made = (
        StateGraph(State)
        .add_node("a", logging_node("a"))
        .add_node("sub", inner)
        .add_edge(START, "a")
        .add_edge("a", "sub")
    )
    graph = made.compile(InMemorySaver())
    await graph.ainvoke({}, "t")
    assert (made_parts, made_modes) == ([], [])
    for mode in ALL:
        for subgraphs in (False, True):
            made_parts.clear(), made_modes.clear()
            got = await chunks(graph, {}, f"{mode} {subgraphs}", stream_mode=mode, subgraphs=subgraphs)
            assert len(made_parts) == len(got)
            assert set(made_modes) == ({"debug", "tasks", "checkpoints"} if mode == "debug" else {mode})
            assert len(made_modes) == (2 if subgraphs else 1) * (3 if mode == "debug" else 1)
