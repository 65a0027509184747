"""Formatting of values, errors and tables as text."""

from __future__ import annotations

import json
import os
import subprocess
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel
from rich.console import Console

from pregel_async.cli import history
from pregel_async.cli.formatting import (
    as_json,
    count_names,
    escape,
    explain,
    format_columns,
    format_duration,
    print_json,
    print_value,
    shell_word,
)


@dataclass
class Data:
    x: int
    inner: object = None


class Struct(msgspec.Struct):
    x: int


class Model(BaseModel):
    x: int


class Pair(NamedTuple):
    x: int
    y: int


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (10**40, 10**40),
        (1.5, 1.5),
        (float("inf"), "inf"),
        ("é\ud800", "é\ud800"),
        (b"ab", "YWI="),
        ({"a": {1: (2, 3)}}, {"a": {"1": [2, 3]}}),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        ({3, 1, 2}, [1, 2, 3]),
        (deque([1]), [1]),
        (OrderedDict(a=1), {"a": 1}),
        (Data(1, Struct(2)), {"x": 1, "inner": {"x": 2}}),
        (Model(x=1), {"x": 1}),
        (Pair(1, 2), [1, 2]),
        (Color.RED, "red"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (PurePosixPath("a/b"), "a/b"),
        (complex(1, 2), "(1+2j)"),
    ],
)
def test_every_value_has_a_json_form(value: object, expected: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Every value has a JSON form, which is one line of ASCII and can be parsed."""
    assert as_json(value) == expected
    print_json(value)
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    assert json.loads(out) == expected


def test_values_for_people_are_short(capsys: pytest.CaptureFixture[str]) -> None:
    """The text of a mapping has every key and only a few items of each value; markup is plain text."""
    print_value({f"key {number}": list(range(100)) for number in range(20)} | {"[bold]:smile:": "[red]x"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 21
    assert lines[0] == "key 0: [0, 1, 2, 3, 4, ... +95]"
    assert lines[-1] == "[bold]:smile:: '[red]x'"
    print_value([1, 2])
    print_value({})
    assert capsys.readouterr().out == "[1, 2]\n{}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 漢 \\x1b", "plain é 漢 \\x1b"),
        ("\x1b[2J\n\t\x7f", "\\x1b[2J\\n\\t\\x7f"),
        ("\x9b\u202e\u2066\u200b\ufeff", "\\x9b\\u202e\\u2066\\u200b\\ufeff"),
        ("\u2028\xa0\U000e0041\udc9b", "\\u2028\\xa0\\U000e0041\\udc9b"),
    ],
)
def test_what_would_not_be_seen_is_escaped(text: str, expected: str) -> None:
    """C0, C1, line breaks, format characters and lone surrogates are escaped; other text is unchanged."""
    assert escape(text) == expected == escape(expected)


@pytest.mark.parametrize("word", ["plain", "it's", "", "a\x1b1\n\\'b", "é\u202e\x9b\U000e0041", "\udcff"])
def test_words_of_commands_can_be_pasted(word: str) -> None:
    """Words can be pasted into a shell that knows $'...', and give the original text."""
    assert shell_word(word).isprintable()
    script = f"printf %s {shell_word(word)}"
    env = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    try:
        back = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, env=env, check=True).stdout
    except FileNotFoundError:
        pytest.skip("no bash here")
    assert os.fsdecode(back) == word


class Painted:
    """An object whose `__repr__` contains terminal control sequences."""

    def __repr__(self) -> str:
        return "\x1b[31mred\x9b\n\u202eand more"


def test_values_do_not_paint_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither keys nor the result of a class's `__repr__` send control sequences to the terminal."""
    print_value({"key\x1b[2J": Painted(), "text": "\x1b[2J"})
    print_value(Painted())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("key\\x1b[2J: \\x1b[31mred\\x9b")
    assert all(line.isprintable() for line in lines)


def test_a_table_does_not_paint_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`history` in a terminal escapes control sequences, which rich would pass through."""
    monkeypatch.setattr(history, "Console", partial(Console, force_terminal=True, color_system=None, width=200))
    row = history.HistoryRow(
        step=1,
        source="loop",
        ran=("n\x1b[2J\x9b",),
        next=None,
        time="2026-01-02T00:00:00+00:00",
        checkpoint_id="c",
        parent_id=None,
        recorded=0,
        errors=(),
        metadata={},
    )
    history.print_rows([row], as_json=False)
    out = capsys.readouterr().out
    assert "n\\x1b[2J\\x9b" in out and all(line.isprintable() for line in out.splitlines())


def test_a_message_forges_no_line_of_the_command() -> None:
    """The lines of an error message are indented, and control characters escaped, also in tracebacks and groups, so
    that it cannot imitate the command's own lines."""
    bad = _error("bad\nfinished: \x1b[2J", "note\x9b")
    assert list(explain(bad, full=False)) == ["error: ValueError: bad", "  finished: \\x1b[2J", "  note\\x9b"]
    group = ExceptionGroup("many\nfinished", [bad])
    assert list(explain(group, full=False))[:3] == ["error: many", "  finished", "  ValueError: bad"]
    assert all(line.isprintable() for line in explain(bad, full=True))


def _error(message: str, *notes: str) -> ValueError:
    error = ValueError(message)
    for note in notes:
        error.add_note(note)
    return error


def test_an_error_is_its_type_its_message_and_its_notes() -> None:
    assert list(explain(_error("bad", "here\nor there"), full=False)) == [
        "error: ValueError: bad",
        "  here",
        "  or there",
    ]
    assert list(explain(KeyError(), full=False)) == ["error: KeyError"]


def test_of_many_errors_the_first_are_told() -> None:
    group = ExceptionGroup("7 of 9 tasks failed", [_error(str(number), "note") for number in range(7)])
    lines = list(explain(group, full=False))
    assert lines[:3] == ["error: 7 of 9 tasks failed", "  ValueError: 0", "    note"]
    assert lines[-1] == "  and 2 more"
    assert len(lines) == 1 + 5 * 2 + 1


def test_in_full_an_error_is_its_traceback() -> None:
    def fail() -> Any:
        raise _error("bad", "note")

    with pytest.raises(ValueError, match="bad") as raised:
        fail()
    lines = list(explain(raised.value, full=True))
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == ["ValueError: bad", "note"]


def test_names_are_counted() -> None:
    assert count_names([]) == ""
    assert count_names(["b", "a", "b"]) == "b x2, a"
    assert count_names("abcde") == "a, b, c, and 2 more"


@pytest.mark.parametrize(
    ("elapsed", "said"), [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1:00 min"), (3599, "59:59 min"), (3723, "1:02:03 h")]
)
def test_times_are_readable(elapsed: float, said: str) -> None:
    assert format_duration(elapsed) == said


def test_columns_are_aligned_and_have_no_trailing_blanks() -> None:
    assert list(format_columns(["a", "bb"], [["ccc", ""], ["d", "e"]])) == ["a    bb", "ccc", "d    e"]
