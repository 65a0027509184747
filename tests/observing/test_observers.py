"""Observers: the cost without one, the effect of one that raises, and context managers around a node's code."""

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
from pregel_async.prebuilt import ModelCall, as_model
from pregel_async.prebuilt.usage import counted_model
from tests.observing.recording import Clock, EventLog, State, TimedSaver, chain, node, parallel

pytestmark = pytest.mark.anyio


async def everything(**options: Any) -> None:
    """Run graphs that cause every kind of event."""
    clock = Clock()
    saver = TimedSaver(clock)

    @task
    async def called() -> int:
        return 1

    async def handler(state: State, error: NodeError) -> State:
        return {"log": [await called()]}

    async def asks(state: State) -> State:
        return {"log": [interrupt("who?")]}

    async def asks_a_model(state: State) -> State:
        return {"log": [await as_model(lambda messages, tools: "yes").answer(ModelCall(messages=["well?"]))]}

    inner = chain(("x", asks_a_model)).compile()
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


async def test_without_an_observer_no_event_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that cause every kind of event create neither events nor objects that deliver them."""
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

    for module in (observed, observation, observers, run, nested, threads, counted_model):
        for kind in kinds:
            if vars(module).get(kind.__name__) is kind:
                monkeypatch.setattr(module, kind.__name__, counting(kind))
    await everything()
    assert made == []
    await everything(observer=Observer())
    assert {kind.__name__ for kind in kinds} - set(made) == {"ConflictMet"}  # no other run was there


def test_events_are_compared_by_identity() -> None:
    """Events are hashable: two with equal fields differ, and none can be changed."""
    one, other = (RunStarted(run_id="r", thread_id=None, namespace="", graph="g") for _ in range(2))
    assert one != other and len({one, other}) == 2
    with pytest.raises(AttributeError):
        one.run_id = "another"
    assert msgspec.structs.asdict(one)["graph"] == "g"


class Broken(Observer):
    """Raises on every event."""

    def __init__(self, error: type[BaseException] = ZeroDivisionError) -> None:
        self.error = error
        self.count = 0

    def __repr__(self) -> str:
        return "<my observer>"

    def observe(self, event: Event, /) -> None:
        self.count += 1
        raise self.error(f"number {self.count}")


@pytest.mark.parametrize("stored", [False, True])
async def test_an_observer_that_raises_does_not_affect_the_run(stored: bool) -> None:
    """P9: one warning at the end of the run says what it raised and how often; other observers miss no event."""
    broken, log = Broken(), EventLog()
    inner = chain(("x", node("x"))).compile()
    graph = chain(("a", node("a")), ("b", inner)).compile(InMemorySaver() if stored else None, observer=broken)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert await graph.ainvoke({"log": []}, "t" if stored else None, observer=log) == {"log": ["a", "a", "x"]}
    assert [warning.category for warning in caught] == [ObserverWarning]
    message = str(caught[0].message)
    assert message.startswith("observer <my observer> raised ZeroDivisionError: number 1 on RunStarted, and failed ")
    assert f"{broken.count - 1} times more" in message
    assert broken.count == len(log.events) > 10


@pytest.mark.parametrize("error", [anyio.EndOfStream, GeneratorExit, StopIteration, StopAsyncIteration])
async def test_an_observer_may_raise_any_exception(error: type[BaseException]) -> None:
    """Exceptions with a meaning for coroutines, too."""
    graph = chain(("a", node("a")), ("b", node("b"))).compile(InMemorySaver())
    with pytest.warns(ObserverWarning, match=error.__name__):
        assert await graph.ainvoke({"log": []}, "t", observer=Broken(error)) == {"log": ["a", "b"]}


async def test_a_cancellation_raised_by_an_observer() -> None:
    """If an observer raises a cancellation, no task is cancelled."""
    graph = chain(("a", node("a"))).compile()
    kind = anyio.get_cancelled_exc_class()

    class Cancels(Observer):
        def observe(self, event: Event, /) -> None:
            raise kind.__new__(kind)

    with pytest.warns(ObserverWarning):
        assert await graph.ainvoke({"log": []}, observer=Cancels()) == {"log": ["a"]}


async def test_where_warnings_are_errors() -> None:
    """The run ends and is stored; then the warning is raised with its cause. The warnings of several observers are
    raised as one."""
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


async def test_the_runs_own_error_takes_precedence_over_warnings() -> None:
    """The observer's error is a note of the run's error."""
    graph = chain(("a", node("a", fails=1))).compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConnectionError, match="a failed") as raised:
            await graph.ainvoke({"log": []}, observer=Broken())
    assert any("my observer" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_exceptions_that_end_the_process_are_raised(error: type[BaseException]) -> None:
    """Ctrl-C may interrupt an observer's code as well as any other."""
    log = EventLog()

    class Ends(Observer):
        def observe(self, event: Event, /) -> None:
            if isinstance(event, AttemptStarted):
                raise error

    graph = chain(("a", node("a"))).compile(observer=log)
    with pytest.raises(error):
        await graph.ainvoke({"log": []}, observer=Ends())
    assert log.one(RunEnded).status == "failed"


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


