"""Time travel: replay, forks, branches and their tips, in subgraphs too."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, StorageError, ThreadBusyError
from pregel_async import START, Command, Interrupt, StateGraph, StateSnapshot, interrupt
from pregel_async.errors import CheckpointNotFoundError, ConfigError, InvalidResumeError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int


class Own(TypedDict, total=False):
    own: Annotated[list[str], operator.add]


class Oops(Exception):
    """A user's own exception."""


class Switches:
    """Switches for the nodes that fail, and counts of what ran."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.ran: Counter[str] = Counter()

    def node(self, name: str, key: str = "log") -> Any:
        async def call(state: Any) -> dict[str, Any]:
            self.ran[name] += 1
            if name in self.broken:
                raise Oops(name)
            return {key: [name]}

        return call

    def asks(self, name: str, key: str = "log") -> Any:
        async def call(state: Any) -> dict[str, Any]:
            self.ran[name] += 1
            return {key: [f"{name}:{interrupt(name)}"]}

        return call


@pytest.fixture
def switches() -> Switches:
    return Switches()


def chain(*nodes: tuple[str, Any], schema: Any = State) -> StateGraph[Any]:
    """Nodes one after another, from START."""
    return StateGraph(schema).add_sequence(list(nodes)).add_edge(START, nodes[0][0])


def graph_node(graph: Any, switches: Switches, name: str) -> Any:
    """Return a node that runs a graph with its own state, and logs it."""

    async def call(state: Any) -> dict[str, Any]:
        switches.ran[name] += 1
        return {"log": [f"{name}({'/'.join((await graph.ainvoke({'own': []}))['own'])})"]}

    return call


async def history(graph: Any, config: Any = "t", **how: Any) -> list[StateSnapshot]:
    return [state async for state in graph.aget_state_history(config, **how)]


async def before(graph: Any, *names: str, config: Any = "t") -> StateSnapshot:
    """Return the newest state after which the given nodes are next."""
    return [state for state in await history(graph, config) if state.next == names][0]


def id_of(state: StateSnapshot) -> str:
    found: str = state.config["configurable"]["checkpoint_id"]
    return found


def ids(result: Any) -> list[str]:
    return [asked.id for asked in result["__interrupt__"]]


def asked(result: Any) -> list[Any]:
    return [asked.value for asked in result["__interrupt__"]]


async def shape(graph: Any) -> list[tuple[str, int | None]]:
    """Return for each checkpoint, oldest first, its source and which its parent is."""
    states = (await history(graph))[::-1]
    places = {id_of(state): place for place, state in enumerate(states)}
    parents = [state.parent_config and state.parent_config["configurable"]["checkpoint_id"] for state in states]
    return [
        (state.metadata["source"], None if parent is None else places[parent])
        for state, parent in zip(states, parents, strict=True)
    ]


def abc(switches: Switches, saver: Any) -> Any:
    return chain(*[(name, switches.node(name)) for name in "abc"]).compile(saver)


RUN = [("input", None), ("loop", 0), ("loop", 1), ("loop", 2), ("loop", 3)]
"""The shape of one run of three nodes: the input, the hidden start, and each node."""


async def test_replay_from_each_checkpoint(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A replay runs again the supersteps after a checkpoint, and none before; history only grows, by a branch that
    starts with a fork."""
    for place, again in enumerate(["abc", "abc", "bc", "c"]):
        graph, config = abc(switches, saver), f"t{place}"
        assert (await graph.ainvoke({"n": 1}, config))["log"] == ["a", "b", "c"]
        old = await history(graph, config)
        state = old[::-1][place]
        switches.ran.clear()
        assert await graph.ainvoke(None, state.config) == {"log": ["a", "b", "c"], "n": 1}
        assert switches.ran == Counter(again)
        new = await history(graph, config)
        assert new[len(new) - len(old) :] == old
        fork = new[len(new) - len(old) - 1]
        assert fork.metadata is not None
        assert (fork.metadata["source"], fork.values, fork.next) == ("fork", state.values, state.next)
        assert fork.parent_config is not None
        assert fork.parent_config["configurable"]["checkpoint_id"] == id_of(state)
        assert (await graph.aget_state(config)).config == new[0].config


