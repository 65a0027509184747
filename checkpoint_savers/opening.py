"""The base class of everything that is opened with `async with`: using `with` raises an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING


def never_closed(opened: object, name: str) -> str:
    """Return the text of the warning for an object that was opened and is finalized without being closed.

    Args:
        opened: the object.
        name: how messages name its database.
    """
    return f"{opened!r} of {name} was never closed: use it in 'async with'"


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
