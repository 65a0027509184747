"""A saver that stores threads in one SQLite file, for any number of processes on one machine."""

from __future__ import annotations

from .saver import SqliteSaver

__all__ = ["SqliteSaver"]
