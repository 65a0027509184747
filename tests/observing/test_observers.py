"""Observers themselves: what it costs when there is none, what becomes of one that raises, what is around a node's code."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import START, Command, NodeError, RetryPolicy, StateGraph, interrupt, task
from pregel_async._runtime.observing import observation, observed, observer, observers
from pregel_async.errors import ObserverWarning
from pregel_async.observing import AttemptStarted, Event, Figures, Observer, RunEnded, RunStarted
from tests.observing.watched import Clock, EventLog, Slow, State, beside, chain, node

pytestmark = pytest.mark.anyio


# ---- nobody observes -------------------------------------------------------------------------------------------------


async def everything(**options: Any) -> None:
    """Runs in which everything happens that can be told."""
    clock = Clock()
    saver = Slow(clock)

    @task
    async def called() -> int:
        return 1

    async def handler(state: State, error: NodeError) -> State:
        return {"log": [await called()]}

    async def asks(state: State) -> State:
        return {"log": [interrupt("who?")]}

    inner = chain(("x", node("x"))).compile()
    retry = RetryPolicy(initial_interval=1)
    graph = StateGraph(State).add_node("a", node("a", fails=1), retry_policy=retry).add_edge(START, "a")
    graph.add_node("b", node("b", fails=1), error_handler=handler).add_edge("a", "b")
    graph.add_node("inside", inner).add_edge("a", "inside").add_node("asks", asks).add_edge("inside", "asks")
    compiled = graph.compile(saver, environment=clock, **options)
    async with compiled.astream({"log": []}, "t", stream_mode=["updates", "values"]) as chunks:
        async for _ in chunks:
            pass
    await compiled.ainvoke(Command(resume="me"), "t")
    await compiled.aupdate_state("t", {"log": [1]}, "a")
    saver.fails["commit"] = StorageError("gone")
    with pytest.raises(StorageError):
        await compiled.ainvoke({"log": []}, "t")


async def test_without_an_observer_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event, and nothing that would tell one; in runs in which everything happens."""
    made: list[str] = []
    kinds = [getattr(observer, kind.__name__) for kind in Event.__args__]
    kinds += [
        observers.Observers,
        observed.Observed,
        observed.ObservedUpdate,
        observed.ObservedAttempt,
        observed._MeasuredSaver,
    ]

    def counting(kind: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            made.append(kind.__name__)
            return kind(*args, **kwargs)

        return make

    from pregel_async._api import threads
    from pregel_async._runtime.engine import nested, run

    for module in (observed, observation, observers, run, nested, threads):
        for kind in kinds:
            if vars(module).get(kind.__name__) is kind:
                monkeypatch.setattr(module, kind.__name__, counting(kind))
    await everything()
    assert made == []
    await everything(observer=Observer())
    assert {kind.__name__ for kind in kinds} - set(made) == {"ConflictMet"}  # nobody else was there


def test_events_are_told_apart_by_what_they_are() -> None:
    """They are keys: two that say the same are two; and none can be changed."""
    one, other = (RunStarted(run_id="r", thread_id=None, namespace="", graph="g") for _ in range(2))
    assert one != other and len({one, other}) == 2
    with pytest.raises(AttributeError):
        one.run_id = "another"
    assert msgspec.structs.asdict(one)["graph"] == "g"


# ---- one that raises -------------------------------------------------------------------------------------------------


class Broken(Observer):
    """Raises whatever it is told."""

    def __init__(self, error: type[BaseException] = ZeroDivisionError) -> None:
        self.error = error
        self.told = 0

    def __repr__(self) -> str:
        return "<my observer>"

    def observe(self, event: Event, /) -> None:
        self.told += 1
        raise self.error(f"number {self.told}")


@pytest.mark.parametrize("stored", [False, True])
async def test_an_observer_that_raises_changes_nothing(stored: bool) -> None:
    """P9: it is told once, when the run has ended, with what it was and how often; the others miss nothing."""
    broken, told = Broken(), EventLog()
    inner = chain(("x", node("x"))).compile()
    graph = chain(("a", node("a")), ("b", inner)).compile(InMemorySaver() if stored else None, observer=broken)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert await graph.ainvoke({"log": []}, "t" if stored else None, observer=told) == {"log": ["a", "a", "x"]}
    assert [warning.category for warning in caught] == [ObserverWarning]
    message = str(caught[0].message)
    assert message.startswith("observer <my observer> raised ZeroDivisionError: number 1 on RunStarted, and failed ")
    assert f"{broken.told - 1} times more" in message
    assert broken.told == len(told.events) > 10


@pytest.mark.parametrize("error", [anyio.EndOfStream, GeneratorExit, StopIteration, StopAsyncIteration])
async def test_whatever_it_raises(error: type[BaseException]) -> None:
    """Also what means something to coroutines."""
    graph = chain(("a", node("a")), ("b", node("b"))).compile(InMemorySaver())
    with pytest.warns(ObserverWarning, match=error.__name__):
        assert await graph.ainvoke({"log": []}, "t", observer=Broken(error)) == {"log": ["a", "b"]}


async def test_a_cancellation_that_an_observer_makes_up() -> None:
    """Raised in its own code, it cancels nobody."""
    graph = chain(("a", node("a"))).compile()
    kind = anyio.get_cancelled_exc_class()

    class Cancels(Observer):
        def observe(self, event: Event, /) -> None:
            raise kind.__new__(kind)

    with pytest.warns(ObserverWarning):
        assert await graph.ainvoke({"log": []}, observer=Cancels()) == {"log": ["a"]}


async def test_where_warnings_are_errors() -> None:
    """The run ends, and is stored; then the warning is raised, with its cause. Several are told in one."""
    graph = chain(("a", node("a")), ("b", node("b"))).compile(InMemorySaver(), observer=Broken())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ObserverWarning) as raised:
            await graph.ainvoke({"log": []}, "t", observer=Broken(KeyError))
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert "KeyError" in raised.value.__notes__[0]
        state = await graph.aget_state("t")
        assert (state.values, state.next) == ({"log": ["a", "b"]}, ())
        with pytest.raises(ObserverWarning):
            await graph.aupdate_state("t", {"log": ["c"]}, "b")
        assert (await graph.aget_state("t")).values == {"log": ["a", "b", "c"]}


