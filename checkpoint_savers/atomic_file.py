"""Files that appear under their name only when they are complete: temporary name, fsync, rename.

All functions block: call them in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class AtomicFile:
    """A file that is written under a temporary name in the folder of its target, and then renamed.

    A file that is replaced passes on its permissions, and its owner where the system allows that. Symbolic links are
    followed, as `open` does. A process that is killed may leave `NAME.XXXXXXXX.partial`, which may be deleted.

    Args:
        target: the path that the file gets.

    Attributes:
        target: that path, without symbolic links.
        temporary: the path to write to, after `create`.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(os.path.realpath(target))
        # The temporary name is random, so that concurrent writers of one target do not share a file: each completes its
        # own, and the last rename wins.
        self.temporary = self.target.with_name(f"{self.target.name}.{os.urandom(4).hex()}.partial")
        self._replaces: os.stat_result | None = None

    def create(self) -> int:
        """Create the empty file under its temporary name.

        Returns:
            A file descriptor, open for writing, which the caller closes.

        Raises:
            OSError: the file cannot be created there. Nothing was created.
        """
        with contextlib.suppress(FileNotFoundError):
            self._replaces = self.target.stat()
        # Never with more permissions than the target has: the content may be secret.
        return os.open(self.temporary, _FLAGS, 0o666 if self._replaces is None else self._replaces.st_mode & 0o777)

    def finish(self, *, replace: bool = True) -> None:
        """Rename the complete file to its target, durably. It must be closed, and its content on the disk (fsync).

        Args:
            replace: whether it may replace an existing file.

        Raises:
            FileExistsError: the target exists, and `replace` is False.
            OSError: the file could not be renamed. Call `discard`.
        """
        if self._replaces is not None:
            self._keep_permissions(self._replaces)
        if replace:
            os.replace(self.temporary, self.target)
        else:
            self._rename()
        sync_folder(self.target.parent)

    def discard(self) -> None:
        """Delete the unfinished file, if it exists."""
        # Raises nothing: it is called while another error is raised, which must reach the caller.
        with contextlib.suppress(OSError):
            self.temporary.unlink()

    def _keep_permissions(self, replaced: os.stat_result) -> None:
        made = self.temporary.stat()
        if sys.platform != "win32" and (made.st_uid, made.st_gid) != (replaced.st_uid, replaced.st_gid):
            with contextlib.suppress(OSError):  # only the superuser may give files away
                os.chown(self.temporary, replaced.st_uid, replaced.st_gid)
        self.temporary.chmod(stat.S_IMODE(replaced.st_mode))  # after chown, which takes some of them away

    def _rename(self) -> None:
        """Rename the file, unless the target exists."""
        # A hard link fails if the target exists. To look first and rename then would let another writer in between.
        if sys.platform == "win32":
            self.temporary.rename(self.target)  # replaces nothing on Windows
            return
        try:
            os.link(self.temporary, self.target)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if self.target.exists():
                raise FileExistsError(f"{self.target} is there already") from None
            self.temporary.rename(self.target)
        else:
            self.temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder's directory entries to the disk.

    Args:
        folder: the folder.
    """
    # Windows cannot open folders, and flushes their entries by itself.
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_regular_or_new(path: str | os.PathLike[str]) -> bool:
    """Return True if a path leads to a regular file, or to nothing.

    Other files (pipes, devices) cannot be replaced by a rename.

    Args:
        path: the path.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
