"""The command line's errors: few lines, no traceback, and the right exit code."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("flows", "'flows' names no graph: write MODULE:GRAPH"),
        ("flows:", "names no graph"),
        ("nowhere:graph", "there is no module 'nowhere'"),
        ("flows.nowhere:graph", "there is no module 'flows.nowhere'"),
        (".flows:graph", "'.flows' is no module's name"),
        ("nowhere.py:graph", "there is no file nowhere.py"),
        ("flows:nothing", "module 'flows' has no 'nothing'; it has greeting, compiled, asking, "),
        ("flows:Holder.nothing", "module 'flows' has no 'Holder.nothing'"),
        ("flows:number", "flows:number is a int: name a StateGraph"),
        ("flows:Hello", "flows:Hello is a "),
        ("flows:make_nothing", "make_nothing returned a int, which is no graph"),
        ("flows:make_later", "make_later returned a coroutine, which is no graph"),
        ("flows:make_of_two", "make_of_two takes 2 arguments"),
        ("ending:graph", "importing ending ended the program"),
    ],
)
def test_what_names_no_graph_is_a_usage_error(shell: Any, call: Any, target: str, said: str) -> None:
    """A name of no graph gives exit code 2 and one line; nothing is run or created."""
    ended = call("run", target, "--db", "new.db")
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1


def test_a_module_that_cannot_be_imported_fails_with_its_own_error(shell: Any, call: Any) -> None:
    """The import's own error is shown, with a note on its importer."""
    broken = call("run", "broken:graph")
    assert broken.code == 1
    assert broken.err.splitlines()[:2] == ["error: LookupError: broken on purpose", "  while importing broken"]
    assert 'broken.py", line' in call("draw", "broken:graph", "--traceback").err
    lacking = call("draw", "lacking:graph")
    assert lacking.code == 1
    assert "ModuleNotFoundError: No module named 'no_such_module_anywhere'" in lacking.err


def test_a_file_whose_name_is_taken_is_not_imported_as_another(shell: Any, call: Any) -> None:
    (shell.cwd / "sub").mkdir()
    (shell.cwd / "sub" / "json.py").write_text("graph = 1\n")
    ended = call("run", "sub/json.py:graph")
    assert ended.code == 2
    assert "another module has its name, 'json'" in ended.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{", "--input is no JSON: Expecting property name"),
        ("it's", """. A text is in quotes: --input '"it'"'"'s"'\n"""),
        ("@nowhere.json", "nowhere.json cannot be read: No such file"),
        ("@latin.json", "latin.json is not text in UTF-8"),
        ("-", "standard input is no JSON"),
    ],
)
def test_an_input_that_is_no_json_is_a_usage_error(shell: Any, call: Any, given: str, said: str) -> None:
    (shell.cwd / "latin.json").write_bytes(b'"\xe9"')
    ended = call("run", "flows:greeting", "--input", given, input="")
    assert ended.code == 2
    assert said in ended.err
    assert not shell.db.exists()


@pytest.mark.parametrize(
    "args",
    [
        ("run",),
        ("run", "flows:greeting", "--recursion-limit", "0"),
        ("run", "flows:greeting", "--max-concurrency", "many"),
        ("run", "flows:greeting", "--nonsense"),
        ("history",),
        ("draw",),
        ("nonsense",),
    ],
)
def test_options_that_are_wrong_are_usage_errors(shell: Any, call: Any, args: tuple[str, ...]) -> None:
    ended = call(*args)
    assert ended.code == 2
    assert "Usage: " in ended.err
    assert not shell.db.exists()


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def _damaged(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE frame SET data = substr(data, 1, length(data) - 3)")
    connection.close()


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("noise.db", lambda path: path.write_bytes(b"noise" * 1000), "CorruptCheckpointError: noise.db: "),
        ("foreign.db", _foreign, "CorruptCheckpointError: foreign.db: it is a database of another program"),
        ("pregel.db", _newer, "UnsupportedFormatError: pregel.db: stored in format 99"),
        ("pregel.db", _damaged, "CorruptCheckpointError: thread 't', checkpoint "),
        ("nowhere/new.db", lambda path: None, "StorageError: nowhere/new.db: the file cannot be opened"),
    ],
    ids=["noise", "foreign", "newer", "damaged", "nowhere"],
)
def test_a_database_that_cannot_be_used_fails_and_is_left_as_it_is(
    shell: Any, call: Any, name: str, spoil: Any, said: str
) -> None:
    """An unusable database gives exit code 1 and the typed error's message, for `history` too, and is not changed."""
    assert call("run", "flows:greeting", "--thread", "t").code == 0
    file = shell.cwd / name
    spoil(file)
    before = file.read_bytes() if file.exists() else None
    for command in (("run", "flows:greeting"), ("history", "flows:greeting")):
        ended = call(*command, "--thread", "t", "--db", name)
        assert ended.code == 1
        if before is not None or command[0] == "run":
            assert f"error: {said}" in ended.err
        assert "Traceback" not in ended.err
    assert shell.ran == ["hello"]
    if before is not None:
        assert file.read_bytes() == before


def test_a_read_only_database_can_be_looked_at_and_not_written(shell: Any, call: Any) -> None:
    """A read-only database can be read; a run on it is refused before any node runs."""
    assert call("run", "flows:greeting", "--thread", "t").code == 0
    uri = f"file:{shell.db}?mode=ro"
    assert call("history", "--thread", "t", "--db", uri).code == 0
    assert call("run", "flows:greeting", "--thread", "t", "--db", uri).code == 0  # it has finished
    ended = call("run", "flows:greeting", "--thread", "new", "--db", uri)
    assert ended.code == 1
    assert "error: StorageReadOnlyError: " in ended.err
    assert shell.ran == ["hello"]


def test_history_makes_no_database(shell: Any, call: Any) -> None:
    ended = call("history", "--thread", "t")
    assert (ended.code, ended.err) == (1, "error: there is no database pregel.db\n")
    assert not shell.db.exists()


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_how_to_get_it(shell: Any, missing: str) -> None:
    """Without any module of the extra, one line says how to install it."""
    code = f"import sys; sys.modules[{missing!r}] = None; from pregel_async.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=shell.env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        f"pregel-async: the command line needs {missing}, which is missing: pip install 'pregel-async[cli]'\n"
    )


def test_the_package_does_not_import_its_command_line(shell: Any) -> None:
    """The package imports neither its command line nor its dependencies."""
    code = (
        "import sys, pregel_async; "
        "print([name for name in sys.modules if name.startswith(('typer', 'rich', 'click', 'pregel_async.cli'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=shell.env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_version(call: Any) -> None:
    ended = call("--version")
    assert ended.code == 0
    assert ended.out.startswith("pregel-async ")
