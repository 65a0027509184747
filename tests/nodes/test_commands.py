"""Commands, as a node's result and as a call's input."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import anyio
import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Command, Overwrite, Send, StateGraph, interrupt
from pregel_async.channels import UntrackedValue
from pregel_async.errors import (
    EmptyInputError,
    InvalidInputError,
    InvalidResumeError,
    InvalidRouteError,
    InvalidUpdateError,
    UnstorableValueError,
)

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    note: str
    total: Annotated[int, operator.add]


def say(name: str, result: Any = None) -> Any:
    """Return a node that logs its name, or returns the given value."""

    async def node(state: Any) -> Any:
        return {"log": [name]} if result is None else result

    return node


def graph_of(saver: BaseCheckpointSaver | None = None, *edges: tuple[Any, str], **nodes: Any) -> Any:
    """Return a graph where `a` runs first; the other nodes run by goto, Send or an edge."""
    made = StateGraph(State)
    for name, node in nodes.items():
        made.add_node(name, node)
    made.add_edge(START, "a")
    for start, end in edges:
        made.add_edge(start, end)
    return made.compile(saver)


async def stored(graph: Any, thread: str = "t") -> int:
    """Return how many checkpoints the thread has."""
    return len([state async for state in graph.aget_state_history(thread)])


async def test_update_and_goto() -> None:
    """The update is applied in this superstep, and goto's node runs in the next, on it."""

    async def b(state: State) -> Any:
        return {"log": [state["note"]]}

    graph = graph_of(a=say("a", Command(update={"note": "from a"}, goto="b")), b=b)
    assert await graph.ainvoke({}) == {"log": ["from a"], "note": "from a", "total": 0}


@pytest.mark.parametrize(
    ("goto", "ran"),
    [
        ("b", ["b"]),
        (["b", "c"], ["b", "c"]),
        (("c", "b", "b"), ["b", "c"]),
        (END, []),
        ([], []),
        ([END, "c"], ["c"]),
        (Send("b", {}), ["b"]),
        ([Send("c", {}), "b", Send("b", {})], ["b", "c", "b"]),
    ],
)
async def test_where_a_command_goes(goto: Any, ran: list[str]) -> None:
    """P2: a goto is a name, a Send, or a list of them; END adds nothing; a node named twice runs once, a sent one once
    per Send; triggered nodes by name, then sends by index."""
    graph = graph_of(a=say("a", Command(goto=goto)), b=say("b"), c=say("c"))
    assert (await graph.ainvoke({}))["log"] == ran


async def test_a_goto_adds_to_edges() -> None:
    """Goto's nodes run in addition to those of static and conditional edges, END or not; a node in both runs once."""

    def route(state: State) -> Any:
        return ["c", "d"]

    nodes = {name: say(name) for name in "bcd"}
    made = StateGraph(State).add_node("a", say("a", Command(goto=["d", END]))).add_edge(START, "a").add_edge("a", "b")
    for name, node in nodes.items():
        made.add_node(name, node)
    graph = made.add_conditional_edges("a", route, ["c", "d"]).compile()
    assert (await graph.ainvoke({}))["log"] == ["b", "c", "d"]


async def test_a_list_of_commands_and_updates() -> None:
    """Each element's update is applied in order, each goto followed; None counts as nothing."""
    several = [Command(update={"log": ["one"]}, goto="b"), None, {"log": ["two"]}, Command(update={"log": ["three"]})]
    graph = graph_of(a=say("a", several), b=say("b"))
    assert (await graph.ainvoke({}))["log"] == ["one", "two", "three", "b"]
    chunks = [chunk async for chunk in graph.astream({}, stream_mode="updates")]
    assert chunks[0] == {"a": [{"log": ["one"]}, {"log": ["two"]}, {"log": ["three"]}]}


