"""`pregel-async threads`: list, show, copy, prune, erase, export and import stored threads."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def stored(call: Any) -> None:
    for name in ("a", "b"):
        call("run", "flows:greeting", "--thread", name)


def rows(ended: Any) -> list[list[str]]:
    assert ended.code == 0, ended.err
    return [line.split() for line in ended.out.splitlines()[1:]]


@pytest.mark.usefixtures("stored")
def test_threads_are_listed(call: Any) -> None:
    """Threads are listed by id, in pages, filtered by metadata, as text, JSON or a count."""
    assert [row[0] for row in rows(call("threads", "list"))] == ["a", "b"]
    assert [row[0] for row in rows(call("threads", "list", "--after", "a", "--limit", "1"))] == ["b"]
    assert call("threads", "list", "--count").out.strip() == "2"
    assert call("threads", "list", "--count", "--filter", "graph=flows:greeting").out.strip() == "2"
    assert call("threads", "list", "--count", "--filter", 'graph="other"').out.strip() == "0"
    [first, _] = json.loads(call("threads", "list", "--json").out)
    assert (first["thread_id"], first["running"]) == ("a", None)
    assert first["head"] == first["newest"]


@pytest.mark.usefixtures("stored")
def test_a_thread_is_shown(call: Any) -> None:
    """A thread is shown with its checkpoints, bytes and pins; an unknown one is an error."""
    shown = json.loads(call("threads", "show", "a", "--json").out)
    assert shown["checkpoints"] == shown["namespaces"][0]["checkpoints"] > 1
    assert shown["bytes"] > 100
    assert "checkpoints: " in call("threads", "show", "a").out
    missing = call("threads", "show", "c")
    assert missing.code == 1
    assert "'c'" in missing.err


@pytest.mark.usefixtures("stored")
def test_a_copy_is_a_thread(call: Any) -> None:
    """The copy has the same checkpoints, and no thread is overwritten."""
    assert call("threads", "copy", "a", "c").code == 0
    here, there = (json.loads(call("history", "--thread", name, "--json").out) for name in "ac")
    assert [row["checkpoint_id"] for row in here] == [row["checkpoint_id"] for row in there]
    again = call("threads", "copy", "b", "c")
    assert again.code == 1
    assert "'c'" in again.err


@pytest.mark.usefixtures("stored")
def test_pruning(call: Any) -> None:
    """A dry run shows what would be removed and removes nothing; a real one needs confirmation, and a retention
    setting."""
    before = call("history", "--thread", "a", "--json").out
    assert call("threads", "prune").code == 2
    assert call("threads", "prune", "--keep", "1", "--max-age", "tomorrow").code == 2
    assert call("threads", "prune", "--keep", "1", "--max-age", "9999999999d").code == 2
    refused = call("threads", "prune", "--keep", "1")
    assert refused.code == 2
    assert "--yes" in refused.err
    unknown = call("threads", "prune", "a", "nobody", "--keep", "1", "--yes")
    assert (unknown.code, unknown.out, "'nobody'" in unknown.err) == (1, "", True), "and nothing was pruned"
    would = rows(call("threads", "prune", "--keep", "1", "--dry-run"))
    assert [row[0] for row in would] == ["a", "b"]
    assert call("history", "--thread", "a", "--json").out == before
    done = json.loads(call("threads", "prune", "a", "--keep", "1", "--yes", "--json").out)
    assert done["checkpoints"] == int(would[0][1]) > 0
    assert len(json.loads(call("history", "--thread", "a", "--json").out)) == len(json.loads(before)) - int(would[0][1])
    assert call("run", "flows:greeting", "--thread", "a").code == 0


@pytest.mark.usefixtures("stored")
def test_erasing(call: Any) -> None:
    """Nothing is erased without confirmation, or if one of the threads does not exist."""
    assert call("threads", "erase", "a").code == 2
    assert call("threads", "erase", "a", "nobody", "--yes").code == 1
    assert call("threads", "list", "--count").out.strip() == "2"
    assert call("threads", "erase", "a", "--yes").code == 0
    assert [row[0] for row in rows(call("threads", "list"))] == ["b"]


@pytest.mark.usefixtures("stored")
def test_an_erasure_that_broke_off_is_finished(call: Any, tmp_path: Path) -> None:
    """A thread whose erasure was interrupted and left bytes in the file is erased again: no bytes stay, and the command
    reports that there was no such thread."""
    [file] = tmp_path.rglob("pregel.db")
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute("CREATE TABLE left_over AS SELECT 'SECRET ' || zeroblob(20000) AS bytes")
        database.execute("DROP TABLE left_over")
    assert b"SECRET" in b"".join(path.read_bytes() for path in file.parent.glob("pregel.db*"))
    ended = call("threads", "erase", "gone", "--yes")
    assert ended.code == 1 and "'gone'" in ended.err
    assert b"SECRET" not in b"".join(path.read_bytes() for path in file.parent.glob("pregel.db*"))
    assert call("threads", "list", "--count").out.strip() == "2"


@pytest.mark.usefixtures("stored")
def test_export_and_import(call: Any) -> None:
    """An exported thread is imported into another database byte for byte; a damaged file is refused as a whole."""
    assert call("threads", "export", "all.threads").code == 0
    assert call("threads", "import", "all.threads", "--db", "other.db").out.split() == ["a", "b"]
    here = call("history", "--thread", "a", "--json").out
    assert call("history", "--thread", "a", "--json", "--db", "other.db").out == here
    assert call("threads", "import", "all.threads", "--db", "other.db").code == 1  # they are there
    assert call("threads", "export", "one.threads", "a").code == 0
    assert call("threads", "import", "one.threads", "--as", "z", "--db", "other.db").out.split() == ["z"]
    assert call("threads", "import", "nothing.threads").code == 2


def test_a_database_that_is_not_there(call: Any) -> None:
    """Reading a missing database does not create it."""
    missing = call("threads", "list", "--db", "none.db")
    assert missing.code == 1
    assert "there is no database none.db" in missing.err


NASTY = "t\x1b[31m\x9b2J\u202e\u200b\r\nforged line"
"""As a thread's id. The graph `nasty` of the project has the like in names, questions, values and errors."""


