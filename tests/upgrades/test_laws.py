"""Laws over random versions of a schema: the way to a version does not matter, and unknown keys stay byte-equal."""

from __future__ import annotations

import io
import operator
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_savers import InMemorySaver
from checkpoint_savers.chain import ChainReader
from checkpoint_savers.patches import data_of
from pregel_async import START, Command
from pregel_async.types import Added, Renamed, Retyped, StoredState
from tests.upgrades.graphs import asks, built, says

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop,
    pytest.mark.filterwarnings("ignore::pregel_async.errors.UnknownStoredKeyWarning"),
]

make_schema: Any = TypedDict
"""For keys that a type checker cannot know."""

Value = int | list[str]

FATES = (
    "keep",
    "rename",
    "rename later",
    "retype",
    "retype later",
    "both",
    "forget",
    "back",
    "remove",
    "add",
    "migrate",
)
"""What becomes of a key in versions 2 and 3."""


def versions_of(key: str, fate: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the annotations of a key in the three versions."""
    k, k2, k3 = key, f"{key}_2", f"{key}_3"
    value: dict[str, Any] = {k: Value}
    text: Any = Annotated[str, Retyped(str)]
    return {
        "keep": (value, value, value),
        "rename": (value, {k2: Annotated[Value, Renamed(k)]}, {k3: Annotated[Value, Renamed(k2, k)]}),
        "rename later": (value, value, {k3: Annotated[Value, Renamed(k)]}),
        "retype": (value, {k: text}, {k: text}),
        "retype later": (value, value, {k: text}),
        "both": (
            value,
            {k2: Annotated[str, Retyped(str, was=k)]},
            {k3: Annotated[str, Retyped(str, was=k), Renamed(k2)]},
        ),
        "forget": (value, {}, {}),
        "back": (value, {}, value),
        "remove": (value, {}, {}),
        "add": ({}, {k: Annotated[int, Added(5)]}, {k: Annotated[int, Added(5)]}),
        "migrate": (value, value, value),
    }[fate]


def graphs(saver: Any, fates: dict[str, str], *, versioned: bool) -> list[Any]:
    """Compile the three versions of a graph whose nodes are renamed in each."""
    log: Any = Annotated[list[str], operator.add]
    hints = [{"log": log}, {"log": log}, {"log": log}]
    for key, fate in fates.items():
        for found, more in zip(hints, versions_of(key, fate), strict=True):
            found.update(more)
    removed = [key for key, fate in fates.items() if fate == "remove"]
    migrated = [key for key, fate in fates.items() if fate == "migrate"]

    def step(number: int) -> Any:
        return lambda old: migrate(old, migrated, number)

    made: list[Any] = []
    for version, found in enumerate(hints, 1):
        was = [f"ask{each}" for each in range(version - 1, 0, -1)]
        name, options = f"ask{version}", dict[str, Any]()
        if version > 1:
            options["removed"] = removed
        if versioned:
            options |= {"version": version, "migrations": {each: step(each) for each in range(2, version + 1)}}
        nodes = {name: (asks("ask"), {"was": was}), "other": asks("other"), "end": says("end")}
        edges: list[Any] = [(START, name), (START, "other"), ([name, "other"], "end")]
        made.append(built(make_schema("schema", found, total=False), nodes, edges, saver, **options))
    return made


def migrate(old: StoredState, keys: list[str], number: int) -> dict[str, Any]:
    return {key: old[key] * number for key in keys if key in old}


async def answer(graph: Any, question: str) -> None:
    state = await graph.aget_state("t")
    (asked,) = [each.id for each in state.interrupts if each.value == question]
    await graph.ainvoke(Command(resume={asked: "yes"}), "t")


async def shown(graph: Any) -> Any:
    state = await graph.aget_state("t")
    return state.values, state.unknown, state.next, state.interrupts, [each.id for each in state.tasks], state.changed


held = st.one_of(st.integers(0, 300), st.lists(st.text("ab", max_size=40), max_size=20))
keys = st.dictionaries(st.sampled_from("pqrstu"), st.tuples(held, st.sampled_from(FATES)), min_size=1)


@given(keys, st.booleans(), st.booleans())
@settings(max_examples=15, deadline=None)
async def test_the_way_does_not_matter(drawn: dict[str, Any], is_open: bool, versioned: bool) -> None:
    """P15: a thread that version 2 has continued is for version 3 what it is if version 1 has; reading stores nothing."""
    fates = {key: fate for key, (_, fate) in drawn.items() if versioned or fate != "migrate"}
    first = {key: value for key, (value, fate) in drawn.items() if key in fates and fate != "add"}
    found: list[Any] = []
    for way in (0, 1):
        saver = InMemorySaver()
        versions = graphs(saver, fates, versioned=versioned)
        await versions[0].ainvoke({"log": ["in"], **first}, "t")
        if not is_open:
            await answer(versions[0], "ask?")
            await answer(versions[0], "other?")
            await versions[way].ainvoke({}, "t")
        await answer(versions[way], "other?")
        before = await saver.dump("t")
        seen = [await shown(versions[2])]
        assert [each async for each in versions[2].aget_state_history("t")] and await saver.dump("t") == before
        await answer(versions[2], "ask?")
        seen.append(await shown(versions[2]))
        found.append(seen)
    # A task that version 2 has planned has the id of its name; only version 1 has planned those of open supersteps.
    plain = [[(*each[:3], each[5]) for each in seen] for seen in found]
    assert plain[0] == plain[1]
    assert not is_open or found[0] == found[1]


async def stored(saver: InMemorySaver, thread: str = "t") -> dict[str, bytes]:
    """Return the stored bytes of each key in the newest state."""
    chain = await saver.read(thread)
    assert chain is not None
    values = ChainReader(thread, "", chain.rows).state(chain.rows[-1].checkpoint_id).values
    return {name: bytes(data_of(value)) for name, value in values.items()}


@given(st.dictionaries(st.sampled_from("pqr"), held, min_size=1), st.integers(1, 70))
@settings(max_examples=8, deadline=None)
async def test_unknown_and_removed_keys(first: dict[str, Any], rounds: int) -> None:
    """P15: an unknown key is byte-equal after supersteps, full rows, a prune and an export; of a removed key, the rows
    that are left hold no byte."""

    def graph(hints: dict[str, Any], **options: Any) -> Any:
        schema = make_schema("schema", {"n": int, **hints}, total=False)
        return built(schema, {"add": lambda state: {"n": state.get("n", 0) + 1}}, [(START, "add")], saver, **options)

    saver = InMemorySaver()
    marked = {f"key-{key}": value for key, value in first.items()}
    await graph(dict.fromkeys(marked, Value)).ainvoke(marked, "t")
    before = {key: data for key, data in (await stored(saver)).items() if key in marked}
    unknowing = graph({})
    for _ in range(rounds):
        await unknowing.ainvoke({}, "t")
    file = io.BytesIO()
    await saver.aexport_thread("t", file)
    file.seek(0)
    await saver.aimport_thread(file, thread_id="imported")
    await saver.aprune("t", strategy="keep_latest")
    for thread in ("t", "imported"):
        assert {key: data for key, data in (await stored(saver, thread)).items() if key in marked} == before
        assert (await unknowing.aget_state(thread)).unknown == marked
    await graph({}, removed=[*marked]).ainvoke({}, "t")
    assert not before.keys() & await stored(saver)
    for _ in range(rounds):
        await unknowing.ainvoke({}, "t")
    await saver.aprune("t", strategy="keep_latest")
    dump = await saver.dump("t")
    assert dump is not None
    assert not any(key.encode() in repr(dump).encode() for key in marked)
