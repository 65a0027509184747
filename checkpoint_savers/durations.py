"""Durations that users pass: validated where they are passed, as a number of seconds or a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

__all__ = ["LONGEST_LOCK_WAIT", "read_number", "read_seconds", "shorten"]

LONGEST_LOCK_WAIT: Final = 2_000_000.0
"""Seconds. SQLite and PostgreSQL count milliseconds in 32 bits: a longer lock timeout would overflow to no wait at all.
"""

_SHOWN: Final = 60
"""Characters of an invalid value that an error shows."""


def read_seconds(name: str, value: object, *, zero: bool = False, endless: bool = False) -> float:
    """Return a duration in seconds, as a float.

    Args:
        name: the parameter, for the error.
        value: a number of seconds, or a timedelta.
        zero: True to allow 0.
        endless: True to allow infinity.

    Raises:
        TypeError: it is neither a number nor a timedelta. A bool is no number.
        ValueError: it is negative, NaN, or too large for a float; or 0 or infinite where that is not allowed.
    """
    # Checked once, where the user passes it: later code computes with a finite float, which no clock, event loop or
    # database refuses after a node has run.
    number = value.total_seconds() if isinstance(value, timedelta) else value
    seconds = read_number(name, number, "a number of seconds or a timedelta", endless=endless)
    if seconds < 0 or (seconds == 0 and not zero):
        raise ValueError(f"{name} is {'0 or more' if zero else 'more than zero'}, not {shorten(value)}")
    return seconds


def read_number(name: str, value: object, kind: str = "a number", *, endless: bool = False) -> float:
    """Return a number as a float.

    Args:
        name: the parameter, for the error.
        value: the number.
        kind: what is accepted, for the error.
        endless: True to allow infinity.

    Raises:
        TypeError: it is no number. A bool is no number.
        ValueError: it is NaN, too large for a float, or infinite where that is not allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {kind}, not {shorten(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.nan  # an int beyond the range of a float, 10**400 for example
    if math.isnan(number) or (math.isinf(number) and not endless):
        finite = "within the range of a float" if endless else "finite"
        raise ValueError(f"{name} is {kind}, and {finite}, not {shorten(value)}")
    return number


def shorten(value: object) -> str:
    """Return the repr of an invalid value, shortened for an error message.

    Args:
        value: the value.
    """
    # Python refuses to print an int of more than 4300 digits, with a ValueError about something else.
    if isinstance(value, int) and value.bit_length() > 8 * _SHOWN:
        return f"an int of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
