"""Parse the dates of HTTP: the form that is sent today, and two that old servers may send.

`email.utils` is too lenient: it accepts dates without a zone, which it reads as local time, and malformed fields such
as `2_:59`. A retry waits until the date, so malformed text must be recognised.

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
    """Return the time of an HTTP date, in unix seconds.

    Args:
        text: the value of a header.
        now: the present in unix seconds. A year of two digits is the one within 50 years of it.

    Raises:
        ValueError: the text is not an HTTP date, or has a day or second that `datetime` rejects, such as a leap second.
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
