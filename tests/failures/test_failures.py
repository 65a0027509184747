"""P9: failures are reported completely, at the right place, and in a deterministic order."""

from __future__ import annotations

import operator
import pickle
import random
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.caches import InMemoryCache
from checkpoint_savers.errors import annotate
from pregel_async import START, CachePolicy, NodeBuilder, Pregel, RetryPolicy, Send, StateGraph, errors
from pregel_async.adapters import stream_message
from pregel_async.channels import LastValue
from pregel_async.errors import ErrorCode, GraphRecursionError, InvalidUpdateError, PregelError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str


class Oops(Exception):
    """A user's own exception."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} failed")
        self.name = name


def failing(names: str, *, good: str = "", pause: Any = None) -> Any:
    """Return nodes that all fail at the same moment, in whatever order they run."""
    made = StateGraph(State)
    arrived: list[str] = []

    def node(name: str) -> Any:
        async def call(state: Any) -> dict[str, Any]:
            arrived.append(name)
            with anyio.CancelScope(shield=True):  # the first failure must not cancel the others
                while len(arrived) < len(names) + len(good):
                    await anyio.lowlevel.checkpoint()
                if name in good:
                    return {"log": [name]}
                for _ in range(pause(name) if pause else 0):
                    await anyio.lowlevel.checkpoint()
            raise Oops(name)

        return call

    for name in names + good:
        made.add_node(name, node(name)).add_edge(START, name)
    return made


async def test_the_exception_itself() -> None:
    """P9: one failed task: its own exception, the very object, in no group and under no other exception."""
    error = Oops("a")

    def node(state: Any) -> None:
        raise error

    for blocking in (True, False):
        graph = StateGraph(State).add_node("a", node).add_edge(START, "a").compile(blocking=blocking)
        with pytest.raises(Oops) as caught:
            await graph.ainvoke({})
        assert caught.value is error
        assert (error.__cause__, error.__context__) == (None, None)


async def test_the_note() -> None:
    """P9: a note names node, superstep and task."""
    made = StateGraph(State).add_node("first", lambda state: None).add_node("bad", lambda state: 1 / 0)
    graph = made.add_edge(START, "first").add_edge("first", "bad").compile(InMemorySaver(), blocking=False)
    with pytest.raises(ZeroDivisionError) as caught:
        await graph.ainvoke({}, "t")
    (note,) = caught.value.__notes__
    (task,) = (await graph.aget_state("t")).tasks
    assert note == f"in node 'bad', superstep 2, task {task.id}"


async def test_the_note_of_a_send() -> None:
    """P9: the note of a send has the task's id, which identifies the send."""

    def worker(number: int) -> None:
        if number == 2:
            raise ValueError

    made = (
        StateGraph(State).add_node(worker).add_conditional_edges(START, lambda s: [Send("worker", n) for n in range(4)])
    )
    graph = made.compile(InMemorySaver(), blocking=False)
    with pytest.raises(ValueError) as caught:
        await graph.ainvoke({}, "t")
    ids = [task.id for task in (await graph.aget_state("t")).tasks]
    assert any(ids[2] in note for note in caught.value.__notes__)


async def test_the_note_of_raw_pregel() -> None:
    """P9: low-level nodes get the same note."""
    graph = Pregel(
        nodes={"n": NodeBuilder().subscribe_only("a").do(lambda value: 1 / 0)},
        channels={"a": LastValue(int)},
        input_channels="a",
        output_channels="a",
        blocking=False,
    )
    with pytest.raises(ZeroDivisionError) as caught:
        await graph.ainvoke(1)
    assert "in node 'n', superstep 0" in caught.value.__notes__[0]


class Stubborn(Exception):
    """An exception that takes no notes, and no attributes either."""

    def add_note(self, note: str) -> None:
        raise TypeError("no notes")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__traceback__":  # contextlib sets it
            raise AttributeError(name)
        super().__setattr__(name, value)


def stubborn(*args: Any) -> Any:
    raise Stubborn


async def fine(state: Any) -> dict[str, Any]:
    return {"log": ["fine"]}


class BadlyClosed:
    """A source that fails while it is read, and again while it is closed."""

    def __aiter__(self) -> Any:
        return self

    __anext__ = stubborn

    async def aclose(self) -> None:
        raise Oops("closing")


async def streaming(state: Any) -> None:
    await stream_message(BadlyClosed())


