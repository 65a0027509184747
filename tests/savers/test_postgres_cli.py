"""`pregel-async threads` on a PostgreSQL database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checkpoint_savers import PostgresSaver
from pregel_async import START, StateGraph
from tests.helpers.postgres_tools import conninfo, made_schema

pytestmark = pytest.mark.anyio


async def test_threads_of_a_server(tmp_path: Path) -> None:
    """The commands for a file work with the database's URL; a thread that is exported there is imported elsewhere."""
    with made_schema() as schema:
        async with PostgresSaver.from_conn_string(conninfo(), schema=schema) as saver:
            graph = StateGraph(dict).add_node("n", lambda state: {}).add_edge(START, "n").compile(saver)
            await graph.ainvoke({"x": 1}, "one")

        def threads(*args: str) -> str:
            command = [sys.executable, "-W", "error", "-m", "pregel_async.cli", "threads", *args]
            return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd=tmp_path).stdout

        there = ("--postgres", conninfo(), "--schema", schema)
        assert threads("list", "--count", *there).strip() == "1"
        threads("export", "one.threads", *there)
        assert threads("import", "one.threads", "--db", "here.db").strip() == "one"
        threads("erase", "one", "--yes", *there)
        assert threads("list", "--count", *there).strip() == "0"
        assert threads("list", "--count", "--db", "here.db").strip() == "1"
