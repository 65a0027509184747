"""Edits of a thread (`aupdate_state`): updates as a node, END, INPUT, `__copy__`, several at once; what the state shows
afterwards, and what runs next."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from checkpoint_savers.errors import StorageError, ThreadBusyError, UnstorableValueError
from checkpoint_savers.records import Commit, Lease
from pregel_async import (
    END,
    START,
    Command,
    NodeBuilder,
    Overwrite,
    Pregel,
    Runtime,
    Send,
    StateGraph,
    StateSnapshot,
    StateUpdate,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.channels import EphemeralValue, LastValue, Topic
from pregel_async.errors import (
    CheckpointNotFoundError,
    ConfigError,
    GraphRecursionError,
    InvalidInputError,
    InvalidResumeError,
    InvalidRouteError,
    InvalidUpdateError,
    SubgraphNotFoundError,
)
from pregel_async.managed import IsLastStep, RemainingSteps
from pregel_async.types import INPUT, RunnableConfig
from tests.helpers.passing_saver import Through

pytestmark = pytest.mark.anyio

COPY = "__copy__"
T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


class Oops(Exception):
    """A user's own exception."""


class Nodes:
    """Nodes that record which of them ran; some fail or ask on request."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.asks: set[str] = set()

    def __call__(self, name: str) -> Any:
        def call(state: Any) -> dict[str, Any]:
            self.ran.append(name)
            said = name
            if name in self.asks:
                said = f"{name}={interrupt(f'{name}?')}"
            if name in self.broken:
                raise Oops(name)
            return {"log": [said]}

        return call


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def chain(nodes: Nodes, *names: str) -> StateGraph[State]:
    made = StateGraph(State).add_sequence([(name, nodes(name)) for name in names])
    return made.add_edge(START, names[0])


def fan_out(nodes: Nodes, *between: str) -> StateGraph[State]:
    """Return `s`, then several concurrent nodes, then `j` when all have run."""
    made = chain(nodes, "s").add_node("j", nodes("j"))
    for name in between:
        made.add_node(name, nodes(name)).add_edge("s", name)
    return made.add_edge(list(between), "j")


def at(config: Any, thread: str = "t") -> Any:
    """Return a config with `thread`, the recursion limit, and any other settings given."""
    return {"configurable": {"thread_id": thread}, **config}


async def stopped(graph: Any, limit: int, given: Any = None, thread: str = "t") -> None:
    """Run until a limit of supersteps."""
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(given or {}, at({"recursion_limit": limit}, thread))


async def history(graph: Any, config: Any = "t", **arguments: Any) -> list[StateSnapshot]:
    return [state async for state in graph.aget_state_history(config, **arguments)]


def id_of(config: Any) -> Any:
    return config["configurable"]["checkpoint_id"]


def made_by(state: StateSnapshot) -> Any:
    assert state.metadata is not None
    return state.metadata["source"], state.metadata["step"]


def results(state: StateSnapshot) -> dict[str, Any]:
    return {each.name: each.result for each in state.tasks}


def comparable(state: StateSnapshot) -> Any:
    """Return a snapshot without the parts that differ between threads and times."""
    listed = [(each.name, each.path, each.result, each.error, len(each.interrupts)) for each in state.tasks]
    return state.values, state.next, listed


class WatchedSaver(Through):
    """A saver that passes every call on, and lets a test inspect and interrupt each one."""

    def __init__(self, inner: BaseCheckpointSaver) -> None:
        super().__init__(inner)
        self.commits: list[Commit] = []
        self.before: Callable[[str], Awaitable[None]] | None = None

    async def around(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        if self.before is not None:
            await self.before(verb)
        return await call()

    async def commit(self, lease: Lease, commit: Commit) -> None:
        self.commits.append(commit)
        await super().commit(lease, commit)


async def everything(graph: Any, thread: str = "t") -> Any:
    """Return everything that is stored of a thread, to check that an edit stored nothing."""
    saver = graph.checkpointer
    found = [state async for state in graph.aget_state_history(thread)]
    rows = await saver.scan(thread, None, limit=1000)
    return found, rows, [await saver.read(thread, row.ns, row.checkpoint_id) for row in rows]


async def test_a_fresh_thread_is_updated_as_its_start(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """On a fresh thread the update is the start's: step 0, no parent; the nodes after the start are next, in a graph of
    one node too."""
    for number, names in enumerate(("a", "ab")):
        graph = chain(nodes, *names).compile(saver, blocking=False)
        thread = f"t{number}"
        config = await graph.aupdate_state(thread, {"log": ["by hand"]})
        state = await graph.aget_state(thread)
        assert (state.values, state.next) == ({"log": ["by hand"]}, ("a",))
        assert state.config == config
        assert state.parent_config is None
        assert state.metadata is not None
        assert {key: state.metadata[key] for key in ("source", "step", "parents")} == {
            "source": "update",
            "step": 0,
            "parents": {},
        }
        assert await graph.ainvoke(None, thread) == {"log": ["by hand", *names]}
        assert [made_by(each) for each in await history(graph, thread)][::-1] == [
            ("update", 0),
            *(("loop", step + 1) for step in range(len(names))),
        ]


async def test_a_fresh_thread_as_a_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """As a named node, the update of a fresh thread is step 0 as well, and the nodes after that node are next."""
    graph = chain(nodes, "a", "b", "c").compile(saver, blocking=False)
    await graph.aupdate_state("t", {"log": ["A"]}, "a")
    state = await graph.aget_state("t")
    assert (state.values, state.next, made_by(state)) == ({"log": ["A"]}, ("b",), ("update", 0))
    assert await graph.ainvoke(None, "t") == {"log": ["A", "b", "c"]}


async def test_the_only_node(saver: BaseCheckpointSaver) -> None:
    """In a graph of one node, the update is that node's."""
    node = NodeBuilder().subscribe_only("in").do(lambda value: value + 1).write_to("out")
    graph = Pregel(
        nodes={"n": node},
        channels={"in": EphemeralValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        checkpointer=saver,
    )
    await graph.aupdate_state("t", 5)
    assert (await graph.aget_state("t")).values == {"out": 5}
    assert await graph.ainvoke(7, "t") == 8
    await graph.aupdate_state("t", 1)
    assert (await graph.aget_state("t")).values == {"out": 1}


async def test_the_node_that_ran_last(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Without as_node, the update is that of the one node that made the last superstep, so the nodes after it
    are next."""
    graph = chain(nodes, "a", "b", "c").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", {"log": ["by hand"]})
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["a", "by hand"]}, ("b",))
    assert await graph.ainvoke(None, "t") == {"log": ["a", "by hand", "b", "c"]}
    assert nodes.ran == ["a", "b", "c"]
    await graph.aupdate_state("t", {"log": ["at the end"]})
    assert (await graph.aget_state("t")).next == ()


async def test_several_tasks_of_one_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Sends of one node made the last superstep: that node is meant."""
    made = StateGraph(State).add_node("w", lambda arg: {"log": [f"w{arg}"]})
    made.add_conditional_edges(START, lambda state: [Send("w", number) for number in range(2)])
    graph = made.compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"log": ["by hand"]})
    assert (await graph.aget_state("t")).values == {"log": ["w0", "w1", "by hand"]}


async def test_an_ambiguous_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """When several nodes made the last superstep, or none, the update is refused and nothing is stored."""
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 2)
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match=r"ambiguous.*'a', 'b'.*as_node"):
        await graph.aupdate_state("t", {"log": ["?"]})
    assert await everything(graph) == before
    await graph.aupdate_state("t", {}, INPUT)
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match="as_node"):
        await graph.aupdate_state("t", {"log": ["?"]})
    assert await everything(graph) == before


async def test_an_unknown_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Bad input: an update as an unknown node raises an error that lists the nodes; a fresh thread leaves no trace."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    for as_node in ("unknown", "log", ""):
        with pytest.raises(InvalidUpdateError, match=r"there are a, b") as caught:
            await graph.aupdate_state("t", {"log": ["?"]}, as_node)
        assert caught.value.node == as_node
    assert await history(graph) == []
    assert await graph.ainvoke({}, "t") == {"log": ["a", "b"]}


async def test_inference_after_an_edit_that_changes_nothing(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update without values and node is attributed to no node: the inferred node after it is the one from before."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", None)
    await graph.aupdate_state("t", {"log": ["by hand"]})
    assert await graph.ainvoke(None, "t") == {"log": ["a", "by hand", "b"]}


