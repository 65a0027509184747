"""An exception as text, for storage and for readers elsewhere."""

from __future__ import annotations


def described(error: BaseException) -> tuple[str, str]:
    """Its class, qualified by its module unless it is a builtin, and its text."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}", text(error)


def text(error: BaseException) -> str:
    """Its text, whatever it takes: some cannot be printed, or hold what is no text (half of a surrogate)."""
    try:
        said = str(error)
    except Exception as second:
        said = f"(its message cannot be had: {type(second).__name__})"
    return said.encode("utf-8", "backslashreplace").decode()


def with_notes(error: BaseException) -> str:
    """Its class, text and notes in one line: for the note of another error, which is raised in its place."""
    return ". ".join([": ".join(described(error)), *getattr(error, "__notes__", ())])
