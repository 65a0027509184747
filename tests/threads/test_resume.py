"""Resuming after a failure: recorded results, the shown state, and the tasks that run again."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Send, StateGraph, StateSnapshot
from pregel_async.errors import GraphRecursionError, InvalidUpdateError
from pregel_async.types import TaskFailure

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


class Oops(Exception):
    """A user's own exception."""


class Switches:
    """Switches for the nodes that fail, and counts of what ran."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.ran: Counter[str] = Counter()

    def node(self, name: str, *, after: anyio.Event | None = None, done: anyio.Event | None = None) -> Any:
        async def call(state: Any) -> dict[str, Any]:
            self.ran[name] += 1
            if after is not None:
                await after.wait()
            if name in self.broken:
                raise Oops(name)
            if done is not None:
                done.set()
            return {"log": [name]}

        return call

    def router(self, name: str, answer: Any = END) -> Callable[[Any], Any]:
        def route(state: Any) -> Any:
            self.ran[name] += 1
            if name in self.broken:
                raise Oops(name)
            return answer

        route.__name__ = name
        return route


@pytest.fixture
def switches() -> Switches:
    return Switches()


async def history(graph: Any, config: Any = "t") -> list[StateSnapshot]:
    return [state async for state in graph.aget_state_history(config)]


def described(failure: TaskFailure | None) -> tuple[str, str] | None:
    return None if failure is None else (failure.type, failure.message)


OOPS = f"{Oops.__module__}.Oops"


async def test_a_failure_is_recorded_shown_and_cleared(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P3: a failed superstep is recorded (task, error type, message, time), shows in state and history, and is cleared
    when a resume closes it."""
    switches.broken = {"b"}
    made = StateGraph(State).add_sequence([(name, switches.node(name)) for name in "abc"]).add_edge(START, "a")
    graph = made.compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": ["a"]}, ("b",))
    (task,) = state.tasks
    assert (task.name, described(task.error), task.result) == ("b", (OOPS, "b"), None)
    assert task.error is not None
    assert task.error.time > 1_600_000_000
    assert str(task.error) == f"{OOPS}: b"
    assert (await history(graph))[0] == state
    switches.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b", "c"]}
    assert switches.ran == {"a": 1, "b": 2, "c": 1}
    for state in await history(graph):
        assert [task.error for task in state.tasks] == [None] * len(state.tasks)
    assert (await graph.aget_state(state.config)).error is None


async def test_a_failure_in_the_first_superstep(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P3, P5: the input is stored before the first node runs: a run that fails there is resumed without it."""
    switches.broken = {"a"}
    graph = StateGraph(State).add_node("a", switches.node("a")).add_edge(START, "a").compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({"note": "x"}, "t")
    assert (await graph.aget_state("t")).values == {"log": [], "note": "x"}
    switches.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a"], "note": "x"}


async def test_failing_again_and_again(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P3: each attempt's failure replaces the previous one; they do not accumulate."""
    switches.broken = {"a"}
    graph = StateGraph(State).add_node("a", switches.node("a")).add_edge(START, "a").compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    before = len(await history(graph))
    for _ in range(3):
        with pytest.raises(Oops):
            await graph.ainvoke(None, "t")
        state = await graph.aget_state("t")
        assert ([described(task.error) for task in state.tasks], state.next) == ([(OOPS, "a")], ("a",))
    assert len(await history(graph)) == before
    switches.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a"]}


async def test_the_live_object_is_never_stored(saver: BaseCheckpointSaver) -> None:
    """P3: the stored failure is data, even when the exception holds unstorable objects."""

    class Local(Exception):
        def __init__(self) -> None:
            super().__init__("described", object(), lambda: None)
            self.lock = object()

    def node(state: Any) -> None:
        raise Local

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, blocking=False)
    with pytest.raises(Local):
        await graph.ainvoke({}, "t")
    (task,) = (await graph.aget_state("t")).tasks
    assert task.error is not None
    assert task.error.type.endswith("Local")
    assert "described" in task.error.message


class TextlessError(Exception):
    """An exception whose text cannot be computed."""

    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_an_exception_without_a_text(saver: BaseCheckpointSaver) -> None:
    """P3, P9: recording a failure never hides the failure: an exception whose `str()` raises is raised itself."""

    def node(state: Any) -> None:
        raise TextlessError

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, blocking=False)
    with pytest.raises(TextlessError):
        await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    assert state.next == ("n",)
    assert state.tasks[0].error is not None
    assert state.tasks[0].error.type.endswith("TextlessError")