async def test_where_warnings_are_errors_the_runs_own_error_is_raised() -> None:
    """And the observer's is a note of it."""
    graph = chain(("a", node("a", fails=1))).compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConnectionError, match="a failed") as raised:
            await graph.ainvoke({"log": []}, observer=Broken())
    assert any("my observer" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_what_ends_the_process_is_let_through(error: type[BaseException]) -> None:
    """Ctrl-C may hit an observer's code as well as any other."""
    told = EventLog()

    class Ends(Observer):
        def observe(self, event: Event, /) -> None:
            if isinstance(event, AttemptStarted):
                raise error

    graph = chain(("a", node("a"))).compile(observer=told)
    with pytest.raises(error):
        await graph.ainvoke({"log": []}, observer=Ends())
    assert told.one(RunEnded).status == "failed"


# ---- around a node's code --------------------------------------------------------------------------------------------

where: ContextVar[str] = ContextVar("where", default="outside")


class GraphContext(Observer):
    """Sets a context variable around each attempt."""

    def __init__(self) -> None:
        self.left: list[tuple[str, Any]] = []

    @contextlib.contextmanager
    def around(self, started: AttemptStarted, /) -> Iterator[None]:
        token = where.set(f"{where.get()}>{started.node}")
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.left.append((started.node, type(error).__name__))
            where.reset(token)


async def test_what_is_entered_around_a_node_is_seen_in_all_of_its_code() -> None:
    """In the node, its tasks, its worker thread, its router, graphs and tasks that it runs; and nowhere else."""
    seen: dict[str, str] = {}

    def see(name: str) -> None:
        seen[name] = where.get()

    @task
    async def called() -> None:
        see("called task")

    async def x(state: State) -> State:
        see("graph inside")
        return {}

    inner = chain(("x", x)).compile()

    async def first(state: State) -> State:
        see("async node")

        async def child() -> None:
            see("task of its own")

        async with anyio.create_task_group() as group:
            group.start_soon(child)
        await called()
        await inner.ainvoke({"log": []})
        return {}

    def second(state: State) -> State:
        assert threading.current_thread() is not threading.main_thread()
        see("worker thread")
        return {}

    def router(state: State) -> str:
        see("router")
        return "second"

    graph = StateGraph(State).add_node("first", first).add_node("second", second).add_edge(START, "first")
    graph.add_conditional_edges("first", router, ["second"])
    await graph.compile().ainvoke({"log": []}, observer=GraphContext())
    assert seen == {
        "async node": "outside>first",
        "task of its own": "outside>first",
        "called task": "outside>first>called",
        "graph inside": "outside>first>x",
        "router": "outside>first",
        "worker thread": "outside>second",
    }
    assert where.get() == "outside"


@pytest.mark.parametrize("timeout", [None, 1000])
async def test_siblings_and_later_nodes_see_nothing_of_it(timeout: float | None) -> None:
    """Each attempt is entered by itself, one that is timed too, and left with what it raised."""
    seen: list[str] = []

    async def sees(state: State) -> State:
        await anyio.lowlevel.checkpoint()
        seen.append(where.get())
        return {}

    watch = GraphContext()
    graph = StateGraph(State)
    for name in "ab":
        graph.add_node(name, sees, timeout=timeout).add_edge(START, name)
    graph.add_node("c", sees, timeout=timeout).add_edge("a", "c")
    graph.add_node("d", node("d", fails=1), timeout=timeout).add_edge("c", "d")
    with pytest.raises(ConnectionError) as raised:
        await graph.compile(observer=watch).ainvoke({"log": []})
    assert not any("observer" in note for note in raised.value.__notes__)  # it let the error through, and raised none
    assert sorted(seen) == ["outside>a", "outside>b", "outside>c"]
    assert sorted(watch.left) == [("a", "NoneType"), ("b", "NoneType"), ("c", "NoneType"), ("d", "ConnectionError")]
    assert where.get() == "outside"


async def test_what_is_around_is_left_when_the_node_is_cancelled() -> None:
    watch = GraphContext()

    async def waits(state: State) -> State:
        scope.cancel()
        await anyio.sleep_forever()
        return {}

    with anyio.CancelScope() as scope:
        await chain(("waits", waits)).compile(observer=watch).ainvoke({"log": []})
    assert watch.left == [("waits", anyio.get_cancelled_exc_class().__name__)]


@pytest.mark.parametrize("how", ["enter", "exit", "suppress", "replace", "same", "call"])
async def test_what_is_around_cannot_change_the_run(how: str) -> None:
    """Raising on entering or leaving, suppressing the node's error, or raising another."""

    class Manager:
        def __enter__(self) -> None:
            if how == "enter":
                raise ZeroDivisionError

        def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
            if how == "exit" or (how == "replace" and error is not None):
                raise ZeroDivisionError
            if how == "same" and error is not None:
                raise error
            return True

    class Wrong(Observer):
        def around(self, started: AttemptStarted, /) -> Any:
            if how == "call":
                raise ZeroDivisionError
            return Manager()

    graph = chain(("a", node("a")), ("b", node("b", fails=1))).compile(observer=Wrong())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ConnectionError, match="b failed"):
            await graph.ainvoke({"log": []})
    assert len(caught) == (0 if how in ("suppress", "same") else 1)
    assert all("ZeroDivisionError" in str(each.message) and "in around()" in str(each.message) for each in caught)


