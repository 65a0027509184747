"""Lists of messages: ids, replacement, removal, and recognition by shape."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import END, START, StateGraph
from pregel_async._core.program import _isolated_reducer
from pregel_async._message_ids import FOLD, derive_message_id, fingerprint
from pregel_async.errors import GraphValidationError, InvalidUpdateError, PregelError
from pregel_async.messages import (
    REMOVE_ALL_MESSAGES,
    InvalidMessageError,
    MessageNotFoundError,
    MessagesState,
    RemoveMessage,
    add_messages,
    fold_messages,
)

ROOT = Path(__file__).parents[2]

HI = "1069b45c68f48cf884062c94a80d40fd"
"""What is in the id of "hi"."""


class Always:
    """Gives every message the same id."""

    def __init__(self, id: str) -> None:
        self.id = id

    def message_id(self, message: Any) -> str:
        return self.id


@contextmanager
def called(id: str) -> Generator[None]:
    token = FOLD.set(Always(id))
    try:
        yield
    finally:
        FOLD.reset(token)


def user(content: Any, id: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **({} if id is None else {"id": id}), **more}


def ids(messages: list[Any]) -> list[Any]:
    return [message["id"] if isinstance(message, dict) else message.id for message in messages]


@dataclasses.dataclass
class Plain:
    content: Any
    role: str = "user"
    id: str | None = None

    def __post_init__(self) -> None:
        if self.content == "made again":
            raise AssertionError(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    content: Any
    role: str = "user"
    id: str | None = None


class Struct(msgspec.Struct):
    content: Any
    type: str = "human"
    id: str | None = None


class FrozenStruct(msgspec.Struct, frozen=True):
    content: Any
    role: str = "user"
    id: str | None = None


class Model(pydantic.BaseModel):
    content: Any
    role: str = "user"
    id: str | None = None


class FrozenModel(pydantic.BaseModel, frozen=True, extra="allow"):
    content: Any
    role: str = "user"
    id: str | None = None


class Own:
    """An object of an unknown kind."""

    def __init__(self, content: Any, id: str | None = None) -> None:
        self.content, self.role, self.id = content, "user", id


CLASSES: list[Any] = [Plain, Frozen, Struct, FrozenStruct, Model, FrozenModel, Own]


def test_new_messages_are_appended_and_known_ones_replaced_in_place() -> None:
    """A message with a known id replaces the earlier one in place; others are appended."""
    left = [user("a", "1"), user("b", "2")]
    right = [user("c", "3"), user("B", "2"), user("C", "3")]
    assert add_messages(left, right) == [user("a", "1"), user("B", "2"), user("C", "3")]
    assert left == [user("a", "1"), user("b", "2")]


def test_a_message_is_removed_by_its_id() -> None:
    """`RemoveMessage(id)` deletes."""
    left = [user("a", "1"), user("b", "2"), user("c", "3")]
    assert add_messages(left, [RemoveMessage("1"), RemoveMessage(id="3")]) == [user("b", "2")]
    assert add_messages(left, RemoveMessage("2")) == [user("a", "1"), user("c", "3")]
    assert add_messages(left, {"type": "remove", "id": "2"}) == [user("a", "1"), user("c", "3")]
    assert add_messages(left, SimpleNamespace(type="remove", id="2", content="")) == [user("a", "1"), user("c", "3")]
    assert add_messages(left, [user("d", "4"), RemoveMessage("4")]) == left


def test_what_is_removed_and_comes_again_is_where_it_was() -> None:
    """A message that is removed and added in one update keeps its place; added in a later update it is appended."""
    left = [user("a", "1"), user("b", "2")]
    assert add_messages(left, [RemoveMessage("1"), user("A", "1")]) == [user("A", "1"), user("b", "2")]
    assert add_messages(left, [RemoveMessage("1"), user("A", "1"), RemoveMessage("1")]) == [user("b", "2")]
    later = add_messages(add_messages(left, RemoveMessage("1")), user("A", "1"))
    assert later == [user("b", "2"), user("A", "1")]


def test_all_messages_are_removed_up_to_the_mark() -> None:
    """All messages up to and including the mark are removed; later ones are folded as usual."""
    left = [user("a", "1"), user("b", "2")]
    everything = RemoveMessage(REMOVE_ALL_MESSAGES)
    assert REMOVE_ALL_MESSAGES == "__remove_all__"
    assert add_messages(left, everything) == []
    assert add_messages([], everything) == []
    assert add_messages(left, [user("x", "9"), everything, user("c", "3"), user("C", "3")]) == [user("C", "3")]
    assert add_messages(left, [everything, user("x", "9"), everything, user("y", "8")]) == [user("y", "8")]
    assert add_messages(left, [RemoveMessage("nobody"), everything]) == []
    with pytest.raises(MessageNotFoundError):
        add_messages(left, [everything, RemoveMessage("1")])


def test_what_is_not_there_cannot_be_removed() -> None:
    """Removing an unknown id raises a typed error, a ValueError as in LangGraph; the list is unchanged."""
    left = [user("a", "1")]
    for right in ([RemoveMessage("2")], [user("b", "2"), RemoveMessage("3")]):
        with pytest.raises(MessageNotFoundError) as caught:
            add_messages(left, right)
    assert caught.value.id == "3"
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, PregelError)
    assert "'3'" in str(caught.value)
    assert left == [user("a", "1")]
    with pytest.raises(InvalidMessageError):
        add_messages(left, {"role": "remove"})


@pytest.mark.parametrize("given", [(None, []), ([], None), ([None], []), ([], [None])])
def test_none_is_no_list_and_no_message(given: Any) -> None:
    """None as one of the arguments raises a ValueError."""
    with pytest.raises(ValueError) as caught:
        add_messages(*given)
    assert isinstance(caught.value, InvalidMessageError)


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        {},
        {"content": "no role"},
        object(),
        ("user",),
        ("user", "a", "b"),
        (1, "b"),
        SimpleNamespace(id=None),
        SimpleNamespace(role="user"),
        user("", id=["no", "id"]),
        b"",
    ],
)
def test_what_is_no_message_is_refused(wrong: Any) -> None:
    """A value that is no message raises an error that says what a message is."""
    for right in (wrong, [wrong], [user("a"), wrong]):
        with pytest.raises(InvalidMessageError) as caught:
            add_messages([], right)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, InvalidUpdateError)


@pytest.mark.anyio
async def test_what_is_no_message_is_refused_by_its_key() -> None:
    """In a run the error also names the key, which `add_messages` does not know."""
    graph = StateGraph(MessagesState).add_node("n", lambda state: None).add_edge(START, "n").compile()
    with pytest.raises(InvalidMessageError) as caught:
        await graph.ainvoke({"messages": [5]})
    assert caught.value.channel == "messages"
    assert "channel 'messages'" in caught.value.__notes__[0]


def test_one_message_and_shorthands() -> None:
    """An update may be a single message, a string, or pairs of role and content, as in LangGraph."""

    def made(right: Any) -> list[Any]:
        return [(m["role"], m["content"]) for m in add_messages([], right)]

    assert made("hi") == made(["hi"]) == made(user("hi")) == [("user", "hi")]
    assert made(("user", "hi")) == made([["user", "hi"]]) == made(("human", "hi")) == [("user", "hi")]
    assert made([("ai", "yes"), ("assistant", "no"), ("system", "s"), ("tool", [{"type": "text"}])]) == [
        ("assistant", "yes"),
        ("assistant", "no"),
        ("system", "s"),
        ("tool", [{"type": "text"}]),
    ]
    assert made(MappingProxyType(user("hi"))) == [("user", "hi")]
    assert add_messages(user("hi", "1"), user("ho", "2")) == [user("hi", "1"), user("ho", "2")]
    assert add_messages([{"type": "human", "content": "hi", "id": 7}], []) == [
        {"type": "human", "content": "hi", "id": 7}
    ]


def test_a_configured_reducer() -> None:
    """Called without lists, `add_messages` returns itself, so that the runtime recognizes it; a format is refused."""
    assert add_messages() is add_messages
    assert add_messages(format=None) is add_messages
    with pytest.raises(GraphValidationError, match="langchain-openai"):
        add_messages(format="langchain-openai")
    for half in ({"left": []}, {"right": []}):
        with pytest.raises(InvalidMessageError, match="missing"):
            add_messages(**half)


def test_outside_of_a_run_ids_are_random() -> None:
    """Outside a run ids are random, as there is no task to derive them from and two lists may be merged."""
    one, other = add_messages([], ["hi", "hi"]), add_messages([], "hi")
    assert len(set(ids(one + other))) == 3
    assert all(len(id) == 32 for id in ids(one + other))
    assert ids(add_messages(one, [])) == ids(one)


def test_the_content_of_a_message_is_the_same_in_every_process() -> None:
    """P2: a message's content key depends only on the message, in an order that is the same in all processes and
    versions."""
    given = [user("hi"), {"role": "ai", "content": [{"b": 1, "a": {"x", "y", "z"}}]}]
    code = f"from pregel_async._message_ids import fingerprint\nprint([fingerprint(m) for m in {given!r}])"
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == repr([fingerprint(message) for message in given])


def test_ids_are_kept_from_release_to_release() -> None:
    """P2: a replay after an upgrade makes the same ids."""
    assert fingerprint(user("hi")) == HI
    assert derive_message_id("task", "messages", 0, 0, HI) == "2dd3695b6bb2eea8c0dfa25902269ddc"


def test_a_fold_numbers_ids_that_it_meets_again() -> None:
    """Repeated ids are numbered, however many there are, in one update or several, and even if other ids look like the
    next numbers."""
    with called("id"):
        one = add_messages([], ["hi"] * 3)
        assert ids(one) == ["id", "id-2", "id-3"]
        assert ids(add_messages(one, ["hi", "ho"])) == [*ids(one), "id-4", "id-5"]
        taken = [user("other", "id-2"), user("third", "id")]
        assert ids(add_messages(taken, "hi")) == ["id-2", "id", "id-3"]
        # one that comes later in the same update is not taken for the one without an id before it
        assert add_messages([], ["hi", user("other", "id")])[1] == user("other", "id")


def test_an_id_is_not_made_again_in_the_update_that_removes_it() -> None:
    """An update that removes an id does not assign it again, so that readers do not confuse two messages."""
    with called("id"):
        one = add_messages([], ["hi"])
        assert ids(add_messages(one, [RemoveMessage("id"), "hi"])) == ["id-2"]
        assert ids(add_messages(one, [RemoveMessage(REMOVE_ALL_MESSAGES), "hi"])) == ["id-2"]


class Colour(Enum):
    RED = 1
    BLUE = 2


class Loose:
    pass


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("a"), user("b")),
        (user("1"), user(1)),
        (user(1), user(True)),
        (user(["a", "b"]), user(["a,b"])),
        (user("a", name="b"), user("a", nick="b")),
        (user({"a": "1:b"}), user({"a": "b"})),
        (user(None), user("None")),
        (user(Decimal("1")), user(Decimal("2"))),
        (user(UUID(int=1)), user(UUID(int=2))),
        (user(datetime(2024, 1, 1)), user(datetime(2024, 1, 2))),
        (user(Colour.RED), user("Colour.RED")),
        (user(Colour.RED), user(Colour.BLUE)),
        (user({1, 2}), user({1, 3})),
        (user(b"a"), user("a")),
        (user(Frozen("a")), user(Frozen("b"))),
        (Plain("a"), Plain("b")),
        (Struct("a"), Struct("b")),
        (Model(content="a"), Model(content="b")),
        (FrozenModel(content="a", mood="good"), FrozenModel(content="a")),
        (Own("a"), Own("b")),
        (Frozen("a"), FrozenStruct("a")),
    ],
)
def test_messages_that_differ_have_another_content(one: Any, other: Any) -> None:
    """Different messages have different content keys, so that an attempt or branch with another message does not reuse
    the id."""
    assert fingerprint(one) != fingerprint(other)


def test_equal_messages_have_equal_contents_whatever_their_order_or_address() -> None:
    """P2: differences between processes do not affect an id."""
    one = {"role": "user", "content": {"a": 1, "b": Loose()}}
    two = OrderedDict(content={"b": Loose(), "a": 1}, role="user")
    assert fingerprint(one) == fingerprint(two) == fingerprint({**one, "id": None})
    assert type(add_messages([], two)[0]) is OrderedDict


@pytest.mark.parametrize("make", CLASSES)
def test_a_message_without_an_id_is_copied_and_never_changed(make: Any) -> None:
    """P1: a message of any class without an id is copied, not changed."""
    mine = make(content=["x"])
    [kept] = add_messages([], mine)
    assert type(kept) is make and mine.id is None
    assert isinstance(kept.id, str) and kept.content == ["x"]
    first, second = ids(add_messages([kept], mine))
    assert first == kept.id != second
    assert add_messages([kept], [])[0] is kept
    with_id = make(content="y", id="1")
    assert add_messages([], with_id)[0] is with_id
    assert add_messages([with_id], RemoveMessage("1")) == []


def test_a_copy_is_not_made_by_the_class() -> None:
    """Copying does not call the class's code, which would run a second time on fields that it has already changed."""
    mine = Plain("x")
    mine.content = "made again"
    assert add_messages([], mine)[0].content == "made again"


