"""Which files a tree has, and what is in one of them."""

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
"""Names of directories that are passed over by default: other people's code, and tests with their broken fixtures."""

ENVIRONMENT = "pyvenv.cfg"
"""What marks a virtual environment, which is passed over as long as anything is. (`venv` is a package's name too.)"""

LARGEST = 4_000_000
"""Bytes. A syntax tree takes about a hundred times its source; what is larger than this was generated."""


class TooLarge(Exception):
    """A file that is not worth the memory of parsing it."""


def standard_library() -> Path:
    """Where the running interpreter keeps its own."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path, skip: Collection[str] = SKIPPED) -> list[str]:
    """The Python files under `root`, as paths relative to it with `/`, in an order that no file system has a say in.

    Raises:
        OSError: `root` cannot be listed. Directories below it that cannot be are passed over.
    """
    os.scandir(root).close()  # os.walk would say nothing
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
    """A file's bytes.

    Raises:
        OSError: it cannot be read; it may be gone since it was listed.
        TooLarge
    """
    with file.open("rb") as stream:
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise TooLarge(f"larger than {LARGEST // 1_000_000} MB")
    return data
