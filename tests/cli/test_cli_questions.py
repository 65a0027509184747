"""`pregel-async run` of a graph that asks."""

from __future__ import annotations

import json
import re
from typing import Any


def questions(said: str) -> dict[str, str]:
    """Return the text of each question, and its id."""
    return {text: key for key, text in re.findall(r"^question ([0-9a-f]{32}): (.*)$", said, re.M)}


def test_a_question_is_shown_and_answered(shell: Any, call: Any) -> None:
    """P8: open questions are shown with their ids, answered by id one by one, and not asked again."""
    asked = call("run", "flows:asking", "-t", "t")
    ids = questions(asked.err)
    assert (asked.code, set(ids)) == (0, {"'who are you?'", "{'which': ['red', 'blue']}"})
    assert "--resume JSON ({id: answer, ...})" in asked.err
    again = call("run", "flows:asking", "-t", "t")
    assert (again.code, questions(again.err)) == (0, ids), "shown again, and nothing runs"
    one = call("run", "flows:asking", "-t", "t", "--resume", json.dumps({ids["'who are you?'"]: "ann"}))
    assert (one.code, list(questions(one.err).values())) == (0, [ids["{'which': ['red', 'blue']}"]])
    last = call("run", "flows:asking", "-t", "t", "--resume", '"red"', "--output-json")
    assert (last.code, json.loads(last.out)) == (0, {"name": "ann", "colour": "red"})
    assert (shell.cwd / "ran.txt").read_text().split() == ["ask", "ask_more", "ask", "ask_more"]


def test_what_cannot_be_answered(call: Any) -> None:
    """Bad input: an answer without a question, an ambiguous answer, and an answer together with an input are
    refused."""
    assert call("run", "flows:asking", "-t", "t", "--resume", "1").code == 2
    call("run", "flows:asking", "-t", "t")
    bare = call("run", "flows:asking", "-t", "t", "--resume", "red")
    assert (bare.code, """A text is in quotes: --resume '"red"'\n""" in bare.err) == (2, True)
    ambiguous = call("run", "flows:asking", "-t", "t", "--resume", '"red"')
    assert ambiguous.code == 1
    assert "2 questions are open" in ambiguous.err
    both = call("run", "flows:asking", "-t", "t", "--resume", "1", "--input", "{}")
    assert (both.code, "give one of them" in both.err) == (2, True)