async def test_a_message_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P3, P9: an exception whose message is no text that a database takes is raised itself, too."""

    def node(state: Any) -> None:
        raise ValueError("half a pair \ud800 and \x00")

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, blocking=False)
    with pytest.raises(ValueError, match="half a pair") as caught:
        await graph.ainvoke({}, "t")
    assert not any("could not be recorded" in note for note in caught.value.__notes__)
    assert (await graph.aget_state("t")).tasks[0].error is not None


async def test_finished_siblings_do_not_run_again(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5, rule 5: results of siblings that finished before a failure are recorded, shown, and not computed again; the
    fold is in plan order all the same."""
    done = anyio.Event()
    switches.broken = {"b"}
    made = StateGraph(State)
    made.add_node("a", switches.node("a", done=done)).add_node("b", switches.node("b", after=done))
    made.add_edge(START, "a").add_edge(START, "b").add_node("j", switches.node("j")).add_edge(["a", "b"], "j")
    graph = made.compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": []}, ("b",))
    assert [(task.name, described(task.error), task.result) for task in state.tasks] == [
        ("a", None, {"log": ["a"]}),
        ("b", (OOPS, "b"), None),
    ]
    switches.broken.clear()
    chunks = [chunk async for chunk in graph.astream(None, "t")]
    assert chunks[:2] in (
        [{"a": {"log": ["a"]}, "__metadata__": {"cached": True}}, {"b": {"log": ["b"]}}],
        [{"b": {"log": ["b"]}}, {"a": {"log": ["a"]}, "__metadata__": {"cached": True}}],
    )
    assert (await graph.aget_state("t")).values == {"log": ["a", "b", "j"]}
    assert switches.ran == {"a": 1, "b": 2, "j": 1}


