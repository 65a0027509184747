"""What a caller sees of failures, what is kept of a failed superstep, and what a policy or a handler does."""

import asyncio
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


class Broken(Exception):
    """An error of a node's own."""


def parallel(library: Any, saver: Any = None, **nodes: Any) -> Any:
    builder = library.StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node).add_edge(library.START, name)
    return builder.compile(saver)


def one(library: Any, node: Any, saver: Any = None, **options: Any) -> Any:
    return library.StateGraph(State).add_node("n", node, **options).add_edge(library.START, "n").compile(saver)


def quick(library: Any, **options: Any) -> Any:
    return library.RetryPolicy(initial_interval=0.001, jitter=False, **options)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_failure_cancels_siblings_and_waits_for_them(library: Any) -> None:
    """The caller gets the node's own exception, after all siblings have cleaned up."""
    cleaned: list[str] = []
    error = Broken("a failed")
    b_runs = asyncio.Event()

    async def a(state: State) -> None:
        await asyncio.wait_for(b_runs.wait(), 60)
        raise error

    async def b(state: State) -> None:
        b_runs.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("b")

    with pytest.raises(Broken) as caught:
        await parallel(library, a=a, b=b).ainvoke({"log": []})
    assert caught.value is error and cleaned == ["b"]
    assert any("'a'" in note or "a " in note for note in error.__notes__)


async def stopped(library: Any) -> Any:
    """Return a graph whose node `a` has finished and whose node `b` has failed once, and a list of the nodes that run."""
    broken = [True]
    ran: list[str] = []
    a_was_read = asyncio.Event()

    async def a(state: State) -> dict[str, Any]:
        ran.append("a")
        return {"log": ["a"]}

    async def b(state: State) -> dict[str, Any]:
        ran.append("b")
        if broken:
            await asyncio.wait_for(a_was_read.wait(), 60)
            raise Broken("b failed")
        return {"log": ["b"]}

    graph = parallel(library, library.InMemorySaver(), a=a, b=b)
    with pytest.raises(Broken):
        async for _ in graph.astream({"log": []}, CONFIG, stream_mode="updates"):
            a_was_read.set()
    broken.clear()
    return graph, ran


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_finished_siblings_do_not_run_again(library: Any) -> None:
    """A call with None runs what failed."""
    graph, ran = await stopped(library)
    assert (await graph.aget_state(CONFIG)).next == ("b",)
    assert (await graph.ainvoke(None, CONFIG))["log"] == ["a", "b"]
    assert ran.count("a") == 1 and ran.count("b") == 2


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_stopped_threads_state(library: Any) -> None:
    """Results of finished siblings are in `tasks`. LangGraph: the state of the head shows their updates in `values` too."""
    graph, _ = await stopped(library)
    state = await graph.aget_state(CONFIG)
    assert {task.name: task.result for task in state.tasks} == {"a": {"log": ["a"]}, "b": None}
    assert state.values == {"log": ["a"] if library.is_langgraph else []}
    failed = next(task for task in state.tasks if task.name == "b")
    assert "b failed" in str(failed.error)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_new_input_drops_what_had_stopped(library: Any) -> None:
    """All nodes run again, and the recorded results do not count."""
    graph, ran = await stopped(library)
    assert (await graph.ainvoke({"log": ["new"]}, CONFIG))["log"] == ["new", "a", "b"]
    assert ran.count("a") == 2


def test_a_failure_takes_precedence_over_a_question(library: Any) -> None:
    """The question stays recorded, and can be answered once the failure is mended."""
    broken = [True]

    def asks(state: State) -> dict[str, Any]:
        return {"log": [library.interrupt("which?")]}

    def fails(state: State) -> None:
        if broken:
            raise Broken("not now")

    graph = parallel(library, library.InMemorySaver(), asks=asks, fails=fails)
    with pytest.raises(Broken):
        graph.invoke({"log": []}, CONFIG)
    broken.clear()
    assert [each.value for each in graph.invoke(None, CONFIG)["__interrupt__"]] == ["which?"]
    assert graph.invoke(library.Command(resume="this"), CONFIG)["log"] == ["this"]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_cancellation_from_outside_is_one(library: Any) -> None:
    """The awaiting code's own cancellation comes back as such, after the node has cleaned up."""
    runs, cleaned = asyncio.Event(), []

    async def node(state: State) -> None:
        runs.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("n")

    call = asyncio.create_task(one(library, node).ainvoke({"log": []}))
    await runs.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cleaned == ["n"]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_cancellation_that_a_node_raises_fails_the_run(library: Any) -> None:
    """Nobody has cancelled the call, so it must not look cancelled."""

    async def node(state: State) -> None:
        raise asyncio.CancelledError

    with pytest.raises(Exception, match="n"):
        await one(library, node).ainvoke({"log": []})


