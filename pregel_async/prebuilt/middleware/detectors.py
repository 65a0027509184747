"""Find personal data in texts: email addresses, card numbers, IP and MAC addresses, and URLs."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict

from ...errors import GraphValidationError

__all__ = ["PIIMatch", "detect_credit_card", "detect_email", "detect_ip", "detect_mac_address", "detect_url"]


class PIIMatch(TypedDict):
    """A place in a text.

    Keys:
        type: the type of data, such as "email".
        value: the text of the place.
        start: the index of its first character.
        end: the index after its last character.
    """

    type: str
    value: str
    start: int
    end: int


Detector: TypeAlias = Callable[[str], Sequence[PIIMatch]]

# Lengths are bounded, and no two parts of an expression match the same text: so a search takes time in proportion to
# the text, whatever an attacker writes.
_LETTERS: Final = "A-Za-zÀ-ɏͰ-ԯ"
"""Latin, Greek and Cyrillic. Scripts without spaces between words are left out: words would become a part of data."""

_EMAIL: Final = re.compile(
    rf"[{_LETTERS}0-9._%+-]{{1,64}}@(?:[{_LETTERS}0-9-]{{1,63}}\.){{1,10}}"
    rf"(?:xn--[A-Za-z0-9-]{{1,59}}|[{_LETTERS}]{{2,63}})"
)
_DIGITS: Final = re.compile(r"[0-9](?:[\s-]?[0-9])*")
_GROUP: Final = re.compile(r"[0-9]+")
_IPV4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d|\.\d)", re.ASCII)
_IPV6: Final = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:\.\d{1,3}){0,3}(?![\w:])", re.ASCII)
_MAC: Final = re.compile(
    r"(?<![0-9A-Fa-f:-])(?:(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}|(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})"
    r"(?![0-9A-Fa-f:-])"
)
_URL: Final = re.compile(r"(?:https?|ftp|wss?)://[^\s<>\"{}|\\^`]+", re.IGNORECASE)
_BARE_URL: Final = re.compile(
    rf"(?<![\w@./-])(?:[{_LETTERS}0-9][{_LETTERS}0-9-]{{0,62}}\.){{1,10}}"
    rf"(?:xn--[A-Za-z0-9-]{{1,59}}|[{_LETTERS}]{{2,63}})(?::\d{{1,5}})?(?:/[^\s<>\"{{}}|\\^`]*)?(?![\w@])"
)
_BRACKETS: Final = {")": "(", "]": "["}
_SMALLEST_CARD, _LARGEST_CARD = 13, 19


def _matches(type: str, pattern: re.Pattern[str], content: str) -> Iterator[PIIMatch]:
    for match in pattern.finditer(content):
        yield PIIMatch(type=type, value=match.group(), start=match.start(), end=match.end())


def detect_email(content: str) -> list[PIIMatch]:
    """Find email addresses.

    Args:
        content: the text.

    Returns:
        The matches, in their order.
    """
    return list(_matches("email", _EMAIL, content)) if "@" in content else []


def detect_credit_card(content: str) -> list[PIIMatch]:
    """Find numbers of payment cards: 13 to 19 digits, in groups or not, whose check digit is right (Luhn).

    Args:
        content: the text.

    Returns:
        The matches, in their order.
    """
    found: list[PIIMatch] = []
    for run in _DIGITS.finditer(content):
        if run.end() - run.start() < _SMALLEST_CARD:
            continue
        groups = [match.span() for match in _GROUP.finditer(content, *run.span())]
        at = 0
        while at < len(groups):
            # Of several numbers in a row, such as a card's and its date, the one of most digits that is valid.
            ends = range(min(len(groups), at + _LARGEST_CARD), at, -1)
            end = next((end for end in ends if _is_card(content, groups[at:end])), None)
            if end is not None:
                start, stop = groups[at][0], groups[end - 1][1]
                found.append(PIIMatch(type="credit_card", value=content[start:stop], start=start, end=stop))
            at = at + 1 if end is None else end
    return found


def _is_card(content: str, groups: Sequence[tuple[int, int]]) -> bool:
    if content[groups[0][0]] in "01":
        return False  # no card's number begins with 0, and those with 1 are of airlines: most such numbers are times
    if not _SMALLEST_CARD <= sum(end - start for start, end in groups) <= _LARGEST_CARD:
        return False
    digits = "".join(content[start:end] for start, end in groups)
    doubled = [int(digit) * (1 + at % 2) for at, digit in enumerate(reversed(digits))]
    return sum(value - 9 if value > 9 else value for value in doubled) % 10 == 0


def detect_ip(content: str) -> list[PIIMatch]:
    """Find IP addresses of both versions.

    Args:
        content: the text.

    Returns:
        The matches, in their order.
    """
    found: list[PIIMatch] = []
    for match in _matches("ip", _IPV6, content) if content.count(":") > 1 else ():
        value = match["value"]
        if value.endswith(":") and not value.endswith("::"):
            value = value[:-1]
        if _is_ipv6(value):
            found.append(PIIMatch(type="ip", value=value, start=match["start"], end=match["start"] + len(value)))
    ends = {match["end"] for match in found}  # an address of version 6 may end with one of version 4
    found += [
        match
        for match in (_matches("ip", _IPV4, content) if content.count(".") > 2 else ())
        if match["end"] not in ends and all(int(part) < 256 for part in match["value"].split("."))
    ]
    return sorted(found, key=lambda match: match["start"])


def _is_ipv6(value: str) -> bool:
    try:
        ipaddress.IPv6Address(value)
    except ValueError:
        return False
    return value.strip(":") != ""  # "::" is in the code of several languages


def detect_mac_address(content: str) -> list[PIIMatch]:
    """Find MAC addresses: six pairs of digits, or three groups of four with dots.

    Args:
        content: the text.

    Returns:
        The matches, in their order.
    """
    if content.count(":") < 5 and content.count("-") < 5 and content.count(".") < 2:
        return []
    return list(_matches("mac_address", _MAC, content))


def detect_url(content: str) -> list[PIIMatch]:
    """Find URLs: with a scheme; and without one, if they begin with "www." or have a path.

    Args:
        content: the text.

    Returns:
        The matches, in their order. Punctuation at the end is no part of them.
    """
    if "." not in content and "://" not in content:
        return []
    found = [_without_punctuation(match) for match in _matches("url", _URL, content)]
    covered = [(match["start"], match["end"]) for match in found]
    at = 0
    for match in _matches("url", _BARE_URL, content):
        while at < len(covered) and covered[at][1] <= match["start"]:
            at += 1
        is_inside = at < len(covered) and covered[at][0] < match["end"]
        if not is_inside and ("/" in match["value"] or match["value"].lower().startswith("www.")):
            found.append(_without_punctuation(match))
    return sorted(found, key=lambda match: match["start"])


def _without_punctuation(match: PIIMatch) -> PIIMatch:
    value = match["value"]
    end = len(value)
    open_ends = {closing: value.count(closing) - value.count(opening) for closing, opening in _BRACKETS.items()}
    while value[end - 1] in ".,;:!?'*" or open_ends.get(value[end - 1], 0) > 0:
        end -= 1
        if value[end] in open_ends:
            open_ends[value[end]] -= 1
    return PIIMatch(type=match["type"], value=value[:end], start=match["start"], end=match["start"] + end)


DETECTORS: Final[Mapping[str, Detector]] = {
    "credit_card": detect_credit_card,
    "email": detect_email,
    "ip": detect_ip,
    "mac_address": detect_mac_address,
    "url": detect_url,
}


def detector_of(pii_type: str, given: Any) -> Detector:
    """Return the detector of a type of data.

    Args:
        pii_type: the type.
        given: a function of a text, which returns dicts with `start` and `end`; a regular expression; or None for the
            detector of this module.

    Returns:
        A detector whose matches do not overlap: what several matches of `given` cover is one match.

    Raises:
        GraphValidationError: there is no such detector, or the expression is invalid.
    """
    if given is None and pii_type not in DETECTORS:
        raise GraphValidationError(
            f"there is no detector for {pii_type!r}: pass detector=, a regular expression or a function, or one of the "
            f"types {', '.join(DETECTORS)}"
        )
    if isinstance(given, (str, re.Pattern)):
        try:
            pattern: re.Pattern[str] = re.compile(given)
        except re.error as error:
            raise GraphValidationError(f"the detector of {pii_type!r} is no regular expression: {error}") from error
        find: Any = lambda content: list(_matches(pii_type, pattern, content))  # noqa: E731  # one of several forms
    elif given is None or callable(given):
        find = given or DETECTORS[pii_type]
    else:
        raise GraphValidationError(
            f"the detector of {pii_type!r} is a regular expression or a function of a text, not {given!r}"
        )

    def detect(content: str) -> list[PIIMatch]:
        merged: list[PIIMatch] = []
        for match in sorted(find(content), key=lambda match: (match["start"], -match["end"])):
            start, end = match["start"], match["end"]
            if not 0 <= start <= end <= len(content):
                raise ValueError(f"the detector of {pii_type!r} returned a place outside of the text: {start} to {end}")
            if start == end:
                continue
            if merged and start < merged[-1]["end"]:
                start, end = merged[-1]["start"], max(end, merged.pop()["end"])
            merged.append(PIIMatch(type=match.get("type", pii_type), value=content[start:end], start=start, end=end))
        return merged

    return detect
