"""Readers that disconnect and reconnect: no event is lost or repeated, and void events are reported as void."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError, ThreadBusyError, UnstorableValueError
from checkpoint_savers.sqlite import SqliteSaver
from pregel_async import START, Command, GraphDrained, RunControl, Send, StateGraph, get_stream_writer, interrupt
from pregel_async.channels import UntrackedValue
from pregel_async.errors import ConfigError, InvalidCursorError, RecordedFailureError, RunCancelledError
from tests.durability.durable_environment import Died
from tests.helpers.environments import SeededEnvironment
from tests.helpers.passing_saver import WRITES, Through
from tests.helpers.stream_reader import kept_by_reader

pytestmark = pytest.mark.anyio

DURABILITIES = ["sync", "async", "exit"]
MODES: Any = ["values", "updates", "custom", "tasks"]
ASK: Any = {"stream_mode": MODES, "subgraphs": True, "version": "v2"}


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Gate:
    """Lets nodes pass one step at a time."""

    def __init__(self) -> None:
        self.events: dict[str, anyio.Event] = {}
        self.reached: dict[str, anyio.Event] = {}

    async def wait(self, name: str) -> None:
        if name in self.events:
            self.reached[name].set()
            await self.events[name].wait()

    def close(self, *names: str) -> None:
        self.events = {name: anyio.Event() for name in names}
        self.reached = {name: anyio.Event() for name in names}


def graph_of(
    saver: BaseCheckpointSaver | None, gate: Gate | None = None, environment: Any = None, *, ask: bool = False
) -> Any:
    """Return a graph first -> three sends and a subgraph -> last; each node writes to the stream before and after it
    waits at its gate."""

    async def work(name: str) -> dict[str, list[str]]:
        writer = get_stream_writer()
        await writer(f"{name} begins")
        if gate is not None:
            await gate.wait(name)
        await writer(f"{name} ends")
        return {"log": [name]}

    async def first(state: State) -> dict[str, list[str]]:
        return await work("first")

    async def inside(state: State) -> dict[str, list[str]]:
        return await work("inside")

    def plain(number: int) -> dict[str, list[str]]:
        get_stream_writer()(f"plain {number}")
        return {"log": [f"plain {number}"]}

    async def last(state: State) -> dict[str, list[str]]:
        if ask:
            return {"log": [interrupt("go on?")]}
        return await work("last")

    sub = StateGraph(State).add_node(inside).add_edge(START, "inside").compile()

    async def runs(state: State) -> dict[str, list[str]]:
        await sub.ainvoke({"log": []})
        return {"log": ["runs"]}

    builder = StateGraph(State).add_node(first).add_node(plain).add_node(runs).add_node(last)
    builder.add_edge(START, "first").add_edge("first", "runs").add_edge("runs", "last")
    builder.add_conditional_edges("first", lambda state: [Send("plain", number) for number in range(3)], ["plain"])
    return builder.compile(saver, environment=environment)


async def read(stream: Any) -> list[dict[str, Any]]:
    async with stream as parts:
        return [part async for part in parts]


def without_storage_position(parts: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the parts without the cursors' positions in storage, which depend on timing with "async"."""
    known = ("type", "ns", "data", "seq", "step")
    return [{**{key: part[key] for key in known}, "cursor": part["cursor"].split(".")[:4]} for part in parts]


@pytest.fixture(params=["memory", "sqlite"])
async def saver(request: Any, tmp_path: Path, anyio_backend: Any) -> AsyncIterator[BaseCheckpointSaver]:
    if request.param == "memory":
        yield InMemorySaver()
    else:
        async with SqliteSaver.from_conn_string(tmp_path / "runs.db", synchronous="NORMAL") as saver:
            yield saver


def check_numbers(parts: Sequence[dict[str, Any]], after: int = 0) -> None:
    """P4: the numbers of the parts have no gaps."""
    assert [part["seq"] for part in parts] == list(range(after + 1, after + 1 + len(parts)))