def test_a_class_may_get_more_optional_fields() -> None:
    """P2: after a class gets an optional field, a replay makes the same ids."""
    one = msgspec.defstruct("IncrementalValue", [("role", str), ("id", str | None, None)])
    two = msgspec.defstruct("IncrementalValue", [("role", str), ("id", str | None, None), ("more", str | None, None)])
    assert fingerprint(one("user")) == fingerprint(two("user"))
    assert fingerprint(one("user")) != fingerprint(two("user", more=""))


def test_a_model_notes_that_it_has_an_id_now() -> None:
    """The copy of a pydantic model counts `id` as set, so that dumps of set fields contain it."""
    [kept] = add_messages([], Model(content="x"))
    assert kept.model_dump(exclude_unset=True) == {"content": "x", "id": kept.id}


def test_a_class_that_refuses_an_id_raises() -> None:
    """If the class refuses an id, the error contains its reason."""

    class Closed:
        role = "user"

        @property
        def id(self) -> None:
            return None

    with pytest.raises(InvalidMessageError, match="cannot be given one"):
        add_messages([], Closed())


def test_messages_of_an_earlier_list_get_ids() -> None:
    """Messages left by another reducer, or in the first value of a channel without an empty value, get ids."""
    for lone in (Plain("c"), {**user("c"), "id": None}, user("c"), "c"):
        assert len(ids(add_messages([lone], []))[0]) == 32
    left = [user("a"), "b", Plain("c"), user("d", "4")]
    got = add_messages(left, [RemoveMessage("4")])
    assert len(set(ids(got))) == 3 and None not in ids(got)
    assert left == [user("a"), "b", Plain("c"), user("d", "4")]


