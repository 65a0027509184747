"""The main job of the kill tests: `examples/code_audit` with a trace of each task."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from checkpoint_savers.abc import BaseCheckpointSaver
from examples.code_audit import graph as example
from pregel_async import Send, StateGraph
from tests.durability.durable_environment import Stored
from tests.durability.durable_graphs import Probe

STAGES = ("list_files", "audit_file", "rank_files", "write_report")
"""The nodes, in the order of their supersteps. Keys of tasks end in the stage's number, from 0."""


def write_sources(root: Path, seed: int, files: int) -> None:
    """Write a small tree of Python sources."""
    rng = random.Random(seed)
    for number in range(files):
        lines = ["import os, sys"]
        for function in range(rng.randint(0, 5)):
            lines += [f"def f{function}(x):", *["    if x:", "        x += 1"] * rng.randint(1, 4), "    return x"]
        if rng.random() < 0.1:
            lines.append("def broken(:")
        path = root / f"package{number % 3}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))


def audit_graph(probe: Probe) -> StateGraph[Any]:
    """Return the example's graph builder with nodes that report to the probe."""
    builder: Any = StateGraph(example.State, input_schema=example.Input, output_schema=example.Output)
    builder.channels.update(example.builder.channels)
    builder.nodes.update(
        (name, msgspec.structs.replace(spec, call=_reporting(probe, name, spec.call)))
        for name, spec in example.builder.nodes.items()
    )
    builder.edges |= example.builder.edges
    builder.branches.update(example.builder.branches)
    return builder


def _reporting(probe: Probe, name: str, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(given: Any) -> Any:
        with probe.task(_key(name, given.get("path"))):
            return call(given)

    return run


def _key(name: str, path: str | None = None) -> str:
    return f"{name}[{path}]@{STAGES.index(name)}" if path else f"{name}@{STAGES.index(name)}"


async def stored_audit(saver: BaseCheckpointSaver, thread: str) -> Stored:
    """Return which tasks' results are stored; `length` is the number of the next stage."""
    hints = get_type_hints(example.State, include_extras=True).values()
    codec = saver.codec.with_types(Send, tag="pregel_async.Send").with_annotations(*hints)
    found = await saver.aget_tuple(thread, codec=codec)
    if found is None:
        return Stored(-1, set())
    step = found.metadata["step"]
    audits = list(found.checkpoint["channel_values"].get("audits", []))
    keys = {_key(name) for name in STAGES[: max(step, 0)] if name != "audit_file"}
    audits += [audit for _, channel, value in found.pending_writes if channel == "audits" for audit in value]
    return Stored(max(step, 0), keys | {_key("audit_file", audit.path) for audit in audits})