async def test_a_finished_task_that_wrote_nothing(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A task that wrote nothing counts as finished too."""
    done = anyio.Event()
    switches.broken = {"b"}

    async def quiet(state: Any) -> None:
        switches.ran["quiet"] += 1
        done.set()

    made = StateGraph(State).add_node(quiet).add_node("b", switches.node("b", after=done))
    graph = made.add_edge(START, "quiet").add_edge(START, "b").compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).next == ("b",)
    switches.broken.clear()
    await graph.ainvoke(None, "t")
    assert switches.ran == {"quiet": 1, "b": 2}


async def test_finished_sends_do_not_run_again(saver: BaseCheckpointSaver) -> None:
    """P5: each send is recorded by itself; the failed one alone runs again; results are in index order."""
    ran: Counter[int] = Counter()
    broken = {3}
    others = anyio.Event()

    async def worker(number: int) -> dict[str, Any]:
        ran[number] += 1
        if sum(ran.values()) >= 6:
            others.set()
        if number in broken:
            await others.wait()
            raise Oops(number)
        return {"log": [str(number)]}

    made = (
        StateGraph(State).add_node(worker).add_conditional_edges(START, lambda s: [Send("worker", n) for n in range(6)])
    )
    graph = made.compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    again = [task.path[1] for task in state.tasks if task.result is None]
    assert 3 in again
    broken.clear()
    others.set()
    assert await graph.ainvoke(None, "t") == {"log": [str(number) for number in range(6)]}
    assert [ran[number] for number in range(6)] == [2 if number in again else 1 for number in range(6)]


async def test_cancelled_siblings_have_cleaned_up(saver: BaseCheckpointSaver) -> None:
    """P9: siblings are cancelled and awaited first: their `finally` blocks have run when the error is raised."""
    steps: list[str] = []
    waiting = anyio.Event()

    async def waits(state: Any) -> None:
        try:
            waiting.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            steps.append("cleaned up")

    async def fails(state: Any) -> None:
        await waiting.wait()
        raise Oops

    made = StateGraph(State).add_node(waits).add_node(fails).add_edge(START, "waits").add_edge(START, "fails")
    graph = made.compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    assert steps == ["cleaned up"]
    state = await graph.aget_state("t")
    assert state.next == ("fails", "waits")
    assert [described(task.error) and described(task.error)[0] for task in state.tasks] == [OOPS, None]


async def test_new_input_discards_open_tasks(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """New input on a thread with unfinished tasks discards them: they do not run, and their siblings' results do not
    count."""
    done = anyio.Event()
    switches.broken = {"b"}
    made = StateGraph(State).add_node("a", switches.node("a", done=done)).add_node("b", switches.node("b", after=done))
    made.add_conditional_edges(START, lambda state: ["a", "b"] if state.get("note") != "end" else END)
    graph = made.compile(saver)
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    assert await graph.ainvoke({"note": "end"}, "t") == {"log": [], "note": "end"}
    assert switches.ran == {"a": 1, "b": 1}
    assert (await graph.aget_state("t")).next == ()
    (open_once,) = [state for state in await history(graph) if any(task.error for task in state.tasks)]
    assert described(open_once.tasks[-1].error) == (OOPS, "b"), "history still shows their outcome"


@pytest.mark.parametrize("sibling", [False, True])
async def test_a_failed_router(saver: BaseCheckpointSaver, switches: Switches, sibling: bool) -> None:
    """P3: routing is part of the superstep: a failed router leaves the task open, and resume runs only the
    routers. (LangGraph skips the router on resume, and reports success.)"""
    switches.broken = {"route"}
    made = StateGraph(State).add_node("a", switches.node("a")).add_node("b", switches.node("b")).add_edge(START, "a")
    made.add_conditional_edges("a", switches.router("route", "b"))
    if sibling:
        made.add_node("c", switches.node("c")).add_edge(START, "c")
    graph = made.compile(saver)
    with pytest.raises(Oops, match="route") as caught:
        await graph.ainvoke({}, "t")
    assert any("'a'" in note for note in caught.value.__notes__)
    state = await graph.aget_state("t")
    assert (state.values, "a" in state.next) == ({"log": []}, True)
    (task,) = [task for task in state.tasks if task.name == "a"]
    assert described(task.error) == (OOPS, "route")
    with pytest.raises(Oops, match="route"):
        await graph.ainvoke(None, "t")
    switches.broken.clear()
    result = await graph.ainvoke(None, "t")
    assert result == {"log": ["a", "c", "b"] if sibling else ["a", "b"]}
    assert (switches.ran["a"], switches.ran["route"], switches.ran["b"]) == (1, 3, 1)


async def test_a_failed_router_among_several(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P3: on resume all routers of the node run again, and the node does not."""
    switches.broken = {"second"}
    made = StateGraph(State).add_node("a", switches.node("a")).add_node("b", switches.node("b")).add_edge(START, "a")
    made.add_conditional_edges("a", switches.router("first", "b")).add_conditional_edges("a", switches.router("second"))
    graph = made.compile(saver)
    with pytest.raises(Oops, match="second"):
        await graph.ainvoke({}, "t")
    switches.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a", "b"]}
    assert switches.ran == {"a": 1, "first": 2, "second": 2, "b": 1}


async def test_a_router_sees_the_same_on_resume(saver: BaseCheckpointSaver) -> None:
    """P3: a router that runs again sees the state with its node's recorded writes folded in."""
    seen: list[Any] = []

    async def route(state: Any) -> str:
        seen.append(dict(state))
        if len(seen) == 1:
            raise Oops
        return END

    made = StateGraph(State).add_node("a", lambda state: {"log": ["a"], "note": "n"}).add_edge(START, "a")
    graph = made.add_conditional_edges("a", route).compile(saver, blocking=False)
    with pytest.raises(Oops):
        await graph.ainvoke({"log": ["in"]}, "t")
    await graph.ainvoke(None, "t")
    assert seen == [{"log": ["in", "a"], "note": "n"}] * 2


async def test_a_failed_router_at_the_start(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P3: a router of START that fails leaves the start open; the input is kept, and a resume runs the router again."""
    switches.broken = {"begin"}
    made = (
        StateGraph(State).add_node("a", switches.node("a")).add_conditional_edges(START, switches.router("begin", "a"))
    )
    graph = made.compile(saver)
    with pytest.raises(Oops, match="begin"):
        await graph.ainvoke({"note": "x"}, "t")
    state = await graph.aget_state("t")
    assert state.next == (START,)
    switches.broken.clear()
    assert await graph.ainvoke(None, "t") == {"log": ["a"], "note": "x"}


async def test_a_bad_answer_is_a_failed_router(saver: BaseCheckpointSaver) -> None:
    """P3: a router's bad answer fails the task like an exception of its own; a better one closes it."""
    answers: list[Any] = ["zz", END]
    ran: list[str] = []
    made = StateGraph(State).add_node("a", lambda state: ran.append("a")).add_edge(START, "a")
    graph = made.add_conditional_edges("a", lambda state: answers.pop(0)).compile(saver, blocking=False)
    with pytest.raises(InvalidUpdateError):
        await graph.ainvoke({}, "t")
    await graph.ainvoke(None, "t")
    assert ran == ["a"]


broken_fold = [False]


def folds(current: list[str], update: list[str]) -> list[str]:
    if broken_fold[0]:
        raise Oops("fold")
    return current + update


class Folded(TypedDict):
    log: Annotated[list[str], folds]


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_a_failed_fold(saver: BaseCheckpointSaver, switches: Switches, names: str) -> None:
    """P5: when a reducer raises, the results of the tasks are recorded: a resume folds again, and runs none of them."""
    broken_fold[0] = True
    made = StateGraph(Folded)
    for name in names:
        made.add_node(name, switches.node(name)).add_edge(START, name)
    graph = made.compile(saver)
    with pytest.raises(Oops, match="fold") as caught:
        await graph.ainvoke({}, "t")
    assert any("'log'" in note and "superstep 1" in note for note in caught.value.__notes__)
    state = await graph.aget_state("t")
    assert described(state.error) == (OOPS, "fold")
    assert [task.error for task in state.tasks] == [None] * len(names)
    broken_fold[0] = False
    assert await graph.ainvoke(None, "t") == {"log": list(names)}
    assert switches.ran == dict.fromkeys(names, 1)
    assert [state.error for state in await history(graph)] == [None, None, None]


async def test_resuming_after_the_limit(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P14: a run that reached its limit can be resumed; no task runs twice."""
    made = StateGraph(State).add_sequence([(name, switches.node(name)) for name in "abcde"]).add_edge(START, "a")
    graph = made.compile(saver)
    config = {"configurable": {"thread_id": "t"}, "recursion_limit": 2}
    for given in ({}, None):
        with pytest.raises(GraphRecursionError):
            await graph.ainvoke(given, config)
    assert await graph.ainvoke(None, config) == {"log": ["a", "b", "c", "d", "e"]}
    assert switches.ran == dict.fromkeys("abcde", 1)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["async", "inline", "thread", "sibling", "router", "stream"])
async def test_what_ends_a_process_leaves_a_resumable_thread(
    saver: BaseCheckpointSaver, kind: type[BaseException], where: str
) -> None:
    """KeyboardInterrupt and SystemExit in a node end the run, as themselves, and it can be resumed."""
    ending = [True]

    def work(state: Any) -> dict[str, Any]:
        if where != "router" and ending and ending.pop():
            raise kind("end")
        return {"log": ["n"]}

    async def waits(state: Any) -> dict[str, Any]:
        if ending or (where == "sibling" and not resumed):
            await anyio.sleep_forever()
        return {"log": ["o"]}

    async def coroutine(state: Any) -> dict[str, Any]:
        return work(state)

    def route(state: Any) -> str:
        if where == "router" and ending and ending.pop():
            raise kind("end")
        return END

    resumed: list[bool] = []
    made = StateGraph(State).add_node("first", lambda state: {"log": ["first"]}).add_edge(START, "first")
    made.add_node("n", coroutine if where == "async" else work).add_edge("first", "n").add_conditional_edges("n", route)
    if where == "sibling":
        made.add_node("o", waits).add_edge("first", "o")
    graph = made.compile(saver, blocking=where == "thread")
    caught: BaseException | None = None
    try:
        with anyio.fail_after(30):
            if where == "stream":
                async with graph.astream({}, "t") as chunks:
                    async for _ in chunks:
                        pass
            else:
                await graph.ainvoke({}, "t")
    except BaseException as error:  # pytest would end at it
        caught = error
    assert type(caught) is kind
    resumed.append(True)
    state = await graph.aget_state("t")
    assert state.values == {"log": ["first"]}
    assert "n" in state.next
    (task,) = [task for task in state.tasks if task.name == "n"]
    assert described(task.error) == (kind.__name__, "end")
    result = await graph.ainvoke(None, "t")
    assert result == {"log": ["first", "n", "o"] if where == "sibling" else ["first", "n"]}


async def test_a_cancelled_run_is_resumable(saver: BaseCheckpointSaver) -> None:
    """P5, P7: a cancelled run can be resumed; finished tasks do not run again, and no failure is reported."""
    ran: Counter[str] = Counter()
    reached = anyio.Event()

    async def quick(state: Any) -> dict[str, Any]:
        ran["quick"] += 1
        return {"log": ["quick"]}

    async def slow(state: Any) -> dict[str, Any]:
        ran["slow"] += 1
        if ran["slow"] == 1:
            reached.set()
            await anyio.sleep_forever()
        return {"log": ["slow"]}

    made = StateGraph(State).add_node(quick).add_node(slow).add_edge(START, "quick").add_edge("quick", "slow")
    graph = made.compile(saver)
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {}, "t")
        await reached.wait()
        group.cancel_scope.cancel()
    state = await graph.aget_state("t")
    assert (state.next, [task.error for task in state.tasks]) == (("slow",), [None])
    assert await graph.ainvoke(None, "t") == {"log": ["quick", "slow"]}
    assert ran == {"quick": 1, "slow": 2}


async def test_a_failed_run_leaves_the_thread_free() -> None:
    """P6: a run releases its lease however it ends: the next one starts at once."""
    saver = InMemorySaver()

    def node(state: Any) -> None:
        raise Oops

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").compile(saver, blocking=False)
    for _ in range(3):
        with pytest.raises(Oops):
            await graph.ainvoke({}, "t")
