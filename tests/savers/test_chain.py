"""How states are laid out in rows: how large the rows are, and that the rows of a chain give the state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_savers.chain import SMALL, SNAPSHOT_INTERVAL, ChainReader, ChainWriter, EncodedState
from checkpoint_savers.codec import Codec
from checkpoint_savers.deltas import Delta, ListSlice, NewResults, merge
from checkpoint_savers.errors import CorruptCheckpointError
from checkpoint_savers.patches import as_incremental, decode, extended
from checkpoint_savers.records import CheckpointId, CheckpointRow

LARGE = bytes(50_000)
CODEC = Codec()


def delta_of(
    clock: int, values: dict[str, Any], results: NewResults | None = None, emptied: tuple[str, ...] = ()
) -> Delta:
    return Delta(
        keyframe=False,
        ts=0.0,
        clock=clock,
        values=values,
        emptied=emptied,
        kinds={},
        versions={},
        seen={},
        ran=("n",),
        results=results or {},
    )


def encoded(value: object) -> Any:
    return as_incremental(CODEC.encode(value, channel="c"))


def cid(number: int) -> CheckpointId:
    return CheckpointId(f"{number:06}")


def chain_of(steps: int, small: int = 100) -> list[CheckpointRow]:
    """A large value that is written once, and a small one that each superstep writes."""
    chain = ChainWriter.start("")
    return [
        chain.append(
            delta_of(at + 1, {"small": bytes([at % 256]) * small} | ({} if at else {"large": LARGE})),
            checkpoint_id=cid(at),
            step=at,
            metadata={},
        )
        for at in range(steps)
    ]


def message(number: int) -> dict[str, Any]:
    return {"id": f"msg-{number:08d}", "role": "assistant", "content": "x" * 200 + str(number), "meta": {"tokens": 40}}


def thread_of(steps: int) -> tuple[list[CheckpointRow], list[dict[str, Any]]]:
    """A list to which each superstep appends one message, and the message is also its task's result."""
    chain, said, rows = ChainWriter.start(""), list[dict[str, Any]](), list[CheckpointRow]()
    for at in range(steps):
        said.append(message(at))
        write = CODEC.encode([said[-1]], channel="c")
        made = delta_of(at + 1, {"messages": encoded(said)}, {f"task {at}": (("messages", write),)})
        rows.append(chain.append(made, checkpoint_id=cid(at), step=at, metadata={}))
    return rows, said


def read_for(rows: list[CheckpointRow], at: int) -> list[CheckpointRow]:
    """The rows that a saver returns for a checkpoint, as the port defines them."""
    by_id = {row.checkpoint_id: row for row in rows}
    asked = rows[at]
    chain = [row for row in rows if row.base_id == asked.base_id and row.checkpoint_id <= asked.checkpoint_id]
    base = by_id[asked.base_id]
    if base.base_id != base.checkpoint_id:
        chain = [row for row in rows if row.base_id == base.base_id and row.checkpoint_id <= base.checkpoint_id] + chain
    return chain


def test_rows_store_only_what_is_new() -> None:
    """P10: a value that does not change is not stored again with each superstep."""
    rows = chain_of(300)
    assert sum(len(row.frame) for row in rows) < 2 * len(LARGE) + 300 * 500
    assert len(rows[0].frame) > len(LARGE)
    assert all(len(row.frame) < 500 for row in rows[1:200])


def test_the_length_of_a_chain_is_bounded() -> None:
    """P10: reading a state reads at most about twice the state's size."""
    rows = chain_of(2000, small=3000)
    for at in (500, 1000, 1999):
        reader = ChainReader("t", "", read_for(rows, at))
        assert sum(len(reader.rows[each].frame) for each in reader.path(cid(at))) < 2 * (len(LARGE) + SMALL)


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("values", [{"messages": b"\xc0"}, {}], ids=["replaced", "emptied"])
def test_a_keyframe_follows_when_a_long_list_has_gone(values: dict[str, Any], is_resumed: bool) -> None:
    """P10: a state that has become small is no longer read with its former size."""
    rows, _ = thread_of(20)
    chain = ChainWriter.resume(ChainReader("t", "", read_for(rows, 19)), cid(19))
    if not is_resumed:
        chain = ChainWriter.start("")
        chain.append(
            delta_of(20, {"messages": encoded([message(0)] * 20)}), checkpoint_id=cid(19), step=19, metadata={}
        )
    gone = delta_of(21, values, emptied=() if values else ("messages",))
    row = chain.append(gone, checkpoint_id=cid(20), step=20, metadata={})
    assert row.base_id == row.checkpoint_id


