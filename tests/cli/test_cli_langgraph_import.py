"""`threads import --from-langgraph`: its options, its report, and its exit code."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "from_langgraph" / "langgraph_checkpoints.sqlite"
GRAPH = "tests.from_langgraph.golden_graph:graph"


needs_langgraph = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("langgraph", "langgraph.checkpoint.sqlite")),
    reason="LangGraph and its savers are not installed here: nox -s langgraph installs them",
)


@pytest.fixture(autouse=True)
def golden(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "langgraph.db")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "name the FILE to import, or a database with --from-langgraph"),
        (["--from-langgraph", "langgraph.db"], "needs --graph MODULE:GRAPH"),
        (["all.threads", "--from-langgraph", "langgraph.db", "--graph", GRAPH], "leave out FILE and --as"),
        (["--as", "t", "--from-langgraph", "langgraph.db", "--graph", GRAPH], "leave out FILE and --as"),
        (["all.threads", "--dry-run"], "need --from-langgraph, which is missing"),
        (["all.threads", "--thread", "t"], "need --from-langgraph, which is missing"),
    ],
)
def test_options_that_do_not_fit(call: Any, options: list[str], said: str) -> None:
    """They are refused before anything is opened."""
    ended = call("threads", "import", *options)
    assert ended.code == 2
    assert said in ended.err
    assert not Path("pregel.db").exists()


@needs_langgraph
def test_a_dry_run(call: Any) -> None:
    """It prints the report, and makes no file."""
    ended = call("threads", "import", "--from-langgraph", "langgraph.db", "--graph", GRAPH, "-n")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0].split() == ["thread", "status", "step", "checkpoints", "messages", "keys", "next"]
    assert lines[1].split(maxsplit=1)[0] == "asks"
    assert "would be imported" in lines[1]
    assert "log, topic" in lines[1]
    assert any(line.startswith("asks: question ") and line.endswith("'one?'") for line in lines)
    assert any(line.startswith("fork: not kept: ") and "other branches" in line for line in lines)
    assert lines[-1] == "3 threads"
    assert not Path("pregel.db").exists()


@needs_langgraph
def test_an_import(call: Any) -> None:
    """Threads are stored in the database of --db, and the run goes on from the shell; a second import leaves them alone,
    and --replace does not."""
    base = ("threads", "import", "--from-langgraph", "langgraph.db", "--graph", GRAPH, "--db", "new.db", "--json")
    ended = call(*base, "--thread", "asks", "--thread", "hand", "--history")
    reports = json.loads(ended.out)
    assert [(each["thread_id"], each["status"], each["checkpoints"]) for each in reports] == [
        ("asks", "imported", 3),
        ("hand", "imported", 1),
    ]
    question = reports[0]["questions"][0]
    assert (question["node"], question["value"]) == ("ask", "one?")
    assert [each["status"] for each in json.loads(call(*base).out)] == ["exists", "imported", "exists"]
    ended = call("run", GRAPH, "--thread", "asks", "--db", "new.db", "--resume", json.dumps({question["id"]: "yes"}))
    assert "two?" in ended.out + ended.err
    assert [each["status"] for each in json.loads(call(*base, "--replace").out)] == ["replaced"] * 3


@needs_langgraph
def test_refused_threads(call: Any) -> None:
    """A thread that cannot be imported makes the exit code 1, after the report; a source that is none is an error."""
    ended = call("threads", "import", "--from-langgraph", "langgraph.db", "--graph", GRAPH, "--thread", "nobody")
    assert ended.code == 1
    assert "nobody: refused: the database has no such thread" in ended.out
    ended = call("threads", "import", "--from-langgraph", "none.db", "--graph", GRAPH)
    assert ended.code == 1
    assert "there is no such file" in ended.err
