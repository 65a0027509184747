"""A saver that stores threads in PostgreSQL, for any number of processes on any number of machines."""

from __future__ import annotations

try:
    from .saver import PostgresSaver
except ModuleNotFoundError as error:
    if (error.name or "") not in ("psycopg", "psycopg_pool"):
        raise
    raise ImportError(
        f"PostgresSaver needs {error.name}, which is not installed: pip install 'pregel-async[postgres]'",
        name=error.name,
    ) from error

__all__ = ["PostgresSaver"]
