"""`@entrypoint`: a workflow as one function, its result, and the value that it saves for the thread's next run."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import (
    START,
    Command,
    Interrupt,
    Runtime,
    StateGraph,
    StateUpdate,
    entrypoint,
    interrupt,
    task,
)
from pregel_async.errors import (
    EmptyInputError,
    GraphValidationError,
    InPlaceChangeWarning,
    InvalidCheckpointerError,
    InvalidUpdateError,
    PregelError,
)

pytestmark = pytest.mark.anyio


class Oops(Exception):
    """A user's own exception."""


async def test_a_coroutine_function_and_a_plain_one() -> None:
    """Coroutine functions and plain ones are accepted; a plain one runs in a worker thread unless it is declared not to
    block."""

    @entrypoint()
    async def aflow(x: int) -> int:
        return x + 1

    @entrypoint()
    def sflow(x: int) -> bool:
        return threading.current_thread() is threading.main_thread()

    @entrypoint(blocking=False)
    def inline(x: int) -> bool:
        return threading.current_thread() is threading.main_thread()

    assert await aflow.ainvoke(1) == 2
    assert (await sflow.ainvoke(1), await inline.ainvoke(1)) == (False, True)
    assert await aflow.abatch([1, 2, 3]) == [2, 3, 4]


async def test_methods_partials_and_objects() -> None:
    """Any object that can be called with the input is accepted."""

    class Flow:
        async def method(self, x: int, *, runtime: Runtime[Any]) -> Any:
            return ["method", x, runtime.context]

        async def __call__(self, x: int, runtime: Runtime[Any]) -> Any:
            return ["object", x, runtime.context]

    async def two(first: int, x: int, config: Any) -> Any:
        return [first, x, "configurable" in config]

    assert await entrypoint()(Flow().method).ainvoke(1, context="c") == ["method", 1, "c"]
    assert await entrypoint()(Flow()).ainvoke(1, context="c") == ["object", 1, "c"]
    assert await entrypoint()(functools.partial(two, 5)).ainvoke(1) == [5, 1, True]
    assert await entrypoint()(functools.partial(two, 5, config={})).ainvoke(1) == [5, 1, False]
    assert entrypoint(name="n")(Flow()).name == "n"
    assert entrypoint()(Flow()).name == "Flow"


async def test_bad_entrypoints() -> None:
    """Bad input: without parentheses, without a parameter, a generator, no function, no saver: each error names the
    remedy."""

    async def nothing() -> None: ...

    async def only_injected(*, previous: Any) -> None: ...

    async def two(x: int, y: int) -> None: ...

    def generator(x: int) -> Any:
        yield x

    async def agenerator(x: int) -> Any:
        yield x

    class Object:
        async def __call__(self, x: int) -> Any:
            yield x

    async def fine(x: int) -> None: ...

    with pytest.raises(GraphValidationError, match=r"entrypoint is called: @entrypoint\(\)"):
        entrypoint(fine)
    for call in (nothing, only_injected, two):
        with pytest.raises(GraphValidationError, match="is called with one argument, the input"):
            entrypoint()(call)
    for call in (generator, agenerator, Object(), functools.partial(generator)):
        with pytest.raises(GraphValidationError, match="generator: return a value"):
            entrypoint()(call)
    with pytest.raises(InvalidCheckpointerError):
        entrypoint("memory")(fine)
    for call in (3, "name", None):
        with pytest.raises(PregelError):
            entrypoint()(call)


async def test_results() -> None:
    """An entrypoint may return anything, falsy values too; None is a result."""

    @entrypoint(InMemorySaver())
    async def flow(x: Any) -> Any:
        return x[0]

    for value in (None, 0, "", [], False, {"a": 1}):
        assert await flow.ainvoke([value], "t") == value
        assert (await flow.aget_state("t")).values == value
        assert (await flow.aget_state("t")).next == ()


async def test_no_input() -> None:
    """Bad input: None resumes stored work, and there is none."""

    @entrypoint(InMemorySaver())
    async def flow(x: Any) -> Any:
        return x

    with pytest.raises(EmptyInputError):
        await flow.ainvoke(None, "t")


