"""Prepare exceptions for readers: text for storage and other processes, tracebacks that show the code of users."""

from __future__ import annotations

import os
from types import TracebackType

_OWN = frozenset(("pregel_async", "checkpoint_savers"))
_BENEATH = frozenset(("anyio", "asyncio", "concurrent", "contextlib", "outcome", "threading", "trio", "uvloop"))


def shorten_traceback(error: BaseException) -> None:
    """Remove the runtime's frames before and between frames of other code from an exception that leaves the runtime.

    Frames after the last one of other code stay: there the runtime itself has raised. Cause, context and notes are not
    touched; the exceptions of a group are shortened too. With `PREGEL_TRACEBACKS=full` in the environment, and for
    cancellations and other exceptions that are no `Exception`, nothing is removed.

    Args:
        error: the exception.
    """
    # A filter of what is printed (`sys.excepthook`) would not reach loggers, servers and test runners, and of these
    # only some know the local variable `__tracebackhide__`. So the traceback itself is shortened: a copy, as user code
    # may hold the original.
    if not isinstance(error, Exception) or os.environ.get("PREGEL_TRACEBACKS") == "full":
        return
    shown: list[TracebackType] = []
    own: list[TracebackType] = []  # the current run of frames of the runtime, and of the libraries beneath it
    trace = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if package in _OWN or (own and package in _BENEATH):
            own.append(trace)
        else:
            own.clear()
            shown.append(trace)
        trace = trace.tb_next
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            shorten_traceback(inner)
    if shown or not isinstance(error, ExceptionGroup):  # otherwise the runtime has made the group, of failed tasks
        shown += own
    short: TracebackType | None = None
    for trace in reversed(shown):
        short = TracebackType(short, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    BaseException.with_traceback(error, short)  # not assigned: a user's class may refuse attributes


def described(error: BaseException) -> tuple[str, str]:
    """Return the exception's class name, with its module unless it is a builtin, and its text."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}", text(error)


def text(error: BaseException) -> str:
    """Return the exception's text. Never raises, and returns only text that can be encoded as UTF-8."""
    try:  # `__str__` of a user's class may raise
        said = str(error)
    except Exception as second:
        said = f"(its message cannot be had: {type(second).__name__})"
    # A lone surrogate is a valid `str` and invalid UTF-8: neither storage nor JSON would accept it.
    return said.encode("utf-8", "backslashreplace").decode()


def with_notes(error: BaseException) -> str:
    """Return the exception's class, text and notes in one line, for a note of another error that is raised instead."""
    return ". ".join([": ".join(described(error)), *getattr(error, "__notes__", ())])
