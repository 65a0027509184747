"""The check of commit subjects accepts what the rules allow, and can fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.architecture.commits import HERE, Unavailable, checked_commits, complaint, main


@pytest.mark.parametrize(
    "subject",
    [
        "sqlite: drop readers of formats 1 and 2",
        "sqlite, postgres: refuse to write what is not ours any more",
        "docs/failures.md: name the policy",
        "README: process each block",
        "tests: " + "x" * 65,
        "merge: plain words in the savers",
        "merge: what adversarial tests found",
    ],
)
def test_allowed(subject: str) -> None:
    """A subject names its component and says what to do, in at most 72 characters; a merge says what was merged."""
    assert complaint(subject) is None


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("wip", "form"),
        ("Merge branch 'house'", "form"),
        ("fixup! sqlite: drop readers", "form"),
        ("sqlite:drop readers", "form"),
        ("sqlite: ", "form"),
        ("the savers: drop readers", "form"),
        ("tests: " + "x" * 66, "73 characters"),
        ("sqlite: drops readers", "imperative"),
        ("sqlite: dropped readers", "imperative"),
        ("sqlite: dropping readers", "imperative"),
        ("sqlite: drop readers.", "full stop"),
    ],
)
def test_refused(subject: str, reason: str) -> None:
    """Each rule can fail, and its complaint says which rule it is."""
    assert reason in (complaint(subject) or "")


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(("git", *settings, "-C", str(folder), *arguments), check=True, capture_output=True)


def commit(folder: Path, subject: str) -> None:
    git(folder, "commit", "--allow-empty", "-q", "-m", f"{subject}\n\nThe body: has no rules.")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose second commit introduces the check."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "Whatever came before")
    git(folder, "branch", "earlier")
    check = folder / HERE
    check.parent.mkdir(parents=True)
    check.write_text("")
    git(folder, "add", HERE)
    commit(folder, "And the check")
    return folder


def test_commits_since_the_check(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commits after the one that introduces the check are checked, merges too; earlier ones are not, and neither are
    those of a branch that began earlier."""
    assert main(repository) == 0
    assert checked_commits(repository).commits == ()
    commit(repository, "sqlite: drop readers")
    git(repository, "switch", "-q", "earlier")
    commit(repository, "On a branch that began earlier")
    git(repository, "switch", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge: a branch", "earlier")
    assert [each.subject for each in checked_commits(repository).commits] == ["merge: a branch", "sqlite: drop readers"]
    assert main(repository) == 0
    capsys.readouterr()
    commit(repository, "sqlite: Dropped the readers.")
    assert main(repository) == 1
    printed = capsys.readouterr().out
    assert "sqlite: Dropped the readers.\n    ends with a full stop\n" in printed
    assert printed.endswith("3 commit subjects checked, 1 wrong\n")


def test_a_shallow_clone(repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shallow clone is checked as far as it reaches, and the check says that there is more."""
    for subject in ("sqlite: drop readers", "Not according to the rules", "docs: say so"):
        commit(repository, subject)
    for depth, checked, wrong in ((1, 0, 0), (2, 1, 0), (3, 2, 1)):
        clone = tmp_path / f"depth-{depth}"
        git(tmp_path, "clone", "-q", f"--depth={depth}", repository.as_uri(), str(clone))
        assert main(clone) == wrong
        printed = capsys.readouterr().out
        assert f"{checked} commit subjects checked, {wrong} wrong; older ones are not checked" in printed


def test_without_a_repository(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unpacked sdist has no commits, nor has a folder that lies in another project's repository: the check says that
    it checks nothing, and why."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    plain = tmp_path / "plain"
    plain.mkdir()
    for folder in (plain, repository / "tests"):
        with pytest.raises(Unavailable):
            checked_commits(folder)
    assert main(plain) == 0
    assert capsys.readouterr().out.startswith("commit subjects are not checked: git rev-parse says: ")
    monkeypatch.setenv("PATH", "")
    assert main(repository) == 0
    assert capsys.readouterr().out.startswith("commit subjects are not checked: git cannot be run: ")
