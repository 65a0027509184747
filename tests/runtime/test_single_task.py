"""A single planned task is awaited in place and behaves like one in a group: the three rules at the top of
`runner.py`."""

from __future__ import annotations

import asyncio
import contextvars
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, StateGraph
from pregel_async.errors import NodeCancelledError, OutsideRunError
from pregel_async.types import StreamWriter
from tests.runtime.leak_checks import nothing_left

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: Annotated[int, operator.add]


who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="unset")


def alone(node: Any, *, saver: Any = None, blocking: bool = False) -> Any:
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(saver, blocking=blocking)


def with_a_sibling(node: Any, *, saver: Any = None, blocking: bool = False) -> Any:
    """Return the same node with a trivial sibling, so that the superstep is a group."""
    made = StateGraph(State).add_node("node", node).add_edge(START, "node")
    made.add_node("sibling", lambda state: None).add_edge(START, "sibling")
    return made.compile(saver, blocking=blocking)


def in_a_group_of_one(node: Any, *, saver: Any = None, blocking: bool = False) -> Any:
    """Return the same node by itself in a task group, as supersteps with a timeout run."""
    made = StateGraph(State).add_node("node", node).add_edge(START, "node")
    return made.compile(saver, blocking=blocking, step_timeout=600)


both = pytest.mark.parametrize("build", [alone, in_a_group_of_one, with_a_sibling])


def looping(node: Any, *, blocking: bool = False) -> Any:
    """Return a node that loops forever."""
    made = StateGraph(State).add_node("node", node).add_edge(START, "node").add_edge("node", "node")
    return made.compile(blocking=blocking).with_config(recursion_limit=200_000)


def current_task() -> Any:
    if sniffio.current_async_library() == "asyncio":
        return asyncio.current_task()
    return trio.lowlevel.current_task()


@both
async def test_the_current_task(build: Callable[..., Any]) -> None:
    """A node runs in one task from its first line to its last, across all awaits; tasks that it starts in its own group
    are separate tasks."""
    seen: list[dict[str, bool]] = []

    async def node(state: Any) -> None:
        mine, others = current_task(), []

        async def child() -> None:
            others.append(current_task())
            await anyio.lowlevel.checkpoint()
            others.append(current_task())

        await anyio.lowlevel.checkpoint()
        after_a_wait = current_task()
        async with anyio.create_task_group() as group:
            group.start_soon(child)
        with anyio.move_on_after(0) as scope:
            await anyio.sleep_forever()
        await child()
        seen.append(
            {
                "is there": mine is not None,
                "is the same after a wait": after_a_wait is mine,
                "is the same after a group": current_task() is mine,
                "is the same in what it awaits": others[2] is others[3] is mine,
                "children have their own": others[0] is others[1] is not mine,
                "a scope's timeout stays in it": scope.cancelled_caught,
                "is not cancelled": sniffio.current_async_library() != "asyncio" or not mine.cancelling(),
            }
        )

    async with nothing_left():
        await build(node).ainvoke({})
    assert seen == [dict.fromkeys(seen[0], True)]


@both
async def test_leaked_tasks(build: Callable[..., Any], anyio_backend_name: str) -> None:
    """A task that a node leaves running keeps running and reaches nothing of the run: the run neither waits for it nor
    cancels it, as a group waits only for its own tasks."""
    if anyio_backend_name != "asyncio":
        return  # trio has no task without a group
    refused: list[str] = []
    leaked: list[asyncio.Task[None]] = []
    over = asyncio.Event()

    async def linger(writer: Any) -> None:
        await over.wait()
        try:
            writer("late")
        except OutsideRunError:
            refused.append("late")

    async def node(state: Any, writer: StreamWriter) -> dict[str, Any]:
        leaked.append(asyncio.get_running_loop().create_task(linger(writer)))
        await anyio.lowlevel.checkpoint()
        return {"log": ["done"]}

    assert (await build(node).ainvoke({}))["log"] == ["done"]
    assert not leaked[0].done() and not leaked[0].cancelling()
    over.set()
    await leaked[0]
    assert refused == ["late"]