MESSAGES = st.builds(user, st.sampled_from("abc"), st.sampled_from([None, "1", "2", "3"]))
UPDATES = st.lists(
    MESSAGES | st.sampled_from(["1", "2", REMOVE_ALL_MESSAGES]).map(RemoveMessage) | st.just("a"), max_size=6
)


def attempt(call: Any) -> Any:
    try:
        return call()
    except MessageNotFoundError as error:
        return error.id


@given(st.lists(MESSAGES, max_size=5), st.lists(UPDATES, max_size=4))
def test_one_fold_of_many_updates_is_many_folds(start: list[Any], updates: list[Any]) -> None:
    """`fold_messages` gives the same result as single folds, and only avoids searching the list each time."""

    def one_by_one() -> list[Any]:
        value = add_messages(start, [])
        for update in updates:
            value = add_messages(value, update)
        return value

    with called("id"):
        assert attempt(lambda: fold_messages(start, updates)) == attempt(one_by_one)


@given(st.lists(MESSAGES, max_size=5), UPDATES)
def test_guarded_or_not_the_fold_is_the_same(start: list[Any], update: list[Any]) -> None:
    """The fold changes neither argument, keeps unaffected elements, and gives no id twice, with isolated arguments or
    plain ones."""
    with called("id"):
        left = add_messages([], start)
        before = repr((left, update))
        bare = attempt(lambda: add_messages(left, update))
        assert bare == attempt(lambda: _isolated_reducer(add_messages)(left, update))
    assert repr((left, update)) == before
    if isinstance(bare, list):
        assert bare is not left
        assert None not in ids(bare) and len(set(ids(bare))) == len(bare)
        assert all(
            any(kept is message for message in [*left, *update]) or kept["id"].partition("-")[0] == "id"
            for kept in bare
        )


