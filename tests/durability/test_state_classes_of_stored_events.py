"""States in stored events: a reader that reconnects gets instances of the schema exactly where the first reader did."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

import anyio
import msgspec
import pydantic
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import START, StateGraph

pytestmark = pytest.mark.anyio

MODES: Any = ["values", "updates", "tasks", "checkpoints", "debug"]


@dataclass
class Plain:
    count: int
    kept: int = 7
    log: Annotated[list[str], operator.add] = field(default_factory=list)


class Struct(msgspec.Struct):
    count: int
    kept: int = 7
    log: Annotated[list[str], operator.add] = msgspec.field(default_factory=list)


class Model(pydantic.BaseModel):
    count: int
    kept: int = 7
    log: Annotated[list[str], operator.add] = []


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("keys", [None, ["count"], "count"])
@pytest.mark.parametrize("schema", [Plain, Struct, Model])
async def test_states_come_back_as_they_were_streamed(schema: Any, keys: Any, joins: bool) -> None:
    """docs/streaming.md: "States that are dataclasses, Structs or pydantic models come as such." In `debug` they came
    back as mappings; and a selection by `output_keys` came back as an instance of the schema, with defaults for the
    keys that were left out, as if it were the state."""
    gate = anyio.Event()

    async def work(state: Any) -> dict[str, Any]:
        if joins:
            await gate.wait()
        return {"count": state.count + 1, "kept": 8, "log": ["x"]}

    inside = StateGraph(schema).add_node(work).add_edge(START, "work").compile()
    graph = StateGraph(schema).add_node("inside", inside).add_edge(START, "inside").compile(InMemorySaver())
    ask: Any = {"stream_mode": MODES, "subgraphs": True, "version": "v2"}
    seen: list[Any] = []

    async def run() -> None:
        async for part in graph.astream(schema(count=1), "t", output_keys=keys, keep_events=True, **ask):
            seen.append(part)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            back = graph.astream(None, "t", after=".0.0.0", **ask)
            again = [await anext(back)]  # the parts after this one were joined live or read from storage
            await anyio.wait_all_tasks_blocked()
            gate.set()
            again += [part async for part in back]
    assert [part["data"] for part in again] == [part["data"] for part in seen]
