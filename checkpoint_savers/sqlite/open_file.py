"""Detect that a database file was removed or replaced while it is open.

SQLite continues to write to the file that it has opened, wherever the path leads now: all of that would be lost with
the last process that has the file open. The same holds for the write-ahead log, which has the last commits, and for the
log's index (`-shm`), which has the locks: two processes with different index files overwrite each other's commits.
"""

from __future__ import annotations

import os

from ..errors import StorageReplacedError

_Identity = tuple[int, int] | None
"""Device and inode; None if the path leads nowhere. File systems without inodes (some on Windows) report 0: there, a
missing file is detected and a replaced one is not. Windows does not let an open file be replaced."""


class OpenFile:
    """A database file, its log and the log's index, as they were when they were opened.

    Args:
        path: as it was passed. It is made absolute now, as the process may change its working directory.
    """

    __slots__ = ("_companions", "_file", "_name", "_path")

    def __init__(self, path: str) -> None:
        self._name = path
        self._path = os.path.abspath(path)
        self._file = _identity(self._path)
        self._companions: list[tuple[str, _Identity]] = []

    def opened(self, file: str) -> None:
        """Remember which log and index SQLite has opened.

        Args:
            file: the path of the database as SQLite knows it: without symbolic links, next to which log and index lie.
        """
        paths = (f"{file}-wal", f"{file}-shm")
        self._companions = [(path, found) for path in paths if (found := _identity(path)) is not None]

    def check(self) -> None:
        """Compare the paths with the open files, by three calls of `stat`.

        Raises:
            StorageReplacedError: one of them was removed or replaced.
        """
        try:
            if _identity(self._path) != self._file:
                raise StorageReplacedError(self._name, self._path)
            for path, opened in self._companions:
                if _identity(path) != opened:
                    raise StorageReplacedError(self._name, path)
        except OSError:
            return  # the folder has become unreadable, for example: that says nothing about the file


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
