"""Keys that were renamed, retyped and added, by declared rules, under idle and open threads."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict, cast

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import BaseModel

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async import START, Command, Send, StateGraph, interrupt
from pregel_async.channels import Topic
from pregel_async.errors import GraphChangedError, GraphValidationError, MigrationError, UnknownStoredKeyWarning
from pregel_async.types import INPUT, Added, Renamed, Retyped
from tests.upgrades.graphs import Stopped, built, failed, failing, of, ran, says, states

pytestmark = pytest.mark.anyio


def to_price(cents: int) -> str:
    return f"{cents / 100:.2f}"


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    name: str
    cents: int


class New(TypedDict, total=False):
    lines: Annotated[list[str], Renamed("log"), operator.add]
    customer: Annotated[str, Renamed("client", "name")]
    price: Annotated[str, Retyped(to_price, was="cents")]
    vat: Annotated[int, Added(19)]


def line(schema: Any, key: str, *names: str, saver: Any, **updates: Any) -> Any:
    nodes = {name: says(name, {key: [name], **updates.get(name, {})}) for name in names}
    return built(schema, nodes, list(zip((START, *names), names, strict=False)), saver)


PAIR: list[Any] = [(START, "a"), (START, "b"), (["a", "b"], "c")]


def fan(schema: Any, saver: Any, **updates: Any) -> Any:
    """Two nodes side by side, and one after them."""
    nodes = {name: says(name, updates.get(name, {})) for name in "abc"}
    return built(schema, nodes, PAIR, saver)


async def names_in(saver: BaseCheckpointSaver, thread: str = "t") -> set[str]:
    stored = await saver.aget_tuple(thread)
    assert stored is not None
    return {name for name in stored.checkpoint["channel_versions"] if not name.startswith(("branch", "join", "__"))}


make_schema: Any = TypedDict
"""For keys that a type checker cannot know."""

LONG = ["a message of some length " * 3] * 40
"""A list that is stored incrementally."""


async def test_an_idle_thread(saver: BaseCheckpointSaver) -> None:
    """P15: an idle thread has its values under the new names and in the new types, for each read and in its history;
    the next superstep stores these, and empties the old names."""
    old, new = line(Old, "log", "a", saver=saver), line(New, "lines", "a", saver=saver)
    await old.ainvoke({"name": "Ada", "cents": 250, "log": LONG}, "t")
    before = await saver.aget_tuple("t")
    expected = {"lines": [*LONG, "a"], "customer": "Ada", "price": "2.50", "vat": 19}
    state = await new.aget_state("t")
    assert (state.values, state.unknown, state.changed) == (expected, {}, ())
    assert [each.values.get("price") for each in await states(new)] == ["2.50", "2.50", None]
    assert [task.result for task in (await states(new))[1].tasks] == [{"lines": ["a"]}]
    assert await saver.aget_tuple("t") == before  # reading stores nothing
    assert await new.ainvoke({"customer": "Bob"}, "t") == {
        **expected,
        "lines": [*LONG, "a", "a"],
        "customer": "Bob",
    }
    assert await names_in(saver) == {"lines", "customer", "price", "vat"}
    assert (await new.aget_state("t")).values["lines"] == [*LONG, "a", "a"]
    assert await new.ainvoke({}, (await states(new))[-2].config) == {**expected, "lines": [*LONG, "a"]}


async def test_an_edit_stores_the_new_names(saver: BaseCheckpointSaver) -> None:
    """P15: an update by hand stores them too."""
    await line(Old, "log", "a", saver=saver).ainvoke({"name": "Ada", "cents": 250}, "t")
    new = line(New, "lines", "a", saver=saver)
    await new.aupdate_state("t", {"vat": 7}, as_node="a")
    assert (await new.aget_state("t")).values == {"lines": ["a"], "customer": "Ada", "price": "2.50", "vat": 7}
    assert await names_in(saver) == {"lines", "customer", "price", "vat"}


async def test_an_open_superstep(saver: BaseCheckpointSaver) -> None:
    """P15: recorded writes of finished siblings, and updates to the open superstep, follow the rules too."""
    old = fan(Old, saver, a={"name": "Bob", "cents": 300, "log": ["old"]})
    await failed(old, "b", given={"name": "Ada", "cents": 250})
    await failed(old, "b", given=Command(update={"cents": 275}))
    new = fan(New, saver, b={"lines": ["new"]})
    state = await new.aget_state("t")
    assert state.changed == () and state.values == {"lines": [], "customer": "Ada", "price": "2.75", "vat": 19}
    assert state.tasks[0].result == {"customer": "Bob", "price": "3.00", "lines": ["old"]}
    fork = state.config
    done = {"lines": ["old", "new"], "customer": "Bob", "price": "3.00", "vat": 19}
    assert await new.ainvoke(None, "t") == done and ran == ["b", "c"]
    assert await names_in(saver) == {"lines", "customer", "price", "vat"}
    forked = await fan(New, saver).ainvoke(None, fork)  # on the new branch, the superstep runs again
    assert forked == {"lines": [], "customer": "Ada", "price": "2.75", "vat": 19}


class Joined(TypedDict, total=False):
    log: Annotated[str, Retyped(" ".join), operator.add]


@pytest.mark.parametrize(("schema", "key"), [(New, "lines"), (Joined, "log")], ids=["renamed", "retyped"])
async def test_pending_sends_refer_to_changed_values(saver: BaseCheckpointSaver, schema: Any, key: str) -> None:
    """P15: a pending send that shares its argument with a renamed or retyped key is whole."""

    def graph(schema: Any, key: str) -> Any:
        builder = StateGraph(schema).add_node("a", says("a", {})).add_edge(START, "a")
        builder.add_node("w", lambda arg: says(f"w {arg['sent'] == LONG}", {})({}))
        builder.add_conditional_edges("a", lambda state: [Send("w", {"sent": state[key]})], ["w"])
        return builder.compile(saver, blocking=False)

    old = graph(Old, "log")
    failing.add("w True")
    with pytest.raises(Stopped):
        await old.ainvoke({"log": LONG}, "t")
    failing.clear()
    ran.clear()
    done = await graph(schema, key).ainvoke(None, "t")
    assert done[key] == (LONG if schema is New else " ".join(LONG)) and ran == ["w True"]


async def test_an_input_that_is_not_applied_yet(saver: BaseCheckpointSaver) -> None:
    """P15: an input that waits for an answer of START's router has the new names too."""

    def graph(schema: Any, key: str) -> Any:
        builder = StateGraph(schema).add_node("a", says("a", {key: ["a"]}))
        builder.add_conditional_edges(START, lambda state: str(interrupt("where?")), ["a"])
        return builder.compile(saver, blocking=False)

    done = {"lines": ["in", "a"], "price": "1.00", "vat": 19}
    await graph(Old, "log").ainvoke({"log": ["in"], "cents": 100}, "t")
    assert await graph(New, "lines").ainvoke(Command(resume="a"), "t") == done
    await line(Old, "log", "a", saver=saver).aupdate_state("u", {"log": ["in"], "cents": 100}, as_node=INPUT)
    assert await line(New, "lines", "a", saver=saver).ainvoke(None, "u") == done


