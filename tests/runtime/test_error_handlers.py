"""Error handlers run in the superstep of the failed node, and their results survive a crash."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import END, START, Command, Send, StateGraph, interrupt, task
from pregel_async.errors import NodeError, NodeTimeoutError, RecordedFailureError
from pregel_async.types import Collect, RetryPolicy
from tests.helpers.passing_saver import WRITES, Through
from tests.helpers.virtual_loops import VirtualWorld

pytestmark = pytest.mark.anyio
T = TypeVar("T")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    bag: dict[str, list[int]]
    errors: Annotated[list[NodeError], operator.add]


class Oops(Exception):
    """A node's failure."""


@pytest.fixture
def environment() -> VirtualWorld:
    return VirtualWorld()


async def fails(state: Any) -> None:
    raise Oops("no")


async def after(state: Any) -> dict[str, Any]:
    return {"log": ["after"]}


async def other(state: Any) -> dict[str, Any]:
    return {"log": ["other"]}


async def handles(state: Any, error: NodeError) -> dict[str, Any]:
    return {"log": [f"{error.node}: {error.error}"]}


def handled(handler: Any = handles, *, node: Any = fails, sibling: bool = False, **options: Any) -> StateGraph[Any]:
    made = StateGraph(State).add_node("bad", node, error_handler=handler, **options).add_node(after)
    made.add_edge(START, "bad").add_edge("bad", "after")
    if sibling:
        made.add_node(other).add_edge(START, "other")
    return made


@pytest.mark.parametrize("sibling", [False, True])
@pytest.mark.parametrize("stored", [False, True])
async def test_a_handler_takes_the_nodes_place(sibling: bool, stored: bool) -> None:
    """The handler's update counts in the same superstep; the failed node's own edges are not followed, and the run
    continues."""
    graph = handled(sibling=sibling).compile(InMemorySaver() if stored else None)
    result = await graph.ainvoke({}, "t" if stored else None)
    assert result["log"] == ["bad: no", *(["other"] if sibling else [])]


async def test_the_error_by_annotation_and_by_name() -> None:
    """The failure is passed by annotation, under any name, or by the name `error`; or not at all. It is the very
    exception, with its node and task."""
    seen: list[Any] = []

    async def by_annotation(state: Any, what: NodeError) -> None:
        seen.append(what)

    async def by_name(state: Any, error) -> None:
        seen.append(error)

    async def by_text(state: Any, *, failed: "NodeError") -> None:  # noqa: UP037  # that is the test
        seen.append(failed)

    def plain(state: Any, error: NodeError | None) -> None:
        seen.append(error)

    async def without(state: Any) -> None:
        seen.append(None)

    for handler in (by_annotation, by_name, by_text, plain, without):
        await handled(handler).compile().ainvoke({})
    assert seen.pop() is None
    for error in seen:
        assert isinstance(error, NodeError)
        assert (error.node, type(error.error), str(error.error)) == ("bad", Oops, "no")
        assert any(error.task_id in note for note in error.error.__notes__)


async def test_the_input_is_the_nodes(environment: VirtualWorld) -> None:
    """P1: the handler gets the input of the failed node, without the node's changes in place; after a Send, the Send's
    argument."""
    seen: list[Any] = []

    async def bad(state: Any) -> None:
        state["bag"]["numbers"].append(2)
        raise Oops

    async def handler(state: Any) -> None:
        seen.append(state["bag"])
        state["bag"]["numbers"].append(3)

    result = await handled(handler, node=bad).compile().ainvoke({"bag": {"numbers": [1]}})
    assert seen == [{"numbers": [1, 3]}]
    assert result["bag"] == {"numbers": [1]}

    made = StateGraph(State).add_node("bad", bad, error_handler=handler)
    sends = [Send("bad", {"bag": {"numbers": [10 * n]}}) for n in range(3)]
    await made.add_conditional_edges(START, lambda state: sends).compile(environment=environment).ainvoke({})
    assert sorted(seen[1:], key=str) == [{"numbers": [0, 3]}, {"numbers": [10, 3]}, {"numbers": [20, 3]}]


