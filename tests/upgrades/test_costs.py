"""What rules cost: nothing without a declaration, and of a migration only the keys that it touches."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from pregel_async import START
from pregel_async._runtime.persistence import restore, upgrading
from pregel_async.types import REMOVED, Renamed, StoredState
from tests.upgrades.graphs import Log, built, failed, says

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

make_schema: Any = TypedDict
"""For keys that depend on the test."""

NAMES = [f"k{number}" for number in range(50)]


async def functions_of(modules: set[str], call: Callable[[], Any]) -> list[str]:
    """Return the functions of modules that a call calls."""
    called: list[str] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename in modules:
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return called


async def test_graphs_without_declarations_pay_nothing() -> None:
    """P15: loads, supersteps and open supersteps of a graph without rules call no function of the module of rules, and
    make no program of their own; with a rule, they do."""
    modules, saver = {upgrading.__file__, restore.__file__}, InMemorySaver()
    nodes, edges = {"a": says("a"), "b": says("b")}, [(START, "a"), (START, "b")]
    graph = built(Log, nodes, edges, saver)
    await failed(graph, "b", given={})
    keys = {"log": Annotated[list[str], operator.add], "m": Annotated[int, Renamed("n")]}
    ruled = built(make_schema("schema", keys, total=False), nodes, edges, saver)

    async def use(graph: Any) -> None:
        await graph.aget_state("t")
        await graph.ainvoke(None, "t")
        await graph.ainvoke({}, "t")

    plain = await functions_of(modules, lambda: use(graph))
    rules = {"_apply_rules", "_with_nodes", "renamed_state", "renamed_record", "migrated", "_retyped", "renamed_write"}
    assert "restored" in plain and not rules.intersection(plain)
    await failed(graph, "b", given={})
    found = await functions_of(modules, lambda: use(ruled))
    assert "renamed_state" in found and "_with_nodes" not in found  # no node was renamed


@pytest.mark.parametrize("key", ["k7", "k49"])
async def test_a_migration_decodes_what_it_touches(
    saver: BaseCheckpointSaver, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P15: a migration that touches one key of fifty decodes that one; so does one that asks which keys there are."""
    decoded: list[str] = []
    real = upgrading.decode

    def noting(data: Any, codec: Any, *, channel: str) -> Any:
        decoded.append(channel)
        return real(data, codec, channel=channel)

    def to_2(old: StoredState) -> dict[str, Any]:
        return {key: old[key] + 1} if key in old and len([*old]) == 50 else {}

    def to_3(old: StoredState) -> dict[str, Any]:
        return {"gone": REMOVED}

    schema = make_schema("schema", dict.fromkeys(NAMES, int), total=False)
    old = built(schema, {"a": says("a", {})}, [(START, "a")], saver)
    await old.ainvoke(dict.fromkeys(NAMES, 1), "t")
    new = built(
        schema, {"a": says("a", {})}, [(START, "a")], saver, version=3, migrations={2: to_2, 3: to_3}, removed=["gone"]
    )
    monkeypatch.setattr(upgrading, "decode", noting)
    assert (await new.aget_state("t")).values == {**dict.fromkeys(NAMES, 1), key: 2}
    assert decoded == [key]
