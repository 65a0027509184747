"""`@task`: calls that run concurrently, are futures, and whose results are recorded."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import operator
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

import anyio
import msgspec
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver, SqliteSaver
from pregel_async import (
    END,
    START,
    Command,
    Runtime,
    Send,
    StateGraph,
    TaskFuture,
    entrypoint,
    get_runtime,
    get_stream_writer,
    interrupt,
    task,
)
from pregel_async.errors import (
    GraphInterrupt,
    GraphValidationError,
    InterruptSwallowedError,
    OutsideRunError,
    StorageError,
    TaskCancelledError,
    UnstorableValueError,
)

if TYPE_CHECKING:
    from nowhere import Unknown  # not there at run time, on purpose

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


class Oops(Exception):
    """A user's own exception."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds."""
    with anyio.fail_after(30):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def all_of(*futures: TaskFuture[Any]) -> list[Any]:
    """`gather`, on any event loop."""
    results: dict[int, Any] = {}

    async def one(place: int, future: TaskFuture[Any]) -> None:
        results[place] = await future

    async with anyio.create_task_group() as group:
        for place, future in enumerate(futures):
            group.start_soon(one, place, future)
    return [results[place] for place in range(len(futures))]


@pytest.fixture
async def on_asyncio(anyio_backend: Any) -> None:
    if anyio_backend[0] != "asyncio":
        pytest.skip("asyncio's own gather and wait, which trio has not")


async def test_calls_run_at_once_without_being_awaited() -> None:
    """A call starts its task; three tasks that wait for each other finish before any was awaited."""
    met = 0
    all_met = anyio.Event()

    @task
    async def meet(name: str) -> str:
        nonlocal met
        met += 1
        if met == 3:
            all_met.set()
        await all_met.wait()
        return name

    @entrypoint()
    async def flow(names: str) -> list[str]:
        futures = [meet(name) for name in names]
        assert not any(future.done() for future in futures)
        await all_met.wait()
        return [await future for future in futures]

    with anyio.fail_after(30):
        assert await flow.ainvoke("abc") == ["a", "b", "c"]


async def test_a_future_is_awaited_as_often_as_one_likes() -> None:
    """A future may be awaited several times, and in several tasks; the body runs once, and each waiter gets a copy of
    the result (P1)."""
    ran = 0

    @task
    async def numbers() -> list[int]:
        nonlocal ran
        ran += 1
        return [1]

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = numbers()
        results = await all_of(future, future, future)
        for result in results:
            result.append(2)
        return [await future, future.result(), ran, future.done(), future.cancelled(), future.exception()]

    assert await flow.ainvoke(1) == [[1], [1], 1, True, False, None]


async def test_arguments_are_isolated() -> None:
    """P1: later changes to an argument, by the caller or in the task, have no effect elsewhere."""
    begin = anyio.Event()

    @task
    async def extended(items: list[int], *, more: dict[str, list[int]]) -> Any:
        await begin.wait()
        items.append(0)
        more["x"].append(0)
        return items, more

    @entrypoint()
    async def flow(given: Any) -> Any:
        items, more = [1], {"x": [2]}
        future = extended(items, more=more)
        items.append(9)
        more["x"].append(9)
        begin.set()
        return [await future, items, more]

    assert await flow.ainvoke(1) == [([1, 0], {"x": [2, 0]}), [1, 9], {"x": [2, 9]}]


async def test_results_are_isolated(saver: BaseCheckpointSaver) -> None:
    """P1: an object that the task keeps and changes later does not change its result."""
    kept: list[int] = [1]

    @task
    async def shared() -> list[int]:
        return kept

    @entrypoint(saver)
    async def flow(given: Any) -> Any:
        future = shared()
        await future
        kept.append(2)
        return await future

    assert await flow.ainvoke(1, "t") == [1]


async def test_gather_and_wait_for(on_asyncio: None) -> None:
    """Asyncio's verbs take futures of tasks: gather, wait_for, shield, as_completed."""
    go = anyio.Event()

    @task
    async def double(x: int) -> int:
        return 2 * x

    @task
    async def slow() -> str:
        await go.wait()
        return "slow"

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = double(5)
        gathered = await asyncio.gather(double(1), future, future, double(3))  # noqa: TID251  # asyncio's own is the point
        waited = await asyncio.wait_for(double(4), 60)
        each = sorted([await done for done in asyncio.as_completed([double(6), double(7)])])
        kept = slow()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(kept), 0.001)
        go.set()
        return [gathered, waited, each, await kept]

    assert await flow.ainvoke(1) == [[2, 10, 10, 6], 8, [12, 14], "slow"]


async def test_a_gather_that_fails_leaves_nothing_behind(on_asyncio: None) -> None:
    """P7: tasks that gather left waiting have ended before control returns, and the first failure is raised alone."""
    ended: list[str] = []

    @task
    async def endless() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("endless")

    @task
    async def fails(name: str) -> None:
        raise Oops(name)

    @entrypoint()
    async def flow(given: Any) -> None:
        await asyncio.gather(endless(), fails("a"), fails("b"))  # noqa: TID251  # asyncio's own is the point

    before = asyncio.all_tasks()
    with pytest.raises(Oops, match="a"):
        await flow.ainvoke(1)
    assert ended == ["endless"]
    assert asyncio.all_tasks() == before


async def test_a_task_as_a_node() -> None:
    """A task is a function like any other, and may be a node's action, too."""

    @task
    async def add(state: State) -> State:
        return {"log": ["task"]}

    graph = StateGraph(State).add_node("n", add).add_edge(START, "n").compile()
    assert await graph.ainvoke({}) == {"log": ["task"]}


