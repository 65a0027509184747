"""P9: when a task fails, its siblings are cancelled and awaited before the error is raised."""

from __future__ import annotations

from typing import TypedDict

import anyio
import pytest

from pregel_async import START, StateGraph

pytestmark = pytest.mark.anyio


class State(TypedDict):
    x: int


async def test_a_sibling_that_would_run_for_ever_is_cancelled() -> None:
    """P9: the sibling has cleaned up when the caller gets the error; if it kept running, this test would miss its
    deadline."""
    cleaned_up = False

    async def broken(state: State) -> None:
        raise LookupError("broken")

    async def endless(state: State) -> None:
        nonlocal cleaned_up
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up = True

    graph = (
        StateGraph(State)
        .add_node(broken)
        .add_node(endless)
        .add_edge(START, "broken")
        .add_edge(START, "endless")
        .compile()
    )
    with anyio.move_on_after(30) as deadline, pytest.raises(LookupError, match="broken"):
        await graph.ainvoke({"x": 0})
    assert not deadline.cancel_called
    assert cleaned_up