# ---- figures ---------------------------------------------------------------------------------------------------------


async def test_the_figures_of_several_calls_are_added_up() -> None:
    """And can be read by people."""
    clock, figures = Clock(), Figures()
    saver = Slow(clock, *[0.01] * 99, 0.2)
    graph = beside(a=node("a", clock=clock, takes=1), b=node("b")).compile(saver, environment=clock, observer=figures)
    for number in range(2):
        await graph.ainvoke({"log": []}, f"t{number}")
    assert (figures.runs["done"], figures.supersteps, figures.tasks, round(figures.seconds, 6)) == (2, 2, 4, 2.06)
    assert list(figures.lines()) == [
        "2 supersteps, 4 tasks, 2.1 s",
        f"6 writes to storage: 6 checkpoints, 2 records, {figures.bytes} B; p50 10.0 ms, p95 10.0 ms, max 10.0 ms",
    ]
    assert str(figures) == "\n".join(figures.lines())


def test_figures_that_stand_out_are_named() -> None:
    """What did not happen is left out."""
    figures = Figures()
    assert str(figures) == "0 supersteps, 0 tasks, 0.0 s"
    assert figures.latency(0.5) == figures.latency(1) == 0
    figures.replayed, figures.retries, figures.failures, figures.handled = 1, 2, 3, 1
    figures.refused, figures.depth, figures.bytes = 1, 5, 2_500_000
    figures.conflicts.update(lost=1, waiting=2)
    figures.updates, figures.update_seconds, figures.spent = 1, 0.25, {"tokens": 5}
    assert list(figures.lines()) == [
        "0 supersteps, 0 tasks, 1 task not run again, 2 retries, 3 failures (1 handled), 0.0 s",
        "0 writes to storage (1 refused): 0 checkpoints, 0 records, 2.5 MB; p50 0.0 ms, p95 0.0 ms, max 0.0 ms",
        "5 parts waited for the reader at most",
        "conflicts with other runs: 1 lost, 2 waiting",
        "1 edit of threads; 250.0 ms for a superstep at most",
        "spent: tokens 5",
    ]


@pytest.mark.parametrize("share", [0, -1, 1.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Figures().latency(share)


def test_figures_do_not_grow_with_what_they_count() -> None:
    """P12: the percentiles are of the newest writes; the slowest of all is kept."""
    from pregel_async.observing import LATENCY_WINDOW, CheckpointWritten

    run = RunStarted(run_id="r", thread_id="t", namespace="", graph="g")

    def written(seconds: float) -> CheckpointWritten:
        return CheckpointWritten(
            run=run,
            kind="commit",
            namespace="",
            step=1,
            checkpoints=1,
            records=0,
            events=0,
            size=10,
            seconds=seconds,
        )

    figures = Figures()
    figures.observe(written(9.0))
    for _ in range(LATENCY_WINDOW):
        figures.observe(written(1.0))
    assert len(figures._latencies) == LATENCY_WINDOW
    assert (figures.latency(0.99999), figures.latency(1), figures.writes) == (1.0, 9.0, LATENCY_WINDOW + 1)


async def test_a_graph_and_a_call_may_have_several() -> None:
    """Each is told everything, once, however often it was given."""
    one, two, three = Figures(), Figures(), Figures()
    graph = chain(("a", node("a"))).compile(observer=[one, two])
    await graph.ainvoke({"log": []}, observer=[three, one])
    assert [each.supersteps for each in (one, two, three)] == [1, 1, 1]
