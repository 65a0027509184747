"""Reading and editing threads by hand, and the rest of what workflows, contexts and stores do."""

import asyncio
import operator
import threading
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str


def says(text: Any) -> Any:
    return lambda state: {"log": [text]}


def routed(library: Any) -> Any:
    """Build a graph whose node `a` is followed by `b` or `c`, as the state's note says."""
    builder = library.StateGraph(State)
    for name in "abc":
        builder.add_node(name, says(name))
    builder.add_edge(library.START, "a")
    builder.add_conditional_edges("a", lambda state: state.get("note", "b"), ["b", "c"])
    return builder.compile(library.InMemorySaver())


def test_an_update_follows_the_nodes_edges(library: Any) -> None:
    """The router of the node that is named decides on the new state."""
    graph = routed(library)
    graph.update_state(CONFIG, {"note": "c", "log": ["by hand"]}, as_node="a")
    assert graph.get_state(CONFIG).next == ("c",)
    assert graph.invoke(None, CONFIG)["log"] == ["by hand", "c"]


def test_an_update_of_a_fresh_thread(library: Any) -> None:
    """Its checkpoint is step 0 and has no parent."""
    graph = routed(library)
    graph.update_state(CONFIG, {"note": "c"}, as_node="a")
    state = graph.get_state(CONFIG)
    assert (state.metadata["source"], state.metadata["step"], state.parent_config) == ("update", 0, None)


def test_an_update_is_in_the_name_of_the_last_node(library: Any) -> None:
    """If it is unclear which node that is, the update is refused."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG)
    graph.update_state(CONFIG, {"note": "as b"})
    assert graph.get_state(CONFIG).next == ()  # `b` has no edges

    builder = library.StateGraph(State).add_node("a", says("a")).add_node("b", says("b"))
    both = builder.add_edge(library.START, "a").add_edge(library.START, "b").compile(library.InMemorySaver())
    both.invoke({"log": []}, CONFIG)
    with pytest.raises(library.InvalidUpdateError):
        both.update_state(CONFIG, {"note": "x"})
    with pytest.raises(library.InvalidUpdateError):
        both.update_state(CONFIG, {"note": "x"}, as_node="nobody")


def test_an_update_keeps_what_is_pending(library: Any) -> None:
    """Where the node's edges lead is added. LangGraph: it takes the place of what was pending."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG, interrupt_after=["a"])
    graph.update_state(CONFIG, {"note": "c"})
    assert graph.get_state(CONFIG).next == (("c",) if library.is_langgraph else ("b", "c"))


def test_an_update_before_a_node_has_run_sends_the_thread_another_way(library: Any) -> None:
    """As the pending node's result it leads where its edges lead, and nowhere else, in both libraries."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG, interrupt_after=["a"])
    before_a = next(state for state in graph.get_state_history(CONFIG) if state.next == ("a",))
    graph.update_state(before_a.config, {"note": "c", "log": ["by hand"]}, as_node="a")
    assert graph.get_state(CONFIG).next == ("c",)
    assert graph.invoke(None, CONFIG)["log"] == ["by hand", "c"]


def test_an_update_as_a_pending_node_is_its_result(library: Any) -> None:
    """Its siblings stay pending. LangGraph: they are lost."""
    builder = library.StateGraph(State).add_node("a", says("a")).add_node("b", says("b")).add_node("c", says("c"))
    builder.add_edge(library.START, "a").add_edge(library.START, "b").add_edge("a", "c")
    graph = builder.compile(library.InMemorySaver(), interrupt_before=["a", "b"])
    graph.invoke({"log": []}, CONFIG)
    graph.update_state(CONFIG, {"log": ["by hand"]}, as_node="a")
    if library.is_langgraph:
        assert graph.get_state(CONFIG).next == ("c",)
    else:
        assert graph.get_state(CONFIG).next == ("b",)
        assert graph.invoke(None, CONFIG)["log"] == ["by hand", "b", "c"]


def test_an_update_as_the_end_finishes_the_thread(library: Any) -> None:
    """Nothing is pending afterwards."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG, interrupt_before=["b"])
    graph.update_state(CONFIG, None, as_node=library.END)
    assert graph.get_state(CONFIG).next == () and graph.get_state(CONFIG).values == {"log": ["a"]}


def test_an_update_as_the_input_begins_anew(library: Any) -> None:
    """The start is pending, as after a call's input."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG)
    graph.update_state(CONFIG, {"log": ["in"]}, as_node="__input__")
    state = graph.get_state(CONFIG)
    assert (state.next, state.metadata["source"]) == (("__start__",), "input")
    assert graph.invoke(None, CONFIG)["log"] == ["a", "b", "in", "a", "b"]


def test_a_copy_is_a_sibling(library: Any) -> None:
    """It has the parent of the checkpoint that it copies."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG)
    original = graph.get_state(CONFIG)
    graph.update_state(CONFIG, None, as_node="__copy__")
    copy = graph.get_state(CONFIG)
    assert copy.config != original.config and copy.parent_config == original.parent_config
    assert copy.metadata["source"] == "fork" and copy.values == original.values