async def test_an_update_of_pairs() -> None:
    """In a list of pairs a key may come twice: its reducer is applied twice."""
    graph = graph_of(a=say("a", Command(update=[("log", ["x"]), ("total", 1), ("log", ["y"]), ("total", 2)])))
    assert await graph.ainvoke({"total": 4}) == {"log": ["x", "y"], "total": 7}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("goto", ["nowhere", START, ["b", "nowhere"], Send("nowhere", {}), Send(END, {}), 7, None])
async def test_a_goto_to_an_unknown_node(saver: BaseCheckpointSaver, goto: Any, several: bool) -> None:
    """A goto or Send to a node that does not exist is an error, before anything is stored: the state is unchanged, the
    task open, and no node runs. (LangGraph ignores it.)"""
    command = Command(update={"note": "x"}, goto=goto)
    graph = graph_of(saver, a=say("a", [{"log": ["a"]}, command] if several else command), b=say("b"))
    with pytest.raises(InvalidUpdateError, match="'a'.*goto=") as caught:
        await graph.ainvoke({}, "t")
    assert caught.value.node == "a"
    state = await graph.aget_state("t")
    assert (state.values, state.next, state.tasks[0].result) == ({"log": [], "total": 0}, ("a",), None)
    assert await stored(graph) == 2


async def test_a_resume_is_only_for_calls() -> None:
    """`resume=` is for a call's input; from a node it is an error."""
    with pytest.raises(InvalidUpdateError, match="resume="):
        await graph_of(a=say("a", Command(resume=1))).ainvoke({})
    with pytest.raises(InvalidUpdateError, match="resume="):
        await graph_of(a=say("a", [Command(resume=0)])).ainvoke({})


async def test_parent_at_the_root(saver: BaseCheckpointSaver) -> None:
    """Command.PARENT at the root is a typed error of that node; its update is not applied."""
    graph = graph_of(saver, a=say("a", Command(graph=Command.PARENT, update={"note": "x"})))
    with pytest.raises(InvalidUpdateError) as caught:
        await graph.ainvoke({}, "t")
    assert caught.value.node == "a"
    assert (await graph.aget_state("t")).next == ("a",)
    with pytest.raises(InvalidInputError, match="graph="):
        await graph.ainvoke(Command(graph=Command.PARENT, update={"note": "x"}), "t")


async def test_routers_see_the_nodes_command() -> None:
    """A conditional edge sees its node's own writes, a command's update among them, and
    not its siblings'."""
    seen: list[Any] = []

    def route(state: State) -> Any:
        seen.append((state["log"], state.get("note"), state["total"]))
        return END

    node = say("a", [{"log": ["x"]}, Command(update=[("log", Overwrite(["y"])), ("note", "n")], goto="b")])
    made = StateGraph(State).add_node("a", node).add_node("b", say("b")).add_node("c", say("c", {"total": 5}))
    graph = made.add_edge(START, "a").add_edge(START, "c").add_conditional_edges("a", route).compile()
    assert (await graph.ainvoke({"log": ["in"]}))["log"] == ["y", "b"]
    assert seen == [(["y"], "n", 0)]


async def test_a_failed_router_keeps_the_nodes_command(saver: BaseCheckpointSaver) -> None:
    """P3: a node's own writes, its goto among them, are recorded before its routers run; resume runs only the
    routers."""
    ran = Counter[str]()
    broken = [True]

    async def a(state: State) -> Any:
        ran["a"] += 1
        return Command(update={"note": "x"}, goto=Send("b", {}))

    def route(state: State) -> Any:
        ran["route"] += 1
        return "nowhere" if broken.pop() else END

    made = StateGraph(State).add_node("a", a).add_node("b", say("b")).add_edge(START, "a")
    broken[:] = [False, True]
    graph = made.add_conditional_edges("a", route).compile(saver)
    with pytest.raises(InvalidRouteError):
        await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).next == ("a",)
    assert await graph.ainvoke(None, "t") == {"log": ["b"], "note": "x", "total": 0}
    assert ran == {"a": 1, "route": 2}


