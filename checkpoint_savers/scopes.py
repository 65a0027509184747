"""Telling a cancel scope's cancellation from asyncio's own."""

from __future__ import annotations


def is_from_cancel_scope(cancelled: BaseException) -> bool:
    """Whether an `asyncio.CancelledError` is a cancel scope's, which is told again and again, and not that of a
    `Task.cancel()`, which is told once.

    anyio says it in the message, and in no other way: "Cancelled via cancel scope ...", or "by" in earlier versions.
    """
    told = cancelled.args[0] if cancelled.args else None
    return isinstance(told, str) and " cancel scope " in told


def mark_done(cancelled: BaseException) -> None:
    """Note on a cancellation that what it came to was done all the same, well.

    A native one is raised by what cannot be stopped when that has ended, in the place of its result. Without the note
    its caller would not know whether a transaction was stored.
    """
    cancelled.__dict__["_done"] = True


def is_done(cancelled: BaseException) -> bool:
    """Return True if `mark_done` was called with this cancellation."""
    return cancelled.__dict__.get("_done", False) is True
