"""The base class of everything that is opened with `async with`: using `with` raises an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING


class OpenedAsync:
    """A base of savers, stores and caches that must be opened."""

    if not TYPE_CHECKING:  # a type checker refuses `with` by itself

        def __enter__(self):
            kind = type(self).__name__
            raise TypeError(
                f"{kind} is opened with 'async with', or without an event loop with "
                f"'with pregel_async.open_sync({kind}(...))': nothing was opened"
            )

        def __exit__(self, *error):
            """Exists because Python looks it up before it calls `__enter__`."""