def test_attempts_are_counted(library: Any) -> None:
    """`max_attempts` counts the first one; the runtime's information says which attempt runs."""
    seen = []

    def node(state: State, runtime: library.Runtime) -> dict[str, Any]:
        seen.append(runtime.execution_info.node_attempt)
        if len(seen) < 3:
            raise ConnectionError("again")
        return {"log": list(seen)}

    assert one(library, node, retry_policy=quick(library)).invoke({"log": []})["log"] == [1, 2, 3]
    seen.clear()
    with pytest.raises(ConnectionError):
        one(library, node, retry_policy=quick(library, max_attempts=2)).invoke({"log": []})
    assert seen == [1, 2]


@pytest.mark.parametrize(("error", "attempts"), [(ConnectionError, 2), (Broken, 2), (ValueError, 1), (OSError, 1)])
def test_what_is_retried_by_default(library: Any, error: type[Exception], attempts: int) -> None:
    """Failed connections and errors of unknown classes are; mistakes of the code are not."""
    seen = []

    def node(state: State) -> None:
        seen.append(1)
        raise error("again")

    with pytest.raises(error):
        one(library, node, retry_policy=quick(library, max_attempts=2)).invoke({"log": []})
    assert len(seen) == attempts


def test_policies_share_the_count_of_attempts(library: Any) -> None:
    """The first policy that matches a failure decides about it."""
    errors = [KeyError("1"), ZeroDivisionError("2"), KeyError("3"), ZeroDivisionError("4")]

    def node(state: State) -> None:
        raise errors.pop(0)

    policies = [quick(library, retry_on=KeyError, max_attempts=2), quick(library, retry_on=ZeroDivisionError)]
    with pytest.raises(KeyError, match="3"):
        one(library, node, retry_policy=policies).invoke({"log": []})


def test_questions_are_not_retried(library: Any) -> None:
    """Neither retry policies nor error handlers see them."""
    ran = []

    def node(state: State) -> dict[str, Any]:
        ran.append(1)
        return {"note": library.interrupt("which?")}

    def handler(state: State) -> dict[str, Any]:
        return {"note": "handled"}

    policy = quick(library, retry_on=lambda error: True)
    graph = one(library, node, library.InMemorySaver(), retry_policy=policy, error_handler=handler)
    assert "__interrupt__" in graph.invoke({"log": []}, CONFIG) and ran == [1]


def test_a_handler_takes_the_nodes_place(library: Any) -> None:
    """It gets the node's input and the error; its `goto` counts, and the failed node's edges do not."""
    seen: list[Any] = []

    def fails(state: State) -> None:
        raise Broken("why")

    def handler(state: State, error: library.NodeError) -> Any:
        seen.append((dict(state), error.node, str(error.error)))
        return library.Command(update={"log": ["handled"]}, goto="other")

    builder = library.StateGraph(State).add_node("n", fails, error_handler=handler)
    builder.add_node("edge", lambda state: {"log": ["edge"]}).add_node("other", lambda state: {"log": ["other"]})
    graph = builder.add_edge(library.START, "n").add_edge("n", "edge").compile()
    chunks = list(graph.stream({"log": ["in"]}, stream_mode="updates"))
    assert chunks == [{"__error_handler__n": {"log": ["handled"]}}, {"other": {"log": ["other"]}}]
    assert seen == [({"log": ["in"]}, "n", "why")]