def test_a_chain_gives_its_state() -> None:
    """P10: for each row of a chain, the state has the values of that row's superstep."""
    rows = chain_of(600)
    for at in (0, 1, 31, 32, 33, 299, 300, 301, 599):
        state = ChainReader("t", "", read_for(rows, at)).state(cid(at))
        assert state.values == {"large": LARGE, "small": bytes([at % 256]) * 100}
        assert state.clock == at + 1


def test_a_growing_list_stores_only_what_is_new() -> None:
    """P10: n appended messages take O(n) bytes: each is stored in a delta row and in a snapshot row, and keyframes
    are few."""
    taken = {steps: sum(len(row.frame) for row in thread_of(steps)[0]) for steps in (100, 1000)}
    one = len(CODEC.encode(message(1), channel="c"))
    assert taken[1000] < 12 * taken[100]
    assert taken[1000] < 1000 * (2 * one + 100)
    rows, _ = thread_of(300)
    full = {row.checkpoint_id for row in rows if row.base_id == row.checkpoint_id}
    assert len(full) == 2
    assert max(len(row.frame) for row in rows if row.base_id not in full) < one + 100


def test_a_growing_list_is_read_from_few_rows() -> None:
    """P10: a chain has a snapshot row for every 32 rows, and at most 32 delta rows, so that reading stays
    fast."""
    rows, said = thread_of(1000)
    for at in (0, 1, 40, 500, 999):
        chain = read_for(rows, at)
        reader = ChainReader("t", "", chain)
        assert len(reader.path(cid(at))) == len(chain) <= at / SNAPSHOT_INTERVAL + SNAPSHOT_INTERVAL + 2
        assert decode(reader.state(cid(at)).values["messages"], CODEC, channel="c") == said[: at + 1]
        assert reader.state(cid(at)).decode(cid(at), CODEC)["channel_values"] == {"messages": said[: at + 1]}


def test_resuming_a_chain_applies_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """P10: a run that resumes a thread applies each of its rows once, whatever it reads from them."""
    applied: list[bool] = []
    apply = EncodedState.apply

    def counted(self: EncodedState, delta_of: Any, values: Any) -> None:
        applied.append(delta_of.keyframe)
        apply(self, delta_of, values)

    rows, _ = thread_of(1000)
    chain = read_for(rows, 999)
    monkeypatch.setattr(EncodedState, "apply", counted)
    reader = ChainReader("t", "", chain)
    reader.state(cid(999))
    ChainWriter.resume(reader, cid(999))
    assert len(applied) == len(chain)


def test_results_refer_to_stored_values() -> None:
    """P10: what a task appended is not stored a second time as its result, and the result can still be read."""
    rows, said = thread_of(200)
    reader = ChainReader("t", "", rows, keeps_states=True)
    for at in range(200):
        [(channel, data)] = reader.results(cid(at))[f"task {at}"]
        assert channel == "messages" and data is not None
        assert CODEC.decode(data, channel="c") == [said[at]]