@both
async def test_a_nodes_context_is_its_own(build: Callable[..., Any]) -> None:
    """A node has its own context: context variables that it sets stay there, across awaits too, and it sees its
    caller's."""
    seen: list[str] = []

    async def node(state: Any) -> None:
        seen.append(who.get())
        who.set("node")
        await anyio.lowlevel.checkpoint()
        seen.append(who.get())

    token = who.set("caller")
    await build(node).ainvoke({})
    assert (seen, who.get()) == (["caller", "node"], "caller")
    who.reset(token)


async def test_contexts_do_not_pile_up() -> None:
    """The next superstep's node sees the caller's context, not that of the node before it."""
    seen: list[str] = []

    async def node(state: Any) -> dict[str, Any]:
        seen.append(who.get())
        who.set(f"node {len(seen)}")
        return {"count": 1}

    made = StateGraph(State).add_node("node", node).add_edge(START, "node")
    made.add_conditional_edges("node", lambda state: "node" if state["count"] < 3 else END)
    await made.compile().ainvoke({})
    assert seen == ["unset"] * 3


@both
async def test_a_token_can_be_reset(build: Callable[..., Any]) -> None:
    """The context is the same from a node's start to its end: tokens are valid across awaits."""

    async def node(state: Any) -> dict[str, Any]:
        token = who.set("mine")
        try:
            await anyio.lowlevel.checkpoint()
            return {"log": [who.get()]}
        finally:
            who.reset(token)

    assert (await build(node).ainvoke({}))["log"] == ["mine"]


@both
async def test_a_nodes_own_tasks_see_its_context(build: Callable[..., Any]) -> None:
    """Tasks that a node starts inherit the node's context, as from any task."""

    async def node(state: Any) -> dict[str, Any]:
        got: list[str] = []

        async def child() -> None:
            got.append(who.get())

        who.set("node")
        async with anyio.create_task_group() as group:
            group.start_soon(child)
        return {"log": got}

    assert (await build(node).ainvoke({}))["log"] == ["node"]


def never_waits(state: Any) -> None:
    """A node that never yields to the event loop by itself."""


async def never_waits_either(state: Any) -> None:
    pass


@pytest.mark.parametrize("node", [never_waits, never_waits_either])
async def test_a_timeout_around_many_supersteps_fires(node: Any) -> None:
    """A timeout around 200 000 supersteps fires, though no node ever waits."""
    ran = 0

    def counted(state: Any) -> Any:
        nonlocal ran
        ran += 1
        return node(state)

    graph = looping(counted)
    with anyio.move_on_after(0.02) as scope:
        await graph.ainvoke({})
    assert scope.cancelled_caught
    assert ran < 200_000


@pytest.mark.parametrize("node", [never_waits, never_waits_either])
async def test_asyncios_own_timeout_fires_too(node: Any, anyio_backend_name: str) -> None:
    """Asyncio's own timeout fires as well."""
    if anyio_backend_name != "asyncio":
        return
    graph = looping(node)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(graph.ainvoke({}), 0.02)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await graph.ainvoke({})


async def test_other_tasks_get_their_turn() -> None:
    """The event loop gets a turn at every barrier: another task runs as often as there are supersteps."""
    turns = 0
    done = False

    async def other() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await anyio.lowlevel.checkpoint()

    made = StateGraph(State).add_node("node", lambda state: {"count": 1}).add_edge(START, "node")
    made.add_conditional_edges("node", lambda state: "node" if state["count"] < 50 else END)
    graph = made.compile(blocking=False)
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await anyio.lowlevel.checkpoint()
        before = turns
        await graph.ainvoke({})
        assert turns - before >= 45
        done = True


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cancellation_is_noticed_at_the_next_barrier(streamed: bool) -> None:
    """Once the scope around a run is cancelled, no further node runs, though none ever waits."""
    ran = 0
    scope = anyio.CancelScope()

    def node(state: Any) -> None:
        nonlocal ran
        ran += 1
        if ran == 5:
            scope.cancel()

    graph = looping(node)
    with scope:
        if streamed:
            async with graph.astream({}) as chunks:
                async for _ in chunks:
                    pass
        else:
            await graph.ainvoke({})
    assert scope.cancelled_caught
    assert ran == 5 if not streamed else 5 <= ran <= 70