async def test_a_context_around_a_node_covers_all_of_its_code() -> None:
    """The node, its tasks, its worker thread, its router, graphs and tasks that it runs see it, and no other code
    does."""
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
async def test_siblings_and_later_nodes_do_not_see_it(timeout: float | None) -> None:
    """Each attempt has a context manager of its own, also with a timeout, and the context manager gets the attempt's
    exception."""
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
    assert not any(
        "observer" in note for note in raised.value.__notes__
    )  # the context manager raised no error of its own
    assert sorted(seen) == ["outside>a", "outside>b", "outside>c"]
    assert sorted(watch.left) == [("a", "NoneType"), ("b", "NoneType"), ("c", "NoneType"), ("d", "ConnectionError")]
    assert where.get() == "outside"


async def test_a_context_is_left_when_the_node_is_cancelled() -> None:
    watch = GraphContext()

    async def waits(state: State) -> State:
        scope.cancel()
        await anyio.sleep_forever()
        return {}

    with anyio.CancelScope() as scope:
        await chain(("waits", waits)).compile(observer=watch).ainvoke({"log": []})
    assert watch.left == [("waits", anyio.get_cancelled_exc_class().__name__)]


@pytest.mark.parametrize("how", ["enter", "exit", "suppress", "replace", "same", "call"])
async def test_a_context_cannot_change_the_run(how: str) -> None:
    """It cannot by raising on entering or leaving, by suppressing the node's error, or by raising another."""

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


async def test_the_figures_of_several_calls_are_added() -> None:
    """They also have a readable form."""
    clock, figures = Clock(), Figures()
    saver = TimedSaver(clock, *[0.01] * 99, 0.2)
    graph = parallel(a=node("a", clock=clock, takes=1), b=node("b")).compile(saver, environment=clock, observer=figures)
    for number in range(2):
        await graph.ainvoke({"log": []}, f"t{number}")
    assert (figures.runs["done"], figures.supersteps, figures.tasks, round(figures.seconds, 6)) == (2, 2, 4, 2.06)
    assert list(figures.lines()) == [
        "2 supersteps, 4 tasks, 2.1 s",
        f"6 writes to storage: 6 checkpoints, 2 records, {figures.bytes} B; p50 10.0 ms, p95 10.0 ms, max 10.0 ms",
    ]
    assert str(figures) == "\n".join(figures.lines())


def test_notable_figures_are_shown() -> None:
    """Figures that are zero are left out."""
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
def test_an_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        Figures().latency(share)


def test_the_memory_of_figures_is_bounded() -> None:
    """P12: percentiles cover the newest writes; the slowest of all is kept."""
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


async def test_a_graph_and_a_call_may_have_several_observers() -> None:
    """Each gets every event once, however often it was passed."""
    one, two, three = Figures(), Figures(), Figures()
    graph = chain(("a", node("a"))).compile(observer=[one, two])
    await graph.ainvoke({"log": []}, observer=[three, one])
    assert [each.supersteps for each in (one, two, three)] == [1, 1, 1]
