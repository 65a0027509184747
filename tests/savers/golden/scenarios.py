"""Threads that graphs have made, and what is read of them: most of the golden file of `SqliteSaver`."""

from __future__ import annotations

import importlib
import json
from types import ModuleType
from typing import Any, Final

from tests.savers.golden import readable

NAMES: Final = ("engine", "language", "streams", "failures", "storage", "owners")


def modules() -> dict[str, ModuleType]:
    """Return the modules of the graphs, set so that their threads are not being finished yet."""
    found = {name: importlib.import_module(f"tests.savers.golden.{name}_graphs") for name in NAMES}
    for module in found.values():
        setattr(module, "later", False)
    return found


async def fill(saver: Any) -> dict[str, Any]:
    """Make the threads. Return the notes of each scenario."""
    found = modules()
    threads = [thread for module in found.values() for thread in module.graphs(saver)]
    assert len(threads) == len(set(threads))
    return {name: await module.fill(saver) for name, module in found.items()}


async def read(saver: Any, filled: dict[str, Any]) -> dict[str, Any]:
    """Return what the graphs read of their threads, as JSON values."""
    found: dict[str, Any] = {}
    for name, module in modules().items():
        found[name] = {
            "threads": {
                thread: await readable.describe_thread(graph, thread) for thread, graph in module.graphs(saver).items()
            }
        }
        if hasattr(module, "more"):
            found[name]["more"] = await module.more(saver, filled[name])
    return json.loads(json.dumps(found))


async def finish(saver: Any) -> dict[str, Any]:
    """Answer open questions and resume open supersteps. Return the results."""
    return {
        name: {thread: readable.describe(value) for thread, value in (await module.finish(saver)).items()}
        for name, module in modules().items()
    }
