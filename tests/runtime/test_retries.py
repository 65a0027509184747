"""Retries: their number, their waits, the effects of a failed attempt, and the ways a wait ends."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterator
from email.utils import formatdate
from time import asctime, gmtime, tzset
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import httpx
import pytest

from checkpoint_savers import InMemorySaver
from checkpoint_savers.errors import StorageError
from pregel_async import (
    START,
    Command,
    NodeBuilder,
    Pregel,
    Runtime,
    Send,
    StateGraph,
    StreamWriter,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.channels import LastValue
from pregel_async.errors import InvalidUpdateError, NodeCancelledError
from pregel_async.types import RetryPolicy
from tests.helpers.passing_saver import Through
from tests.helpers.virtual_loops import VirtualWorld
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    bag: dict[str, list[int]]


class Flaky(Exception):
    """A failure that another attempt may resolve."""


FEW = RetryPolicy(jitter=False)
MANY = RetryPolicy(jitter=False, max_attempts=100)


@pytest.fixture
def environment() -> VirtualWorld:
    return VirtualWorld()


def failing(times: int, error: Callable[[], BaseException] = Flaky) -> Any:
    """Return a node that fails the given number of times, and then returns how often it has run."""
    calls = [0]

    async def node(state: Any) -> dict[str, Any]:
        calls[0] += 1
        if calls[0] <= times:
            raise error()
        return {"log": [f"run {calls[0]}"]}

    node.calls = calls
    return node


def alone(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    return (
        StateGraph(State)
        .add_node("node", node, **options)
        .add_edge(START, "node")
        .compile(saver, environment=environment)
    )


def with_a_sibling(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    made = StateGraph(State).add_node("node", node, **options).add_edge(START, "node")
    made.add_node("other", lambda state: {"log": ["other"]}).add_edge(START, "other")
    return made.compile(saver, environment=environment, blocking=False)


def in_a_subgraph(node: Any, environment: VirtualWorld, saver: Any = None, **options: Any) -> Any:
    inner = StateGraph(State).add_node("node", node, **options).add_edge(START, "node").compile(name="inner")
    return StateGraph(State).add_node(inner).add_edge(START, "inner").compile(saver, environment=environment)


each_place = pytest.mark.parametrize("place", [alone, with_a_sibling, in_a_subgraph])


@each_place
async def test_the_defaults(place: Any, environment: VirtualWorld) -> None:
    """Three attempts; 0.5 s and 1 s between them, with a random part of a second on the injected clock."""
    graph = place(failing(2), environment, retry_policy=RetryPolicy())
    assert "run 3" in (await graph.ainvoke({}))["log"]
    assert environment.slept == [0.75, 1.25]
    environment.slept.clear()
    graph = place(node := failing(3), environment, retry_policy=RetryPolicy())
    with pytest.raises(Flaky) as caught:
        await graph.ainvoke({})
    assert node.calls == [3]
    assert environment.slept == [0.75, 1.25]
    notes = caught.value.__notes__
    assert any("in node 'node'" in note for note in notes) and "in attempt 3" in notes


async def test_the_wait_grows_to_its_limit(environment: VirtualWorld) -> None:
    """Each wait is twice as long as the one before, and at most 128 s; hours pass instantly on the
    environment's clock."""
    await alone(failing(11), environment, retry_policy=MANY).ainvoke({})
    assert environment.slept == [0.5, 1, 2, 4, 8, 16, 32, 64, 128, 128, 128]
    assert environment.time == sum(environment.slept)


async def test_one_attempt(environment: VirtualWorld) -> None:
    """The first attempt counts: with max_attempts=1 there is no retry, and the exception has no note of it."""
    graph = alone(failing(1), environment, retry_policy=RetryPolicy(max_attempts=1))
    with pytest.raises(Flaky) as caught:
        await graph.ainvoke({})
    assert environment.slept == []
    assert not any("attempt" in note for note in caught.value.__notes__)