async def test_task_ids_on_a_fork(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2: task ids are the same on a fork."""
    graph = abc(switches, saver)
    await graph.ainvoke({}, "t")
    await graph.ainvoke(None, (await before(graph, "b")).config)
    for name in "abc":
        assert len({task.id for state in await history(graph) for task in state.tasks if task.name == name}) == 1


async def test_replay_of_a_finished_tip_does_nothing(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A replay of a final checkpoint returns its values; nothing is stored."""
    graph = abc(switches, saver)
    first = await graph.ainvoke({}, "t")
    old = await history(graph)
    assert await graph.ainvoke(None, old[0].config) == first
    assert await graph.ainvoke(None, "t") == first
    assert await history(graph) == old
    await graph.ainvoke({}, "t")  # it is not the tip any more, and still final
    old = await history(graph)
    final = [state for state in old if state.next == ()][-1]
    assert await graph.ainvoke(None, final.config) == first
    assert await history(graph) == old
    assert switches.ran == {"a": 2, "b": 2, "c": 2}


async def test_replay_again_and_again(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Each replay is a branch of its own, also a replay of a replay's checkpoints."""
    graph = abc(switches, saver)
    await graph.ainvoke({}, "t")
    start = await before(graph, "b")
    for _ in range(3):
        assert (await graph.ainvoke(None, start.config))["log"] == ["a", "b", "c"]
    forks = [
        state for state in await history(graph) if state.metadata is not None and state.metadata["source"] == "fork"
    ]
    assert [state.parent_config["configurable"]["checkpoint_id"] for state in forks] == [id_of(start)] * 3
    assert (await graph.ainvoke(None, forks[1].config))["log"] == ["a", "b", "c"]
    assert switches.ran == {"a": 1, "b": 5, "c": 5}


async def test_recorded_results_are_run_again_by_a_replay(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5: a replay runs again what was recorded after the checkpoint; a resume of the head does not."""
    recorded = anyio.Event()

    async def fails(state: Any) -> dict[str, Any]:
        await recorded.wait()
        if switches.broken:
            raise Oops
        return {}

    async def a(state: Any) -> dict[str, Any]:
        switches.ran["a"] += 1
        return {"log": ["a"]}

    graph = chain(("s", switches.node("s")), ("a", a)).add_node("fails", fails).add_edge("s", "fails").compile(saver)
    switches.broken = {"fails"}
    with pytest.raises(Oops):
        async for chunk in graph.astream({}, "t"):
            if "a" in chunk:
                recorded.set()
    head = await graph.aget_state("t")
    assert head.next == ("fails",)
    switches.broken.clear()
    assert (await graph.ainvoke(None, head.config))["log"] == ["s", "a"]
    assert switches.ran["a"] == 1
    assert (await graph.ainvoke(None, head.config))["log"] == ["s", "a"]
    assert switches.ran["a"] == 2


async def test_fork(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """An update of an old state is a branch; running it adds no fork checkpoint."""
    graph = abc(switches, saver)
    await graph.ainvoke({}, "t")
    start = await before(graph, "c")
    config = await graph.aupdate_state(start.config, {"log": ["edited"]}, as_node="b")
    assert (await graph.aget_state("t")).next == ("c",)
    assert (await graph.ainvoke(None, config))["log"] == ["a", "b", "edited", "c"]
    assert await shape(graph) == [*RUN, ("update", 3), ("loop", 5)]
    assert switches.ran == {"a": 1, "b": 1, "c": 2}


async def test_new_input_from_an_old_state(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A new input at an old checkpoint starts a branch with that state; tasks pending there do not run."""
    graph = abc(switches, saver)
    await graph.ainvoke({"n": 1}, "t")
    start = await before(graph, "b")
    assert await graph.ainvoke({"n": 2}, start.config) == {"log": ["a", "a", "b", "c"], "n": 2}
    assert (await graph.aget_state("t")).values["n"] == 2
    assert (await shape(graph))[5:7] == [("input", 2), ("loop", 5)]
    assert switches.ran == {"a": 2, "b": 2, "c": 2}


async def test_a_branch_does_not_take_a_tasks_result_from_history(
    saver: BaseCheckpointSaver, switches: Switches
) -> None:
    """P3: a new input at an old checkpoint does not change what history shows of the superstep after it."""
    graph = abc(switches, saver)
    await graph.ainvoke({}, "t")
    start = await before(graph, "b")
    assert start.tasks[0].result == {"log": ["b"]}
    await graph.ainvoke({}, start.config)
    (again,) = [state for state in await history(graph) if id_of(state) == id_of(start)]
    assert again == start
    assert await graph.aget_state(start.config) == start


async def test_unknown_checkpoints(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """An unknown checkpoint id is an error, not an empty state, and nothing runs or is stored."""
    graph = abc(switches, saver)
    unknown = {"configurable": {"thread_id": "t", "checkpoint_id": "nope"}}
    for _ in range(2):
        for given in (None, {"n": 1}, Command(resume=1), Command(goto="b")):
            with pytest.raises(CheckpointNotFoundError):
                await graph.ainvoke(given, unknown)
        with pytest.raises(CheckpointNotFoundError):
            await graph.aget_state(unknown)
        with pytest.raises(CheckpointNotFoundError):
            await graph.aupdate_state(unknown, {"n": 1}, as_node="a")
        assert not switches.ran
        await graph.ainvoke({}, "t")
        switches.ran.clear()
    elsewhere = (await graph.aget_state("t")).config["configurable"]["checkpoint_id"]
    with pytest.raises(CheckpointNotFoundError):
        await graph.aget_state({"configurable": {"thread_id": "u", "checkpoint_id": elsewhere}})


async def test_a_tip_is_resumed_and_running_it_moves_the_head(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2, P5: an interrupted branch is left, another is run, and the first is resumed by its tip's id: with its own
    recorded results, and none of the other. The head is where the last run was."""
    graph = chain(("a", switches.node("a")), ("pair", switches.node("pair")), ("ask", switches.asks("ask")))
    graph = graph.add_node("side", switches.node("side")).add_edge("a", "side").compile(saver)
    first = await graph.ainvoke({}, "t")
    tip = await graph.aget_state("t")
    assert asked(first) == ["ask"]
    other = await graph.ainvoke(None, (await before(graph, "pair", "side")).config)
    assert ids(other) == ids(first)
    assert (await graph.aget_state("t")).config != tip.config
    assert (await graph.ainvoke(Command(resume="other"), "t"))["log"] == ["a", "pair", "side", "ask:other"]
    assert await graph.aget_state(tip.config) == tip
    count = len(await history(graph))
    ran = switches.ran.copy()
    result = await graph.ainvoke(Command(resume="first"), tip.config)
    assert result["log"] == ["a", "pair", "side", "ask:first"]
    assert switches.ran - ran == {"ask": 1}
    assert len(await history(graph)) == count + 1
    head = await graph.aget_state("t")
    assert head.values == result
    assert head.parent_config == tip.config


async def test_a_failed_tip_is_resumed_with_its_records(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2, P5: results recorded under the same task ids by different branches do not mix."""
    go = {"event": anyio.Event()}

    async def fails(state: Any) -> dict[str, Any]:
        await go["event"].wait()
        if switches.broken:
            raise Oops
        return {}

    async def another(state: Any) -> dict[str, Any]:
        switches.ran["another"] += 1
        return {"log": [f"another {switches.ran['another']}"]}

    graph = (
        chain(("s", switches.node("s")), ("another", another))
        .add_node("fails", fails)
        .add_edge("s", "fails")
        .compile(saver)
    )
    switches.broken = {"fails"}
    tips = []

    async def run(given: Any, config: Any) -> None:
        go["event"] = anyio.Event()
        with pytest.raises(Oops):
            async for chunk in graph.astream(given, config):
                if "another" in chunk:
                    go["event"].set()
        tips.append(await graph.aget_state("t"))

    await run({}, "t")
    await run(None, (await history(graph))[-1].config)
    first, second = tips
    assert [task.id for task in first.tasks] == [task.id for task in second.tasks]
    assert [state.tasks[0].result for state in tips] == [{"log": ["another 1"]}, {"log": ["another 2"]}]
    switches.broken.clear()
    assert (await graph.ainvoke(None, first.config))["log"] == ["s", "another 1"]
    assert (await graph.ainvoke(None, second.config))["log"] == ["s", "another 2"]
    assert (await graph.aget_state("t")).values["log"] == ["s", "another 2"]


async def test_a_tip_that_is_asked_again_becomes_the_head(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Running a branch moves the head there, even if the run makes no progress."""
    graph = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile(saver)
    await graph.ainvoke({}, "t")
    tip = await graph.aget_state("t")
    await graph.ainvoke(None, (await before(graph, "a")).config)
    assert (await graph.aget_state("t")).config != tip.config
    assert asked(await graph.ainvoke(None, tip.config)) == ["ask"]
    assert (await graph.aget_state("t")).config == tip.config
    assert (await graph.ainvoke(Command(resume=1), "t"))["log"] == ["a", "ask:1"]


async def test_two_writers_on_two_branches(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P6: a thread has one writer, whatever the branch, whatever the depth."""
    entered, leave = anyio.Event(), anyio.Event()

    async def slow(state: Any) -> None:
        if state.get("n") == 2:
            entered.set()
            await leave.wait()

    inside = chain(("slow", slow)).compile()
    graph = chain(("a", switches.node("a")), ("sub", inside)).compile(saver)
    await graph.ainvoke({"n": 1}, "t")
    old = await before(graph, "a")
    (sub,) = [state.tasks[0].state for state in await history(graph) if state.next == ("sub",)]
    deep = (await history(graph, sub))[1]
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {"n": 2}, "t")
        await entered.wait()
        for given, config in ((None, old.config), ({"n": 3}, old.config), (None, deep.config)):
            with pytest.raises(ThreadBusyError):
                await graph.ainvoke(given, config)
        with pytest.raises(ThreadBusyError):
            await graph.aupdate_state(old.config, {"n": 4}, as_node="a")
        leave.set()


async def test_a_replay_across_a_question_asks_again(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A replay does not use answers from after the checkpoint; the question has the same id, and each branch its own
    answer."""
    graph = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile(saver)
    first = await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(Command(resume=1), "t"))["log"] == ["a", "ask:1"]
    for name in ("a", "ask"):
        again = await graph.ainvoke(None, (await before(graph, name)).config)
        assert again["__interrupt__"] == first["__interrupt__"]
        with pytest.raises(InvalidResumeError):
            await graph.ainvoke(Command(resume={"0" * 32: 1}), "t")
        assert (await graph.ainvoke(Command(resume=name), "t"))["log"] == ["a", f"ask:{name}"]


async def test_an_answer_at_the_heads_own_id(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Naming the head's checkpoint is a normal resume and makes no branch."""
    graph = chain(("a", switches.node("a")), ("ask", switches.asks("ask"))).compile(saver)
    await graph.ainvoke({}, "t")
    head = await graph.aget_state("t")
    assert (await graph.ainvoke(Command(resume=1), head.config))["log"] == ["a", "ask:1"]
    assert {source for source, _ in await shape(graph)} == {"input", "loop"}
    with pytest.raises(InvalidResumeError):  # it was answered, and is not the tip any more
        await graph.ainvoke(Command(resume=2), head.config)


def three_levels(switches: Switches, checkpointer: Any = None) -> Any:
    low = chain(("la", switches.node("la", "own")), ("lb", switches.node("lb", "own")), schema=Own)
    mid = chain(
        ("ma", switches.node("ma", "own")),
        ("low", _adds(low.compile(checkpointer), switches)),
        ("mb", switches.node("mb", "own")),
        schema=Own,
    )
    return chain(
        ("ta", switches.node("ta")),
        ("mid", graph_node(mid.compile(checkpointer), switches, "mid")),
        ("tb", switches.node("tb")),
    )


def _adds(graph: Any, switches: Switches) -> Any:
    async def call(state: Any) -> dict[str, Any]:
        switches.ran["low"] += 1
        return {"own": [f"low({'/'.join((await graph.ainvoke({'own': []}))['own'])})"]}

    return call


WHOLE = ["ta", "mid(ma/low(la/lb)/mb)", "tb"]


async def levels(graph: Any) -> tuple[Any, Any]:
    """Return the namespaces of the graphs at the second and third level, of the thread's first run."""
    (mid,) = (await before(graph, "mid")).tasks
    ns = mid.state["configurable"]["checkpoint_ns"]
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": ns}}
    (low,) = (await before(graph, "low", config=config)).tasks
    return config, {"configurable": {"thread_id": "t", "checkpoint_ns": low.state["configurable"]["checkpoint_ns"]}}


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_through_the_levels(saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any) -> None:
    """A replay of the root runs the subgraphs again from their start; kept states have their values of that moment."""
    graph = three_levels(switches, checkpointer).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == WHOLE
    old = await before(graph, "mid")
    for _ in range(2):
        switches.ran.clear()
        assert (await graph.ainvoke(None, old.config))["log"] == WHOLE
        assert switches.ran == dict.fromkeys(["mid", "ma", "low", "la", "lb", "mb", "tb"], 1)


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_run_from_the_second_level(saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any) -> None:
    """A run from a subgraph's snapshot: the parent runs again from its state of that moment, and the subgraph from the
    snapshot."""
    graph = three_levels(switches, checkpointer).compile(saver)
    await graph.ainvoke({}, "t")
    mid, _ = await levels(graph)
    for name, again in (
        ("ma", ["mid", "ma", "low", "la", "lb", "mb", "tb"]),
        ("low", ["mid", "low", "la", "lb", "mb", "tb"]),
        ("mb", ["mid", "mb", "tb"]),
    ):
        old = await before(graph, name, config=mid)
        old = [state for state in await history(graph, mid) if state.next == (name,)][-1]
        switches.ran.clear()
        assert (await graph.ainvoke(None, old.config))["log"] == WHOLE, name
        assert switches.ran == dict.fromkeys(again, 1)
    assert [source for source, _ in await shape(graph)].count("fork") == 3


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_run_from_the_third_level(saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any) -> None:
    """At three levels."""
    graph = three_levels(switches, checkpointer).compile(saver)
    await graph.ainvoke({}, "t")
    _, low = await levels(graph)
    for name, again in (("la", ["la", "lb"]), ("lb", ["lb"])):
        old = [state for state in await history(graph, low) if state.next == (name,)][-1]
        switches.ran.clear()
        assert (await graph.ainvoke(None, old.config))["log"] == WHOLE
        assert switches.ran == dict.fromkeys(["mid", "low", *again, "mb", "tb"], 1)
    done = [state for state in await history(graph, low) if state.next == ()][-1]
    switches.ran.clear()
    assert (await graph.ainvoke(None, done.config))["log"] == WHOLE
    assert switches.ran == dict.fromkeys(["mid", "low", "mb", "tb"], 1)


@pytest.mark.parametrize("checkpointer", [None, True])
async def test_run_from_an_edit_of_a_subgraph(
    saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any
) -> None:
    """A subgraph's state is edited and the run continues from it."""
    graph = three_levels(switches, checkpointer).compile(saver)
    await graph.ainvoke({}, "t")
    _, low = await levels(graph)
    old = [state for state in await history(graph, low) if state.next == ("lb",)][-1]
    config = await graph.aupdate_state(old.config, {"own": ["edited"]}, as_node="la")
    assert (await graph.ainvoke(None, config))["log"] == ["ta", "mid(ma/low(la/edited/lb)/mb)", "tb"]


async def test_kept_states_have_branches(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2: a branch of the root has its own branch of a subgraph's kept state, and continues with that."""
    kept = chain(("k", switches.node("k", "own")), schema=Own).compile(True)
    graph = chain(("call", graph_node(kept, switches, "call"))).compile(saver)
    for n in (1, 2, 3):
        assert (await graph.ainvoke({}, "t"))["log"][-1] == f"call({'/'.join(['k'] * n)})"
    tip = await graph.aget_state("t")
    first_end = [state for state in await history(graph) if state.next == ()][-1]
    assert (await graph.ainvoke({}, first_end.config))["log"] == ["call(k)", "call(k/k)"]
    assert (await graph.ainvoke({}, "t"))["log"][-1] == "call(k/k/k)"
    assert (await graph.ainvoke({}, tip.config))["log"][-1] == "call(k/k/k/k)"
    replayed = [state for state in await history(graph) if state.next == ("call",)][-1]
    assert (await graph.ainvoke(None, replayed.config))["log"] == ["call(k)"]
    assert (await graph.ainvoke({}, "t"))["log"][-1] == "call(k/k)"


async def test_kept_states_continue_from_an_older_checkpoint(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """After a run from a checkpoint of a kept state, finished or not, the next run continues from there."""
    kept = chain(("k", switches.node("k", "own")), ("l", switches.node("l", "own")), schema=Own).compile(True)
    graph = chain(("call", graph_node(kept, switches, "call"))).compile(saver)
    for _ in range(2):
        await graph.ainvoke({}, "t")
    ns = {"configurable": {"thread_id": "t", "checkpoint_ns": "call"}}
    for names, log in ((("l",), "call(k/l)"), ((), "call(k/l)")):
        old = [state for state in await history(graph, ns) if state.next == names and state.values["own"][:1]][-1]
        assert (await graph.ainvoke(None, old.config))["log"] == [log]
        assert (await graph.ainvoke({}, "t"))["log"][-1] == "call(k/l/k/l)"


async def test_an_interrupted_branch_of_a_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2, P5: a branch that was left with an interrupted subgraph is resumed: the subgraph is where it was on that
    branch, though another branch has run it since under the same task ids."""
    for checkpointer in (None, True):
        switches.ran.clear()
        low = chain(("la", switches.node("la", "own")), ("ask", switches.asks("ask", "own")), schema=Own)
        mid = chain(("low", _adds(low.compile(checkpointer), switches)), schema=Own).compile(checkpointer)
        graph = chain(("ta", switches.node("ta")), ("mid", graph_node(mid, switches, "mid"))).compile(saver)
        thread = f"{checkpointer}"
        first = await graph.ainvoke({}, thread)
        tip = await graph.aget_state(thread, subgraphs=True)
        other = await graph.ainvoke(None, (await before(graph, "ta", config=thread)).config)
        assert ids(first) == ids(other)
        result = await graph.ainvoke(Command(resume="other"), thread)
        assert result["log"] == ["ta", "mid(low(la/ask:other))"]
        assert await graph.aget_state(tip.config, subgraphs=True) == tip
        result = await graph.ainvoke(Command(resume="first"), tip.config)
        assert result["log"] == ["ta", "mid(low(la/ask:first))"]
        assert (switches.ran["ta"], switches.ran["la"]) == (2, 2)
        assert (await graph.aget_state(thread)).values == result


async def test_a_replay_asks_again_in_a_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Questions of subgraphs are asked again too, with the same ids."""
    low = chain(("ask", switches.asks("ask", "own")), schema=Own).compile()
    graph = chain(("ta", switches.node("ta")), ("sub", graph_node(low, switches, "sub"))).compile(saver)
    first = await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume=1), "t")
    again = await graph.ainvoke(None, (await before(graph, "sub")).config)
    assert again["__interrupt__"] == first["__interrupt__"] == [Interrupt("ask", ids(first)[0])]
    assert (await graph.ainvoke(Command(resume=2), "t"))["log"] == ["ta", "sub(ask:2)"]


async def test_time_travel_in_an_interrupted_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """While a subgraph asks, a run can start from its older checkpoints, and the question comes again."""
    low = chain(("la", switches.node("la", "own")), ("ask", switches.asks("ask", "own")), schema=Own).compile()
    graph = chain(("sub", graph_node(low, switches, "sub"))).compile(saver)
    first = await graph.ainvoke({}, "t")
    config = (await graph.aget_state("t")).tasks[0].state
    old = await before(graph, "la", config=config)
    again = await graph.ainvoke(None, old.config)
    assert ids(again) == ids(first)
    assert switches.ran == {"sub": 2, "la": 2, "ask": 2}
    assert (await graph.ainvoke(Command(resume=1), "t"))["log"] == ["sub(la/ask:1)"]
    assert switches.ran == {"sub": 3, "la": 2, "ask": 3}


async def test_an_answer_to_a_snapshot_of_a_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Naming the checkpoint that is a subgraph's head is a normal resume too: nothing is forked."""
    low = chain(("la", switches.node("la", "own")), ("ask", switches.asks("ask", "own")), schema=Own).compile()
    graph = chain(("sub", graph_node(low, switches, "sub"))).compile(saver)
    first = await graph.ainvoke({}, "t")
    (task,) = (await graph.aget_state("t", subgraphs=True)).tasks
    assert isinstance(task.state, StateSnapshot)
    assert ids(await graph.ainvoke(None, task.state.config)) == ids(first)
    assert (await graph.ainvoke(Command(resume=1), task.state.config))["log"] == ["sub(la/ask:1)"]
    assert switches.ran == {"sub": 3, "la": 1, "ask": 3}
    assert {source for source, _ in await shape(graph)} == {"input", "loop"}
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume=2), task.state.config)


async def test_an_answer_after_an_edit_of_a_subgraph(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P8: the state of a subgraph that asks is edited, and the question answered: the edit counts."""
    low = chain(("la", switches.node("la", "own")), ("ask", switches.asks("ask", "own")), schema=Own).compile()
    for checkpointer in (None, True):
        graph = chain(("sub", graph_node(low.with_checkpointer(checkpointer), switches, "sub"))).compile(saver)
        for way in ("thread", "config"):
            thread = f"{checkpointer} {way}"
            await graph.ainvoke({}, thread)
            (task,) = (await graph.aget_state(thread, subgraphs=True)).tasks
            assert isinstance(task.state, StateSnapshot)
            config = await graph.aupdate_state(task.state.config, {"own": ["edited"]}, as_node="la")
            again = await graph.ainvoke(None, thread if way == "thread" else config)
            result = await graph.ainvoke(Command(resume={ids(again)[0]: 1}), thread)
            assert result["log"] == ["sub(la/edited/ask:1)"]


async def test_run_from_a_finished_subgraph_in_history(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """The config of a finished task's subgraph, as history shows it, can be read and run from, whichever branch has run
    it since."""
    low = chain(("la", switches.node("la", "own")), schema=Own).compile()
    graph = chain(("sub", graph_node(low, switches, "sub")), ("tb", switches.node("tb"))).compile(saver)
    await graph.ainvoke({}, "t")
    old = await before(graph, "sub")
    await graph.ainvoke(None, old.config)
    (state,) = [state for state in await history(graph) if id_of(state) == id_of(old)]
    config = state.tasks[0].state
    assert isinstance(config, dict)
    assert (await graph.aget_state(config)).values == {"own": ["la"]}
    switches.ran.clear()
    assert (await graph.ainvoke(None, config))["log"] == ["sub(la)", "tb"]
    assert switches.ran == {"sub": 1, "tb": 1}


async def test_bad_checkpoints(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A namespace without its checkpoint, an unknown checkpoint, or no such graph: an error that says so, before
    anything runs or is stored."""
    graph = three_levels(switches).compile(saver)
    await graph.ainvoke({}, "t")
    mid, low = await levels(graph)
    snapshot = (await history(graph, low))[0]
    place = snapshot.config["configurable"]
    old = await history(graph)
    switches.ran.clear()
    with pytest.raises(ConfigError, match="whole config"):
        await graph.ainvoke(None, low)
    with pytest.raises(ConfigError, match="whole config"):
        await graph.ainvoke(
            None, {"configurable": {key: value for key, value in place.items() if key != "checkpoint_map"}}
        )
    with pytest.raises(CheckpointNotFoundError):
        await graph.ainvoke(None, {"configurable": {**place, "checkpoint_id": "nope"}})
    with pytest.raises(CheckpointNotFoundError):
        await graph.ainvoke(
            None, {"configurable": {**place, "checkpoint_map": {**place["checkpoint_map"], "": "nope"}}}
        )
    with pytest.raises(CheckpointNotFoundError):
        await graph.ainvoke(None, {"configurable": {**place, "checkpoint_ns": "nope"}})
    assert await history(graph) == old
    assert not switches.ran


@pytest.mark.parametrize("write", [1, 2, 3, 4])
async def test_a_crash_during_a_replay(
    saver: BaseCheckpointSaver, switches: Switches, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    """P4, P5: a replay's branch is stored before its subgraphs' checkpoints, so that it is found after a crash."""
    graph = three_levels(switches).compile(saver)
    await graph.ainvoke({}, "t")
    old = await before(graph, "mid")
    done = 0

    def crashing(call: Any) -> Any:
        async def write_and_crash(*args: Any, **kwargs: Any) -> None:
            nonlocal done
            if done < write:
                await call(*args, **kwargs)
                done += 1
            if done == write:
                raise StorageError("crashed")

        return write_and_crash

    with monkeypatch.context() as patch:
        patch.setattr(saver, "commit", crashing(saver.commit))
        patch.setattr(saver, "record", crashing(saver.record))
        switches.ran.clear()
        with pytest.raises(StorageError):
            await graph.ainvoke(None, old.config)
    head = await graph.aget_state("t")
    assert head.next == ("mid",)
    assert head.parent_config == old.config
    assert (await graph.ainvoke(None, "t"))["log"] == WHOLE
    for name in ("ma", "la", "lb", "mb", "tb"):
        assert switches.ran[name] == 1


async def test_the_shape_of_history(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2: after a run, a replay, a fork, a copy and a new input, history lists every branch, newest first, and each
    checkpoint's parent is the one it was made on."""
    graph = abc(switches, saver)
    await graph.ainvoke({}, "t")
    start = await before(graph, "b")
    await graph.ainvoke(None, start.config)
    assert await shape(graph) == [*RUN, ("fork", 2), ("loop", 5), ("loop", 6)]
    config = await graph.aupdate_state(start.config, {"log": ["e"]}, as_node="a")
    await graph.ainvoke(None, config)
    assert (await shape(graph))[8:] == [("update", 2), ("loop", 8), ("loop", 9)]
    config = await graph.aupdate_state(start.config, None, as_node="__copy__")
    await graph.ainvoke(None, config)
    assert (await shape(graph))[11:] == [("fork", 1), ("loop", 11), ("loop", 12)]
    await graph.ainvoke({}, start.config)
    assert (await shape(graph))[14:] == [("input", 2), ("loop", 14), ("loop", 15), ("loop", 16), ("loop", 17)]
    assert [state.metadata["step"] for state in await history(graph)][::-1][14:] == [2, 3, 4, 5, 6]
    parts = [
        await history(graph, limit=4),
        await history(graph, before=(await history(graph))[3].config),
    ]
    assert [*parts[0], *parts[1]] == await history(graph)


async def test_a_fork_has_the_updates_of_calls(saver: Any) -> None:
    """`Command(update=...)` on an open superstep is part of its state: a branch that starts there has it too, and keeps
    it when it is read and resumed later."""

    class State(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    def asks(state: State) -> State:
        return {"log": [interrupt("?")]}

    graph = StateGraph(State).add_node(asks).add_edge(START, "asks").compile(saver)
    await graph.ainvoke({"log": ["given"]}, "t")
    await graph.ainvoke(Command(update={"log": ["amended"]}), "t")
    open_state = await graph.aget_state("t")
    assert open_state.values == {"log": ["given", "amended"]}
    assert (await graph.ainvoke(Command(resume="first"), "t"))["log"] == ["given", "amended", "first"]
    asked = await graph.ainvoke(None, open_state.config)  # on a branch of its own
    assert asked["log"] == ["given", "amended"]
    assert (await graph.aget_state("t")).values == {"log": ["given", "amended"]}
    assert (await graph.ainvoke(Command(resume="second"), "t"))["log"] == ["given", "amended", "second"]