def test_an_update_without_values_and_node(library: Any) -> None:
    """It makes a checkpoint, and what was pending stays so."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG, interrupt_before=["b"])
    before = graph.get_state(CONFIG)
    graph.update_state(CONFIG, None)
    after = graph.get_state(CONFIG)
    assert after.config != before.config and after.next == ("b",) and after.values == before.values


def test_a_replay_of_the_end_does_nothing(library: Any) -> None:
    """It returns the state, and makes no checkpoint. LangGraph: it makes one, with the source "fork"."""
    graph = routed(library)
    graph.invoke({"log": []}, CONFIG)
    assert graph.invoke(None, graph.get_state(CONFIG).config) == {"log": ["a", "b"]}
    assert len(list(graph.get_state_history(CONFIG))) == (5 if library.is_langgraph else 4)


def test_a_failed_task_of_a_workflow_runs_again(library: Any) -> None:
    """Its failure is not replayed, but raised where the task is awaited."""
    attempts: list[str] = []

    @library.task
    def shaky(name: str) -> str:
        attempts.append(name)
        if attempts == ["a"]:
            raise ConnectionError("again")
        return name

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(given: str) -> str:
        return shaky("a").result()

    with pytest.raises(ConnectionError):
        workflow.invoke("x", CONFIG)
    assert workflow.invoke(None, CONFIG) == "a" and attempts == ["a", "a"]


def test_final_returns_and_saves_two_values(library: Any) -> None:
    """Both count, also None."""

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(given: Any, *, previous: Any) -> Any:
        return library.entrypoint.final(value=previous, save=given)

    assert workflow.invoke(1, CONFIG) is None
    assert workflow.invoke(2, CONFIG) == 1
    assert workflow.invoke(3, CONFIG) == 2


def test_an_update_of_a_workflow(library: Any) -> None:
    """It is both its result and what the next call finds as `previous`."""

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(given: Any, *, previous: Any) -> Any:
        return [previous, given]

    workflow.invoke(1, CONFIG)
    workflow.update_state(CONFIG, "by hand")
    assert workflow.get_state(CONFIG).values == "by hand"
    assert workflow.invoke(2, CONFIG) == ["by hand", 2]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_task_futures_are_those_of_asyncio(library: Any) -> None:
    """`gather`, `wait_for` and a second `await` work, and a task that is not awaited ends before its caller's result."""
    ended: list[int] = []

    @library.task
    async def double(x: int) -> int:
        ended.append(x)
        return 2 * x

    @library.entrypoint()
    async def workflow(x: int) -> list[Any]:
        first = double(1)
        both = await asyncio.gather(double(2), double(3))
        double(4)
        return [await first, await first, *both, await asyncio.wait_for(double(5), 60)]

    assert await workflow.ainvoke(0) == [2, 2, 4, 6, 10]
    assert sorted(ended) == [1, 2, 3, 4, 5]


def test_calls_outside_of_a_run(library: Any) -> None:
    """Tasks and accessors need a run; without one they are `RuntimeError`s."""

    @library.task
    def double(x: int) -> int:
        return 2 * x

    for call in (lambda: double(1), library.get_config, library.get_store, library.get_stream_writer):
        with pytest.raises(RuntimeError):
            call()


def test_a_plain_function_runs_in_a_thread_with_the_callers_config(library: Any) -> None:
    """Its config has the call's keys and tags."""
    seen: list[Any] = []

    def node(state, config):
        inner = library.get_config()
        seen.append((threading.current_thread() is threading.main_thread(), config["configurable"]["user"]))
        seen.append((inner["configurable"]["thread_id"], config["tags"]))

    builder = library.StateGraph(State).add_node("n", node).add_edge(library.START, "n")
    config = {"configurable": {"thread_id": "1", "user": "ann"}, "tags": ["night"]}
    asyncio.run(builder.compile().ainvoke({"log": []}, config))
    assert seen[0] == (False, "ann") and seen[1][0] == "1" and "night" in seen[1][1]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_at_most_so_many_nodes_run_at_once(library: Any) -> None:
    """`max_concurrency` limits the bodies; results stay in the order of the sends."""
    running, most = 0, 0

    async def work(sent: Any) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        return {"log": [sent]}

    builder = library.StateGraph(State).add_node("work", work)
    builder.add_conditional_edges(library.START, lambda state: [library.Send("work", n) for n in range(30)], ["work"])
    result = await builder.compile().ainvoke({"log": []}, {"max_concurrency": 5})
    assert result["log"] == list(range(30)) and most == 5


@dataclass
class Context:
    user: str
    limit: int = 3


def test_a_dict_becomes_the_contexts_class(library: Any) -> None:
    """A wrong key is an error before anything runs."""
    seen: list[Any] = []

    def node(state: State, runtime: library.Runtime[Context]) -> None:
        seen.append((runtime.context, runtime.previous, runtime.store))

    builder = library.StateGraph(State, context_schema=Context).add_node("n", node).add_edge(library.START, "n")
    graph = builder.compile()
    graph.invoke({"log": []}, context={"user": "ann"})
    assert seen == [(Context("ann"), None, None)]
    with pytest.raises((TypeError, ValueError)):
        graph.invoke({"log": []}, context={"user": "ann", "nope": 1})
    assert len(seen) == 1