async def test_a_handler_says_where_to_go() -> None:
    """A handler's Command(goto=) and its Sends are followed; the node's own edges are not."""

    async def goes(state: Any) -> Any:
        return Command(update={"log": ["handled"]}, goto=["after", Send("after", {})])

    assert (await handled(goes).compile(InMemorySaver()).ainvoke({}, "t"))["log"] == ["handled", "after", "after"]


async def test_the_default_handler() -> None:
    """A default handler applies to nodes without a handler of their own, added before or after it; each of two failed
    nodes in one superstep gets its own run of it, with a task id of its own. Compiling twice changes nothing."""
    ids: list[str] = []

    async def default(state: Any, error: NodeError, runtime: Any) -> dict[str, Any]:
        ids.append(runtime.execution_info.task_id)
        return {"log": [f"default {error.node}"]}

    made = StateGraph(State).add_node("a", fails).set_node_defaults(error_handler=default).add_node("b", fails)
    made.add_node("c", fails, error_handler=handles)
    for name in "abc":
        made.add_edge(START, name)
    for _ in range(2):
        ids.clear()
        graph = made.compile(InMemorySaver())
        assert (await graph.ainvoke({}, "t"))["log"] == ["default a", "default b", "c: no"]
        assert len(set(ids)) == 2
        tasks = [task for snap in [s async for s in graph.aget_state_history("t")] for task in snap.tasks]
        assert not {task.id for task in tasks} & set(ids)
    assert set(made.nodes) == {"a", "b", "c"}


async def test_handlers_have_the_defaults_of_retry_and_timeout(environment: VirtualWorld) -> None:
    """A default retry policy and timeout apply to the handler too; it runs after the node's last attempt."""
    ran: list[str] = []

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops

    async def handler(state: Any, error: NodeError, runtime: Any) -> dict[str, Any]:
        ran.append(f"handler {runtime.execution_info.node_attempt}")
        if len(ran) < 5:
            raise Oops
        if len(ran) < 6:
            await anyio.sleep_forever()
        return {"log": ["handled"]}

    made = handled(handler, node=bad).set_node_defaults(retry_policy=RetryPolicy(jitter=False), timeout=60)
    assert (await made.compile(environment=environment).ainvoke({}))["log"] == ["handled"]
    assert ran == ["bad", "bad", "bad", "handler 1", "handler 2", "handler 3"]


async def test_a_timeout_is_handled(environment: VirtualWorld) -> None:
    """A node that timed out has failed like any other."""

    async def hangs(state: Any) -> None:
        await anyio.sleep_forever()

    async def handler(state: Any, error: NodeError) -> dict[str, Any]:
        assert isinstance(error.error, NodeTimeoutError)
        return {"log": ["handled"]}

    assert (await handled(handler, node=hangs, timeout=5).compile(environment=environment).ainvoke({}))["log"] == [
        "handled"
    ]


async def test_router_failures_are_not_handled() -> None:
    """A router's failure is the run's, and is not handled."""

    def decide(state: Any) -> str:
        raise Oops("router")

    made = StateGraph(State).add_node("n", other, error_handler=handles).add_edge(START, "n")
    with pytest.raises(Oops, match="router"):
        await made.add_conditional_edges("n", decide).compile(InMemorySaver()).ainvoke({}, "t")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_base_exceptions_are_not_handled(kind: type[BaseException]) -> None:
    """An exception that is no `Exception` is not handled."""

    class Quit(BaseException):
        pass

    async def quits(state: Any) -> None:
        raise Quit

    ran: list[str] = []

    async def handler(state: Any) -> None:
        ran.append("handler")

    with pytest.raises(Quit):
        await handled(handler, node=quits).compile().ainvoke({})
    assert ran == []


async def test_a_question_is_no_failure() -> None:
    """A question is not handled as a failure."""

    async def asks(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("?")]}

    graph = handled(node=asks).compile(InMemorySaver())
    assert "__interrupt__" in await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["yes", "after"]


