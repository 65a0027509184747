"""Values, errors and tables as text, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
from rich.console import Console
from rich.highlighter import ReprHighlighter
from rich.pretty import pretty_repr
from rich.text import Text

MAX_ITEMS = 5
"""Items of a container that are written out for people."""

MAX_TEXT = 300
"""Characters of a string that are."""

MAX_ERRORS = 5
"""Members of an exception group that are."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def escape(text: str) -> str:
    """Write every character that would not be seen as Python writes it in a string: `\\x1b`, `\\n`, `\\u202e`.

    Thread ids, names of nodes and messages of errors may come from anywhere. Printed as they are, control characters
    would move the cursor, colour the terminal or set its title, line breaks would forge lines, and format characters
    would change the order in which the others are shown.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text
    )


def shell_word(word: str) -> str:
    """A word of a command, to be pasted into a shell. With escapes it is `$'...'`, which bash and zsh read."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_shell_character, word)) + "'"


def _shell_character(one: str) -> str:
    number = ord(one)
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    if 0xDC80 <= number <= 0xDCFF:  # a byte of an argument that is no text
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def print_value(value: object) -> None:
    """For people, on standard output: of a mapping every key, and of what is in it as much as a screen takes."""
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 120
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            console.print(f"{escape(str(key))}:", end=" ", highlight=False)
            console.print(_pretty(item, console.width))
    else:
        console.print(_pretty(value, console.width))


def _pretty(value: object, width: int) -> Text:
    # Not rich's `Pretty`, which obeys the escape sequences in what the `__repr__` of a user's class returns.
    text = pretty_repr(value, max_width=width, max_length=MAX_ITEMS, max_string=MAX_TEXT, indent_size=2)
    return ReprHighlighter()(Text("\n".join(map(escape, text.split("\n"))), style="pretty"))


def print_json(value: object, *, indent: int | None = None) -> None:
    """For programs, on standard output: one JSON document, in ASCII, so that no locale can spoil it."""
    print(json.dumps(as_json(value), indent=indent))


def as_json(value: Any) -> Json:
    """A value as JSON can hold it: fields make an object, a set a sorted array; what JSON does not know is text."""
    if value is None or isinstance(value, (bool, int, str)):
        return cast("Json", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [as_json(item) for item in sorted(cast("set[Any]", value), key=repr)]
    if isinstance(value, Iterable) and isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [as_json(item) for item in value]
    fields = _fields(value)
    if fields is not None:
        return {name: as_json(getattr(value, name)) for name in fields}
    try:
        return cast("Json", msgspec.to_builtins(value))  # times, ids, numbers, enums, bytes
    except (TypeError, ValueError):
        return str(value)


def _fields(value: Any) -> Iterable[str] | None:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return cast("Iterable[str] | None", getattr(type(value), "model_fields", None))  # pydantic


def explain(error: BaseException, *, full: bool) -> Iterator[str]:
    """An error in lines: its type, its message, and the notes that say where it happened. Further lines of a message
    are indented, so that none can pass for a line of the command's.

    Args:
        full: with the traceback.
    """
    if full:
        yield from map(escape, "".join(traceback.format_exception(error)).splitlines())
    else:
        yield from map(escape, _error_lines(error))


def _error_lines(error: BaseException) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        first, *rest = _message_lines(error.message)
        yield f"error: {first}"
        yield from rest
        for inner in error.exceptions[:MAX_ERRORS]:
            yield from (f"  {line}" for line in _brief_lines(inner))
        if len(error.exceptions) > MAX_ERRORS:
            yield f"  and {len(error.exceptions) - MAX_ERRORS} more"
    else:
        first, *rest = _brief_lines(error)
        yield f"error: {first}"
        yield from rest


def _brief_lines(error: BaseException) -> list[str]:
    message = str(error)
    lines = _message_lines(f"{type(error).__name__}: {message}" if message else type(error).__name__)
    for note in getattr(error, "__notes__", ()):
        lines.extend(f"  {line}" for line in str(note).splitlines())
    return lines


def _message_lines(message: str) -> list[str]:
    first, *rest = message.splitlines() or [""]
    return [first, *(f"  {line}" for line in rest)]


def count_names(names: Iterable[str], most: int = 3) -> str:
    """Names, each once, with how often it occurs: `audit x12, rank`."""
    counts = Counter(names)
    shown = [name if count == 1 else f"{name} x{count}" for name, count in list(counts.items())[:most]]
    return ", ".join(shown) + (f", and {len(counts) - most} more" if len(counts) > most else "")


def plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def format_duration(elapsed: float) -> str:
    """`0.4 s`, `12.3 s`, `3:05 min`, `1:02:03 h`."""
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"


def format_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table for programs and log files: one row a line, the columns two spaces apart."""
    lines = [list(map(escape, row)) for row in (head, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for row in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
