"""P7: the caller's own cancellation is never mistaken for a node's, nor a node's for the caller's."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph, task
from pregel_async.errors import NodeCancelledError, TaskCancelledError
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


SAVER = InMemorySaver


async def _done(state: Any) -> dict[str, Any]:
    return {"log": ["done"]}


def alone(node: Any) -> Any:
    made = StateGraph(State).add_node("node", node).add_node("after", _done)
    return made.add_edge(START, "node").add_edge("node", "after").compile(SAVER())


def with_a_sibling(node: Any) -> Any:
    made = StateGraph(State).add_node("node", node).add_node("other", _done).add_node("after", _done)
    return made.add_edge(START, "node").add_edge(START, "other").add_edge(["node", "other"], "after").compile(SAVER())


def in_a_subgraph(node: Any) -> Any:
    """Run the node in a subgraph."""
    inner = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()

    async def outer(state: Any) -> dict[str, Any]:
        return {"log": (await inner.ainvoke({}))["log"]}

    return alone(outer)


def called(node: Any) -> Any:
    """Run the node as a called task."""
    step = task(name="node")(node)

    async def outer(state: Any) -> dict[str, Any]:
        return await step({})

    return alone(outer)


each_place = pytest.mark.parametrize(
    "place", [alone, with_a_sibling, in_a_subgraph, called], ids=lambda place: place.__name__
)
each_verb = pytest.mark.parametrize("verb", ["ainvoke", "astream", "astream in async with"])


async def run(graph: Any, verb: str) -> list[str]:
    """Run to the end, and check that the caller is unaffected."""
    if verb == "ainvoke":
        await graph.ainvoke({}, "t")
    elif verb == "astream":
        async for _ in graph.astream({}, "t"):
            pass
    else:
        async with graph.astream({}, "t") as chunks:
            async for _ in chunks:
                pass
    return list((await graph.aget_state("t")).values["log"])


async def is_untouched() -> None:
    """Check that the running task is not cancelled."""
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        this: Any = asyncio.current_task()
        assert this.cancelling() == 0
    assert anyio.current_effective_deadline() > 0
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


class EndlessGraph:
    """A graph that waits forever, for a node to run and abandon; it records whether it cleaned up."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.cleaned = 0
        made = StateGraph(State).add_node("first", _done).add_node("wait", self._wait)
        self.graph = made.add_edge(START, "first").add_edge("first", "wait").compile(name="below")

    async def _wait(self, state: Any) -> None:
        try:
            self.reached.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
            self.cleaned += 1


async def gives_up_a_scope(state: Any) -> dict[str, Any]:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep_forever()
    await anyio.lowlevel.checkpoint()
    return {"log": ["went on"]}


async def survives_fail_after(state: Any) -> dict[str, Any]:
    with pytest.raises(TimeoutError):
        with anyio.fail_after(0):
            await anyio.sleep_forever()
    await anyio.lowlevel.checkpoint()
    return {"log": ["went on"]}


async def cancels_its_children(state: Any) -> dict[str, Any]:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        group.start_soon(anyio.sleep_forever)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint()
    return {"log": ["went on"]}


