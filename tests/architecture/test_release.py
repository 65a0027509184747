"""What is written about a release, its platforms and its sessions in several places is the same everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION = PROJECT["version"]
NOXFILE = (ROOT / "noxfile.py").read_text("utf-8")
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
in_a_checkout = pytest.mark.skipif(not WORKFLOW.exists(), reason="an sdist has no workflow")


def pythons() -> list[str]:
    """The Pythons that the package's metadata name."""
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["classifiers"]]
    return [match[1] for match in found if match]


def test_the_changelog_has_the_version() -> None:
    """The version has a dated heading, and one for what follows is above it."""
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d", headings[1])
    assert len(set(headings)) == len(headings)


def test_readme_installs_the_version() -> None:
    """README's install command, which `nox -s release` runs, names the version that is built."""
    command = re.search(r"<!-- install command -->\n```sh\n(.+)\n```", (ROOT / "README.md").read_text("utf-8"))
    assert command is not None
    assert command[1].endswith(f'=={VERSION}"')


def test_the_supported_pythons() -> None:
    """The metadata, the session `pythons` and docs/versions.md name the same Pythons."""
    assert f">={pythons()[0]}" == PROJECT["requires-python"]
    assert f"@nox.session(python={pythons()})".replace("'", '"') in NOXFILE
    assert f"Python {', '.join(pythons()[:-1])} and {pythons()[-1]}" in (ROOT / "docs" / "versions.md").read_text(
        "utf-8"
    )


@in_a_checkout
def test_the_workflow_calls_sessions() -> None:
    """The GitHub workflow runs sessions of the noxfile, on all supported Pythons."""
    text = WORKFLOW.read_text("utf-8")
    (sessions,) = re.findall(r"session: \[(.+)\]", text)
    defined = re.findall(r"@nox\.session(?:\(.*\))?\ndef (\w+)\(", NOXFILE)
    assert set(sessions.split(", ")) <= set(defined)
    (matrix,) = re.findall(r"python: \[(.+)\]", text)
    assert [each.strip('"') for each in matrix.split(", ")] == pythons()
    assert "nox -s pythons --python ${{ matrix.python }}" in text
