"""Many runs of one graph by one call: `abatch`, which returns all outputs, and `abatch_as_completed`."""

from __future__ import annotations

from typing import Any, TypedDict

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph
from pregel_async.errors import ConfigError

pytestmark = pytest.mark.anyio


class State(TypedDict, total=False):
    x: int
    y: int


async def double(state: State) -> State:
    if state["x"] < 0:
        raise ValueError(f"{state['x']} is negative")
    return {"y": 2 * state["x"]}


def graph(saver: Any = None, node: Any = double) -> Any:
    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile(saver)


def inputs(*numbers: int) -> list[State]:
    return [{"x": number} for number in numbers]


class Gate:
    """A node that waits until all runs have begun, and its input's turn has come."""

    def __init__(self, *turns: int, runs: int = 0) -> None:
        self.turns = [*turns]
        self.expected = runs
        self.running = self.most = 0
        self.cancelled: list[int] = []
        self.changed = anyio.Event()

    async def __call__(self, state: State) -> State:
        self.running += 1
        self.most = max(self.most, self.running)
        self.expected -= 1
        self.notify()
        try:
            while self.expected > 0 or (self.turns and self.turns[0] != state["x"]):
                await self.changed.wait()
        except BaseException:
            self.cancelled.append(state["x"])
            raise
        finally:
            self.running -= 1
        self.turns = self.turns[1:]
        self.notify()
        return await double(state)

    def notify(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()


async def test_options_of_each_run() -> None:
    """`abatch` takes every option of `ainvoke`, for all runs."""
    assert await graph().abatch(inputs(1, 2), output_keys="y") == [2, 4]
    assert await graph().abatch(inputs(1, 2), stream_mode="updates") == [[{"node": {"y": 2}}], [{"node": {"y": 4}}]]
    assert [each.value for each in await graph().abatch(inputs(1), version="v2")] == [{"x": 1, "y": 2}]
    saver = InMemorySaver()
    stopped = await graph(saver).abatch(inputs(1, 2), ["a", "b"], interrupt_before=["node"], durability="exit")
    assert stopped == [{"x": 1}, {"x": 2}]
    assert (await graph(saver).aget_state("b")).next == ("node",)


async def test_outputs_come_as_their_runs_end() -> None:
    """`abatch_as_completed` yields the index and the output of each run in the order in which the runs end."""
    gate = Gate(3, 1, 2, runs=3)
    stream = graph(node=gate).abatch_as_completed(inputs(1, 2, 3), output_keys="y")
    assert [pair async for pair in stream] == [(2, 6), (0, 2), (1, 4)]
    assert [pair async for pair in graph().abatch_as_completed([])] == []


async def test_a_failure_as_completed() -> None:
    """Earlier outputs come first, then the exception; the other runs are cancelled. With `return_exceptions` the
    exception comes as the output of its run."""
    gate = Gate(1, -2, 3, runs=3)
    found: list[Any] = []
    with pytest.raises(ValueError, match="-2 is negative"):
        async for pair in graph(node=gate).abatch_as_completed(inputs(4, 1, -2), output_keys="y"):
            found.append(pair)
    assert found == [(1, 2)]
    assert gate.cancelled == [4]
    pairs = dict([pair async for pair in graph().abatch_as_completed(inputs(-1, 1), return_exceptions=True)])
    assert isinstance(pairs[0], ValueError) and pairs[1] == {"x": 1, "y": 2}


async def test_closing_the_stream_cancels_the_runs() -> None:
    """P7: the runs have ended when `async with` is left."""
    gate = Gate(1, 9, runs=3)  # nine's turn never comes
    async with graph(node=gate).abatch_as_completed(inputs(1, 2, 3)) as outputs:
        assert await anext(outputs) == (0, {"x": 1, "y": 2})
    assert sorted(gate.cancelled) == [2, 3] and gate.running == 0


def test_without_an_event_loop() -> None:
    """The sync twins are `batch` and `batch_as_completed`."""
    assert graph().batch(inputs(1, 2), output_keys=["y"]) == [{"y": 2}, {"y": 4}]
    with graph().batch_as_completed(inputs(1, 2), output_keys="y") as outputs:
        assert sorted(outputs) == [(0, 2), (1, 4)]


@pytest.mark.parametrize("how", ["option", "config", "configs"])
async def test_the_number_of_concurrent_runs(how: str) -> None:
    """`max_concurrency`, as an option or in the first config, limits how many runs there are at a time."""
    gate, options = Gate(), {}
    config: Any = None
    if how == "option":
        options["max_concurrency"] = 2
    else:
        config = {"max_concurrency": 2} if how == "config" else [{"max_concurrency": 2}, *[{}] * 4]

    async def node(state: State) -> State:
        gate.running += 1
        gate.most = max(gate.most, gate.running)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        gate.running -= 1
        return {"y": state["x"]}

    assert await graph(node=node).abatch(inputs(*range(5)), config, output_keys="y", **options) == [*range(5)]
    assert gate.most == 2


async def test_configs_are_as_many_as_inputs() -> None:
    """Otherwise the call raises before anything runs."""
    with pytest.raises(ConfigError, match="2 inputs and 1 configs"):
        await graph().abatch(inputs(1, 2), ["t"])
    with pytest.raises(ConfigError, match="2 inputs and 1 configs"):
        graph().abatch_as_completed(inputs(1, 2), ["t"])
