"""Threads that released versions have stored are kept as files, and later code continues them."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, Command, Send, StateGraph, interrupt
from pregel_async.errors import ConfigError
from pregel_async.testing import RecordedThreadsError, check_recorded, recorded
from pregel_async.types import Renamed

pytestmark = pytest.mark.anyio
CORPUS = Path(__file__).parent / "recorded"
"""Threads of version 1 of `orders`. Never make these files again: they are what the released code has stored."""


class Stock(TypedDict, total=False):
    checked: Annotated[int, operator.add]


class Order(TypedDict, total=False):
    name: str
    log: Annotated[list[str], operator.add]
    checked: Annotated[int, operator.add]


class NewOrder(TypedDict, total=False):
    customer: Annotated[str, Renamed("name")]
    log: Annotated[list[str], operator.add]
    checked: Annotated[int, operator.add]


class Undeclared(TypedDict, total=False):
    customer: str
    name: int
    log: Annotated[list[str], operator.add]
    checked: Annotated[int, operator.add]


def check(state: Stock) -> Stock:
    return {"checked": 1}


def approve(state: Any) -> dict[str, Any]:
    return {"log": [f"approved: {interrupt('approve?')}"]}


def pack(state: Any) -> dict[str, Any]:
    name = state.get("name") or state.get("customer")
    if name == "broken":
        raise RuntimeError("broken")
    return {"log": [f"packed for {name}"]}


def orders(saver: Any, schema: Any = Order, approval: str = "approve", **options: Any) -> Any:
    """Version 1; other schemas and names are of later versions."""
    given = {key: options.pop(key) for key in ("was",) if key in options}
    stock = StateGraph(Stock).add_node("check", check).add_edge(START, "check").compile(True)
    builder = StateGraph(schema).add_node("stock", stock).add_node("pack", pack)
    builder.add_node(approval, approve, **given).add_edge(START, "stock")
    builder.add_conditional_edges("stock", lambda state: [Send("pack", state), approval], ["pack", approval])
    return builder.compile(saver, blocking=False, **options)


async def make(folder: Path) -> list[Path]:
    """Record a thread that has ended, one that asks, and one that has failed."""
    graph = orders(InMemorySaver())
    await graph.ainvoke({"name": "Ada"}, "idle")
    await graph.ainvoke(Command(resume="yes"), "idle")
    await graph.ainvoke({"name": "Ada"}, "asking")
    with pytest.raises(RuntimeError, match="broken"):
        await graph.ainvoke({"name": "broken"}, "failed/1")
    return await recorded(graph, folder)


def answer(state: Any) -> Any:
    return Command(resume="yes") if state.interrupts else None if state.next else {"log": ["again"]}


NAMES = ["v1-asking.threads", "v1-failed%2F1.threads", "v1-idle.threads"]


async def test_the_corpus_is_continued() -> None:
    """P15: threads of the first version load with the code of today, and with declared changes; they continue."""
    assert await check_recorded(orders(None), CORPUS) == NAMES
    changed = orders(None, NewOrder, "sign_off", was="approve", version=2)
    assert await check_recorded(changed, CORPUS) == NAMES
    for graph in (orders(None), changed):
        with pytest.raises(RuntimeError, match="broken") as caught:
            await check_recorded(graph, CORPUS, continue_with=answer)
        assert caught.value.__notes__[-1].endswith("v1-failed%2F1.threads")


async def test_undeclared_changes_fail() -> None:
    """P15: the error names each thread, what does not fit, and the missing declaration."""
    with pytest.raises(RecordedThreadsError, match="3 of the threads") as caught:
        await check_recorded(orders(None, Undeclared, "sign_off"), CORPUS, continue_with=answer)
    assert list(caught.value.checks) == NAMES
    assert "v1-asking.threads: a task of node 'approve' is pending" in str(caught.value)
    assert "was='approve'" in str(caught.value) and "Retyped" in str(caught.value)


async def test_recording(tmp_path: Path) -> None:
    """One file per thread, which a later call leaves as it is; both calls say what is missing."""
    made = await make(tmp_path / "new")
    assert [path.name for path in made] == NAMES
    before = [path.read_bytes() for path in made]
    assert await make(tmp_path / "new") == []
    assert before == [path.read_bytes() for path in made]
    with pytest.raises(ConfigError):
        await recorded(orders(None), tmp_path)
    with pytest.raises(FileNotFoundError):
        await check_recorded(orders(None), tmp_path)