def test_an_append_keeps_the_others_as_they_are() -> None:
    """P10: an append keeps the identity of the other elements, by which storage recognizes unchanged ones."""
    left = add_messages([], [user(n) for n in range(100)])
    got = add_messages(left, "one more")
    assert len(got) == 101 and all(a is b for a, b in zip(left, got))


class State(MessagesState, total=False):
    seen: list[str]


@pytest.mark.anyio
async def test_a_graph_of_messages(saver: BaseCheckpointSaver) -> None:
    """MessagesState can be extended; messages and removals are stored with any saver, without registration."""

    def answer(state: State) -> dict[str, Any]:
        return {
            "messages": [("assistant", f"{len(state['messages'])} so far"), RemoveMessage(state["messages"][0]["id"])]
        }

    graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").compile(saver)
    await graph.ainvoke({"messages": ["hi", "hi"]}, "t")
    result = await graph.ainvoke({"messages": user("again")}, "t")
    assert result == (await graph.aget_state("t")).values
    assert [message["content"] for message in result["messages"]] == ["2 so far", "again", "3 so far"]
    again = await graph.ainvoke({"messages": ["hi", "hi"]}, "another")
    assert not set(ids(again["messages"])) & set(ids(result["messages"]))


@pytest.mark.anyio
async def test_a_router_sees_the_ids_that_are_stored() -> None:
    """P2, P3: a router sees the stored ids, although its view has only its own node's writes and a sibling's come
    before them in the list."""
    seen: list[list[str]] = []

    def look(state: Any) -> str:
        seen.append(ids(state["messages"]))
        return END

    graph = (
        StateGraph(MessagesState)
        .add_node("a", lambda state: {"messages": ["from a", "from a"]})
        .add_node("b", lambda state: {"messages": ["from b", "start"]})
        .add_edge(START, "a")
        .add_edge(START, "b")
        .add_conditional_edges("b", look)
        .compile()
    )
    stored = ids((await graph.ainvoke({"messages": ["start"]}))["messages"])
    assert seen == [[stored[0], *stored[3:]]]