async def test_siblings_keep_running() -> None:
    """A handled failure cancels no sibling, and the handler starts while they run."""
    handler_ran = anyio.Event()

    async def slow(state: Any) -> dict[str, Any]:
        await handler_ran.wait()
        return {"log": ["slow"]}

    async def handler(state: Any) -> dict[str, Any]:
        handler_ran.set()
        return {"log": ["handled"]}

    made = handled(handler).add_node(slow).add_edge(START, "slow")
    with anyio.fail_after(30):
        assert (await made.compile(InMemorySaver()).ainvoke({}, "t"))["log"] == ["handled", "slow"]


async def test_writes_are_in_plan_order() -> None:
    """P2: a handler's writes take the place of its node's in plan order, whichever task finished first."""
    for order in ("abc", "cba", "bca"):
        ended: list[str] = []

        def node(name: str, order: str = order, ended: list[str] = ended) -> Any:
            async def call(state: Any) -> dict[str, Any]:
                while len(ended) < order.index(name):
                    await anyio.lowlevel.checkpoint()
                ended.append(name)
                return {"log": [name]}

            return call

        made = StateGraph(State)
        for name in "abc":
            made.add_node(name, fails, error_handler=node(name)) if name != "b" else made.add_node(name, node(name))
            made.add_edge(START, name)
        assert (await made.compile(InMemorySaver()).ainvoke({}, "t"))["log"] == ["a", "b", "c"]
        assert ended == list(order)


async def test_a_failing_handler_fails_the_run() -> None:
    """A handler's own failure is the run's, and cancels the siblings; the node's failure is its context. On resume (P5)
    the handler runs again, on the recorded failure, and the node does not."""
    ran: list[str] = []
    well: list[bool] = []

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops("first")

    async def handler(state: Any, error: NodeError) -> dict[str, Any]:
        ran.append("handler")
        if not well:
            raise ZeroDivisionError
        assert type(error.error) is RecordedFailureError and error.error.type.endswith("Oops")
        return {"log": ["handled"]}

    graph = handled(handler, node=bad).compile(InMemorySaver())
    with pytest.raises(ZeroDivisionError) as caught:
        await graph.ainvoke({}, "t")
    assert isinstance(caught.value.__context__, Oops)
    assert any("in the error handler of node 'bad'" in note for note in caught.value.__notes__)
    (failed,) = (await graph.aget_state("t")).tasks
    assert failed.name == "bad" and failed.error is not None and failed.error.type == "ZeroDivisionError"
    well.append(True)
    assert (await graph.ainvoke(None, "t"))["log"] == ["handled"]
    assert ran == ["bad", "handler", "handler"]


async def test_a_sibling_that_fails_while_a_handler_runs() -> None:
    """P9, P5: a sibling's failure ends the run while a handler runs; on resume the handler continues, and its node does
    not run again; the handler gets the failure as it was recorded."""
    ran: list[Any] = []
    begun = anyio.Event()

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops("no")

    async def handler(state: Any, error: NodeError) -> dict[str, Any]:
        ran.append(error.error)
        if len(ran) == 2:
            begun.set()
            await anyio.sleep_forever()
        return {"log": ["handled"]}

    async def sibling(state: Any) -> dict[str, Any]:
        await begun.wait()
        if len(ran) == 2:
            raise ZeroDivisionError
        return {"log": ["sibling"]}

    made = handled(handler, node=bad).add_node(sibling).add_edge(START, "sibling")
    graph = made.compile(InMemorySaver())
    with pytest.raises(ZeroDivisionError):
        await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(None, "t"))["log"] == ["handled", "sibling"]
    assert ran[0] == "bad" and isinstance(ran[1], Oops)
    kind = f"{Oops.__module__}.{Oops.__qualname__}"
    assert ran[2:] == [RecordedFailureError(kind, "no")]


class Died(BaseException):
    """Raised in place of the end of the process."""


class Crashing(Through):
    """A saver whose process ends at the n-th write, before or after it is done."""

    def __init__(self, inner: InMemorySaver, at: int, *, after: bool) -> None:
        super().__init__(inner)
        self.at, self.after, self.count, self.dead = at, after, 0, False

    async def around(self, verb: str, call: Callable[[], Any]) -> Any:
        if self.dead:
            raise Died
        if verb not in WRITES:
            return await call()
        self.count += 1
        if self.count != self.at:
            return await call()
        if self.after:
            await call()
        self.dead = True
        raise Died