async def test_input_and_result_are_isolated(saver: BaseCheckpointSaver) -> None:
    """P1: the function's changes to its input do not reach the caller's object, and the caller's changes to the result
    do not reach the stored one."""
    kept: list[Any] = []

    @entrypoint(saver)
    async def flow(x: list[int], *, previous: Any) -> Any:
        kept.append(x)
        if previous is not None:
            previous.append("changed")
            return previous[:1]
        x.append(2)
        return x

    given = [1]
    result = await flow.ainvoke(given, "t")
    assert (given, result) == ([1], [1, 2])
    result.append(3)
    kept[0].append(4)
    assert (await flow.aget_state("t")).values == [1, 2]


async def test_previous(saver: BaseCheckpointSaver) -> None:
    """`previous` is the return value of the thread's last run; None on its first, on other threads, and without a
    thread."""

    @entrypoint(saver)
    async def total(x: int, *, previous: int | None = None) -> int:
        return (previous or 0) + x

    assert [await total.ainvoke(x, "t") for x in (1, 2, 3)] == [1, 3, 6]
    assert await total.ainvoke(1, "u") == 1

    @entrypoint()
    async def stateless(x: int, previous: Any, runtime: Runtime[Any]) -> Any:
        return [previous, runtime.previous]

    assert await stateless.ainvoke(1) == [None, None]


async def test_final(saver: BaseCheckpointSaver) -> None:
    """The returned and the saved value differ; None is saved as None, and shown as None."""
    seen: list[Any] = []

    @entrypoint(saver)
    async def flow(x: Any, runtime: Runtime[Any]) -> entrypoint.final[Any, Any]:
        seen.append(runtime.previous)
        return entrypoint.final(value=x, save=None if x == "nothing" else f"saved {x}")

    assert [await flow.ainvoke(x, "t") for x in ("a", "nothing", "b")] == ["a", "nothing", "b"]
    assert seen == [None, "saved a", None]
    assert (await flow.aget_state("t")).values == "b"
    assert [chunk async for chunk in flow.astream("c", "t")] == [{"flow": "c"}]
    assert [chunk async for chunk in flow.astream("d", "t", stream_mode="values")] == ["d"]
    assert seen[-1] == "saved c"
    with pytest.raises(TypeError):
        entrypoint.final("by position", "is refused")


@dataclasses.dataclass
class Note:
    text: str


async def test_types_are_known_from_annotations(saver: BaseCheckpointSaver) -> None:
    """P11: types of the input, the result and the saved value, in `final[...]` too, are known from annotations: values
    come back with their types."""

    @entrypoint(saver)
    async def flow(x: Note, *, previous: Note | None) -> entrypoint.final[list[Note], Note]:
        if x.text == "ask":
            interrupt(x)
        return entrypoint.final(value=[x, previous or Note("none")], save=x)

    assert await flow.ainvoke(Note("a"), "t") == [Note("a"), Note("none")]
    assert (await flow.aget_state("t")).values == [Note("a"), Note("none")]
    await flow.ainvoke(Note("ask"), "t")
    assert await flow.ainvoke(Command(resume=1), "t") == [Note("ask"), Note("a")]


async def test_a_failed_run_saves_nothing(saver: BaseCheckpointSaver) -> None:
    """P3: `previous` is that of the last run that finished; it stays during a question, too."""
    seen: list[Any] = []

    @entrypoint(saver)
    async def flow(x: str, *, previous: Any) -> str:
        seen.append(previous)
        if x == "fail":
            raise Oops
        if x == "ask":
            x += str(interrupt("?"))
        return x

    await flow.ainvoke("a", "t")
    with pytest.raises(Oops):
        await flow.ainvoke("fail", "t")
    await flow.ainvoke("ask", "t")
    assert await flow.ainvoke(Command(resume="!"), "t") == "ask!"
    await flow.ainvoke("b", "t")
    assert seen == [None, "a", "a", "a", "ask!"]


