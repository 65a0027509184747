"""Check values against annotations, at any depth, without converting them. Checks are compiled once per annotation.

    check = compile_check(list[Item])
    check([Item("a"), {"name": 7}])     Misfit(path=(1, "name"), reason="is of type int, and its annotation says str")

Not checked: `Any`, the content of bare containers and unknown generics, protocols, annotations that do not resolve.
Checked at any depth: lists, tuples, sets, dicts, TypedDicts, dataclasses and msgspec Structs, and dicts that stand for
an object of a class with fields, pydantic models included. An instance of a pydantic model was validated by the model.

A list of a thousand objects with a few plain fields takes less than a tenth of a millisecond, because their types are
compared in C (`value_columns`). Only if that comparison fails is the list checked object by object.

msgspec's converter was tried and is not used: it accepts text for a date, a number or an id, as it would convert the
text, and it refuses unions of classes, which are common in Python's annotations.
"""

from __future__ import annotations

import types
from collections import abc, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union, cast, get_args, get_origin

import msgspec

from checkpoint_savers.durations import shorten

from .._core.fits import fits, is_typed_dict
from ..errors import InvalidInputError, InvalidUpdateError
from .annotations import class_of, fields_of, has_fields, is_alias, is_model, named
from .value_columns import MAPPINGS, all_fit, bare, is_unchecked, required_fields, value_of_alias


class Misfit(msgspec.Struct, frozen=True):
    """A place at which a value does not fit its annotation.

    Attributes:
        path: the keys, indexes and field names that lead there, from the outside in.
        reason: why the value does not fit, as the rest of a sentence: "is of type int, ...".
    """

    path: tuple[object, ...]
    reason: str

    def prefixed(self, step: object) -> Misfit:
        """Return the mismatch as seen from the enclosing container, where `step` leads to the value."""
        return Misfit((step, *self.path), self.reason)


Check: TypeAlias = Callable[[Any], Misfit | None]
"""Checks a value. Returns the first mismatch; None if the value fits."""


