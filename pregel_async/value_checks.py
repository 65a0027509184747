"""Checks of values against annotations, in depth, compiled once for each annotation. Nothing is converted.

    check = compiled(list[Item])
    check([Item(...), {"name": 7}])     Mismatch(path=(1, "name"), expected=str, found=7)

What a checker lets pass: `Any`, bare containers and generics that it does not know, protocols, annotations that do not
resolve. What it looks into: lists, tuples, sets, dicts, TypedDicts, dataclasses and msgspec Structs, and dicts that
stand for an object of a class with fields, pydantic models included. An instance of a pydantic model was checked by it.

A list of a thousand objects with a few plain fields takes less than a tenth of a millisecond: its types are compared
column by column, in C (`_Columns`). Only a list that does not fit so is looked at object by object.

msgspec's own converter was tried for this and left: it takes text for a date, a number or an id, as it would convert
it, and refuses unions of classes, of which Python's annotations have many.
"""

from __future__ import annotations

import dataclasses
import types
from collections import abc, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Literal, NewType, TypeAlias, Union, cast, get_args, get_origin

import msgspec

from ._core.fits import fits, is_typed_dict
from .annotations import aliased, class_of, fields_of, has_fields, is_model, is_required, named, value_of
from .errors import GraphValidationError


class Mismatch(msgspec.Struct, frozen=True):
    """Where a value is not what an annotation says.

    Attributes:
        path: keys, indexes and field names, from the outside in.
        reason: what is wrong there.
    """

    path: tuple[object, ...]
    reason: str

    def inside(self, step: object) -> Mismatch:
        """The same, seen from one container further out."""
        return Mismatch((step, *self.path), self.reason)


Check: TypeAlias = Callable[[Any], Mismatch | None]
"""Looks at a value, and returns where it does not fit; None if it does."""


def path_of(steps: Iterable[object]) -> str:
    """A path as messages have it: `order.items[0].amount`."""
    text = ""
    for step in steps:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else str(step)
    return text


def compiled(hint: Any) -> Check | None:
    """The check of an annotation; None if every value passes."""
    return _Compiler().check(hint)