async def test_several_policies_share_the_count(environment: VirtualWorld) -> None:
    """The first policy that matches the failure counts; the attempts are counted for all policies together."""
    errors: list[Any] = [KeyError(), Flaky(), KeyError(), Flaky(), KeyError()]

    async def node(state: Any) -> None:
        raise errors.pop(0)

    policies = [
        RetryPolicy(retry_on=KeyError, initial_interval=1, jitter=False, max_attempts=5),
        RetryPolicy(retry_on=Exception, initial_interval=100, backoff_factor=1, jitter=False, max_attempts=4),
    ]
    with pytest.raises(Flaky):  # the fourth failure matches the second policy, which has had four attempts
        await alone(node, environment, retry_policy=policies).ainvoke({})
    assert environment.slept == [1, 100, 4]


async def test_a_failure_that_no_policy_matches(environment: VirtualWorld) -> None:
    """A failure that matches no policy is raised at once."""
    graph = alone(
        failing(1, ZeroDivisionError), environment, retry_policy=[RetryPolicy(), RetryPolicy(retry_on=KeyError)]
    )
    with pytest.raises(ZeroDivisionError):
        await graph.ainvoke({})
    assert environment.slept == []


@each_place
async def test_a_predicate_that_raises(place: Any, environment: VirtualWorld) -> None:
    """P9: an exception of the user's own predicate is raised, with a note that says where, and the failure as its
    context."""

    def predicate(error: Exception) -> bool:
        raise LookupError("mine")

    graph = place(failing(1), environment, InMemorySaver(), retry_policy=RetryPolicy(retry_on=predicate))
    with pytest.raises(LookupError) as caught:
        await graph.ainvoke({}, "t")
    assert any("retry_on of node 'node'" in note for note in caught.value.__notes__)
    assert isinstance(caught.value.__context__, Flaky)


async def test_an_exception_group_of_the_node(environment: VirtualWorld) -> None:
    """A group raised by a node's own task group is retried when each member may be retried."""
    attempts: list[int] = []

    async def child(kind: type[Exception]) -> None:
        raise kind

    async def node(state: Any, runtime: Runtime[Any]) -> None:
        attempts.append(runtime.execution_info.node_attempt)
        async with anyio.create_task_group() as group:
            group.start_soon(child, Flaky)
            group.start_soon(child, Flaky if len(attempts) < 2 else ZeroDivisionError)

    with pytest.raises(ExceptionGroup):
        await alone(node, environment, retry_policy=FEW).ainvoke({})
    assert attempts == [1, 2]


def answer(status: int, after: str) -> Exception:
    request = httpx.Request("GET", "https://service.example/")
    response = httpx.Response(status, request=request, headers={"Retry-After": after})
    return httpx.HTTPStatusError("no", request=request, response=response)


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A date without a zone is GMT, whatever the process's time zone."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    yield
    monkeypatch.undo()
    tzset()