def test_a_default_handler(library: Any) -> None:
    """It handles nodes without a handler of their own, and does not handle handlers."""

    def fails(state: State) -> None:
        raise Broken("why")

    def handler(state: State) -> dict[str, Any]:
        return {"log": ["handled"]}

    builder = library.StateGraph(State).set_node_defaults(error_handler=handler)
    graph = builder.add_node("n", fails).add_edge(library.START, "n").compile()
    assert graph.invoke({"log": []})["log"] == ["handled"]

    builder = library.StateGraph(State).set_node_defaults(error_handler=handler)
    builder.add_node("n", fails, error_handler=fails).add_edge(library.START, "n")
    with pytest.raises(Broken):
        builder.compile().invoke({"log": []})


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_timeout(library: Any) -> None:
    """The error names the node and the time, is no builtin `TimeoutError`, and the attempt's writes do not count."""

    async def slow(state: State) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {"log": ["late"]}

    with pytest.raises(library.NodeTimeoutError) as caught:
        await one(library, slow, timeout=0.01).ainvoke({"log": []})
    error = caught.value
    assert (error.node, error.kind, error.run_timeout) == ("n", "run", 0.01) and not isinstance(error, TimeoutError)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_timeout_that_a_node_raises_stays_its_own(library: Any) -> None:
    """It is not taken for the policy's."""

    async def node(state: State) -> None:
        raise TimeoutError("the service's own")

    with pytest.raises(TimeoutError, match="own"):
        await one(library, node, timeout=10).ainvoke({"log": []})


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_step_timeout_is_a_builtin_one(library: Any) -> None:
    """It limits a superstep as a whole."""

    async def slow(state: State) -> None:
        await asyncio.Event().wait()

    graph = one(library, slow)
    graph.step_timeout = 0.01
    with pytest.raises(TimeoutError):
        await graph.ainvoke({"log": []})


def test_a_timeout_of_a_plain_function_is_refused(library: Any) -> None:
    """A thread cannot be stopped."""
    with pytest.raises(ValueError, match="n"):
        one(library, lambda state: None, timeout=1)


def test_several_failures_of_one_superstep(library: Any) -> None:
    """They come as a group in plan order. LangGraph: one of them is raised."""
    both = threading.Barrier(2)

    def fails(state: State) -> None:
        both.wait(60)
        raise Broken("one of two")

    graph = parallel(library, a=fails, b=fails)
    if library.is_langgraph:
        with pytest.raises(Broken):
            graph.invoke({"log": []})
    else:
        with pytest.raises(ExceptionGroup) as caught:
            graph.invoke({"log": []}, on_failure="finish")
        assert [str(each) for each in caught.value.exceptions] == ["one of two"] * 2


def test_a_failed_router_does_not_end_its_branch(library: Any) -> None:
    """The router runs again on resume, and the node does not. LangGraph: the thread counts as done."""
    up: list[bool] = []
    ran: list[str] = []

    def a(state: State) -> dict[str, Any]:
        ran.append("a")
        return {"log": ["a"]}

    def route(state: State) -> str:
        if not up:
            raise Broken("the router's service is down")
        return "b"

    builder = library.StateGraph(State).add_node(a).add_node("b", lambda state: {"log": ["b"]})
    builder.add_edge(library.START, "a").add_conditional_edges("a", route, ["b"])
    graph = builder.compile(library.InMemorySaver())
    with pytest.raises(Broken):
        graph.invoke({"log": []}, CONFIG)
    assert graph.get_state(CONFIG).next == (() if library.is_langgraph else ("a",))
    up.append(True)
    assert graph.invoke(None, CONFIG)["log"] == (["a"] if library.is_langgraph else ["a", "b"])
    assert ran == ["a"]


def test_a_node_is_cached(library: Any) -> None:
    """An equal input does not run it again; its chunk says so, and a cleared cache forgets it."""
    ran = []

    def node(state: State) -> dict[str, Any]:
        ran.append(1)
        return {"note": "made"}

    builder = library.StateGraph(State).add_node("n", node, cache_policy=library.CachePolicy(ttl=60))
    graph = builder.add_edge(library.START, "n").compile(cache=library.InMemoryCache())
    assert list(graph.stream({"log": ["x"]}, stream_mode="updates")) == [{"n": {"note": "made"}}]
    again = list(graph.stream({"log": ["x"]}, stream_mode="updates"))
    assert again == [{"n": {"note": "made"}, "__metadata__": {"cached": True}}]
    graph.clear_cache()
    graph.invoke({"log": ["x"]})
    assert len(ran) == 2


def test_a_cache_keeps_no_failures(library: Any) -> None:
    """A failed node runs again with the same input."""
    ran = []

    def node(state: State) -> dict[str, Any]:
        ran.append(1)
        if len(ran) == 1:
            raise Broken("once")
        return {"note": "made"}

    builder = library.StateGraph(State).add_node("n", node, cache_policy=library.CachePolicy())
    graph = builder.add_edge(library.START, "n").compile(cache=library.InMemoryCache())
    with pytest.raises(Broken):
        graph.invoke({"log": ["x"]})
    assert graph.invoke({"log": ["x"]})["note"] == "made"
