"""Stored threads and changed code: which changes are compatible, and which are refused before anything runs."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, NodeBuilder, Pregel, Send, StateGraph
from pregel_async.channels import LastValue, Topic
from pregel_async.errors import GraphChangedError, GraphRecursionError, PregelError

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::pregel_async.errors.UnknownStoredKeyWarning"),  # see test_unknown_keys.py
]


class Old(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: int
    gone: str


class New(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: int
    added: str
    tags: Annotated[list[str], operator.add]


class OtherType(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: str


class OtherKind(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: Annotated[list[int], Topic(int)]


class OtherReducedType(TypedDict, total=False):
    log: Annotated[int, operator.add]
    count: int


class WiderType(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    count: int | str


ran: list[str] = []


def graph(schema: Any, *names: str, saver: Any, edges: Any = None) -> Any:
    def says(name: str) -> Any:
        return lambda state: ran.append(name) or {"log": [name]}

    made = StateGraph(schema).add_sequence([(name, says(name)) for name in names]).add_edge(START, names[0])
    if edges is not None:
        edges(made)
    return made.compile(saver, blocking=False)


async def stop(made: Any, limit: int, given: Any = None) -> None:
    ran.clear()
    with pytest.raises(GraphRecursionError):
        await made.ainvoke(
            given or {"count": 1, "gone": "kept"}, {"configurable": {"thread_id": "t"}, "recursion_limit": limit}
        )


async def test_new_keys_start_unwritten(saver: BaseCheckpointSaver) -> None:
    """New keys of changed code start unwritten (a reducer with its empty value)."""
    await stop(graph(Old, "a", "b", saver=saver), 1)
    seen: list[Any] = []

    def look(made: Any) -> None:
        made.add_node("look", lambda state: seen.append(dict(state))).add_edge("b", "look")

    new = graph(New, "a", "b", saver=saver, edges=look)
    assert (await new.aget_state("t")).values == {"log": ["a"], "count": 1, "tags": []}
    assert await new.ainvoke(None, "t") == {"log": ["a", "b"], "count": 1, "tags": []}
    assert seen == [{"log": ["a", "b"], "count": 1, "tags": []}]


async def test_a_removed_keys_value_is_kept(saver: BaseCheckpointSaver) -> None:
    """P15: a removed key's value is kept and shown separately: code that has the key again finds it."""
    old = graph(Old, "a", "b", "c", saver=saver)
    await stop(old, 1)
    new = graph(New, "a", "b", "c", saver=saver)
    await stop_resumed(new, 1)
    state = await new.aget_state("t")
    assert ("gone" in state.values, state.unknown) == (False, {"gone": "kept"})
    assert (await old.aget_state("t")).values == {"log": ["a", "b"], "count": 1, "gone": "kept"}
    assert await old.ainvoke(None, "t") == {"log": ["a", "b", "c"], "count": 1, "gone": "kept"}


async def stop_resumed(made: Any, limit: int) -> None:
    with pytest.raises(GraphRecursionError):
        await made.ainvoke(None, {"configurable": {"thread_id": "t"}, "recursion_limit": limit})


@pytest.mark.parametrize(
    ("schema", "name"),
    [(OtherType, "count"), (OtherKind, "count"), (OtherReducedType, "log")],
    ids=["type", "kind", "reduced"],
)
@pytest.mark.parametrize("given", [None, {}], ids=["resume", "input"])
async def test_a_changed_type_or_kind(saver: BaseCheckpointSaver, schema: Any, name: str, given: Any) -> None:
    """A changed type or channel kind is a GraphChangedError that names it, before anything runs or is
    stored. The state can be read, and shows what has changed."""
    old = graph(Old, "a", "b", saver=saver)
    await stop(old, 1)
    before = await old.aget_state("t")
    new = graph(schema, "a", "b", saver=saver)
    with pytest.raises(GraphChangedError, match=f"'t'.*'{name}'") as caught:
        await new.ainvoke(given, "t")
    assert (caught.value.thread_id, caught.value.name) == ("t", name)
    assert isinstance(caught.value, PregelError)
    (shown,) = (await new.aget_state("t")).changed
    assert (shown,) == caught.value.mismatches
    assert (shown.kind, shown.name, shown.blocks) == ("key", name, "all")
    assert ran == ["a"]
    assert await old.aget_state("t") == before
    assert await old.ainvoke(None, "t") == {"log": ["a", "b"], "count": 1, "gone": "kept"}


