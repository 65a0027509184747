"""Long lists (P1, P10): iterating isolates all elements at once, and unchanged elements keep their identity."""

from __future__ import annotations

import copy
import json
import operator
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_savers import InMemorySaver
from checkpoint_savers.codec import Codec
from pregel_async import END, START, StateGraph
from pregel_async._core import isolation
from pregel_async._core.board import Board
from pregel_async._core.copying import ATOMS
from pregel_async._core.isolation import Copies, KnownCopiers, isolate
from pregel_async._core.ownership import own, own_fold
from pregel_async._core.superstep import update
from pregel_async.channels import LastValue
from tests.core.mutations import Instruction, Point, Table, Twins, instructions, parts, shape, values
from tests.core.scripted import program

LONG = 40


def flat(number: int) -> dict[str, Any]:
    return {"id": number, "role": "user", "content": f"message {number}"}


def nested(number: int) -> dict[str, Any]:
    return {**flat(number), "tool_calls": [{"name": "search", "args": {"query": number}}]}


@contextmanager
def python_calls(counts: Counter[str]) -> Generator[None]:
    """Count calls of Python functions, and calls of C functions that Python code makes."""

    def count(frame: Any, event: str, _: object) -> None:
        counts[event] += 1

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def calls_of(do: Callable[[], object]) -> int:
    counts: Counter[str] = Counter()
    with python_calls(counts):
        do()
    return counts["call"] + counts["c_call"]


def exhaust(value: Any) -> None:
    for _ in value:
        pass


