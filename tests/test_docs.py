"""Every Python block of docs/ runs, as README's do: by itself, in a process of its own, without a warning.

A block that cannot run, such as code of another library, is marked as text.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.code_blocks import ROOT, blocks, run_block

DOCS = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(code, id=f"{path.relative_to(ROOT / 'docs')} line {line}")
        for path in DOCS
        for line, code in blocks(path)
    ],
)
def test_a_block_of_the_docs_runs(block: str, tmp_path: Path) -> None:
    """The block runs as a reader would run it. Its assertions are the claims of the text around it."""
    run_block(block, tmp_path)


def test_there_are_blocks() -> None:
    """The test above has found some blocks, and a program in each recipe."""
    assert len(blocks(ROOT / "docs" / "from-langgraph.md")) >= 4
    recipes = [path for path in DOCS if path.parent.name == "recipes" and path.name != "index.md"]
    assert len(recipes) >= 6
    assert [path.name for path in recipes if not blocks(path)] == []


def test_readme_can_be_read_in_one_sitting() -> None:
    """What is longer is a page of docs/."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 300
