"""Find the Python files of a tree, and read them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

SKIPPED = (
    ".git",
    "__pycache__",
    "dist-packages",
    "idle_test",
    "node_modules",
    "site-packages",
    "test",
    "tests",
)
"""Names of directories that are skipped by default: third-party code, and tests with their broken fixtures."""

ENVIRONMENT = "pyvenv.cfg"
"""The file that marks a virtual environment, which is skipped if any names are. (`venv` is also a package's name.)"""

LARGEST = 4_000_000
"""The largest file to parse, in bytes. A syntax tree takes about a hundred times its source; larger files are
generated code."""


class TooLarge(Exception):
    """Raised for a file that is larger than `LARGEST`."""


def standard_library() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path, skip: Collection[str] = SKIPPED) -> list[str]:
    """Return the Python files under `root`, as relative paths with `/`, in the same order on every file system.

    Args:
        root: the directory to search.
        skip: names of directories to skip. An empty collection also searches virtual environments.

    Raises:
        OSError: `root` cannot be listed. Directories below `root` that cannot be listed are skipped.
    """
    os.scandir(root).close()  # os.walk ignores errors: raise here if root cannot be listed
    found = (
        PurePosixPath(Path(folder, name).relative_to(root).as_posix())
        for folder, names in _walk(root, skip)
        for name in names
        if name.endswith(".py") and Path(folder, name).is_file()
    )
    return [str(path) for path in sorted(found, key=lambda path: path.parts)]


def _walk(root: Path, skip: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    for folder, folders, names in os.walk(root):
        if skip and ENVIRONMENT in names:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in skip]
        yield folder, names


def read(file: Path) -> bytes:
    """Return a file's bytes.

    Args:
        file: the file's path.

    Raises:
        OSError: the file cannot be read; it may have been removed since it was listed.
        TooLarge: the file is larger than `LARGEST`.
    """
    with file.open("rb") as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise TooLarge(f"larger than {LARGEST // 1_000_000} MB")
    return data