class Refolded(TypedDict):
    log: Annotated[list[str], stubborn]


STUBBORN = {
    "node": lambda: StateGraph(State).add_node("a", stubborn),
    "reducer": lambda: StateGraph(Refolded).add_node("a", fine),
    "retry_on": lambda: StateGraph(State).add_node("a", failing_node, retry_policy=RetryPolicy(retry_on=stubborn)),
    "error handler": lambda: StateGraph(State).add_node("a", failing_node, error_handler=stubborn),
    "key_func": lambda: StateGraph(State).add_node("a", fine, cache_policy=CachePolicy(key_func=stubborn)),
    "source": lambda: StateGraph(State).add_node("a", streaming),
}


async def failing_node(state: Any) -> None:
    raise Oops("a")


@pytest.mark.parametrize("make", STUBBORN.values(), ids=STUBBORN)
async def test_an_exception_that_takes_no_notes(make: Any) -> None:
    """P9: a user's exception is only annotated; one that takes no notes is raised all the same, whichever function
    raises it."""
    graph = make().add_edge(START, "a").compile(blocking=False, cache=InMemoryCache())
    with pytest.raises(Stubborn):
        await graph.ainvoke({"log": []})


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_a_stream_whose_failure_has_no_text() -> None:
    """P9: the reader's own error is raised, with a note on the run's failure, though that failure has no text."""

    async def node(state: Any) -> None:
        raise Unprintable

    graph = StateGraph(State).add_node("a", node).add_edge(START, "a").compile()
    with pytest.raises(Oops) as caught:
        async with graph.astream({}):
            await anyio.wait_all_tasks_blocked()
            raise Oops("reader")
    assert any("the stream's run had failed" in note and "Unprintable" in note for note in caught.value.__notes__)


def test_notes_are_added_once() -> None:
    """P9: an object that is raised again does not collect the same note."""
    error, first = Oops("a"), Oops("b")
    for _ in range(2):
        annotate(error, "a note", context=first)
    assert error.__notes__ == ["a note"] and error.__context__ is first


async def test_an_exception_group_of_the_user() -> None:
    """P9: an ExceptionGroup that one node raised is that node's own exception: not unwrapped, not wrapped again."""
    inner = ExceptionGroup("mine", [ValueError(1), TypeError(2)])

    async def node(state: Any) -> None:
        raise inner

    for with_another in (False, True):
        made = StateGraph(State).add_node("a", node).add_edge(START, "a")
        if with_another:
            made.add_node("b", lambda state: None).add_edge(START, "b")
        with pytest.raises(ExceptionGroup) as caught:
            await made.compile(blocking=False).ainvoke({})
        assert caught.value is inner


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration])
@pytest.mark.parametrize("how", ["async", "inline", "thread"])
async def test_exceptions_that_mean_something_to_python(kind: type[BaseException], how: str) -> None:
    """P9: StopIteration and the like in a node are failures like others: the run neither hangs nor ends as if it had
    succeeded."""

    def node(state: Any) -> None:
        raise kind("mine")

    async def coroutine(state: Any) -> None:
        raise kind("mine")

    made = StateGraph(State).add_node("a", coroutine if how == "async" else node).add_edge(START, "a")
    graph = made.compile(InMemorySaver(), blocking=how == "thread")
    caught: BaseException | None = None
    with anyio.fail_after(30):
        try:
            await graph.ainvoke({}, "t")
        except BaseException as error:  # its outcome is checked below
            caught = error
    assert isinstance(caught, (kind, RuntimeError))
    state = await graph.aget_state("t")
    assert state.next == ("a",)


@pytest.mark.parametrize("seed", range(5))
async def test_several_failures_in_plan_order(seed: int) -> None:
    """P9, P2: several failures in one superstep are an ExceptionGroup in plan order, whichever task failed first, each
    with its note. (LangGraph raises an arbitrary one.)"""
    luck = random.Random(seed)
    graph = failing("cadb", good="e", pause=lambda name: luck.randrange(5)).compile(InMemorySaver())
    with pytest.raises(ExceptionGroup) as caught:
        await graph.ainvoke({}, "t")
    group = caught.value
    assert [error.name for error in group.exceptions if isinstance(error, Oops)] == ["a", "b", "c", "d"]
    assert len(group.exceptions) == 4
    for error, name in zip(group.exceptions, "abcd", strict=True):
        assert f"in node {name!r}, superstep 1" in error.__notes__[0]
    assert "4 of 5 tasks of superstep 1" in str(group)
    state = await graph.aget_state("t")
    assert [task.name for task in state.tasks if task.error] == ["a", "b", "c", "d"]