async def test_a_command_and_a_barrier() -> None:
    """A barrier waits for its nodes, regardless of goto; a goto to its target runs the target additionally, early and
    alone."""

    async def b(state: State) -> Any:
        return Command(update={"log": ["b"]}, goto=["j"])

    made = StateGraph(State).add_node("a", say("a")).add_node("b", b).add_node("b2", say("b2")).add_node("j", say("j"))
    made.add_edge(START, "a").add_edge(START, "b").add_edge("a", "b2").add_edge(["b", "b2"], "j")
    assert (await made.compile().ainvoke({}))["log"] == ["a", "b", "b2", "j", "j"]


async def test_a_barrier_in_a_loop_of_commands() -> None:
    """A barrier starts anew in each round of a loop that a command closes."""

    async def j(state: State) -> Any:
        again = state["log"].count("j") < 2
        return Command(update={"log": ["j"]}, goto=["a", "b"] if again else END)

    made = StateGraph(State).add_node("a", say("a")).add_node("b", say("b")).add_node("j", j)
    graph = made.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "j").compile()
    assert (await graph.ainvoke({}))["log"] == ["a", "b", "j"] * 3


async def test_a_deferred_node_and_commands() -> None:
    """A deferred node named by a goto runs when no other task is left, once per tentative end; a goto of its own starts
    another round."""

    async def last(state: State) -> Any:
        return Command(update={"log": ["last"]}, goto=[] if "again" in state["log"] else "again")

    made = StateGraph(State).add_node("last", last, defer=True)
    made.add_node("a", say("a", Command(update={"log": ["a"]}, goto=["last", "b"])))
    made.add_node("b", say("b", Command(update={"log": ["b"]}, goto=["c", "last"]))).add_node("c", say("c"))
    made.add_node("again", say("again")).add_edge(START, "a").add_edge("again", "last")
    assert (await made.compile().ainvoke({}))["log"] == ["a", "b", "c", "last", "again", "last"]


async def test_a_loop_by_goto() -> None:
    """A node may name itself in its goto."""

    async def a(state: State) -> Any:
        return Command(update={"total": 1}, goto=END if state["total"] == 4 else "a")

    assert (await graph_of(a=a).ainvoke({}))["total"] == 5


async def test_a_send_of_a_command_is_isolated() -> None:
    """P1: later changes to a command's values by the node have no effect."""
    kept: list[Any] = []

    async def a(state: State) -> Any:
        given = {"items": ["x"]}
        kept.append(given)
        return Command(update={"log": given["items"]}, goto=[Send("b", given), Send("b", given)])

    async def b(state: Any) -> Any:
        kept[0]["items"].append("changed")
        state["items"].append("mine")
        return {"log": state["items"]}

    assert (await graph_of(a=a, b=b).ainvoke({}))["log"] == ["x", "x", "mine", "x", "mine"]


async def test_overwrite(saver: BaseCheckpointSaver) -> None:
    """An overwrite replaces the value and discards the superstep's other writes, in any order; in an input, a node's
    update, a command; also as the first write, and to a key without a reducer."""
    made = (
        StateGraph(State).add_node("a", say("a")).add_node("b", say("b", Command(update={"log": Overwrite(["new"])})))
    )
    made.add_node("c", say("c")).add_node("d", say("d", {"note": Overwrite("plain"), "total": Overwrite(3)}))
    for name in "abc":
        made.add_edge(START, name)
    graph = made.add_edge("b", "d").compile(saver)
    assert await graph.ainvoke({"log": Overwrite(["in"]), "total": 1}, "t") == {
        "log": ["new"],
        "note": "plain",
        "total": 3,
    }
    assert (await graph.aget_state("t")).values == {"log": ["new"], "note": "plain", "total": 3}


