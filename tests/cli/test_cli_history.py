"""`pregel-async history` and `pregel-async draw`."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree


def test_history_lists_checkpoints_newest_first(shell: Any, call: Any) -> None:
    """Piped output has columns: step, source, nodes that ran, time, checkpoint id, and remarks."""
    assert call("run", "flows:failing", "--thread", "t").code == 1
    listed = shell.run("history", "--thread", "t")
    head, *rows = listed.out.splitlines()
    assert head.split() == ["step", "source", "ran", "time", "checkpoint", "notes"]
    assert [row.split()[:2] for row in rows] == [["1", "loop"], ["0", "loop"], ["-1", "input"]]
    assert rows[0].endswith("  fails: ConnectionError: nobody is there")
    assert rows[0].split()[2] == "hello"
    assert "\x1b" not in listed.out
    ids = [row[head.index("checkpoint") :].split()[0] for row in rows]
    assert ids == sorted(ids, reverse=True)


def test_with_a_graph_it_shows_what_runs_next(shell: Any, call: Any) -> None:
    call("run", "flows:failing", "--thread", "t")
    head, *rows = shell.run("history", "flows:failing", "--thread", "t").out.splitlines()
    place, end = head.index("next"), head.index("time")
    assert [row[place:end].strip() for row in rows] == ["fails", "hello", ""]


def test_history_as_json(shell: Any, call: Any) -> None:
    """JSON has the fields of the text, and ids, parents and metadata."""
    call("run", "flows:failing", "--thread", "t")
    newest, *_, oldest = rows = json.loads(shell.run("history", "flows:failing", "--thread", "t", "--json").out)
    assert [row["step"] for row in rows] == [1, 0, -1]
    assert newest["ran"] == ["hello"]
    assert newest["next"] == ["fails"]
    assert newest["errors"] == [["fails", "ConnectionError: nobody is there"]]
    assert newest["parent_id"] == rows[1]["checkpoint_id"]
    assert newest["metadata"]["graph"] == "flows:failing"
    assert (oldest["source"], oldest["parent_id"]) == ("input", None)
    without = json.loads(call("history", "--thread", "t", "--json").out)
    assert [row["next"] for row in without] == [None, None, None]


def test_history_shows_records_of_the_open_superstep(shell: Any, call: Any) -> None:
    """The history shows how much of the open superstep is recorded, and not of closed ones."""
    call("run", "flows:breaking", "--thread", "t", "--max-concurrency", "1")
    first = call("history", "flows:breaking", "--thread", "t").out.splitlines()[1]
    assert "work x4" in first
    assert first.endswith("work: ValueError: item 1 is odd; 1 recorded")
    shell.open()
    call("run", "flows:breaking", "--thread", "t")
    closed = call("history", "flows:breaking", "--thread", "t").out
    assert "recorded" not in closed
    assert "work x5" in closed.splitlines()[1]


def test_history_can_be_limited(shell: Any, call: Any) -> None:
    call("run", "flows:looping", "--thread", "t", "--recursion-limit", "20")
    assert [row["step"] for row in json.loads(call("history", "-t", "t", "--json", "--limit", "2").out)] == [20, 19]


def test_history_of_an_unknown_thread(shell: Any, call: Any) -> None:
    call("run", "flows:greeting", "--thread", "t")
    ended = call("history", "--thread", "other")
    assert (ended.code, ended.err) == (1, "error: nothing is stored of thread 'other' in pregel.db\n")


def test_draw_prints_mermaid(shell: Any, call: Any) -> None:
    """`draw` accepts a builder, a compiled graph, and a function that returns one."""
    drawn = [
        run("draw", f"flows:{name}") for run, name in ((shell.run, "greeting"), (call, "compiled"), (call, "make"))
    ]
    assert {ended.code for ended in drawn} == {0}
    assert len({ended.out for ended in drawn}) == 1
    assert drawn[0].out.startswith("flowchart TD\n")
    assert '["hello"]' in drawn[0].out
    assert not shell.db.exists()


def test_draw_in_other_forms(call: Any) -> None:
    """A drawing can be text in a terminal, an image, or JSON; a Pregel shows its channels."""
    for name in ("greeting", "make_stored"):
        text, image, data = (call("draw", f"flows:{name}", "--format", form) for form in ("text", "svg", "json"))
        assert (text.code, image.code, data.code) == (0, 0, 0)
        assert "│" in text.out and "__start__" in text.out
        assert ElementTree.fromstring(image.out).tag.endswith("svg")
        assert {node["id"] for node in json.loads(data.out)["nodes"]} >= {"__start__"}


def test_draw_looks_inside_on_demand(call: Any) -> None:
    """`--xray` draws the subgraphs of nodes."""
    assert "ask" not in call("draw", "flows:outer").out
    assert "ask" in call("draw", "flows:outer", "--xray").out