@pytest.mark.parametrize(
    ("after", "waits"),
    [
        ("7", 7.0),
        ("0", 0.5),
        ("-5", 0.5),
        ("nan", 0.5),
        ("inf", 0.5),
        ("soon", 0.5),
        ("", 0.5),
        ("1_0", 0.5),
        ("1e1", 0.5),
        ("7.5", 0.5),
        ("+7", 0.5),
        ("\t7 ", 7.0),
        (formatdate(4_000_000_030, usegmt=True), 30.0),
        ("Tuesday, 02-Oct-96 07:07:10 GMT", 30.0),
        ("Tuesday, 02-Oct-47 07:07:10 GMT", 0.5),  # 2047, and not 2147
        (asctime(gmtime(4_000_000_030)), 30.0),
        (formatdate(4_000_000_030), 0.5),
        (formatdate(4_000_000_030, usegmt=True).replace("GMT", "+0100"), 0.5),
        (formatdate(3_999_999_000, usegmt=True), 0.5),
        ("Fri, 31 Dec 99999 23:59:59 GMT", 0.5),
        ("Fri, 99 Dec 2097 23:59:59 GMT", 0.5),
        ("Fri, 31 Dec 2097 2_:59:59 GMT", 0.5),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after(after: str, waits: float, status: int, environment: VirtualWorld, in_tokyo: None) -> None:
    """`Retry-After`, as RFC 9110 defines it (digits, or a date in GMT), is waited for on the environment's clock, but
    never less than the policy says. Other spellings do not count: `1_0` is not 10, and `inf` is no time."""
    await alone(failing(1, lambda: answer(status, after)), environment, retry_policy=FEW).ainvoke({})
    assert environment.slept == [waits]


@pytest.mark.parametrize("after", ["\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT SEVEN}"])
async def test_non_ascii_digits(after: str, environment: VirtualWorld) -> None:
    """Non-ASCII digits are no number of seconds, and no error of their own: clients decode headers as Latin-1, or
    otherwise."""

    class Refused(Exception):
        status_code = 503
        headers = {"retry-after": after}

    await alone(failing(1, Refused), environment, retry_policy=FEW).ainvoke({})
    assert environment.slept == [0.5]


async def test_jitter_with_retry_after(environment: VirtualWorld) -> None:
    """The jitter is added to the server's delay, too, so that clients do not retry at the same moment."""
    await alone(failing(1, lambda: answer(429, "7")), environment, retry_policy=RetryPolicy()).ainvoke({})
    assert environment.slept == [7.25]


async def test_a_server_that_asks_for_too_long(environment: VirtualWorld) -> None:
    """A delay longer than `max_interval` is not waited for: the failure is raised, with the reason."""
    for after in ("200", "9" * 5000, formatdate(4_000_100_000, usegmt=True)):
        with pytest.raises(httpx.HTTPStatusError) as caught:
            await alone(failing(1, lambda: answer(429, after)), environment, retry_policy=FEW).ainvoke({})  # noqa: B023  # awaited here
        assert environment.slept == []
        assert any("max_interval is 128 s" in note for note in caught.value.__notes__)


async def test_the_longest_of_a_group_counts(environment: VirtualWorld) -> None:
    """Of several responses in a group, the latest time counts."""
    made = failing(1, lambda: ExceptionGroup("", [answer(503, "3"), answer(429, "9"), Flaky()]))
    await alone(made, environment, retry_policy=FEW).ainvoke({})
    assert environment.slept == [9]


async def test_a_failing_sibling_ends_the_wait(environment: VirtualWorld) -> None:
    """P9: a sibling that fails for good ends the backoff at once; only its failure is raised."""
    environment.held = lambda: True

    async def broken(state: Any) -> None:
        while not environment.slept:
            await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    made = StateGraph(State).add_node("node", failing(1), retry_policy=FEW).add_node(broken)
    graph = made.add_edge(START, "node").add_edge(START, "broken").compile(environment=environment)
    with anyio.fail_after(30), pytest.raises(ZeroDivisionError):
        await graph.ainvoke({})
    assert environment.time == 0


@each_place
@pytest.mark.parametrize("how", ["scope", "native", "aclose"])
async def test_the_caller_ends_the_wait(
    place: Any, how: str, environment: VirtualWorld, anyio_backend_name: str
) -> None:
    """P7: the caller's cancellation, by a scope, by asyncio's own cancel() or by closing the stream, ends the backoff
    at once, and no task is left."""
    if how == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation of its own besides scopes")
    environment.held = lambda: True
    node = failing(100)
    graph = place(node, environment, InMemorySaver(), retry_policy=MANY)

    async def waits() -> None:
        while not environment.slept:
            await anyio.lowlevel.checkpoint()

    async with nothing_left():
        with anyio.fail_after(30):
            if how == "scope":
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: graph.ainvoke({}, "t"))
                    await waits()
                    group.cancel_scope.cancel()
            elif how == "native":
                running = asyncio.ensure_future(graph.ainvoke({}, "t"))
                await waits()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                chunks = graph.astream({}, "t", stream_mode="custom")
                async with anyio.create_task_group() as group:

                    async def read() -> None:
                        async for _ in chunks:
                            pass

                    group.start_soon(read)
                    await waits()
                    group.cancel_scope.cancel()
                await chunks.aclose()
    assert node.calls == [1]
    assert environment.time == 0


@pytest.mark.parametrize("place", [alone, in_a_subgraph])
@pytest.mark.parametrize("options", [{}, {"timeout": 5}], ids=len)
async def test_a_failure_while_being_cancelled_is_not_retried(
    place: Any, options: Any, environment: VirtualWorld
) -> None:
    """P7: a node that turns asyncio's own cancellation into a failure is not retried: the run ends and raises the
    failure."""

    async def node(state: Any, runtime: Runtime[Any]) -> None:
        seen.append(runtime.execution_info.node_attempt)
        try:
            await anyio.sleep_forever()
        except BaseException:
            raise Flaky from None

    seen: list[int] = []
    environment.held = lambda: True
    graph = place(node, environment, retry_policy=MANY, **options)
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:

                async def stop() -> None:
                    while not seen:
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                group.start_soon(stop)
                with pytest.raises(Flaky):
                    await graph.ainvoke({})
    else:
        running = asyncio.ensure_future(graph.ainvoke({}))
        while not seen:
            await anyio.lowlevel.checkpoint()
        running.cancel()
        with pytest.raises((Flaky, asyncio.CancelledError)):
            await running
    assert seen == [1]
    assert environment.slept in ([], [5])  # the timeout's own


async def test_clean_up_errors_of_retried_siblings_are_raised(environment: VirtualWorld) -> None:
    """P9: a sibling with a retry policy that fails while it is cancelled is in the group, and is not retried."""

    async def cleans_up(state: Any) -> None:
        seen.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            raise Flaky

    async def broken(state: Any) -> None:
        while not seen:
            await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    seen: list[str] = []
    made = StateGraph(State).add_node(cleans_up, retry_policy=MANY).add_node(broken)
    graph = (
        made.add_edge(START, "cleans_up").add_edge(START, "broken").compile(InMemorySaver(), environment=environment)
    )
    with pytest.raises(ExceptionGroup) as caught:
        await graph.ainvoke({}, "t")
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError, Flaky]
    assert seen == ["begun"]
    assert [task.error is not None for task in (await graph.aget_state("t")).tasks] == [True, True]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_what_ends_a_process_is_not_retried(kind: type[BaseException], environment: VirtualWorld) -> None:
    """An exception that ends the process is never retried, in a group neither, whatever the policy says."""
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        pytest.skip("asyncio's loop itself ends with these when a task of it raises them; see the group below")
    node = failing(1, kind)
    with pytest.raises(BaseException) as caught:
        await alone(node, environment, retry_policy=RetryPolicy(retry_on=lambda error: True)).ainvoke({})
    assert isinstance(caught.value, kind)
    assert node.calls == [1]


