"""Incremental values: shared parts are found by their bytes, and patches restore the value they were made for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.patches import (
    DictPatch,
    IncrementalValue,
    ListPatch,
    Patch,
    apply_patch,
    as_incremental,
    data_of,
    decode,
    diff,
    extended,
    join_list,
    size_of,
    size_of_patch,
)

CODEC = Codec()
LONG = "long " * 60


def encoded(value: object) -> Any:
    return as_incremental(CODEC.encode(value, channel="c"))


def read(value: Any) -> Any:
    return decode(value, CODEC, channel="c")


@pytest.mark.parametrize(
    ("before", "now", "pieces"),
    [
        ([LONG, "a"], [LONG, "a", "b"], [(0, 2), ["b"]]),
        ([LONG, LONG + "1", LONG + "2"], [LONG, LONG + "2"], [(0, 1), (2, 3)]),
        ([LONG, LONG + "1"], [LONG, "changed"], [(0, 1), ["changed"]]),
        ([LONG, LONG + "1", LONG + "2"], [LONG + "1", LONG + "2", "new"], [(1, 3), ["new"]]),
        ([LONG, LONG + "1"], ["first", LONG, LONG + "1"], [["first"], (0, 2)]),
        ([LONG, "a", "b"], [LONG], [(0, 1)]),
        ([LONG, 1], [LONG, True], [(0, 1), [True]]),
    ],
    ids=["appended", "removed", "replaced", "a window", "in front", "cut", "one is not True"],
)
def test_the_shared_parts_of_lists(before: list[Any], now: list[Any], pieces: list[Any]) -> None:
    """P10: however a list has changed, the parts that it kept are referred to and not stored again."""
    patch = diff(encoded(now), encoded(before))
    assert isinstance(patch, ListPatch)
    shown = [piece if isinstance(piece, tuple) else CODEC.decode(piece, channel="c") for piece in patch.pieces]
    assert shown == pieces
    assert repr(read(apply_patch(encoded(before), patch))) == repr(now)


def test_the_shared_parts_of_dicts() -> None:
    """P10: of a dict only changed entries are stored, and of entries that grew only the new part; order is kept."""
    before = {"a": LONG, "b": [LONG, LONG], "c": 1, 2: LONG}
    now = {"a": LONG, "b": [LONG, LONG, "x"], 2: LONG, "new": None}
    patch = diff(encoded(now), encoded(before))
    assert isinstance(patch, DictPatch)
    assert CODEC.decode(patch.gone, channel="c") == ["c"]
    assert [CODEC.decode(key, channel="c") for key, _ in patch.grown] == ["b"]
    assert CODEC.decode(patch.put, channel="c") == ["new", None]
    made = apply_patch(encoded(before), patch)
    assert list(read(made).items()) == list(now.items())
    assert made.data == CODEC.encode(now, channel="c")


def test_values_without_a_patch() -> None:
    """A value that has little in common with the old one, is small, or is no list or dict is stored whole."""
    assert diff(encoded([LONG]), encoded(["other " * 60])) is None
    assert diff(encoded([LONG]), encoded({"a": LONG})) is None
    assert diff(encoded([1, 2]), encoded([1])) is None
    assert diff(encoded((LONG, LONG)), encoded((LONG,))) is None
    assert diff(encoded([LONG]), None) is None


def chain(length: int) -> IncrementalValue:
    """A list to which so many elements were appended one by one, as reading its rows builds it."""
    value = encoded([LONG])
    for at in range(length):
        value = extended(value, at + 1, CODEC.encode([{"at": at}], channel="c"))
    return value


def test_sizes_need_no_assembly() -> None:
    """P10: the size of an incremental value is known from its parts, without assembling it, when a run continues a
    thread."""
    value = chain(50)
    assert size_of(value) >= len(data_of(chain(50))) - 5
    assert value._parts is None


@pytest.mark.parametrize("elements", [b"\x01", b"\x91\x01\x91\x01", b"\xc0", b"\x91"], ids=repr)
def test_parts_that_are_not_lists_are_damage(elements: bytes) -> None:
    """P11: whichever of the parts is not a list."""
    value = extended(extended(encoded([LONG]), 1, elements), 2, CODEC.encode([1], channel="c"))
    with pytest.raises(CorruptCheckpointError):
        read(value)


def test_a_chain_of_any_length() -> None:
    """P10: a list of 20000 appended elements is assembled, and its size computed, without recursion."""
    value = encoded([LONG])
    for at in range(20_000):
        value = extended(value, at + 1, CODEC.encode([at], channel="c"))
    assert 0 < size_of(value) - len(LONG) < 100_000
    assert read(value) == [LONG, *range(20_000)]
    assert CODEC.decode(data_of(value), channel="c") == [LONG, *range(20_000)]


PLAIN = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=2) | st.just(LONG)
)
INNER = st.recursive(PLAIN, lambda each: st.lists(each, max_size=5) | st.dictionaries(st.text(max_size=1), each))
KEYS = st.text(max_size=1) | st.integers(0, 3)
BOTH = st.one_of(
    st.tuples(st.lists(INNER, max_size=40), st.lists(INNER, max_size=40)),
    st.tuples(st.dictionaries(KEYS, INNER, max_size=12), st.dictionaries(KEYS, INNER, max_size=12)),
)


def as_grown(value: object) -> IncrementalValue:
    return IncrementalValue(isinstance(value, list), CODEC.encode(value, channel="c"))


@settings(deadline=None)
@given(BOTH)
def test_a_patch_restores_the_value(both: tuple[Any, Any]) -> None:
    """P11: for any two lists or dicts, the patch turns one into the other: equal in value, type and order, applied
    to bytes or to objects, and no larger than the whole value."""
    before, now = as_grown(both[0]), as_grown(both[1])
    patch = diff(now, before)
    if patch is None:
        return
    stored: Patch = msgspec.msgpack.decode(msgspec.msgpack.encode(patch), type=ListPatch | DictPatch)
    assert stored == patch
    assert size_of_patch(patch) <= now.size
    assert repr(read(apply_patch(before, stored))) == repr(both[1])
    assert apply_patch(before, stored).data == CODEC.encode(both[1], channel="c")


def test_values_are_isolated_from_each_other() -> None:
    """P1: values that share elements are lists and dicts of their own, at each level that a patch changes."""
    first = encoded({"said": [LONG], "same": [LONG]})
    second = encoded({"said": [LONG, "more"], "same": [LONG]})
    patch = diff(second, first)
    assert patch is not None
    later = apply_patch(first, patch)
    assert read(first)["said"] == [LONG]
    assert read(later)["said"] == [LONG, "more"]
    assert read(first)["said"] == [LONG]
    read(first).clear()
    assert read(first) and read(later)


LIST = encoded([LONG, "a"])
DICT = encoded({"a": LONG, "b": [1]})


@pytest.mark.parametrize(
    ("before", "patch"),
    [
        (LIST, ListPatch(((0, 3),))),
        (LIST, ListPatch(((-1, 1),))),
        (LIST, ListPatch(((1, 0),))),
        (LIST, ListPatch((b"\xc0",))),
        (LIST, ListPatch((b"\x92\x01",))),
        (DICT, DictPatch(join_list([b"\xa1z"]), (), join_list([]))),
        (DICT, DictPatch(join_list([]), ((b"\xa1z", ListPatch(((0, 1),))),), join_list([]))),
        (
            DICT,
            DictPatch(join_list([]), ((b"\xa1b", DictPatch(join_list([]), (), join_list([]))),), join_list([b"\x01"])),
        ),
        (DICT, DictPatch(join_list([]), ((b"\xa1b", ListPatch(((0, 2),))),), join_list([]))),
        (DICT, DictPatch(join_list([]), (), join_list([b"\xa1a"]))),
        (DICT, DictPatch(b"\xc0", (), join_list([]))),
    ],
)
def test_a_patch_that_does_not_fit_is_damage(before: Any, patch: Patch) -> None:
    """P11: a patch for another value raises an error of this package, decoded or applied, and never gives a value."""
    with pytest.raises(CorruptCheckpointError):
        read(apply_patch(before, patch))
    with pytest.raises(CorruptCheckpointError):
        _ = apply_patch(before, patch).data
    with pytest.raises(ValueError, match="extends what is not there"):
        apply_patch(DICT if before is LIST else LIST, patch)


@pytest.mark.parametrize("key", [(1, 2), 2**64, -(2**63) - 1, frozenset()])
def test_a_patch_cannot_add_unchecked_keys_to_a_dict(key: Any) -> None:
    """P11: otherwise a sequence of patches could add keys with colliding hashes, each of which is compared with all
    others."""
    put = DictPatch(join_list([]), (), join_list([CODEC.encode(key, channel="x"), b"\x01"]))
    grown = DictPatch(join_list([]), ((CODEC.encode(key, channel="x"), ListPatch(((0, 1),))),), join_list([]))
    for patch in (put, grown):
        with pytest.raises(CorruptCheckpointError, match="a part has a key"):
            read(apply_patch(DICT, patch))
