"""Dates as HTTP writes them, in the one form that is sent today and the two that old servers may send.

`email.utils` reads what mail programs have ever written: a date without a zone, which it leaves to the local one, and
fields that are none (`2_:59`). A wait is made of the date, so what is not one has to be recognised.

Source: RFC 9110, 5.6.7.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_MONTH = f"(?P<month>{'|'.join(MONTHS)})"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_FORMS = (
    re.compile(rf"[A-Z][a-z]{{2}}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(rf"[A-Z][a-z]{{5,8}}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(rf"[A-Z][a-z]{{2}} {_MONTH} (?P<day>[0-9 ][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def read_http_date(text: str, *, now: float) -> float:
    """Return the time that a date names, in unix seconds.

    Args:
        text: a header's value.
        now: unix seconds, for years of two digits: the year within 50 years of this one is meant.

    Raises:
        ValueError: the text is not a date of HTTP, or names a day or a second that `datetime` does not know: the 99th
            of a month, a leap second.
    """
    for form in _FORMS:
        if found := form.fullmatch(text):
            return _moment(found, now)
    raise ValueError(f"{text!r} is not a date of HTTP")


def _moment(found: re.Match[str], now: float) -> float:
    year = int(found["year"])
    if len(found["year"]) == 2:
        earliest = datetime.fromtimestamp(now, UTC).year - 49
        year = earliest + (year - earliest) % 100
    month = MONTHS.index(found["month"]) + 1
    day, hour, minute, second = (int(found[name]) for name in ("day", "hour", "minute", "second"))
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