@pytest.mark.parametrize("mode", DURABILITIES)
async def test_after_the_end(mode: Any, saver: BaseCheckpointSaver) -> None:
    """From any cursor, the remaining events come once each, and no node runs again."""
    graph = graph_of(saver)
    everything = await read(graph.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK))
    check_numbers(everything)
    assert everything[-1]["data"] == {"log": ["first", "runs", "plain 0", "plain 1", "plain 2", "last"]}
    cursors = [part["cursor"] for part in everything]
    assert cursors == sorted(cursors)
    for read_so_far in range(1, len(everything) + 1):
        stream = graph_of(saver).astream(None, "t", after=cursors[read_so_far - 1], **ASK)
        rest = await read(stream)
        assert without_storage_position(rest) == without_storage_position(everything[read_so_far:])
        assert all(part["committed"] == 3 for part in rest)
        assert stream.status == "done"
    # no run has acquired a lease since
    assert (await saver.acquire("t", _another_caller(), now=1e12, expires_at=1e12)).epoch == 2


def _another_caller() -> Any:
    from checkpoint_savers.owner import this_process

    return this_process("another_caller")


async def test_after_a_question(saver: BaseCheckpointSaver) -> None:
    """A run that asks has ended: the question is streamed and the node does not run again. After the answer the reader
    continues from its cursor."""
    graph = graph_of(saver, ask=True)
    everything = await read(graph.astream({"log": []}, "t", keep_events=True, **ASK))
    asked = [part for part in everything if part["type"] == "values" and part["interrupts"]]
    assert [question.value for part in asked for question in part["interrupts"]] == ["go on?"]
    for part in everything:
        stream = graph.astream(None, "t", after=part["cursor"], **ASK)
        rest = await read(stream)
        assert without_storage_position(rest) == without_storage_position(everything[part["seq"] :])
        assert stream.status == "interrupted"
    answered = await read(graph.astream(Command(resume="yes"), "t", keep_events=True, **ASK))
    later = await read(graph.astream(None, "t", after=everything[3]["cursor"], **ASK))
    assert [part["data"] for part in later] == [part["data"] for part in (*everything[4:], *answered)]
    check_numbers(later, after=4)


async def test_after_an_interrupted_answer(saver: BaseCheckpointSaver) -> None:
    """An answering run was interrupted: the answer is stored, so that a reconnecting reader resumes with it."""
    gate = Gate()
    gate.close("answered")

    async def asks(state: State) -> dict[str, list[str]]:
        answer = interrupt("go on?")
        await gate.wait("answered")
        return {"log": [answer]}

    graph = StateGraph(State).add_node(asks).add_edge(START, "asks").compile(saver)
    parts = await read(graph.astream({"log": []}, "t", keep_events=True, **ASK))
    async with anyio.create_task_group() as group:

        async def answer() -> None:
            await graph.ainvoke(Command(resume="yes"), "t")

        group.start_soon(answer)
        await gate.reached["answered"].wait()
        group.cancel_scope.cancel()
    gate.events.clear()
    back = graph.astream(None, "t", after=parts[-1]["cursor"], **ASK)
    rest = await read(back)
    assert back.status == "done"
    assert "superstep_restarted" not in [part["type"] for part in rest]  # the interrupted run stored no events
    assert rest[-1]["data"] == {"log": ["yes"]}


async def test_after_a_failure(saver: BaseCheckpointSaver) -> None:
    """A failure arrives as the last event and then as the exception; readers that reconnect get it too, by name."""

    async def fails(state: State) -> State:
        get_stream_writer()("before")
        raise LookupError("no such thing")

    graph = StateGraph(State).add_node(fails).add_edge(START, "fails").compile(saver)
    parts: list[Any] = []
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    with pytest.raises(LookupError, match="no such thing"):
        async for part in stream:
            parts.append(part)
    assert stream.status == "failed"
    assert parts[-1]["type"] == "error"
    assert parts[-1]["data"] == {"error": "LookupError", "message": "no such thing"}
    assert parts[-2]["type"] == "tasks" and isinstance(parts[-2]["data"]["error"], LookupError)
    for at in range(1, len(parts) + 1):
        rest: list[Any] = []
        back = graph.astream(None, "t", after=parts[at - 1]["cursor"], **ASK)
        with pytest.raises(RecordedFailureError, match="LookupError: no such thing") as caught:
            async for part in back:
                rest.append(part)
        assert caught.value.type == "LookupError"
        assert back.status == "failed"
        assert [part["seq"] for part in rest] == [part["seq"] for part in parts[at:]]
        assert [part["data"]["error"] for part in rest if part["type"] == "tasks" and "error" in part["data"]] == [
            "LookupError: no such thing" for part in parts[at:] if part["type"] == "tasks" and "error" in part["data"]
        ]


