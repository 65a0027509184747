"""Noticing that a database file was removed or replaced while it is open.

SQLite goes on writing to the file that it has opened, wherever the path leads by now: all of it would be gone with the
last process that has the file open. So does it with its write-ahead log, which has what was committed last.
"""

from __future__ import annotations

import os

from ..errors import StorageReplacedError

_Identity = tuple[int, int] | None
"""Device and inode; None where the path leads nowhere. File systems without inodes (some on Windows) say 0: there a
file that is missing is noticed, and one that was replaced is not. Windows does not let an open file be replaced."""


class OpenFile:
    """A database file and its log, as they were when they were opened.

    Args:
        path: as it was given. It is made absolute now, as the process may change its folder.
    """

    __slots__ = ("_file", "_log", "_log_path", "_name", "_path")

    def __init__(self, path: str) -> None:
        self._name = path
        self._path = os.path.abspath(path)
        self._file = _identity(self._path)
        self._log_path: str | None = None
        self._log: _Identity = None

    def opened(self, file: str) -> None:
        """Note which log SQLite has opened.

        Args:
            file: the path of the database as SQLite knows it: without symbolic links, the log lies next to that one.
        """
        self._log_path = f"{file}-wal"
        self._log = _identity(self._log_path)

    def check(self) -> None:
        """Compare what the paths lead to with the open files. It takes two calls of `stat`.

        Raises:
            StorageReplacedError: one of them was removed or replaced.
        """
        try:
            if _identity(self._path) != self._file:
                raise StorageReplacedError(self._name, self._path)
            if self._log is not None and self._log_path is not None and _identity(self._log_path) != self._log:
                raise StorageReplacedError(self._name, self._log_path)
        except OSError:
            return  # the folder cannot be read any more, for example: that says nothing about the file


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