class Quit(BaseException):
    """A user's exception that is no `Exception`."""


async def test_a_base_exception_is_not_retried(environment: VirtualWorld) -> None:
    """No other `BaseException` is retried, in a group neither."""
    for made in (Quit, lambda: BaseExceptionGroup("", [Quit(), Flaky()])):
        node = failing(1, made)
        with pytest.raises((Quit, BaseExceptionGroup)):
            await alone(node, environment, retry_policy=RetryPolicy(retry_on=lambda error: True)).ainvoke({})
        assert node.calls == [1]


async def test_a_node_that_raises_a_cancellation_is_not_retried(environment: VirtualWorld) -> None:
    """A node that raises asyncio's cancellation by itself fails with `NodeCancelledError`, which is not retried."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("trio's Cancelled cannot be constructed")
    node = failing(1, asyncio.CancelledError)
    with pytest.raises(NodeCancelledError):
        await with_a_sibling(node, environment, retry_policy=FEW).ainvoke({})
    assert node.calls == [1]


async def test_attempts_are_visible(environment: VirtualWorld) -> None:
    """`runtime.execution_info` has the number of the attempt and the start of the first; the task's id stays."""
    seen: list[Any] = []

    async def node(state: Any, runtime: Runtime[Any]) -> None:
        info = runtime.execution_info
        seen.append((info.node_attempt, info.node_first_attempt_time, info.task_id))
        if len(seen) < 3:
            raise Flaky

    await alone(node, environment, retry_policy=FEW).ainvoke({})
    assert [number for number, _, _ in seen] == [1, 2, 3]
    assert {began for _, began, _ in seen} == {4_000_000_000.0}
    assert len({task_id for _, _, task_id in seen}) == 1