async def test_two_overwrites(saver: BaseCheckpointSaver) -> None:
    """P3: two overwrites of one key in one superstep are an error, and nothing of it is applied."""
    made = StateGraph(State).add_node("a", say("a", {"log": Overwrite([1])})).add_edge(START, "a")
    graph = made.add_node("b", say("b", {"log": Overwrite([2])})).add_edge(START, "b").compile(saver)
    with pytest.raises(InvalidUpdateError, match="log"):
        await graph.ainvoke({"log": ["in"]}, "t")
    assert (await graph.aget_state("t")).values["log"] == ["in"]


@pytest.mark.parametrize("with_saver", [False, True])
async def test_a_command_as_the_first_input(with_saver: bool) -> None:
    """The command's update is applied once, and only goto's nodes run, not the entry."""
    graph = graph_of(InMemorySaver() if with_saver else None, ("b", "c"), a=say("a"), b=say("b"), c=say("c"))
    command = Command(update={"log": ["in"], "note": "x", "total": 1}, goto="b")
    result = await graph.ainvoke(command, "t" if with_saver else None)
    assert result == {"log": ["in", "b", "c"], "note": "x", "total": 1}
    if with_saver:
        assert (await graph.aget_state("t")).values == result


async def test_sends_as_the_first_input(saver: BaseCheckpointSaver) -> None:
    """A first command may send; each Send is a task."""
    graph = graph_of(saver, a=say("a"), b=say("b"))
    assert (await graph.ainvoke(Command(goto=[Send("b", {}), Send("b", {}), "a"]), "t"))["log"] == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Command(), EmptyInputError),
        (Command(goto=[]), EmptyInputError),
        (Command(update={}), EmptyInputError),
        (Command(resume="x"), InvalidResumeError),
        (Command(resume="x", update={"note": "x"}, goto="a"), InvalidResumeError),
        (Command(update={"note": "x"}), InvalidInputError),
        (Command(goto="nowhere"), InvalidUpdateError),
        (Command(goto=["a", Send("nowhere", {})]), InvalidUpdateError),
        (Command(goto=Send(END, {})), InvalidUpdateError),
        (Command(goto=None), InvalidUpdateError),
        (Command(update={"unknown": 1}, goto="a"), InvalidUpdateError),
        (Command(update=7, goto="a"), InvalidUpdateError),
        (Command(update=[("note", "x"), ("note", "y")], goto="a"), InvalidUpdateError),
        (Command(update={"note": object()}, goto="a"), InvalidUpdateError),
        (Command(update={"log": [object()]}, goto="a"), UnstorableValueError),
        (Command(graph="other", goto="a"), InvalidInputError),
    ],
)
@pytest.mark.parametrize("where", ["fresh", "open", "finished"])
async def test_bad_commands(saver: BaseCheckpointSaver, command: Command, error: type[Exception], where: str) -> None:
    """A command that cannot be carried out is a typed error; nothing runs, nothing is stored, and the thread continues
    as if it had not been given."""
    asks = [where == "open"]
    ran: list[str] = []

    async def a(state: State) -> Any:
        ran.append("a")
        return {"log": [interrupt("?") if asks[0] else "a", state.get("note")]}

    graph = graph_of(saver, a=a)
    if where != "fresh":
        await graph.ainvoke({"note": "in"}, "t")
    if (
        where == "open"
        and error is InvalidResumeError
        or where != "fresh"
        and error is InvalidInputError
        and not command.graph
    ):
        return  # no error is raised there
    before, runs = await graph.aget_state("t"), len(ran)
    with pytest.raises(error):
        await graph.ainvoke(command, "t")
    assert await graph.aget_state("t") == before
    assert len(ran) == runs
    if where == "fresh":
        assert await stored(graph) == 0
        assert await graph.ainvoke({"note": "in"}, "t") == {"log": ["a", "in"], "note": "in", "total": 0}
    elif where == "open":
        assert (await graph.ainvoke(Command(resume="yes"), "t"))["log"] == ["yes", "in"]


