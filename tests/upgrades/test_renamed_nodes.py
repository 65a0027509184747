"""Nodes that were renamed or retired under idle and open threads."""

from __future__ import annotations

import operator
import warnings
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Command, Send, StateGraph, interrupt
from pregel_async.errors import (
    GraphChangedError,
    GraphValidationError,
    KeptStateWarning,
    NodeError,
    UnknownInterruptError,
)
from pregel_async.functional import task
from tests.upgrades.graphs import Log, asks, built, failed, failing, of, ran, says, states

pytestmark = pytest.mark.anyio


@task
async def charge(order: str) -> str:
    ran.append(f"charge {order}")
    return f"charged {order}"


async def approve(state: Any) -> Any:
    ran.append("approve")
    paid = await charge("7")
    return {"log": [paid, interrupt("good?"), interrupt("sure?")]}


async def channels_in(saver: BaseCheckpointSaver) -> list[str]:
    stored = await saver.aget_tuple("t")
    assert stored is not None
    return [*stored.checkpoint["channel_versions"]]


def office(saver: Any, name: str, **options: Any) -> Any:
    """A node that calls a task and asks twice, with a sibling, a join of both, and a node after that."""
    nodes = {"sibling": says("sibling"), name: (approve, options), "join": says("join"), "end": says("end")}
    return built(Log, nodes, [(START, "sibling"), (START, name), (["sibling", name], "join"), ("join", "end")], saver)


async def test_an_open_question_of_a_renamed_node(saver: BaseCheckpointSaver) -> None:
    """P15: a renamed node continues with its question, its recorded call, and the result of its sibling, under the same
    ids; nothing runs again, and no old name is left."""
    old = office(saver, "approve")
    await old.ainvoke({}, "t")
    await old.ainvoke(Command(resume="yes"), "t")
    before = await old.aget_state("t")
    new = office(saver, "sign_off", was="approve")
    state = await new.aget_state("t")
    assert (state.next, state.changed, state.interrupts) == (("sign_off",), (), before.interrupts)
    assert [each.id for each in state.tasks] == [each.id for each in before.tasks]
    assert await new.aget_state("t") == state  # reading stores nothing
    ran.clear()
    done = await new.ainvoke(Command(resume="sure"), "t")
    assert done["log"] == ["charged 7", "yes", "sure", "sibling", "join", "end"]
    assert ran == ["approve", "join", "end"]  # the node from its start, and no call again
    assert (await old.aget_state("t")).next == () and (await new.aget_state("t")).next == ()
    assert [each.next for each in await states(new)][-2:] == [("sign_off", "sibling"), ("__start__",)]
    assert await channels_in(saver) == ["log"]
    again = await new.ainvoke({}, "t")
    assert again["log"] == done["log"] and (await new.aget_state("t")).next == ("sign_off",)


async def test_deferred_nodes_and_names_of_nodes_that_ran(saver: BaseCheckpointSaver) -> None:
    """P15: a deferred node that waits under its former name runs when nothing else is left; an update by hand is made as
    the renamed node that ran last."""

    def graph(name: str, **options: Any) -> Any:
        nodes = {"a": says("a"), "b": says("b"), name: (says("late"), {"defer": True, **options})}
        return built(Log, nodes, [(START, "a"), ("a", "b"), ("a", name)], saver)

    old, new = graph("old"), graph("new", was="old")
    await failed(old, "b", given={})
    assert (await new.aget_state("t")).next == ("b",)
    assert (await new.ainvoke(None, "t"))["log"] == ["a", "b", "late"] and ran == ["b", "late"]
    await old.ainvoke({}, "u")
    await new.aupdate_state("u", {"log": ["by hand"]})
    assert (await new.aget_state("u")).values["log"] == ["a", "b", "late", "by hand"]


async def test_renaming_and_back(saver: BaseCheckpointSaver) -> None:
    """P15: a thread that continued under the new name continues under the old one, and ids do not depend on the way."""
    one, two = office(saver, "approve", was="sign_off"), office(saver, "sign_off", was="approve")
    plain = InMemorySaver()
    ids = []
    for graphs in ((one, two, one, two), (office(plain, "approve"),) * 4):
        for graph, value in zip(graphs, ({}, Command(resume="yes"), Command(resume="sure"), {}), strict=True):
            await graph.ainvoke(value, "t")
        ids.append([[(each.id, each.path) for each in state.tasks] for state in await states(graphs[0])])
    assert ids[0][1:] == ids[1][1:]  # the last superstep was planned under the new name