async def test_a_pending_task_gets_its_result(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update as a node whose task is pending is recorded as that task's result: its siblings stay pending on the
    state they were planned on, the barrier closes when they have run, and task ids stay the same."""
    graph = fan_out(nodes, "a", "b", "c").compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await graph.aget_state("t")
    config = await graph.aupdate_state("t", {"log": ["B"]}, "b")
    state = await graph.aget_state("t")
    assert state.config == before.config == config, "no checkpoint of its own"
    assert len(await history(graph)) == 3
    assert (state.values, state.next) == ({"log": ["s"]}, ("a", "c"))
    assert results(state) == {"a": None, "b": {"log": ["B"]}, "c": None}
    assert [each.id for each in state.tasks] == [each.id for each in before.tasks]
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "B", "c", "j"]}
    assert Counter(nodes.ran) == {"s": 1, "a": 1, "c": 1, "j": 1}
    shown = await graph.aget_state(before.config)
    assert results(shown) == {"a": {"log": ["a"]}, "b": {"log": ["B"]}, "c": {"log": ["c"]}}
    assert [each.id for each in shown.tasks] == [each.id for each in before.tasks]
    assert [made_by(each)[0] for each in await history(graph)] == ["loop", "loop", "loop", "loop", "input"]


async def test_siblings_see_the_state_they_were_planned_on(saver: BaseCheckpointSaver) -> None:
    """Rule 1: a sibling does not see the update, before or after it was stored; the next superstep does."""
    seen: list[Any] = []
    made = StateGraph(State).add_node("s", lambda state: {"note": "old"}).add_edge(START, "s")
    made.add_node("a", lambda state: {"note": "a"}).add_node("b", lambda state: seen.append(state["note"]))
    made.add_node("j", lambda state: seen.append(state["note"])).add_edge("s", "a").add_edge("s", "b")
    graph = made.add_edge(["a", "b"], "j").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", {"note": "new"}, "a")
    await graph.ainvoke(None, "t")
    assert seen == ["old", "new"]


async def test_the_last_pending_task_closes_the_superstep(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """When no task is left pending, the update makes the checkpoint: folded in plan order, not in that of the updates
    (rule 3); the nodes after it are next."""
    graph = fan_out(nodes, "a", "b", "c").compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await graph.aget_state("t")
    for name in "cab":
        config = await graph.aupdate_state("t", {"log": [name.upper()]}, name)
    state = await graph.aget_state("t")
    assert state.config == config
    assert (state.values, state.next) == ({"log": ["s", "A", "B", "C"]}, ("j",))
    assert made_by(state) == ("update", 2)
    assert state.parent_config == before.config
    assert results(await graph.aget_state(before.config)) == {name: {"log": [name.upper()]} for name in "abc"}
    assert await graph.ainvoke(None, "t") == {"log": ["s", "A", "B", "C", "j"]}
    assert nodes.ran == ["s", "j"]


async def test_with_a_recorded_result_of_a_sibling(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P5: a sibling with a result keeps it, and the failed task's error is gone once an edit sets its result: the
    superstep is closed."""
    nodes.broken = {"b"}
    done = anyio.Event()

    async def first(state: Any) -> dict[str, Any]:
        nodes.ran.append("a")
        done.set()
        return {"log": ["a"]}

    async def failing(state: Any) -> dict[str, Any]:
        await done.wait()
        result: dict[str, Any] = nodes("b")(state)
        return result

    made = chain(nodes, "s").add_node("a", first).add_node("b", failing).add_node("j", nodes("j"))
    graph = made.add_edge("s", "a").add_edge("s", "b").add_edge(["a", "b"], "j").compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    failed = await graph.aget_state("t")
    assert failed.next == ("b",)
    assert [each.error is None for each in failed.tasks] == [True, False]
    await graph.aupdate_state("t", {"log": ["B"]}, "b")
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.error) == ({"log": ["s", "a", "B"]}, ("j",), None)
    assert [each.error for each in (await graph.aget_state(failed.config)).tasks] == [None, None]
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "B", "j"]}
    assert nodes.ran == ["s", "a", "b", "j"]


async def test_pending_sends(saver: BaseCheckpointSaver) -> None:
    """When several tasks of one node are pending, task_id selects one; the others stay pending."""
    ran: list[int] = []

    def worker(number: int) -> dict[str, Any]:
        ran.append(number)
        return {"log": [f"w{number}"]}

    made = StateGraph(State).add_node("w", worker).add_node("s", lambda state: {}).add_edge(START, "s")
    made.add_conditional_edges("s", lambda state: [Send("w", number) for number in range(3)])
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await graph.aget_state("t")
    ids = [each.id for each in before.tasks]
    for task_id in (None, "nothing", ids[0][:-1]):
        with pytest.raises(InvalidUpdateError, match=ids[1]):
            await graph.aupdate_state("t", {"log": ["W"]}, "w", task_id)
    with pytest.raises(InvalidUpdateError, match="no task"):
        await graph.aupdate_state("t", {"log": ["W"]}, "s", ids[1])
    assert (await graph.aget_state("t")) == before
    await graph.aupdate_state("t", {"log": ["W1"]}, "w", ids[1])
    state = await graph.aget_state("t")
    assert [(each.id, each.result) for each in state.tasks] == [
        (ids[0], None),
        (ids[1], {"log": ["W1"]}),
        (ids[2], None),
    ]
    assert state.next == ("w", "w")
    with pytest.raises(InvalidUpdateError, match="no task"):
        await graph.aupdate_state("t", {"log": ["again"]}, "w", ids[1])
    assert await graph.ainvoke(None, "t") == {"log": ["w0", "W1", "w2"]}
    assert sorted(ran) == [0, 2]


async def test_several_updates_of_one_superstep(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Updates of one superstep are folded together; here two pending tasks get their results, and a third stays
    pending."""
    graph = fan_out(nodes, "a", "b", "c").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.abulk_update_state("t", [[StateUpdate({"log": ["C"]}, "c"), StateUpdate({"log": ["A"]}, "a")]])
    state = await graph.aget_state("t")
    assert (state.next, results(state)) == (("b",), {"a": {"log": ["A"]}, "b": None, "c": {"log": ["C"]}})
    assert await graph.ainvoke(None, "t") == {"log": ["s", "A", "b", "C", "j"]}


async def test_two_updates_for_one_task(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P3, rule 7: a task has one result: a second update as the same task is refused, and does not replace the
    first."""
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match=r"one result|twice"):
        await graph.abulk_update_state("t", [[StateUpdate({"log": ["1"]}, "a"), StateUpdate({"log": ["2"]}, "a")]])
    assert await everything(graph) == before


async def test_none_is_a_result(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """None as a named node is a result that changes nothing: a pending task is done, and the nodes after it are
    next."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", None, "b")
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["a"]}, ())
    assert nodes.ran == ["a"]


@pytest.mark.parametrize("empty", [{}, [], Command(goto=END), Command(), None], ids=str)
async def test_an_empty_result(empty: Any, saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A result that changes nothing is an update too, also for a node without edges."""
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 2)
    await graph.aupdate_state("t", empty, "j")
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["s", "a", "b"]}, ())


async def test_a_superstep_that_could_not_be_folded(saver: BaseCheckpointSaver) -> None:
    """P3: results that cannot be folded together can be corrected by edits, each as its node; no task runs again, and
    the failure is cleared."""
    ran: list[str] = []
    made = StateGraph(State)
    for name in "abc":
        made.add_node(name, lambda state, name=name: ran.append(name) or {"note": name, "log": [name]})
        made.add_edge(START, name)
    graph = made.add_node("j", lambda state: {"log": ["j"]}).add_edge(list("abc"), "j").compile(saver, blocking=False)
    with pytest.raises(InvalidUpdateError, match="'note' was written 3 times"):
        await graph.ainvoke({}, "t")
    failed = await graph.aget_state("t")
    assert failed.error is not None
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match="'note' was written 2 times"):
        await graph.aupdate_state("t", {"log": ["A"]}, "a")
    assert await everything(graph) == before
    await graph.abulk_update_state("t", [[StateUpdate({"log": ["C"]}, "c"), StateUpdate({"log": ["A"]}, "a")]])
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.error) == ({"log": ["A", "b", "C"], "note": "b"}, ("j",), None)
    closed = await graph.aget_state(failed.config)
    assert (closed.error, [each.id for each in closed.tasks]) == (None, [each.id for each in failed.tasks])
    assert results(closed) == {"a": {"log": ["A"]}, "b": {"note": "b", "log": ["b"]}, "c": {"log": ["C"]}}
    assert await graph.ainvoke(None, "t") == {"log": ["A", "b", "C", "j"], "note": "b"}
    assert sorted(ran) == ["a", "b", "c"]


async def test_pending_tasks_stay_pending(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update as any other node makes a checkpoint of its own, and the pending tasks stay pending."""
    graph = fan_out(nodes, "a", "b").add_node("x", nodes("x")).add_node("y", nodes("y")).add_edge("x", "y")
    graph = graph.compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await graph.aget_state("t")
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["s", "X"]}, ("a", "b", "y"))
    assert (made_by(state), state.parent_config) == (("update", 2), before.config)
    assert results(await graph.aget_state(before.config)) == {"a": None, "b": None}
    assert await graph.ainvoke(None, "t") == {"log": ["s", "X", "a", "b", "y", "j"]}
    assert Counter(nodes.ran) == {name: 1 for name in "sabyj"}


async def test_recorded_results_are_kept(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P5: the result of a finished sibling goes into the checkpoint that an update as another node makes: it is not
    lost, and the sibling does not run again."""
    nodes.asks = {"b"}
    graph = fan_out(nodes, "a", "b").add_node("x", nodes("x")).compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.interrupts) == ({"log": ["s", "a", "X"]}, ("b",), ())
    nodes.asks.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "X", "b", "j"]}
    assert Counter(nodes.ran) == {"s": 1, "a": 1, "b": 2, "j": 1}


