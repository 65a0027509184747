"""Turn exceptions into text, for storage and for other processes."""

from __future__ import annotations


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