async def test_failures_sends_and_handlers_of_a_renamed_node(saver: BaseCheckpointSaver) -> None:
    """P15: sends to a renamed node run under their ids; its error handler gets the recorded failure."""

    def graph(name: str, **options: Any) -> Any:
        def work(arg: Any) -> Any:
            return says(f"work {arg}")({})

        def handle(arg: Any, error: NodeError) -> Any:
            ran.append(f"handle {arg}")
            return {"log": [f"{error.node} {interrupt('retry?')}"]}

        builder = StateGraph(Log).add_node("a", says("a", {})).add_edge(START, "a")
        builder.add_node(name, work, error_handler=handle, **options)
        return builder.add_conditional_edges("a", lambda state: [Send(name, n) for n in "123"], [name]).compile(
            saver, blocking=False
        )

    old = graph("old")
    failing.add("work 2")
    await old.ainvoke({}, "t")
    failing.clear()
    ran.clear()
    new = graph("new", was=["older", "old"])
    asked = await new.aget_state("t")
    assert asked.interrupts == (await old.aget_state("t")).interrupts != ()
    assert asked.next == ("new",)
    assert (await new.ainvoke(Command(resume="no"), "t"))["log"] == ["work 1", "new no", "work 3"]
    assert ran == ["handle 2"]


@pytest.mark.parametrize("finished", [True, False], ids=["recorded", "pending"])
async def test_edges_and_joins_of_renamed_nodes(saver: BaseCheckpointSaver, finished: bool) -> None:
    """P15: a recorded edge to a renamed node, and an incomplete join that a renamed node completes or that leads to
    one, hold for the new names."""

    def graph(one: str, two: str, *was: str) -> Any:
        options = [{"was": old} for old in was] or [{}, {}]
        nodes = {
            "x": says("x"),
            one: (says("one"), options[0]),
            "late": says("late"),
            two: (says("two"), options[1]),
        }
        return built(Log, nodes, [(START, "x"), (START, one), ("x", "late"), ([one, "late"], two), ("x", two)], saver)

    old, new = graph("a+b", "c"), graph("d\\e", "f", "a+b", "c")
    await failed(old, *(["late"] if finished else ["one"]), given={})
    assert of(await new.aget_state("t")) == []
    done = await new.ainvoke(None, "t")
    assert sorted(done["log"]) == sorted(["x", "one", "late", "two", "two"])
    assert (await old.aget_state("t")).next == ()
    assert await channels_in(saver) == ["log"]


@pytest.mark.parametrize("successor", ["review", END])
async def test_pending_tasks_of_retired_nodes(saver: BaseCheckpointSaver, successor: str) -> None:
    """P15: `retired=` hands pending tasks to another node, or ends them; recorded results of siblings stay."""

    def graph(*names: str, **options: Any) -> Any:
        builder = StateGraph(Log).add_node("a", says("a")).add_edge(START, "a")
        for name in names:
            builder.add_node(name, says(name))
        places = [*(Send(name, {}) for name in names), *names]
        return builder.add_conditional_edges("a", lambda state: places, list(names)).compile(
            saver, blocking=False, **options
        )

    await failed(graph("audit", "review"), "audit", given={})
    new = graph("review", retired={"audit": successor})
    name = "audit" if successor is END else "review"
    state = await new.aget_state("t")
    assert (state.next, of(state)) == ((name, name), [])
    done = await new.ainvoke(None, "t")
    assert done["log"] == ["a", *(["review"] * (2 if successor is END else 4))]
    assert ran == ([] if successor is END else ["review", "review"])
    assert (await graph("audit", "review").aget_state("t")).next == ()