async def test_an_update_on_top_of_a_recorded_result(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A finished sibling wrote the key that the update corrects: the update is applied after it."""
    nodes.asks = {"b"}
    made = chain(nodes, "s").add_node("a", lambda state: {"note": "wrong"}).add_node("b", nodes("b"))
    graph = made.add_edge("s", "a").add_edge("s", "b").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"note": "right"}, "s")
    state = await graph.aget_state("t")
    assert (state.values["note"], state.next) == ("right", ("a", "b")), "s leads to both, and was updated as"
    await graph.aupdate_state("t", None, "a")
    nodes.asks.clear()
    assert (await graph.ainvoke(None, "t"))["note"] == "right"


async def test_sends_stay_pending(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Pending sends stay pending with their arguments, in addition to the update's own sends."""
    made = StateGraph(State).add_node("w", lambda arg: {"log": [f"w{arg}"]}).add_node("s", lambda state: {})
    made.add_node("x", nodes("x")).add_conditional_edges("s", lambda state: [Send("w", 0), Send("w", 1)])
    made.add_conditional_edges("x", lambda state: Send("w", 2))
    graph = made.add_edge(START, "s").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    assert (await graph.aget_state("t")).next == ("w", "w", "w")
    assert await graph.ainvoke(None, "t") == {"log": ["X", "w0", "w1", "w2"]}


async def test_a_join_that_is_half_complete(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The starts that a barrier has seen stay seen over an update, and an update as its other start completes it."""
    made = chain(nodes, "s").add_node("a", nodes("a")).add_node("b", nodes("b")).add_node("c", nodes("c"))
    made.add_edge("s", "a").add_edge("s", "b").add_edge("b", "c").add_node("j", nodes("j")).add_edge(["a", "c"], "j")
    made.add_node("x", nodes("x"))
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 2)
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    assert (await graph.aget_state("t")).next == ("c",)
    await graph.aupdate_state("t", {"log": ["C"]}, "c")
    assert (await graph.aget_state("t")).next == ("j",)
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    assert (await graph.aget_state("t")).next == ("j",), "a complete one that waits for its node stays complete"
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "b", "X", "C", "X", "j"]}


async def test_deferred_nodes_stay_deferred(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Deferred nodes run at a tentative end: an update while a task is pending triggers none."""
    made = fan_out(nodes, "a", "b").add_node("d", nodes("d"), defer=True).add_edge("s", "d").add_node("x", nodes("x"))
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 2)
    assert (await graph.aget_state("t")).next == ("j",)
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    assert (await graph.aget_state("t")).next == ("j",)
    await graph.aupdate_state("t", {"log": ["J"]}, "j")
    assert (await graph.aget_state("t")).next == ("d",)
    await graph.aupdate_state("t", {"log": ["X"]}, "x")
    assert (await graph.aget_state("t")).next == ("d",)
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "b", "X", "J", "X", "d"]}