class OpenSuperstep:
    """`a` asks, `b` finishes, `w` is sent to twice and fails while it is broken: all in one superstep."""

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        self.ran = Counter[str]()
        self.broken = True
        made = StateGraph(State).add_node("first", self.first).add_edge(START, "first")
        for name in ("a", "b", "w", "x"):
            made.add_node(name, getattr(self, name))
        made.add_edge("first", "a").add_edge("first", "b")
        self.graph: Any = made.compile(saver)

    async def first(self, state: State) -> Any:
        return Command(goto=[Send("w", 0), Send("w", 1)])

    async def a(self, state: State) -> Any:
        self.ran["a"] += 1
        return {"log": ["a", interrupt("a?"), state.get("note")]}

    async def b(self, state: State) -> Any:
        self.ran["b"] += 1
        return {"log": ["b", state.get("note")]}

    async def w(self, index: int) -> Any:
        self.ran[f"w{index}"] += 1
        return {"log": [f"w{index}", interrupt("w?") if index and self.broken else None]}

    async def x(self, state: Any) -> Any:
        self.ran["x"] += 1
        return {"log": ["x"]}


async def test_an_open_superstep_keeps_its_results(saver: BaseCheckpointSaver) -> None:
    """P2, P5: a command with an update and a goto changes neither the ids nor the recorded results of the tasks of the
    open superstep; the remaining tasks see the update; goto's nodes join them. No checkpoint is made."""
    made = OpenSuperstep(saver)
    graph = made.graph
    await graph.ainvoke({}, "t")
    before = await graph.aget_state("t")
    assert before.next == ("w", "a")
    count = await stored(graph)
    made.broken = False
    asked = await graph.ainvoke(Command(update={"note": "new"}, goto=["x", Send("w", 2)]), "t")
    assert [question.value for question in asked["__interrupt__"]] == ["a?"]
    assert asked["note"] == "new"
    after = await graph.aget_state("t")
    assert (after.values["note"], after.values["log"], after.next) == ("new", [], ("a",))
    ids = {(task.name, task.path): task.id for task in after.tasks}
    assert [ids[task.name, task.path] for task in before.tasks] == [task.id for task in before.tasks]
    assert [task.name for task in after.tasks] == ["w", "w", "w", "a", "b", "x"]
    assert before.interrupts[1:] == after.interrupts or before.interrupts[0] in after.interrupts
    assert (after.config, await stored(graph)) == (before.config, count)
    assert made.ran == {"a": 2, "b": 1, "w0": 1, "w1": 2, "w2": 1, "x": 1}
    result = await graph.ainvoke(Command(resume="yes"), "t")
    assert result["log"] == ["a", "yes", "new", "b", None, "x", "w0", None, "w1", None, "w2", None]
    assert made.ran == {"a": 3, "b": 1, "w0": 1, "w1": 2, "w2": 1, "x": 1}
    assert (await graph.aget_state("t")).values == result


@pytest.mark.parametrize("ask_between", [False, True])
async def test_commands_of_several_calls(saver: BaseCheckpointSaver, ask_between: bool) -> None:
    """Updates that several calls made to one open superstep are folded one after the other, live as well as after
    loading: a key without a reducer takes each, and an overwrite counts for its own call."""
    made = OpenSuperstep(saver)
    graph = made.graph
    await graph.ainvoke({}, "t")
    for update, values in (
        ({"note": "one", "total": 1}, (("one", 1))),
        ({"note": "two", "total": Overwrite(5)}, ("two", 5)),
        ({"note": Overwrite("three"), "total": 1}, ("three", 6)),
        ({"total": Overwrite(0), "log": ["edited"]}, ("three", 0)),
    ):
        result = await graph.ainvoke(Command(update=update), "t")
        assert (result["note"], result["total"]) == values
        if ask_between:
            assert await graph.ainvoke(None, "t") == result
        state = await graph.aget_state("t")
        assert state.values == {key: result[key] for key in state.values}
    made.broken = False
    result = await graph.ainvoke(Command(resume={question.id: "yes" for question in state.interrupts}), "t")
    assert result["log"] == ["edited", "a", "yes", "three", "b", None, "w0", None, "w1", None]
    assert (result["note"], result["total"]) == ("three", 0)
    assert (await graph.aget_state("t")).values == result


