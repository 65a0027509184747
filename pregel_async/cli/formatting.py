"""Format values, errors and tables as text, for people and for programs."""

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
"""How many items of a container are printed for people."""

MAX_TEXT = 300
"""How many characters of a string are printed for people."""

MAX_ERRORS = 5
"""How many exceptions of an exception group are printed."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def escape(text: str) -> str:
    """Write each invisible character as a Python escape: `\\x1b`, `\\n`, `\\u202e`.

    Thread ids, node names and error messages may come from anywhere. Printed unchanged, control characters would move
    the cursor, colour the terminal or set its title, line breaks would forge lines, and format characters would reorder
    text.

    Args:
        text: any text.

    Returns:
        Printable text on one line.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode("ascii") for one in text
    )


def shell_word(word: str) -> str:
    """Quote a word of a command, so that it can be pasted into a shell.

    Args:
        word: any text.

    Returns:
        The word, quoted if necessary. Invisible characters need the form `$'...'`, which bash and zsh read.
    """
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_shell_character, word)) + "'"


def _shell_character(one: str) -> str:
    number = ord(one)
    if one.isprintable():
        return f"\\{one}" if one in "\\'" else one
    if 0xDC80 <= number <= 0xDCFF:  # a surrogate in place of a byte of an argument that is not valid text
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x80:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def print_value(value: object) -> None:
    """Print a value for people on standard output.

    All keys of a mapping are printed; the values in it are shortened to what fits on a screen.

    Args:
        value: any value.
    """
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
    # rich's `Pretty` would obey escape sequences in the text that the `__repr__` of a user's class returns.
    text = pretty_repr(value, max_width=width, max_length=MAX_ITEMS, max_string=MAX_TEXT, indent_size=2)
    return ReprHighlighter()(Text("\n".join(map(escape, text.split("\n"))), style="pretty"))


def print_json(value: object, *, indent: int | None = None) -> None:
    """Print a value for programs on standard output, as one JSON document.

    Args:
        value: any value; see `as_json`.
        indent: number of spaces per level; None for a single line.
    """
    # json.dumps escapes to ASCII, so the encoding of the locale does not matter.
    print(json.dumps(as_json(value), indent=indent))


def as_json(value: Any) -> Json:
    """Convert a value to JSON's types.

    Args:
        value: any value.

    Returns: An object for mappings and for classes with fields, an array for sequences, a sorted array for sets, and
    text for values that JSON cannot represent.
    """
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
    """Format an error: its type, its message, and its notes, which say where it happened.

    Args:
        error: the error. Of an exception group, the first exceptions are included.
        full: format the whole traceback instead.

    Yields:
        Lines. Further lines of a message are indented, so that they cannot be mistaken for the command's own output.
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
    """Format names, each once, with the number of times it occurs: `audit x12, rank`.

    Args:
        names: the names.
        most: how many different names are shown.

    Returns:
        The names, separated by commas; the number of names left out is at the end.
    """
    counts = Counter(names)
    shown = [name if count == 1 else f"{name} x{count}" for name, count in list(counts.items())[:most]]
    return ", ".join(shown) + (f", and {len(counts) - most} more" if len(counts) > most else "")


def plural(count: int, what: str) -> str:
    """Format a number with a noun: `1 task`, `2 tasks`.

    Args:
        count: the number.
        what: the noun in the singular.

    Returns:
        Both, with an s unless the number is 1.
    """
    return f"{count} {what}" + ("" if count == 1 else "s")


def format_duration(elapsed: float) -> str:
    """Format a duration: `0.4 s`, `12.3 s`, `3:05 min`, `1:02:03 h`.

    Args:
        elapsed: the duration in seconds.

    Returns:
        The text.
    """
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"


def format_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format a table for programs and log files: one row a line, columns two spaces apart.

    Args:
        head: the titles of the columns.
        rows: the cells of each row, as many as the titles.

    Yields:
        Lines, the titles first, without trailing blanks.
    """
    lines = [list(map(escape, row)) for row in (head, *rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    for row in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
