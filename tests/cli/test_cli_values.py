"""What a thread holds: `threads show --values`, `--at` and `--diff`, `history --values`, and options of configs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.postgres_tools import conninfo, made_schema

ANSWER = {"text": "hello, world", "letters": ["w", "o", "r", "l", "d"]}


@pytest.fixture
def ids(call: Any) -> list[str]:
    """Make a thread `t`, and return the ids of its checkpoints, oldest first."""
    assert call("run", "flows:greeting", "--thread", "t").code == 0
    rows = json.loads(call("history", "--thread", "t", "--json").out)
    assert "values" not in rows[0]
    return [row["checkpoint_id"] for row in reversed(rows)]


def test_the_values_of_a_thread(call: Any, ids: list[str]) -> None:
    """The newest state, or that of a checkpoint, without code of the graph: objects are shown as their fields."""
    shown = json.loads(call("threads", "show", "t", "--values", "--json").out)
    assert (shown["checkpoint_id"], shown["step"], shown["source"]) == (ids[-1], 1, "loop")
    assert shown["values"]["times"] == 1
    assert shown["values"]["answer"]["fields"] == ANSWER
    assert shown["values"].keys() == {"times", "answer"}
    early = json.loads(call("threads", "show", "t", "--at", ids[1], "--values", "--json").out)
    assert (early["checkpoint_id"], early["values"]) == (ids[1], {})
    text = call("threads", "show", "t", "--at", ids[1], "--values").out
    assert f"checkpoint id: {ids[1]}\n" in text and text.endswith("{}\n")
    assert "{}" not in call("threads", "show", "t", "--at", ids[1]).out


def test_the_differences_of_two_checkpoints(call: Any, ids: list[str]) -> None:
    """Added, removed and changed values, with their paths."""
    added, changed = call("threads", "show", "t", "--diff", ids[1], ids[2]).out.splitlines()
    assert added.startswith("+ answer: {")
    assert changed == "+ times: 1"
    removed, _ = call("threads", "show", "t", "--diff", ids[2], ids[1]).out.splitlines()
    assert removed.startswith("- answer: {")
    found = json.loads(call("threads", "show", "t", "--diff", ids[1], ids[2], "--json").out)
    assert found[1] == {"path": ["times"], "after": 1}
    assert call("threads", "show", "t", "--diff", ids[1], ids[1]).out == ""
    assert call("run", "flows:greeting", "--thread", "t", "--input", '{"name": "Ada"}').code == 0
    newest = json.loads(call("history", "--thread", "t", "--json").out)[0]["checkpoint_id"]
    lines = call("threads", "show", "t", "--diff", ids[2], newest).out.splitlines()
    assert '~ answer.fields.text: "hello, world" -> "hello, Ada"' in lines
    assert '- answer.fields.letters.4: "d"' in lines and "~ times: 1 -> 2" in lines
    assert call("threads", "show", "t", "--diff", ids[1], ids[2], "--values").code == 2


@pytest.mark.parametrize("wanted", ["nonsense", "01a21b49-24e3-7f04-bd79-f416817e6e80"])
def test_an_unknown_checkpoint(call: Any, ids: list[str], wanted: str) -> None:
    for command in (("threads", "show", "t", "--at"), ("history", "--thread", "t", "--checkpoint")):
        ended = call(*command, wanted)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith("error: ")
    assert call("run", "flows:greeting", "--thread", "t", "--checkpoint", wanted).code in (1, 2)


def test_history_with_values(call: Any, ids: list[str]) -> None:
    """Each checkpoint has its state: with the graph, of its classes, and without, of fields."""
    without = json.loads(call("history", "--thread", "t", "--values", "--json").out)
    assert [row["values"].get("times") for row in without] == [1, None, None]
    assert without[0]["values"]["answer"]["fields"] == ANSWER
    with_graph = json.loads(call("history", "flows:greeting", "--thread", "t", "--values", "--json").out)
    assert with_graph[0]["values"]["answer"] == ANSWER
    head, newest, *_ = call("history", "--thread", "t", "--values").out.splitlines()
    assert newest[head.index("values") :].startswith('{"answer": {"type"')


def test_history_from_a_checkpoint_and_by_metadata(call: Any, ids: list[str]) -> None:
    """`--checkpoint` begins with it; `--metadata` selects."""
    for graph in ((), ("flows:greeting",)):
        found = json.loads(call("history", *graph, "-t", "t", "--checkpoint", ids[1], "--json").out)
        assert [row["checkpoint_id"] for row in found] == [ids[1], ids[0]]
        limited = json.loads(call("history", *graph, "-t", "t", "--checkpoint", ids[1], "--limit", "1", "--json").out)
        assert [row["checkpoint_id"] for row in limited] == [ids[1]]
        by_source = json.loads(call("history", *graph, "-t", "t", "--metadata", "source=input", "--json").out)
        assert [row["checkpoint_id"] for row in by_source] == [ids[0]]
    assert call("history", "-t", "t", "--metadata", "source=fork").code == 1


def test_a_run_with_context_configurable_and_metadata(shell: Any, call: Any) -> None:
    """The nodes get the context and the config, the checkpoints the metadata."""
    ended = call(
        *("run", "flows:with_context", "--thread", "t", "--json"),
        *("--context", '{"name": "Ada"}', "--configurable", "tone=warm", "--metadata", "customer=7"),
    )
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == {"name": "Ada", "times": 1}
    assert shell.ran == ["greet Ada warm"]
    rows = json.loads(call("history", "--thread", "t", "--json").out)
    assert {row["metadata"]["customer"] for row in rows} == {7}
    assert call("run", "flows:with_context", "--context", "{").code == 2
    assert call("run", "flows:with_context", "--metadata", "customer").code == 2
    assert call("run", "flows:with_context", "--context", "-", "--input", "-").code == 2


def test_the_command_that_continues_has_the_options_of_the_config(shell: Any, call: Any) -> None:
    """Otherwise the continued run would have another context."""
    call("run", "flows:asking", "--thread", "t", "--metadata", "a=1", "--configurable", "tone=warm")
    stopped = call("run", "flows:failing", "--thread", "u", "--metadata", "a=1", "--configurable", "tone=warm")
    assert stopped.code == 1
    assert "--configurable tone=warm --metadata a=1" in stopped.err.splitlines()[-1]


def test_a_run_from_a_checkpoint(shell: Any, call: Any, ids: list[str]) -> None:
    """The nodes after the checkpoint run again, on a branch."""
    assert shell.ran == ["hello"]
    again = call("run", "flows:greeting", "--thread", "t", "--checkpoint", ids[1], "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["times"] == 1
    assert shell.ran == ["hello", "hello"]


@pytest.fixture
def schema() -> Iterator[str]:
    with made_schema() as name:
        yield name


def test_a_database_in_postgresql(call: Any, schema: str) -> None:
    """`run`, `history` and `threads` work there."""
    url = conninfo()
    where = ("--postgres", url, "--schema", schema)
    ended = call("run", "flows:asking", "--thread", "t", *where)
    assert ended.code == 0, ended.err
    assert f"to answer: pregel-async run flows:asking --thread t --postgres {shlex.quote(url)}" in ended.err
    assert len(json.loads(call("history", "--thread", "t", *where, "--json").out)) == 2
    assert json.loads(call("threads", "show", "t", *where, "--values", "--json").out)["values"] == {}


def test_a_password_is_not_printed() -> None:
    from pregel_async.cli.database import Database

    def name(url: str) -> str:
        return Database(db="", postgres=url).name

    assert name("postgresql://ada:secret@host:5/db") == "postgresql://ada@host:5/db"
    assert name("postgresql://host/db") == "postgresql://host/db"
    assert name("postgresql://host/db?password=secret") == "PostgreSQL"
    assert name("host=a password=secret") == "PostgreSQL"
    assert name("host=a dbname=b") == "host=a dbname=b"


@pytest.mark.parametrize(("words", "offered"), [(["ru"], ["run", "runs"]), (["threads", "c"], ["check", "copy"])])
def test_completion_in_bash(shell: Any, words: list[str], offered: list[str]) -> None:
    """A shell that has read the script completes commands."""
    program = shell.cwd / "pregel-async"
    program.write_text(f"#!{sys.executable}\nfrom pregel_async.cli import main\nmain()\n")
    program.chmod(0o755)
    script = (
        'eval "$(pregel-async completion bash)"; '
        f"COMP_WORDS=(pregel-async {' '.join(words)}); COMP_CWORD={len(words)}; "
        '_pregel_async_completion pregel-async; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**shell.env, "PATH": f"{shell.cwd}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.stdout.split()) == ("", offered)


@pytest.mark.parametrize(("shell_name", "part"), [("zsh", "compdef"), ("fish", "complete --command pregel-async")])
def test_completion_scripts(call: Any, shell_name: str, part: str) -> None:
    ended = call("completion", shell_name)
    assert ended.code == 0
    assert part in ended.out
    assert "_PREGEL_ASYNC_COMPLETE" not in os.environ
