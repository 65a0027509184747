"""What holds for all graphs of the process that do not say otherwise."""

from __future__ import annotations

import msgspec

from .errors import GraphValidationError

__all__ = ["set_defaults"]


class _Defaults(msgspec.Struct):
    validate_input: bool = True


# The one object of the package that code may change at run time. A service switches a check off for all of its graphs
# in one place while its callers are mended; a context variable would not reach graphs that another thread compiles.
_DEFAULTS = _Defaults()


def set_defaults(*, validate_input: bool | None = None) -> None:
    """Set what holds for graphs that are compiled from now on and do not say otherwise.

    Args:
        validate_input: as in `StateGraph.compile`; None leaves it as it is. It is True at first.

    Raises:
        GraphValidationError: a value is of the wrong type.
    """
    if validate_input is not None:
        _DEFAULTS.validate_input = default_of("validate_input", validate_input)


def default_of(name: str, given: object) -> bool:
    """What a graph was given for a setting, or the default for None. Raises `GraphValidationError`."""
    if given is None:
        default: bool = getattr(_DEFAULTS, name)
        return default
    if not isinstance(given, bool):
        raise GraphValidationError(f"{name} is True or False, not {given!r}")
    return given