async def test_questions_of_retired_nodes(saver: BaseCheckpointSaver) -> None:
    """P15: no answer can reach a node that is retired without a successor, so that its question is not open any more."""
    nodes = {name: asks(name) for name in "ab"}
    await built(Log, nodes, [(START, "a"), (START, "b")], saver).ainvoke({}, "t")
    only_a = built(Log, {"a": nodes["a"]}, [(START, "a")], saver, retired={"b": END})
    state = await only_a.aget_state("t")
    assert (state.next, [each.value for each in state.interrupts]) == (("a", "b"), ["a?"])
    gone = next(each.id for each in (await built(Log, nodes, [(START, "a")], saver).aget_state("t")).interrupts[1:])
    ran.clear()
    with pytest.raises(UnknownInterruptError, match="node 'b' was retired") as caught:
        await only_a.ainvoke(Command(resume={gone: "yes"}), "t")
    assert (caught.value.interrupt_ids, caught.value.pending_ids) == ((gone,), (state.interrupts[0].id,))
    neither = built(Log, {"c": says("c")}, [(START, "c")], saver, retired={"a": END, "b": END})
    assert (await neither.aget_state("t")).interrupts == ()
    with pytest.raises(UnknownInterruptError, match="node 'a' was retired"):
        await neither.ainvoke(Command(resume="yes"), "t")
    assert ran == []
    assert (await only_a.ainvoke(Command(resume="yes"), "t"))["log"] == ["a: yes"]
    closed = [each for each in await states(only_a) if each.interrupts][0]
    assert [each.value for each in closed.interrupts] == ["a?", "b?"]  # the history has them


async def test_recorded_edges_to_retired_nodes(saver: BaseCheckpointSaver) -> None:
    """P15: a recorded edge to a retired node leads to its successor, or nowhere."""
    nodes = {name: says(name) for name in "abc"}
    old = built(Log, nodes, [(START, "a"), (START, "b"), ("a", "c")], saver)
    for thread, successor, expected in (("end", END, ["a", "b"]), ("other", "d", ["a", "b", "d"])):
        await failed(old, "b", given={}, thread=thread)
        rest = {name: says(name) for name in "abd"}
        new = built(Log, rest, [(START, "a"), (START, "b")], saver, retired={"c": successor})
        assert (await new.ainvoke(None, thread))["log"] == expected


async def test_forks_copies_inputs_and_edits(saver: BaseCheckpointSaver) -> None:
    """P15: forks, copied threads, new inputs and edits of a renamed node's open superstep see the same."""
    old, new = office(saver, "approve"), office(saver, "sign_off", was="approve")
    await old.ainvoke({}, "t")
    at = (await old.aget_state("t")).config
    await saver.acopy_thread("t", "copy")
    asked = await new.aget_state("t")
    assert [each.id for each in (await new.aget_state("copy")).tasks] == [each.id for each in asked.tasks]
    ran.clear()
    await new.ainvoke(Command(resume="yes"), "copy")
    assert (await new.ainvoke(Command(resume="sure"), "copy"))["log"][-1] == "end"
    assert ran == ["approve", "approve", "join", "end"]
    await new.aupdate_state("t", {"log": ["by hand"]}, as_node="sign_off")
    assert (await new.ainvoke(None, "t"))["log"] == ["by hand", "sibling", "join", "end"]
    fork = await new.ainvoke(None, at)  # a new branch, on which the superstep runs again, with the same ids
    assert fork["__interrupt__"] == [*asked.interrupts]
    assert (await new.ainvoke({}, "t"))["__interrupt__"] != [*asked.interrupts]
    assert (await old.aget_state("t")).next == ("sign_off",)


class Count(TypedDict, total=False):
    count: int
    log: Annotated[list[str], operator.add]


def counting(saver: Any, name: str, **options: Any) -> Any:
    """A graph with a graph inside that keeps its state, inside of one that does so too."""

    def add(state: Count) -> Count:
        return {"count": state.get("count", 0) + 1}

    class Inner(TypedDict, total=False):
        count: int

    class Around(TypedDict, total=False):
        rounds: int

    kept = StateGraph(Inner).add_node("add", add).add_edge(START, "add").compile(checkpointer=True, blocking=False)

    async def call(state: Any) -> Any:
        return {"rounds": (await kept.ainvoke({})).get("count")}

    middle: Any = StateGraph(Around).add_node("call", call).add_edge(START, "call")
    middle = middle.compile(checkpointer=True, blocking=False)

    async def run(state: Any) -> Any:
        return {"log": [str((await middle.ainvoke({"rounds": 0}))["rounds"])]}

    return built(Log, {name: (run, options)}, [(START, name)], saver)


