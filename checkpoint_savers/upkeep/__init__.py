"""Upkeep of stored threads, over the methods of any saver:

threads     lists, copies, erases and pins threads
export      writes threads to a file, and reads them from one
retention   decides which checkpoints to delete, and which to retain since a retained one needs them
rebasing    rewrites retained rows so that they can be read without the deleted ones
pruning     combines the three: deletes checkpoints of threads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import exported

if TYPE_CHECKING:
    from .export import Place, export_threads, import_thread
    from .pruning import delete_for_runs, prune, without_runs
    from .threads import copy_thread, count_threads, erase_thread, list_threads, pin

__all__ = [
    "Place",
    "copy_thread",
    "count_threads",
    "delete_for_runs",
    "erase_thread",
    "export_threads",
    "import_thread",
    "list_threads",
    "pin",
    "prune",
    "without_runs",
]

__getattr__ = exported(
    __name__,
    {
        **dict.fromkeys(("Place", "export_threads", "import_thread"), ".export"),
        **dict.fromkeys(("delete_for_runs", "prune", "without_runs"), ".pruning"),
        **dict.fromkeys(("copy_thread", "count_threads", "erase_thread", "list_threads", "pin"), ".threads"),
    },
)
