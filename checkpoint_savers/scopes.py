"""Telling a cancel scope's cancellation from asyncio's own."""

from __future__ import annotations


def is_a_scopes(cancelled: BaseException) -> bool:
    """Whether an `asyncio.CancelledError` is a cancel scope's, which is told again and again, and not that of a
    `Task.cancel()`, which is told once.

    anyio says it in the message, and in no other way: "Cancelled via cancel scope ...", or "by" in earlier versions.
    """
    told = cancelled.args[0] if cancelled.args else None
    return isinstance(told, str) and " cancel scope " in told