async def test_attempts_are_counted_per_task(environment: VirtualWorld) -> None:
    """Each Send and each superstep counts its own attempts, and so does a task within a node."""
    seen: list[Any] = []

    @task(retry_policy=FEW)
    async def step(which: int) -> int:
        from pregel_async import get_runtime

        seen.append(("task", which, get_runtime().execution_info.node_attempt))
        if len([each for each in seen if each[:2] == ("task", which)]) < 2:
            raise Flaky
        return which

    async def worker(which: int, runtime: Runtime[Any]) -> None:
        seen.append(("send", which, runtime.execution_info.node_attempt))
        await step(which)
        if which == 1 and runtime.execution_info.node_attempt < 3:
            raise Flaky

    made = StateGraph(State).add_node("worker", worker, retry_policy=FEW)
    graph = made.add_conditional_edges(START, lambda state: [Send("worker", 0), Send("worker", 1)]).compile(
        environment=environment
    )
    await graph.ainvoke({})
    assert [each[2] for each in seen if each[:2] == ("send", 0)] == [1]
    assert [each[2] for each in seen if each[:2] == ("send", 1)] == [1, 2, 3]
    assert [each[2] for each in seen if each[:2] == ("task", 1)] == [1, 2]  # it has finished: not run again


async def test_a_retry_does_not_ask_again(environment: VirtualWorld) -> None:
    """P8: an attempt after an answered question gets the answer: no question is asked twice; two questions keep their
    order."""
    calls: list[Any] = []

    async def node(state: Any) -> dict[str, Any]:
        first, second = interrupt("first?"), interrupt("second?")
        calls.append((first, second))
        if len(calls) < 3:
            raise Flaky
        return {"log": [first, second]}

    graph = alone(node, environment, InMemorySaver(), retry_policy=FEW)
    await graph.ainvoke({}, "t")
    await graph.ainvoke(Command(resume="one"), "t")
    assert (await graph.ainvoke(Command(resume="two"), "t"))["log"] == ["one", "two"]
    assert calls == [("one", "two")] * 3