async def test_a_native_cancellation_is_noticed_at_the_next_barrier(anyio_backend_name: str) -> None:
    """So is asyncio's own `Task.cancel()`."""
    if anyio_backend_name != "asyncio":
        return
    ran = 0

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        def node(state: Any) -> None:
            nonlocal ran
            ran += 1
            if ran == 5:
                task.cancel()

        await looping(node).ainvoke({})

    task = asyncio.ensure_future(main())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert ran == 5


@both
async def test_a_run_in_a_cancelled_scope_runs_nothing(build: Callable[..., Any]) -> None:
    """P7: a run that is cancelled before it begins has run no node."""
    ran: list[int] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        await build(lambda state: ran.append(1)).ainvoke({})
    assert ran == []


async def _returns(state: Any) -> dict[str, Any]:
    await anyio.lowlevel.checkpoint()
    return {"log": ["done"]}


async def _raises(state: Any) -> None:
    raise ValueError("mine")


async def _raises_later(state: Any) -> None:
    await anyio.lowlevel.checkpoint()
    raise ValueError("mine")


async def _raises_a_group(state: Any) -> None:
    raise ExceptionGroup("mine", [ValueError("one")])


async def _fails_in_its_own_group(state: Any) -> None:
    async def child() -> None:
        raise ValueError("child")

    async with anyio.create_task_group() as group:
        group.start_soon(child)


async def _its_own_scope_cancelled(state: Any) -> dict[str, Any]:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await anyio.sleep_forever()
    return {"log": [f"cancelled {scope.cancelled_caught}"]}


async def _its_own_deadline(state: Any) -> None:
    with anyio.fail_after(0):
        await anyio.sleep_forever()


async def _moves_on(state: Any) -> dict[str, Any]:
    with anyio.move_on_after(0):
        await anyio.sleep_forever()
    await anyio.lowlevel.checkpoint()
    return {"log": ["moved on"]}


def _plain(state: Any) -> dict[str, Any]:
    return {"log": ["plain"]}


def _plain_raises(state: Any) -> None:
    raise ValueError("plain")


def _returns_nonsense(state: Any) -> int:
    return 5


async def _shields(state: Any) -> dict[str, Any]:
    with anyio.CancelScope(shield=True):
        await anyio.lowlevel.checkpoint()
    return {"log": ["shielded"]}


OUTCOMES = {call.__name__[1:]: call for call in (
    _returns,
    _raises,
    _raises_later,
    _raises_a_group,
    _fails_in_its_own_group,
    _its_own_scope_cancelled,
    _its_own_deadline,
    _moves_on,
    _plain,
    _plain_raises,
    _returns_nonsense,
    _shields,
)}  # fmt: skip


async def _raises_cancelled(state: Any) -> None:
    raise asyncio.CancelledError("mine")


async def _awaits_a_cancelled_future(state: Any) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def _awaits_a_cancelled_task(state: Any) -> None:
    task = asyncio.ensure_future(asyncio.sleep(1000))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def _times_out(state: Any) -> None:
    async with asyncio.timeout(0):
        await asyncio.sleep(1000)


async def _waits_for_too_long(state: Any) -> None:
    await asyncio.wait_for(asyncio.sleep(1000), 0)


async def _survives_its_timeout(state: Any) -> dict[str, Any]:
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(1000)
    except TimeoutError:
        await asyncio.sleep(0)
    return {"log": ["survived"]}


async def _catches_its_own(state: Any) -> dict[str, Any]:
    try:
        await _awaits_a_cancelled_future(state)
    except asyncio.CancelledError:
        return {"log": ["caught"]}
    return {}