async def gives_up_an_ainvoke(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    async with anyio.create_task_group() as group:
        group.start_soon(below.graph.ainvoke, {})
        await below.reached.wait()
        group.cancel_scope.cancel()
    assert below.cleaned == 1
    return {"log": ["went on"]}


async def gives_up_an_ainvoke_in_place(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel() -> None:
                await below.reached.wait()
                scope.cancel()

            group.start_soon(cancel)
            await below.graph.ainvoke({})
    assert scope.cancelled_caught and below.cleaned == 1
    await anyio.lowlevel.checkpoint()
    return {"log": ["went on"]}


async def closes_a_stream(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    stream = below.graph.astream({})
    await anext(stream)
    await below.reached.wait()
    await stream.aclose()
    assert below.cleaned == 1
    return {"log": ["went on"]}


async def breaks_off_a_stream(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    async with below.graph.astream({}) as stream:
        async for _ in stream:
            await below.reached.wait()
            break
    assert below.cleaned == 1
    return {"log": ["went on"]}


async def gives_up_reading_a_stream(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    stream = below.graph.astream({})
    with anyio.CancelScope() as scope:
        async for _ in stream:
            await below.reached.wait()
            scope.cancel()
            await anext(stream)
    assert scope.cancelled_caught and below.cleaned == 1
    await anyio.lowlevel.checkpoint()
    return {"log": ["went on"]}


async def cancels_a_task_of_the_runs(state: Any) -> dict[str, Any]:
    @task
    async def forever() -> None:
        await anyio.sleep_forever()

    future = forever()
    await anyio.lowlevel.checkpoint()
    future.cancel()
    with pytest.raises(TaskCancelledError):
        await future
    return {"log": ["went on"]}


async def waits_for_too_long(state: Any) -> dict[str, Any]:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(1000), 0.001)
    await asyncio.sleep(0)
    return {"log": ["went on"]}


async def waits_too_long_for_a_graph(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(below.graph.ainvoke({}), 0.01)
    assert below.cleaned == below.reached.is_set()
    return {"log": ["went on"]}


async def waits_too_long_for_a_chunk(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    async with below.graph.astream({}) as stream:
        await anext(stream)
        await below.reached.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.001)
        assert below.cleaned == 1
    return {"log": ["went on"]}


async def times_out(state: Any) -> dict[str, Any]:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(1000)
    await asyncio.sleep(0)
    return {"log": ["went on"]}


async def cancels_a_child(state: Any) -> dict[str, Any]:
    child = asyncio.ensure_future(asyncio.sleep(1000))
    await asyncio.sleep(0)
    child.cancel()
    with pytest.raises(asyncio.CancelledError):
        await child
    return {"log": ["went on"]}


async def cancels_a_child_that_runs_a_graph(state: Any) -> dict[str, Any]:
    below = EndlessGraph()
    child = asyncio.ensure_future(below.graph.ainvoke({}))
    await below.reached.wait()
    child.cancel()
    with pytest.raises(asyncio.CancelledError):
        await child
    assert below.cleaned == 1
    return {"log": ["went on"]}


async def a_native_group_fails(state: Any) -> dict[str, Any]:
    async def fail() -> None:
        raise ValueError("a child's")

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(1000)
    await asyncio.sleep(0)
    return {"log": ["went on"]}


async def a_native_group_fails_at_its_end(state: Any) -> dict[str, Any]:
    """The group fails at its end, where before Python 3.13 it does not take back that it has cancelled its task."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("a child's")

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(1000))
    await asyncio.sleep(0)
    return {"log": ["went on"]}


OWN = [
    gives_up_a_scope,
    survives_fail_after,
    cancels_its_children,
    gives_up_an_ainvoke,
    gives_up_an_ainvoke_in_place,
    closes_a_stream,
    breaks_off_a_stream,
    gives_up_reading_a_stream,
    cancels_a_task_of_the_runs,
]
OWN_ON_ASYNCIO = [
    waits_for_too_long,
    waits_too_long_for_a_graph,
    waits_too_long_for_a_chunk,
    times_out,
    cancels_a_child,
    cancels_a_child_that_runs_a_graph,
    a_native_group_fails,
    a_native_group_fails_at_its_end,
]


@each_verb
@each_place
@pytest.mark.pairwise
@pytest.mark.parametrize("node", [*OWN, *OWN_ON_ASYNCIO], ids=lambda node: node.__name__)
async def test_a_node_that_cancels_its_own_work(node: Any, place: Any, verb: str, anyio_backend_name: str) -> None:
    """P7: when a node cancels work of its own and catches the cancellation, the run continues to its end."""
    if node in OWN_ON_ASYNCIO and anyio_backend_name != "asyncio":
        return
    async with nothing_left():
        log = await run(place(node), verb)
        await is_untouched()
    assert log == (["went on", "done", "done"] if place is with_a_sibling else ["went on", "done"])


@pytest.mark.parametrize("place", [alone, in_a_subgraph], ids=lambda place: place.__name__)
async def test_a_cancellation_while_a_native_group_fails(place: Any, anyio_backend_name: str) -> None:
    """P7: of two cancellations that arrive while a failed group waits for its children, one is the group's own, and the
    other is the run's, which the node has swallowed."""
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own task groups, which trio has not")
    cleans, cleaned = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        raise ValueError("a child's")

    async def clean() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            cleans.set()
            await cleaned.wait()

    async def node(state: Any) -> dict[str, Any]:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(clean())
                group.create_task(fail())
        return {"log": ["went on"]}

    async with nothing_left():
        caller = asyncio.ensure_future(run(place(node), "ainvoke"))
        await cleans.wait()
        caller.cancel()
        await anyio.wait_all_tasks_blocked()
        cleaned.set()
        with pytest.raises(asyncio.CancelledError):
            await caller


async def raises_what_a_child_did(state: Any) -> None:
    child = asyncio.ensure_future(asyncio.sleep(1000))
    asyncio.get_running_loop().call_soon(child.cancel)
    await child


async def awaits_a_cancelled_future(state: Any) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def raises_what_a_graph_did(state: Any) -> None:
    below = EndlessGraph()
    child = asyncio.ensure_future(below.graph.ainvoke({}))
    await below.reached.wait()
    child.cancel()
    await child


async def raises_it_while_cleaning_up(state: Any) -> None:
    try:
        raise ValueError("unreported")
    finally:
        raise asyncio.CancelledError


@each_verb
@each_place
@pytest.mark.parametrize(
    "node",
    [raises_what_a_child_did, awaits_a_cancelled_future, raises_what_a_graph_did, raises_it_while_cleaning_up],
    ids=lambda node: node.__name__,
)
async def test_a_node_that_raises_its_own_cancellation(
    node: Any, place: Any, verb: str, anyio_backend_name: str
) -> None:
    """P7: a cancellation that the run was not given is the node's failure, by name, wherever the node runs; the caller
    is not cancelled, and the thread can be resumed."""
    if anyio_backend_name != "asyncio":
        return  # trio's cancellation cannot be constructed
    graph = place(node)
    async with nothing_left():
        with pytest.raises(NodeCancelledError, match="'node'") as caught:
            await run(graph, verb)
        await is_untouched()
    assert caught.value.node == "node"
    state = await graph.aget_state("t")
    assert state.next and state.tasks[0].error is not None


async def fails_after(state: Any) -> None:
    with anyio.fail_after(0):
        await anyio.sleep_forever()


async def raises_a_timeout(state: Any) -> None:
    raise TimeoutError("a service's")


async def lets_wait_for_out(state: Any) -> None:
    await asyncio.wait_for(asyncio.sleep(1000), 0.001)


async def lets_timeout_out(state: Any) -> None:
    async with asyncio.timeout(0):
        await asyncio.sleep(1000)


@each_verb
@each_place
@pytest.mark.parametrize(
    "node", [fails_after, raises_a_timeout, lets_wait_for_out, lets_timeout_out], ids=lambda node: node.__name__
)
async def test_a_nodes_own_timeout(node: Any, place: Any, verb: str, anyio_backend_name: str) -> None:
    """P9: a node's TimeoutError is the node's failure, with a note that says so, inside any deadline of the caller that
    has not passed."""
    if node in (lets_wait_for_out, lets_timeout_out) and anyio_backend_name != "asyncio":
        return
    async with nothing_left():
        with anyio.fail_after(60) as scope:
            with pytest.raises(TimeoutError) as caught:
                await run(place(node), verb)
            await is_untouched()
    assert not scope.cancel_called
    assert "in node 'node', superstep 1" in caught.value.__notes__[0]


@each_verb
@each_place
@pytest.mark.parametrize("shielded", [False, True])
async def test_a_deadline_that_passes_as_a_node_times_out(shielded: bool, place: Any, verb: str) -> None:
    """P7, P9: the caller's deadline passes exactly when a node raises a TimeoutError of its own. The node has failed:
    the failure is recorded, and `ainvoke` raises it. (The reader of a stream is cancelled itself, and so is a node that
    waits for a task; they get the deadline's error.)"""

    async def node(state: Any) -> None:
        scope.deadline = float("-inf")
        if shielded:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
        raise TimeoutError("a service's")

    graph = place(node)
    async with nothing_left():
        with pytest.raises(TimeoutError) as caught:
            with anyio.fail_after(60) as scope:
                await run(graph, verb)
        await is_untouched()
    state = await graph.aget_state("t")
    assert state.next
    if place is not called:
        errors = [each.error for each in state.tasks if each.name in state.next]
        assert [error and error.message for error in errors] == ["a service's"]
        if verb == "ainvoke":
            assert str(caught.value) == "a service's"
    if str(caught.value) == "a service's":
        assert "in node 'node'" in caught.value.__notes__[0]
    else:
        assert scope.cancelled_caught


@pytest.mark.parametrize("place", [alone, with_a_sibling, in_a_subgraph], ids=lambda place: place.__name__)
async def test_a_failure_that_comes_with_the_callers_cancellation(place: Any) -> None:
    """P9: the same for `ainvoke`, whose caller is the one that runs the node: the node's failure is raised."""

    async def node(state: Any) -> None:
        scope.cancel()
        raise ValueError("the node's")

    graph = place(node)
    async with nothing_left():
        with pytest.raises(ValueError, match="the node's") as caught:
            with anyio.CancelScope() as scope:
                await graph.ainvoke({}, "t")
        await is_untouched()
    assert "in node 'node'" in caught.value.__notes__[0]
    state = await graph.aget_state("t")
    errors = [each.error for each in state.tasks if each.name in state.next]
    assert [error and error.message for error in errors] == ["the node's"]


@each_place
@pytest.mark.parametrize("catches", [False, True])
async def test_asyncios_timeout_around_ainvoke(catches: bool, place: Any, anyio_backend_name: str) -> None:
    """P7: `asyncio.timeout` around `ainvoke` cancels it natively: that is the caller's own cancellation, whatever the
    node does with it, and `timeout` turns it into its TimeoutError."""
    if anyio_backend_name != "asyncio":
        return
    cleaned: list[str] = []

    async def node(state: Any) -> dict[str, Any]:
        try:
            limit.reschedule(asyncio.get_running_loop().time())
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cleaned.append("node")
            if not catches:
                raise
        return {"log": ["swallowed"]}

    graph = place(node)
    async with nothing_left():
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(60) as limit:
                await graph.ainvoke({}, "t")
        await is_untouched()
    assert limit.expired() and cleaned == ["node"]
    assert not hasattr(caught.value, "__notes__")
    limit = asyncio.timeout(60)
    state = await graph.aget_state("t")
    assert state.next and state.tasks[0].error is None, "the node was cancelled, and has not failed"


@each_verb
@each_place
@pytest.mark.parametrize("how", ["scope", "Task.cancel"])
async def test_the_callers_cancellation(how: str, place: Any, verb: str, anyio_backend_name: str) -> None:
    """P7: the caller's cancellation is no failure of the node: none is recorded, and the cancellation is raised."""
    if how == "Task.cancel" and anyio_backend_name != "asyncio":
        return
    reached = anyio.Event()
    seen: list[BaseException] = []

    async def node(state: Any) -> None:
        reached.set()
        await anyio.sleep_forever()

    graph = place(node)

    async def call() -> None:
        try:
            await run(graph, verb)
        except BaseException as error:
            seen.append(error)
            raise

    async with nothing_left():
        if how == "scope":
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await reached.wait()
                group.cancel_scope.cancel()
        else:
            caller = asyncio.ensure_future(call())
            await reached.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        await is_untouched()
    assert [type(error) for error in seen] == [anyio.get_cancelled_exc_class()]
    state = await graph.aget_state("t")
    assert state.next and state.error is None and all(each.error is None for each in state.tasks)


@each_place
async def test_a_stream_that_another_cancels_reaches_its_reader_as_the_end(place: Any) -> None:
    """P7: a reader whose stream is closed by another task is not cancelled, and sees the end."""
    reached = anyio.Event()

    async def node(state: Any) -> None:
        reached.set()
        await anyio.sleep_forever()

    stream = place(node).astream({}, "t")
    ends: list[str] = []

    async def read() -> None:
        async for _ in stream:
            pass
        await is_untouched()
        ends.append("end")

    async with nothing_left():
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await reached.wait()
            await stream.aclose()
    assert ends == ["end"]


async def test_two_runs_and_one_is_cancelled() -> None:
    """P7: a cancelled run of a graph leaves another run of it alone, in the same task group."""
    reached = 0
    both, leave = anyio.Event(), anyio.Event()

    async def node(state: Any) -> dict[str, Any]:
        nonlocal reached
        reached += 1
        if reached == 2:
            both.set()
        await leave.wait()
        return {"log": ["left"]}

    graph = alone(node)
    scopes: list[anyio.CancelScope] = []
    results: list[Any] = []

    async def call(thread: str) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            results.append(await graph.ainvoke({}, thread))

    async with nothing_left():
        async with anyio.create_task_group() as group:
            group.start_soon(call, "one")
            group.start_soon(call, "two")
            await both.wait()
            scopes[0].cancel()
            await anyio.lowlevel.checkpoint()
            leave.set()
    assert [result["log"] for result in results] == [["left", "done"]]


@each_place
async def test_a_batch_with_a_cancellation_of_a_nodes_own(place: Any, anyio_backend_name: str) -> None:
    """P7: when one of several runs in an `abatch` fails by a cancellation of its own, its failure is raised, and the
    others are cancelled."""
    if anyio_backend_name != "asyncio":
        return
    graph = place(awaits_a_cancelled_future)
    async with nothing_left():
        with pytest.raises(NodeCancelledError):
            await graph.abatch([{}, {}, {}], ["1", "2", "3"])
        await is_untouched()
