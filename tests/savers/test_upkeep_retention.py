"""The retention decision without a thread (P10): it needs only the headers of checkpoints."""

from __future__ import annotations

from typing import Any

from checkpoint_savers.records import BRANCHED, CALLER, CLOSED, FOLLOWED, CheckpointId, Header
from checkpoint_savers.upkeep.retention import (
    CheckpointTree,
    Retention,
    RetentionPlan,
    changes,
    created,
    moved_heads,
    rewrite_size,
    within_limits,
)


def cid(number: int) -> CheckpointId:
    return CheckpointId(f"{number:06d}")


def row(
    number: int,
    parent: int | None = None,
    *,
    ns: str = "",
    base: int | None = None,
    on: dict[str, int] | None = None,
    pinned: bool = False,
    size: int = 10,
    **metadata: Any,
) -> Header:
    """A checkpoint's header: a keyframe without `base`, and made `on` those checkpoints of its outer graphs."""
    return Header(
        thread_id="t",
        ns=ns,
        checkpoint_id=cid(number),
        parent_id=None if parent is None else cid(parent),
        base_id=cid(number if base is None else base),
        step=number,
        metadata={"source": "loop", "parents": {name: cid(at) for name, at in (on or {}).items()}, **metadata},
        size=size,
        pinned=pinned,
    )


def retained(
    headers: list[Header], limits: set[int], head: int, tips: tuple[tuple[str, int], ...] = ()
) -> dict[int, Any]:
    tree = CheckpointTree(headers)
    names = {int(checkpoint_id): ns for ns, checkpoint_id in tree.rows}
    plan = RetentionPlan(tree, {(names[number], cid(number)) for number in limits}, cid(head))
    plan.add_subgraphs({(ns, cid(at)) for ns, at in tips})
    return {int(checkpoint_id): why for (_, checkpoint_id), why in plan.retained.items()}


def test_limits_count_by_namespace_and_bytes_by_thread() -> None:
    """P10: `keep` counts the newest checkpoints of each namespace; `max_bytes` counts those of all namespaces,
    newest first."""
    headers = [row(4), row(3, ns="n", size=5), row(2), row(1, ns="n")]
    assert within_limits(Retention(keep=1), headers, 0) == {("", cid(4)), ("n", cid(3))}
    assert within_limits(Retention(max_bytes=15), headers, 0) == {("", cid(4)), ("n", cid(3))}
    assert within_limits(Retention(max_bytes=14), headers, 0) == {("", cid(4))}
    assert within_limits(Retention(keep=9, max_bytes=100), headers, 0) == {
        (one.ns, one.checkpoint_id) for one in headers
    }


def test_ids_contain_times() -> None:
    """P10: the runtime's ids contain their time; checkpoints with other ids have no known age and do not expire."""
    assert created("01a1fa8c-2d2e-704c-9bce-219a5a4cba50") == 0x01A1FA8C2D2E / 1000
    for other in ("000001", "", "01a1fa8c-2d2e-404c-9bce-219a5a4cba50", "zza1fa8c-2d2e-704c-9bce-219a5a4cba50"):
        assert created(other) is None


def test_tips_and_the_head() -> None:
    """P10: the tips of open branches stay, and so does the head."""
    headers = [row(1), row(2, 1), row(3, 1), row(4, 2, source="fork"), row(5, 4)]
    assert retained(headers, set(), 3) == {2: "tip", 3: "head", 5: "tip"}
    assert retained(headers, {5}, 1) == {1: "head", 2: "tip", 3: "tip", 5: None}


def test_a_checkpoint_with_children_is_no_tip() -> None:
    """P10: not even if all its children have been removed."""
    assert retained([row(1, **{FOLLOWED: CLOSED}), row(2, **{FOLLOWED: BRANCHED}), row(3)], set(), 3) == {
        2: "tip",
        3: "head",
    }