async def test_an_answer_and_an_update(saver: BaseCheckpointSaver) -> None:
    """With both, the answered node sees the update; with the update alone it sees it, and asks again."""
    made = OpenSuperstep(saver)
    made.broken = False
    graph = made.graph
    await graph.ainvoke({}, "t")
    again = await graph.ainvoke(Command(update={"note": "first"}), "t")
    assert [question.value for question in again["__interrupt__"]] == ["a?"]
    result = await graph.ainvoke(Command(resume=0, update={"note": "second"}, goto="x"), "t")
    assert result["log"] == ["a", 0, "second", "b", None, "x", "w0", None, "w1", None]


class Refusing(InMemorySaver):
    """A saver that stores nothing more once it is armed."""

    refuses = False

    async def record(self, lease: Any, records: Any, *, expires_at: float) -> None:
        if self.refuses:
            raise ConnectionError("gone")
        await super().record(lease, records, expires_at=expires_at)


async def test_an_answer_and_its_update_are_one(saver: BaseCheckpointSaver) -> None:
    """P3: an answer and the update that comes with it are stored together or not at all."""
    calls: list[int] = []

    class Counting(Refusing):
        async def record(self, lease: Any, records: Any, *, expires_at: float) -> None:
            calls.append(len(records))
            await super().record(lease, records, expires_at=expires_at)

    store = Counting()

    async def a(state: State) -> Any:
        calls.append(0)
        return {"log": [interrupt("?"), state.get("note")]}

    graph = graph_of(store, a=a)
    await graph.ainvoke({}, "t")
    before = await graph.aget_state("t")
    store.refuses = True
    calls.clear()
    with pytest.raises(ConnectionError):
        await graph.ainvoke(Command(resume="yes", update={"note": "x"}), "t")
    assert calls == [2]
    store.refuses = False
    assert await graph.aget_state("t") == before
    assert (await graph.ainvoke(Command(resume="yes", update={"note": "x"}), "t"))["log"] == ["yes", "x"]


@pytest.mark.parametrize("stop", ["break", "cancel"])
async def test_a_command_survives_a_run_that_ends_early(saver: BaseCheckpointSaver, stop: str) -> None:
    """P4: a command's update and answer are stored before anything runs: a run that ends before its superstep is
    complete leaves both in the thread, and the next run uses them."""
    began, blocked = anyio.Event(), anyio.Event()
    blocks = [False]

    async def a(state: State) -> Any:
        answer = interrupt("?")
        if blocks[0]:
            began.set()
            await blocked.wait()
        return {"log": [answer, state.get("note")]}

    graph = graph_of(saver, a=a, x=say("x"))
    await graph.ainvoke({}, "t")
    blocks[0] = True
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await graph.ainvoke(Command(resume="yes", update={"note": "n"}, goto="x"), "t")

        group.start_soon(run)
        await began.wait()
        group.cancel_scope.cancel()
    blocks[0] = False
    state = await graph.aget_state("t")
    assert (state.values["note"], state.interrupts) == ("n", ())
    assert "a" in state.next
    if stop == "cancel":
        with pytest.raises(InvalidResumeError):
            await graph.ainvoke(Command(resume="again"), "t")
    assert (await graph.ainvoke(None, "t"))["log"] == ["yes", "n", "x"]