class Readers:
    """Gives isolated copies of one state to several readers, as a board does."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.known: KnownCopiers = {}

    def read(self) -> Any:
        return isolate(self.state.copy(), self.known)


@pytest.fixture
def all_lists_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_SHORT", 0)


@pytest.mark.usefixtures("all_lists_are_long")
class TestLaws:
    """Random programs, with copiers that earlier readers and earlier lists have found."""

    @settings(deadline=None)
    @given(
        items=st.lists(values, min_size=1, max_size=5),
        more=st.lists(values, max_size=3),
        program=instructions,
        first=st.sampled_from([None, -1, 0, slice(None), "iterate"]),
    )
    def test_the_state_and_other_readers(
        self, items: list[Any], more: list[Any], program: list[Instruction], first: Any
    ) -> None:
        """P1: no program that a node runs on its input reaches the state or another reader, also after the list has
        grown."""
        old = own(items)
        readers = Readers({"a": old})
        exhaust(readers.read()["a"])
        readers.state["a"] = grown = [*old, *own(more)]
        before, ids = shape(grown), [id(part) for part in parts(grown)]
        state = readers.read()
        if first == "iterate":
            exhaust(state["a"])
        elif first is not None:
            state["a"][first]
        one = Twins(state, copy.deepcopy({"a": [*items, *more]}))
        one.run(program, compare=False)
        own(state["a"], "", state) if "a" in state else None
        other = readers.read()
        assert shape([*other["a"]]) == before
        assert shape(grown) == before
        assert [id(part) for part in parts(grown)] == ids

    @settings(deadline=None)
    @given(items=st.lists(values, min_size=1, max_size=5), program=instructions, later=instructions)
    def test_a_result_is_what_it_was_on_return(
        self, items: list[Any], program: list[Instruction], later: list[Instruction]
    ) -> None:
        """P1: lists that a node derives from its input are stored as they are on return, whatever it does later."""
        readers = Readers({"a": own(items)})
        state = readers.read()
        node = Twins(state["a"], copy.deepcopy(items))
        node.run(program, compare=False)
        results = [[*part] if isinstance(part, list) else part for part in node.subject]
        written = [own(result, "", state) for result in results]
        before = [shape(result) for result in results]
        assert [shape(made) for made in written] == before
        node.run(later, compare=False)
        assert [shape(made) for made in written] == before

    @settings(deadline=None)
    @given(items=st.lists(values, min_size=1, max_size=5), program=instructions)
    def test_an_iterated_list_is_a_plain_one(self, items: list[Any], program: list[Instruction]) -> None:
        """P1, `isolation`: a list that was iterated behaves as a deep copy does."""
        state = Readers({"a": own(items)}).read()
        exhaust(state["a"])
        node = Twins(state["a"], copy.deepcopy(items))
        node.run(program, compare=True, deriving=True)
        node.check_all()


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "value": lambda message: message.update(content="changed"),
    "equal value": lambda message: message.update(flag=1),
    "new key": lambda message: message.update(new=1),
    "new last key": lambda message: message.setdefault("zz"),
    "removed key": lambda message: message.pop("content"),
    "order of equal values": lambda message: message.update(one=message.pop("one")),
    "key of another type": lambda message: (message.pop(1), message.update({True: "k"})),
    "container": lambda message: message.update(content=[1]),
    "cleared": lambda message: message.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("at", [0, 17, LONG - 1])
def test_only_changed_elements_are_copied(change: Callable[[dict[str, Any]], object], at: int) -> None:
    """P1, P10: unchanged elements of `[*messages, new]` are the state's own; a changed one is as it is on return, in
    value, type and order."""
    owned = own([{**flat(number), "flag": True, "one": 5, "two": 5, 1: "k"} for number in range(LONG)])
    before = shape(owned)
    state = Readers({"a": owned}).read()
    mine = [*state["a"]]
    change(mine[at])
    new = flat(LONG)
    expected = shape([*mine, new])
    stored = own([*mine, new], "", state)
    assert shape(stored) == expected
    assert shape(owned) == before
    assert [stored[index] is owned[index] for index in range(LONG)] == [index != at for index in range(LONG)]
    mine[0]["content"] = new["content"] = "changed later"
    mine[at]["content"] = "changed later"
    assert shape(stored) == expected


@pytest.mark.parametrize("first", [None, 0, 5, -1])
@pytest.mark.parametrize("make", [flat, nested, str, lambda number: [number]])
def test_derived_lists_keep_their_elements(make: Callable[[int], Any], first: int | None) -> None:
    """P10: slices, filtered and sorted lists have the state's own elements, which storage recognises."""
    owned = own([make(number) for number in range(LONG)])
    derived: list[Callable[[Any], Any]] = [
        lambda given: [*given, make(LONG)],
        lambda given: given + [make(LONG)],
        lambda given: [item for item in given if item],
        lambda given: given[-20:],
        lambda given: [*reversed(given)],
        lambda given: sorted(given, key=repr),
        lambda given: {str(index): item for index, item in enumerate(given)},
    ]
    for derive in derived:
        state = Readers({"a": owned}).read()
        if first is not None:
            state["a"][first]
        stored = own(derive(state["a"]), "", state)
        theirs = {id(item) for item in owned}
        kept = stored.values() if isinstance(stored, dict) else stored
        new = [item for item in kept if id(item) not in theirs]
        assert len(new) == (len(kept) > LONG)


