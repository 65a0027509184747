"""Commands for the parent graph: which graph carries them out, what still runs, and what never runs again."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Annotated, Any, TypedDict

import anyio
import anyio.lowlevel
import pytest

from checkpoint_savers import BaseCheckpointSaver
from pregel_async import END, START, Command, NodeBuilder, Pregel, Send, StateGraph, entrypoint, interrupt, task
from pregel_async.channels import EphemeralValue, LastValue
from pregel_async.errors import InvalidInputError, InvalidUpdateError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: int


class Oops(Exception):
    """A user's own exception."""


class Switches:
    """Switches for the things that fail, and counts of what ran."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.ran: Counter[str] = Counter()

    def node(self, name: str, result: Any = None) -> Any:
        async def call(state: Any) -> Any:
            self.ran[name] += 1
            if name in self.broken:
                raise Oops(name)
            return {"log": [name]} if result is None else result

        return call


@pytest.fixture
def switches() -> Switches:
    return Switches()


def chain(*nodes: tuple[str, Any], schema: Any = State) -> StateGraph[Any]:
    """Nodes one after another, from START."""
    return StateGraph(schema).add_sequence(list(nodes)).add_edge(START, nodes[0][0])


def up(goto: Any = (), graph: str = Command.PARENT, **update: Any) -> Command:
    return Command(graph=graph, update=update or None, goto=goto)


@pytest.mark.parametrize("checkpointer", [None, True, False])
async def test_one_level(saver: BaseCheckpointSaver, switches: Switches, checkpointer: Any) -> None:
    """The subgraph ends with the command; only the command's update reaches the parent, credited to the node; the
    node's own edges are followed in addition to the goto."""
    command = up("there", log=["up"])
    sub = chain(("a", switches.node("a")), ("cmd", switches.node("cmd", command)), ("never", switches.node("never")))
    made = chain(("sub", sub.compile(checkpointer)), ("edge", switches.node("edge")))
    graph = made.add_node("there", switches.node("there")).compile(saver)
    chunks = [chunk async for chunk in graph.astream({"log": ["in"]}, "t")]
    assert chunks[0] == {"sub": {"log": ["up"]}}
    assert (await graph.aget_state("t")).values == {"log": ["in", "up", "edge", "there"]}
    assert switches.ran == {"a": 1, "cmd": 1, "edge": 1, "there": 1}
    state = [state async for state in graph.aget_state_history("t") if state.next == ("sub",)][0]
    assert state.tasks[0].result == {"log": ["up"]}


