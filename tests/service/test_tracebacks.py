"""The tracebacks that are stored with failed runs."""

from __future__ import annotations

from pregel_async.service.activation import MAX_TRACEBACK, error_of


def test_a_long_traceback_keeps_its_end() -> None:
    """At most 16 KiB are stored. The cut leaves no half of a character."""
    for length in range(4):
        error = ValueError("é" * 20_000 + "x" * length)
        stored = error_of(error).traceback
        assert MAX_TRACEBACK - 2 <= len(stored.encode()) <= MAX_TRACEBACK
        assert stored.endswith("é" + "x" * length + "\n")


def test_a_traceback_can_be_stored_whatever_the_exception_says() -> None:
    """A lone surrogate, which no database accepts as text, is escaped; a class whose methods raise has no traceback."""
    assert "\\udc80" in error_of(ValueError("\udc80")).traceback

    class BrokenError(Exception):
        __slots__ = ()

        @property
        def __notes__(self) -> list[str]:
            raise RuntimeError

        def __str__(self) -> str:
            raise RuntimeError

    assert error_of(BrokenError()).traceback == ""


def test_tracebacks_can_be_left_out() -> None:
    assert error_of(ValueError("x"), tracebacks=False).traceback == ""