def test_elements_that_were_replaced() -> None:
    """P1: when elements of a list were replaced, or it has become shorter, each is isolated as it needs to be."""
    for new in (
        [nested(number) for number in range(LONG)],
        [*[flat(number) for number in range(LONG - 10)], *[nested(number) for number in range(20)]],
        [nested(number) for number in range(LONG // 2)],
        [str(number) for number in range(LONG)],
        [flat(number) for number in range(LONG // 2)],
    ):
        readers = Readers({"a": own([flat(number) for number in range(LONG)])})
        for value in (readers.state["a"], [*readers.state["a"][:5], *own(new)], own(new), readers.state["a"]):
            readers.state["a"] = value
            before = shape(value)
            for item in readers.read()["a"]:
                if isinstance(item, dict):
                    item.get("tool_calls", [{}])[0]["changed"] = item["changed"] = 1
            assert shape(value) == before


def test_a_list_that_was_iterated_and_not_changed() -> None:
    """P10: a list that a node has iterated, and returns as it is, is the very list of the state."""
    for make in (flat, nested, str):
        owned = own([make(number) for number in range(LONG)])
        state = Readers({"a": owned}).read()
        exhaust(state["a"])
        assert own(state["a"], "", state) is own(state["a"]) is owned


def test_a_dict_that_a_node_adds_is_its_own() -> None:
    """P1: a dict that a node puts into its list before it iterates it is copied on return, as the node still holds
    it."""
    owned = own([flat(number) for number in range(LONG)])
    state = Readers({"a": owned}).read()
    mine = flat(7)
    state["a"].append(mine)
    exhaust(state["a"])
    stored = [own([*state["a"]], "", state), own(state["a"], "", state)]
    mine["content"] = "changed later"
    assert [each[-1] for each in stored] == [flat(7), flat(7)]


def test_one_element_at_several_places() -> None:
    """P1: an object that is several elements of a list becomes several copies, also if the list is changed otherwise."""
    shared = own(flat(0))
    for change in (lambda given: None, lambda given: given.insert(0, 1), lambda given: given[3]):
        owned = [shared] * LONG
        state = Readers({"a": owned, "b": owned}).read()
        change(state["a"])
        got = [item for item in [*state["a"], *state["b"]] if item != 1]
        assert len({id(item) for item in got}) == 2 * LONG
        assert shared not in [item for item in got if item is shared]


def test_a_change_by_another_thread_is_not_lost() -> None:
    """P1: what another thread of the node does to the list while its elements are copied stays."""
    got: list[Any] = []

    class Slow(Table):
        def __copy__(self) -> Slow:
            if len(got[0]) == 3:  # as if the other thread ran now
                got[0].append("added")
                got[0].append("more")
                del got[0][0]
            return Slow(self)

    owned: list[Any] = [flat(0), flat(1), Slow(k=[1])]
    state = Readers({"a": owned}).read()
    got.append(state["a"])
    assert [*got[0]] == [flat(1), {"k": [1]}, "added", "more"]
    got[0][0]["content"] = "changed"
    assert owned[1] == flat(1)


@pytest.mark.parametrize("more", [None, 7])
def test_elements_added_after_the_comparison(more: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: what another thread appends just before the copies replace the elements stays, and is isolated."""
    owned = own([flat(number) for number in range(LONG)])
    before = shape(owned)
    messages = Readers({"a": owned}).read()["a"]
    added = [False]

    def compare(one: object, other: object) -> bool:
        if one is owned[-1] and not added[0]:  # as if the other thread ran now
            added[0] = True
            messages.extend(messages if more is None else [flat(more)])
        return one is other

    monkeypatch.setattr(isolation, "is_", compare)
    got = [*messages]
    assert got == owned + (owned if more is None else [flat(more)])
    for item in got:
        item["content"] = "changed"
    assert shape(owned) == before


def test_two_threads_that_return_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: threads of one node may pass on one list at the same time, for example to two subgraphs."""
    messages = Readers({"a": own([flat(number) for number in range(LONG)])}).read()["a"]
    exhaust(messages)
    other: list[Any] = []

    def zip_and_switch(*iterables: Any, strict: bool) -> Any:
        if not other and all(type(each) is list for each in iterables):  # copies and their originals
            other.append(None)
            other[0] = own(messages)  # as if the other thread ran now
        return zip(*iterables, strict=strict)

    monkeypatch.setattr(isolation, "zip", zip_and_switch, raising=False)
    assert own(messages) == [flat(number) for number in range(LONG)] == messages
    assert other == [messages]


@pytest.mark.parametrize("make", [lambda items: items, lambda items: dict(enumerate(items))], ids=["list", "dict"])
def test_two_threads_that_take_one_element(make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: an element is isolated also if another thread takes all elements meanwhile."""
    owned = own({"a": make([nested(0), nested(1)])})
    taken = isolate(owned)["a"]

    class Switching(frozenset[type]):
        def __contains__(self, kind: object) -> bool:
            monkeypatch.undo()
            exhaust(taken.values() if isinstance(taken, dict) else taken)  # as if the other thread ran now
            return frozenset.__contains__(self, kind)

    monkeypatch.setattr(isolation, "ATOMS", Switching(ATOMS))
    mine = taken[1]
    assert mine is taken[1]
    mine["content"] = "changed"
    assert owned["a"][1] == nested(1)


def test_a_search_from_the_end_takes_few_elements() -> None:
    """`isolation`: a search for the latest message of some kind does not copy the others."""
    owned = own([flat(number) for number in range(1000)])
    state = Readers({"a": owned}).read()
    messages = state["a"]
    assert next(item for item in reversed(messages) if item["id"] == 995) == flat(995)
    assert sum(list.__getitem__(messages, index) is owned[index] for index in range(1000)) == 995
    assert [item["id"] for item in reversed(messages)] == [*reversed(range(1000))]


@pytest.mark.parametrize("length", [0, 1, 16, 17, 18, LONG])
def test_lists_of_any_length_are_read_backwards(length: int) -> None:
    """`isolation`: also an empty one, as a graph's first node may get."""
    messages = Readers({"a": own([flat(number) for number in range(length)])}).read()["a"]
    assert [item["id"] for item in reversed(messages)] == [*reversed(range(length))]


def test_a_list_that_changes_while_it_is_read_backwards() -> None:
    """`isolation`: elements that are removed or added meanwhile count as they do for a plain list."""
    for length in (3, LONG):
        for change in (list.pop, list.clear, lambda given: given.append(1), lambda given: given.insert(0, 1)):
            seen: list[list[Any]] = []
            state = Readers({"a": own([flat(number) for number in range(length)])}).read()
            for messages in (state["a"], [flat(number) for number in range(length)]):
                seen.append([])
                for index, item in enumerate(reversed(messages)):
                    seen[-1].append(item)
                    if index in (0, 20):
                        change(messages)
            assert seen[0] == seen[1]


def test_c_code_sees_the_whole_list() -> None:
    """P1: before, during and after it is iterated, a list is a real list of all its elements."""
    model = [nested(0), flat(1), [1], "a"] * 10
    owned = own(model)
    state = Readers({"a": owned}).read()
    messages = state["a"]

    def check() -> None:
        assert isinstance(messages, list)
        assert messages == model
        assert len(messages) == LONG
        assert json.loads(json.dumps(messages)) == msgspec.json.decode(msgspec.json.encode(messages)) == model
        assert pickle.loads(pickle.dumps(messages)) == copy.deepcopy(messages) == copy.copy(messages) == model
        assert type(pickle.loads(pickle.dumps(messages))) is type(copy.copy(messages)) is list
        assert type(messages[1:]) is type(messages + []) is type(messages * 1) is list

    check()
    for index, item in enumerate(messages):
        if index in (0, 1, LONG - 1):
            check()
        assert item == model[index]
    check()
    match messages:
        case [{"id": 0}, *rest]:
            assert rest == model[1:]
        case _:
            raise AssertionError


def test_dict_values_are_isolated_at_once() -> None:
    """P1: `values` and `items` of a dict give copies; unchanged ones are recognised in what a node returns."""
    owned = own({f"k{number}": flat(number) for number in range(LONG)} | {"deep": nested(1), "atom": 1})
    readers = Readers({"docs": owned})
    for way in (lambda docs: [*docs.values()], lambda docs: [value for _, value in docs.items()]):
        state = readers.read()
        got = way(state["docs"])
        stored = own({**state["docs"], "new": flat(0)}, "", state)
        assert all(stored[key] is owned[key] for key in owned)
        assert own(state["docs"], "", state) is owned
        got[0]["content"] = got[-2]["tool_calls"][0]["args"]["query"] = "changed"
        assert state["docs"]["k0"]["content"] == "changed"
        assert owned["k0"] == flat(0)
        assert owned["deep"] == nested(1)
        assert own({**state["docs"]}, "", state)["k0"]["content"] == "changed"


def test_no_python_code_per_element() -> None:
    """P10: what iterating a list costs in calls does not depend on its length, from the second reader on; elements that
    were appended are looked at once."""
    for make, each in ((flat, 0), (nested, 1), (str, 0)):
        readers = Readers({"a": own([make(number) for number in range(1000)])})
        exhaust(readers.read()["a"])
        for _ in range(2):
            state = readers.read()
            assert calls_of(lambda: exhaust(state["a"])) <= 1000 * 2 * each + 50
        readers.state["a"] = [*readers.state["a"], *own([make(number) for number in range(10)])]
        state = readers.read()
        assert calls_of(lambda: exhaust(state["a"])) <= 1000 * 2 * each + 80


def test_no_python_code_per_returned_element() -> None:
    """P10: returning `[*messages, new]` takes no call for each message."""
    readers = Readers({"a": own([flat(number) for number in range(1000)])})
    state = readers.read()
    mine = [*state["a"], flat(1000)]
    own([], "", state)
    assert calls_of(lambda: own(mine, "", state)) <= 60
    update = own([flat(1000)])

    def fold() -> None:
        record = Copies()
        own_fold(isolate(readers.state["a"], record) + update, record, readers.state["a"], update)

    assert calls_of(fold) <= 1000 * 2 + 100  # the copiers are looked for, as no board knows these lists


def test_copiers_do_not_keep_a_replaced_list() -> None:
    """P12: when a node replaces a list, nothing keeps the elements of the old one in memory."""
    graph = program(a=LastValue(list))
    board = Board(graph)

    def write(value: Any) -> None:
        update(graph, board, (), [[("a", own(value))]], scope=("", ""))

    for new in ([], [flat(1)] * LONG, [flat(1)] * 100, 5):
        write([flat(0)] * LONG)
        exhaust(isolate(board.values.copy(), board.copiers)["a"])
        assert set(board.copiers) == {"a"}
        held = board.values["a"]
        update(graph, board, (), [[("a", [*held, 1])]], scope=("", ""))
        assert set(board.copiers) == {"a"}
        write(new)
        assert not board.copiers


class Talk(TypedDict):
    left: int
    messages: list[Any]


class Sum(TypedDict):
    left: int
    messages: Annotated[list[Any], lambda old, new: old + new]


@pytest.mark.anyio
@pytest.mark.one_loop
@pytest.mark.parametrize("make", [flat, nested])
@pytest.mark.parametrize("schema", [Talk, Sum])
async def test_what_was_stored_is_not_encoded_again(
    make: Callable[[int], Any], schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P10: a node that returns its list with one more message, or whose reducer appends it, stores that message."""
    lengths: list[int] = []
    encode = Codec.encode

    def counted(self: Codec, value: Any, **where: Any) -> bytes:
        if where["channel"] == "messages" and isinstance(value, list):
            lengths.append(len(value))
        return encode(self, value, **where)

    def say(state: Any) -> Any:
        assert all(message["content"] for message in state["messages"])
        new = make(state["left"])
        lengths.append(0)
        return {
            "messages": [*state["messages"], new] if schema is Talk else [new],
            "left": state["left"] - 1,
        }

    builder = StateGraph(schema).add_node("say", say).add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say" if state["left"] else END, ["say", END])
    graph = builder.compile(InMemorySaver(), blocking=False)
    monkeypatch.setattr(Codec, "encode", counted)
    result = await graph.ainvoke({"left": 5, "messages": [make(number) for number in range(LONG)]}, "t")
    after = lengths[lengths.index(0) :]
    assert set(after) == {0, 1}
    assert (await graph.aget_state("t")).values["messages"] == result["messages"]
    assert len(result["messages"]) == LONG + 5


def test_elements_of_other_classes() -> None:
    """P1: objects between dicts are copied as they are on their own."""
    owned = own([flat(0), Point([1]), (1, [2]), {"k": Point({})}, operator.add, None] * 10)
    before = shape(owned)
    state = Readers({"a": owned}).read()
    for item in state["a"]:
        match item:
            case Point():
                item.x.append("changed")
            case (_, inner):
                inner.append("changed")
            case {"k": point}:
                point.x["changed"] = 1
            case dict():
                item["changed"] = 1
    assert shape(owned) == before
    assert shape(own([*state["a"]], "", state)) == shape([*state["a"]]) != before
