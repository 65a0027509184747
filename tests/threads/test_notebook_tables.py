"""What snapshots, streams and errors show in a notebook."""

from __future__ import annotations

import operator
import pickle
import re
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import BaseCheckpointSaver, InMemorySaver
from checkpoint_savers.notebook import details_table, short_code, state_table
from pregel_async import START, StateGraph
from pregel_async.errors import ConfigError
from pregel_async.types import StateSnapshot

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    note: str
    same: str


def writes(state: State) -> dict[str, Any]:
    return {"log": ["<b>"], "note": "x" * 1000}


def fails(state: State) -> None:
    raise ValueError("<i>broken</i>")


def graph_of(saver: BaseCheckpointSaver) -> Any:
    return StateGraph(State).add_sequence([writes, fails]).add_edge(START, "writes").compile(saver)


def cells(html: str) -> dict[str, list[str]]:
    """Return the rows of a table, by their first cell."""
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    return {row[0]: row[1:] for row in found if row}


async def snapshots() -> tuple[StateSnapshot[Any], list[StateSnapshot[Any]]]:
    graph = graph_of(InMemorySaver())
    with pytest.raises(ValueError, match="broken"):
        await graph.ainvoke({"log": ["first"], "same": "s"}, "<t>")
    return await graph.aget_state("<t>"), [state async for state in graph.aget_state_history("<t>")]


async def test_a_snapshot_shows_what_has_changed() -> None:
    """A snapshot, of a thread or of its history, is a table of its state, with the parent's values of changed keys."""
    head, history = await snapshots()
    for snapshot in (head, history[0]):
        shown = cells(snapshot._repr_html_())
        assert shown["log"] == [
            "<code>[&#x27;first&#x27;, &#x27;&lt;b&gt;&#x27;]</code>",
            "<code>[&#x27;first&#x27;]</code>",
        ]
        assert shown["same"] == ["<code>&#x27;s&#x27;</code>", ""]
        assert shown["note"][1] == ""
        assert shown["next"] == ["<code>(&#x27;fails&#x27;,)</code>"]
        assert "parent" not in shown
    assert "fails" in cells(head._repr_html_())["failed"][0]


async def test_values_are_escaped_and_shortened() -> None:
    """No value, key, name or message becomes markup, and no value makes a long page."""
    head, _ = await snapshots()
    html = head._repr_html_()
    assert "<b>'" not in html
    assert "<i>" not in html
    assert "<t>" not in html
    assert len(html) < 3000 and "x" * 200 not in html
    assert "<script" not in state_table({"<script>": 1}, {"<script>": 2}) + details_table("<script>", [("<script>", 1)])
    assert len(short_code([["x" * 1000] * 100] * 100)) < 2000


async def test_a_snapshot_without_its_parent() -> None:
    """The first snapshot has no parent, and a pickled one has lost it: the state is shown all the same."""
    head, history = await snapshots()
    assert "changed from" not in history[-1]._repr_html_()
    again = pickle.loads(pickle.dumps(head))
    assert again == head
    shown = cells(again._repr_html_())
    assert len(shown["log"]) == 1
    assert shown["parent"] == ["<code>&#x27;not loaded&#x27;</code>"]
    empty = await graph_of(InMemorySaver()).aget_state("none")
    assert "Thread none" in empty._repr_html_()


def test_a_damaged_snapshot_says_so() -> None:
    """A snapshot that cannot be decoded shows the error instead of raising it: the others of a list stay visible."""

    def broken() -> Any:
        raise ValueError("<damaged>")

    snapshot = StateSnapshot[Any].of(broken, config={}, metadata={}, parent_config=None)
    assert "ValueError: &lt;damaged&gt;" in snapshot._repr_html_()


def test_objects_that_cannot_be_shown_or_compared() -> None:
    """A value whose `__repr__` or `__eq__` raises shows as such."""

    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

        def __ne__(self, other: object) -> bool:
            raise RuntimeError

    assert "Odd" in short_code(Odd())
    assert cells(state_table({"odd": Odd()}, {"odd": Odd()}))["odd"][1] != ""


@pytest.mark.parametrize("before", [None, {}])
def test_large_states_and_odd_keys(before: Any) -> None:
    """The state of an entrypoint is its last result: any number of entries, whose keys may be of any class."""

    class Odd:
        def __str__(self) -> str:
            raise RuntimeError

    html = state_table({Odd(): 1, "k" * 10_000: 2, **{f"k{number}": number for number in range(100_000)}}, before)
    assert "Odd, whose repr raised RuntimeError" in html
    assert "99802 more" in html
    assert len(html) < 100_000


async def test_streams() -> None:
    """A stream shows how its run goes, before, during and after it."""
    graph = StateGraph(State).add_node(writes).add_edge(START, "writes").compile()
    async with graph.astream({}, stream_mode=["updates", "values"]) as chunks:
        await anext(chunks)
        assert "running" in chunks._repr_html_() or "done" in chunks._repr_html_()
        async for _ in chunks:
            pass
        assert cells(chunks._repr_html_())["run"] == ["<code>&#x27;done&#x27;</code>"]
    unread = graph.astream({})
    assert "not started" in unread._repr_html_()
    await unread.aclose()


def test_errors() -> None:
    """An error of the runtime shows its message, its attributes, its notes and its cause."""
    error = ConfigError("<wrong>")
    error.add_note("in <node>")
    error.__cause__ = KeyError("k")
    html = error._repr_html_()
    assert "ConfigError: &lt;wrong&gt;" in html
    assert "in &lt;node&gt;" in html
    assert cells(html)["cause"] == ["<code>KeyError(&#x27;k&#x27;)</code>"]