def test_results_that_are_parts_of_an_appended_list() -> None:
    """P2, P10: a result that the encoder has found in the list takes no bytes of its own, and is read back, whether its
    row holds a patch or the state, and also if it was merged with a later one."""
    before, more, other = (encoded([message(number) for number in numbers]) for numbers in ((0, 1), (2, 3, 4), (5, 6)))
    value = extended(before, 2, more.data)
    parts = [
        ListSlice(more.data, 0, 3),
        ListSlice(more.data, 0, 1),
        ListSlice(more.data, 1, 2),
        ListSlice(other.data, 1, 1),
    ]
    results = {str(at): (("c", part),) for at, part in enumerate(parts)}
    wanted = {str(at): (("c", part.data),) for at, part in enumerate(parts)}
    assert [CODEC.decode(part.data, channel="c") for part in parts] == [
        [message(number) for number in numbers] for numbers in ((2, 3, 4), (2,), (3, 4), (6,))
    ]
    appending, later = delta_of(2, {"c": value}, results), delta_of(3, {"d": encoded(1)})
    for deltas in ([delta_of(1, {"c": before}), appending], [appending], [delta_of(1, {}), merge(appending, later)]):
        chain = ChainWriter.start("")
        rows = [chain.append(each, checkpoint_id=cid(at), step=at, metadata={}) for at, each in enumerate(deltas)]
        assert ChainReader("t", "", rows).results(cid(len(rows) - 1)) == wanted
    for write in (parts[0], parts[0].data):  # as bytes, the form for an element that the encoder did not recognise
        chain = ChainWriter.start("")
        chain.append(delta_of(1, {"c": before}), checkpoint_id=cid(0), step=0, metadata={})
        delta = delta_of(2, {"c": extended(before, 2, more.data)}, {"0": (("c", write),)})
        row = chain.append(delta, checkpoint_id=cid(1), step=1, metadata={})
        assert len(row.frame) < len(more.data) + 100


def test_history_shares_equal_parts_of_states() -> None:
    """P10: a listing decodes each row once: what two states have in common is the same object in both."""
    rows, _ = thread_of(100)
    reader = ChainReader("t", "", rows, keeps_states=True)
    one, other = (decode(reader.state(cid(at)).values["messages"], CODEC, channel="c") for at in (90, 91))
    assert all(left is right for left, right in zip(one, other[:-1], strict=True))
    assert one is not other


def test_a_branch_continues_from_any_row() -> None:
    """P10: a chain that was resumed from a delta row, a snapshot row or a keyframe writes the same rows as an
    uninterrupted chain."""
    rows, said = thread_of(300)
    for at in (0, 5, 31, 32, 33, 64, 100, 287, 298):
        chain = ChainWriter.resume(ChainReader("t", "", read_for(rows, at)), cid(at))
        branch = list(rows[: at + 1])
        for number in range(at + 1, 300):
            values = {"messages": encoded(said[: number + 1])}
            branch.append(chain.append(delta_of(number + 1, values), checkpoint_id=cid(number), step=0, metadata={}))
        state = ChainReader("t", "", read_for(branch, 299)).state(cid(299))
        assert decode(state.values["messages"], CODEC, channel="c") == said
        assert [row.base_id for row in branch] == [row.base_id for row in rows]


PLAIN = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.just("long " * 60)
NESTED = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner, max_size=4)
)
VALUES = st.lists(NESTED, max_size=30) | st.dictionaries(st.text(max_size=2) | st.integers(0, 5), NESTED, max_size=12)
CHANGES = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES | st.none(), max_size=3), min_size=1, max_size=50)


def steps_of(changes: list[dict[str, Any]]) -> tuple[list[CheckpointRow], list[dict[str, Any]]]:
    """Append one superstep for each change; None empties a channel."""
    chain, now = ChainWriter.start(""), dict[str, Any]()
    rows, states = list[CheckpointRow](), list[dict[str, Any]]()
    for at, change in enumerate(changes):
        emptied = tuple(name for name, value in change.items() if value is None and name in now)
        given = {name: value for name, value in change.items() if value is not None}
        now = {name: value for name, value in now.items() if name not in emptied} | given
        states.append(now)
        made = delta_of(at + 1, {name: encoded(value) for name, value in given.items()}, emptied=emptied)
        rows.append(chain.append(made, checkpoint_id=cid(at), step=at, metadata={}))
    return rows, states


