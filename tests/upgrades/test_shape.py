"""Keys, nodes and edges that changed under idle and open threads, without declared rules."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, Command, Overwrite, Send, StateGraph, interrupt
from pregel_async.channels import DeltaChannel, Topic
from pregel_async.errors import GraphChangedError, GraphValidationError
from tests.upgrades.graphs import Log, Stopped, asks, built, failed, line, of, ran, says, states

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pregel_async.errors.UnknownStoredKeyWarning"),
]


def joined(current: list[str], update: list[str]) -> list[str]:
    return [*current, "|", *update]


def all_joined(current: list[str], updates: list[list[str]]) -> list[str]:
    return [*current, *(each for update in updates for each in ["+", *update])]


class Plain(TypedDict, total=False):
    log: list[str]


class Joined(TypedDict, total=False):
    log: Annotated[list[str], joined]


class Batched(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(all_joined)]


class Number(TypedDict, total=False):
    log: Annotated[int, operator.add]


class Text(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: str


class Several(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    n: Annotated[list[str], operator.add]


class Topics(TypedDict, total=False):
    n: Annotated[list[int], Topic(int)]


class Gone(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


PAIR = [(START, "a"), (START, "b"), ("a", "c")]


@pytest.mark.parametrize(
    ("schema", "idle", "still_open"),
    [
        (Plain, ["b"], ["b"]),
        (Joined, ["a", "b", "|", "a", "|", "b"], ["a", "|", "b"]),
        (Batched, ["a", "b", "+", "a", "+", "b"], ["a", "+", "b"]),
    ],
    ids=["taken away", "another", "delta"],
)
async def test_another_reducer(saver: BaseCheckpointSaver, schema: Any, idle: Any, still_open: Any) -> None:
    """P15: a key whose reducer is added, taken away or replaced keeps its value, if the value fits."""
    old = line(Log, "a", "b", saver=saver)
    await old.ainvoke({}, "idle")
    await failed(old, "b", given={}, thread="open")
    new = line(schema, "a", "b", saver=saver)
    assert (await new.aget_state("idle")).values == {"log": ["a", "b"]}
    assert (await new.ainvoke({}, "idle"))["log"] == idle
    assert (await new.ainvoke(None, "open"))["log"] == still_open and ran[-1:] == ["b"]
    assert (await new.aget_state("idle")).changed == ()


async def test_a_reducer_is_added(saver: BaseCheckpointSaver) -> None:
    """P15: a key that gets a reducer folds into the stored value; a None there counts as no value."""
    old = line(Plain, "a", "b", saver=saver)
    await old.ainvoke({}, "t")
    await built(Plain, {"a": says("a", {"log": None})}, [(START, "a")], saver).ainvoke({}, "none")
    new = line(Log, "a", "b", saver=saver)
    assert (await new.ainvoke({}, "t"))["log"] == ["b", "a", "b"]
    assert (await new.ainvoke({}, "none"))["log"] == ["a", "b"]


async def test_recorded_updates_are_folded_by_the_new_reducer(saver: BaseCheckpointSaver) -> None:
    """P15: the recorded update of a finished sibling is folded by the reducer that the code has now."""
    nodes = {name: says(name) for name in "abc"}
    await failed(built(Log, nodes, PAIR, saver), "b", given={"log": ["in"]})
    assert (await built(Joined, nodes, PAIR, saver).ainvoke(None, "t"))["log"] == ["in", "|", "a", "|", "b", "|", "c"]
    assert ran == ["b", "c"]


@pytest.mark.parametrize("still_open", [False, True], ids=["idle", "open"])
async def test_an_input_replaces_a_value_that_does_not_fit(saver: BaseCheckpointSaver, still_open: bool) -> None:
    """P15: a value that does not fit is only in the way of calls that do not replace it."""
    old = line(Log, "a", "b", saver=saver)
    await (failed(old, "b", given={"n": 1}) if still_open else old.ainvoke({"n": 1}, "t"))
    new = line(Text, "a", "b", saver=saver)
    ran.clear()
    state = await new.aget_state("t")
    assert of(state) == [("key", "n", "all")] and state.values["n"] == 1
    for given in (None, {"log": ["x"]}, Command(update={"log": ["x"]})):
        with pytest.raises(
            GraphChangedError, match="'n' holds a value of type int, which does not fit str.*a new input with key 'n'"
        ):
            await new.ainvoke(given, "t")
    with pytest.raises(GraphChangedError):
        await new.aupdate_state("t", {"log": ["x"]}, as_node="a")
    assert ran == [] and (await new.aget_state("t")).values == state.values
    assert (await new.ainvoke({"n": "two"}, "t"))["n"] == "two" and ran == ["a", "b"]
    assert of(await new.aget_state("t")) == []
    old_ones = [each for each in await states(new) if each.values.get("n") == 1 and each.next != ("__start__",)]
    assert [of(each) for each in old_ones] == [[("key", "n", "all")]] * (2 if still_open else 3)


async def test_an_edit_replaces_a_value_that_does_not_fit(saver: BaseCheckpointSaver) -> None:
    """P15: an update by hand replaces it too, and so does an update of an open superstep."""
    old = line(Log, "a", "b", saver=saver)
    await old.ainvoke({"n": 1}, "idle")
    await failed(old, "b", given={"n": 1}, thread="open")
    new = line(Text, "a", "b", saver=saver)
    await new.aupdate_state("idle", {"n": "two"}, as_node="b")
    assert (await new.aget_state("idle")).values == {"log": ["a", "b"], "n": "two"}
    with pytest.raises(GraphChangedError):
        await new.ainvoke(None, "open")
    await failed(new, "b", given=Command(update={"n": "two"}), thread="open")
    assert of(await new.aget_state("open")) == []
    assert await new.ainvoke(None, "open") == {"log": ["a", "b"], "n": "two"}


async def test_a_reducer_folds_no_value_that_does_not_fit(saver: BaseCheckpointSaver) -> None:
    """P15: an input to a key with a reducer does not replace the value, unless it is an `Overwrite`."""
    await line(Log, "a", saver=saver).ainvoke({"n": 1}, "t")
    new = line(Several, "a", saver=saver)
    with pytest.raises(
        GraphChangedError, match="'n' had no reducer and has a reducer for list.*an Overwrite for key 'n'"
    ):
        await new.ainvoke({"n": ["x"]}, "t")
    assert (await new.ainvoke({"n": Overwrite(["x"])}, "t"))["n"] == ["x"]


async def test_a_channel_of_another_kind(saver: BaseCheckpointSaver) -> None:
    """P15: a value that the channel cannot take stays stored until an input replaces it."""
    topics = built(Topics, {"a": says("a", {"n": 1})}, [(START, "a")], saver)
    await topics.ainvoke({}, "t")
    new = built(Log, {"a": says("a")}, [(START, "a")], saver)
    assert of(await new.aget_state("t")) == [("key", "n", "all")]
    with pytest.raises(GraphChangedError, match="'n' had a Topic and has no reducer"):
        await new.ainvoke({}, "t")
    assert (await topics.aget_state("t")).values == {"n": [1]}
    assert (await new.ainvoke({"n": 2}, "t")) == {"log": ["a"], "n": 2}


@pytest.mark.parametrize("still_open", [False, True], ids=["idle", "open"])
async def test_removed_keys_go(saver: BaseCheckpointSaver, still_open: bool) -> None:
    """P15: `removed=` lets a stored value go with the next superstep, and not before; recorded writes to it too."""
    nodes = {"a": says("a", {"n": 2}), "b": says("b"), "c": says("c")}
    old = built(Log, nodes, PAIR, saver)
    await (failed(old, "b", given={"n": 1}) if still_open else old.ainvoke({"n": 1}, "t"))
    kept, new = built(Gone, nodes, PAIR, saver), built(Gone, nodes, PAIR, saver, removed=["n"])
    assert (await kept.aget_state("t")).unknown == {"n": 1 if still_open else 2}
    assert (await new.aget_state("t")).unknown == {}
    assert (await old.aget_state("t")).values["n"] == (1 if still_open else 2)
    nodes["a"] = says("a")
    new = built(Gone, nodes, PAIR, saver, removed=["n"])
    await new.ainvoke(None if still_open else {}, "t")
    assert "n" not in (await old.aget_state("t")).values


async def test_an_input_that_is_not_applied_yet(saver: BaseCheckpointSaver) -> None:
    """P15: a pending input with a removed key is refused, unless the key is declared as removed; a new input replaces
    it. A state of one value, which is a dict, has no keys."""
    nodes = {"a": says("a")}
    await built(Log, nodes, [(START, "a")], saver).aupdate_state("t", {"n": 1, "log": ["in"]}, as_node="__input__")
    kept = built(Gone, nodes, [(START, "a")], saver)
    assert of(await kept.aget_state("t")) == [("key", "n", "resume")]
    with pytest.raises(GraphChangedError, match="not applied yet holds key 'n'"):
        await kept.ainvoke(None, "t")
    new = built(Gone, nodes, [(START, "a")], saver, removed=["n"])
    assert await new.ainvoke(None, "t") == {"log": ["in", "a"]}
    root = built(dict, {"a": lambda state: {**state, "m": 2}}, [(START, "a")], saver)
    await root.aupdate_state("root", {"n": 1}, as_node="__input__")
    assert await root.ainvoke(None, "root") == {"n": 1, "m": 2}


@pytest.mark.parametrize("names", ["n", [1], 5])
def test_removed_is_a_sequence_of_names(names: Any) -> None:
    """`removed=` names keys that the graph does not have."""
    with pytest.raises(GraphValidationError, match="removed is a sequence of names"):
        line(Log, "a", saver=None, removed=names)
    with pytest.raises(GraphValidationError, match="removed names 'n', which is a key"):
        line(Log, "a", saver=None, removed=["n"])


@pytest.mark.parametrize("how", ["input", "edit", "END"])
async def test_a_new_input_discards_a_pending_node_that_is_gone(saver: BaseCheckpointSaver, how: str) -> None:
    """P15: a thread with a pending task of a removed node is shown with its question, is not resumed, and accepts
    a new input, after which nothing is left of the task."""
    old = built(Log, {"a": says("a"), "b": asks("b")}, [(START, "a"), ("a", "b")], saver)
    await old.ainvoke({}, "t")
    asked = await old.aget_state("t")
    new = line(Log, "a", saver=saver)
    state = await new.aget_state("t")
    assert (state.next, state.interrupts, state.values) == (asked.next, asked.interrupts, asked.values)
    assert [task.id for task in state.tasks] == [task.id for task in asked.tasks]
    assert of(state) == [("node", "b", "resume")]
    ran.clear()
    for given in (None, Command(resume="yes")):
        with pytest.raises(GraphChangedError, match="a task of node 'b' is pending.*a new input, which is accepted"):
            await new.ainvoke(given, "t")
    with pytest.raises(GraphChangedError):
        await new.aupdate_state("t", {"n": 1}, as_node="a")
    assert ran == [] and await new.aget_state("t") == state
    if how == "input":
        await new.ainvoke({}, "t")
    else:
        await new.aupdate_state(
            "t", {"log": []} if how == "edit" else None, as_node="__input__" if how == "edit" else END
        )
    for graph in (new, old):
        state = await graph.aget_state("t")
        assert (state.changed, state.interrupts) == ((), ())
        assert state.next == (("__start__",) if how == "edit" else ())
    assert [each.next for each in await states(new) if "b" in each.next] == [("b",)]


async def test_the_question_of_a_handler_whose_node_is_gone() -> None:
    """P15: so is the question that the node's error handler has asked, whose id the code does not have either."""

    def handle(state: Any) -> Any:
        return {"log": [interrupt("retry?")]}

    def fails(state: Any) -> Any:
        raise Stopped

    saver = InMemorySaver()
    await built(Log, {"a": (fails, {"error_handler": handle})}, [(START, "a")], saver).ainvoke({}, "t")
    state = await line(Log, "b", saver=saver).aget_state("t")
    assert ([each.value for each in state.interrupts], of(state)) == (["retry?"], [("node", "a", "resume")])