@pytest.mark.parametrize("sibling", [False, True])
@pytest.mark.parametrize("after_it", [False, True])
async def test_a_crash_at_every_write(sibling: bool, after_it: bool) -> None:
    """P5: whenever the process ends, the node does not run again once its failure is stored, nor the handler once its
    result is; the result is that of an undisturbed run."""
    environment = VirtualWorld(patience=3)
    expected = ["bad: no", "after", "last"]
    if sibling:
        expected.insert(1, "other")
    at, crashed = 0, True
    while crashed:
        at += 1
        inner = InMemorySaver(clock=environment.now)
        ran: list[str] = []

        async def bad(state: Any, ran: list[str] = ran, inner: Any = inner) -> None:
            state_of = await build(inner).aget_state("t")
            assert not any(task.error for task in state_of.tasks), "its failure is stored, and it runs again"
            ran.append("bad")
            raise Oops("no")

        async def handler(state: Any, error: NodeError, ran: list[str] = ran, inner: Any = inner) -> Any:
            (mine, *_) = (await build(inner).aget_state("t")).tasks
            assert mine.error is not None, "the handler starts before the failure is stored"
            assert mine.result is None, "its result is stored, and it runs again"
            ran.append("handler")
            return Command(update={"log": [f"{error.node}: {error.error}"]}, goto=["after"])

        async def last(state: Any) -> dict[str, Any]:
            return {"log": ["last"]}

        def build(saver: Any, bad: Any = bad, handler: Any = handler) -> Any:
            made = StateGraph(State).add_node("bad", bad, error_handler=handler).add_node(after).add_node(last)
            made.add_edge(START, "bad").add_edge("after", "last")
            if sibling:
                made.add_node(other).add_edge(START, "other")
            return made.compile(saver, environment=environment)

        saver = Crashing(inner, at, after=after_it)
        given: Any = {}
        try:
            result = await build(saver).ainvoke(given, "t")
        except (Died, BaseExceptionGroup):
            pass
        crashed = saver.dead
        if crashed:
            environment.time += 100  # the lease of the dead process has expired
            stored = await build(inner).aget_state("t")
            result = await build(inner).ainvoke(None if stored.created_at else {}, "t")
        log = [each.replace(f"{Oops.__module__}.Oops: ", "") for each in result["log"]]
        assert log == expected, at
        assert 1 <= ran.count("bad") <= 2 and 1 <= ran.count("handler") <= 2
    assert at > 5


async def test_a_handler_that_asks() -> None:
    """P8: a handler may ask; the question belongs to the handler's task and survives, and its answer resumes the
    handler and not the node. It may ask twice, and be answered by id."""
    ran: list[str] = []

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops("no")

    async def handler(state: Any, error: NodeError) -> dict[str, Any]:
        ran.append("handler")
        return {"log": [interrupt("first?"), interrupt("second?")]}

    for sibling in (False, True):
        ran.clear()
        graph = handled(handler, node=bad, sibling=sibling).compile(InMemorySaver())
        asked = (await graph.ainvoke({}, "t"))["__interrupt__"]
        assert [question.value for question in asked] == ["first?"]
        state = await graph.aget_state("t")
        assert [question.value for question in state.interrupts] == ["first?"]
        assert state.tasks[0].name == "bad" and state.tasks[0].error is not None
        asked = (await graph.ainvoke(Command(resume={asked[0].id: "one"}), "t"))["__interrupt__"]
        assert [question.value for question in asked] == ["second?"]
        result = await graph.ainvoke(Command(resume="two"), "t")
        assert result["log"] == ["one", "two", *(["other"] if sibling else [])]
        assert ran == ["bad", "handler", "handler", "handler"]


