"""Fast checks of many values against an annotation, with loops in C.

    fit = all_fit(Message)
    fit([{"role": "user", "content": "hi"}] * 1000)     True, after one pass per field

True means that each value fits by its exact type. False means nothing: each value has to be checked by itself, as
objects of subclasses may fit too. Dicts and objects are checked by column: the types of all values of one field are
collected in a set, and the set is compared.
"""

from __future__ import annotations

import dataclasses
import types
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from operator import attrgetter, is_not, itemgetter
from typing import Annotated, Any, Literal, NewType, TypeAlias, Union, get_args, get_origin

import msgspec

from .._core.fits import is_typed_dict
from ..errors import GraphValidationError
from .annotations import (
    class_of,
    fields_of,
    has_fields,
    is_alias,
    is_model,
    is_required,
    resolve_alias,
    without_qualifiers,
)

AllFit: TypeAlias = Callable[[Iterable[Any]], bool]
"""Iterates over the values once. Returns True if all of them certainly fit."""


def all_fit(hint: Any, enclosing: tuple[Any, ...] = ()) -> AllFit | None:
    """Return the fast check for an annotation; None if values must be checked one by one.

    Args:
        hint: the annotation.
        enclosing: the classes and aliases that contain the annotation. A recursive type has no fast check.
    """
    hint = bare(hint)
    if is_alias(hint):
        return None if hint in enclosing else all_fit(value_of_alias(hint), (*enclosing, hint))
    if is_unchecked(hint):
        return _always
    kinds = _Kinds.of(hint)
    if kinds is not None:
        return kinds.cover
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _always if any(all_fit(option, enclosing) is _always for option in arguments) else None
    if origin is Literal:
        return _literals(arguments)
    if has_fields(hint):
        return None if hint in enclosing else _columns(hint, (*enclosing, hint))
    if arguments and origin in MAPPINGS:
        return _mappings(*[all_fit(each, enclosing) for each in arguments])
    if arguments and (origin in (list, abc.Sequence, abc.Iterable) or (origin is tuple and arguments[1:] == (...,))):
        return _sequences(tuple if origin is tuple else list, all_fit(arguments[0], enclosing))
    if arguments and origin is tuple and not any(str(each).startswith("*") for each in arguments):
        return _fixed_tuples([all_fit(each, enclosing) for each in arguments])
    return None