def test_pins() -> None:
    """P10: a pinned checkpoint stays with its tasks' results and the checkpoints of its outer graphs."""
    headers = [
        row(1),
        row(2, 1),
        row(3, ns="n", on={"": 2}),
        row(4, 3, ns="n", on={"": 2}, pinned=True),
        row(5, 4, ns="n", on={"": 2}),
        row(6, 5, ns="n", on={"": 2}),
        row(7, 2),
        row(8, 7),
    ]
    assert retained(headers, set(), 8) == {2: "around", 4: "pinned", 5: "follows", 6: "inside", 7: "follows", 8: "head"}


def test_checkpoints_of_subgraphs() -> None:
    """P10: for each checkpoint of the outer graph that stays, the last one of each call stays; those made on removed
    ones are removed, too."""
    headers = [
        row(1),
        row(2, ns="n", on={"": 1}, **{CALLER: "a"}),
        row(3, 1),
        row(4, 2, ns="n", on={"": 3}, **{CALLER: "b"}),
        row(5, ns="n|m", on={"": 3, "n": 4}),
        row(6, 3),
        row(7, 4, ns="n", on={"": 6}, **{CALLER: "c"}),
    ]
    assert retained(headers, {6}, 6) == {6: None, 7: "inside"}
    assert retained(headers, {3, 6}, 6) == {3: None, 4: "inside", 5: "inside", 6: None, 7: "inside"}
    assert retained(headers, {6, 2}, 6) == {6: None, 7: "inside"}
    assert retained(headers, {6}, 6, (("n", 2),)) == {2: "inside", 6: None, 7: "inside"}


def test_checkpoints_of_open_tasks() -> None:
    """P10: of states that are kept between calls, the newest one made on an open checkpoint stays, also if its outer
    graph has continued."""
    headers = [
        row(1),
        row(2, ns="n", on={"": 1}),
        row(3, ns="n|k", on={"": 1, "n": 2}, **{CALLER: "a"}),
        row(4, 2, ns="n", on={"": 1}),
    ]
    assert retained(headers, set(), 1) == {1: "head", 3: "inside", 4: "inside"}


def test_changes_to_rows() -> None:
    """P10: links to removed rows are cut; a row is rebased if a row that it is read with is removed; a parent is
    marked as having had children."""
    tree = CheckpointTree(
        [row(1), row(2, 1, base=1), row(3, 2, base=1), row(4, 3), row(5, 4, base=4), row(6, 5, source="fork", base=4)]
    )

    def changed_rows(*left: int, forgotten: bool = False) -> dict[int, tuple[Any, ...]]:
        found = changes(tree, {("", cid(number)) for number in left}, forgotten=forgotten)
        return {int(one.key[1]): (one.orphaned, one.parent_id, one.followed) for one in found}

    assert changed_rows(1, 2, 3, 4, 5, 6) == {}
    assert changed_rows(2, 3, 4, 5, 6) == {2: (True, None, None), 3: (True, cid(2), None)}
    assert changed_rows(1, 3, 4, 5, 6) == {1: (False, None, CLOSED), 3: (True, None, None)}
    assert changed_rows(4, 5) == {4: (False, None, None), 5: (False, cid(4), BRANCHED)}
    assert changed_rows(1, 6, forgotten=True) == {6: (True, None, None)}
    assert rewrite_size(tree, changes(tree, {("", cid(6))})) == 30


def test_heads_move_back() -> None:
    """P10: a removed head moves to its nearest ancestor that stays, or else to the newest checkpoint."""
    tree = CheckpointTree([row(1), row(2, 1), row(3, 2), row(4, 1), row(5, ns="n")])

    def heads(*left: int) -> dict[str, Any]:
        names = {int(at): ns for ns, at in tree.rows}
        return moved_heads(tree, {(names[one], cid(one)) for one in left}, {"": cid(3), "n": cid(5)}, {"", "n"})

    assert heads(1, 2, 4, 5) == {"": cid(2)}
    assert heads(1, 4) == {"": cid(1), "n": None}
    assert heads(4) == {"": cid(4), "n": None}
    assert heads(3, 5) == {}