async def test_a_finished_thread_continues(saver: BaseCheckpointSaver) -> None:
    """On a finished thread, goto runs its nodes on the existing state, without an input checkpoint; an update alone
    changes the state and runs nothing."""
    graph = graph_of(saver, a=say("a"), b=say("b"))
    await graph.ainvoke({"total": 1}, "t")
    count = await stored(graph)
    assert await graph.ainvoke(Command(update={"total": 2}), "t") == {"log": ["a"], "total": 3}
    assert (await graph.aget_state("t")).values == {"log": ["a"], "total": 3}
    assert await graph.ainvoke(Command(update={"total": 4}, goto="b"), "t") == {"log": ["a", "b"], "total": 7}
    state = await graph.aget_state("t")
    assert (state.values, state.next, await stored(graph)) == ({"log": ["a", "b"], "total": 7}, (), count + 1)
    assert await graph.ainvoke({"total": 1}, "t") == {"log": ["a", "b", "a"], "total": 8}


async def test_a_command_from_an_older_checkpoint(saver: BaseCheckpointSaver) -> None:
    """P2: a command given to an older checkpoint starts a branch with its update, and the other branch is unchanged; an
    answer finds no question there, as later questions are asked again."""
    graph = graph_of(saver, ("a", "b"), a=say("a"), b=say("b"))
    await graph.ainvoke({}, "t")
    before = [state async for state in graph.aget_state_history("t")]
    (old,) = [state for state in before if state.next == ("b",)]
    with pytest.raises(InvalidResumeError):
        await graph.ainvoke(Command(resume=1), old.config)
    assert (await graph.ainvoke(Command(update={"log": ["edited"]}), old.config))["log"] == ["a", "edited", "b"]
    assert (await graph.aget_state("t")).values["log"] == ["a", "edited", "b"]
    for state in before:
        again = await graph.aget_state(state.config)
        assert (again.values, again.next) == (state.values, state.next)


async def test_an_update_and_then_a_new_input(saver: BaseCheckpointSaver) -> None:
    """A new input discards pending tasks, and keeps the changes of commands to the state."""
    made = OpenSuperstep(saver)
    await made.graph.ainvoke({}, "t")
    await made.graph.ainvoke(Command(update={"note": "kept"}, goto="x"), "t")
    made.broken = False
    result = await made.graph.ainvoke({"total": 1}, "t")
    assert (result["note"], result["total"], result["log"]) == ("kept", 1, [])
    result = await made.graph.ainvoke(Command(resume="yes"), "t")
    assert result["log"] == ["a", "yes", "kept", "b", "kept", "w0", None, "w1", None]


class Hidden(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    secret: Annotated[Any, UntrackedValue]


async def test_an_update_that_is_not_stored(saver: BaseCheckpointSaver) -> None:
    """A command's write to an untracked key is visible in the run, and not stored."""

    async def a(state: Hidden) -> Any:
        return {"log": [interrupt("?"), "secret" in state]}

    graph = StateGraph(Hidden).add_node("a", a).add_edge(START, "a").compile(saver)
    await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(Command(resume=1, update={"secret": object()}), "t"))["log"] == [1, True]


async def test_the_stream_of_a_command(saver: BaseCheckpointSaver) -> None:
    """A resumed run first streams the state with the command's update; recorded results come as cached."""
    made = OpenSuperstep(saver)
    made.broken = False
    await made.graph.ainvoke({}, "t")
    command = Command(resume=1, update={"note": "n"})
    chunks = [chunk async for chunk in made.graph.astream(command, "t", stream_mode=["values", "updates"])]
    assert chunks[0] == ("values", {"log": [], "note": "n", "total": 0})
    shown = [chunk for mode, chunk in chunks if mode == "updates"]
    assert {"a": {"log": ["a", 1, "n"]}} in shown
    assert {"b": {"log": ["b", None]}, "__metadata__": {"cached": True}} in shown
    assert chunks[-1] == ("values", {"log": ["a", 1, "n", "b", None, "w0", None, "w1", None], "note": "n", "total": 0})
