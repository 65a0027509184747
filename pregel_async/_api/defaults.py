"""Defaults of all graphs of the process, for settings that a graph was not given."""

from __future__ import annotations

from typing import cast, get_args

import msgspec

from ..errors import GraphValidationError
from ..types import ChangedQuestions

__all__ = ["set_defaults"]


class _Defaults(msgspec.Struct):
    validate_input: bool = True
    changed_questions: ChangedQuestions = "error"


# The one object of the package that code may change at run time. A service switches a check off for all of its graphs
# in one place while its callers are mended; a context variable would not reach graphs that another thread compiles.
_DEFAULTS = _Defaults()


def set_defaults(*, validate_input: bool | None = None, changed_questions: ChangedQuestions | None = None) -> None:
    """Set what holds for graphs that are compiled from now on and do not say otherwise.

    None leaves a setting as it is.

    Args:
        validate_input: as in `StateGraph.compile`. It is True at first.
        changed_questions: as in `StateGraph.compile`. It is "error" at first.

    Raises:
        GraphValidationError: a value is unknown, or of the wrong type. Nothing is set then.
    """
    validates, changed = validates_input(validate_input), changed_questions_of(changed_questions)
    _DEFAULTS.validate_input, _DEFAULTS.changed_questions = validates, changed


def validates_input(given: object) -> bool:
    """Return what a graph was given as `validate_input=`; for None, the default. Raises `GraphValidationError`."""
    if given is None:
        return _DEFAULTS.validate_input
    if not isinstance(given, bool):
        raise GraphValidationError(f"validate_input is True or False, not {given!r}")
    return given


def changed_questions_of(given: object) -> ChangedQuestions:
    """Return what a graph was given as `changed_questions=`; for None, the default. Raises `GraphValidationError`."""
    if given is None:
        return _DEFAULTS.changed_questions
    if given not in get_args(ChangedQuestions):
        raise GraphValidationError(f"changed_questions is 'error' or 'accept', not {given!r}")
    return cast("ChangedQuestions", given)