async def test_two_handlers_that_ask() -> None:
    """P8: when two runs of the default handler ask in one superstep, their questions differ, and are answered in any
    order."""

    ran: list[str] = []

    async def default(state: Any, error: NodeError) -> dict[str, Any]:
        ran.append(error.node)
        return {"log": [f"{error.node} {interrupt(error.node)}"]}

    made = StateGraph(State).set_node_defaults(error_handler=default)
    for name in "ab":
        made.add_node(name, fails).add_edge(START, name)
    graph = made.compile(InMemorySaver())
    asked = {question.value: question.id for question in (await graph.ainvoke({}, "t"))["__interrupt__"]}
    assert "__interrupt__" in await graph.ainvoke(Command(resume={asked["b"]: "two"}), "t")
    assert (await graph.ainvoke(Command(resume={asked["a"]: "one"}), "t"))["log"] == ["a one", "b two"]
    assert sorted(ran) == ["a", "a", "b", "b"]  # a task that waits for an answer does not run for another's


async def test_a_handler_calls_tasks_and_runs_graphs() -> None:
    """P5, P8: tasks that a handler called before its question are not run again."""
    ran: list[str] = []

    @task
    async def step(name: str) -> str:
        ran.append(name)
        return name

    async def handler(state: Any) -> dict[str, Any]:
        first = await step("first")
        return {"log": [first, interrupt("?"), await step("second")]}

    graph = handled(handler).compile(InMemorySaver())
    await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["first", "yes", "second"]
    assert ran == ["first", "second"]


@pytest.mark.parametrize("depth", [1, 2])
async def test_failures_in_subgraphs_are_handled_once(depth: int) -> None:
    """A failure in a subgraph is handled once, by the handler of the node that runs the subgraph, with the exception
    itself."""
    graph: Any = StateGraph(State).add_node("deep", fails).add_node("another", other)
    graph = graph.add_edge(START, "deep").add_edge(START, "another").compile(name="g1")
    for level in range(1, depth):
        graph = StateGraph(State).add_node("in", graph).add_edge(START, "in").compile(name=f"g{level + 1}")
    seen: list[Any] = []

    async def handler(state: Any, error: NodeError) -> dict[str, Any]:
        seen.append((error.node, type(error.error)))
        return {"log": ["handled"]}

    made = StateGraph(State).add_node("outer", graph, error_handler=handler).add_edge(START, "outer")
    assert (await made.compile(InMemorySaver()).ainvoke({}, "t"))["log"] == ["handled"]
    assert seen == [("outer", Oops)]


async def test_several_failures_in_a_subgraph() -> None:
    """P9: several failures of a subgraph are one failure of its node: a group, in plan order."""
    inner = StateGraph(State)
    for name in "ab":
        inner.add_node(name, fails).add_edge(START, name)
    seen: list[BaseException] = []

    async def handler(state: Any, error: NodeError) -> None:
        seen.append(error.error)

    made = StateGraph(State).add_node("outer", inner.compile(on_failure="finish"), error_handler=handler)
    await made.add_edge(START, "outer").compile().ainvoke({})
    (group,) = seen
    assert isinstance(group, ExceptionGroup) and len(group.exceptions) == 2


async def test_handlers_in_a_subgraph_and_its_parent() -> None:
    """A failure that is handled in a subgraph does not reach its parent; defaults do not apply to subgraphs."""
    inner = handled().compile(name="inner")
    made = StateGraph(State).set_node_defaults(error_handler=handles).add_node(inner).add_edge(START, "inner")
    assert (await made.compile(InMemorySaver()).ainvoke({}, "t"))["log"] == ["bad: no"]
    bare = StateGraph(State).add_node("bad", fails).add_edge(START, "bad").compile(name="bare")
    made = StateGraph(State).set_node_defaults(error_handler=handles).add_node(bare).add_edge(START, "bare")
    assert (await made.compile(InMemorySaver()).ainvoke({}, "t"))["log"] == ["bare: no"]


