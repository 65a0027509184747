"""P5, P8, P10: the retained checkpoints of a pruned random thread can be read, answered and continued as before."""

from __future__ import annotations

import random
from datetime import timedelta

import anyio
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from checkpoint_savers import InMemorySaver
from checkpoint_savers.upkeep.retention import Retention
from tests.helpers.environments import SeededEnvironment
from tests.helpers.law_programs import Build, Hooks, Program, programs
from tests.laws.conversations import THREAD, law, same, show
from tests.laws.thread_histories import copied, finish, is_cut, random_history, shown

LOOPS = ("asyncio", "trio")


def retentions() -> st.SearchStrategy[Retention]:
    return st.one_of(
        st.builds(Retention, keep=st.integers(1, 6)),
        st.builds(Retention, max_bytes=st.integers(0, 6000)),
        st.builds(Retention, keep=st.integers(1, 9), max_bytes=st.integers(0, 9000)),
        st.builds(Retention, max_age=st.integers(0, 300).map(lambda ms: timedelta(milliseconds=ms))),
    )


@pytest.mark.parametrize("loop", LOOPS)
@law(0.5)
@given(made=programs(), seed=st.integers(0, 2**32), retention=retentions(), pins=st.integers(0, 3))
def test_retained_checkpoints_are_unchanged(
    loop: str, made: Program, seed: int, retention: Retention, pins: int
) -> None:
    """P10: all retained checkpoints read as before, with their tasks and subgraphs; a run from an open one, or a fork,
    gives the same result and runs no additional work."""
    show(made)
    note(f"{retention}, {pins} pins")

    async def tried() -> None:
        luck = random.Random(seed)
        environment = SeededEnvironment()
        saver = InMemorySaver(clock=lambda: environment.time)
        await random_history(made, saver, luck, environment)
        headers = await saver.scan("t", None, limit=10_000)
        for header in luck.sample(headers, min(pins, len(headers))):
            note(f"pinned: {header.ns} {header.checkpoint_id}")
            await saver.apin(
                {"configurable": {"thread_id": "t", "checkpoint_ns": header.ns, "checkpoint_id": header.checkpoint_id}}
            )
        pruned = await copied(saver)
        looked = await pruned.aprune("t", retention=retention, dry_run=True)
        done = await pruned.aprune("t", retention=retention)
        assert looked.threads == done.threads and looked.dry_run
        gone = {key for thread in done.threads for key in thread.gone}
        stayed = {(one.ns, one.checkpoint_id): one.why for thread in done.threads for one in thread.stayed}
        await compare(made, saver, pruned, luck, gone, stayed)
        if retention.max_bytes is None:  # otherwise rebased rows may be larger than before
            assert not (await pruned.aprune("t", retention=retention)).checkpoints, "no checkpoint is left to prune"

    anyio.run(tried, backend=loop)


async def compare(
    made: Program,
    saver: InMemorySaver,
    pruned: InMemorySaver,
    luck: random.Random,
    gone: set[tuple[str, str]],
    stayed: dict[tuple[str, str], str],
) -> None:
    before, after = (Build(Hooks())(made, each, SeededEnvironment()) for each in (saver, pruned))
    headers = {(one.ns, one.checkpoint_id): one for one in await saver.scan("t", None, limit=10_000)}
    left = {(one.ns, one.checkpoint_id): one for one in await pruned.scan("t", None, limit=10_000)}
    assert left.keys() == headers.keys() - gone
    assert all(left[key].pinned == headers[key].pinned for key in left)
    assert not any(key in gone for key, header in headers.items() if header.pinned)
    closed = {header.parent_id for header in headers.values() if header.metadata["source"] != "fork"}
    assert all(("", at) in left for ns, at in headers if ns == "" and at not in closed), "a tip of a branch was pruned"
    for ns, checkpoint_id in sorted(left):
        config = {"configurable": {"thread_id": "t", "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}}
        one, other = [await each.aget_tuple(config, codec=before._definition.codec) for each in (saver, pruned)]
        assert one is not None and other is not None
        same(one.checkpoint, other.checkpoint, "the stored state")
        same(one.pending_writes, other.pending_writes, "what is recorded")
        if ns == "":
            then, now = [await graph.aget_state(config, subgraphs=True) for graph in (before, after)]
            has_results = not is_cut(now) and stayed.get((ns, checkpoint_id)) != "follows"
            same(
                await shown(before, then, results=has_results),
                await shown(after, now, results=has_results),
                f"{checkpoint_id}",
            )
            assert then.parent_config == now.parent_config or now.parent_config is None
    listed = [each async for each in after.aget_state_history("t")]
    assert {("", each.config["configurable"]["checkpoint_id"]) for each in listed} == {
        key for key in left if not key[0]
    }
    assert await read_head(saver) == await read_head(pruned)
    roots = [checkpoint_id for ns, checkpoint_id in sorted(left) if ns == ""]
    for checkpoint_id in [None, *luck.sample(roots, min(3, len(roots)))]:
        note(f"continues from {checkpoint_id}")
        config = THREAD
        if checkpoint_id is not None:
            config = {**THREAD, "configurable": {"thread_id": "t", "checkpoint_id": checkpoint_id}}
        one = await finish(made, await copied(saver), config)
        other = await finish(made, await copied(pruned), config)
        same(list(one), list(other), "what comes of it")


async def read_head(saver: InMemorySaver) -> str | None:
    chain = await saver.read("t")
    return None if chain is None else chain.head