async def test_a_question_after_a_failure(environment: VirtualWorld) -> None:
    """P8: an attempt that asks pauses the run, whatever happened before; the count starts anew with the resume."""
    seen: list[Any] = []

    async def node(state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        seen.append(runtime.execution_info.node_attempt)
        if len(seen) == 1:
            raise Flaky
        return {"log": [interrupt("really?")]}

    graph = alone(node, environment, InMemorySaver(), retry_policy=FEW)
    assert "__interrupt__" in await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["yes"]
    assert seen == [1, 2, 1]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("nested", [True, False])
async def test_finished_tasks_are_not_run_again(stored: bool, nested: bool, environment: VirtualWorld) -> None:
    """P5: a called task that finished before its caller failed does not run again on the retry, with and without a
    checkpointer; nor do tasks of tasks; and its result is not changed by what the failed attempt did with it."""
    ran: list[str] = []

    @task
    async def deep(name: str) -> list[str]:
        ran.append(f"deep {name}")
        return [name]

    @task(retry_policy=RetryPolicy(max_attempts=2, jitter=False))
    async def step(name: str) -> list[str]:
        ran.append(name)
        got = await deep(name) if nested else [name]
        if nested and len([each for each in ran if each == name]) < 4:
            raise Flaky  # twice in each of the node's first attempt, and once in its second
        return got

    calls = [0]

    async def node(state: Any) -> dict[str, Any]:
        calls[0] += 1
        got = [*(await step("a")), *(await step("b"))]
        first = await step("c")
        first.append("changed")
        if calls[0] < 3 and not nested:
            raise Flaky
        return {"log": got}

    graph = alone(node, environment, InMemorySaver() if stored else None, retry_policy=MANY)
    assert (await graph.ainvoke({}, "t" if stored else None))["log"] == ["a", "b"]
    if nested:
        assert [each for each in ran if each.startswith("deep")] == ["deep a", "deep b", "deep c"]
    else:
        assert ran == ["a", "b", "c"]


async def test_a_task_that_failed_is_run_again(environment: VirtualWorld) -> None:
    """The failed task itself runs again with its caller's next attempt, and so do concurrent ones that had not
    finished."""
    ran: list[str] = []

    @task
    async def step(name: str) -> str:
        ran.append(name)
        if name == "b" and ran.count("b") < 2:
            raise Flaky
        return name

    async def node(state: Any) -> dict[str, Any]:
        return {"log": [await step("a"), await step("b"), await step("c")]}

    assert (await alone(node, environment, retry_policy=FEW).ainvoke({}))["log"] == ["a", "b", "c"]
    assert ran == ["a", "b", "b", "c"]


async def test_results_without_storage_do_not_outlive_the_task(environment: VirtualWorld) -> None:
    """P2: without a checkpointer, results of tasks are kept for the attempts of one task, and not beyond it."""
    ran: list[int] = []

    @task
    async def step() -> int:
        ran.append(1)
        return len(ran)

    async def node(state: Any) -> dict[str, Any]:
        return {"log": [str(await step())]}

    graph = alone(node, environment, retry_policy=FEW)
    assert (await graph.ainvoke({}))["log"] == ["1"]
    assert (await graph.ainvoke({}))["log"] == ["2"]


async def test_a_subgraph_continues_where_it_was(environment: VirtualWorld) -> None:
    """P5: finished work of a subgraph that failed does not run again on its node's retry."""
    ran: list[str] = []

    async def first(state: Any) -> dict[str, Any]:
        ran.append("first")
        return {"log": ["first"]}

    async def second(state: Any) -> dict[str, Any]:
        ran.append("second")
        if ran.count("second") < 3:
            raise Flaky
        return {"log": ["second"]}

    inner = StateGraph(State).add_sequence([first, second]).add_edge(START, "first").compile(name="inner")
    made = StateGraph(State).add_node(inner, retry_policy=FEW).add_edge(START, "inner")
    graph = made.compile(InMemorySaver(), environment=environment)
    assert (await graph.ainvoke({}, "t"))["log"] == ["first", "second"]
    assert ran == ["first", "second", "second", "second"]
    assert environment.slept == [0.5, 1]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_failed_router_is_retried_alone(asynchronous: bool, environment: VirtualWorld) -> None:
    """P3: a node's routers are retried without the node, which has finished."""
    ran: list[str] = []

    async def node(state: Any) -> dict[str, Any]:
        ran.append("node")
        return {"log": ["node"]}

    def decide(state: Any) -> str:
        ran.append("router")
        if ran.count("router") < 3:
            raise Flaky
        assert state["log"] == ["node"]
        return "after"

    async def decide_slowly(state: Any) -> str:
        return decide(state)

    made = StateGraph(State).add_node("node", node, retry_policy=FEW).add_node("after", lambda s: {"log": ["after"]})
    made.add_edge(START, "node").add_conditional_edges("node", decide_slowly if asynchronous else decide, ["after"])
    graph = made.compile(InMemorySaver(), environment=environment)
    assert (await graph.ainvoke({}, "t"))["log"] == ["node", "after"]
    assert ran == ["node", "router", "router", "router"]


class RecordingSaver(Through):
    """A saver that reports each record it is given."""

    def __init__(self) -> None:
        super().__init__(InMemorySaver())
        self.verbs: list[str] = []

    async def around(self, verb: str, call: Any) -> Any:
        self.verbs.append(verb)
        return await call()


async def test_writes_are_stored_before_the_wait_for_the_router(environment: VirtualWorld) -> None:
    """P3: a node's own writes are recorded before its routers are retried: after a crash in the wait, which may be
    long, the node does not run again."""
    ran: list[str] = []

    async def node(state: Any) -> dict[str, Any]:
        ran.append("node")
        return {"log": ["node"]}

    def decide(state: Any) -> str:
        ran.append("router")
        if ran.count("router") < 2:
            raise Flaky
        return "__end__"

    made = StateGraph(State).add_node("node", node, retry_policy=FEW).add_edge(START, "node")
    made.add_conditional_edges("node", decide)
    saver = RecordingSaver()
    graph = made.compile(saver, environment=environment)
    environment.held = lambda: True
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: graph.ainvoke({}, "t"))
        while not environment.slept:
            await anyio.lowlevel.checkpoint()
        assert "record" in saver.verbs
        group.cancel_scope.cancel()
    environment.held = lambda: False
    assert (await graph.ainvoke(None, "t"))["log"] == ["node"]
    assert ran == ["node", "router", "router"]