def test_nothing_that_is_stored_reaches_the_terminal_raw(call: Any, tmp_path: Path) -> None:
    """Every command escapes control and format characters and line breaks on both streams; JSON stays JSON."""

    def said(*args: str, code: int = 0, input: str = "") -> str:
        ended = call(*args, input=input)
        assert ended.code == code, ended.err
        lines = (ended.out + ended.err).split("\n")
        assert [line for line in lines if not line.isprintable() or line.startswith("forged")] == []
        return str(ended.out + ended.err)

    run = ("run", "flows:nasty", "--thread", NASTY)
    assert "\\x1b[31m" in said(*run, "--input", '{"fails": true}')
    assert "error: ValueError: \\x1b[31m\\x9b2J" in said(*run, "--resume", '"\x9b"', code=1)
    said(*run, "--input", "{}", code=2)
    assert "forged" in said("history", "flows:nasty", "--thread", NASTY)
    shown = json.dumps(NASTY)[1:-1].replace("\\u001b", "\\x1b").replace("\\u009b", "\\x9b")
    assert shown in said("threads", "list")
    assert shown in said("threads", "show", NASTY)
    assert shown in said("threads", "prune", "--keep", "1", "--dry-run")
    said("threads", "copy", NASTY, NASTY, code=1)
    said("threads", "erase", NASTY, code=2)
    file = str(tmp_path / "exported")
    said("threads", "export", file, NASTY)
    assert said("threads", "import", file, "--as", NASTY + "2").splitlines() == [shown + "2"]
    for form in ("text", "mermaid", "svg", "json"):
        said("draw", "flows:nasty", "--format", form)
    assert [each["thread_id"] for each in json.loads(said("threads", "list", "--json"))] == [NASTY, NASTY + "2"]
    assert json.loads(said("threads", "show", NASTY, "--json"))["thread"] == NASTY
    said("threads", "show", "missing\x1b", code=1)
    said("threads", "list", "--db", "missing\x1b", code=1)
