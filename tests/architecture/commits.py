"""Check the subjects of commits: `component: imperative change`, at most 72 characters.

    python -m tests.architecture.commits

Checks each commit that was made when this file existed: one of its parents has the file. So no hash of a first commit is
written down, rebasing changes nothing, and a shallow clone is checked as far as it reaches. The exit status is 1 if a
subject breaks the rules. Without a repository (an unpacked sdist), the program says so, and its exit status is 0.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HERE = "tests/architecture/commits.py"
"""This file's path in each commit that has it."""

LONGEST = 72
_SUBJECT = re.compile(r"(?P<components>[\w./-]+(?:, [\w./-]+)*): (?P<change>\S.*)")
_IMPERATIVE = {
    "address",
    "bring",
    "bypass",
    "compress",
    "cross",
    "discuss",
    "dismiss",
    "embed",
    "exceed",
    "express",
} | {"bias", "feed", "focus", "guess", "need", "pass", "press", "process", "seed", "shed", "speed", "string", "stress"}
"""Imperatives that end like another form of a verb."""


class Unavailable(Exception):
    """The commits cannot be read. The message says why."""


class Commit(NamedTuple):
    """A commit that is checked.

    Attributes:
        id: its abbreviated hash.
        subject: the first line of its message.
    """

    id: str
    subject: str


class Checked(NamedTuple):
    """The commits to which the rules apply.

    Attributes:
        commits: these, the newest first.
        shallow: the clone lacks older commits, which are not among them.
    """

    commits: tuple[Commit, ...]
    shallow: bool


def complaint(subject: str) -> str | None:
    """Return what is wrong with a subject, or None."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters; at most {LONGEST} are allowed"
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        return "not of the form 'component: change', or 'component, component: change'"
    if match["components"] == "merge":
        return None  # what was merged, not what to do
    word, *_ = match["change"].split()
    if subject.endswith("."):
        return "ends with a full stop"
    if re.search(r"(?:[^s]s|ed|ing)$", word) and word not in _IMPERATIVE:
        return f"begins with {word!r}, which is not an imperative (add, not adds, added or adding)"
    return None


def checked_commits(root: Path) -> Checked:
    """Read the commits to which the rules apply.

    Raises:
        Unavailable: git is not installed, or `root` is not the root of a repository with a commit.
    """
    found = _git(root, "rev-parse", "--show-toplevel").strip()
    if Path(found).resolve() != root.resolve():
        raise Unavailable(f"{root} belongs to the repository {found}")
    log = [line.split("\0") for line in _git(root, "log", "--format=%h%x00%P%x00%s").splitlines()]
    # One process for all parents. It prints "... missing" for a commit without the file, and for a parent that a shallow
    # clone lacks.
    wanted = [f"{parent}:{HERE}" for _, parents, _ in log for parent in parents.split()]
    answers = iter(_git(root, "cat-file", "--batch-check", given="".join(f"{each}\n" for each in wanted)).splitlines())
    after = [any([not next(answers).endswith("missing") for _ in parents.split()]) for _, parents, _ in log]
    commits = tuple(Commit(id, subject) for (id, _, subject), counts in zip(log, after, strict=True) if counts)
    return Checked(commits, _git(root, "rev-parse", "--is-shallow-repository").strip() == "true")


def _git(root: Path, *arguments: str, given: str = "") -> str:
    try:
        done = subprocess.run(
            ("git", "-C", str(root), *arguments), input=given, capture_output=True, text=True, encoding="utf-8"
        )
    except OSError as error:
        raise Unavailable(f"git cannot be run: {error}") from error
    if done.returncode:
        raise Unavailable(f"git {arguments[0]} says: {done.stderr.strip()}")
    return done.stdout


def main(root: Path = ROOT) -> int:
    """Print what is wrong with which subject; return the exit status."""
    try:
        commits, shallow = checked_commits(root)
    except Unavailable as reason:
        print(f"commit subjects are not checked: {reason}")
        return 0
    wrong = [(commit, why) for commit in commits if (why := complaint(commit.subject)) is not None]
    for commit, why in wrong:
        print(f"{commit.id} {commit.subject}\n    {why}")
    limits = "; older ones are not checked, since this clone is shallow (git fetch --unshallow)" if shallow else ""
    print(f"{len(commits)} commit subjects checked, {len(wrong)} wrong{limits}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
