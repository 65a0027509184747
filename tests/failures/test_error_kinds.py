"""One base class of all errors; errors that LangGraph raises as a builtin kind are of that kind too."""

from __future__ import annotations

import pytest

from pregel_async import errors


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ConfigError", ValueError),
        ("GraphRecursionError", RecursionError),
        ("GraphValidationError", ValueError),
        ("InvalidCheckpointerError", TypeError),
        ("InvalidInputError", TypeError),
        ("InvalidResumeError", RuntimeError),
        ("InvalidResumeError", ValueError),
        ("InvalidRouteError", ValueError),
    ],
)
def test_what_langgraph_raises_as_a_builtin_is_one(name: str, kind: type[Exception]) -> None:
    """Code that catches the builtin kind, as users of LangGraph do, catches the typed error too."""
    error = getattr(errors, name)
    assert issubclass(error, kind)
    assert issubclass(error, errors.PregelError)


def test_every_error_has_the_one_root() -> None:
    """`except PregelError` catches the errors of the runtime and of the savers alike."""
    for name in errors.__all__:
        found = getattr(errors, name)
        if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, Warning):
            assert issubclass(found, errors.PregelError), name