async def test_pending_sends_to_a_node_that_is_gone(saver: BaseCheckpointSaver) -> None:
    """P15: the same for sends. An update as END keeps the results that siblings have."""

    def graph(*workers: str) -> Any:
        builder = StateGraph(Log).add_node("a", lambda state: None).add_edge(START, "a")
        for name in workers:
            builder.add_node(name, lambda arg: says(str(arg))({}))
        builder.add_conditional_edges("a", lambda state: [Send("v", "1"), Send("w", "2"), Send("v", "3")])
        return builder.compile(saver, blocking=False)

    for thread in ("input", "end"):
        await failed(graph("v", "w"), "2", given={}, thread=thread)
    new = graph("w")
    state = await new.aget_state("end")
    assert of(state) == [("node", "v", "resume")] and [task.name for task in state.tasks] == ["v", "w", "v"]
    with pytest.raises(GraphChangedError, match="a send to node 'v' is pending"):
        await new.ainvoke(None, "end")
    await new.aupdate_state("end", None, as_node=END)
    assert (await new.aget_state("end")).values == {"log": ["1", "3"]}
    idle = line(Log, "x", saver=saver)
    assert (await idle.ainvoke({}, "input"))["log"] == ["x"]
    assert [(await graph("v", "w").aget_state(thread)).next for thread in ("input", "end")] == [(), ()]