async def test_failures_of_sends_come_after_those_of_nodes() -> None:
    """P2: plan order is triggered nodes by name, then sends by index."""
    arrived: list[Any] = []

    async def node(state: Any) -> None:
        what = state if isinstance(state, int) else "pull"
        arrived.append(what)
        with anyio.CancelScope(shield=True):
            while len(arrived) < 4:
                await anyio.lowlevel.checkpoint()
            for _ in range(3 if what == "pull" else 3 - what):
                await anyio.lowlevel.checkpoint()
        raise Oops(str(what))

    made = (
        StateGraph(State).add_node("s", lambda state: None).add_node("a", node).add_node("z", node).add_edge(START, "s")
    )
    made.add_conditional_edges("s", lambda state: [Send("a", 0), "z", Send("a", 1), Send("a", 2)])
    with pytest.raises(ExceptionGroup) as caught:
        await made.compile(blocking=False).ainvoke({})
    assert [error.name for error in caught.value.exceptions] == ["pull", "0", "1", "2"]


async def test_a_failure_while_being_cancelled_counts() -> None:
    """P9, rule 7: a sibling that fails while it is cancelled for another's failure has failed: its failure is
    not lost."""
    waiting = anyio.Event()

    async def cleans_up_badly(state: Any) -> None:
        try:
            waiting.set()
            await anyio.sleep_forever()
        finally:
            raise Oops("cleanup")

    async def fails(state: Any) -> None:
        await waiting.wait()
        raise Oops("first")

    made = (
        StateGraph(State).add_node("a", cleans_up_badly).add_node("b", fails).add_edge(START, "a").add_edge(START, "b")
    )
    with pytest.raises(ExceptionGroup) as caught:
        await made.compile().ainvoke({})
    assert [str(error) for error in caught.value.exceptions] == ["cleanup failed", "first failed"]


async def test_nothing_is_applied_of_a_failed_superstep() -> None:
    """P3: writes of failed nodes are never applied, nor those of their siblings before the superstep is
    whole."""
    graph = failing("b", good="ac").compile(InMemorySaver())
    with pytest.raises(Oops):
        await graph.ainvoke({"log": ["in"]}, "t")
    assert (await graph.aget_state("t")).values == {"log": ["in"]}


async def test_no_more_tasks_start_after_a_failure() -> None:
    """P9: with max_concurrency, tasks that had not started when another failed do not start any more."""
    started: list[int] = []

    async def worker(number: int) -> None:
        started.append(number)
        if number == 1:
            raise Oops("1")
        await anyio.lowlevel.checkpoint()

    made = (
        StateGraph(State)
        .add_node(worker)
        .add_conditional_edges(START, lambda s: [Send("worker", n) for n in range(50)])
    )
    with pytest.raises(Oops):
        await made.compile().ainvoke({}, {"max_concurrency": 2})
    assert len(started) < 10


def test_one_root() -> None:
    """All errors have one base class; those that LangGraph raises as ValueError, TypeError or RecursionError are of
    that kind too."""
    everything = [getattr(errors, name) for name in errors.__all__]
    exceptions = [
        kind
        for kind in everything
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning)
    ]
    assert len(exceptions) > 15
    assert all(issubclass(kind, PregelError) for kind in exceptions)
    assert issubclass(errors.GraphValidationError, ValueError)
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.InvalidInputError, TypeError)
    assert issubclass(errors.GraphRecursionError, RecursionError)
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize(
    "error",
    [
        GraphRecursionError(5, 7, ("a", "b")),
        InvalidUpdateError("no", channel="c", node="n", code=ErrorCode.INVALID_CONCURRENT_GRAPH_UPDATE),
        errors.GraphChangedError("t", "key", "it changed"),
        errors.CheckpointNotFoundError("t", "id"),
        errors.EmptyChannelError("c"),
        errors.NodeCancelledError("n"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_their_facts(error: Any) -> None:
    """House style, errors: the constructor takes the facts, keeps them as attributes and composes the sentence; an
    error survives pickling, as process pools and test runners need it."""
    facts = {name: value for name, value in vars(error).items() if name != "__notes__"}
    assert facts
    assert str(error)
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
