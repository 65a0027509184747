"""Tables of HTML, as which objects show themselves in notebooks."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

# Limits of one cell: a notebook keeps its outputs in its file, and a state may be megabytes long.
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 4, 10, 200, 200, 60
_MOST_ROWS = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxfrozenset = _SHORT.maxdeque = 10


def short_code(value: object) -> str:
    """Return a value's repr for a cell: shortened and escaped. Never raises, whatever the value's class does.

    Args:
        value: any value.
    """
    return f"<code>{_short_text(value, _SHORT.repr)}</code>"


def _short_text(value: object, convert: Callable[[Any], str] = str) -> str:
    try:
        text = convert(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return escape(text if len(text) <= 1000 else text[:999] + "…")


def html_table(title: str, rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Return a table with a title.

    Args:
        title: text; it is escaped.
        rows: the rows, each a sequence of cells of HTML.
        header: the columns' names; they are escaped.
    """
    head = f"<tr>{''.join([f'<th>{escape(name)}</th>' for name in header])}</tr>" if header else ""
    left = ' style="text-align: left"'
    body = "".join([f"<tr>{''.join([f'<td{left}>{cell}</td>' for cell in row])}</tr>" for row in rows])
    return f"<table><caption{left}><b>{escape(title)}</b></caption>{head}{body}</table>"


def details_table(title: str, details: Iterable[tuple[str, object]]) -> str:
    """Return a table of names and values, without the values that are None.

    Args:
        title: text; it is escaped.
        details: the names and values.
    """
    return html_table(title, [(escape(name), short_code(value)) for name, value in details if value is not None])


def state_table(now: object, before: object) -> str:
    """Return the table of a state, which shows what has changed.

    Args:
        now: the state: a mapping, or one value.
        before: the state before; None if it is not known.
    """
    here, there = _as_mapping(now), None if before is None else _as_mapping(before)
    keys = here if there is None else {**here, **there}
    # A state is not always a dict of few channels: that of an entrypoint is its last result.
    shown = list(islice(keys, _MOST_ROWS))
    more = [(f"… and {len(keys) - len(shown)} more", "")] if len(keys) > len(shown) else []
    if there is None:
        return html_table("State", [(_short_text(key), short_code(here[key])) for key in shown] + more)
    rows = [
        (_short_text(key), *[short_code(state[key]) if key in state else "" for state in (here, there)])
        if _differ(here, there, key)
        else (_short_text(key), short_code(here[key]), "")
        for key in shown
    ]
    return html_table("State", [*rows, *more], ("key", "value", "changed from"))


def _as_mapping(state: object) -> Mapping[Any, object]:
    return state if isinstance(state, Mapping) else {"(value)": state}


def _differ(here: Mapping[Any, object], there: Mapping[Any, object], key: object) -> bool:
    if (key in here) is not (key in there):
        return True
    try:
        return bool(here[key] != there[key])
    except Exception:  # values of other classes may refuse to be compared; arrays do
        return True