@pytest.mark.parametrize("durability", ["sync", "exit"])
async def test_the_state_of_a_kept_graph(saver: BaseCheckpointSaver, durability: Any) -> None:
    """P15: a graph that keeps its state keeps it when its node is renamed; without `was=`, a warning names the state
    that is left behind."""
    old, new = counting(saver, "old"), counting(saver, "new", was="old")
    for _ in range(2):
        await old.ainvoke({}, "t", durability=durability)
    assert (await new.ainvoke({}, "t", durability=durability))["log"] == ["1", "2", "3"]
    assert (await new.ainvoke({}, "t", durability=durability))["log"] == ["1", "2", "3", "4"]
    past = [state.config async for state in new.aget_state_history("t") if state.values.get("log") == ["1", "2"]]
    assert (await new.ainvoke({}, past[0]))["log"] == ["1", "2", "3"]
    with pytest.warns(KeptStateWarning, match=r"node 'newer'.*node 'new'.*was='new'"):
        await counting(saver, "newer").ainvoke({}, "t")
    with warnings.catch_warnings():
        warnings.simplefilter("error", KeptStateWarning)
        await counting(saver, "fresh").ainvoke({}, "u")


async def test_a_graph_inside_of_a_renamed_node_asks(saver: BaseCheckpointSaver) -> None:
    """P15: a graph inside of a renamed node continues where it asked, whether it keeps its state or not."""

    def graph(name: str, keeps: Any, **options: Any) -> Any:
        inner = built(Log, {"first": says("first"), "ask": asks("ask")}, [(START, "first"), ("first", "ask")], keeps)

        async def run(state: Any) -> Any:
            return {"log": (await inner.ainvoke({"log": []}))["log"]}

        return built(Log, {name: (run, options)}, [(START, name)], saver)

    for keeps in (None, True):
        old, new = graph("old", keeps), graph("new", keeps, was="old")
        thread = f"keeps {keeps}"
        await old.ainvoke({}, thread)
        shown = await new.aget_state(thread, subgraphs=True)
        assert shown.tasks[0].state is not None and shown.tasks[0].state.next == ("ask",)
        assert (await new.aget_state(shown.tasks[0].state.config)).next == ("ask",)
        ran.clear()
        assert (await new.ainvoke(Command(resume="yes"), thread))["log"] == ["first", "ask: yes"]
        assert ran == ["ask"]


def test_invalid_declarations() -> None:
    """Former names are not those of nodes, and each belongs to one node."""
    node = says("a")
    for nodes, options, message in (
        ({"a": (node, {"was": "b"}), "b": node}, {}, "names 'b' as a former node, and the graph has that node"),
        ({"a": (node, {"was": "c"}), "b": (node, {"was": ["c"]})}, {}, "'c', which is declared to be 'a' already"),
        ({"a": (node, {"was": [1]})}, {}, "is a sequence of names"),
        ({"a": node}, {"retired": {"b": "c"}}, "hands 'b' to 'c', and there is no such node; there are a"),
        ({"a": node}, {"retired": ["b"]}, "retired is a mapping"),
        ({"a": (node, {"was": "b"})}, {"retired": {"b": END}}, "declared to be 'a' already"),
    ):
        with pytest.raises(GraphValidationError, match=message):
            built(Log, nodes, [(START, "a")], None, **options)


async def test_aliases_are_not_shown() -> None:
    """Former names are no nodes of the graph: neither `nodes` nor `as_node` nor breakpoints have them."""
    saver = InMemorySaver()
    new = office(saver, "sign_off", was="approve")
    assert "approve" not in new.nodes and not [name for name in new.channels if "approve" in name]
    await office(saver, "approve").ainvoke({}, "t")
    with pytest.raises(Exception, match="no such node"):
        await new.ainvoke(None, "t", interrupt_before=["approve"])
    with pytest.raises(Exception, match="there is no node 'approve'"):
        await new.aupdate_state("t", {"log": []}, as_node="approve")


def asks_same(name: str) -> Any:
    """A node's function whose question does not depend on its name."""

    def call(state: Any) -> Any:
        answer = interrupt("good?")
        ran.append(name)
        return {"log": [f"{name} {answer}"]}

    return call