def path_of(steps: Iterable[object]) -> str:
    """Return a path as text, for messages: `order.items[0].amount`."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else str(step)
    return text


def compile_check(hint: Any) -> Check | None:
    """Return the check of an annotation; None if every value passes."""
    return _Compiler().check(hint)


class _Compiler:
    """Compiles the check of one annotation.

    Each class with fields and each alias has one check. It is registered before the checks of its parts are compiled,
    because the parts may contain the class or alias again.
    """

    def __init__(self) -> None:
        self._known: dict[Any, _LaterCheck] = {}

    def check(self, hint: Any) -> Check | None:
        hint = bare(hint)
        if is_alias(hint):
            return self._alias(hint)
        origin, arguments = get_origin(hint), get_args(hint)
        if hint is None or hint is types.NoneType:
            return _is_none
        if origin in (Union, types.UnionType):
            return self._union(hint, arguments)
        if origin is Literal:
            return _literal_check(hint)
        if has_fields(hint):
            return self._fielded(hint)
        if is_unchecked(hint):
            return None
        kind = hint if origin is None else origin
        if arguments and kind in _ITEMS:
            return self._container(hint, kind, arguments)
        if arguments and kind is tuple:
            return self._tuple(hint, arguments)
        if arguments and kind in MAPPINGS:
            return self._mapping(hint, kind, arguments)
        return _class_check(kind)

    def _alias(self, alias: Any) -> Check | None:
        found = self._known.get(alias)
        if found is None:
            found = self._known[alias] = _LaterCheck()
            check = self.check(value_of_alias(alias))
            found.check = _is_anything if check is None else check
            return check
        return found

    def _union(self, hint: Any, options: Sequence[Any]) -> Check | None:
        checks = [self.check(option) for option in options]
        if any(check is None for check in checks):
            return None
        known = cast("list[Check]", checks)

        def check(value: Any) -> Misfit | None:
            # Report the option that mismatches at the greatest depth: the value was most likely meant for it.
            deepest: Misfit | None = None
            for one in known:
                mismatch = one(value)
                if mismatch is None:
                    return None
                if mismatch.path and (deepest is None or len(mismatch.path) > len(deepest.path)):
                    deepest = mismatch
            return deepest or _mismatch(value, hint)

        return check

    def _container(self, hint: Any, kind: Any, arguments: Sequence[Any]) -> Check:
        item = self.check(arguments[0])
        if item is None:
            return _class_check(kind)
        fit = all_fit(arguments[0])

        def check(value: Any) -> Misfit | None:
            if not isinstance(value, kind):
                return _mismatch(value, hint)
            items = _plain_items(value)
            if fit is not None and fit(items):
                return None
            for index, each in enumerate(items):
                mismatch = item(each)
                if mismatch is not None:
                    return mismatch.prefixed(index)
            return None

        return check

    def _tuple(self, hint: Any, arguments: Sequence[Any]) -> Check:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._container(hint, tuple, arguments)
        if any(str(each).startswith("*") for each in arguments):
            return _class_check(tuple)  # an unpacked tuple, of any length
        checks = [self.check(each) for each in arguments]
        count = 0 if arguments == ((),) else len(checks)

        def check(value: Any) -> Misfit | None:
            if not isinstance(value, tuple):
                return _mismatch(value, hint)
            items = _plain_items(value)
            if len(items) != count:
                return Misfit((), f"has {len(items)} items, and {named(hint)} has {count}")
            for index, (one, each) in enumerate(zip(checks, items, strict=False)):
                if one is not None and (mismatch := one(each)) is not None:
                    return mismatch.prefixed(index)
            return None

        return check

    def _mapping(self, hint: Any, kind: Any, arguments: Sequence[Any]) -> Check:
        key, item, fit = self.check(arguments[0]), self.check(arguments[1]), all_fit(hint)

        def check(value: Any) -> Misfit | None:
            if not isinstance(value, kind):
                return _mismatch(value, hint)
            if not isinstance(value, dict) or (fit is not None and fit((value,))):
                return None
            for name, each in dict[Any, Any].items(value):
                if key is not None and (mismatch := key(name)) is not None:
                    return Misfit((name,), f"is a key that {mismatch.reason}")
                if item is not None and (mismatch := item(each)) is not None:
                    return mismatch.prefixed(name)
            return None

        return check

    def _fielded(self, hint: Any) -> Check:
        found = self._known.get(hint)
        if found is None:
            found = self._known[hint] = _LaterCheck()
            if is_model(class_of(hint)):
                found.check = self._model(hint)
            else:
                found.check = self._fields(hint)
        return found

    def _model(self, hint: Any) -> Check:
        cls = class_of(hint)

        def check(value: Any) -> Misfit | None:
            if isinstance(value, cls):
                return None
            if not isinstance(value, dict):
                return _mismatch(value, hint)
            try:
                cls.model_validate(value)
            except ValueError as error:  # pydantic's ValidationError is one, and validators may raise others
                return mismatch_of(error)
            return None

        return check

    def _fields(self, hint: Any) -> Check:
        cls = class_of(hint)
        try:
            hints = fields_of(hint)
        except Exception:  # resolving evaluates expressions of the user's module, which may raise anything
            return _class_check(dict if is_typed_dict(cls) else cls)
        checks = {name: one for name, each in hints.items() if (one := self.check(each)) is not None}
        required = frozenset(required_fields(hint, hints))
        is_dict = is_typed_dict(cls)

        def check(value: Any) -> Misfit | None:
            if isinstance(value, dict):
                for name in required:
                    if name not in value:
                        return Misfit((name,), f"is missing, and {cls.__qualname__} requires it")
                for name, each in dict[Any, Any].items(value):
                    one = checks.get(name)
                    if one is not None and (mismatch := one(each)) is not None:
                        return mismatch.prefixed(name)
                return None
            if is_dict or not isinstance(value, cls):
                return _mismatch(value, hint)
            for name, one in checks.items():
                each = getattr(value, name, _UNSET)  # an unset field is no mismatch
                if each is not _UNSET and (mismatch := one(each)) is not None:
                    return mismatch.prefixed(name)
            return None

        return check


class _LaterCheck:
    """A check that other checks refer to before it is compiled: of a class with fields, or of an alias.

    Attributes:
        check: the check. Set once the checks of the parts are compiled.
    """

    __slots__ = ("check",)

    check: Check

    def __call__(self, value: Any) -> Misfit | None:
        return self.check(value)


def mismatch_of(error: Any, *, leaving_out: Callable[[Mapping[str, Any]], bool] | None = None) -> Misfit | None:
    """Return the first problem of an exception that a model's validation has raised; None if every problem is ignored.

    Args:
        error: a pydantic `ValidationError`, or another exception of the model's code.
        leaving_out: returns True for a problem, as pydantic describes it, that is to be ignored; None ignores none.
    """
    if not hasattr(error, "errors"):
        return Misfit((), str(error))
    for problem in error.errors(include_url=False):
        if leaving_out is None or not leaving_out(problem):
            return Misfit(tuple(problem["loc"]), f"is refused: {problem['msg']}")
    return None


def refused_input(mismatch: Misfit) -> InvalidInputError:
    """Return the error for an input that does not fit."""
    path = path_of(mismatch.path)
    return InvalidInputError(f"input {path!r} {mismatch.reason}" if path else f"the input {mismatch.reason}", path=path)


def refused_update(mismatch: Misfit) -> InvalidUpdateError:
    """Return the error for an update that does not fit."""
    path = path_of(mismatch.path)
    channel = str(mismatch.path[0]) if mismatch.path else None
    what = f"the update of {path!r}" if path else "the update"
    return InvalidUpdateError(f"{what} {mismatch.reason}. Nothing was stored.", channel=channel, path=path)


def _class_check(kind: Any) -> Check:
    """Return the check of a value's class, without its content."""

    def check(value: Any) -> Misfit | None:
        # `fits` accepts None for every annotation, because a state key may be unset. Inside a value, None is a value
        # like any other.
        if type(value) is kind or (value is not None and fits(kind, value)):
            return None
        return _mismatch(value, kind)

    return check


