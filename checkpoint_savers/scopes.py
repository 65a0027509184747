"""Distinguishes a cancel scope's cancellation from asyncio's own."""

from __future__ import annotations


def is_from_cancel_scope(cancelled: BaseException) -> bool:
    """Return True if an `asyncio.CancelledError` was raised by an anyio cancel scope, and not by `Task.cancel()`.

    A scope raises its cancellation again at each await; `Task.cancel()` raises once.

    Args:
        cancelled: the cancellation.
    """
    # anyio marks it only in the message: "Cancelled via cancel scope ...", or "by" in earlier versions.
    message = cancelled.args[0] if cancelled.args else None
    return isinstance(message, str) and " cancel scope " in message


def mark_done(cancelled: BaseException) -> None:
    """Note on a cancellation that the interrupted work was completed successfully.

    Work that cannot be interrupted raises a native cancellation after it has ended, instead of returning its result.
    Without the note the caller would not know whether its transaction was stored.

    Args:
        cancelled: the cancellation.
    """
    cancelled.__dict__["_done"] = True


def is_done(cancelled: BaseException) -> bool:
    """Return True if `mark_done` was called with this cancellation.

    Args:
        cancelled: the cancellation.
    """
    return cancelled.__dict__.get("_done", False) is True
