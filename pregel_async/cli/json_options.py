"""Options whose values are JSON."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .target import UsageError

InputOption = Annotated[
    str | None,
    typer.Option("--input", "-i", metavar="JSON", help="The input: JSON, @FILE, or - for standard input."),
]
ResumeOption = Annotated[
    str | None,
    typer.Option("--resume", "-r", metavar="JSON", help="The answer to the open question, or {id: answer, ...}."),
]


def parse_json(text: str | None, source: str = "--input") -> Any:
    """Return the value of an option: JSON, the content of @FILE, or standard input for "-".

    Args:
        text: the option, as written on the command line; None if it was not given.
        source: its name, for messages.

    Returns:
        The value; None if it was not given.

    Raises:
        UsageError: it is no JSON, or cannot be read.
    """
    if text is None:
        return None
    try:
        if text == "-":
            source = "standard input"
            return json.load(sys.stdin)
        if text.startswith("@"):
            source = text[1:]
            return json.loads(Path(source).read_text(encoding="utf-8"))
        return json.loads(text)
    except OSError as error:
        raise UsageError(f"{source} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        bare = source.startswith("--") and text[:1] not in ("{", "[", '"', "-")  # probably text without quotes
        advice = f". A text is in quotes: {source} {shlex.quote(json.dumps(text))}" if bare else ""
        raise UsageError(f"{source} is no JSON: {error}{advice}") from None


def parse_pairs(given: list[str] | None, option: str) -> dict[str, Any]:
    """Return the values of an option that may be given again: `KEY=JSON`, or `KEY=TEXT` without quotes.

    Args:
        given: the option's values, as written on the command line; None if there are none.
        option: its name, for messages.

    Returns:
        The values by key.

    Raises:
        UsageError: one has no `=`.
    """
    pairs: dict[str, Any] = {}
    for each in given or ():
        key, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"{option} is KEY=JSON, not {each!r}")
        try:
            pairs[key] = json.loads(text)
        except json.JSONDecodeError:
            pairs[key] = text  # text without quotes
    return pairs
