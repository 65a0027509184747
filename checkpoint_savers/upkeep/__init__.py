"""Looking after what is stored, over the verbs of any saver:

threads     listing, copying, erasing and pinning them
export      writing them to a file, and reading them from one
retention   what of a thread may go, and what stays because something that stays needs it
mending     rows that stay, made so that they are read without those that go
pruning     the three together: taking checkpoints out of threads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazily import exported

if TYPE_CHECKING:
    from .export import Place, export_threads, import_thread
    from .pruning import delete_for_runs, prune
    from .threads import copy_thread, erase_thread, list_threads, pin

__all__ = [
    "Place",
    "copy_thread",
    "delete_for_runs",
    "erase_thread",
    "export_threads",
    "import_thread",
    "list_threads",
    "pin",
    "prune",
]

__getattr__ = exported(
    __name__,
    {
        **dict.fromkeys(("Place", "export_threads", "import_thread"), ".export"),
        **dict.fromkeys(("delete_for_runs", "prune"), ".pruning"),
        **dict.fromkeys(("copy_thread", "erase_thread", "list_threads", "pin"), ".threads"),
    },
)
