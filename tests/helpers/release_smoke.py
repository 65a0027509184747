"""A program for an installed package: `nox -s release` runs it in new environments, outside of the checkout.

    python -I release_smoke.py VERSION [EXTRA ...]

It needs no test tool. With the extra `cli`, it runs the command line too.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import operator
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, TypedDict

import checkpoint_savers
import pregel_async
from checkpoint_savers import SqliteSaver
from pregel_async import END, START, StateGraph, interrupt
from pregel_async.types import Command

OPTIONAL = {"cli", "langchain", "otel", "postgres", "pytest_plugin", "serve", "conformance"}
"""Modules that need an extra, or pytest."""


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def ask(state: State) -> State:
    return {"log": [interrupt("go on?")]}


async def answer(path: Path, given: object) -> object:
    """Open the file anew, as a restarted process does, and make one call on its thread."""
    async with SqliteSaver.from_conn_string(path) as saver:
        graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END).compile(saver)
        return await graph.ainvoke(given, "thread")


def main(version: str, *extras: str) -> None:
    assert importlib.metadata.version("pregel-async") == version
    for package in (pregel_async, checkpoint_savers):
        folder = Path(package.__path__[0])
        assert folder.is_relative_to(sys.prefix), f"{folder} is not installed"
        assert (folder / "py.typed").exists(), "type checkers ignore the package's annotations"
        for module in pkgutil.iter_modules(package.__path__):
            if module.name not in OPTIONAL.difference(extras):
                importlib.import_module(f"{package.__name__}.{module.name}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "threads.db"
        asyncio.run(answer(path, {"log": ["begun"]}))
        assert asyncio.run(answer(path, Command(resume="yes"))) == {"log": ["begun", "yes"]}
        if "cli" in extras:
            program = Path(sys.executable).with_name("pregel-async")
            command = (str(program), "threads", "list", "--db", str(path))
            listed = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
            assert "thread" in listed, listed
    print(f"pregel-async {version} works in {sys.prefix}")


if __name__ == "__main__":
    main(*sys.argv[1:])