def _plain_cancelled(state: Any) -> None:
    raise asyncio.CancelledError("plain")


OUTCOMES_ON_ASYNCIO = {call.__name__[1:]: call for call in (
    _raises_cancelled,
    _awaits_a_cancelled_future,
    _awaits_a_cancelled_task,
    _times_out,
    _waits_for_too_long,
    _survives_its_timeout,
    _catches_its_own,
    _plain_cancelled,
)}  # fmt: skip


def described(error: BaseException) -> Any:
    inner = tuple(map(described, error.exceptions)) if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__
    return type(error), str(error), list(getattr(error, "__notes__", ())), inner, type(cause)


async def outcome(graph: Any, *, streamed: bool) -> Any:
    """Return the outcome of a run, as data."""
    try:
        if not streamed:
            result = await graph.ainvoke({}, "t")
        else:
            async with graph.astream({}, "t", stream_mode="values") as chunks:
                async for result in chunks:
                    pass
    except BaseException as error:  # any exception: it is what the test compares
        return described(error)
    return result


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", [*OUTCOMES, *OUTCOMES_ON_ASYNCIO])
async def test_alone_as_with_a_sibling(name: str, streamed: bool, anyio_backend_name: str) -> None:
    """Outcome, error and cancellation of a single task are what one in a group
    gives."""
    node = OUTCOMES.get(name)
    if node is None:
        if anyio_backend_name != "asyncio":
            return
        node = OUTCOMES_ON_ASYNCIO[name]
    for blocking in (False, True):
        async with nothing_left():
            by_itself = await outcome(alone(node, saver=InMemorySaver(), blocking=blocking), streamed=streamed)
            group = await outcome(in_a_group_of_one(node, saver=InMemorySaver(), blocking=blocking), streamed=streamed)
            in_group = await outcome(with_a_sibling(node, saver=InMemorySaver(), blocking=blocking), streamed=streamed)
        assert by_itself == group == in_group


@pytest.mark.parametrize("streamed", [False, True])
@both
@pytest.mark.parametrize(
    "node", [_raises_cancelled, _awaits_a_cancelled_future, _awaits_a_cancelled_task, _plain_cancelled]
)
async def test_a_cancellation_of_a_nodes_own(
    build: Callable[..., Any], node: Any, streamed: bool, anyio_backend_name: str
) -> None:
    """A node that raises the loop's cancellation error itself has failed: a NodeCancelledError that names it, not a
    cancelled run. (Trio's cancellation cannot be constructed.)"""
    if anyio_backend_name != "asyncio":
        return
    graph = build(node, saver=InMemorySaver())
    with pytest.raises(NodeCancelledError, match="'node'") as caught:
        if streamed:
            async with graph.astream({}, "t") as chunks:
                _ = [chunk async for chunk in chunks]
        else:
            await graph.ainvoke({}, "t")
    assert caught.value.node == "node"
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    state = await graph.aget_state("t")
    assert "node" in state.next
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_node_that_cancels_its_own_task_in_a_group(streamed: bool, anyio_backend_name: str) -> None:
    """Rules 4 and 7, P9: a node in a group whose task is cancelled by other code than the run has failed: its superstep
    is never applied without it."""
    if anyio_backend_name != "asyncio":
        return

    async def node(state: Any) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1000)
        return {"log": ["never"]}

    graph = with_a_sibling(node, saver=InMemorySaver())
    with pytest.raises(NodeCancelledError, match="'node'"):
        if streamed:
            async with graph.astream({}, "t") as chunks:
                _ = [chunk async for chunk in chunks]
        else:
            await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).values == {"log": [], "count": 0}


async def test_a_node_that_cancels_its_own_task_alone(anyio_backend_name: str) -> None:
    """Rule 7: alone a node runs in its caller's task; in either case the run does not end as if it had succeeded."""
    if anyio_backend_name != "asyncio":
        return

    async def node(state: Any) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1000)
        return {"log": ["never"]}

    graph = alone(node, saver=InMemorySaver())

    async def main() -> Any:
        return await graph.ainvoke({}, "t")

    with pytest.raises((asyncio.CancelledError, NodeCancelledError)):
        await asyncio.ensure_future(main())
    state = await graph.aget_state("t")
    assert (state.values, state.next) == ({"log": [], "count": 0}, ("node",))


