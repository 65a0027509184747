"""The durability modes as a caller sees them: which data is stored when, what a stream shows of it, and which graphs
inherit the mode."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict, TypeVar

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.errors import StorageError, UnstorableValueError
from checkpoint_savers.history import walk
from pregel_async import START, Command, StateGraph, entrypoint, interrupt, task
from pregel_async.errors import ConfigError, GraphDrained, GraphRecursionError
from pregel_async.types import Durability
from tests.helpers.passing_saver import WRITES, Through

pytestmark = pytest.mark.anyio

T = TypeVar("T")
Node = Callable[[Any], Awaitable[dict[str, Any]]]
MODES: list[Durability] = ["sync", "async", "exit"]


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def logging_node(name: str) -> Node:
    async def node(state: State) -> dict[str, Any]:
        return {"log": [name]}

    return node


def chain(saver: BaseCheckpointSaver | bool | None, *names: str, **nodes: Node) -> Any:
    """Return nodes in sequence, each of which logs its name or runs the given function."""
    graph = StateGraph(State).add_sequence([(name, nodes.get(name, logging_node(name))) for name in names])
    return graph.add_edge(START, names[0]).compile(saver)


async def steps(graph: Any, thread: Any = "t") -> list[int]:
    """Return the supersteps of the stored checkpoints, newest first."""
    return [each.metadata["step"] async for each in graph.aget_state_history(thread)]


async def stored(graph: Any, step: int) -> None:
    """Wait until a superstep is stored."""
    with anyio.fail_after(30):
        while step not in await steps(graph):
            await anyio.lowlevel.checkpoint()


class ControlledSaver(Through):
    """A saver that lists the writing verbs, waits at a gate, and fails on request.

    Attributes:
        verbs: the writing verbs that were called.
        gate: an event that commits wait for; None for no wait.
        reached: set when a commit waits.
        failing: the exception that commits raise; None for none.
    """

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.verbs: list[str] = []
        self.gate: anyio.Event | None = None
        self.reached = anyio.Event()
        self.failing: Exception | None = None

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if verb in WRITES:
            self.verbs.append(verb)
        if verb == "commit":
            if self.gate is not None:
                self.reached.set()
                await self.gate.wait()
            if self.failing is not None:
                raise self.failing
        return await call()


async def test_exit_stores_one_checkpoint() -> None:
    """A successful run stores one checkpoint, whose parent is the last one stored before it."""
    saver = ControlledSaver(InMemorySaver())
    graph = chain(saver, "a", "b", "c")
    for number in range(3):
        assert len((await graph.ainvoke({"log": ["in"]}, "t", durability="exit"))["log"]) == 4 * (number + 1)
    assert await steps(graph) == [13, 8, 3]
    assert saver.verbs == ["acquire", "commit"] * 3
    newest, before, _ = [each async for each in graph.aget_state_history("t")]
    assert newest.parent_config == before.config
    assert newest.next == () and newest.values["log"] == ["in", "a", "b", "c"] * 3


async def test_exit_between_other_modes() -> None:
    """The mode may change from call to call: the stored checkpoints form one chain."""
    graph = chain(InMemorySaver(), "a", "b")
    for mode in (*MODES, *MODES):
        await graph.ainvoke({"log": ["in"]}, "t", durability=mode)
    assert await steps(graph) == [22, *range(18, 10, -1), 10, *range(6, -2, -1)]
    assert (await graph.aget_state("t")).values["log"] == ["in", "a", "b"] * 6


@pytest.mark.parametrize(("mode", "counts"), [("sync", [3, 4, 5]), ("async", [3, 4, 5]), ("exit", [1, 2, 3])])
async def test_stops(mode: Durability, counts: list[int]) -> None:
    """A stop at a breakpoint stores the state of the run: after three stops an "exit" thread holds three
    checkpoints."""
    graph = chain(InMemorySaver(), "a", "b", "c", "d")
    given: Any = {"log": ["in"]}
    for count in counts:
        await graph.ainvoke(given, "t", durability=mode, interrupt_after="*")
        assert len(await steps(graph)) == count
        given = None
    assert (await graph.aget_state("t")).next == ("d",)
    assert (await graph.ainvoke(None, "t", durability=mode))["log"] == ["in", "a", "b", "c", "d"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_failure_keeps_finished_siblings(mode: Durability) -> None:
    """A failed run stores its open superstep: the failure is shown, and a finished sibling does not run again."""
    ran: list[str] = []
    done = anyio.Event()

    async def quick(state: State) -> dict[str, Any]:
        ran.append("quick")
        return {"log": ["quick"]}

    async def fails(state: State) -> dict[str, Any]:
        ran.append("fails")
        while "quick" not in ran:
            await anyio.lowlevel.checkpoint()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        if not done.is_set():
            raise LookupError("no")
        return {"log": ["fails"]}

    builder = StateGraph(State).add_node("a", logging_node("a")).add_node("quick", quick).add_node("fails", fails)
    builder.add_edge(START, "a").add_edge("a", "quick").add_edge("a", "fails")
    graph = builder.compile(InMemorySaver())
    with pytest.raises(LookupError):
        await graph.ainvoke({"log": ["in"]}, "t", durability=mode)
    state = await graph.aget_state("t")
    assert state.values["log"] == ["in", "a"] and [each.name for each in state.tasks if each.error] == ["fails"]
    assert await steps(graph) == ([1] if mode == "exit" else [1, 0, -1])
    done.set()
    assert (await graph.ainvoke(None, "t", durability=mode))["log"] == ["in", "a", "fails", "quick"]
    assert ran.count("quick") == 1
    past = [each async for each in graph.aget_state_history("t")][1]
    assert {each.name: each.result for each in past.tasks} == {"quick": {"log": ["quick"]}, "fails": {"log": ["fails"]}}


@pytest.mark.parametrize("mode", MODES)
async def test_questions(mode: Durability) -> None:
    """A question is stored before the caller gets it; a call with the answer continues from there."""

    async def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt("?"), interrupt("!")]}

    graph = chain(InMemorySaver(), "a", "ask", "b", ask=ask)
    given: Any = {"log": []}
    for question in ("?", "!"):
        result = await graph.ainvoke(given, "t", durability=mode)
        assert [each.value for each in result["__interrupt__"]] == [question]
        assert [each.value for each in (await graph.aget_state("t")).interrupts] == [question]
        given = Command(resume=question * 2)
    assert (await graph.ainvoke(given, "t", durability=mode))["log"] == ["a", "??", "!!", "b"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_limit(mode: Durability) -> None:
    """A run that reaches its limit has stored everything, and can be resumed from there."""
    graph = chain(InMemorySaver(), "a", "b", "c")
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}, "recursion_limit": 2}, durability=mode)
    assert (await graph.aget_state("t")).values["log"] == ["a", "b"]
    assert (await graph.ainvoke(None, "t", durability=mode))["log"] == ["a", "b", "c"]


@pytest.mark.parametrize("mode", MODES)
async def test_draining(mode: Durability) -> None:
    """A drained run has stored its work when it raises GraphDrained."""
    from pregel_async import RunControl

    control = RunControl()

    async def drain(state: State) -> dict[str, Any]:
        control.request_drain("enough")
        return {"log": ["b"]}

    graph = chain(InMemorySaver(), "a", "b", "c", b=drain)
    with pytest.raises(GraphDrained):
        await graph.ainvoke({"log": []}, "t", durability=mode, control=control)
    assert (await graph.aget_state("t")).values["log"] == ["a", "b"]
    assert (await graph.ainvoke(None, "t", durability=mode))["log"] == ["a", "b", "c"]


@pytest.mark.parametrize("mode", MODES)
async def test_the_end_of_a_process(mode: Durability) -> None:
    """A node that ends the process leaves the thread as a failure would."""

    async def leaves(state: State) -> dict[str, Any]:
        raise SystemExit(3)

    graph = chain(InMemorySaver(), "a", "b", b=leaves)
    with pytest.raises(SystemExit):
        await graph.ainvoke({"log": []}, "t", durability=mode)
    state = await graph.aget_state("t")
    assert state.values["log"] == ["a"] and state.next == ("b",)


@pytest.mark.parametrize("mode", MODES)
async def test_cancelled(mode: Durability) -> None:
    """A cancelled caller waits until finished tasks are stored: only the running node runs again."""
    ran: list[str] = []

    async def hangs(state: State) -> dict[str, Any]:
        ran.append("b")
        if len(ran) == 1:
            scope.cancel()
            await anyio.sleep_forever()
        return {"log": ["b"]}

    graph = chain(InMemorySaver(), "a", "b", b=hangs)
    with anyio.CancelScope() as scope:
        await graph.ainvoke({"log": []}, "t", durability=mode)
    assert scope.cancelled_caught
    assert (await graph.aget_state("t")).values["log"] == ["a"]
    assert (await graph.ainvoke(None, "t", durability=mode))["log"] == ["a", "b"]


@pytest.mark.parametrize("mode", MODES)
async def test_unstorable_values_are_refused_where_they_are_written(mode: Durability) -> None:
    """P11: in every mode the superstep with the unstorable value fails, its node is named, and no later node runs."""
    ran: list[str] = []

    async def writes(state: State) -> dict[str, Any]:
        return {"log": [object()]}

    async def after(state: State) -> dict[str, Any]:
        ran.append("c")
        return {}

    graph = chain(InMemorySaver(), "a", "b", "c", b=writes, c=after)
    with pytest.raises(UnstorableValueError) as caught:
        await graph.ainvoke({"log": []}, "t", durability=mode)
    assert any("'b'" in note for note in caught.value.__notes__) and not ran
    state = await graph.aget_state("t")
    assert state.values["log"] == ["a"] and [each.name for each in state.tasks if each.error] == ["b"]


async def test_subgraphs_store_nothing_with_exit_on_success() -> None:
    """A successful run stores one checkpoint in total, whatever its subgraphs did; a subgraph that keeps its state
    stores it once per run."""
    saver = InMemorySaver()
    inner = chain(None, "i", "j")
    keeps = chain(True, "k", "l")
    builder = StateGraph(State).add_sequence([("x", inner), ("y", keeps), ("z", keeps)]).add_edge(START, "x")
    graph = builder.compile(saver)
    for _ in range(2):
        await graph.ainvoke({"log": []}, "t", durability="exit")
    found = [header.ns async for header, _, _ in walk(saver, "t", None)]
    assert sorted(found) == ["", "", "y", "y", "z", "z"]


@pytest.mark.parametrize("stops", [False, True])
async def test_one_transaction_for_all_graphs_with_exit(stops: bool) -> None:
    """P4, P5: a run that ends, asks or fails stores the checkpoints and records of all its graphs by one commit."""

    async def asks(state: State) -> dict[str, Any]:
        return {"log": [interrupt("?")]} if stops else {}

    saver = ControlledSaver(InMemorySaver())
    keeps, inner = chain(True, "k"), chain(None, "i", "j", j=asks)
    builder = StateGraph(State).add_node("keeps", keeps).add_node("inner", inner)
    graph = builder.add_edge(START, "keeps").add_edge(START, "inner").compile(saver)
    await graph.ainvoke({"log": []}, "t", durability="exit")
    assert [verb for verb in saver.verbs if verb not in ("acquire", "release")] == ["commit"]
    spaces = {header.ns.partition(":")[0] async for header, _, _ in walk(saver, "t", None)}
    assert spaces == {"", "keeps", "inner"} if stops else {"", "keeps"}


async def test_a_saver_that_stores_one_namespace_at_a_time() -> None:
    """P3: with "exit", a saver that does not store several namespaces in one transaction is refused when a subgraph is
    called, before the subgraph runs. Graphs without subgraphs, and other modes, are not."""

    class OneNamespace(InMemorySaver):
        commits_others = False

    ran: list[str] = []

    async def runs(state: State) -> dict[str, Any]:
        ran.append("i")
        return {}

    saver = OneNamespace()
    outer = chain(Through(saver), "a", "x", x=chain(None, "i", i=runs))
    with pytest.raises(ConfigError, match=r"one transaction, which PassingSaver does not offer.*commits_others = True"):
        await outer.ainvoke({"log": []}, "t", durability="exit")
    assert not ran
    await outer.ainvoke(None, "t")
    assert ran == ["i"]
    await chain(saver, "a").ainvoke({"log": []}, "u", durability="exit")


@pytest.mark.parametrize("mode", MODES)
async def test_a_subgraph_that_keeps_its_state(mode: Durability) -> None:
    """A subgraph that keeps its state continues from call to call within a run and from run to run, alike in every
    mode."""

    class Own(TypedDict, total=False):
        seen: Annotated[int, operator.add]
        log: Annotated[list[str], operator.add]

    async def adds(state: Own) -> dict[str, Any]:
        seen.append(state.get("seen", 0))
        return {"seen": 1}

    seen: list[int] = []
    failed: list[str] = []
    inner = StateGraph(Own).add_node("adds", adds).add_edge(START, "adds").compile(checkpointer=True)

    async def sub(state: State) -> dict[str, Any]:
        await inner.ainvoke({})
        if len(seen) == 5 and not failed:
            failed.append("once")
            raise LookupError("once")
        return {"log": ["s"]}

    builder: Any = StateGraph(State).add_node("sub", sub).add_edge(START, "sub")
    builder.add_conditional_edges("sub", lambda state: "sub" if len(state["log"]) % 3 else "__end__")
    graph = builder.compile(InMemorySaver())
    await graph.ainvoke({"log": []}, "t", durability=mode)
    with pytest.raises(LookupError):
        await graph.ainvoke({"log": []}, "t", durability=mode)
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": "sub"}}
    assert (await graph.aget_state(where)).values["seen"] == 5
    await graph.ainvoke(None, "t", durability=mode)
    assert seen == [0, 1, 2, 3, 4, 5]  # its work before the failure is not repeated
    assert (await graph.aget_state(where)).values["seen"] == 6
    # A branch from before the failure begins with the subgraph's state of that moment.
    before = [each async for each in graph.aget_state_history("t") if len(each.values["log"]) == 4]
    await graph.ainvoke(None, before[0].config, durability=mode)
    assert seen[6:] == [4, 5]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keeps", [None, True])
async def test_a_run_that_stops_in_a_subgraph_resumes_in_it(mode: Durability, keeps: bool | None) -> None:
    """The state of a subgraph is stored where the run stops in it, by a question or a failure: its finished nodes do
    not run again."""
    ran: list[str] = []

    async def first(state: State) -> dict[str, Any]:
        ran.append("first")
        return {"log": ["first"]}

    async def asks(state: State) -> dict[str, Any]:
        ran.append("asks")
        if len(ran) < 3:
            raise LookupError("not yet")
        return {"log": [interrupt("?")]}

    inner = chain(keeps, "first", "asks", first=first, asks=asks)
    middle = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    builder = StateGraph(State).add_node("a", logging_node("a")).add_node("middle", middle).add_edge(START, "a")
    graph = builder.add_edge("a", "middle").compile(InMemorySaver())
    with pytest.raises(LookupError):
        await graph.ainvoke({"log": []}, "t", durability=mode)
    assert (await graph.ainvoke(None, "t", durability=mode))["__interrupt__"][0].value == "?"
    await graph.ainvoke(Command(resume="yes"), "t", durability=mode)
    assert ran == ["first", "asks", "asks", "asks"]
    assert (await graph.aget_state("t")).values["log"][-1] == "yes"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["root", "middle"])
async def test_a_fork_that_is_cancelled_in_a_subgraph(mode: Durability, place: str) -> None:
    """P5, P7: if a fork of the root graph or of a subgraph is cancelled while a subgraph in it runs, a resume continues
    in that subgraph, although the forked graphs have finished no superstep themselves."""
    ran: list[str] = []
    hangs: list[anyio.Event] = []

    async def first(state: State) -> dict[str, Any]:
        ran.append("first")
        return {"log": ["first"]}

    async def second(state: State) -> dict[str, Any]:
        for reached in hangs:
            reached.set()
            await anyio.sleep_forever()
        return {"log": ["second"]}

    middle = chain(None, "before", "inner", inner=chain(None, "first", "second", first=first, second=second))
    graph = chain(InMemorySaver(), "a", "middle", middle=middle)
    await graph.ainvoke({"log": []}, "t")
    if place == "root":
        wanted, history = "middle", graph.aget_state_history("t")
    else:
        ns = {header.ns async for header, _, _ in walk(graph.checkpointer, "t", None) if header.ns.count("|") == 0}
        where = {"configurable": {"thread_id": "t", "checkpoint_ns": max(ns)}}
        wanted, history = "inner", graph.aget_state_history(where)
    (start,) = [each.config async for each in history if each.next == (wanted,)]
    ran.clear()
    hangs.append(anyio.Event())
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await graph.ainvoke(None, start, durability=mode)

        group.start_soon(run)
        await hangs[0].wait()
        group.cancel_scope.cancel()
    hangs.clear()
    done = await graph.ainvoke(None, "t", durability=mode)
    assert ran == ["first"] and done["log"][-2:] == ["first", "second"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_finished_node_of_a_subgraph_does_not_run_again(mode: Durability) -> None:
    """P5: a node of a subgraph that has finished when its sibling asks is recorded, in every mode: the resume does not
    run it again."""
    ran: list[str] = []

    async def works(state: State) -> dict[str, Any]:
        ran.append("works")
        return {"log": ["worked"]}

    async def asks(state: State) -> dict[str, Any]:
        return {"log": [interrupt("?")]}

    inner = StateGraph(State).add_node("works", works).add_node("asks", asks)
    middle = chain(None, "m", m=inner.add_edge(START, "works").add_edge(START, "asks").compile())
    graph = chain(InMemorySaver(), "x", x=middle)
    await graph.ainvoke({"log": []}, "t", durability=mode)
    done = await graph.ainvoke(Command(resume="answered"), "t", durability=mode)
    assert sorted(done["log"]) == ["answered", "worked"] and ran == ["works"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_caught_failure_of_a_subgraph(mode: Durability) -> None:
    """A node may catch the failure of a graph that it runs, and call it again: the graph continues where it failed."""
    ran: list[str] = []

    async def fails(state: State) -> dict[str, Any]:
        ran.append("fails")
        if ran.count("fails") == 1:
            raise LookupError("once")
        return {"log": ["second"]}

    async def first(state: State) -> dict[str, Any]:
        ran.append("first")
        return {"log": ["first"]}

    saver = InMemorySaver()
    inner = chain(None, "first", "fails", first=first, fails=fails)

    async def calls(state: State) -> dict[str, Any]:
        try:
            return await inner.ainvoke({"log": []})
        except LookupError:
            return {"log": ["caught"]}

    graph = chain(saver, "a", "calls", calls=calls)
    assert (await graph.ainvoke({"log": []}, "t", durability=mode))["log"] == ["a", "caught"]
    if mode == "exit":
        assert [header.ns async for header, _, _ in walk(saver, "t", None)] == [""]


async def test_which_graphs_inherit_the_mode() -> None:
    """A graph that a node runs has the durability of the run around it; naming the same mode is accepted, another one
    is an error; a run on its own thread has its own mode."""
    saver = ControlledSaver(InMemorySaver())
    inner = chain(None, "i")
    own = chain(InMemorySaver(), "o", "p")
    given: list[Any] = [None]

    async def runs(state: State) -> dict[str, Any]:
        await inner.ainvoke({"log": []}, durability=given[0])
        await own.ainvoke({"log": []}, "another")
        return {}

    graph = chain(saver, "runs", runs=runs)
    await graph.ainvoke({"log": []}, "t", durability="exit")
    given[0] = "exit"
    await graph.ainvoke({"log": []}, "t", durability="exit")
    assert saver.verbs == ["acquire", "commit"] * 2
    assert len(await steps(own, "another")) == 8
    given[0] = "sync"
    with pytest.raises(ConfigError, match="durability='exit'"):
        await graph.ainvoke({"log": []}, "t", durability="exit")


async def test_a_mode_needs_a_saver() -> None:
    """A durability mode without a saver is an error, and so is an unknown mode."""
    for mode in MODES:
        with pytest.raises(ConfigError, match="no checkpointer"):
            await chain(None, "a").ainvoke({"log": []}, durability=mode)
    unknown: Any = "never"
    with pytest.raises(ConfigError, match="known are sync, async, exit"):
        await chain(InMemorySaver(), "a").ainvoke({"log": []}, "t", durability=unknown)


@pytest.mark.parametrize("mode", MODES)
async def test_workflows(mode: Durability) -> None:
    """Tasks called by an entrypoint do not run again after a failure, in any mode."""
    ran: list[int] = []

    @task
    async def double(number: int) -> int:
        ran.append(number)
        return number * 2

    @entrypoint(InMemorySaver())
    async def flow(numbers: list[int]) -> int:
        total = sum([await double(number) for number in numbers])
        if len(ran) == 2 and not failed:
            failed.append(1)
            raise LookupError("once")
        return total

    failed: list[int] = []
    with pytest.raises(LookupError):
        await flow.ainvoke([1, 2], "t", durability=mode)
    assert await flow.ainvoke(None, "t", durability=mode) == 6
    assert ran == [1, 2]


async def test_storing_overlaps_with_the_next_superstep() -> None:
    """While a slow saver stores a superstep, the next superstep's node runs; the one after that waits for the
    commit."""
    saver = ControlledSaver(InMemorySaver())
    gate = anyio.Event()
    ran: list[str] = []

    async def a(state: State) -> dict[str, Any]:
        await stored(graph, 0)
        saver.gate = gate
        return {"log": ["a"]}

    async def b(state: State) -> dict[str, Any]:
        with anyio.fail_after(30):
            await saver.reached.wait()  # the commit of a's superstep is in progress
        ran.append("b")
        return {"log": ["b"]}

    async def c(state: State) -> dict[str, Any]:
        ran.append("c")
        assert gate.is_set()
        return {"log": ["c"]}

    graph = chain(saver, "a", "b", "c", a=a, b=b, c=c)

    async def let_go() -> None:
        while "b" not in ran:
            await anyio.lowlevel.checkpoint()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert ran == ["b"]  # one finished superstep at most is at risk
        gate.set()

    async with anyio.create_task_group() as group:
        group.start_soon(let_go)
        await graph.ainvoke({"log": []}, "t", durability="async")
    assert ran == ["b", "c"] and await steps(graph) == [3, 2, 1, 0, -1]


@pytest.mark.parametrize("mode", MODES)
async def test_failing_storage(mode: Durability) -> None:
    """The run ends with the storage's error, which says what is not stored; no node starts once it is known; when
    storage works again, the thread continues from its head."""
    saver = ControlledSaver(InMemorySaver())
    ran: list[str] = []

    def runs(name: str) -> Node:
        async def node(state: State) -> dict[str, Any]:
            ran.append(name)
            if name == "b" and mode != "exit":
                await stored(graph, 1)
            if name == "b":
                saver.failing = StorageError("no disk") if len(ran) < 3 else None
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            return {"log": [name]}

        return node

    graph = chain(saver, *"abcde", **{name: runs(name) for name in "abcde"})
    with pytest.raises(StorageError, match="no disk") as caught:
        await graph.ainvoke({"log": []}, "t", durability=mode)
    stood = {
        "sync": "superstep 2 finished and is not stored; the thread is at superstep 1",
        "async": "superstep 2 finished and is not stored; the thread is at superstep 1",
        "exit": "superstep 5 finished and is not stored; nothing is",
    }
    assert caught.value.__notes__ == [stood[mode]]
    assert ran in {"sync": (["a", "b"],), "async": (["a", "b", "c"], ["a", "b"]), "exit": ([*"abcde"],)}[mode]
    saver.failing = None
    before = (await graph.aget_state("t")).values.get("log", [])
    given = None if before else {"log": []}
    assert (await graph.ainvoke(given, "t", durability=mode))["log"] == list("abcde")


async def test_a_commit_that_fails_while_a_node_runs_stops_the_run() -> None:
    """The running node may finish, and nothing else starts: no sibling graph, no next node."""
    saver = ControlledSaver(InMemorySaver())
    ran: list[str] = []

    async def b(state: State) -> dict[str, Any]:
        ran.append("b")
        with anyio.fail_after(30):
            await saver.reached.wait()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        try:
            await inner.ainvoke({"log": []})
        except StorageError:
            ran.append("refused")
        return {"log": ["b"]}

    async def a(state: State) -> dict[str, Any]:
        await stored(graph, 0)
        saver.gate, saver.failing = anyio.Event(), StorageError("no disk")
        saver.gate.set()
        return {"log": ["a"]}

    async def inside(state: State) -> dict[str, Any]:
        ran.append("inside")
        return {}

    inner = chain(None, "inside", inside=inside)
    graph = chain(saver, "a", "b", "c", a=a, b=b)
    with pytest.raises(StorageError, match="no disk") as caught:
        await graph.ainvoke({"log": ["in"]}, "t", durability="async")
    assert ran == ["b", "refused"]
    assert "superstep 1 finished and is not stored; the thread is at superstep 0" in caught.value.__notes__
    saver.failing = None
    state = await graph.aget_state("t")
    assert state.values["log"] == ["in"] and state.next == ("a",)


async def test_no_node_starts_once_storing_has_failed() -> None:
    """P4: the commit of a superstep fails while the run waits for its reader: the next superstep does not start."""
    saver = ControlledSaver(InMemorySaver())
    ran: list[str] = []

    async def a(state: State) -> dict[str, Any]:
        await stored(graph, 0)
        saver.failing = StorageError("no disk")
        return {"log": ["a"]}

    async def b(state: State) -> dict[str, Any]:
        ran.append("b")
        return {"log": ["b"]}

    graph = chain(saver, "a", "b", a=a, b=b)
    modes: Any = ["updates", "values"]
    with pytest.raises(StorageError, match="no disk"):
        async for _ in graph.astream({"log": []}, "t", durability="async", stream_mode=modes, capacity=1):
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
    assert ran == []


@pytest.mark.parametrize("mode", MODES)
async def test_committed_is_never_ahead(mode: Durability) -> None:
    """Each part says what is stored when it is streamed, and not more; the value never decreases; the last part names
    the last superstep."""
    saver = InMemorySaver()
    graph = chain(saver, "a", "b", "c", "d")
    seen_commits: list[int | None] = []
    shown: list[int] = []
    stream = graph.astream(
        {"log": ["in"]}, "t", durability=mode, stream_mode=["updates", "checkpoints"], version="v2", capacity=1
    )
    async for part in stream:
        on_disk = max(await steps(graph), default=None)
        assert part["committed"] is None or (on_disk is not None and part["committed"] <= on_disk)
        seen_commits.append(part["committed"])
        if part["type"] == "checkpoints":
            shown.append(part["step"])
    assert shown == [-1, 0, 1, 2, 3, 4]  # each superstep is streamed in every mode
    known = [each for each in seen_commits if each is not None]
    assert known == sorted(known) and seen_commits[-1] == 4
    if mode == "exit":
        assert seen_commits == [None] * (len(seen_commits) - 2) + [4, 4]
    if mode == "sync":
        assert None not in seen_commits


async def test_live_parts_are_not_held_back() -> None:
    """With "exit" an update is streamed when it happens, long before it is stored."""
    saver = ControlledSaver(InMemorySaver())
    read = anyio.Event()

    async def b(state: State) -> dict[str, Any]:
        with anyio.fail_after(30):
            await read.wait()
        return {"log": ["b"]}

    graph = chain(saver, "a", "b", b=b)
    async for chunk in graph.astream({"log": []}, "t", durability="exit", stream_mode="updates"):
        if "a" in chunk:
            assert saver.verbs == ["acquire"]
            read.set()
