"""Files that get their name when they are complete: a temporary name of their own, fsync, rename.

All of it blocks: call it in a worker thread.
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

    The temporary name is drawn at random. So writers of one target do not meet: each finishes a whole file, and the
    last to finish stays. A name derived from the target would give them one file to write in.

    What is at the target keeps its permissions when it is replaced, and its owner where the system allows that.
    Symbolic links are followed, as `open` does. A process that is killed may leave `NAME.XXXXXXXX.partial`, which may
    be deleted.

    Args:
        target: the path that the file gets.

    Attributes:
        target: that path, without symbolic links.
        temporary: the path to write to, after `create`.
    """

    def __init__(self, target: str | os.PathLike[str]) -> None:
        self.target = Path(os.path.realpath(target))
        self.temporary = self.target.with_name(f"{self.target.name}.{os.urandom(4).hex()}.partial")
        self._replaces: os.stat_result | None = None

    def create(self) -> int:
        """Create the file, empty, under its temporary name.

        Returns:
            A file descriptor, open for writing, which the caller closes.

        Raises:
            OSError: it cannot be created there. Nothing was.
        """
        with contextlib.suppress(FileNotFoundError):
            self._replaces = self.target.stat()
        # Not with more permissions than it will have in the end: it may be that of a secret that is written here.
        return os.open(self.temporary, _FLAGS, 0o666 if self._replaces is None else self._replaces.st_mode & 0o777)

    def finish(self, *, replace: bool = True) -> None:
        """Give the complete file its name, durably. It is closed by now, and everything in it is on the disk.

        Args:
            replace: whether it may replace what is at the target.

        Raises:
            FileExistsError: there is something, and `replace` is false.
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
        """Delete the unfinished file, if there is one. Raises nothing: an error led here, and is the one to raise."""
        with contextlib.suppress(OSError):
            self.temporary.unlink()

    def _keep_permissions(self, replaced: os.stat_result) -> None:
        made = self.temporary.stat()
        if sys.platform != "win32" and (made.st_uid, made.st_gid) != (replaced.st_uid, replaced.st_gid):
            with contextlib.suppress(OSError):  # only the superuser may give files away
                os.chown(self.temporary, replaced.st_uid, replaced.st_gid)
        self.temporary.chmod(stat.S_IMODE(replaced.st_mode))  # after chown, which takes some of them away

    def _rename(self) -> None:
        """Rename the file, unless something is there. A look before a rename would leave time for another writer."""
        if sys.platform == "win32":
            self.temporary.rename(self.target)  # which replaces nothing there
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
    """Have a folder's names on disk. Windows opens no folders, and does this by itself."""
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_regular_or_new(path: str | os.PathLike[str]) -> bool:
    """Return True if the path leads to a regular file, or to nothing. Others (pipes, devices) cannot be replaced."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True