async def test_the_value_that_was_written_last_counts(saver: BaseCheckpointSaver) -> None:
    """P15: after a rollback of the code, a thread may hold several names of a key."""
    old, new = line(Old, "log", "a", saver=saver), line(New, "lines", "a", saver=saver)
    await old.ainvoke({"name": "Ada"}, "t")
    await new.ainvoke({}, "t")
    with pytest.warns(UnknownStoredKeyWarning):
        await old.ainvoke({"name": "Bob"}, "t")
    assert (await new.ainvoke({}, "t"))["customer"] == "Bob"
    assert await names_in(saver) == {"lines", "customer", "vat"}


class Count(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


class Digits(TypedDict, total=False):
    n: Annotated[list[int], Retyped(lambda n: [int(digit) for digit in str(n)])]
    log: Annotated[list[str], operator.add]


class Undeclared(TypedDict, total=False):
    n: list[int]
    log: Annotated[list[str], operator.add]


async def test_a_recorded_write_of_another_type(saver: BaseCheckpointSaver) -> None:
    """P15: a finished sibling's recorded write of another type is converted or refused; it never enters the state."""
    await failed(fan(Count, saver, a={"n": 12}), "b", given={})
    undeclared = fan(Undeclared, saver)
    assert of(await undeclared.aget_state("t")) == [("key", "n", "resume")]
    with pytest.raises(
        GraphChangedError, match=r"'a' has finished and has written a value of type int to key 'n'.*Retyped"
    ):
        await undeclared.ainvoke(None, "t")
    assert ran == []
    assert (await fan(Digits, saver).ainvoke(None, "t"))["n"] == [1, 2]
    await failed(fan(Count, saver, a={"n": 12}), "b", given={}, thread="input")
    assert await undeclared.ainvoke({}, "input") == {"log": []}  # a new input discards it


async def test_an_update_does_not_hide_a_recorded_write(saver: BaseCheckpointSaver) -> None:
    """P15: an update to the open superstep replaces the value of the state, and not what a sibling has written."""
    await failed(fan(Count, saver, a={"n": 12}), "b", given={"n": 1})

    class Text(TypedDict, total=False):
        n: str
        log: Annotated[list[str], operator.add]

    new = fan(Text, saver)
    assert of(await new.aget_state("t")) == [("key", "n", "all"), ("key", "n", "resume")]
    with pytest.raises(GraphChangedError):
        await new.ainvoke(Command(update={"n": "two"}), "t")


async def test_an_update_of_another_type(saver: BaseCheckpointSaver) -> None:
    """P15: an update of the open superstep is a part of the state: a new input that does not replace it is refused, and
    a later update replaces it."""
    for thread, value in (("input", {"n": [1]}), ("update", Command(update={"n": [1]}))):
        await failed(fan(Count, saver), "a", "b", given={"log": []}, thread=thread)
        await failed(fan(Count, saver), "a", "b", given=Command(update={"n": 12}), thread=thread)
        new = fan(Undeclared, saver)
        for refused in ({}, None):
            with pytest.raises(GraphChangedError, match="'n'"):
                await new.ainvoke(refused, thread)
        await failed(new, "a", given=value, thread=thread)
        assert (await new.aget_state(thread)).changed == ()
        assert (await new.ainvoke(None, thread))["n"] == [1]


async def test_writes_that_never_fitted(saver: BaseCheckpointSaver) -> None:
    """Nodes' writes are not checked: a recorded write that did not fit when its task ran is no change."""
    graph = fan(Count, saver, a={"n": "many"})
    await failed(graph, "b", given={})
    assert (await graph.aget_state("t")).changed == ()
    assert await graph.ainvoke(None, "t") == {"n": "many", "log": []}
    await failed(graph, "b", given={}, thread="u")
    lax = built(Count, {name: says(name, {}) for name in "abc"}, PAIR, saver, validate_input=False)
    await failed(lax, "b", given=Command(update={"n": "some"}), thread="u")
    await failed(lax, "b", given=Command(update={"n": "few"}), thread="u")
    assert (await lax.aget_state("u")).changed == ()
    assert (await fan(Digits, saver).aget_state("t")).values["n"] == "many"


async def test_retyped_values_are_converted_once(saver: BaseCheckpointSaver) -> None:
    """P15: a rule applies to values that do not fit; what it made is stored, and fits."""
    await fan(Count, saver).ainvoke({"n": 12}, "t")
    new = fan(Digits, saver)
    assert (await new.aget_state("t")).values["n"] == [1, 2]
    for _ in range(2):
        assert (await new.ainvoke({}, "t"))["n"] == [1, 2]
    assert (await fan(Undeclared, saver).aget_state("t")).values["n"] == [1, 2]


class Total(TypedDict, total=False):
    n: Annotated[dict[str, int], Retyped(lambda n: {"sum": n}, update=lambda n: {"more": n}), operator.or_]
    log: Annotated[list[str], operator.add]


async def test_a_retyped_key_with_a_reducer(saver: BaseCheckpointSaver) -> None:
    """P15: the value and recorded updates of a key with a reducer have functions of their own."""

    class Sum(TypedDict, total=False):
        n: Annotated[int, operator.add]

    await failed(fan(Sum, saver, a={"n": 2}), "b", given={"n": 1})
    assert (await fan(Total, saver).ainvoke(None, "t"))["n"] == {"sum": 1, "more": 2}


async def test_a_retyped_key_of_another_kind(saver: BaseCheckpointSaver) -> None:
    """P15: `Retyped` takes a value of a channel that holds several, too."""

    class Topics(TypedDict, total=False):
        n: Annotated[list[int], Topic(int, accumulate=True)]

    class Sum(TypedDict, total=False):
        n: Annotated[int, Retyped(sum)]
        log: Annotated[list[str], operator.add]

    await built(
        Topics, {"a": says("a", {"n": 1}), "b": says("b", {"n": 2})}, [(START, "a"), (START, "b")], saver
    ).ainvoke({}, "t")
    assert (await fan(Sum, saver).ainvoke({}, "t"))["n"] == 3


async def test_a_rule_that_fails(saver: BaseCheckpointSaver) -> None:
    """P15: a function that raises fails runs with an error that names rule, graph, thread and checkpoint. Reads show the
    stored value, with the failure."""

    class Failing(TypedDict, total=False):
        n: Annotated[list[int], Retyped(lambda n: [{}[n]])]

    await fan(Count, saver).ainvoke({"n": 12}, "t")
    new = fan(Failing, saver)
    at = (await fan(Count, saver).aget_state("t")).config["configurable"]["checkpoint_id"]
    state = await new.aget_state("t")
    assert (state.values["n"], state.changed[0].name) == (12, "Retyped of key 'n'")
    assert state.changed[0].reason == "Retyped of key 'n' raised KeyError: 12"
    for call in (lambda: new.ainvoke({}, "t"), lambda: new.aupdate_state("t", {})):
        with pytest.raises(MigrationError, match=f"Retyped of key 'n' of graph 'StateGraph'.*'t'.*{at}: KeyError") as e:
            await call()
        assert isinstance(e.value.__cause__, KeyError)
    assert (await fan(Count, saver).aget_state("t")).values["n"] == 12


@dataclass
class Point:
    x: int


async def test_a_class_that_is_gone() -> None:
    """P15: the function gets a stored object whose class is not registered as it is stored."""

    class Points(TypedDict, total=False):
        p: Point

    class Plain(TypedDict, total=False):
        p: Annotated[int, Retyped(lambda stored: stored.fields["x"])]

    saver = InMemorySaver(codec=Codec())
    await fan(Points, saver).ainvoke({"p": Point(3)}, "t")
    assert (await fan(Plain, saver).ainvoke({}, "t"))["p"] == 3


async def test_added_values(saver: BaseCheckpointSaver) -> None:
    """P15: threads that lack a key have its declared value, and so have new ones; each has a copy."""

    class Tagged(TypedDict, total=False):
        tags: Annotated[list[str], Added(["new"]), operator.add]
        log: Annotated[list[str], operator.add]

    await failed(fan(Count, saver), "b", given={})
    new = fan(Tagged, saver, a={"tags": ["a"]}, b={"tags": ["b"]})
    assert (await new.aget_state("t")).values == {"tags": ["new"], "log": []}
    assert (await new.ainvoke(None, "t"))["tags"] == ["new", "b"]
    assert (await new.ainvoke({"tags": ["in"]}, "u"))["tags"] == ["new", "in", "a", "b"]
    assert (await fan(Tagged, saver).aget_state("u")).values["tags"] == ["new", "in", "a", "b"]
    assert (await fan(Tagged, None).ainvoke({}))["tags"] == ["new"]


@pytest.mark.parametrize("kind", ["dataclass", "pydantic"])
async def test_other_schemas(kind: str) -> None:
    """Marks work in dataclasses and pydantic models."""

    @dataclass
    class Data:
        customer: Annotated[str, Renamed("name")] = ""
        log: Annotated[list[str], Renamed("lines"), operator.add] = field(default_factory=list)

    class Model(BaseModel):
        customer: Annotated[str, Renamed("name")] = ""
        log: Annotated[list[str], Renamed("lines"), operator.add] = []

    class Before(TypedDict, total=False):
        name: str
        lines: Annotated[list[str], operator.add]

    saver = InMemorySaver()
    await fan(Before, saver, a={"lines": ["a"]}).ainvoke({"name": "Ada"}, "t")
    seen: list[Any] = []
    new = built(Data if kind == "dataclass" else Model, {"a": lambda state: seen.append(state)}, [(START, "a")], saver)
    assert await new.ainvoke({"log": ["b"]}, "t") == {"customer": "Ada", "log": ["a", "b"]}
    assert (seen[0].customer, seen[0].log) == ("Ada", ["a", "b"])


def test_invalid_declarations() -> None:
    """Former names are no keys of the graph and belong to one key; functions and values fit."""

    def graph(*hints: Any, **options: Any) -> Any:
        schema: Any = make_schema("schema", dict(zip("ab", hints, strict=False)), total=False)
        return built(schema, {"n": says("n", {})}, [(START, "n")], None, **options)

    renamed, wrong = Annotated[str, Renamed("x")], cast("Any", 3)
    for hints, options, message in (
        ((Annotated[str, Renamed("b")], str), {}, "key 'a' names 'b' as a former key, which is a key of the graph"),
        ((renamed, Annotated[str, Renamed("y", "x")]), {}, "key 'b' names 'x' as a former key, which is one of 'a'"),
        ((Annotated[str, Renamed("")],), {}, "is a sequence of names"),
        ((Annotated[str, Retyped(wrong)],), {}, "takes functions"),
        ((Annotated[str, Added(3)],), {}, "which does not fit"),
        ((renamed,), {"removed": ["x"]}, "removed names 'x', which is a former name of key 'a'"),
    ):
        with pytest.raises(GraphValidationError, match=message):
            graph(*hints, **options)


keys = st.sampled_from(["k1", "k2", "k3", "k4"])
values = st.one_of(st.integers(0, 300), st.text(max_size=3), st.lists(st.text(max_size=2), max_size=3))


@pytest.mark.one_loop
@drawn(st.dictionaries(keys, values, min_size=1), st.permutations(["k1", "k2", "k3", "k4"]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_renaming_everything_and_back(held: dict[str, Any], order: list[str], still_open: bool) -> None:
    """P15: all keys and nodes renamed, and renamed back, give the same thread, bytes and ids of the open superstep
    included."""

    def graph(saver: Any, ours: str, theirs: str) -> Any:
        schema = make_schema(
            "schema", {ours + key: Annotated[Any, Renamed(theirs + key)] for key in order}, total=False
        )
        node = asks if still_open else says("a", {})
        return built(schema, {ours + "n": (node, {"was": theirs + "n"})}, [(START, ours + "n")], saver)

    def asks(state: Any) -> Any:
        interrupt("?")

    def run(*names: tuple[str, str]) -> Any:
        saver = InMemorySaver()
        for at, (ours, theirs) in enumerate(names):
            made = graph(saver, ours, theirs)
            made.invoke({ours + key: value for key, value in held.items()} if at == 0 else {}, "t")
        state = graph(saver, "o", "p").get_state("t")
        ids = [task.id for task in state.tasks]
        return state.values, list(state.values), state.next, ids, state.unknown, state.changed

    there_and_back = run(("o", "p"), ("p", "o"), ("o", "p"))
    assert there_and_back == run(("o", "p"), ("o", "p"), ("o", "p"))