def bare(hint: Any) -> Any:
    """Return an annotation without qualifiers, `Annotated` and `NewType`. Aliases stay."""
    hint = without_qualifiers(hint)
    if isinstance(hint, NewType):
        return bare(hint.__supertype__)
    return bare(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def value_of_alias(alias: Any) -> Any:
    """Return the type that an alias names; `Any` if it does not resolve."""
    try:
        return resolve_alias(alias)
    except GraphValidationError:
        return Any


def is_unchecked(hint: Any) -> bool:
    """Return True if a bare annotation accepts every value unchecked; always False for unions, Literals and None."""
    kind = get_origin(hint) or hint
    if kind is None or kind in (Union, types.UnionType, Literal):
        return False
    return not isinstance(kind, type) or kind in _UNCHECKED or getattr(kind, "_is_protocol", False)


def required_fields(kind: Any, hints: Mapping[str, Any]) -> list[str]:
    """Return the names that a mapping must contain to stand for an object of a class with fields."""
    cls = class_of(kind)
    if is_typed_dict(cls):
        return [name for name, hint in hints.items() if is_required(kind, name, hint)]
    if dataclasses.is_dataclass(cls):
        none = dataclasses.MISSING
        fields = dataclasses.fields(cls)
        return [field.name for field in fields if field.init and field.default is none is field.default_factory]
    return [field.name for field in msgspec.structs.fields(cls) if field.required]


class _Kinds(msgspec.Struct, frozen=True):
    """Types whose values certainly fit.

    Attributes:
        exact: types that fit without their subclasses.
        bases: types that fit with their subclasses: pydantic models, which have validated their objects themselves.
    """

    exact: frozenset[type]
    bases: tuple[type, ...] = ()

    @classmethod
    def of(cls, hint: Any) -> _Kinds | None:
        """Return the types that an annotation accepts; None if a value's type alone does not decide."""
        hint = bare(hint)
        if get_origin(hint) in (Union, types.UnionType):
            several = [cls.of(option) for option in get_args(hint)]
            known = [each for each in several if each is not None]
            if len(known) < len(several):
                return None
            bases = chain.from_iterable(each.bases for each in known)
            return cls(frozenset().union(*[each.exact for each in known]), tuple(bases))
        if hint is None:
            return cls(frozenset((types.NoneType,)))
        if has_fields(hint):
            return cls(frozenset(), (class_of(hint),)) if is_model(class_of(hint)) else None
        if not isinstance(hint, type) or get_origin(hint) is not None or is_unchecked(hint):
            return None
        return cls(_ACCEPTED_TYPES.get(hint, frozenset((hint,))))

    def cover(self, values: Iterable[Any]) -> bool:
        others = set(map(type, values)) - self.exact
        return not others or (bool(self.bases) and all(issubclass(each, self.bases) for each in others))


def _always(values: Iterable[Any]) -> bool:
    return True


def _literals(options: Sequence[Any]) -> AllFit:
    known, kinds = frozenset(options), frozenset(map(type, options))

    def fit(values: Iterable[Any]) -> bool:
        values = [*values]
        return kinds.issuperset(map(type, values)) and known.issuperset(values)

    # 1 == True in Python: with several types, a set lookup could accept a value of the wrong type. Only types whose
    # values never compare equal to another type's are safe.
    return fit if len(kinds) == 1 or kinds <= _DISTINCT_TYPES else _never


def _never(values: Iterable[Any]) -> bool:
    return False


def _sequences(kind: type, element: AllFit | None) -> AllFit | None:
    """Return the check of lists, or of tuples of any length; None if there is none for the elements."""
    if element is None:
        return None

    def fit(values: Iterable[Any]) -> bool:
        values = [*values]
        return {kind}.issuperset(map(type, values)) and element(chain.from_iterable(values))

    return fit


def _fixed_tuples(elements: Sequence[AllFit | None]) -> AllFit | None:
    """Return the check of tuples of a fixed length; None if there is none for an element."""
    places = [(itemgetter(place), element) for place, element in enumerate(elements) if element is not None]
    if len(places) < len(elements):
        return None

    def fit(values: Iterable[Any]) -> bool:
        values = [*values]
        if not ({tuple}.issuperset(map(type, values)) and {len(elements)}.issuperset(map(len, values))):
            return False
        return all(element(map(get, values)) for get, element in places)

    return fit


def _mappings(key: AllFit | None, item: AllFit | None) -> AllFit | None:
    """Return the check of dicts; None if there is none for keys or values."""
    if key is None or item is None:
        return None

    def fit(values: Iterable[Any]) -> bool:
        values = [*values]
        if not {dict}.issuperset(map(type, values)):
            return False
        return key(chain.from_iterable(values)) and item(chain.from_iterable(map(dict[Any, Any].values, values)))

    return fit


def _columns(hint: Any, enclosing: tuple[Any, ...]) -> AllFit | None:
    """Return the check of the dicts of a TypedDict, or the objects of a dataclass or Struct; None if there is none."""
    cls = class_of(hint)
    try:
        hints = fields_of(hint)
    except Exception:  # an annotation that does not resolve may raise anything
        return None
    is_dict = is_typed_dict(cls)
    kind, required = (dict, required_fields(hint, hints)) if is_dict else (cls, [*hints])
    columns: list[tuple[Callable[[Sequence[Any]], Iterable[Any]], AllFit]] = []
    for name, each in hints.items():
        fit_field = all_fit(each, enclosing)
        if fit_field is None:
            return None
        if name in required:
            columns.append((partial(map, itemgetter(name) if is_dict else attrgetter(name)), fit_field))
        elif fit_field is not _always:
            columns.append((partial(_present, name), fit_field))

    def fit(values: Iterable[Any]) -> bool:
        values = [*values]
        if not {kind}.issuperset(map(type, values)):
            return False
        try:
            return all(_consume(column(values)) if one is _always else one(column(values)) for column, one in columns)
        except (LookupError, AttributeError):  # a required key or attribute is missing
            return False

    return fit


def _present(name: str, values: Sequence[dict[Any, Any]]) -> Iterable[Any]:
    """Return the values of a key in the dicts that have the key."""
    return filter(_IS_PRESENT, map(dict[Any, Any].get, values, repeat(name), repeat(_ABSENT)))


def _consume(values: Iterable[Any]) -> bool:
    """Iterate over all values, which raises if one is missing, and return True."""
    for _ in values:
        pass
    return True


_DISTINCT_TYPES = frozenset((str, bytes, types.NoneType))
_ABSENT = object()
_IS_PRESENT = partial(is_not, _ABSENT)
_ACCEPTED_TYPES: dict[Any, frozenset[type]] = {
    int: frozenset((int, bool)),
    float: frozenset((float, int)),
    complex: frozenset((complex, float, int)),
}
_UNCHECKED: tuple[Any, ...] = (Any, object, type, abc.Callable)
MAPPINGS: tuple[Any, ...] = (dict, abc.Mapping, abc.MutableMapping)
