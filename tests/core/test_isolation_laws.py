"""Isolation (P1) as laws: random values of every kind, and random programs that change them in place."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pregel_async._core.isolation import CopiedDict, CopiedList, isolate
from pregel_async._core.ownership import own
from tests.core.mutations import (
    Instruction,
    Twins,
    changeable,
    instructions,
    parts,
    plain_states,
    plain_values,
    shape,
    states,
    values,
)

MANY = settings(max_examples=settings().max_examples // 2, deadline=None)


def identities(value: Any) -> list[int]:
    return [id(part) for part in parts(value)]


@MANY
@given(state=states, program=instructions)
def test_the_owned_value_stays_as_it_is(state: dict[str, Any], program: list[Instruction]) -> None:
    """P1: any sequence of changes in place that a node makes to its input leaves the owned original equal and
    identical."""
    owned = own(state)
    before, ids = shape(owned), identities(owned)
    Twins(isolate(owned), copy.deepcopy(state)).run(program, compare=False)
    assert shape(owned) == before
    assert identities(owned) == ids


@MANY
@given(state=states, program=instructions, other=instructions)
def test_two_readers_are_isolated(state: dict[str, Any], program: list[Instruction], other: list[Instruction]) -> None:
    """P1: a change in place by one reader reaches no other reader of the same value."""
    owned = own(state)
    one, two = Twins(isolate(owned), copy.deepcopy(state)), isolate(owned)
    untouched = shape(isolate(owned))
    one.run(program, compare=False)
    assert shape(two) == untouched
    before = [shape(part) for part in one.subject]
    Twins(two, copy.deepcopy(state)).run(other, compare=False)
    assert [shape(part) for part in one.subject] == before


@MANY
@given(state=states, program=instructions, later=instructions)
def test_what_a_node_keeps_and_changes_later_does_not_count(
    state: dict[str, Any], program: list[Instruction], later: list[Instruction]
) -> None:
    """P1: a node's result counts as it was on return; later changes to objects that the node keeps have no effect."""
    node = Twins(isolate(own(state)), copy.deepcopy(state))
    node.run(program, compare=False)
    written = [own(part) for part in node.subject]
    before = [shape(part) for part in written]
    node.run(later, compare=False)
    assert [shape(part) for part in written] == before


@MANY
@given(value=values)
def test_the_callers_input_is_copied(value: Any) -> None:
    """P1: the caller's input is copied: no changeable part of it is shared."""
    owned = own(value)
    assert shape(owned) == shape(value)
    theirs = {id(part) for part in parts(value) if changeable(part)}
    assert not any(id(part) in theirs for part in parts(owned) if changeable(part))


@MANY
@given(state=states, program=instructions)
def test_an_owned_value_is_plain(state: dict[str, Any], program: list[Instruction]) -> None:
    """`isolation`: a channel's value consists of plain containers; no handed-out object gets into it."""
    node = Twins(isolate(own(state)), copy.deepcopy(state))
    node.run(program, compare=False)
    for part in node.subject:
        assert not any(isinstance(inner, (CopiedDict, CopiedList)) for inner in parts(own(part)))


@MANY
@given(state=plain_states, program=instructions)
def test_changing_lists_and_dicts_is_changing_a_deep_copy(state: dict[str, Any], program: list[Instruction]) -> None:
    """P1, `isolation`: an element taken twice is the same object: a node sees its own changes, as on a deep copy."""
    node = Twins(isolate(own(state)), copy.deepcopy(state))
    node.run(program, compare=True, deriving=False)
    node.check_all()


@MANY
@given(state=states, program=instructions)
@example(state={"a": {1}}, program=[(0, 0, 0, 0), (0, 0, 0, 0), (1, 3, 4, 0)])
def test_changing_any_data_is_changing_a_deep_copy(state: dict[str, Any], program: list[Instruction]) -> None:
    """P1, `isolation`: sets, deques, tuples, dataclasses, Structs, pydantic models and subclasses behave like a deep
    copy, too."""
    node = Twins(isolate(own(state)), copy.deepcopy(state))
    node.run(program, compare=True, deriving=False)
    node.check_all()


@MANY
@given(state=plain_states, program=instructions)
def test_slices_and_shallow_copies_share_their_elements(state: dict[str, Any], program: list[Instruction]) -> None:
    """P1: a slice, a shallow copy or a sum holds the same elements as its source, as on a deep copy: the node's result
    contains a change in place through any of them."""
    node = Twins(isolate(own(state)), copy.deepcopy(state))
    node.run(program, compare=True, deriving=True)
    node.check_all()


@MANY
@given(state=states, program=instructions)
def test_what_a_node_returns_is_what_it_made(state: dict[str, Any], program: list[Instruction]) -> None:
    """P1: a node's result counts as it is on return, equal in value and type."""
    node = Twins(isolate(own(state)), copy.deepcopy(state))
    node.run(program, compare=False)
    for part in node.subject:
        assert shape(own(part)) == shape(part)


@MANY
@given(value=plain_values)
def test_an_unchanged_value_is_the_very_same_object(value: Any) -> None:
    """`isolation`: `own` gives back the very objects that `isolate` handed out, so that storage sees what is shared."""
    owned = own(value)
    assert own(isolate(owned)) is owned


@MANY
@given(state=plain_states)
def test_looking_at_a_value_does_not_change_it(state: dict[str, Any]) -> None:
    """`isolation`: an unchanged element keeps its identity through a node, even if the node took it out and read it."""
    owned = own(state)
    seen = isolate(owned)

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                look(item)
        elif isinstance(value, list):
            for item in value:
                look(item)

    look(seen)
    assert own(seen) is owned


@MANY
@given(value=values)
def test_an_unchanged_value_is_equal(value: Any) -> None:
    """P1: a value that a node returns unchanged is equal in value and type."""
    owned = own(value)
    assert shape(own(isolate(owned))) == shape(owned) == shape(value)


@MANY
@given(values=st.lists(plain_values, min_size=2, max_size=6), at=st.integers(0, 5))
def test_unchanged_neighbours_keep_their_identity(values: list[Any], at: int) -> None:
    """P10, `isolation`: when a node appends to a list or changes one element, the other elements keep their
    identity."""
    owned = own(values)
    at %= len(values)
    seen = isolate(owned)
    seen[at] = ["changed"]
    seen.append(["new"])
    after = own(seen)
    assert [after[index] is owned[index] for index in range(len(owned)) if index != at] == [True] * (len(owned) - 1)
    assert after[at] == ["changed"]
    assert after[-1] == ["new"]
    assert own([*isolate(owned), 1])[:-1] == owned


@given(at=st.sampled_from(["key", "item"]))
def test_true_is_not_one(at: str) -> None:
    """`isolation`: True equals 1 but is not the same: neither replaces the other as a value or a key."""
    for before, after in ((1, True), (True, 1), (1, 1.0), (0, False), ("", b"")):
        owned = own({"k": [before, {before: before}]})
        seen = isolate(owned)
        if at == "item":
            seen["k"][0] = after
        else:
            del seen["k"][1][before]
            seen["k"][1][after] = before
        changed = own(seen)
        assert shape(changed) == shape({"k": [after, {before: before}] if at == "item" else [before, {after: before}]})
        assert shape(owned) == shape({"k": [before, {before: before}]})