async def test_a_task_wraps_its_function() -> None:
    """A task has its function's name and docstring, and its own name in messages."""

    class Adder:
        name = "the object's own"

        def __init__(self) -> None:
            self.func = "the object's own"

        async def __call__(self, x: int) -> int:
            """Adds one."""
            return x + 1

    @task(name="other")
    async def add(x: int) -> int:
        """Adds one."""
        return x + 1

    assert (add.name, add.__name__, add.__doc__, repr(add)) == ("other", "add", "Adds one.", "<task 'other'>")
    wrapped = task(Adder())
    assert wrapped.name == "Adder"

    @entrypoint()
    async def flow(x: int) -> list[int]:
        return [await add(x), await wrapped(x), await task(functools.partial(add.func, 5))()]

    assert await flow.ainvoke(1) == [2, 2, 6]


async def test_bad_tasks() -> None:
    """Bad input: a generator, in whatever shape, or no function, is refused when it is decorated."""

    def generator(x: int) -> Any:
        yield x

    async def agenerator(x: int) -> Any:
        yield x

    class Object:
        def __call__(self, x: int) -> Any:
            yield x

    for call in (generator, agenerator, functools.partial(generator, 1), Object()):
        for decorate in (task, task(name="t")):
            with pytest.raises(GraphValidationError, match="generator: return a value"):
                decorate(call)
    for nothing in (3, "name", object()):
        with pytest.raises(GraphValidationError, match="not callable"):
            task(nothing)


@task
async def one() -> int:
    return 1


async def test_outside_of_a_run() -> None:
    """A call outside a run is a typed error with the remedy; it is a RuntimeError."""
    with pytest.raises(OutsideRunError, match="task 'one' was called outside of a run"):
        one()
    assert issubclass(OutsideRunError, RuntimeError)


async def test_after_the_node_has_ended() -> None:
    """P7: no task can be started for a node that has ended, so that none outlives the node."""
    kept: list[contextvars.Context] = []

    @entrypoint()
    async def flow(given: Any) -> None:
        kept.append(contextvars.copy_context())

    await flow.ainvoke(1)
    with pytest.raises(OutsideRunError, match="'flow', which has ended"):
        kept[0].run(one)