class _Compiler:
    """Compiles one annotation. A class that contains itself has one check, which is found again by the class."""

    def __init__(self) -> None:
        self._known: dict[Any, _Later] = {}

    def check(self, hint: Any) -> Check | None:
        try:
            hint = aliased(value_of(hint))
        except GraphValidationError:  # an alias that does not resolve
            return None
        while isinstance(hint, NewType):
            hint = hint.__supertype__
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.check(arguments[0])
        if hint is None or hint is types.NoneType:
            return _is_none
        if origin in (Union, types.UnionType):
            return self._any_of(hint, arguments)
        if origin is Literal:
            return _of_class(hint)
        if has_fields(hint):
            return self._fielded(hint)
        kind = hint if origin is None else origin
        if not isinstance(kind, type) or kind in _UNCHECKED or getattr(kind, "_is_protocol", False):
            return None
        if arguments and kind in _ITEMS:
            return self._container(hint, kind, arguments)
        if arguments and kind is tuple:
            return self._tuple(hint, arguments)
        if arguments and kind in _MAPPINGS:
            return self._mapping(hint, kind, arguments)
        return _of_class(kind)

    def _any_of(self, hint: Any, options: Sequence[Any]) -> Check | None:
        checks = [self.check(option) for option in options]
        if any(check is None for check in checks):
            return None
        known = cast("list[Check]", checks)

        def check(value: Any) -> Mismatch | None:
            deepest: Mismatch | None = None
            for one in known:
                wrong = one(value)
                if wrong is None:
                    return None
                if wrong.path and (deepest is None or len(wrong.path) > len(deepest.path)):
                    deepest = wrong  # of an option that the value was meant for
            return deepest or _wrong(value, hint)

        return check

    def _container(self, hint: Any, kind: Any, arguments: Sequence[Any]) -> Check:
        item = self.check(arguments[0])
        if item is None:
            return _of_class(kind)
        scalars = _types_of(arguments[0])

        def check(value: Any) -> Mismatch | None:
            if not isinstance(value, kind):
                return _wrong(value, hint)
            items = _plain_items(value)
            if scalars is not None:
                if scalars.issuperset(map(type, items)):
                    return None
            elif isinstance(item, _Later) and item.columns is not None and item.columns.fit(items):
                return None
            for index, each in enumerate(items):
                wrong = item(each)
                if wrong is not None:
                    return wrong.inside(index)
            return None

        return check

    def _tuple(self, hint: Any, arguments: Sequence[Any]) -> Check:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._container(hint, tuple, arguments)
        if any(get_origin(each) is types.GenericAlias or str(each).startswith("*") for each in arguments):
            return _of_class(tuple)  # an unpacked tuple, of any length
        checks = [self.check(each) for each in arguments]
        count = 0 if arguments == ((),) else len(checks)

        def check(value: Any) -> Mismatch | None:
            if not isinstance(value, tuple):
                return _wrong(value, hint)
            items = _plain_items(value)
            if len(items) != count:
                return Mismatch((), f"has {len(items)} items, and {named(hint)} has {count}")
            for index, (one, each) in enumerate(zip(checks, items, strict=False)):
                if one is not None and (wrong := one(each)) is not None:
                    return wrong.inside(index)
            return None

        return check

    def _mapping(self, hint: Any, kind: Any, arguments: Sequence[Any]) -> Check:
        key, item = self.check(arguments[0]), self.check(arguments[1])

        def check(value: Any) -> Mismatch | None:
            if not isinstance(value, kind):
                return _wrong(value, hint)
            if not isinstance(value, dict):
                return None
            for name, each in dict[Any, Any].items(value):
                if key is not None and (wrong := key(name)) is not None:
                    return Mismatch((name,), f"is a key that {wrong.reason}")
                if item is not None and (wrong := item(each)) is not None:
                    return wrong.inside(name)
            return None

        return check

    def _fielded(self, hint: Any) -> Check:
        found = self._known.get(hint)
        if found is None:
            found = self._known[hint] = _Later()
            if is_model(class_of(hint)):
                found.check = self._model(hint)
            else:
                found.check = self._fields(hint)
                found.columns = _Columns.of(hint)
        return found

    def _model(self, hint: Any) -> Check:
        cls = class_of(hint)

        def check(value: Any) -> Mismatch | None:
            if isinstance(value, cls):
                return None
            if not isinstance(value, dict):
                return _wrong(value, hint)
            try:
                cls.model_validate(value)
            except ValueError as error:  # pydantic's ValidationError, of what is to be one
                return mismatch_of(error)
            return None

        return check

    def _fields(self, hint: Any) -> Check:
        cls = class_of(hint)
        try:
            hints = fields_of(hint)
        except Exception:  # an annotation that does not resolve; whatever its module's expressions raise
            return _of_class(dict if is_typed_dict(cls) else cls)
        checks = {name: one for name, each in hints.items() if (one := self.check(each)) is not None}
        required = frozenset(required_fields(hint, hints))
        is_dict = is_typed_dict(cls)

        def check(value: Any) -> Mismatch | None:
            if isinstance(value, dict):
                for name in required:
                    if name not in value:
                        return Mismatch((name,), f"is missing, and {cls.__qualname__} requires it")
                for name, each in dict[Any, Any].items(value):
                    one = checks.get(name)
                    if one is not None and (wrong := one(each)) is not None:
                        return wrong.inside(name)
                return None
            if is_dict or not isinstance(value, cls):
                return _wrong(value, hint)
            for name, one in checks.items():
                each = getattr(value, name, _UNSET)  # a field may rightly be unset
                if each is not _UNSET and (wrong := one(each)) is not None:
                    return wrong.inside(name)
            return None

        return check


class _Later:
    """The check of a class, which its own fields may name before it is made.

    Attributes:
        check: of one value.
        columns: of many at once, where the class's fields allow it.
    """

    __slots__ = ("check", "columns")

    check: Check
    columns: _Columns | None

    def __init__(self) -> None:
        self.columns = None

    def __call__(self, value: Any) -> Mismatch | None:
        return self.check(value)