@each_place
async def test_a_failed_attempt_leaves_nothing_in_its_input(place: Any, environment: VirtualWorld) -> None:
    """P1: the next attempt and the caller do not see a failed attempt's changes in place."""
    seen: list[Any] = []

    async def node(state: Any) -> None:
        seen.append(list(state["bag"]["numbers"]))
        state["bag"]["numbers"].append(99)
        state["bag"]["more"] = [1]
        if len(seen) < 3:
            raise Flaky

    given: Any = {"bag": {"numbers": [1]}}
    result = await place(node, environment, retry_policy=FEW).ainvoke(given)
    assert seen == [[1]] * 3
    assert given == {"bag": {"numbers": [1]}}
    assert result["bag"] == {"numbers": [1]}


async def test_a_sends_argument_is_as_it_was_sent(environment: VirtualWorld) -> None:
    """P1: the same holds for a Send's argument, and for a task's."""
    seen: list[Any] = []

    @task(retry_policy=FEW)
    async def step(numbers: list[int]) -> None:
        seen.append(list(numbers))
        numbers.append(7)
        if len(seen) % 2:
            raise Flaky

    async def worker(numbers: list[int]) -> None:
        numbers.append(2)
        await step(numbers)
        if len(seen) < 4:
            numbers.append(3)
            raise Flaky

    made = StateGraph(State).add_node("worker", worker, retry_policy=FEW)
    graph = made.add_conditional_edges(START, lambda state: Send("worker", [1])).compile(environment=environment)
    with pytest.raises(Flaky):  # the task's result is recorded: `seen` never grows to 4
        await graph.ainvoke({})
    assert seen == [[1, 2], [1, 2]]


async def test_chunks_of_each_attempt(environment: VirtualWorld) -> None:
    """Updates and writes of a failed attempt do not count; its streamed chunks were streamed."""
    attempts = [0]

    async def node(state: Any, writer: StreamWriter) -> dict[str, Any]:
        attempts[0] += 1
        writer(f"attempt {attempts[0]}")
        if attempts[0] < 3:
            raise Flaky
        return {"log": ["done"]}

    graph = alone(node, environment, InMemorySaver(), retry_policy=FEW)
    modes = ["custom", "updates", "tasks"]
    parts = [part async for part in graph.astream({}, "t", stream_mode=modes)]
    assert [data for mode, data in parts if mode == "custom"] == ["attempt 1", "attempt 2", "attempt 3"]
    assert [data for mode, data in parts if mode == "updates"] == [{"node": {"log": ["done"]}}]
    tasks = [data for mode, data in parts if mode == "tasks"]
    assert len(tasks) == 2  # one task: it begins once, and ends once
    history = [snapshot async for snapshot in graph.aget_state_history("t")]
    assert [task.error for snapshot in history for task in snapshot.tasks] == [None, None]


async def test_of_a_send_a_task_and_an_entrypoint(environment: VirtualWorld) -> None:
    """Nodes that Sends run, tasks and entrypoints have retry policies; plain functions too."""
    sent, called, entered = failing(1), [0], [0]

    made = StateGraph(State).add_node("node", sent, retry_policy=FEW)
    graph = made.add_conditional_edges(START, lambda state: Send("node", {})).compile(environment=environment)
    assert (await graph.ainvoke({}))["log"] == ["run 2"]

    @task(retry_policy=FEW)
    def step() -> int:
        called[0] += 1
        if called[0] < 3:
            raise Flaky
        return called[0]

    @entrypoint(environment=environment, retry_policy=[RetryPolicy(retry_on=KeyError), FEW])
    def flow(given: int) -> int:
        entered[0] += 1
        if entered[0] < 2:
            raise Flaky
        return step().result() + given

    assert await flow.ainvoke(10) == 13
    assert (entered, called) == ([2], [3])