@pytest.mark.parametrize("mode", ["tasks", "debug"])
async def test_a_failure_that_cannot_be_printed_is_stored(saver: BaseCheckpointSaver, mode: Any) -> None:
    """P9: storing events never replaces a failure. An exception without a usable text was lost: the run failed with the
    error of its `__str__`."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def fails(state: State) -> State:
        raise Mute

    graph = StateGraph(State).add_node(fails).add_edge(START, "fails").compile(saver)
    ask: Any = {"stream_mode": mode, "version": "v2"}
    parts: list[Any] = []
    with pytest.raises(Mute):
        async for part in graph.astream({"log": []}, "t", keep_events=True, **ask):
            parts.append(part)
    rest: list[Any] = []
    with pytest.raises(RecordedFailureError):
        async for part in graph.astream(None, "t", after=parts[0]["cursor"], **ask):
            rest.append(part)
    shown = [part["data"]["payload"] if mode == "debug" else part["data"] for part in rest if part["type"] == mode]
    assert [data["error"] for data in shown if data.get("error")] == ["Mute: (its message cannot be had: RuntimeError)"]


async def test_after_a_drain(saver: BaseCheckpointSaver) -> None:
    """A drained run continues when its reader reconnects; none of its events was void."""
    undisturbed = await read(graph_of(InMemorySaver()).astream({"log": []}, "t", keep_events=True, **ASK))
    gate, control = Gate(), RunControl()
    gate.close("inside")
    graph = graph_of(saver, gate)
    parts: list[Any] = []
    stream = graph.astream({"log": []}, "t", keep_events=True, control=control, **ASK)
    with pytest.raises(GraphDrained, match="deploy"):
        async for part in stream:
            parts.append(part)
            if part["data"] == "inside begins":
                control.request_drain("deploy")
                gate.events["inside"].set()
    assert stream.status == "drained"
    parts = [part for part in parts if part["type"] != "error"]
    gate.events.clear()
    back = graph.astream(None, "t", after=parts[-1]["cursor"], **ASK)
    rest = await read(back)
    assert back.status == "done"
    assert "superstep_restarted" not in [part["type"] for part in rest]
    shown = sorted(str(part["data"]) for part in (*parts, *rest) if part["type"] == "custom")
    assert shown == sorted(str(part["data"]) for part in undisturbed if part["type"] == "custom")
    assert (await graph.aget_state("t")).values["log"].count("inside") == 0


@pytest.mark.pairwise
@pytest.mark.parametrize("gone_after", [1, 3, 5, 8, 12])
@pytest.mark.parametrize("held", ["first", "inside", "last"])
@pytest.mark.parametrize("mode", DURABILITIES)
async def test_joining_a_run_of_this_process(mode: Any, saver: BaseCheckpointSaver, held: str, gone_after: int) -> None:
    """A reader that reconnects in the same process gets every event once, whether its superstep is committed or
    open."""
    gate = Gate()
    gate.close(held)
    graph = graph_of(saver, gate)
    stream = graph.astream({"log": []}, "t", keep_events=True, durability=mode, **ASK)
    parts: list[Any] = []
    async with anyio.create_task_group() as group, stream:
        while len(parts) < gone_after and (stream._buffer.parts or not gate.reached[held].is_set()):
            if stream._buffer.parts:
                parts.append(await anext(stream))
            await anyio.lowlevel.checkpoint()
        group.start_soon(stream.finish)  # the reader leaves, and the run continues
        await gate.reached[held].wait()
        back = graph.astream(None, "t", after=parts[-1]["cursor"], **ASK)
        other = graph.astream(None, "t", after=parts[0]["cursor"], **ASK)
        more: list[Any] = []

        async def read_other() -> None:
            more.extend(await read(other))

        async def let_go() -> None:
            await anyio.wait_all_tasks_blocked()
            gate.events[held].set()

        group.start_soon(read_other)
        group.start_soon(let_go)
        parts += await read(back)
        assert back.status == "done"
    check_numbers(parts)
    assert without_storage_position(more) == without_storage_position(parts[1:])
    assert without_storage_position(
        await read(graph.astream(None, "t", after=parts[0]["cursor"], **ASK))
    ) == without_storage_position(parts[1:])
    assert {str(part["data"]) for part in parts if part["type"] == "custom"} >= {
        "first begins",
        "inside ends",
        "last ends",
    }


async def test_two_readers_are_isolated(saver: BaseCheckpointSaver) -> None:
    """P1: a change in place by one reader reaches neither the other reader nor the stored events."""
    gate = Gate()
    gate.close("last")
    graph = graph_of(saver, gate)
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    async with stream, anyio.create_task_group() as group:
        start = await anext(stream)
        other = graph.astream(None, "t", after=start["cursor"], **ASK)
        seen: list[Any] = []

        async def read_other() -> None:
            seen.extend(await read(other))

        group.start_soon(read_other)
        gate.events["last"].set()
        async for part in stream:
            if part["type"] == "values":
                part["data"]["log"].append("spoilt")
    assert "spoilt" not in str(seen)
    assert "spoilt" not in str(await read(graph.astream(None, "t", after=start["cursor"], **ASK)))


async def test_a_joined_run_that_is_cancelled(saver: BaseCheckpointSaver) -> None:
    """A joined reader gets a notice when the caller of the run cancels it; reconnecting once more resumes the run."""
    gate = Gate()
    gate.close("inside")
    graph = graph_of(saver, gate)
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    seen: list[Any] = []
    raised: list[BaseException] = []
    async with anyio.create_task_group() as group:
        start = await anext(stream)

        async def join() -> None:
            try:
                async for part in graph.astream(None, "t", after=start["cursor"], **ASK):
                    seen.append(part)
            except RunCancelledError as error:
                raised.append(error)

        group.start_soon(join)
        await gate.reached["inside"].wait()
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
    assert stream.status == "cancelled"
    assert [type(error) for error in raised] == [RunCancelledError]
    gate.events.clear()
    rest = await read(graph.astream(None, "t", after=seen[-1]["cursor"], **ASK))
    assert rest[0]["type"] == "superstep_restarted"
    assert rest[0]["data"]["step"] == 2
    check_numbers([start, *seen, *rest])
    assert (await graph.aget_state("t")).next == ()


async def test_a_joined_run_that_fails(saver: BaseCheckpointSaver) -> None:
    """A failure reaches every reader of the run."""
    gate = Gate()
    gate.close("last")

    class Broken(Through):
        broken = False

        async def around(self, verb: str, call: Any) -> Any:
            if self.broken and verb in ("commit", "record"):
                raise StorageError("the disk is gone")
            return await call()

    broken = Broken(saver)
    graph = graph_of(broken, gate)
    stream = graph.astream({"log": []}, "t", keep_events=True, **ASK)
    async with anyio.create_task_group() as group:
        start = await anext(stream)
        ends: list[Any] = []

        async def join() -> None:
            back = graph.astream(None, "t", after=start["cursor"], **ASK)
            with pytest.raises(StorageError, match="the disk is gone"):
                async for part in back:
                    ends.append(part)

        group.start_soon(join)
        group.start_soon(_drained_to_failure, stream)
        await gate.reached["last"].wait()
        await anyio.wait_all_tasks_blocked()
        broken.broken = True
        gate.events["last"].set()
    assert ends[-1]["type"] == "error"
    assert ends[-1]["data"]["message"] == "the disk is gone"


async def _drained_to_failure(stream: Any) -> None:
    with pytest.raises(StorageError):
        async for _ in stream:
            pass


async def test_following_a_run_elsewhere(saver: BaseCheckpointSaver) -> None:
    """In another process (simulated by another graph object): "reject" shows what is committed and reports that the
    thread is busy; "wait" follows the commits until the thread is free."""
    gate = Gate()
    gate.close("last")
    here, there = graph_of(saver, gate), graph_of(saver)
    stream = here.astream({"log": []}, "t", keep_events=True, **ASK)
    async with stream, anyio.create_task_group() as group:
        start = await anext(stream)
        parts = [start]

        async def go_on() -> None:
            async for part in stream:
                parts.append(part)

        group.start_soon(go_on)
        await gate.reached["last"].wait()
        await anyio.wait_all_tasks_blocked()
        seen: list[Any] = []
        with pytest.raises(ThreadBusyError):
            async for part in there.astream(None, "t", after=start["cursor"], **ASK):
                seen.append(part)
        assert seen[-1]["type"] == "error"  # the reason why this stream ends
        assert without_storage_position(seen[:-1]) == without_storage_position(parts[1 : len(seen)])
        assert seen[-2]["step"] == 2  # the previous superstep

        async def free() -> None:
            gate.events["last"].set()

        group.start_soon(free)
        followed = await read(there.astream(None, "t", after=start["cursor"], on_conflict="wait", **ASK))
    assert without_storage_position(followed) == without_storage_position(parts[1:])


async def test_following_a_superstep_that_closes_between_two_looks(saver: BaseCheckpointSaver) -> None:
    """P4: a reader follows a run of another process from a cursor in an open superstep. When that superstep and the
    next one close before the reader's second look, nothing of them was void, and the reader gets no notice that it was.
    """
    gate = Gate()
    gate.close("first")
    looked = anyio.Event()

    class Looks(Through):
        async def around(self, verb: str, call: Any) -> Any:
            try:
                return await call()
            except ThreadBusyError:
                looked.set()
                raise

    stream = graph_of(saver, gate).astream({"log": []}, "t", keep_events=True, **ASK)
    parts: list[Any] = []
    followed: list[Any] = []
    with anyio.fail_after(30):
        async with stream, anyio.create_task_group() as group:
            while not parts or parts[-1]["data"] != "first begins":
                parts.append(await anext(stream))

            at = len(parts)
            back = graph_of(Looks(saver)).astream(None, "t", after=parts[-1]["cursor"], on_conflict="wait", **ASK)

            async def follow() -> None:
                followed.extend(await read(back))

            group.start_soon(follow)
            await looked.wait()
            gate.events["first"].set()
            async for part in stream:
                parts.append(part)
    assert without_storage_position(followed) == without_storage_position(parts[at:])


class Crashing(Through):
    """A saver whose process ends at one call, counted from 1, before or after the call was done."""

    def __init__(self, inner: BaseCheckpointSaver, at: int, *, after: bool) -> None:
        super().__init__(inner)
        self.calls = 0
        self._at, self._after = at, after

    async def around(self, verb: str, call: Any) -> Any:
        if verb not in WRITES:
            return await call()
        self.calls += 1
        if self.calls < self._at:
            return await call()
        if self.calls == self._at and self._after:
            await call()
        raise Died(verb)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("mode", DURABILITIES)
async def test_every_crash_point(mode: Any, after: bool) -> None:
    """P4: after a kill at any call of storage, a reader in another process gets all committed events, then
    `superstep_restarted`, then the superstep anew. No committed event is voided, missing or repeated."""
    undisturbed = await read(
        graph_of(InMemorySaver()).astream({"log": []}, "t", keep_events=True, durability=mode, **ASK)
    )
    for at in range(1, 100):
        environment = SeededEnvironment()
        inner = InMemorySaver(clock=environment.now)
        crashing = Crashing(inner, at, after=after)
        seen: list[Any] = []
        stream = graph_of(crashing, environment=environment).astream(
            {"log": []}, "t", keep_events=True, durability=mode, **ASK
        )
        try:
            async for part in stream:
                seen.append(part)
            break
        except BaseException as error:
            assert _died(error), error
        environment.time += 100
        if not seen:
            continue
        graph = graph_of(inner, environment=environment)
        if not (await graph.aget_state("t")).config["configurable"].get("checkpoint_id"):
            continue  # the input was never stored
        rest = await read(graph.astream(None, "t", after=seen[-1]["cursor"], on_conflict="wait", **ASK))
        check_numbers([*seen, *rest])
        assert [part["type"] for part in rest].count("superstep_restarted") <= 1
        assert _kinds(kept_by_reader([*seen, *rest])) == _kinds(undisturbed), at
        assert (await graph.aget_state("t")).next == ()
    else:
        pytest.fail("it never got through")
    assert at > {"sync": 8, "async": 6, "exit": 2}[mode]


def _died(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_died(one) for one in error.exceptions)
    return isinstance(error, Died)


def _kinds(parts: Sequence[dict[str, Any]]) -> list[str]:
    kept = []
    for part in parts:
        ns = part["ns"] and part["ns"][0].split(":")[0]
        kept.append(f"{part['type']} {ns} {part['data'] if part['type'] != 'tasks' else part['data']['name']}")
    return sorted(kept)


@pytest.mark.parametrize("waits", [True, False], ids=["awaited", "not awaited"])
async def test_a_long_superstep(saver: BaseCheckpointSaver, waits: bool) -> None:
    """Many events of an open superstep are flushed, and come back in order, once each; P12: the buffered events are
    bounded."""
    reached, go_on = anyio.Event(), anyio.Event()

    async def talks(state: State) -> State:
        writer = get_stream_writer()
        for number in range(2000):
            done = writer(number)
            if waits:
                await done
            elif number % 50 == 0:
                await anyio.lowlevel.checkpoint()
        reached.set()
        await go_on.wait()
        await writer("last")
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile(saver)
    ask: Any = {"stream_mode": ["custom", "values"], "version": "v2"}
    stream = graph.astream({"log": []}, "t", keep_events=True, **ask)
    parts: list[Any] = []
    async with stream, anyio.create_task_group() as group:
        for _ in range(700):
            parts.append(await anext(stream))
        group.start_soon(stream.finish)
        await reached.wait()
        async with aclosing(graph.astream(None, "t", after=parts[-1]["cursor"], **ask)) as back:
            for _ in range(100):
                parts.append(await anext(back))
        go_on.set()
    parts += await read(graph.astream(None, "t", after=parts[-1]["cursor"], **ask))
    check_numbers(parts)
    assert [part["data"] for part in parts if part["type"] == "custom"] == [*range(2000), "last"]


async def test_flushed_events_of_a_crash_are_void(saver: BaseCheckpointSaver) -> None:
    """Flushed events of an open superstep are no events of the thread unless the superstep closes."""
    stuck = anyio.Event()
    says = ["first time"]

    async def talks(state: State) -> State:
        writer = get_stream_writer()
        for number in range(600):
            await writer(f"{says[-1]} {number}")
        if len(says) == 1:
            await stuck.wait()
        return {"log": ["said"]}

    graph = StateGraph(State).add_node(talks).add_edge(START, "talks").compile(saver)
    ask: Any = {"stream_mode": ["custom", "values"], "version": "v2"}
    stream = graph.astream({"log": []}, "t", keep_events=True, **ask)
    parts = [await anext(stream) for _ in range(601)]
    await stream.aclose()
    assert await saver.events("t", limit=1000)
    says.append("second time")
    rest = await read(graph.astream(None, "t", after=parts[-1]["cursor"], **ask))
    assert rest[0]["type"] == "superstep_restarted"
    assert [part["data"] for part in rest[1:-1]] == [f"second time {number}" for number in range(600)]
    whole = await read(graph.astream(None, "t", after=parts[0]["cursor"], **ask))
    assert "first time" not in str(whole)
    assert [part["data"] for part in whole if part["type"] == "custom"] == [part["data"] for part in rest[1:-1]]


async def test_bad_cursors(saver: BaseCheckpointSaver) -> None:
    """A malformed cursor, or one of another thread or branch, is an error and runs nothing."""
    graph = graph_of(saver)
    parts = await read(graph.astream({"log": []}, "t", keep_events=True, **ASK))
    await graph.ainvoke({"log": []}, "other")
    for bad in ("", "x", "a.b.c.d", f"{parts[0]['cursor']}.1", "a.1.1." + "9" * 5000, "\udc80.1.1.1"):
        with pytest.raises(InvalidCursorError):
            graph.astream(None, "t", after=bad, **ASK)
    stream = graph.astream(None, "other", after=parts[0]["cursor"], **ASK)
    with pytest.raises(InvalidCursorError):
        await read(stream)
    with pytest.raises(InvalidCursorError):
        await read(graph.astream(None, "nothing here", after=parts[0]["cursor"], **ASK))
    states = [state async for state in graph.aget_state_history("t")]
    await graph.ainvoke(None, states[2].config)  # a fork: the head is on another branch
    with pytest.raises(InvalidCursorError, match="branch"):
        await read(graph.astream(None, "t", after=parts[-1]["cursor"], **ASK))


async def test_bad_calls(saver: BaseCheckpointSaver) -> None:
    """Refused at once: storing events without a checkpointer; reconnecting with an input, or to v1 chunks."""
    graph = graph_of(saver)
    cursor = (await read(graph.astream({"log": []}, "t", keep_events=True, **ASK)))[0]["cursor"]
    with pytest.raises(ConfigError, match="checkpointer"):
        graph_of(None).astream({"log": []}, keep_events=True)
    with pytest.raises(ConfigError, match="pass None"):
        graph.astream({"log": []}, "t", after=cursor, stream_mode="values", version="v2")
    with pytest.raises(ConfigError, match="v2"):
        graph.astream(None, "t", after=cursor, stream_mode="values")
    with pytest.raises(ConfigError, match="stream_mode"):
        graph.astream(None, "t", after=cursor, version="v2")


async def test_a_subgraph_stores_no_events_by_itself() -> None:
    """docs/streaming.md: "With keep_events=True, what is shown is kept". In a node no event was stored, without an
    error; and reconnecting there (`after`) reported that nothing was stored, or continued in place of its caller."""
    inside = StateGraph(State).add_node("x", lambda state: {"log": ["x"]}).add_edge(START, "x")
    texts: list[str] = []

    async def calls(state: State) -> dict[str, list[str]]:
        graph = inside.compile(InMemorySaver())
        for given, more in (({"log": []}, {"keep_events": True}), (None, {"after": ".0.0.0"})):
            with pytest.raises(ConfigError, match="the run around it keeps") as error:
                graph.astream(given, **more, stream_mode="values", version="v2")
            texts.append(str(error.value))
        parts = [part async for part in graph.astream({"log": []}, "own", keep_events=True, version="v2")]
        return {"log": [part["type"] for part in parts if part["cursor"] is not None]}

    graph = StateGraph(State).add_node(calls).add_edge(START, "calls").compile(InMemorySaver())
    assert await graph.ainvoke({"log": []}, "t") == {"log": ["updates"]}
    assert len(texts) == 2


async def test_chunks_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11: a chunk that cannot be stored fails the node that wrote it; a key that is never stored is left out."""

    class Opaque:
        pass

    class Tracked(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        handle: Annotated[Any, UntrackedValue]

    def node(state: Tracked) -> Tracked:
        return {"log": ["x"], "handle": Opaque()}

    def writes(state: Tracked) -> None:
        get_stream_writer()(Opaque())

    graph = StateGraph(Tracked).add_node(node).add_edge(START, "node").compile(saver)
    parts = await read(graph.astream({"log": []}, "t", stream_mode="values", keep_events=True, version="v2"))
    assert isinstance(parts[-1]["data"]["handle"], Opaque)
    back = await read(graph.astream(None, "t", stream_mode="values", after=parts[0]["cursor"], version="v2"))
    assert back[-1]["data"] == {"log": ["x"]}
    graph = StateGraph(Tracked).add_node(writes).add_edge(START, "writes").compile(saver)
    with pytest.raises(UnstorableValueError, match="custom"):
        await read(graph.astream({"log": []}, "u", stream_mode="custom", keep_events=True))

    async def speaks(state: Tracked) -> None:
        await get_stream_writer().message({"role": "assistant", "content": Opaque(), "id": "m"})

    graph = StateGraph(Tracked).add_node(speaks).add_edge(START, "speaks").compile(saver)
    with pytest.raises(UnstorableValueError, match="messages"):
        await read(graph.astream({"log": []}, "v", stream_mode="messages", keep_events=True))
    assert (await graph.aget_state("v")).next == ("speaks",)


async def test_only_the_requested_modes(saver: BaseCheckpointSaver) -> None:
    """A reader that reconnects sees the modes that it asks for, of those that were stored."""
    graph = graph_of(saver)
    parts = await read(graph.astream({"log": []}, "t", keep_events=True, **ASK))
    back = await read(graph.astream(None, "t", stream_mode="values", after=parts[0]["cursor"], version="v2"))
    assert [part["data"] for part in back] == [
        part["data"] for part in parts[1:] if part["type"] == "values" and not part["ns"]
    ]


async def test_without_keep_events_no_event_is_stored(saver: BaseCheckpointSaver) -> None:
    """Without `keep_events` no event is stored and parts have no cursor."""
    graph = graph_of(saver)
    parts = await read(graph.astream({"log": []}, "t", **ASK))
    assert {part["cursor"] for part in parts} == {None}
    assert await saver.events("t") == ()