async def test_a_complete_join_whose_edges_are_gone_runs(saver: BaseCheckpointSaver) -> None:
    """P15: what is pending runs, also if the edges that led there have changed; new edges hold from there."""
    nodes = {name: says(name) for name in "abcd"}
    old = built(Log, nodes, [(START, "a"), (START, "b"), (["a", "b"], "c")], saver)
    await failed(old, "c", given={})
    before = await old.aget_state("t")
    new = built(Log, nodes, [(START, "a"), ("a", "b"), ("b", "c"), ("c", "d")], saver)
    state = await new.aget_state("t")
    assert (state.next, state.changed, state.tasks[0].id) == (("c",), (), before.tasks[0].id)
    assert (await new.ainvoke(None, "t"))["log"] == ["a", "b", "c", "d"] and ran == ["c", "d"]
    assert (await old.aget_state("t")).next == () == (await new.aget_state("t")).next
    await failed(old, "c", given={})
    assert (await built(Log, nodes, [(START, "d")], saver).ainvoke({}, "t"))["log"][-1] == "d" and ran == ["d"]
    assert (await old.aget_state("t")).next == ()


async def test_recorded_edges_to_a_join_that_is_gone(saver: BaseCheckpointSaver) -> None:
    """P15: a join that recorded results complete, and that does not exist any more, is refused and not forgotten."""
    nodes = {name: says(name) for name in "abcd"}
    old = built(Log, nodes, [(START, "a"), (START, "b"), (START, "d"), (["a", "b"], "c")], saver)
    await failed(old, "d", given={})
    new = built(Log, nodes, [(START, "a"), (START, "b"), (START, "d"), ("a", "c")], saver)
    assert of(await new.aget_state("t")) == [("node", "c", "resume")]
    with pytest.raises(GraphChangedError, match="whose edge leads to node 'c'"):
        await new.ainvoke(None, "t")
    assert sorted((await new.ainvoke({}, "t"))["log"]) == ["a", "b", "c", "d"]
    await failed(old, "d", given={}, thread="u")
    assert sorted((await old.ainvoke(None, "u"))["log"]) == ["a", "b", "c", "d"]


async def test_a_deferred_join_that_is_so_no_longer(saver: BaseCheckpointSaver) -> None:
    """P15: an incomplete join waits for the same names if its node becomes deferred, or is so no longer."""
    nodes = {name: says(name) for name in "abc"}
    edges = [(START, "a"), ("a", "b"), (["a", "b"], "c")]
    plain = built(Log, nodes, edges, saver)
    deferred = built(Log, {**nodes, "c": (says("c"), {"defer": True})}, edges, saver)
    for old, new in ((plain, deferred), (deferred, plain)):
        await failed(old, "b", given={"log": Overwrite([])})
        assert (await new.ainvoke(None, "t"))["log"] == ["a", "b", "c"]