async def test_from_a_thread_of_the_nodes_own() -> None:
    """Bad input: such a thread cannot reach the run: a typed error, for a call, a wait and a cancellation."""
    errors: list[BaseException] = []

    def attempt(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    @task
    async def slow() -> str:
        await anyio.sleep_forever()
        return "never"

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = slow()
        calls: list[Callable[[], Any]] = [slow, future.result, future.cancel, future.exception]
        for call in calls:
            thread = threading.Thread(target=contextvars.copy_context().run, args=(attempt, call))
            thread.start()
            thread.join()
        assert not future.done()
        future.cancel()
        done = one()
        await done
        thread = threading.Thread(target=lambda: errors.append(ValueError(done.result())))
        thread.start()
        thread.join()

    await flow.ainvoke(1)
    assert [type(error) for error in errors] == [OutsideRunError] * 4 + [ValueError]


async def test_waiting_on_the_loop_is_refused() -> None:
    """Bad input: `result()` of a running task on the event loop would stop the loop."""

    @entrypoint()
    async def flow(given: Any) -> int:
        future = one()
        with pytest.raises(OutsideRunError, match="await the future"):
            future.result()
        with pytest.raises(OutsideRunError, match="await the future"):
            future.exception()
        return await future

    assert await flow.ainvoke(1) == 1


async def test_awaiting_in_another_event_loop_is_refused() -> None:
    """Bad input: awaiting in another event loop would wait forever, and is refused."""

    async def wait(future: TaskFuture[int]) -> int:
        return await future

    @entrypoint()
    def flow(given: Any) -> int:
        future = one()
        with pytest.raises(OutsideRunError, match="another event loop"):
            asyncio.run(wait(future))
        return future.result()

    assert await flow.ainvoke(1) == 1


async def test_cancelling_before_it_begins() -> None:
    """A task that is cancelled before it began does not begin."""
    ran: list[str] = []

    @task
    async def body() -> None:
        ran.append("body")

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = body()
        assert future.cancel()
        with pytest.raises(TaskCancelledError, match="'body' was cancelled"):
            await future
        return [future.done(), future.cancelled(), type(future.exception()).__name__, future.cancel()]

    assert await flow.ainvoke(1) == [True, True, "TaskCancelledError", False]
    assert ran == []


async def test_cancelling_while_it_runs_and_after() -> None:
    """A cancelled task cleans up; a task that has ended cannot be cancelled."""
    cleaned: list[str] = []
    begun = anyio.Event()

    @task
    async def slow() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("slow")

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = slow()
        await begun.wait()
        assert future.cancel()
        with pytest.raises(TaskCancelledError):
            await future
        finished = one()
        return [await finished, finished.cancel(), finished.cancelled(), await finished]

    assert await flow.ainvoke(1) == [1, False, False, 1]
    assert cleaned == ["slow"]


async def test_cancelling_from_a_worker_thread() -> None:
    """A plain function can cancel a task, and sees that it was cancelled."""
    cleaned: list[str] = []

    @task
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("slow")

    @entrypoint()
    def flow(given: Any) -> Any:
        future = slow()
        with pytest.raises(TimeoutError):
            future.result(timeout=0.01)
        assert not future.done()
        assert future.cancel()
        with pytest.raises(TaskCancelledError):
            future.result()
        return future.cancelled()

    assert await flow.ainvoke(1) is True
    assert cleaned == ["slow"]


async def test_a_cancelled_task_runs_again(saver: BaseCheckpointSaver) -> None:
    """A cancelled task has no recorded result: the resumed run calls it again, with the same id."""
    ids: list[str] = []
    patient = False

    @task
    async def slow(runtime: Runtime[Any]) -> str:
        ids.append(runtime.execution_info.task_id)
        if not patient:
            await anyio.sleep_forever()
        return "done"

    @entrypoint(saver)
    async def flow(given: Any) -> str:
        future = slow()
        if not patient:
            await until(lambda: bool(ids))
            future.cancel()
            with pytest.raises(TaskCancelledError):
                await future
        return await future + str(interrupt("go on?")) if patient else str(interrupt("go on?"))

    await flow.ainvoke(1, "t")
    patient = True
    assert await flow.ainvoke(Command(resume="!"), "t") == "done!"
    assert len(ids) == 2
    assert ids[0] == ids[1]


async def test_a_waiter_that_is_cancelled_cancels_its_task() -> None:
    """Cancelling a waiter cancels its task, as awaiting does in asyncio: a deadline ends the task, which cleans up."""
    cleaned: list[str] = []

    @task
    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("slow")

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = slow()
        with anyio.move_on_after(0.01):
            await future
        with pytest.raises(TaskCancelledError):
            await future
        return "went on"

    assert await flow.ainvoke(1) == "went on"
    assert cleaned == ["slow"]


async def test_a_failure_is_raised_in_the_waiter() -> None:
    """P9: the waiter gets the exception itself, with a note that names the task; once caught, it has no further
    effect."""

    @task
    async def fails() -> None:
        raise Oops("own")

    @entrypoint()
    async def flow(given: Any) -> Any:
        future = fails()
        try:
            await future
        except Oops as error:
            assert future.exception() is error
            return error.__notes__
        return None

    (note,) = await flow.ainvoke(1)
    assert "in node 'fails', superstep" in note


@pytest.mark.parametrize("node", ["async", "sync"])
async def test_a_failure_that_was_not_awaited_is_raised(node: str, saver: BaseCheckpointSaver) -> None:
    """P9: unawaited tasks end before their caller does, and an exception of one is the caller's failure, itself."""

    @task
    async def fails() -> None:
        raise Oops("own")

    async def aflow(given: Any) -> str:
        fails()
        return "returned"

    def sflow(given: Any) -> str:
        fails()
        return "returned"

    flow = entrypoint(saver)(aflow if node == "async" else sflow)
    with pytest.raises(Oops, match="own") as caught:
        await flow.ainvoke(1, "t")
    assert len(caught.value.__notes__) == 2
    state = await flow.aget_state("t")
    assert state.next == (flow.name,)
    assert state.tasks[0].error is not None


async def test_several_failures_come_as_a_group_in_call_order() -> None:
    """P9: several failures come in the order of the calls, whichever task ended first."""
    last = anyio.Event()

    @task
    async def fails(name: str, after: bool) -> None:
        if after:
            await last.wait()
        else:
            last.set()
        raise Oops(name)

    @entrypoint()
    async def flow(given: Any) -> None:
        fails("a", True)
        one()
        fails("b", False)

    with pytest.raises(ExceptionGroup, match="2 tasks failed") as caught:
        await flow.ainvoke(1)
    assert [str(error) for error in caught.value.exceptions] == ["a", "b"]


async def test_with_the_callers_own_failure() -> None:
    """P9: the caller's own failure comes first, then the failures that were not retrieved. A retrieved or cancelled
    failure is not raised again."""

    @task
    async def fails(name: str) -> None:
        raise Oops(name)

    @task
    async def slow() -> None:
        await anyio.sleep_forever()

    @entrypoint()
    async def flow(given: Any) -> None:
        futures = [fails("a"), slow(), fails("b"), fails("c")]
        with pytest.raises(Oops, match="b"):
            await futures[2]
        await until(lambda: futures[0].done() and futures[3].done())
        raise LookupError("mine")

    with pytest.raises(ExceptionGroup) as caught:
        await flow.ainvoke(1)
    assert [str(error) for error in caught.value.exceptions] == ["mine", "a", "c"]


async def test_a_failure_takes_precedence_over_a_question(saver: BaseCheckpointSaver) -> None:
    """P9: a run that asks while an unawaited task fails raises the failure; the question comes again."""
    broken = True

    @task
    async def fragile() -> None:
        if broken:
            raise Oops("task")

    @entrypoint(saver)
    async def flow(given: Any) -> Any:
        fragile()
        return interrupt("who?")

    with pytest.raises(Oops, match="task"):
        await flow.ainvoke(1, "t")
    broken = False
    assert [question.value for question in (await flow.ainvoke(None, "t"))["__interrupt__"]] == ["who?"]
    assert await flow.ainvoke(Command(resume="me"), "t") == "me"


async def test_unawaited_tasks_end_before_their_caller(saver: BaseCheckpointSaver) -> None:
    """Unawaited tasks end before the superstep does, so that the next one sees their effects."""
    seen: list[str] = []

    @task
    async def late() -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        seen.append("task")

    async def calls(state: State) -> State:
        late()
        return {"log": ["calls"]}

    async def after(state: State) -> State:
        return {"log": list(seen)}

    graph = (
        StateGraph(State)
        .add_node(calls)
        .add_node(after)
        .add_edge(START, "calls")
        .add_edge("calls", "after")
        .compile(saver)
    )
    assert await graph.ainvoke({}, "t") == {"log": ["calls", "task"]}


async def test_a_failed_caller_leaves_nothing_running() -> None:
    """P7: when a caller's failure is caught, in a node around it or in its own caller, its tasks have already ended."""
    ended: list[str] = []

    @task
    async def endless(begun: anyio.Event) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("endless")

    async def fails(given: Any = None) -> None:
        begun = anyio.Event()
        endless(begun)
        await begun.wait()
        raise Oops

    inner, nested = entrypoint()(fails), task(fails)

    @entrypoint()
    async def flow(given: Any) -> int:
        with pytest.raises(Oops):
            await inner.ainvoke(1)
        assert len(ended) == 1
        with pytest.raises(Oops):
            await nested()
        return len(ended)

    assert await flow.ainvoke(1) == 2


async def test_a_failed_sibling_ends_the_tasks_of_the_other_node() -> None:
    """P9, P7: when a node fails, the tasks that its siblings called have cleaned up before the error is raised; also a
    plain sibling that waits for one in its thread."""
    cleaned: Counter[str] = Counter()
    begun = 0

    @task
    async def endless(name: str) -> None:
        nonlocal begun
        begun += 1
        try:
            await anyio.sleep_forever()
        finally:
            cleaned[name] += 1

    async def waits(state: State) -> None:
        await all_of(endless("async"), endless("async"))

    def blocks(state: State) -> None:
        endless("sync").result()

    async def fails(state: State) -> None:
        await until(lambda: begun == 3)
        raise Oops("sibling")

    made = StateGraph(State)
    for node in (waits, blocks, fails):
        made.add_node(node).add_edge(START, node.__name__)
    with anyio.fail_after(30), pytest.raises(Oops, match="sibling"):
        await made.compile().ainvoke({})
    assert cleaned == {"async": 2, "sync": 1}


class Counted:
    """Tasks that count how often their bodies ran."""

    def __init__(self) -> None:
        self.ran: Counter[Any] = Counter()
        self.acknowledged: set[Any] = set()
        self.again: list[Any] = []  # tasks that ran although they had been acknowledged
        self.task = task(self.body)
        self.sync_task = task(self.sync_body)

    async def body(self, x: Any) -> Any:
        return self.sync_body(x)

    def sync_body(self, x: Any) -> Any:
        self.ran[x] += 1
        if x in self.acknowledged:
            self.again.append(x)
        return f"<{x}>"

    def flow(self, saver: BaseCheckpointSaver) -> Any:
        """A workflow of four tasks, one in another, with a question in the middle."""

        @task
        async def around(x: str) -> str:
            return f"{await awaited(x)}!"

        async def awaited(x: str) -> str:
            result: str = await self.task(x)
            self.acknowledged.add(x)
            return result

        async def body(given: Any) -> list[Any]:
            both = self.task("a"), self.sync_task("b")
            first = [await future for future in both]
            self.acknowledged |= {"a", "b"}
            return [*first, interrupt("?"), await around("c"), await awaited("d")]

        return entrypoint(saver)(body)


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def test_finished_tasks_do_not_run_again_after_a_question(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P5, P8: a task that finished before the question does not run again."""

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        first = await counted.task("a")
        counted.sync_task("unawaited")
        answer = interrupt(first)
        return [first, answer, await counted.task("b")]

    asked = await flow.ainvoke(1, "t")
    assert [question.value for question in asked["__interrupt__"]] == ["<a>"]
    assert await flow.ainvoke(Command(resume=0), "t") == ["<a>", 0, "<b>"]
    assert counted.ran == {"a": 1, "unawaited": 1, "b": 1}


async def test_nor_after_the_callers_failure(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P5: nor does it run again when the caller fails, by itself or by another task."""
    broken = True

    @task
    async def fragile() -> str:
        if broken:
            raise Oops
        return "whole"

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        return [await counted.task("a"), *await all_of(counted.sync_task("b")), await fragile()]

    for _ in range(2):
        with pytest.raises(Oops):
            await flow.ainvoke(1 if not counted.ran else None, "t")
    broken = False
    assert await flow.ainvoke(None, "t") == ["<a>", "<b>", "whole"]
    assert counted.ran == {"a": 1, "b": 1}


async def test_nor_after_a_cancellation(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P5, P7: nor when the run was cancelled; every task it had started has ended then."""
    ended: list[str] = []
    patient = False

    @task
    async def slow() -> str:
        try:
            if not patient:
                await anyio.sleep_forever()
        finally:
            ended.append("slow")
        return "slow"

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        future = slow()
        return [await counted.task("a"), await future]

    async with anyio.create_task_group() as group:
        group.start_soon(flow.ainvoke, 1, "t")
        await until(lambda: bool(counted.ran))
        for _ in range(50):  # its result is stored by then, or it is not: both must work
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert ended == ["slow"]
    patient = True
    assert await flow.ainvoke(None, "t") == ["<a>", "slow"]
    assert counted.ran["a"] <= 2


async def test_a_new_process_continues_with_the_recorded_results(tmp_path: Path, counted: Counted) -> None:
    """P5: the run continues from the database alone, with a new saver and a new entrypoint."""

    def made(saver: BaseCheckpointSaver) -> Any:
        @entrypoint(saver)
        async def flow(x: int) -> Any:
            return [await counted.task("a"), interrupt("?"), await counted.task("b")]

        return flow

    async with SqliteSaver.from_conn_string(tmp_path / "t.db") as saver:
        await made(saver).ainvoke(1, "t")
    async with SqliteSaver.from_conn_string(tmp_path / "t.db") as saver:
        assert await made(saver).ainvoke(Command(resume=1), "t") == ["<a>", 1, "<b>"]
    assert counted.ran == {"a": 1, "b": 1}


class FailingSaver(InMemorySaver):
    """A saver whose n-th writing call fails, before or after it was done."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.after = False
        self.recorded: list[str] = []

    async def failing(self, call: Callable[[], Awaitable[T]]) -> T:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise StorageError("injected")
        result = await call()
        if self.left == 0:
            raise StorageError("injected")
        return result

    async def commit(self, lease: Any, commit: Any) -> None:
        await self.failing(lambda: InMemorySaver.commit(self, lease, commit))
        self.recorded += [record.task_id for record in commit.records if record.kind == "result"]

    async def record(self, lease: Any, records: Any, *, expires_at: float) -> None:
        await self.failing(lambda: InMemorySaver.record(self, lease, records, expires_at=expires_at))
        self.recorded += [record.task_id for record in records if record.kind == "result"]


async def test_a_node_that_swallows_the_storages_failure() -> None:
    """P4: the run stops there with the storage's error all the same, and no further task is called."""
    saver, counted = FailingSaver(), Counted()

    @entrypoint(saver)
    async def flow(x: int) -> str:
        for name in "abc":
            with contextlib.suppress(StorageError):
                await counted.task(name)
        return "went on"

    saver.left = 2  # the first stores the input
    with pytest.raises(StorageError, match="injected"):
        await flow.ainvoke(1, "t")
    assert counted.ran == {"a": 1}
    assert await flow.ainvoke(None, "t") == "went on"


@pytest.mark.parametrize("after", [False, True])
async def test_storage_that_fails_at_every_call(after: bool) -> None:
    """P4, P5: the run stops with that error, or with the question's; resumed, it gives the undisturbed result, and no
    task whose result was acknowledged ran twice."""
    for at in range(1, 20):
        counted, saver = Counted(), FailingSaver()

        flow = counted.flow(saver)
        saver.left, saver.after = at, after
        given: Any = 1
        failures = 0
        result: Any = None
        while not isinstance(result, list):
            try:
                result = await flow.ainvoke(given, "t")
            except StorageError as error:
                assert "injected" in str(error)
                failures += 1
            state = await flow.aget_state("t")
            given = Command(resume="yes") if state.interrupts else (None if state.values or state.next else 1)
        assert result == ["<a>", "<b>", "yes", "<c>!", "<d>"], at
        assert failures <= 1
        assert counted.again == [], at
        if not failures:
            assert counted.ran == {"a": 1, "b": 1, "c": 1, "d": 1}
            assert len(set(saver.recorded)) == len(saver.recorded)
            assert at > 4
            return
    raise AssertionError("it never came to an end")


async def test_a_restored_result_is_not_stored_again(counted: Counted) -> None:
    """P10: a restored result is already in the thread, and is not stored again."""
    saver = FailingSaver()

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        return [await counted.task("a"), interrupt("1"), interrupt("2")]

    await flow.ainvoke(1, "t")
    await flow.ainvoke(Command(resume=1), "t")
    await flow.ainvoke(Command(resume=2), "t")
    # The result of the call, once, and the questions of the superstep that has ended, for the history.
    assert len(saver.recorded) == len(set(saver.recorded)) == 2


async def test_results_keep_their_place(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """Results belong to positions in the order of calls: a call appended later does not disturb earlier ones; another
    task at a position runs."""
    calls = ["a", "b"]
    other = task(name="other")(counted.body)

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        results = [await counted.task(call) for call in calls]
        if len(calls) == 3:
            results.append(await other("d"))
        interrupt("?")
        return results

    await flow.ainvoke(1, "t")
    calls.append("c")
    assert await flow.ainvoke(Command(resume=1), "t") == ["<a>", "<b>", "<c>", "<d>"]
    assert counted.ran == {"a": 1, "b": 1, "c": 1, "d": 1}


async def test_a_new_input_runs_everything_again(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P5: records belong to their superstep; the thread's next run does its own work."""

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        result = await counted.task("a")
        if x == 1:
            interrupt("?")
        return result

    await flow.ainvoke(1, "t")
    assert await flow.ainvoke(2, "t") == "<a>"
    assert await flow.ainvoke(3, "t") == "<a>"
    assert counted.ran == {"a": 3}


async def test_task_ids_are_structural(saver: BaseCheckpointSaver) -> None:
    """P2: the same call has the same id on every attempt, whatever the timing of threads; different calls have
    different ids, in sends, nested and in subgraphs."""
    ids: list[list[tuple[str, str]]] = []

    @task
    async def inner(name: str) -> None:
        ids[-1].append((name, get_runtime().execution_info.task_id))

    @task
    async def outer(name: str) -> None:
        ids[-1].append((name, get_runtime().execution_info.task_id))
        await all_of(inner(name + "0"), inner(name + "1"))

    async def node(name: str) -> State:
        await all_of(outer(name + "x"), outer(name + "y"))
        interrupt(name)
        return {}

    sub = StateGraph(State).add_node("n", lambda state: node("sub")).add_edge(START, "n").compile()

    def fan(state: State) -> list[Send]:
        return [Send("n", name) for name in "abc"]

    graph = (
        StateGraph(State)
        .add_node("n", node)
        .add_node("sub", sub)
        .add_conditional_edges(START, fan)
        .add_edge(START, "sub")
        .compile(saver)
    )
    for thread in ("t", "t", "u"):
        ids.append([])
        if thread == "t" and len(ids) == 2:
            await saver.adelete_thread("t")
        await graph.ainvoke({}, thread)
    assert sorted(ids[0]) == sorted(ids[1])
    assert len({task_id for _, task_id in ids[0]}) == len(ids[0]) == 4 * 6
    assert not {task_id for _, task_id in ids[0]} & {task_id for _, task_id in ids[2]}


async def test_nested_tasks_are_recorded_each(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P5: a task inside a task that asks does not run again, nor one in a node, in a send, in a subgraph."""

    @task
    async def outer(name: str) -> list[Any]:
        return [await counted.task(name), interrupt(name), await counted.sync_task(name + "!")]

    async def node(name: str) -> State:
        return {"log": [await outer(name)]}

    sub = StateGraph(State).add_node("n", lambda state: node("sub")).add_edge(START, "n").compile()
    graph = (
        StateGraph(State)
        .add_node("n", node)
        .add_node("sub", sub)
        .add_conditional_edges(START, lambda state: [Send("n", name) for name in "ab"])
        .add_edge(START, "sub")
        .compile(saver)
    )
    asked = (await graph.ainvoke({}, "t"))["__interrupt__"]
    assert [question.value for question in asked] == ["sub", "a", "b"]
    for question in reversed(asked):
        result = await graph.ainvoke(Command(resume={question.id: 1}), "t")
    assert result["log"] == [["<sub>", 1, "<sub!>"], ["<a>", 1, "<a!>"], ["<b>", 1, "<b!>"]]
    assert set(counted.ran.values()) == {1}


async def test_routers_call_tasks_and_ask_for_themselves(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P3, P5, P8: a resume runs only the routers: their calls and questions are their own, and not the node's first
    ones."""

    async def node(state: State) -> State:
        return {"log": [await counted.task("node"), interrupt("node?")]}

    broken = True

    async def route(state: State) -> str:
        result = await counted.task("router")
        answer: str = interrupt("router?")
        if broken:
            raise Oops
        return f"{result}{answer}"

    graph = (
        StateGraph(State)
        .add_node("node", node)
        .add_edge(START, "node")
        .add_conditional_edges("node", route, {"<router>2": END})
        .compile(saver)
    )
    await graph.ainvoke({}, "t")
    asked = await graph.ainvoke(Command(resume=1), "t")
    assert [question.value for question in asked["__interrupt__"]] == ["router?"]
    with pytest.raises(Oops):
        await graph.ainvoke(Command(resume="2"), "t")
    broken = False
    assert await graph.ainvoke(None, "t") == {"log": ["<node>", 1]}
    assert counted.ran == {"node": 1, "router": 1}


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Other:
    x: int


class Box(msgspec.Struct):
    points: list[Point]


async def test_results_come_back_as_they_were(saver: BaseCheckpointSaver) -> None:
    """P11: types are known from a task's annotations, through containers too; in a sync node as well."""

    @task
    async def boxed() -> Box:
        return Box([Point(1)])

    @task
    def either(x: int, other: Unknown = None) -> dict[str, Other | None]:  # one annotation does not spoil the others
        return {"a": Other(x), "b": None}

    @entrypoint(saver)
    def flow(given: Any) -> Any:
        futures = [boxed(), either(2)]
        results = [future.result() for future in futures]
        assert results == [Box([Point(1)]), {"a": Other(2), "b": None}]
        return interrupt("?")

    await flow.ainvoke(1, "t")
    assert await flow.ainvoke(Command(resume=0), "t") == 0


async def test_a_result_that_cannot_be_stored(saver: BaseCheckpointSaver) -> None:
    """P11: an unstorable result is refused when it is written, in every waiter, naming the task; without storage it is
    accepted."""

    @task
    async def opaque() -> Any:
        return threading.Lock()

    async def body(given: Any) -> str:
        return type(await opaque()).__name__

    with pytest.raises(UnstorableValueError) as caught:
        await entrypoint(saver)(body).ainvoke(1, "t")
    assert any("node 'opaque'" in note for note in caught.value.__notes__)
    assert await entrypoint()(body).ainvoke(1) == "lock"


async def test_arguments_need_not_be_storable(saver: BaseCheckpointSaver) -> None:
    """P11: arguments are not stored."""

    @task
    async def call(function: Callable[[], int]) -> int:
        return function()

    @entrypoint(saver)
    async def flow(given: Any) -> int:
        return await call(lambda: 7)

    assert await flow.ainvoke(1, "t") == 7


async def test_several_tasks_ask(saver: BaseCheckpointSaver, counted: Counted) -> None:
    """P8: all questions are reported, in the order of the calls; answered by id, in any order and in parts; finished
    tasks do not run again."""
    first = anyio.Event()

    @task
    async def ask(name: str) -> Any:
        if name == "a":
            await first.wait()  # asks last, when the task that waits for it has been cancelled by the first question
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
        first.set()
        return [name, interrupt(name)]

    @entrypoint(saver)
    async def flow(given: Any) -> Any:
        return await all_of(ask("a"), counted.task("x"), ask("b"), ask("c"))

    asked = (await flow.ainvoke(1, "t"))["__interrupt__"]
    assert [question.value for question in asked] == ["a", "b", "c"]
    assert len({question.id for question in asked}) == 3
    a, b, c = (question.id for question in asked)
    left = (await flow.ainvoke(Command(resume={c: 3}), "t"))["__interrupt__"]
    assert [(question.value, question.id) for question in left] == [("a", a), ("b", b)]
    assert [question.id for question in (await flow.aget_state("t")).interrupts] == [a, b]
    assert await flow.ainvoke(Command(resume={b: None, a: 1}), "t") == [["a", 1], "<x>", ["b", None], ["c", 3]]
    assert counted.ran == {"x": 1}


async def test_a_task_that_asks_unawaited(saver: BaseCheckpointSaver) -> None:
    """P8: a task that no caller awaits asks all the same."""

    @task
    async def ask() -> Any:
        return interrupt("?")

    @entrypoint(saver)
    async def flow(given: Any) -> str:
        ask()
        return "returned"

    assert [question.value for question in (await flow.ainvoke(1, "t"))["__interrupt__"]] == ["?"]
    assert await flow.ainvoke(Command(resume=1), "t") == "returned"


async def test_a_task_asks_a_plain_function(saver: BaseCheckpointSaver) -> None:
    """P8: a question passes through result(), too; and the task may be plain."""

    @task
    def ask() -> Any:
        return [interrupt("1"), interrupt("2")]

    @entrypoint(saver)
    def flow(given: Any) -> Any:
        return ask().result()

    for number in (1, 2):
        asked = await flow.ainvoke(1 if number == 1 else Command(resume=1), "t")
        assert [question.value for question in asked["__interrupt__"]] == [str(number)]
    assert await flow.ainvoke(Command(resume=2), "t") == [1, 2]


async def test_a_swallowed_question_is_an_error(saver: BaseCheckpointSaver) -> None:
    """A node that returns although a task of its own asked is an error."""

    @task
    async def ask() -> Any:
        return interrupt("?")

    @entrypoint(saver)
    async def flow(given: Any) -> None:
        with pytest.raises(GraphInterrupt):
            await ask()

    with pytest.raises(InterruptSwallowedError, match="'flow'"):
        await flow.ainvoke(1, "t")


class Width:
    """Counts how many bodies run at once. A body that waits for a task does not count meanwhile."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def work(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        self.now -= 1


@pytest.mark.parametrize("width", [1, 2, 3])
async def test_max_concurrency_with_tasks_in_tasks(width: int, saver: BaseCheckpointSaver) -> None:
    """Nested tasks finish at any depth, whatever they await at once, and at most the given number of bodies run at
    once."""
    at = Width()

    @task
    async def leaf() -> int:
        await at.work()
        return 1

    @task
    async def branch() -> int:
        await at.work()
        total = sum(await all_of(leaf(), leaf(), leaf()))
        await at.work()
        return total

    @task
    async def trunk() -> int:
        futures = [branch(), branch()]
        unawaited = leaf()
        await at.work()
        total = await futures[1] + await futures[0]
        await at.work()
        assert unawaited.done() or True
        return total

    async def node(state: Any) -> State:
        await at.work()
        return {"log": [sum(await all_of(trunk(), leaf(), trunk()))]}

    graph = (
        StateGraph(State)
        .add_node("n", node)
        .add_node("m", node)
        .add_edge(START, "m")
        .add_conditional_edges(START, lambda state: [Send("n", {}) for _ in range(3)])
        .compile(saver)
    )
    with anyio.fail_after(30):
        result = await graph.ainvoke({}, {"configurable": {"thread_id": "t"}, "max_concurrency": width})
    assert result == {"log": [13] * 4}
    assert at.most <= width


async def test_max_concurrency_with_plain_functions() -> None:
    """result() in a thread lends the slot, too."""

    @task
    def leaf(x: int) -> int:
        return x

    @task
    def branch(x: int) -> int:
        futures = [leaf(x), leaf(x + 1)]
        return sum(future.result() for future in futures)

    @entrypoint()
    def flow(x: int) -> int:
        return sum(future.result() for future in [branch(x), branch(x), leaf(x)])

    with anyio.fail_after(30):
        assert await flow.ainvoke(1, {"max_concurrency": 1}) == 7


async def test_a_cancelled_waiter_never_waits_for_a_slot() -> None:
    """P7: a cancelled waiter's slot may be held by a task that waits for its end. The waiter continues at once, and the
    limit holds later."""
    begun = anyio.Event()
    at = Width()

    @task
    async def inner() -> None:
        begun.set()
        await anyio.sleep_forever()

    @task
    async def outer() -> None:
        await inner()

    @task
    async def leaf() -> None:
        await at.work()

    @entrypoint()
    async def flow(given: Any) -> str:
        async def stop() -> None:
            await begun.wait()
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(all_of, outer())
            group.start_soon(stop)
        await at.work()
        await all_of(leaf(), leaf(), leaf())
        return "ended"

    with anyio.fail_after(30):
        assert await flow.ainvoke(1, {"max_concurrency": 1}) == "ended"
    assert at.most == 1


async def test_a_cancelled_node_never_waits_for_a_slot() -> None:
    """P9: when its sibling fails, a node whose own tasks hold all slots continues until it ends, without waiting for a
    slot."""
    begun = anyio.Event()

    @task
    async def endless() -> None:
        begun.set()
        await anyio.sleep_forever()

    async def waits(state: State) -> None:
        futures = [endless() for _ in range(4)]
        await futures[0]

    async def fails(state: State) -> None:
        await begun.wait()
        raise Oops("sibling")

    made = StateGraph(State).add_node(waits).add_node(fails).add_edge(START, "waits").add_edge(START, "fails")
    with anyio.fail_after(30), pytest.raises(Oops, match="sibling"):
        await made.compile().ainvoke({}, {"max_concurrency": 2})


async def test_a_failing_caller_cancels_a_task_that_waits_for_its_slot() -> None:
    """P7: when its caller fails and waits for it, a task that waits to get its slot back is cancelled there."""
    leaf_done = anyio.Event()

    @task
    async def inner() -> None:
        leaf_done.set()

    @task
    async def outer() -> None:
        await inner()

    @entrypoint()
    async def flow(given: Any) -> None:
        future = outer()
        await one()  # lends the slot: outer and inner run
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert not future.done()
        raise Oops("caller")

    with anyio.fail_after(30), pytest.raises(Oops, match="caller"):
        await flow.ainvoke(1, {"max_concurrency": 1})


async def test_max_concurrency_and_a_subgraph_that_awaits_the_callers_task() -> None:
    """A node of a subgraph waits for a task of its parent's node: the slot of that node is lent as well."""
    futures: list[TaskFuture[int]] = []

    async def waits(state: State) -> State:
        return {"log": [await futures[0]]}

    sub = StateGraph(State).add_node(waits).add_edge(START, "waits").compile()

    @entrypoint()
    async def flow(given: Any) -> Any:
        futures.append(one())
        return await sub.ainvoke({})

    with anyio.fail_after(30):
        assert await flow.ainvoke(1, {"max_concurrency": 1}) == {"log": [1]}


async def test_more_plain_nodes_than_there_are_threads() -> None:
    """Plain nodes that wait for plain tasks occupy no thread: any number of them finishes."""

    @task
    def leaf(x: int) -> int:
        return x

    def node(x: int) -> State:
        return {"log": [leaf(x).result()]}

    made = StateGraph(State).add_node("n", node)
    graph = made.add_conditional_edges(START, lambda state: [Send("n", x) for x in range(60)]).compile()
    with anyio.fail_after(30):
        assert await graph.ainvoke({}) == {"log": list(range(60))}
    assert anyio.to_thread.current_default_thread_limiter().total_tokens == 40


async def test_plain_and_async_mix() -> None:
    """Async tasks from plain callers, plain tasks from async ones; a plain task is never on the loop's thread."""
    threads: list[int] = []

    @task
    def plain(x: int) -> int:
        threads.append(threading.get_ident())
        return quick(x).result() + 1

    @task
    async def quick(x: int) -> int:
        assert threading.get_ident() not in threads
        return x + 1

    @task
    async def calls_plain(x: int) -> int:
        return await plain(x)

    @entrypoint()
    def flow(x: int) -> int:
        future = calls_plain(x)
        assert future.exception() is None
        return future.result(timeout=60)

    assert await flow.ainvoke(1) == 3


async def test_the_exceptions_of_a_task_reach_a_plain_caller() -> None:
    """P9: the task's own exception, of whatever class: anyio's errors are not mistaken for it, nor it for one of
    theirs."""

    @task
    async def fails(error: type[BaseException]) -> None:
        raise error("own")

    @entrypoint()
    def flow(given: Any) -> Any:
        texts: list[str] = []
        for kind in (RuntimeError, TimeoutError, Oops):
            future = fails(kind)
            try:
                future.result()
            except kind as error:
                texts.append(f"{type(error).__name__} {error}")
            texts.append(str(future.exception() is not None))
        return texts

    assert await flow.ainvoke(1) == ["RuntimeError own", "True", "TimeoutError own", "True", "Oops own", "True"]


@pytest.mark.parametrize("caller", ["async", "sync"])
async def test_cancelling_the_run(caller: str, saver: BaseCheckpointSaver) -> None:
    """P7: every task, nested ones too, has ended and cleaned up before control returns."""
    log: list[str] = []
    begun = anyio.Event()

    @task
    async def inner() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                log.append("inner")

    @task
    async def outer() -> None:
        try:
            await inner()
        finally:
            log.append("outer")

    async def aflow(given: Any) -> None:
        await outer()

    def sflow(given: Any) -> None:
        try:
            outer().result()
        finally:
            log.append("thread")

    flow = entrypoint(saver)(aflow if caller == "async" else sflow)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(flow.ainvoke, 1, "t")
            await begun.wait()
            group.cancel_scope.cancel()
    assert sorted(log) == ["inner", "outer"] + ["thread"] * (caller == "sync")


async def test_cancelling_natively(on_asyncio: None) -> None:
    """P7: asyncio's own cancellation, as wait_for's, ends a plain function that waits for a task in its thread."""
    log: list[str] = []
    begun = anyio.Event()

    @task
    async def slow() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            log.append("task")

    @entrypoint()
    def flow(given: Any) -> None:
        try:
            slow().result()
        # from the task or the run
        except (TaskCancelledError, asyncio.CancelledError, concurrent.futures.CancelledError):
            with pytest.raises(OutsideRunError):
                slow()
            log.append("thread")
            raise

    running = asyncio.get_running_loop().create_task(flow.ainvoke(1))
    with anyio.fail_after(30), pytest.raises(asyncio.CancelledError):
        await begun.wait()
        running.cancel()
        await running
    assert log == ["task", "thread"]


async def test_closing_a_stream_ends_the_tasks() -> None:
    """P7: the same holds when a stream is closed."""
    ended: list[str] = []

    @task
    async def endless() -> None:
        try:
            get_stream_writer()("begun")
            await anyio.sleep_forever()
        finally:
            ended.append("task")

    @entrypoint()
    async def flow(given: Any) -> None:
        await endless()

    async with flow.astream(1, stream_mode="custom") as chunks:
        assert await anext(chunks) == "begun"
    assert ended == ["task"]


async def test_updates_of_tasks(saver: BaseCheckpointSaver) -> None:
    """`{task: value}` as each task finishes, before the caller that awaits it continues; then the entrypoint's."""

    @task
    async def double(x: int) -> int:
        return 2 * x

    @entrypoint(saver)
    async def flow(x: int) -> int:
        writer = get_stream_writer()
        result = await double(await double(x))
        writer("caller goes on")
        return result

    chunks = [chunk async for chunk in flow.astream(1, "t", stream_mode=["updates", "custom"])]
    assert chunks == [
        ("updates", {"double": 2}),
        ("updates", {"double": 4}),
        ("custom", "caller goes on"),
        ("updates", {"flow": 4}),
    ]
    assert [chunk async for chunk in flow.astream(1, "u")] == [{"double": 2}, {"double": 4}, {"flow": 4}]


async def test_task_events(saver: BaseCheckpointSaver) -> None:
    """Input `((args), {keyword args})`, result `{"__return__": value}`, and `{"__end__": value}` of the entrypoint; a failed
    call has its error."""

    @task
    async def double(x: int, *, plus: int) -> int:
        return 2 * x + plus

    @task
    async def fails() -> None:
        raise Oops("own")

    @entrypoint(saver)
    async def flow(x: int) -> int:
        with pytest.raises(Oops):
            await fails()
        return await double(x, plus=1)

    events = [event async for event in flow.astream(1, "t", stream_mode="tasks")]
    assert [event["name"] for event in events] == ["flow", "fails", "fails", "double", "double", "flow"]
    begun, ended = events[3:5]
    assert begun["id"] == ended["id"]
    assert begun["input"] == ((1,), {"plus": 1})
    assert ended["result"] == {"__return__": 3}
    assert events[-1]["result"] == {"__end__": 3}
    assert isinstance(events[2]["error"], Oops)


async def test_injection_into_tasks(saver: BaseCheckpointSaver) -> None:
    """Tasks get the same injected parameters as nodes; arguments of the caller take precedence, by position or by
    keyword; *values stand for no name."""

    @task
    async def named(x: int, config: Any = None, *, runtime: Runtime[Any], store: Any) -> Any:
        return [x, config if isinstance(config, str) else config["configurable"]["thread_id"], store]

    @task
    async def values(*numbers: int, runtime: Runtime[Any], **rest: Any) -> Any:
        return [numbers, rest, runtime.context]

    @entrypoint(saver, store="store")
    async def flow(given: Any) -> Any:
        return [
            await named(1),
            await named(2, "mine"),
            await named(3, config="mine", store="own"),
            await values(1, 2, 3, other=4),
        ]

    assert await flow.ainvoke(1, "t", context="ctx") == [
        [1, "t", "store"],
        [2, "mine", "store"],
        [3, "mine", "own"],
        [(1, 2, 3), {"other": 4}, "ctx"],
    ]


async def test_wrong_arguments_are_the_callers_error() -> None:
    """Bad input: a call with wrong arguments is a TypeError in each waiter."""

    @entrypoint()
    async def flow(given: Any) -> None:
        await one(1, 2)  # wrong on purpose

    with pytest.raises(TypeError, match="positional"):
        await flow.ainvoke(1)