async def test_state_history_and_streams() -> None:
    """P3: streams show the handler by its own name; in history the failed task has both its failure and its
    handler's result."""
    graph = handled(sibling=True).compile(InMemorySaver())
    parts = [part async for part in graph.astream({}, "t", stream_mode=["updates", "tasks", "values"])]
    updates = [data for mode, data in parts if mode == "updates"]
    assert {"__error_handler__bad": {"log": ["bad: no"]}} in updates
    assert not any("bad" in update for update in updates)
    task_chunks = [data for mode, data in parts if mode == "tasks"]
    failed = [each for each in task_chunks if each["name"] == "bad" and each.get("error")]
    assert len(failed) == 1
    ended = [each for each in task_chunks if each["name"] == "__error_handler__bad" and "result" in each]
    assert len(ended) == 1 and ended[0]["result"] == {"log": ["bad: no"]}
    history = [snapshot async for snapshot in graph.aget_state_history("t")]
    (mine,) = [each for snapshot in history for each in snapshot.tasks if each.name == "bad"]
    assert mine.error is not None and (mine.error.type.split(".")[-1], mine.error.message) == ("Oops", "no")
    assert mine.result == {"log": ["bad: no"]}
    assert (await graph.aget_state("t")).next == ()


async def test_an_edit_of_a_superstep_with_a_handler_that_asks() -> None:
    """`aupdate_state` as the failed node sets its result, and neither the node nor the handler runs again."""
    ran: list[str] = []

    async def bad(state: Any) -> None:
        ran.append("bad")
        raise Oops

    async def handler(state: Any) -> dict[str, Any]:
        ran.append("handler")
        return {"log": [interrupt("?")]}

    graph = handled(handler, node=bad, sibling=True).compile(InMemorySaver())
    await graph.ainvoke({}, "t")
    await graph.aupdate_state("t", {"log": ["edited"]}, as_node="bad")
    result = await graph.ainvoke(None, "t")
    assert sorted(result["log"]) == ["after", "edited", "other"]
    assert ran == ["bad", "handler"]


async def test_an_edit_after_a_handler() -> None:
    """`aupdate_state` as a sibling folds the handler's recorded result with the edit."""

    async def broken(state: Any) -> None:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    made = handled().add_node(broken).add_edge(START, "broken")
    graph = made.compile(InMemorySaver(), on_failure="finish")
    with pytest.raises(ZeroDivisionError):
        await graph.ainvoke({}, "t")
    state = await graph.aget_state("t")
    assert [(each.name, each.error is not None, each.result) for each in state.tasks] == [
        ("bad", True, {"log": ["bad: no"]}),
        ("broken", True, None),
    ]
    await graph.aupdate_state("t", {"log": ["mended"]}, as_node="broken")
    state = await graph.aget_state("t")
    assert state.values["log"] == ["bad: no", "mended"]
    assert state.next == ()


async def test_a_handler_keeps_the_failure_in_the_state() -> None:
    """P11: a handler may return the failure that it got; it is stored as its type and message, and reading gives the
    same."""

    async def keeps(state: Any, error: NodeError) -> dict[str, Any]:
        return {"errors": [error]}

    graph = handled(keeps, sibling=True).compile(InMemorySaver())
    await graph.ainvoke({}, "t")
    (kept,) = (await graph.aget_state("t")).values["errors"]
    assert (kept.node, kept.error.type.split(".")[-1], kept.error.message) == ("bad", "Oops", "no")


async def test_without_a_handler_nothing_changes() -> None:
    """P9: a graph with no handler raises the node's own exception, as before."""
    made = StateGraph(State).add_node("bad", fails).add_edge(START, "bad").add_edge("bad", END)
    with pytest.raises(Oops):
        await made.compile().ainvoke({})


async def test_a_handler_and_collect() -> None:
    """The handler runs before collecting: a handled failure is in no list; the handler's own failure is."""

    async def broken(state: Any) -> None:
        raise ZeroDivisionError

    graph = handled(sibling=True).compile(InMemorySaver(), on_failure=Collect("errors"))
    assert "errors" not in {key for key, value in (await graph.ainvoke({}, "t")).items() if value}
    graph = handled(broken, sibling=True).compile(InMemorySaver(), on_failure=Collect("errors"))
    (error,) = (await graph.ainvoke({}, "t"))["errors"]
    assert (error.node, error.error.type) == ("bad", "ZeroDivisionError")