async def test_of_a_graph(environment: VirtualWorld) -> None:
    """`set_node_defaults` and `Pregel(retry_policy=)` apply to every node, added before or after; a node's own policy
    replaces them; subgraphs have their own defaults."""
    own, default, deep = failing(99), failing(99), failing(99)
    made = StateGraph(State).add_node("own", own, retry_policy=RetryPolicy(max_attempts=2, jitter=False))
    made.set_node_defaults(retry_policy=RetryPolicy(max_attempts=4, jitter=False)).add_node("default", default)
    made.add_edge(START, "own").add_edge(START, "default")
    with pytest.raises(ExceptionGroup):
        await made.compile(environment=environment, on_failure="finish").ainvoke({})
    assert (own.calls, default.calls) == ([2], [4])

    inner = StateGraph(State).add_node("deep", deep).add_edge(START, "deep").compile(name="inner")
    outer = StateGraph(State).add_node(inner).add_edge(START, "inner")
    outer.set_node_defaults(retry_policy=RetryPolicy(max_attempts=3, jitter=False))
    with pytest.raises(Flaky):
        await outer.compile(environment=environment).ainvoke({})
    assert deep.calls == [3]  # the node that runs the subgraph is retried, and not also the node in_a_subgraph it

    calls: list[str] = []

    def first(value: int) -> int:
        calls.append("first")
        raise Flaky

    def second(value: int) -> int:
        calls.append("second")
        raise Flaky

    graph = Pregel(
        nodes={
            "first": NodeBuilder().subscribe_only("a").do(first).write_to("b"),
            "second": NodeBuilder().subscribe_only("a").do(second).add_retry_policies(MANY, FEW),
        },
        channels={"a": LastValue(int), "b": LastValue(int)},
        input_channels="a",
        output_channels="b",
        retry_policy=RetryPolicy(max_attempts=2, jitter=False),
        on_failure="finish",
        environment=environment,
    )
    with pytest.raises(ExceptionGroup):
        await graph.ainvoke(1)
    assert (calls.count("first"), calls.count("second")) == (2, 100)


class FailingSaver(Through):
    """A saver that fails at one verb, once or from then on."""

    def __init__(self, verb: str) -> None:
        super().__init__(InMemorySaver())
        self.verb = verb
        self.raised = 0

    async def around(self, verb: str, call: Any) -> Any:
        if verb == self.verb:
            self.raised += 1
            raise StorageError("down")
        return await call()


@pytest.mark.parametrize("where", ["task", "router"])
async def test_failing_storage_is_not_retried(where: str, environment: VirtualWorld) -> None:
    """P4: a storage failure is not a node's: it is not retried, whatever the policy says."""
    ran: list[str] = []

    @task
    async def step() -> int:
        ran.append("task")
        return 1

    async def node(state: Any) -> None:
        ran.append("node")
        if where == "task":
            await step()

    async def decide(state: Any) -> str:
        ran.append("router")
        await anyio.lowlevel.checkpoint()  # the router must not continue: its node's writes have to be stored first
        ran.append("continued")
        return "__end__"

    policy = RetryPolicy(retry_on=Exception, jitter=False)
    made = StateGraph(State).add_node("node", node, retry_policy=policy).add_edge(START, "node")
    if where == "router":
        made.add_conditional_edges("node", decide)
    saver = FailingSaver("record")
    with pytest.raises(StorageError):
        await made.compile(saver, environment=environment).ainvoke({}, "t")
    assert ran == ["node", where]
    assert environment.slept == []


async def test_refused_values_are_not_retried(environment: VirtualWorld) -> None:
    """Values that the runtime itself refuses are programming errors and are not retried."""
    made: list[int] = []

    async def node(state: Any) -> Any:
        made.append(1)
        return {"nowhere": 1}

    with pytest.raises(InvalidUpdateError):
        await alone(node, environment, retry_policy=FEW).ainvoke({})
    assert made == [1]
