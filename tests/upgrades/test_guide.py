"""The lines of `threads check` that docs/upgrades.md quotes are those that it prints."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any, TypedDict

import pytest

from checkpoint_savers import InMemorySaver
from pregel_async.cli.thread_checks import Report
from tests.helpers.code_blocks import ROOT
from tests.upgrades.graphs import built, failed, line, says

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


class Old(TypedDict, total=False):
    net: int
    vat: int
    coupon: str
    name: str
    price: int
    customer: str
    tags: Annotated[list[str], operator.add]


class New(TypedDict, total=False):
    price: str
    customer: int
    tags: Annotated[set[str], operator.or_]


async def test_quoted_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each quoted line has a reason and an advice that `threads check` prints, in the columns in which it prints them."""
    saver = InMemorySaver()
    old = built(Old, {"approve": says("approve"), "audit": says("audit")}, [("__start__", "approve")], saver)
    given: Any = {"net": 1, "vat": 1, "coupon": "c", "name": "n", "price": 1, "customer": "c", "tags": ["t"]}
    await failed(old, "approve", given=given)
    await failed(line(Old, "audit", saver=saver), "audit", given={}, thread="u")
    report = Report()
    await report.read(line(New, "sign_off", saver=saver).acheck_threads())
    report.print(as_json=False)
    printed = {tuple(cells[1::2]) for cells in map(_cells, capsys.readouterr().out.splitlines()) if len(cells) == 4}
    page = (ROOT / "docs" / "upgrades.md").read_text("utf-8")
    texts = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    quoted = [cells for text in texts for cells in map(_cells, text.splitlines()) if len(cells) == 4]
    assert len(quoted) >= 10
    assert [cells for cells in quoted if tuple(cells[1::2]) not in printed] == []


def _cells(row: str) -> list[str]:
    return re.split(r" {2,}", row.strip())