@both
async def test_a_node_that_swallows_the_runs_cancellation(build: Callable[..., Any]) -> None:
    """P7: a node that swallows the cancellation of its run does not keep the run going: no further node runs."""
    ran: list[str] = []
    reached = anyio.Event()

    async def stubborn(state: Any) -> dict[str, Any]:
        reached.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            ran.append("swallowed")
        return {"log": ["stubborn"]}

    made = StateGraph(State).add_node("node", stubborn).add_node("after", lambda state: ran.append("after"))
    made.add_edge(START, "node").add_edge("node", "after")
    if build is with_a_sibling:
        made.add_node("sibling", lambda state: None).add_edge(START, "sibling")
    graph = made.compile(blocking=False)
    async with anyio.create_task_group() as group:
        group.start_soon(graph.ainvoke, {})
        await reached.wait()
        group.cancel_scope.cancel()
    assert ran == ["swallowed"]


@both
async def test_a_node_that_swallows_a_native_cancellation(build: Callable[..., Any], anyio_backend_name: str) -> None:
    """P7: swallowing asyncio's own cancellation does not either: the caller was cancelled, and gets the
    cancellation."""
    if anyio_backend_name != "asyncio":
        return
    ran: list[str] = []
    reached = anyio.Event()

    async def stubborn(state: Any) -> dict[str, Any]:
        reached.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ran.append("swallowed")
        return {"log": ["stubborn"]}

    made = StateGraph(State).add_node("node", stubborn).add_node("after", lambda state: ran.append("after"))
    made.add_edge(START, "node").add_edge("node", "after")
    if build is with_a_sibling:
        made.add_node("sibling", lambda state: None).add_edge(START, "sibling")
    graph = made.compile(blocking=False)

    async def main() -> None:
        await graph.ainvoke({})

    task = asyncio.ensure_future(main())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == ["swallowed"]


@both
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_swallowed_cancellation_stays_in_its_scope(build: Callable[..., Any], streamed: bool) -> None:
    """P7: when a node swallows the cancellation of a scope around its run, no effect of it leaves that scope."""
    reached = anyio.Event()

    async def stubborn(state: Any) -> None:
        try:
            reached.set()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass

    graph = build(stubborn)
    async with nothing_left():
        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:

                async def cancels() -> None:
                    await reached.wait()
                    scope.cancel()

                group.start_soon(cancels)
                if streamed:
                    async with graph.astream({}) as chunks:
                        async for _ in chunks:
                            pass
                else:
                    await graph.ainvoke({})
        await anyio.lowlevel.checkpoint()  # and the caller continues


@both
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_node_that_fails_while_the_run_is_cancelled(build: Callable[..., Any], streamed: bool) -> None:
    """P9, P13: a node that fails during clean-up of a cancelled run has failed: the canceller gets the failure, as from
    any code that was awaited, and on both event loops."""
    reached = anyio.Event()

    async def fails(state: Any) -> None:
        try:
            reached.set()
            await anyio.sleep_forever()
        finally:
            raise ValueError("while cleaning up")

    graph = build(fails)
    caught: BaseException | None = None
    async with nothing_left():
        async with anyio.create_task_group() as group:
            try:
                with anyio.CancelScope() as scope:

                    async def cancels() -> None:
                        await reached.wait()
                        scope.cancel()

                    group.start_soon(cancels)
                    if streamed:
                        async with graph.astream({}) as chunks:
                            async for _ in chunks:
                                pass
                    else:
                        await graph.ainvoke({})
            except ValueError as error:
                caught = error
        await anyio.lowlevel.checkpoint()
    if not streamed:  # the reader of a stream was cancelled itself, and its cancellation carries the failure as a note
        assert str(caught) == "while cleaning up"