async def test_a_wider_type_fits(saver: BaseCheckpointSaver) -> None:
    """A changed type is compatible if the stored value fits it."""
    await stop(graph(Old, "a", "b", saver=saver), 1)
    assert (await graph(WiderType, "a", "b", saver=saver).ainvoke(None, "t"))["log"] == ["a", "b"]


async def test_a_pending_node_that_was_removed(saver: BaseCheckpointSaver) -> None:
    """A pending task of a removed node is a GraphChangedError naming it, before anything runs."""
    old = graph(Old, "a", "b", "c", saver=saver)
    await stop(old, 1)
    new = graph(Old, "a", "c", saver=saver)
    with pytest.raises(GraphChangedError, match="'b'") as caught:
        await new.ainvoke(None, "t")
    assert caught.value.name == "b"
    state = await new.aget_state("t")
    assert (state.next, state.values) == (("b",), {"log": ["a"], "count": 1, "gone": "kept"})
    assert [(each.kind, each.name, each.blocks) for each in state.changed] == [("node", "b", "resume")]
    assert ran == ["a"]
    assert await old.ainvoke(None, "t") == {"log": ["a", "b", "c"], "count": 1, "gone": "kept"}


async def test_a_pending_send_to_a_removed_node(saver: BaseCheckpointSaver) -> None:
    """A pending send to a removed node is a GraphChangedError too."""

    def fan_out(made: Any) -> None:
        made.add_node("w", lambda arg: {"log": [arg]}).add_conditional_edges(
            "a", lambda state: [Send("w", "1"), Send("w", "2")]
        )

    old = graph(Old, "a", saver=saver, edges=fan_out)
    await stop(old, 1)
    with pytest.raises(GraphChangedError, match="'w'") as caught:
        await graph(Old, "a", saver=saver).ainvoke(None, "t")
    assert caught.value.name == "w"
    assert (await old.ainvoke(None, "t"))["log"] == ["a", "1", "2"]


async def test_a_pending_join_of_a_removed_node(saver: BaseCheckpointSaver) -> None:
    """A task that a complete join is waiting to run is one too."""

    def join(made: Any) -> None:
        made.add_node("x", lambda state: {"log": ["x"]}).add_node("j", lambda state: {"log": ["j"]})
        made.add_edge(START, "x").add_edge(["a", "x"], "j")

    def no_join(made: Any) -> None:
        made.add_node("x", lambda state: {"log": ["x"]}).add_edge(START, "x")

    old = graph(Old, "a", saver=saver, edges=join)
    await stop(old, 1)
    assert (await old.aget_state("t")).next == ("j",)
    with pytest.raises(GraphChangedError, match="'j'"):
        await graph(Old, "a", saver=saver, edges=no_join).ainvoke(None, "t")
    assert (await old.ainvoke(None, "t"))["log"] == ["a", "x", "j"]


async def test_a_node_that_is_not_pending_may_be_removed(saver: BaseCheckpointSaver) -> None:
    """Only pending tasks matter: other nodes may be added, removed and renamed."""
    await stop(graph(Old, "a", "b", "c", saver=saver), 1)
    new = graph(Old, "b", "d", saver=saver)
    assert await new.ainvoke(None, "t") == {"log": ["a", "b", "d"], "count": 1, "gone": "kept"}