@pytest.mark.parametrize("way", ["goto", "edit", "both"])
@pytest.mark.parametrize("kept", [True, False], ids=["same", "renamed"])
async def test_a_pending_node_is_triggered_again(saver: BaseCheckpointSaver, kept: bool, way: str) -> None:
    """P15: a pending node that is triggered once more runs once, whether it was renamed or not."""

    def graph(name: str, **options: Any) -> Any:
        nodes = {"sib": asks_same("sib"), "z": says("z"), name: (asks_same("work"), options)}
        return built(Log, nodes, [(START, "sib"), (START, name), ("z", name)], saver)

    old = graph("old")
    await old.ainvoke({}, "t")
    new, name = (old, "old") if kept else (graph("new", was="old"), "new")
    ran.clear()
    if way != "goto":
        await new.aupdate_state("t", {"log": ["by hand"]}, as_node="z")
    if way != "edit":
        await new.ainvoke(Command(goto=name), "t")
    await new.ainvoke(None, "t")
    state = await new.aget_state("t")
    done = await new.ainvoke(Command(resume={each.id: "yes" for each in state.interrupts}), "t")
    hand = [] if way == "goto" else ["by hand"]
    assert sorted(done["log"]) == [*hand, "sib yes", "work yes"]
    assert sorted(ran) == ["sib", "work"] and (await new.aget_state("t")).next == ()


async def test_a_deferred_node_is_triggered_under_both_names(saver: BaseCheckpointSaver) -> None:
    """P15: a deferred node that waits under its former name, and is then triggered under the present one, runs once."""

    def graph(name: str, **options: Any) -> Any:
        nodes = {"a": says("a"), "b": says("b"), name: (says("late"), {"defer": True, **options})}
        return built(Log, nodes, [(START, "a"), ("a", "b"), ("a", name), ("b", name)], saver)

    await failed(graph("old"), "b", given={})
    assert (await graph("new", was="old").ainvoke(None, "t"))["log"] == ["a", "b", "late"]
    assert await channels_in(saver) == ["log"]


async def test_a_kept_state_that_was_written_last_counts(saver: BaseCheckpointSaver) -> None:
    """P15: after a rollback of the code, a kept graph may have states under several names of its node."""
    old, new, newer = (
        counting(saver, "old"),
        counting(saver, "new", was="old"),
        counting(saver, "newer", was=("new", "old")),
    )
    counted = [(await each.ainvoke({}, "t"))["log"][-1] for each in (old, new, old, old, old, new, newer, new, newer)]
    assert counted == ["1", "2", "2", "3", "4", "5", "6", "6", "7"]


def sending(saver: Any, target: str, **options: Any) -> Any:
    """A graph whose first node has finished and sends to another one, while a sibling asks."""
    was = options.pop("was", ())
    builder = StateGraph(Log).add_node("a", says("a")).add_node("q", asks("q")).add_node(target, says("work"), was=was)
    builder.add_edge(START, "a").add_edge(START, "q").add_conditional_edges("a", lambda _: [Send(target, {})], [target])
    return builder.compile(saver, blocking=False, **options)


@pytest.mark.parametrize("by", ["a node", "an update"])
async def test_recorded_sends_to_a_node_that_does_not_exist(by: str) -> None:
    """P15: a recorded send to a node that the code does not have is refused before anything runs, and named by the
    check. A rule runs or ends it, and a new input discards it."""
    threads = [InMemorySaver() for _ in range(4)]
    for saver in threads:
        old = (
            sending(saver, "old")
            if by == "a node"
            else built(Log, {"a": says("a"), "q": asks("q"), "old": says("work")}, [(START, "a"), (START, "q")], saver)
        )
        await old.ainvoke({}, "t")
        if by == "an update":
            await old.ainvoke(Command(goto=Send("old", {})), "t")
    ran.clear()

    undeclared = sending(threads[0], "new")
    assert of(await undeclared.aget_state("t")) == [("node", "old", "resume")]
    (check,) = [check async for check in undeclared.acheck_threads()]
    assert not check.loads and check.mismatches[0].name == "old"
    with pytest.raises(GraphChangedError, match="leads to node 'old', and there is no such node"):
        await undeclared.ainvoke(Command(resume="yes"), "t")
    assert not ran
    await undeclared.ainvoke({}, "t")
    assert not (await undeclared.aget_state("t")).changed

    for saver, options, works in (
        (threads[1], {"was": "old"}, 1),
        (threads[2], {"retired": {"old": "new"}}, 1),
        (threads[3], {"retired": {"old": END}}, 0),
    ):
        ran.clear()
        declared = sending(saver, "new", **options)
        (check,) = [check async for check in declared.acheck_threads()]
        assert check.loads and check.migrated
        await declared.ainvoke(Command(resume="yes"), "t")
        assert ran.count("work") == (works if by == "a node" else 0)  # the task of an update's send has finished before