async def test_questions(saver: BaseCheckpointSaver) -> None:
    """P8: several questions in a row are reported in the result, in the stream and in the state."""

    @entrypoint(saver)
    async def flow(x: int) -> Any:
        return [interrupt("a"), interrupt("b")]

    assert [q.value for q in (await flow.ainvoke(1, "t"))["__interrupt__"]] == ["a"]
    state = await flow.aget_state("t")
    assert ([q.value for q in state.interrupts], state.next) == (["a"], ("flow",))
    (chunk,) = [chunk async for chunk in flow.astream(Command(resume=1), "t")]
    assert chunk == {"__interrupt__": (Interrupt("b", chunk["__interrupt__"][0].id),)}
    assert await flow.ainvoke(Command(resume=2), "t") == [1, 2]


async def test_commands_that_make_no_sense() -> None:
    """Bad input: an entrypoint has no node for a goto, and no state to update."""

    @entrypoint(InMemorySaver())
    async def flow(x: int) -> int:
        return x

    for command in (Command(goto="flow"), Command(update={"a": 1}), Command(goto="flow", resume=1)):
        with pytest.raises(InvalidUpdateError, match="an entrypoint is one function"):
            await flow.ainvoke(command, "t")


async def test_updating_the_state(saver: BaseCheckpointSaver) -> None:
    """An update uses the function's writers: it is the result, and the `previous` of the next run."""

    @entrypoint(saver)
    async def flow(x: int, *, previous: Any) -> Any:
        return [x, previous]

    await flow.ainvoke(1, "t")
    await flow.aupdate_state("t", "edited")
    state = await flow.aget_state("t")
    assert (state.values, state.next) == ("edited", ())
    assert await flow.ainvoke(2, "t") == [2, "edited"]
    await flow.aupdate_state("t", entrypoint.final(value="shown", save="saved"))
    assert (await flow.aget_state("t")).values == "shown"
    assert await flow.ainvoke(3, "t") == [3, "saved"]
    await flow.abulk_update_state("t", [[StateUpdate("bulk", "flow")]])
    assert await flow.ainvoke(4, "t") == [4, "bulk"]
    assert [state.values async for state in flow.aget_state_history("t")][0] == [4, "bulk"]


async def test_an_old_state(saver: BaseCheckpointSaver) -> None:
    """A run may start from an older checkpoint: new input gets the value saved there."""

    @entrypoint(saver)
    async def total(x: int, *, previous: int | None) -> int:
        return (previous or 0) + x

    for x in (1, 10, 100):
        await total.ainvoke(x, "t")
    history = [state async for state in total.aget_state_history("t")]
    first = next(state for state in history if state.values == 1 and not state.next)
    assert await total.ainvoke(5, first.config) == 6
    assert (await total.aget_state("t")).values == 6


async def test_an_entrypoint_in_a_node_and_a_graph_in_an_entrypoint(saver: BaseCheckpointSaver) -> None:
    """An entrypoint is called in a node, in a task, and as a subgraph, and the other way round; its question is asked
    once and answered."""
    ran: list[str] = []

    @task
    async def step(x: str) -> str:
        ran.append(x)
        return f"<{x}>"

    @entrypoint()
    async def inner(x: str) -> str:
        return await step(x) + str(interrupt(x))

    async def node(state: dict[str, Any]) -> dict[str, Any]:
        return {"a": await inner.ainvoke("node")}

    graph = StateGraph(dict).add_node("n", node).add_edge(START, "n").compile()

    @task
    async def calls(x: str) -> Any:
        return await inner.ainvoke(x)

    @entrypoint(saver)
    async def outer(x: int) -> Any:
        first = await inner.ainvoke("direct")
        return [first, await calls("task"), await graph.ainvoke({})]

    given: Any = 1
    for expected in ("direct", "task", "node"):
        asked = (await outer.ainvoke(given, "t"))["__interrupt__"]
        assert [question.value for question in asked] == [expected]
        given = Command(resume=expected[0])
    assert await outer.ainvoke(given, "t") == ["<direct>d", "<task>t", {"a": "<node>n"}]
    assert ran == ["direct", "task", "node"]


async def test_debug_names_the_function_that_changed_its_input() -> None:
    """P1: in debug mode the error names the function that changed its input."""

    @entrypoint(debug=True)
    async def flow(x: list[int]) -> int:
        x.append(1)
        return 0

    with pytest.warns(InPlaceChangeWarning, match="flow"):
        await flow.ainvoke([1])