async def test_a_finished_thread_under_a_new_graph(saver: BaseCheckpointSaver) -> None:
    """A finished thread continues under a different graph, with the keys that both have."""
    await graph(Old, "a", saver=saver).ainvoke({"count": 1}, "t")
    assert await graph(New, "z", saver=saver).ainvoke({"added": "x"}, "t") == {
        "log": ["a", "z"],
        "count": 1,
        "added": "x",
        "tags": [],
    }


async def test_a_join_that_gained_a_start(saver: BaseCheckpointSaver) -> None:
    """A join with other starts is another channel: the progress of one does not complete the other."""

    def joined(*starts: str) -> Any:
        def edges(made: Any) -> None:
            for name in ("x", "y"):
                made.add_node(name, lambda state, name=name: {"log": [name]})
            made.add_node("j", lambda state: {"log": ["j"]}).add_edge("b", "x").add_edge("x", "y").add_edge(
                list(starts), "j"
            )

        return edges

    await stop(graph(Old, "a", "b", saver=saver, edges=joined("a", "x")), 2)
    new = graph(Old, "a", "b", saver=saver, edges=joined("a", "x", "y"))
    assert (await new.ainvoke(None, "t"))["log"] == ["a", "b", "x", "y"]


async def test_the_low_level_changed(saver: BaseCheckpointSaver) -> None:
    """The same for channels of raw Pregel."""

    def pregel(channel: Any) -> Pregel:
        return Pregel(
            nodes={"n": NodeBuilder().subscribe_only("in").write_to("out")},
            channels={"in": LastValue(int), "out": channel},
            input_channels="in",
            output_channels="out",
            checkpointer=saver,
            blocking=False,
        )

    assert await pregel(LastValue(int)).ainvoke(1, "t") == 1
    with pytest.raises(GraphChangedError, match="'out' had no reducer and has a Topic"):
        await pregel(Topic(int)).ainvoke(2, "t")
    with pytest.raises(GraphChangedError, match="'out'"):
        await pregel(LastValue(str)).ainvoke(2, "t")
    assert await pregel(LastValue(int)).ainvoke(2, "t") == 2


async def test_deferring_a_pending_node(saver: BaseCheckpointSaver) -> None:
    """A pending node that became deferred, or is so no longer, runs."""
    plain = graph(Old, "a", "b", saver=saver)
    made: Any = StateGraph(Old).add_node("a", lambda state: {"log": ["a"]})
    made.add_node("b", lambda state: {"log": ["b"]}, defer=True)
    deferred = made.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(saver, blocking=False)
    await stop(plain, 1)
    assert (await deferred.aget_state("t")).next == ("b",)
    assert (await deferred.ainvoke(None, "t"))["log"] == ["a", "b"]
    with pytest.raises(GraphRecursionError):
        await deferred.ainvoke({"count": 1}, {"configurable": {"thread_id": "t"}, "recursion_limit": 1})
    assert (await plain.ainvoke(None, "t"))["log"] == ["a", "b", "a", "b"]


async def test_values_that_do_not_match_the_annotation() -> None:
    """A node's value that does not match the annotation is what the thread holds: it can be read and the thread
    resumed. It is no sign that the graph has changed; a new annotation is."""

    class Written(TypedDict, total=False):
        n: int
        m: int

    class Changed(TypedDict, total=False):
        n: int
        m: list[int]

    def graph_of(schema: Any, saver: Any) -> Any:
        builder = StateGraph(schema).add_node("write", lambda state: {"n": "many", "m": 1}).add_edge(START, "write")
        return builder.add_node("again", lambda state: {"n": 5}).add_edge("write", "again").compile(saver)

    saver = InMemorySaver()
    graph = graph_of(Written, saver)
    await graph.ainvoke({}, "t", interrupt_after=["write"])
    assert (await graph.aget_state("t")).values == {"n": "many", "m": 1}
    assert await graph.ainvoke(None, "t") == {"n": 5, "m": 1}
    assert [state.values.get("n") async for state in graph.aget_state_history("t")] == [5, "many", None, None]
    changed = await graph_of(Changed, saver).aget_state("t")
    assert [each.name for each in changed.changed] == ["m"]