@settings(deadline=None)
@given(CHANGES, st.randoms())
def test_any_history_is_read_back(changes: list[dict[str, Any]], random: Any) -> None:
    """P11: however lists and dicts change from superstep to superstep, they come back equal in value, type and
    order, from a chain of their own and in a listing."""
    if len(changes) > 3:  # make later values resemble earlier ones
        for at in range(1, len(changes)):
            for name, value in changes[at - 1].items():
                if value and name in changes[at] and random.random() < 0.7:
                    grown = [*value, random.random()] if isinstance(value, list) else {**value, "new": [1]}
                    if isinstance(grown, list) and random.random() < 0.3:
                        del grown[random.randrange(len(grown))]
                    changes[at][name] = grown
    rows, states = steps_of(changes)
    listing = ChainReader("t", "", rows, keeps_states=True)
    for at in reversed(range(len(rows))):
        alone = ChainReader("t", "", read_for(rows, at))
        for reader in (alone, listing):
            state = reader.state(cid(at))
            shared = {name: decode(value, CODEC, channel=name) for name, value in state.values.items()}
            assert repr(shared) == repr(states[at])  # the order of keys, and 1 is not True
            whole = state.decode(cid(at), CODEC)["channel_values"]
            assert repr(whole) == repr({name: states[at][name] for name in sorted(states[at])})
        assert ChainWriter.resume(alone, cid(at)).state == listing.state(cid(at))


STATES = st.builds(
    lambda names, seen, clock: EncodedState(
        ts=float(clock),
        clock=clock,
        values={name: bytes([len(name)]) for name in names},
        kinds=dict.fromkeys(names, "k"),
        versions={name: clock - at % 3 for at, name in enumerate(names)},
        seen={name: dict.fromkeys(seen, clock) for name in names[::2]},
        ran=tuple(names[:2]),
        tips=dict.fromkeys(seen, "tip"),
        spent={},
    ),
    st.permutations(["a", "b", "c", "d", "e"]).flatmap(lambda all: st.integers(0, 5).map(lambda count: all[:count])),
    st.lists(st.sampled_from(["n", "m", "o"]), unique=True, min_size=1),
    st.integers(3, 9),
)


@given(STATES, STATES)
def test_the_changes_between_two_states(before: EncodedState, now: EncodedState) -> None:
    """A snapshot row turns the state of the snapshot row before it into the state after all supersteps between, with
    channels in the order in which they were written."""
    now = msgspec.structs.replace(now, tips={**before.tips, **now.tips})  # tips are never removed
    made = before.copy()
    delta_of = now.delta_since(before, {})
    made.apply(delta_of, delta_of.values)
    assert made == now
    assert [*made.values] == [*now.values]


def test_a_missing_row_is_damage() -> None:
    """P11: reading a state raises an error if a row of its chain is missing."""
    rows, _ = thread_of(200)
    chain = read_for(rows, 199)
    reader = ChainReader("t", "", chain)
    for gone in reader.path(cid(199))[1:]:
        with pytest.raises(CorruptCheckpointError):
            ChainReader("t", "", [row for row in chain if row.checkpoint_id != gone]).state(cid(199))


@pytest.mark.parametrize("turns", ["emptied", "a text"])
def test_values_that_come_and_go_do_not_slow_reading(turns: str) -> None:
    """P10: a read costs at most about twice the state, also if a channel holds something large in every other
    superstep only, and after a resume from such a superstep."""
    chain = ChainWriter.start("")
    rows: list[CheckpointRow] = []
    for at in range(2000):
        if at % 2:
            change = delta_of(at + 1, {"c": encoded([f"{at}" * 100])})
        elif turns == "emptied" and at:
            change = delta_of(at + 1, {}, emptied=("c",))
        else:
            change = delta_of(at + 1, {"c": encoded("short")})
        rows.append(chain.append(change, checkpoint_id=cid(at), step=at, metadata={}))
        if not at % 501:
            chain = ChainWriter.resume(ChainReader("t", "", read_for(rows, at)), cid(at))
        read = sum(len(row.frame) for row in read_for(rows, at))
        assert read <= 2 * 700 + SMALL + 700
