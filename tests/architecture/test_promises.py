"""docs/promises.md and the tests that cite its promises fit each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text("utf-8")
SECTIONS = {match[1]: match[2] for match in re.finditer(r"^## P(\d+) .*\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE)}
FILES = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "checkpoint_savers" / "conformance").rglob("*.py")]


@pytest.mark.parametrize("number", SECTIONS)
def test_the_named_tests_cite_the_promise(number: str) -> None:
    """Each promise names files of tests, and each of these cites it."""
    named = re.findall(r"`((?:tests|checkpoint_savers)/[\w/]+\.py)`", SECTIONS[number])
    assert len(named) >= 3
    for name in named:
        text = (ROOT / name).read_text("utf-8")
        ranges = re.findall(r"\bP(\d+) to P(\d+)", text)
        covered = any(int(first) <= int(number) <= int(last) for first, last in ranges)
        assert covered or re.search(rf"\bP{number}\b", text), f"{name} does not cite P{number}"


def test_each_cited_promise_has_an_entry() -> None:
    cited = {number for path in FILES for number in re.findall(r'"""P(\d+)\b', path.read_text("utf-8"))}
    assert len(cited) >= 14
    assert cited <= SECTIONS.keys()