class _Columns:
    """Whether many objects of a class fit, all of whose fields are of plain types: seen in the types of each field."""

    __slots__ = ("_columns", "_kind")

    def __init__(self, kind: type, columns: Sequence[tuple[Callable[[Any], Any], frozenset[type]]]) -> None:
        self._kind = kind
        self._columns = columns

    @classmethod
    def of(cls, hint: Any) -> _Columns | None:
        """None if a field is of another type, or may be missing."""
        kind = class_of(hint)
        try:
            hints = fields_of(hint)
        except Exception:  # as in `_Compiler._fields`
            return None
        is_dict = is_typed_dict(kind)
        if is_dict and len(required_fields(hint, hints)) < len(hints):
            return None
        found: list[tuple[Callable[[Any], Any], frozenset[type]]] = []
        for name, each in hints.items():
            if value_of(each) is Any:
                continue
            types_of_field = _types_of(each)
            if types_of_field is None:
                return None
            found.append((itemgetter(name) if is_dict else attrgetter(name), types_of_field))
        return cls(dict if is_dict else kind, found)

    def fit(self, items: Sequence[Any]) -> bool:
        """Return True if all fit. False says nothing: look at each."""
        if set(map(type, items)) != {self._kind}:
            return False
        try:
            return all(known.issuperset(map(type, map(get, items))) for get, known in self._columns)
        except (LookupError, AttributeError):  # one is missing
            return False


def _types_of(hint: Any) -> frozenset[type] | None:
    """The exact types of values that certainly fit a plain annotation; None for an annotation of another kind."""
    hint = value_of(hint)
    if get_origin(hint) is Annotated:
        return _types_of(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        found = [_types_of(option) for option in get_args(hint)]
        return None if None in found else frozenset().union(*[each for each in found if each is not None])
    if hint is None:
        return frozenset((types.NoneType,))
    return frozenset((hint,)) if isinstance(hint, type) and hint in _PLAIN else None


def required_fields(kind: Any, hints: Mapping[str, Any]) -> list[str]:
    """The names that a mapping must have to stand for an object of a class with fields."""
    cls = class_of(kind)
    if is_typed_dict(cls):
        return [name for name, hint in hints.items() if is_required(kind, name, hint)]
    if dataclasses.is_dataclass(cls):
        none = dataclasses.MISSING
        fields = dataclasses.fields(cls)
        return [field.name for field in fields if field.init and field.default is none is field.default_factory]
    return [field.name for field in msgspec.structs.fields(cls) if field.required]


def mismatch_of(error: Any, *, leaving_out: Callable[[Mapping[str, Any]], bool] | None = None) -> Mismatch | None:
    """The first problem of a pydantic `ValidationError`, or of what else a model's own code has raised.

    Args:
        leaving_out: problems that do not count, as pydantic describes them.
    """
    if not hasattr(error, "errors"):
        return Mismatch((), str(error))
    for problem in error.errors(include_url=False):
        if leaving_out is None or not leaving_out(problem):
            return Mismatch(tuple(problem["loc"]), f"is refused: {problem['msg']}")
    return None


def _of_class(kind: Any) -> Check:
    """The check of a class or Literal as a whole."""

    def check(value: Any) -> Mismatch | None:
        # `fits` takes None for everything, as a key's "not yet"; inside of a value it is a value like others.
        if type(value) is kind or (value is not None and fits(kind, value)) or (value is None and None in options):
            return None
        return _wrong(value, kind)

    options = get_args(kind) if get_origin(kind) is Literal else ()
    return check


def _wrong(value: Any, hint: Any) -> Mismatch:
    kind = type(value)
    if kind.__module__.startswith("pregel_async._core"):  # what a node is given in the place of a list or dict
        kind = kind.__base__ or kind
    found = "None" if value is None else f"of type {kind.__name__}"
    return Mismatch((), f"is {found}, and its annotation says {named(hint)}")


def _plain_items(value: Any) -> Sequence[Any]:
    """What a container holds. Of one that a node was given, past its own methods, which would copy each item."""
    if isinstance(value, list):
        return list(list[Any].__iter__(value))
    if isinstance(value, (tuple, set, frozenset, deque)):
        return list(cast("Iterable[Any]", value))
    return ()  # text, a range, a user's own class: what it holds is its own business


def _is_none(value: Any) -> Mismatch | None:
    return None if value is None else _wrong(value, None)


def plain_type(hint: Any) -> type | None:
    """The one type whose values certainly fit an annotation, to be compared before anything is called; None if there is
    no such type."""
    return hint if isinstance(hint, type) and hint in _PLAIN else None


_UNSET = object()
_UNCHECKED: tuple[Any, ...] = (Any, object, type, abc.Callable)
_PLAIN = frozenset((str, int, float, complex, bytes, bool, types.NoneType))
_ITEMS = (list, set, frozenset, deque, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Set, abc.Iterable)
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