def _literal_check(literal: Any) -> Check:
    """Return the check of a Literal. The mismatch shows the value, as its type is often right."""
    options = get_args(literal)

    def check(value: Any) -> Misfit | None:
        if None in options if value is None else fits(literal, value):
            return None
        return Misfit((), f"is {shorten(value)}, and its annotation says {named(literal)}")

    return check


def _mismatch(value: Any, hint: Any) -> Misfit:
    kind = type(value)
    if kind.__module__.startswith("pregel_async._core"):  # an isolating list or dict: show the class that users know
        kind = kind.__base__ or kind
    found = "None" if value is None else f"of type {kind.__name__}"
    return Misfit((), f"is {found}, and its annotation says {named(hint)}")


def _plain_items(value: Any) -> Sequence[Any]:
    """Return the items of a container; nothing for text, ranges and users' own containers."""
    # The list that a node gets isolates items by copying them in `__iter__`. Checks change nothing, so bypass that.
    if isinstance(value, list):
        return list(list[Any].__iter__(value))
    if isinstance(value, (tuple, set, frozenset, deque)):
        return list(cast("Iterable[Any]", value))
    return ()


def _is_anything(value: Any) -> Misfit | None:
    return None


def _is_none(value: Any) -> Misfit | None:
    return None if value is None else _mismatch(value, None)


def plain_type(hint: Any) -> type | None:
    """Return the type whose values certainly fit an annotation, for a comparison before any call; None if none is."""
    return hint if isinstance(hint, type) and hint in _PLAIN else None


_UNSET = object()
_PLAIN = frozenset((str, int, float, complex, bytes, bool, types.NoneType))
_ITEMS = (list, set, frozenset, deque, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Set, abc.Iterable)