async def test_deferred_nodes_wait_for_all_of_an_edit(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The last pending task and another node are updated in one superstep: a deferred node waits for the nodes after
    the other one."""
    made = chain(nodes, "s", "a").add_node("d", nodes("d"), defer=True).add_edge("s", "d")
    made.add_node("x", nodes("x")).add_node("y", nodes("y")).add_edge("x", "y")
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.abulk_update_state("t", [[StateUpdate({"log": ["A"]}, "a"), StateUpdate({"log": ["X"]}, "x")]])
    assert (await graph.aget_state("t")).next == ("y",)
    assert await graph.ainvoke(None, "t") == {"log": ["s", "A", "X", "y", "d"]}


async def test_channels_of_one_superstep(saver: BaseCheckpointSaver) -> None:
    """A pending node still sees its values of an Ephemeral or a Topic, once; of two nodes that one channel triggers,
    the finished one does not run again."""
    ran: list[Any] = []
    failing = [True]
    done = anyio.Event()

    def first(value: Any) -> None:
        ran.append(("a", value))
        done.set()

    async def second(value: Any) -> None:
        await done.wait()
        if failing:
            raise Oops
        ran.append(("b", value))

    graph = Pregel(
        nodes={
            "a": NodeBuilder().subscribe_to("go", "topic").do(first),
            "b": NodeBuilder().subscribe_to("go", "topic").do(second),
            "x": NodeBuilder().subscribe_to("never").do(lambda value: value).write_to("out"),
        },
        channels={
            "go": EphemeralValue(int),
            "topic": Topic(int),
            "never": EphemeralValue(int),
            "out": LastValue(int),
        },
        input_channels=["go", "topic"],
        output_channels="out",
        checkpointer=saver,
        blocking=False,
    )
    with pytest.raises(Oops):
        await graph.ainvoke({"go": 1, "topic": [2, 3]}, "t")
    assert (await graph.aget_state("t")).next == ("b",)
    await graph.aupdate_state("t", 5, "x")
    await graph.aupdate_state("t", 6, "x")
    assert (await graph.aget_state("t")).next == ("b",)
    failing.clear()
    assert await graph.ainvoke(None, "t") == 6
    assert ran == [("a", {"go": 1, "topic": [2, 3]}), ("b", {"go": 1, "topic": [2, 3]})]


async def test_a_node_that_writes_nothing(saver: BaseCheckpointSaver) -> None:
    """An update as a node without writers would do nothing, and is refused."""
    graph = Pregel(
        nodes={
            "n": NodeBuilder().subscribe_only("in").do(lambda value: value).write_to("out"),
            "quiet": NodeBuilder().subscribe_only("in").do(lambda value: None),
        },
        channels={"in": EphemeralValue(int), "out": LastValue(int)},
        input_channels="in",
        output_channels="out",
        checkpointer=saver,
    )
    with pytest.raises(InvalidUpdateError, match="writes nothing"):
        await graph.aupdate_state("t", 5, "quiet")
    assert await history(graph) == []


async def test_an_update_without_values_and_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Without values and node, an edit makes a new "update" checkpoint with the same state and the same pending
    tasks."""
    nodes.asks = {"b"}
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await graph.aget_state("t")
    await graph.aupdate_state("t", None)
    state = await graph.aget_state("t")
    assert (state.values, state.next, made_by(state)) == (before.values, before.next, ("update", 2))
    assert (await graph.ainvoke(None, "t"))["log"] == ["s"]
    await graph.aupdate_state("t", None)
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.interrupts) == ({"log": ["s", "a"]}, ("b",), ())
    nodes.asks.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "b", "j"]}
    assert Counter(nodes.ran) == {"s": 1, "a": 1, "b": 2, "j": 1}


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_conditional_edges_are_followed(kind: str, saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The conditional edges of the node run on the state with the update; the node's code does not run."""

    def decide(state: Any) -> Any:
        return ["left", Send("right", {"log": []})] if state["note"] == "both" else END

    async def decide_later(state: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return decide(state)

    made = chain(nodes, "a", "b").add_node("left", nodes("left")).add_node("right", nodes("right"))
    made.add_conditional_edges("b", decide if kind == "sync" else decide_later)
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", {"note": "both"}, "b")
    assert (await graph.aget_state("t")).next == ("right", "left")
    await graph.aupdate_state("t", {"note": "none"}, "b")
    assert (await graph.aget_state("t")).next == ("right", "left"), "and what was pending still is"
    assert await graph.ainvoke(None, "t") == {"log": ["a", "left", "right"], "note": "none"}
    assert "b" not in nodes.ran


class Counted(State, total=False):
    last: IsLastStep
    steps: RemainingSteps


async def test_arguments_of_routers(saver: BaseCheckpointSaver) -> None:
    """P14: a router gets the same as in a run: a runtime with the graph's store, the call's config, and the managed
    values of a run that may continue."""
    got: list[Any] = []

    def route(state: Counted, runtime: Runtime, config: RunnableConfig) -> str:
        got.append((state["last"], state["steps"], runtime.store, config["configurable"]["mine"]))
        got.append((config["configurable"]["thread_id"], config["tags"]))
        return END

    store = object()
    made = StateGraph(Counted).add_node("a", lambda state: {}).add_edge(START, "a").add_conditional_edges("a", route)
    graph = made.compile(saver, blocking=False, store=store)
    config: Any = {"configurable": {"thread_id": "t", "mine": 1}, "tags": ["x"], "recursion_limit": 7}
    await graph.ainvoke({}, config)
    in_a_run = got.copy()
    got.clear()
    await graph.aupdate_state(config, {"note": "x"}, "a")
    assert in_a_run == got == [(False, 7, store, 1), ("t", ["x"])]


async def test_a_router_that_fails(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P3: a router that fails, or leads nowhere, fails the update with its own error; nothing is stored."""

    def route(state: Any) -> Any:
        if state["note"] == "fail":
            raise Oops
        return state["note"]

    made = chain(nodes, "a", "b").add_conditional_edges("b", route)
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await everything(graph)
    with pytest.raises(Oops) as caught:
        await graph.aupdate_state("t", {"note": "fail"}, "b")
    assert any("'b'" in note for note in caught.value.__notes__)
    with pytest.raises(InvalidRouteError, match="nowhere"):
        await graph.aupdate_state("t", {"note": "nowhere"}, "b")
    assert await everything(graph) == before


async def test_a_router_that_asks_or_calls(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A router cannot ask a question or call a task during an edit."""

    @task
    def helps() -> str:
        return END

    async def route(state: Any) -> Any:
        return interrupt("where to?") if state["note"] == "ask" else await helps()

    made = chain(nodes, "a", "b").add_conditional_edges("b", route)
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await everything(graph)
    for note in ("ask", "call"):
        with pytest.raises(InvalidUpdateError, match="router"):
            await graph.aupdate_state("t", {"note": note}, "b")
    assert await everything(graph) == before


async def test_a_command_as_values(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Values may be anything that the node may return: a Command is applied and its goto followed, in addition to the
    edges."""
    graph = chain(nodes, "a", "b").add_node("x", nodes("x")).compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", Command(update={"note": "n"}, goto=["x", Send("a", {})]), "a")
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["a"], "note": "n"}, ("a", "b", "x"))
    before = await everything(graph)
    for wrong, why in (
        (Command(goto="nowhere"), "nowhere"),
        (Command(graph=Command.PARENT, goto="a"), "graph"),
        (Command(resume=1), "resume"),
    ):
        with pytest.raises(InvalidUpdateError, match=why):
            await graph.aupdate_state("t", wrong, "a")
    assert await everything(graph) == before


async def test_a_list_of_updates_and_an_overwrite(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A list of updates is applied too; and an Overwrite replaces a reducer's value."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", [{"log": ["1"]}, Command(update={"log": ["2"]})], "a")
    assert (await graph.aget_state("t")).values == {"log": ["a", "1", "2"]}
    await graph.aupdate_state("t", {"log": Overwrite(["only"])}, "a")
    assert (await graph.aget_state("t")).values == {"log": ["only"]}


async def test_end(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """END marks all pending tasks as done without writes: deferred nodes too, and half a join leads nowhere; the thread
    takes new input."""
    made = fan_out(nodes, "a", "b").add_node("d", nodes("d"), defer=True).add_edge("s", "d")
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", None, END)
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.tasks) == ({"log": ["s"]}, (), ())
    assert made_by(state) == ("update", 2)
    assert await graph.ainvoke(None, "t") == {"log": ["s"]}
    assert nodes.ran == ["s"]
    assert await graph.ainvoke({}, "t") == {"log": ["s", "s", "a", "b", "j", "d"]}


async def test_end_keeps_recorded_results(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Recorded results are kept, and their edges are not followed. Sends and questions are gone."""
    nodes.asks = {"b"}
    made = fan_out(nodes, "a", "b").add_node("w", nodes("w"))
    made.add_conditional_edges("a", lambda state: [Send("w", {}), "w"])
    graph = made.compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", None, END)
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.interrupts) == ({"log": ["s", "a"]}, (), ())
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a"]}
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume=1), "t")


async def test_end_leaves_no_half_of_a_join(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The edges of a recorded result are not followed, not even as half of a join: a later run that passes only the
    join's other start does not complete it."""
    nodes.asks = {"b"}
    made = chain(nodes, "s").add_node("a", nodes("a")).add_node("b", nodes("b")).add_node("j", nodes("j"))
    made.add_conditional_edges("s", lambda state: ["b"] if state["note"] == "b" else ["a", "b"])
    graph = made.add_edge(["a", "b"], "j").compile(saver, blocking=False)
    await graph.ainvoke({"note": "both"}, "t")
    await graph.aupdate_state("t", None, END)
    nodes.asks.clear()
    assert await graph.ainvoke({"note": "b"}, "t") == {"log": ["s", "a", "s", "b"], "note": "b"}


async def test_end_has_no_values(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """END with values is refused."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match="END"):
        await graph.aupdate_state("t", {"log": ["?"]}, END)
    assert await everything(graph) == before


async def test_input_on_a_fresh_thread(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """INPUT is a graph's input, at step -1: resuming then does the same as a run with that input."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await graph.aupdate_state("t", {"log": ["in"]}, INPUT)
    state = await graph.aget_state("t")
    assert (state.next, made_by(state), state.parent_config) == ((START,), ("input", -1), None)
    assert await graph.ainvoke(None, "t") == {"log": ["in", "a", "b"]}
    await graph.ainvoke({"log": ["in"]}, "t2")
    assert [comparable(each) for each in await history(graph)] == [
        comparable(each) for each in await history(graph, "t2")
    ]
    assert [made_by(each) for each in await history(graph)] == [made_by(each) for each in await history(graph, "t2")]


async def test_input_that_waits_is_the_starts(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """While the thread holds only an input, the update is the start's: its task is pending, and the update is its
    result."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await graph.aupdate_state("t", {"log": ["in"]}, INPUT)
    await graph.aupdate_state("t", {"log": ["instead"]})
    state = await graph.aget_state("t")
    assert (state.values, state.next, made_by(state)) == ({"log": ["instead"]}, ("a",), ("update", 0))


async def test_input_discards_pending_tasks(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """INPUT discards pending tasks like the input of a run; the next step, source "input"."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    await graph.aupdate_state("t", {"log": ["in"]}, INPUT)
    state = await graph.aget_state("t")
    assert (state.values, state.next, made_by(state)) == ({"log": ["a"]}, (START,), ("input", 2))
    assert await graph.ainvoke(None, "t") == {"log": ["a", "in", "a", "b"]}


async def test_a_bad_input(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Bad input: a value that is no input is refused as in a run."""
    graph = chain(nodes, "a").compile(saver, blocking=False)
    for wrong in ({"unknown": 1}, 5):
        with pytest.raises(InvalidInputError):
            await graph.aupdate_state("t", wrong, INPUT)
    assert await history(graph) == []


async def test_a_copy_is_a_sibling(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A copy has the state, the step and the parent of its source, source "fork", tasks with the same ids, and no
    recorded results; it is the head."""
    nodes.asks = {"b"}
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    source = await graph.aget_state("t")
    config = await graph.aupdate_state("t", None, COPY)
    copied = await graph.aget_state("t")
    assert copied.config == config != source.config
    assert (copied.values, copied.parent_config, made_by(copied)) == (source.values, source.parent_config, ("fork", 1))
    assert [(each.id, each.result) for each in copied.tasks] == [(each.id, None) for each in source.tasks]
    assert (copied.next, copied.interrupts) == (("a", "b"), ())
    assert await graph.aget_state(source.config) == source, "the source is as it was"
    nodes.asks.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["s", "a", "b", "j"]}
    assert await graph.aget_state(source.config) == source
    nodes.asks = {"b"}
    assert await graph.ainvoke(Command(resume="!"), source.config) == {"log": ["s", "a", "b=!", "j"]}
    assert Counter(nodes.ran) == {"s": 1, "a": 2, "b": 3, "j": 2}


async def test_a_copy_of_an_older_checkpoint(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The same holds for a copy of any checkpoint, the first too, which has no parent."""
    graph = chain(nodes, "a", "b", "c").compile(saver, blocking=False)
    await graph.ainvoke({"note": "x"}, "t")
    for source in await history(graph):
        await graph.aupdate_state(source.config, None, COPY)
        copied = await graph.aget_state("t")
        assert (copied.values, copied.next, copied.parent_config) == (source.values, source.next, source.parent_config)
        assert made_by(copied) == ("fork", made_by(source)[1])
        assert await graph.ainvoke(None, "t") == {"log": ["a", "b", "c"], "note": "x"}
        assert await graph.aget_state(source.config) == source


async def test_a_copy_and_updates(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Updates after `__copy__` in the same call are applied to the fork, and so is a list given as its values; task ids
    are reused; the source keeps its tasks unchanged."""
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    source = await graph.aget_state("t")
    await graph.abulk_update_state(
        "t", [[StateUpdate(None, COPY)], [StateUpdate({"log": ["A"]}, "a")], [StateUpdate({"log": ["B"]}, "b")]]
    )
    first = await graph.aget_state("t")
    await graph.aupdate_state(source.config, [({"log": ["A"]}, "a"), StateUpdate({"log": ["B"]}, "b")], COPY)
    second = await graph.aget_state("t")
    for state in (first, second):
        assert (state.values, state.next, made_by(state)) == ({"log": ["s", "A", "B"]}, ("j",), ("update", 2))
        fork = await graph.aget_state(state.parent_config)
        assert (made_by(fork), fork.parent_config) == (("fork", 1), source.parent_config)
        assert [each.id for each in fork.tasks] == [each.id for each in source.tasks]
        assert results(fork) == {"a": {"log": ["A"]}, "b": {"log": ["B"]}}
    assert first.parent_config != second.parent_config
    assert await graph.aget_state(source.config) == source
    assert nodes.ran == ["s"]


async def test_a_copy_of_nothing(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A fresh thread has no checkpoint to copy; and a value that is no update is refused."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    with pytest.raises(InvalidUpdateError, match="no checkpoint"):
        await graph.aupdate_state("t", None, COPY)
    assert await history(graph) == []
    await stopped(graph, 1)
    before = await everything(graph)
    for wrong in ({"log": ["?"]}, "text", 5, [5], [({"log": []}, "a", None, None)], [()]):
        with pytest.raises(InvalidUpdateError, match="list of updates"):
            await graph.aupdate_state("t", wrong, COPY)
    for wrong in ([({"log": []}, "unknown")], [(None, END)], [(None, COPY)]):
        with pytest.raises(InvalidUpdateError, match="there is no node"):
            await graph.aupdate_state("t", wrong, COPY)
    assert await everything(graph) == before


async def test_a_copy_has_the_state_that_shows(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update that a call made to an open superstep's state is part of the copy."""
    nodes.asks = {"b"}
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(update={"note": "more"}), "t")
    source = await graph.aget_state("t")
    assert source.values == {"log": ["a"], "note": "more"}
    await graph.aupdate_state("t", None, COPY)
    assert (await graph.aget_state("t")).values == source.values
    nodes.asks.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"], "note": "more"}


async def test_bulk_is_one_transaction(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P3: several supersteps are one transaction with one release, and each has a checkpoint."""
    watched = WatchedSaver(saver)
    graph = chain(nodes, "a", "b", "c").compile(watched, blocking=False)
    config = await graph.abulk_update_state(
        "t",
        [
            [StateUpdate({"log": ["in"]}, INPUT)],
            [StateUpdate({"log": ["start"]}, START)],
            [StateUpdate({"log": ["A"]}, "a")],
            [StateUpdate({"log": ["B"]}, "b"), StateUpdate({"note": "n"}, "a")],
        ],
    )
    (commit,) = watched.commits
    assert commit.releases
    states = await history(graph)
    assert states[0].config == config
    assert [(made_by(state), state.values.get("log"), state.next) for state in states[::-1]] == [
        (("input", -1), [], (START,)),
        (("update", 0), ["start"], ("a",)),
        (("update", 1), ["start", "A"], ("b",)),
        (("update", 2), ["start", "A", "B"], ("b", "c")),
    ]
    assert [state.parent_config for state in states] == [state.config for state in states[1:]] + [None]
    assert results(states[2]) == {"a": {"log": ["A"]}}
    assert results(states[1]) == {"b": {"log": ["B"]}}


def divides(current: int, update: int) -> int:
    return current // update


class Folding(TypedDict, total=False):
    number: Annotated[int, divides]
    note: str
    anything: Any


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (StateUpdate({"number": 0}, "b"), ZeroDivisionError),
        (StateUpdate({"unknown": 0}, "b"), InvalidUpdateError),
        (StateUpdate({"anything": object()}, "b"), UnstorableValueError),
        (StateUpdate({"anything": object()}, "a"), UnstorableValueError),
        (StateUpdate({"anything": object()}, INPUT), UnstorableValueError),
        (StateUpdate({"note": "x"}, "unknown"), InvalidUpdateError),
        (StateUpdate({"note": "x"}, "b", "no such task"), InvalidUpdateError),
        (StateUpdate(5, "b"), InvalidUpdateError),
        (StateUpdate(1, END), InvalidUpdateError),
        (StateUpdate(1, COPY), InvalidUpdateError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or f"as {value.as_node}",
)
async def test_all_or_nothing(bad: StateUpdate, error: type[Exception], saver: BaseCheckpointSaver) -> None:
    """P3, P11: an error in the third superstep of an edit stores nothing of the first and the second: no checkpoint, no
    record, no head; the thread is free and unchanged."""
    made = StateGraph(Folding).add_sequence([(name, lambda state: {"note": "ran"}) for name in "abc"])
    made.add_edge(START, "a").add_node("x", lambda state: {}).add_edge("a", "x")
    graph = made.compile(saver, blocking=False)
    await stopped(graph, 1, {"number": 8})
    assert (await graph.aget_state("t")).next == ("b", "x")
    before = await everything(graph)
    for edits in (
        [[StateUpdate({"number": 2}, "a")], [StateUpdate({"note": "y"}, "x")], [bad]],
        [[StateUpdate(None, COPY)], [StateUpdate({"note": "y"}, "x")], [bad]],
        # b's update is not folded yet
        [[bad]] if error is not ZeroDivisionError else [[StateUpdate({"number": 0}, "a")]],
    ):
        with pytest.raises(error):
            await graph.abulk_update_state("t", edits)
        assert await everything(graph) == before
    assert (await graph.ainvoke(None, "t"))["note"] == "ran"


async def test_storage_that_fails(nodes: Nodes) -> None:
    """P3, P4: when the one transaction fails, its error is raised and nothing was stored; the thread is free."""
    watched = WatchedSaver(InMemorySaver())
    graph = chain(nodes, "a", "b").compile(watched, blocking=False)
    await stopped(graph, 1)
    before = await everything(graph)

    async def fail(verb: str) -> None:
        if verb == "commit":
            raise StorageError("injected")

    watched.before = fail
    for edit in (StateUpdate({"log": ["B"]}, "b"), StateUpdate({"log": ["A"]}, "a"), StateUpdate(None, COPY)):
        with pytest.raises(StorageError, match="injected"):
            await graph.abulk_update_state("t", [[edit]])
    watched.before = None
    assert await everything(graph) == before
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"]}


async def test_bad_bulks(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Empty lists are refused; several updates of a superstep must name their nodes, and cannot be one of the special
    values."""
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    for empty in ([], [[]], [[StateUpdate({}, "a")], []]):
        with pytest.raises(ConfigError, match="nothing to update"):
            await graph.abulk_update_state("t", empty)
    for special in (None, END, INPUT, COPY):
        with pytest.raises(InvalidUpdateError, match="the only one"):
            await graph.abulk_update_state("t", [[StateUpdate({}, "a"), StateUpdate(None, special)]])
    assert await history(graph) == []


EDITS: dict[str, list[list[StateUpdate]]] = {
    "other": [[StateUpdate({"log": ["X"]}, "x")], [StateUpdate({"log": ["A"]}, "a")], [StateUpdate({}, "x")]],
    "pending": [[StateUpdate({"log": ["A"]}, "a")], [StateUpdate({"log": ["X"]}, "x")], [StateUpdate({}, "b")]],
    "closing": [[StateUpdate({}, "a")], [StateUpdate({}, "b")], [StateUpdate({}, "x")], [StateUpdate({}, "j")]],
    "both": [[StateUpdate({"log": ["A"]}, "a"), StateUpdate({"log": ["X"]}, "x")], [StateUpdate({"note": "n"}, "b")]],
    "nothing": [[StateUpdate(None)], [StateUpdate({"log": ["B"]}, "b")], [StateUpdate(None)]],
    "end": [[StateUpdate({"log": ["A"]}, "a")], [StateUpdate(None, END)], [StateUpdate({}, "s")]],
    "input": [[StateUpdate({"log": ["in"]}, INPUT)], [StateUpdate({}, START)], [StateUpdate({"log": ["S"]}, "s")]],
    "copy": [[StateUpdate({"log": ["A"]}, "a")], [StateUpdate(None, COPY)], [StateUpdate({"log": ["B"]}, "b")]],
    "copies": [[StateUpdate([({}, "a"), ({}, "b")], COPY)], [StateUpdate(None, COPY)], [StateUpdate({}, "x")]],
    "again": [[StateUpdate({}, "s")], [StateUpdate({}, "a")], [StateUpdate({}, "b")], [StateUpdate({}, "s")]],
}


@pytest.mark.pairwise
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
async def test_live_is_reloaded(edits: list[list[StateUpdate]], asks: bool, tmp_path: Path, nodes: Nodes) -> None:
    """Law: several supersteps of one call, each applied to the state in memory, give the same as single calls, each of
    which opens the file anew; and so does running on from there, in history and results too."""

    def graph_on(saver: BaseCheckpointSaver) -> Any:
        made = fan_out(nodes, "a", "b").add_node("x", nodes("x")).add_node("d", nodes("d"), defer=True)
        made.add_edge("s", "d").add_node("w", nodes("w")).add_edge("x", "w")
        made.add_conditional_edges("x", lambda state: Send("w", {"log": []}))
        return made.compile(saver, blocking=False)

    async def seen(file: str, *works: Callable[[Any], Awaitable[Any]]) -> Any:
        nodes.ran.clear()
        for work in works:
            async with SqliteSaver.from_conn_string(tmp_path / file, synchronous="NORMAL") as saver:
                result = await work(graph_on(saver))
        async with SqliteSaver.from_conn_string(tmp_path / file, synchronous="NORMAL") as saver:
            states = await history(graph_on(saver))
            ids = [[each.id for each in state.tasks] for state in states]
            return [(made_by(state), comparable(state)) for state in states], ids, Counter(nodes.ran), result

    async def start(graph: Any) -> None:
        nodes.asks = {"b"} if asks else set()
        if asks:
            await graph.ainvoke({}, "t")
        else:
            await stopped(graph, 1)
        nodes.asks = set()

    async def all_at_once(graph: Any) -> None:
        await graph.abulk_update_state("t", edits)

    def one(updates: list[StateUpdate]) -> Callable[[Any], Awaitable[None]]:
        async def edit(graph: Any) -> None:
            await graph.abulk_update_state("t", [updates])

        return edit

    async def on(graph: Any) -> Any:
        return await graph.ainvoke(None, "t")

    each = [one(updates) for updates in edits]
    assert await seen("live.db", start, all_at_once) == await seen("loaded.db", start, *each)
    assert await seen("live2.db", start, all_at_once, on) == await seen("loaded2.db", start, *each, on)


async def test_on_an_interrupted_thread(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update as a node that is not pending: the question disappears from the state, its node is planned again and
    asks again, and a plain answer answers it."""
    nodes.asks = {"b"}
    graph = chain(nodes, "a", "b").compile(saver, blocking=False)
    asked = (await graph.ainvoke({}, "t"))["__interrupt__"][0]
    before = await graph.aget_state("t")
    await graph.aupdate_state("t", {"note": "edited"})
    state = await graph.aget_state("t")
    assert (state.next, state.interrupts, state.values["note"]) == (("b",), (), "edited")
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume={asked.id: "old"}), "t")
    assert (await graph.ainvoke(None, "t"))["__interrupt__"][0].value == "b?"
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["a", "b=yes"]
    assert (await graph.aget_state(before.config)).interrupts[0].id == asked.id


async def test_on_an_interrupted_thread_of_one_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The last superstep was the start's: the update does not answer the one node, which asks again."""
    nodes.asks = {"a"}
    graph = chain(nodes, "a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"note": "edited"})
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.interrupts) == ({"log": [], "note": "edited"}, ("a",), ())
    await graph.ainvoke(None, "t")
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["a=yes"], "note": "edited"}


async def test_as_the_node_that_asks(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P8: an update as the asking task is its result: its question is gone, another's stays open under its id, and a
    plain answer is for that one."""
    nodes.asks = {"a", "b"}
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    first, second = (await graph.ainvoke({}, "t"))["__interrupt__"]
    await graph.aupdate_state("t", {"log": ["A"]}, "a")
    state = await graph.aget_state("t")
    assert ([asked.id for asked in state.interrupts], state.next) == ([second.id], ("b",))
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume={first.id: "late"}), "t")
    assert await graph.ainvoke(Command(resume="yes"), "t") == {"log": ["s", "A", "b=yes", "j"]}
    assert Counter(nodes.ran) == {"s": 1, "a": 1, "b": 2, "j": 1}


async def test_an_answered_question_is_kept(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P8: answers given to a task stay its own when an edit sets its sibling's result."""

    def asks_twice(state: Any) -> dict[str, Any]:
        return {"log": [f"{interrupt(1)}{interrupt(2)}"]}

    nodes.asks = {"a"}
    made = chain(nodes, "s").add_node("a", nodes("a")).add_node("b", asks_twice).add_edge("s", "a").add_edge("s", "b")
    graph = made.compile(saver, blocking=False)
    asked = {one.value: one.id for one in (await graph.ainvoke({}, "t"))["__interrupt__"]}
    await graph.ainvoke(Command(resume={asked[1]: "x"}), "t")
    await graph.aupdate_state("t", {"log": ["A"]}, "a")
    assert [one.value for one in (await graph.aget_state("t")).interrupts] == [2]
    assert await graph.ainvoke(Command(resume="y"), "t") == {"log": ["s", "A", "xy"]}


async def test_on_a_failed_thread(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P3: after an update the thread has no failure any more: no error is shown, and the planned node runs."""
    nodes.broken = {"b"}
    graph = chain(nodes, "a", "b", "c").compile(saver, blocking=False)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"note": "mended"}, "a")
    state = await graph.aget_state("t")
    assert (state.next, [each.error for each in state.tasks], state.error) == (("b",), [None], None)
    nodes.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b", "c"], "note": "mended"}


async def test_a_router_had_failed(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P3: when only the routers of a task were left, an update as that task is its result; its own writes are
    discarded."""
    broken = [True]

    def route(state: Any) -> str:
        if broken:
            raise Oops
        return END

    graph = chain(nodes, "a", "b").add_conditional_edges("b", route).compile(saver, blocking=False)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    broken.clear()
    await graph.aupdate_state("t", {"log": ["B"]}, "b")
    assert await graph.ainvoke(None, "t") == {"log": ["a", "B"]}
    assert nodes.ran == ["a", "b"]


async def test_at_an_older_checkpoint(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update at an older checkpoint starts a branch there, which is the head; running on runs it."""
    graph = chain(nodes, "a", "b", "c").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    before = await history(graph)
    old = before[2]
    assert old.next == ("b",)
    config = await graph.aupdate_state(old.config, {"log": ["again"]}, "a")
    state = await graph.aget_state("t")
    assert state.config == config
    assert (state.values, state.next, state.parent_config) == ({"log": ["a", "again"]}, ("b",), old.config)
    assert await graph.ainvoke(None, config) == {"log": ["a", "again", "b", "c"]}
    for each in before:
        if each.config != old.config:
            assert await graph.aget_state(each.config) == each


async def test_a_result_at_an_older_checkpoint(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P2: records under an id belong to their branch: a result set by an edit at a checkpoint that has successors
    starts a branch, and the other branch shows its own results."""
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    before = await history(graph)
    (old,) = [state for state in before if state.next == ("a", "b")]
    config = await graph.aupdate_state(old.config, {"log": ["A"]}, "a")
    state = await graph.aget_state("t")
    assert state.config == config != old.config
    assert (state.values, state.next, results(state)) == ({"log": ["s"]}, ("b",), {"a": {"log": ["A"]}, "b": None})
    assert [each.id for each in state.tasks] == [each.id for each in old.tasks]
    assert (made_by(state), state.parent_config) == (("fork", 1), old.config)
    for each in before:
        assert await graph.aget_state(each.config) == each
    assert await graph.ainvoke(None, "t") == {"log": ["s", "A", "b", "j"]}
    for each in before:
        assert comparable(await graph.aget_state(each.config)) == comparable(each)


async def test_at_the_tip_of_another_branch(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The tip of a branch can be edited without a new branch; the head moves there."""
    graph = fan_out(nodes, "a", "b").compile(saver, blocking=False)
    await stopped(graph, 1)
    tip = (await graph.aget_state("t")).config
    await graph.aupdate_state("t", None, COPY)
    assert (await graph.aget_state("t")).config != tip
    count = len(await history(graph))
    assert await graph.aupdate_state(tip, {"log": ["A"]}, "a") == tip
    state = await graph.aget_state("t")
    assert (state.config, state.next, len(await history(graph))) == (tip, ("b",), count)
    assert await graph.ainvoke(None, "t") == {"log": ["s", "A", "b", "j"]}


async def test_an_unknown_checkpoint_or_subgraph(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Bad input: an unknown checkpoint or subgraph is an error; so are a missing saver and a missing thread."""
    graph = chain(nodes, "a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    before = await everything(graph)
    unknown = "00000000-0000-7000-8000-000000000000"
    with pytest.raises(CheckpointNotFoundError, match=unknown):
        await graph.aupdate_state({"configurable": {"thread_id": "t", "checkpoint_id": unknown}}, {"note": "x"}, "a")
    with pytest.raises(SubgraphNotFoundError, match="unknown"):
        await graph.aupdate_state({"configurable": {"thread_id": "t", "checkpoint_ns": "unknown"}}, {"note": "x"}, "a")
    with pytest.raises(ConfigError, match="thread"):
        await graph.aupdate_state({}, {"note": "x"}, "a")
    with pytest.raises(ConfigError, match="checkpointer"):
        await chain(nodes, "a").compile().aupdate_state("t", {"note": "x"}, "a")
    assert await everything(graph) == before


async def test_the_callers_values_are_the_callers(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P1: later changes in place by the caller reach no state; changes by a router do not reach the caller."""

    def route(state: Any) -> str:
        state["log"].append("router")
        assert values == {"log": ["mine"]}
        values["log"].append("meanwhile")
        return END

    graph = chain(nodes, "a").add_conditional_edges("a", route).compile(saver, blocking=False)
    values = {"log": ["mine"]}
    await graph.aupdate_state("t", values, "a")
    assert values == {"log": ["mine", "meanwhile"]}
    values["log"].append("later")
    assert (await graph.aget_state("t")).values == {"log": ["mine"]}


async def test_metadata(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An edit's checkpoint has the call's metadata, run_id and no parents; history is filtered by it."""
    graph = chain(nodes, "a").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    config: Any = at({"metadata": {"who": "me"}, "run_id": "edit"})
    returned = await graph.aupdate_state(config, {"note": "x"}, "a")
    state = await graph.aget_state("t")
    assert state.metadata == {"source": "update", "step": 2, "parents": {}, "run_id": "edit", "who": "me"}
    assert set(returned["configurable"]) == {"thread_id", "checkpoint_ns", "checkpoint_id"}
    assert await history(graph, filter={"source": "update"}) == [state]
    assert [id_of(each.config) for each in await history(graph)] == sorted(
        (id_of(each.config) for each in await history(graph)), reverse=True
    )


async def test_while_a_run_owns_the_thread(saver: BaseCheckpointSaver) -> None:
    """P6: an edit acquires the same lease as a run: it is refused while a run is live, or waits for it if asked to."""
    inside, go_on = anyio.Event(), anyio.Event()

    async def waits(state: Any) -> dict[str, Any]:
        inside.set()
        await go_on.wait()
        return {"log": ["ran"]}

    graph = StateGraph(State).add_node("a", waits).add_edge(START, "a").compile(saver)

    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {}, "t")
        await inside.wait()
        for edit in ({"log": ["A"]}, None):
            with pytest.raises(ThreadBusyError) as caught:
                await graph.aupdate_state("t", edit, "a")
            assert not caught.value.lost
        group.start_soon(lambda: graph.aupdate_state("t", {"log": ["by hand"]}, "a", on_conflict="wait"))
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    assert (await graph.aget_state("t")).values == {"log": ["ran", "by hand"]}


async def test_the_lease_is_kept_while_a_router_decides(saver: BaseCheckpointSaver) -> None:
    """P6: a heartbeat renews the lease of an edit with a slow router."""
    renewed = anyio.Event()
    watched = WatchedSaver(saver)

    async def note(verb: str) -> None:
        if verb == "renew":
            renewed.set()

    watched.before = note

    async def route(state: Any) -> str:
        with anyio.fail_after(30):
            await renewed.wait()
        return END

    made = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "a").add_conditional_edges("a", route)
    graph = made.compile(watched, blocking=False)
    watched.lease_seconds = 0.03
    await graph.aupdate_state("t", {"note": "x"}, "a")
    assert (await graph.aget_state("t")).values["note"] == "x"


@pytest.mark.parametrize("edit", ["pending", "other", "copy"])
async def test_cancelled_at_every_call_of_the_saver(edit: str, saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P7: a cancelled edit has happened completely or not at all, and the thread is free: the repeated edit, and a run,
    start at once."""
    updates = {
        "pending": [[StateUpdate({"log": ["A"]}, "a")]],
        "other": [[StateUpdate({"log": ["X"]}, "x")], [StateUpdate({"log": ["A"]}, "a")]],
        "copy": [[StateUpdate(None, COPY)], [StateUpdate({"log": ["A"]}, "a")]],
    }[edit]
    watched = WatchedSaver(saver)
    graph = fan_out(nodes, "a", "b").add_node("x", nodes("x")).compile(watched, blocking=False)
    calls = 0
    for number in range(1, 20):
        thread = f"t{number}"
        watched.before = None
        await stopped(graph, 1, thread=thread)
        before = comparable(await graph.aget_state(thread))
        calls = 0
        with anyio.CancelScope() as scope:

            async def cancel(verb: str, at: int = number, scope: anyio.CancelScope = scope) -> None:
                nonlocal calls
                calls += 1
                if calls == at:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()

            watched.before = cancel
            await graph.abulk_update_state(thread, updates)
        watched.before = None
        after = comparable(await graph.aget_state(thread))
        if not scope.cancelled_caught:
            assert "A" in str(after)
            if calls < number:
                break
        elif after == before:
            await graph.abulk_update_state(thread, updates)
        else:
            assert "A" in str(after)
        assert "A" in (await graph.ainvoke(None, thread))["log"]
        await watched.adelete_thread(thread)
    assert calls >= 3


async def test_the_state_of_an_interrupted_subgraph(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """An update in the namespace of a graph that a pending task runs is one of that graph, and the parent's resume
    continues from it."""
    nodes.asks = {"i2"}
    inner = chain(nodes, "i1", "i2", "i3").compile()
    graph = chain(nodes, "a").add_node("sub", inner).add_edge("a", "sub").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    (pending,) = (await graph.aget_state("t")).tasks
    before = await graph.aget_state("t", subgraphs=True)
    config = await graph.aupdate_state(pending.state, {"note": "inside"}, "i1")
    assert config["configurable"]["checkpoint_ns"] == pending.state["configurable"]["checkpoint_ns"]
    state = await graph.aget_state(pending.state)
    assert (state.values, state.next) == ({"log": ["a", "i1"], "note": "inside"}, ("i2",))
    assert (await graph.aget_state("t")).config == before.config, "the parent has not moved"
    await graph.aupdate_state(pending.state, {"log": ["I2"]}, "i2")
    state = await graph.aget_state(pending.state)
    assert (state.values["log"], state.next) == (["a", "i1", "I2"], ("i3",))
    result = await graph.ainvoke(None, "t")
    assert result == {"log": ["a", "a", "i1", "I2", "i3"], "note": "inside"}
    assert nodes.ran == ["a", "i1", "i2", "i3"]


async def test_as_the_node_that_runs_a_subgraph(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """As the node itself, the update is its result, and the subgraph does not continue."""
    nodes.asks = {"i"}
    inner = chain(nodes, "i").compile()
    graph = chain(nodes, "a").add_node("sub", inner).add_node("z", nodes("z")).add_edge("a", "sub").add_edge("sub", "z")
    graph = graph.compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"log": ["SUB"]}, "sub")
    assert (await graph.aget_state("t")).interrupts == ()
    assert await graph.ainvoke(None, "t") == {"log": ["a", "SUB", "z"]}
    assert nodes.ran == ["a", "i", "z"]


async def test_a_subgraph_at_rest(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The state that a subgraph keeps between calls is edited under its node's name, and its next call continues from
    there; the branch from before the edit does not see it."""
    inner = StateGraph(State).add_node("i", nodes("i")).add_edge(START, "i").compile(checkpointer=True)
    made = StateGraph(State).add_node("sub", inner).add_edge(START, "sub")
    graph = made.compile(saver, blocking=False)
    await graph.ainvoke({"log": ["1"]}, "t")
    before = (await graph.aget_state("t")).config
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "sub"}}
    assert (await graph.aget_state(place)).values == {"log": ["1", "i"]}
    await graph.aupdate_state(place, {"log": Overwrite(["edited"])}, "i")
    assert (await graph.aget_state(place)).values == {"log": ["edited"]}
    assert (await graph.aget_state("t")).next == ()
    await graph.ainvoke({"log": ["2"]}, "t")
    assert (await graph.aget_state(place)).values["log"][0] == "edited"
    await graph.ainvoke({"log": ["3"]}, before)
    assert (await graph.aget_state(place)).values["log"][:2] == ["1", "i"]


async def test_a_subgraph_at_rest_while_the_root_waits(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The root gets a checkpoint that refers to the subgraph's new state, and its pending tasks stay pending; in the
    middle of a superstep with results no such checkpoint is possible, and the edit is refused."""
    inner = StateGraph(State).add_node("i", nodes("i")).add_edge(START, "i").compile(checkpointer=True)
    made = StateGraph(State).add_node("sub", inner).add_edge(START, "sub").add_node("b", nodes("b"))
    graph = made.add_edge("sub", "b").compile(saver, blocking=False)
    place: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "sub"}}
    await graph.ainvoke({"log": ["1"]}, "t", interrupt_before=["b"])
    await graph.aupdate_state(place, {"log": Overwrite(["edited"])}, "i")
    state = await graph.aget_state("t")
    assert (state.next, made_by(state)) == (("b",), ("update", 2))
    nodes.asks = {"b"}
    await graph.ainvoke(None, "t")
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match="open superstep"):
        await graph.aupdate_state(place, {"log": ["?"]}, "i")
    assert await everything(graph) == before
    await graph.ainvoke(Command(resume="!"), "t")
    nodes.asks.clear()
    await graph.ainvoke({"log": ["2"]}, "t")
    assert (await graph.aget_state(place)).values["log"][0] == "edited"


async def test_a_subgraph_at_rest_cancelled(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P7: cancelled at any call of the saver, such an edit has been made completely or not at all: the shown state is
    the one that the next call continues from."""
    inner = StateGraph(State).add_node("i", nodes("i")).add_edge(START, "i").compile(checkpointer=True)
    watched = WatchedSaver(saver)
    graph = StateGraph(State).add_node("sub", inner).add_edge(START, "sub").compile(watched, blocking=False)
    calls, number = 1, 0
    while calls >= number:
        number += 1
        calls, thread = 0, f"t{number}"
        place: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": "sub"}}
        watched.before = None
        await graph.ainvoke({"log": ["1"]}, thread)
        with anyio.CancelScope() as scope:

            async def cancel(verb: str, at: int = number, scope: anyio.CancelScope = scope) -> None:
                nonlocal calls
                calls += 1
                if calls == at:
                    scope.cancel()
                    await anyio.lowlevel.checkpoint()

            watched.before = cancel
            await graph.aupdate_state(place, {"log": Overwrite(["edited"])}, "i")
        watched.before = None
        shown = (await graph.aget_state(place)).values["log"]
        await graph.ainvoke({"log": ["2"]}, thread)
        assert (await graph.aget_state(place)).values["log"][: len(shown)] == shown
    assert number > 4


async def test_three_levels_down(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """The state of a graph at the third level is edited through the root, at its head and at an older checkpoint, and a
    resume continues from there."""
    nodes.asks = {"k2"}
    innermost = chain(nodes, "k1", "k2", "k3").compile()
    middle = chain(nodes, "m").add_node("k", innermost).add_edge("m", "k").compile()
    graph = chain(nodes, "a").add_node("sub", middle).add_edge("a", "sub").compile(saver, blocking=False)
    await graph.ainvoke({}, "t")

    async def deepest() -> Any:
        (outer,) = (await graph.aget_state("t", subgraphs=True)).tasks
        return outer.state.tasks[0].state

    old = await deepest()
    config = await graph.aupdate_state(old.config, {"note": "deep"}, "k1")
    state = await deepest()
    assert (state.config, state.values["note"], state.next) == (config, "deep", ("k2",))
    assert state.metadata["parents"] == old.metadata["parents"]
    nodes.asks.clear()
    assert (await graph.ainvoke(None, "t"))["note"] == "deep"
    nodes.ran.clear()
    config = await graph.aupdate_state(old.config, {"log": ["K2"], "note": "by hand"}, "k2")
    assert (await graph.aget_state(config)).next == ("k3",)
    result = await graph.ainvoke(None, config)
    assert (result["note"], result["log"][-2:], nodes.ran) == ("by hand", ["K2", "k3"], ["k3"])


async def test_a_graph_that_a_command_ends(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A task that sent a command to the parent graph has its result: an edit can set the result of the sibling that
    asks, and the parent gets the command when it resumes; another edit is refused."""

    def leaves(state: Any) -> Command:
        nodes.ran.append("leaves")
        return Command(graph=Command.PARENT, update={"log": ["up"]}, goto="z")

    nodes.asks = {"q"}
    inner = chain(nodes, "q").add_node("leaves", leaves).add_edge(START, "leaves").add_node("x", nodes("x")).compile()
    made = StateGraph(State).add_node("sub", inner).add_edge(START, "sub").add_node("z", nodes("z"))
    graph = made.compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    place = (await graph.aget_state("t")).tasks[0].state
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match="command for the graph around"):
        await graph.aupdate_state(place, {"log": ["X"]}, "x")
    assert await everything(graph) == before
    await graph.aupdate_state(place, {"log": ["Q"]}, "q")
    assert await graph.ainvoke(None, "t") == {"log": ["up", "z"]}
    assert Counter(nodes.ran) == {"q": 1, "leaves": 1, "z": 1}


async def test_from_within_a_node(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """P6: a node that edits its own thread is refused, and may edit another."""

    async def edits(state: Any) -> dict[str, Any]:
        with pytest.raises(ThreadBusyError):
            await graph.aupdate_state("t", {"log": ["?"]}, "a")
        await graph.aupdate_state("other", {"log": ["A"]}, "a")
        return {"log": ["edits"]}

    graph = chain(nodes, "a").add_node("edits", edits).add_edge("a", "edits").compile(saver, blocking=False)
    assert await graph.ainvoke({}, "t") == {"log": ["a", "edits"]}
    assert (await graph.aget_state("other")).values == {"log": ["A"]}


async def test_nothing_in_a_namespace(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """A subgraph that has not run has no state to edit; the thread is unchanged."""
    inner = chain(nodes, "i").compile()
    graph = chain(nodes, "a").add_node("sub", inner).compile(saver, blocking=False)
    await graph.ainvoke({}, "t")
    before = await everything(graph)
    with pytest.raises(InvalidUpdateError, match="nothing is stored"):
        await graph.aupdate_state({"configurable": {"thread_id": "t", "checkpoint_ns": "sub:1"}}, {"note": "x"}, "i")
    assert await everything(graph) == before


async def test_an_entrypoint(saver: BaseCheckpointSaver) -> None:
    """An update of an entrypoint sets its return value and the `previous` of its next run."""
    got: list[Any] = []

    @entrypoint(saver, blocking=False)
    def flow(given: int, *, previous: Any = None) -> Any:
        got.append(previous)
        return given + (previous or 0)

    await flow.aupdate_state("t", 10)
    assert (await flow.aget_state("t")).values == 10
    assert await flow.ainvoke(1, "t") == 11
    await flow.aupdate_state("t", 100)
    assert (await flow.aget_state("t")).values == 100
    await flow.aupdate_state("t", entrypoint.final(value=5, save=7))
    assert (await flow.aget_state("t")).values == 5
    assert await flow.ainvoke(1, "t") == 8
    assert got == [10, 7]


async def test_an_entrypoint_that_asks(saver: BaseCheckpointSaver) -> None:
    """While the entrypoint is pending, the update is its result: the question is gone, and nothing else runs."""
    ran: list[Any] = []

    @entrypoint(saver, blocking=False)
    def flow(given: int, *, previous: Any = None) -> Any:
        ran.append(previous)
        return interrupt("how many?")

    await flow.ainvoke(1, "t")
    await flow.aupdate_state("t", 3)
    state = await flow.aget_state("t")
    assert (state.values, state.next, state.interrupts) == (3, (), ())
    assert await flow.ainvoke(None, "t") == 3
    await flow.ainvoke(1, "t")
    assert ran == [None, 3]


async def test_history_before_and_after(saver: BaseCheckpointSaver, nodes: Nodes) -> None:
    """Results set by edits are shown at the checkpoint on which their task was planned, with the id that it had; newest
    first, each the parent of the one before it."""
    graph = chain(nodes, "a", "b", "c").compile(saver, blocking=False)
    await stopped(graph, 1)
    ids = {each.name: each.id for each in (await graph.aget_state("t")).tasks}
    await graph.aupdate_state("t", {"log": ["B"]}, "b")
    await graph.ainvoke(None, "t")
    states = await history(graph)
    assert [made_by(state) for state in states] == [
        ("loop", 3),
        ("update", 2),
        ("loop", 1),
        ("loop", 0),
        ("input", -1),
    ]
    assert [state.parent_config for state in states] == [state.config for state in states[1:]] + [None]
    assert [results(state) for state in states[:-1]] == [
        {},
        {"c": {"log": ["c"]}},
        {"b": {"log": ["B"]}},
        {"a": {"log": ["a"]}},
    ]
    assert states[2].tasks[0].id == ids["b"]
    assert [state.next for state in states] == [(), ("c",), ("b",), ("a",), (START,)]


async def test_a_finished_task_that_shows_no_result(saver: BaseCheckpointSaver) -> None:
    """A task that finished without writing a channel shows an empty result, and is not next: neither while its
    superstep is open, nor after an update of a sibling."""
    done = anyio.Event()

    async def quiet(value: Any) -> None:
        done.set()

    async def asks(value: Any) -> Any:
        await done.wait()
        return interrupt("?")

    graph = Pregel(
        nodes={
            "a": NodeBuilder().subscribe_only("in").do(quiet),
            "b": NodeBuilder().subscribe_only("in").do(asks).write_to("out"),
            "c": NodeBuilder().subscribe_only("in").do(asks).write_to("out"),
        },
        channels={"in": EphemeralValue(int), "out": Topic(int)},
        input_channels="in",
        output_channels="out",
        checkpointer=saver,
    )
    await graph.ainvoke(1, "t")
    state = await graph.aget_state("t")
    assert (state.next, results(state)) == (("b", "c"), {"a": {}, "b": None, "c": None})
    await graph.aupdate_state("t", None, "b")
    assert (await graph.aget_state("t")).next == ("c",)
    assert (await history(graph))[0].next == ("c",)


async def test_editing_the_same_thread_again_gives_the_same_trace(nodes: Nodes) -> None:
    """P2: the same edits give the same trace: values, tasks, ids and results."""

    async def traced() -> Any:
        graph = fan_out(nodes, "a", "b").add_node("x", nodes("x")).compile(InMemorySaver(), blocking=False)
        await stopped(graph, 1)
        await graph.aupdate_state("t", {"log": ["X"]}, "x")
        await graph.aupdate_state("t", {"log": ["A"]}, "a")
        await graph.ainvoke(None, "t")
        return [(comparable(state), [each.id for each in state.tasks]) for state in await history(graph)]

    assert await traced() == await traced()


async def test_an_edit_of_a_subgraph_removes_its_question_from_the_parent(saver: BaseCheckpointSaver) -> None:
    """State editing; P8: an update as the node that asked replaces its answer: the parent graphs no longer show its
    question, an answer to it is refused, and the thread continues."""

    def asks(state: State) -> State:
        return {"log": [interrupt("who?")]}

    inner = StateGraph(State).add_node("asks", asks).add_edge(START, "asks").compile()
    middle = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    graph = StateGraph(State).add_node("middle", middle).add_node("other", asks).add_edge(START, "middle")
    made = graph.add_edge(START, "other").compile(saver, blocking=False)
    await made.ainvoke({"log": []}, "t")
    before = await made.aget_state("t", subgraphs=True)
    assert len(before.interrupts) == 2
    inside = next(task for task in before.tasks if task.name == "middle").state.tasks[0].state
    gone = inside.interrupts[0].id
    await made.aupdate_state(inside.config, {"log": ["by hand"]}, "asks")
    after = await made.aget_state("t", subgraphs=True)
    assert [question.id for question in after.interrupts] == [q.id for q in before.interrupts if q.id != gone]
    with pytest.raises(InvalidResumeError):
        await made.ainvoke(Command(resume={gone: "late"}), "t")
    assert (await made.ainvoke(Command(resume="me"), "t"))["log"] == ["by hand", "me"]
