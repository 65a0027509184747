"""Several deltas that are stored as one: the merged delta has the effect of all of them, and its size does not
depend on their number."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_savers.chain import ChainReader, ChainWriter, EncodedState
from checkpoint_savers.deltas import Delta, merge
from checkpoint_savers.records import CheckpointId, CheckpointRow

CHANNELS = st.sampled_from(["a", "b", "c", "d"])
NODES = st.sampled_from(["n", "m"])
NUMBERS = st.integers(0, 5)
DATA = st.binary(max_size=2)
WRITES = st.lists(st.tuples(CHANNELS, st.none() | DATA), max_size=3).map(tuple)
ENTRIES = st.builds(
    Delta,
    keyframe=st.booleans(),
    ts=st.floats(0, 9),
    clock=NUMBERS,
    values=st.dictionaries(CHANNELS, DATA, max_size=3),
    emptied=st.lists(CHANNELS, max_size=3, unique=True).map(tuple),
    kinds=st.dictionaries(CHANNELS, st.sampled_from(["k", "l"]), max_size=3),
    versions=st.dictionaries(CHANNELS, NUMBERS, max_size=3),
    seen=st.dictionaries(CHANNELS, st.dictionaries(NODES, NUMBERS, max_size=2), max_size=2),
    ran=st.lists(NODES, max_size=2).map(tuple),
    results=st.dictionaries(st.sampled_from(["t", "u"]), WRITES, max_size=2),
    tips=st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]), max_size=2),
)
SPARSE = ENTRIES.map(lambda entry: msgspec.structs.replace(entry, keyframe=False))


def _as_runs_make_them(entry: Delta) -> Delta:
    """Keep kinds and versions only for channels that have a value, as in real runs."""
    return msgspec.structs.replace(
        entry,
        keyframe=False,
        kinds=dict.fromkeys(entry.values, "k"),
        versions={name: version for name, version in entry.versions.items() if name in entry.values},
    )


MADE = ENTRIES.map(_as_runs_make_them)


def after(*entries: Delta) -> EncodedState:
    state = EncodedState.empty()
    for entry in entries:
        state.apply(entry, entry.values)
    return state


@given(ENTRIES, ENTRIES, ENTRIES)
def test_a_merged_delta_has_the_effect_of_both(before: Delta, first: Delta, second: Delta) -> None:
    """From any state, the merged delta leads to the same state as both deltas one after the other."""
    assert after(before, merge(first, second)) == after(before, first, second)


@given(ENTRIES, ENTRIES, ENTRIES, ENTRIES)
def test_the_order_of_merging_does_not_matter(before: Delta, one: Delta, two: Delta, three: Delta) -> None:
    """Three deltas merge into the same effect whether the first or the last two are merged first."""
    left, right = merge(merge(one, two), three), merge(one, merge(two, three))
    assert after(before, left) == after(before, right) == after(before, one, two, three)


@given(SPARSE, ENTRIES)
def test_results_survive_merging(first: Delta, second: Delta) -> None:
    """History shows the results of the first delta's tasks as it would without the second."""

    def shown(entry: Delta, values: dict[str, bytes]) -> Any:
        return {
            task: [(name, values.get(name) if data is None else data) for name, data in writes]
            for task, writes in entry.results.items()
        }

    written = {name for writes in first.results.values() for name, data in writes if data is None}
    first = msgspec.structs.replace(first, values={**dict.fromkeys(written, b"now"), **first.values})
    merged = merge(first, second)
    assert shown(merged, after(first, second).values) == shown(first, first.values)


@given(st.lists(MADE, max_size=3), st.lists(MADE, min_size=1, max_size=6))
def test_deferred_checkpoints_are_read_back(before: list[Delta], late: list[Delta]) -> None:
    """A thread whose last checkpoints are stored as one is read back as if each had been stored; so is the
    checkpoint that combines those which the root graph deferred."""
    chain, rows = ChainWriter.start(""), list[CheckpointRow]()
    number = 0

    def name() -> CheckpointId:
        nonlocal number
        number += 1
        return CheckpointId(f"{number:03}")

    for entry in before:
        rows.append(chain.append(entry, checkpoint_id=name(), step=number, metadata={}))
    above, roots = chain.tip, ["r1", "r2", "r3"]
    for at, entry in enumerate(late):
        root = roots[at * len(roots) // len(late)]
        chain.defer(entry, checkpoint_id=name(), step=number, metadata={"parents": {"": root}})
        assert len(chain.deferred) <= 2 and chain.tip in chain.stored_checkpoints and above in chain.stored_checkpoints
    made = chain.take_deferred(all_closed=False)
    assert [row.parent_id for row in made] == [above, *[row.checkpoint_id for row in made[:-1]]]
    assert made[-1].checkpoint_id == chain.tip and not chain.deferred
    reader = ChainReader("t", "", [*rows, *made])
    assert reader.state(made[-1].checkpoint_id) == chain.state
    assert ChainWriter.resume(reader, made[-1].checkpoint_id).tip == chain.tip


def test_a_merged_delta_does_not_grow() -> None:
    """A thousand supersteps that change one channel take the bytes of one."""
    chain = ChainWriter.start("")
    sizes: list[int] = []
    for number in range(1000):
        entry = Delta(
            keyframe=False,
            ts=1.0,
            clock=number,
            values={"a": b"x"},
            emptied=("b",),
            kinds={"a": "k"} if number == 0 else {},
            versions={},
            seen={"a": {"n": number}},
            ran=("n",),
            results={f"task {number}": (("a", None),)},
        )
        chain.defer(entry, checkpoint_id=CheckpointId(f"{number:04}"), step=number, metadata={})
        sizes.append(len(msgspec.msgpack.encode(chain.deferred[0].delta)))
    assert max(sizes[2:]) <= sizes[1] + 16
    [row] = chain.take_deferred()
    assert row.parent_id is None and row.base_id == row.checkpoint_id and len(row.frame) < 200