def test_memories_in_a_store(library: Any) -> None:
    """What one thread stores, another finds; items are found by prefix and filter."""

    def node(state, store):
        assert library.get_store() is not None
        found = store.search(("memories", "ann"), filter={"kind": "food"})
        store.put(("memories", "ann"), f"m{len(found)}", {"kind": "food", "data": state["note"]})
        return {"log": [item.value["data"] for item in found]}

    builder = library.StateGraph(State).add_node("n", node).add_edge(library.START, "n")
    graph = builder.compile(library.InMemorySaver(), store=library.InMemoryStore())
    assert graph.invoke({"note": "pizza"}, CONFIG)["log"] == []
    assert graph.invoke({"note": "soup"}, {"configurable": {"thread_id": "2"}})["log"] == ["pizza"]


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_stores_namespaces(library: Any) -> None:
    """Prefixes match by label, and a bad namespace is a `ValueError`."""
    store = library.InMemoryStore()
    await store.aput(("users", "ann"), "k", {"n": 1})
    await store.aput(("users", "annette"), "k", {"n": 2})
    assert [item.value["n"] for item in await store.asearch(("users", "ann"))] == [1]
    assert sorted(await store.alist_namespaces(prefix=("users",))) == [("users", "ann"), ("users", "annette")]
    assert (await store.aget(("users", "ann"), "k")).value == {"n": 1}
    await store.adelete(("users", "ann"), "k")
    assert await store.aget(("users", "ann"), "k") is None
    for bad in ((), ("a.b",), ("langgraph",), ("",)):
        with pytest.raises(ValueError):
            await store.aput(bad, "k", {})


def test_a_command_as_the_first_input(library: Any) -> None:
    """The update counts once, and the nodes that it names run. LangGraph: the update counts twice."""
    graph = routed(library)
    result = graph.invoke(library.Command(update={"log": ["begun"]}, goto="c"), CONFIG)
    assert result["log"] == ["begun", "c"] or library.is_langgraph


def test_an_empty_command_is_no_input(library: Any) -> None:
    """It is an `EmptyInputError`. LangGraph: another error."""
    with pytest.raises(Exception if library.is_langgraph else library.EmptyInputError):
        routed(library).invoke(library.Command(), CONFIG)


def test_two_runs_of_one_thread(library: Any) -> None:
    """The second is refused before anything runs. LangGraph: both write."""
    begun, may_end = threading.Event(), threading.Event()

    def node(state: State) -> dict[str, Any]:
        begun.set()
        may_end.wait(60)
        return {"log": ["n"]}

    builder = library.StateGraph(State).add_node("n", node).add_edge(library.START, "n")
    graph = builder.compile(library.InMemorySaver())
    first = threading.Thread(target=graph.invoke, args=({"log": []}, CONFIG))
    first.start()
    try:
        assert begun.wait(60)
        if not library.is_langgraph:
            with pytest.raises(Exception, match="in use"):
                graph.invoke({"log": []}, CONFIG)
    finally:
        may_end.set()
        first.join()


def test_a_retried_workflow_does_not_call_finished_tasks_again(library: Any) -> None:
    """Their results are those of the first attempt. LangGraph: they run again within the run, though not on a resume."""
    ran: list[str] = []

    @library.task
    def fetch() -> str:
        ran.append("fetch")
        return "fetched"

    policy = library.RetryPolicy(initial_interval=0.001, jitter=False)

    @library.entrypoint(checkpointer=library.InMemorySaver(), retry_policy=policy)
    def workflow(given: str) -> str:
        fetched = fetch().result()
        ran.append("attempt")
        if ran.count("attempt") == 1:
            raise ConnectionError("again")
        return fetched

    assert workflow.invoke("x", CONFIG) == "fetched"
    assert ran.count("fetch") == (2 if library.is_langgraph else 1)


def test_a_changed_call_is_not_given_a_recorded_result(library: Any) -> None:
    """A task that is called with other arguments on a resume is refused. LangGraph: it returns the recorded result."""
    numbers = [1, 2]

    @library.task
    def double(x: int) -> int:
        return 2 * x

    @library.entrypoint(checkpointer=library.InMemorySaver())
    def workflow(given: str) -> int:
        doubled = double(numbers[0]).result()
        library.interrupt("go on?")
        return doubled

    workflow.invoke("x", CONFIG)
    numbers.pop(0)
    if library.is_langgraph:
        assert workflow.invoke(library.Command(resume=True), CONFIG) == 2
    else:
        with pytest.raises(Exception, match="double"):
            workflow.invoke(library.Command(resume=True), CONFIG)


def test_a_tuple_of_modes_labels_its_chunks(library: Any) -> None:
    """As a list does. LangGraph: chunks of a tuple of modes are bare."""
    builder = library.StateGraph(State).add_node("a", says("a")).add_edge(library.START, "a")
    *_, last = builder.compile().stream({"log": []}, stream_mode=("updates", "values"))
    assert last == ({"log": ["a"]} if library.is_langgraph else ("values", {"log": ["a"]}))