@pytest.mark.anyio
async def test_a_failed_removal_stops_the_superstep(saver: BaseCheckpointSaver) -> None:
    """P3, P9: the error of a failed removal is raised with channel and node, and the list is unchanged."""
    graph = (
        StateGraph(MessagesState)
        .add_node("remove", lambda state: {"messages": RemoveMessage("nobody")})
        .add_edge(START, "remove")
        .compile(saver)
    )
    with pytest.raises(MessageNotFoundError) as caught:
        await graph.ainvoke({"messages": ["hi"]}, "t")
    assert "'messages'" in caught.value.__notes__[0] and "'remove'" in caught.value.__notes__[0]
    assert [message["content"] for message in (await graph.aget_state("t")).values["messages"]] == ["hi"]


@pytest.mark.anyio
async def test_messages_of_a_class_are_isolated_and_stored() -> None:
    """P1, P11: a node's change to its input in place affects nothing, and a stored message keeps its class."""

    def spoil(state: Any) -> dict[str, Any]:
        state.messages[0].content.append("spoiled")
        state.messages.clear()
        return {"messages": [Plain("more")]}

    builder = StateGraph(Chat).add_node("spoil", spoil).add_edge(START, "spoil")
    mine = Plain(["kept"])
    graph = builder.compile(InMemorySaver())
    await graph.ainvoke({"messages": [mine]}, "t")
    first, second = (await graph.aget_state("t")).values["messages"]
    assert (type(first), first.content, type(second), second.content) == (Plain, ["kept"], Plain, "more")
    assert mine.id is None and mine.content == ["kept"]


class Chat(msgspec.Struct):
    messages: Annotated[list[Plain], add_messages()]


def test_it_loads_neither_langchain_nor_pydantic() -> None:
    """Messages are recognized by shape, without importing langchain or pydantic."""
    code = (
        "import sys; from pregel_async.messages import add_messages; add_messages([], 'hi'); "
        "sys.exit(any(name.partition('.')[0] in ('langchain_core', 'pydantic') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