async def test_only_an_update_and_only_a_goto(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Either part may be left out; a goto may be a Send, or a list."""
    there = switches.node("there")

    async def sent(state: Any) -> dict[str, Any]:
        return {"log": [f"sent {state}"]}

    for command, log in (
        (up(log=["up"]), ["up"]),
        (up("there"), ["there"]),
        (up(["there", Send("sent", 1), Send("sent", 2)]), ["there", "sent 1", "sent 2"]),
        (up(END), []),
        (Command(graph=Command.PARENT, update=[("log", ["x"]), ("log", ["y"])]), ["x", "y"]),
    ):
        sub = chain(("cmd", switches.node("cmd", command))).compile()
        made = chain(("sub", sub)).add_node("there", there).add_node("sent", sent)
        assert (await made.compile(saver).ainvoke({}, repr(command)))["log"] == log


async def test_called_in_a_node(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A graph that a node calls sends a command to the node's graph: code after the call does not run;
    `finally` does."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()
    seen: list[str] = []

    async def call(state: Any) -> Any:
        try:
            await sub.ainvoke({})
            seen.append("after")
        except Exception:
            seen.append("an error")
        finally:
            seen.append("finally")
        return {"log": ["never"]}

    graph = chain(("call", call)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]
    assert seen == ["finally"]


async def test_in_a_list_with_updates_of_its_own(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A node may return a command for the parent together with others; those for its own graph end with it."""
    both = [Command(update={"log": ["own"]}), up("there", log=["up"])]
    sub = chain(("cmd", switches.node("cmd", both))).compile(True)
    graph = chain(("sub", sub)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]


async def test_in_the_nodes_own_task_group(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A command is found inside the groups that a node's own task group made."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()

    async def call(state: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(sub.ainvoke, {})
            await anyio.sleep_forever()

    graph = chain(("call", call)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]


async def test_a_group_with_a_failure_fails(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P9: when the node also has a failure of its own, the command does not count."""
    sub = chain(("cmd", switches.node("cmd", up(log=["up"])))).compile()

    async def call(state: Any) -> None:
        async with anyio.create_task_group() as group:

            async def fails() -> None:
                try:
                    await anyio.sleep_forever()
                finally:
                    raise Oops

            group.start_soon(fails)
            await sub.ainvoke({})

    graph = chain(("call", call)).compile(saver)
    with pytest.raises(ExceptionGroup) as caught:
        await graph.ainvoke({}, "t")
    assert caught.group_contains(Oops)
    assert (await graph.aget_state("t")).next == ("call",)


async def test_update_of_unknown_key_or_node(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A command that does not fit its target graph is an error there, and changes nothing."""
    for command in (up(nope=1), up("nope"), up(Send("nope", 1))):
        graph = chain(("sub", chain(("cmd", switches.node("cmd", command))).compile())).compile(saver)
        with pytest.raises(InvalidUpdateError, match="nope"):
            await graph.ainvoke({"n": 1}, repr(command))
        assert (await graph.aget_state(repr(command))).values == {"log": [], "n": 1}


async def test_each_level_by_hand(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A command goes up one level; the level above may pass it on."""
    low = chain(("cmd", switches.node("cmd", up("mid_there", log=["low"])))).compile()
    mid = chain(("low", low)).add_node("mid_there", switches.node("mid", up("there", log=["mid"]))).compile()
    graph = chain(("mid", mid)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["mid", "there"]


@pytest.mark.parametrize("checkpointer", [None, True])
@pytest.mark.parametrize(
    ("name", "where"),
    [("low", "two"), ("low graph", "two"), ("mid", "one"), ("mid graph", "one"), ("top", "zero")],
)
async def test_by_name_over_levels(
    saver: BaseCheckpointSaver, switches: Switches, name: str, where: str, checkpointer: Any
) -> None:
    """A name identifies the target: that of an enclosing graph, or of the node that leads down from it."""
    inner = chain(("cmd", switches.node("cmd", up("there", name, log=["up"])))).compile(checkpointer)
    low = chain(("low", inner)).add_node("there", switches.node("two")).compile(checkpointer, name="low graph")
    mid = chain(("mid", low)).add_node("there", switches.node("one")).compile(checkpointer, name="mid graph")

    async def call(state: Any) -> Any:
        await idle.ainvoke({})
        return await mid.ainvoke({})

    idle = chain(("x", lambda state: {})).compile(checkpointer)
    graph = chain(("top", call)).add_node("there", switches.node("zero")).compile(saver)
    result = await graph.ainvoke({}, "t")
    assert {found for found in switches.ran if found != "cmd"} == {where}
    assert result["log"][-2:] == ["up", where]


async def test_by_an_unknown_name(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Bad input: a name that no enclosing graph has is an error that says so, where the command was given."""
    sub = chain(("cmd", switches.node("cmd", up(graph="unknown")))).compile()
    graph = chain(("sub", sub)).compile(saver)
    with pytest.raises(InvalidUpdateError, match="unknown") as caught:
        await graph.ainvoke({}, "t")
    assert any("'cmd'" in note for note in caught.value.__notes__)


async def test_at_the_root(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Bad input: Command.PARENT at the root is an error, before anything is stored of the node."""
    graph = chain(("cmd", switches.node("cmd", up(log=["x"])))).compile(saver)
    with pytest.raises(InvalidUpdateError, match="not run by a node"):
        await graph.ainvoke({}, "t")
    assert (await graph.aget_state("t")).next == ("cmd",)
    with pytest.raises(InvalidInputError):
        await graph.ainvoke(up(log=["x"]), "u")


async def test_a_run_of_its_own_has_no_parent(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Bad input: a graph that a node calls with its own thread_id has no parent."""
    sub = chain(("cmd", switches.node("cmd", up(log=["x"])))).compile()

    async def call(state: Any) -> Any:
        return await sub.ainvoke({}, "own")

    with pytest.raises(InvalidUpdateError, match="not run by a node"):
        await chain(("call", call)).compile(saver).ainvoke({}, "t")


async def test_from_a_task(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A graph that a task runs sends a command to the graph of the node that called the task; the task does not run
    again."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()

    @task
    async def work() -> Any:
        return await sub.ainvoke({})

    async def call(state: Any) -> Any:
        await work()
        return {"log": ["never"]}

    graph = chain(("call", call)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]
    assert switches.ran == {"cmd": 1, "there": 1}


async def test_from_a_task_that_is_not_awaited(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A task that is not awaited sends its command all the same, once its node has ended."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()

    @task
    async def work() -> Any:
        return await sub.ainvoke({})

    async def call(state: Any) -> Any:
        work()

    graph = chain(("call", call)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]


async def test_from_a_task_with_a_concurrent_question(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5, P8: the command of a task waits for the answer to a concurrent question; the task does not run again."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()

    @task
    async def work() -> Any:
        return await sub.ainvoke({})

    async def call(state: Any) -> Any:
        started = work()
        interrupt("?")
        await started

    graph = chain(("call", call)).add_node("there", switches.node("there")).compile(saver)
    assert "__interrupt__" in await graph.ainvoke({}, "t")
    assert (await graph.ainvoke(Command(resume=1), "t"))["log"] == ["up", "there"]
    assert switches.ran == {"cmd": 1, "there": 1}


async def test_by_the_name_of_a_task(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Bad input: a task is no graph and no node: its name cannot be the target of a command."""
    sub = chain(("cmd", switches.node("cmd", up(graph="work")))).compile()

    @task
    async def work() -> Any:
        return await sub.ainvoke({})

    async def call(state: Any) -> Any:
        return await work()

    with pytest.raises(InvalidUpdateError, match="work"):
        await chain(("call", call)).compile(saver).ainvoke({}, "t")


async def test_for_a_workflow(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Bad input: a workflow is one function: a command for it has no node to go to, and is never its result."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()

    @entrypoint(saver)
    async def flow(n: int) -> Any:
        return await sub.ainvoke({})

    with pytest.raises(InvalidUpdateError, match="entrypoint") as caught:
        await flow.ainvoke(1, "t")
    assert any("'flow'" in note for note in caught.value.__notes__)


async def test_for_a_graph_of_channels(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A command for a graph of channels updates its channels; it has no node to go to."""
    for command, out in ((up(out="up"), "up"), (up("there"), None)):
        sub = chain(("cmd", switches.node("cmd", command))).compile()

        async def call(given: str, sub: Any = sub) -> Any:
            return await sub.ainvoke({})

        graph = Pregel(
            nodes={"call": NodeBuilder().subscribe_only("in").do(call).write_to("out")},
            channels={"in": EphemeralValue(str), "out": LastValue(str)},
            input_channels="in",
            output_channels="out",
            checkpointer=saver,
        )
        if out is not None:
            assert await graph.ainvoke("x", "t") == out
            continue
        with pytest.raises(InvalidUpdateError, match="takes no goto"):
            await graph.ainvoke("x", "u")


async def test_through_a_workflow(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """A command goes through a workflow to the parent graph, by name."""
    sub = chain(("cmd", switches.node("cmd", up("there", "flow", log=["up"])))).compile()

    @entrypoint(name="workflow")
    async def flow(state: dict[str, Any]) -> Any:
        return await sub.ainvoke({})

    graph = chain(("flow", flow)).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]


async def test_siblings_finish(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """The siblings of the commanding task in the subgraph finish; their writes are discarded with the subgraph."""
    done = anyio.Event()

    async def slow(state: Any) -> dict[str, Any]:
        await done.wait()
        switches.ran["slow"] += 1
        return {"log": ["slow"]}

    async def cmd(state: Any) -> Command:
        done.set()
        return up("there", log=["up"])

    sub = StateGraph(State).add_node("cmd", cmd).add_node("slow", slow).add_edge(START, "cmd").add_edge(START, "slow")
    graph = chain(("sub", sub.compile())).add_node("there", switches.node("there")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["up", "there"]
    assert switches.ran == {"slow": 1, "there": 1}


async def test_several_commands_of_one_superstep(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2: several commands of one superstep are carried out in plan order, never in completion order."""
    first = anyio.Event()

    async def cmd(state: Any) -> Command:
        if state["n"] == 0:
            await first.wait()
        if state["n"] == 2:
            first.set()
        return up(Send("there", state["n"]), log=[f"up {state['n']}"])

    async def there(n: Any) -> dict[str, Any]:
        return {"log": [f"there {n}"]}

    sub = StateGraph(State).add_node("cmd", cmd)
    sub.add_conditional_edges(START, lambda state: [Send("cmd", {"n": n}) for n in range(3)], ["cmd"])
    graph = chain(("sub", sub.compile())).add_node("there", there).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == [f"{what} {n}" for what in ("up", "there") for n in range(3)]


async def test_several_graphs_command_at_once(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P2: the same holds for commands of several graphs."""
    graph = StateGraph(State).add_node("there", switches.node("there"))
    for name in "ba":
        sub = chain(("cmd", switches.node("cmd", up("there", log=[name])))).compile()
        graph.add_node(name, sub).add_edge(START, name)
    assert (await graph.compile(saver).ainvoke({}, "t"))["log"] == ["a", "b", "there"]


async def test_to_different_levels_at_once(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """Commands of one superstep for different graphs: the one for the graph further up ends the graph between, and with
    it the command for that one."""
    sub = StateGraph(State)
    sub.add_node("near", switches.node("near", up("one", log=["near"]))).add_edge(START, "near")
    sub.add_node("far", switches.node("far", up("zero", "mid", log=["far"]))).add_edge(START, "far")
    mid = chain(("sub", sub.compile())).add_node("one", switches.node("one")).compile()
    graph = chain(("mid", mid)).add_node("zero", switches.node("zero")).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["far", "zero"]
    assert switches.ran == {"near": 1, "far": 1, "zero": 1}


async def test_with_a_question_of_a_sibling(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5, P8: a command waits for the answer to an open question of a sibling, and its task does not run again."""

    async def ask(state: Any) -> dict[str, Any]:
        return {"log": [interrupt("?")]}

    sub = StateGraph(State).add_node("ask", ask).add_edge(START, "ask")
    sub.add_node("cmd", switches.node("cmd", up("there", log=["up"]))).add_edge(START, "cmd")
    graph = chain(("sub", sub.compile())).add_node("there", switches.node("there")).compile(saver)
    assert "__interrupt__" in await graph.ainvoke({}, "t")
    assert "__interrupt__" in await graph.ainvoke(None, "t")
    assert (await graph.ainvoke(Command(resume="x"), "t"))["log"] == ["up", "there"]
    assert switches.ran == {"cmd": 1, "there": 1}


async def test_with_a_failure_of_a_sibling(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P5, P9: a failure of a sibling is raised first; the resume carries out the command, and its task does not run
    again."""
    done = anyio.Event()

    async def fails(state: Any) -> dict[str, Any]:
        await done.wait()
        if switches.broken:
            raise Oops
        return {}

    async def cmd(state: Any) -> Command:
        switches.ran["cmd"] += 1
        return up("there", log=["up"])

    sub = (
        StateGraph(State).add_node("fails", fails).add_node("cmd", cmd).add_edge(START, "fails").add_edge(START, "cmd")
    )
    graph = chain(("sub", sub.compile())).add_node("there", switches.node("there")).compile(saver)
    switches.broken = {"fails"}
    async with anyio.create_task_group() as group:
        group.start_soon(_set_when, switches, done)
        with pytest.raises(Oops):
            await graph.ainvoke({}, "t")
    switches.broken.clear()
    assert (await graph.ainvoke(None, "t"))["log"] == ["up", "there"]
    assert switches.ran == {"cmd": 1, "there": 1}


async def _set_when(switches: Switches, done: anyio.Event) -> None:
    while not switches.ran["cmd"]:
        await anyio.lowlevel.checkpoint()
    for _ in range(50):  # and its result is recorded
        await anyio.lowlevel.checkpoint()
    done.set()


async def test_in_a_loop_with_a_kept_state(saver: BaseCheckpointSaver) -> None:
    """A graph that keeps its state continues, after a command, from the last superstep that it has finished."""

    class Count(TypedDict, total=False):
        count: Annotated[int, operator.add]

    sub = chain(
        ("add", lambda state: {"count": 1}),
        ("cmd", lambda state: up("sub" if state["count"] < 3 else END, log=[str(state["count"])])),
        schema=Count,
    ).compile(True, blocking=False)
    graph = chain(("sub", sub)).compile(saver)
    assert (await graph.ainvoke({}, "t"))["log"] == ["1", "2", "3"]
    assert (await graph.ainvoke({}, "t"))["log"] == ["1", "2", "3", "4"]


async def test_the_parents_superstep_fails_after_the_command(saver: BaseCheckpointSaver, switches: Switches) -> None:
    """P3, P5: a router of the node fails after the command: the resume runs only the router."""
    sub = chain(("cmd", switches.node("cmd", up("there", log=["up"])))).compile()

    def route(state: Any) -> str:
        assert state["log"] == ["up"]
        if switches.broken:
            raise Oops
        return END

    made = chain(("sub", sub)).add_node("there", switches.node("there")).add_conditional_edges("sub", route)
    graph = made.compile(saver)
    switches.broken = {"route"}
    with pytest.raises(Oops):
        await graph.ainvoke({}, "t")
    switches.broken.clear()
    assert (await graph.ainvoke(None, "t"))["log"] == ["up", "there"]
    assert switches.ran == {"cmd": 1, "there": 1}
