"""Versions of stored classes: what an earlier version of a class stored is changed while it is read.

Objects of version 1 are stored under their tag, those of version 3 under `tag@3`. Code of an earlier version does not
know that name, and refuses it. So processes of both versions may share a database during a deployment, and no object is
misread.

Objects are decoded from the inside: an upcaster gets nested objects in their newest form.

A codec loads this module when a class has a version or renamed parts. Other classes cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from ..errors import TypeRegistrationError
from .annotations import is_typed_dict
from .reading import FailedUpcast, Misfit
from .registered import DECLARED, Declaration, Registered, Upcast, full_name, stored_name, version_in
from .shape import Shape, named_parts

AnyClass = TypeVar("AnyClass", bound=type)


def stored_type(
    tag: str | None = None,
    *,
    version: int | None = None,
    upcast: Mapping[int, Upcast] | None = None,
    renamed: Mapping[str, str] | None = None,
    aliases: Iterable[str] = (),
) -> Callable[[AnyClass], AnyClass]:
    """Declare how objects of a class are stored, for every codec: those of savers, stores and caches.

    A codec reads the declaration when the class is registered, by the annotations of a graph or by `with_types`, whose
    arguments take precedence. A subclass does not inherit it.

    Args:
        tag: the name to store. The default is `module.qualname`.
        version: the version of the class; None is 1.
        upcast: by version, the function that turns the fields of that version into those of the next; see
            `Codec.with_types`.
        renamed: the present name by earlier name, of fields or of members of an enum.
        aliases: further names under which to read objects, such as the `module.qualname` of earlier code.

    Returns:
        A decorator, which returns the class itself.

    Raises:
        TypeRegistrationError: the class is a `TypedDict`, which is stored as a dict. Other mistakes are reported when
            the class is registered.
    """
    declared = Declaration(tag=tag, version=version, upcast=upcast, renamed=renamed, aliases=tuple(aliases))

    def declare(cls: AnyClass) -> AnyClass:
        if is_typed_dict(cls):
            raise TypeRegistrationError(full_name(cls), "a TypedDict is stored as a dict, and has no tag")
        setattr(cls, DECLARED, declared)
        return cls

    return declare


def readers_of(shape: Shape, tag: str, names: Iterable[str], declared: Declaration) -> dict[str, Registered]:
    """Return a reader for each stored name of a class: of each version, under its tag and its aliases.

    Args:
        shape: the shape of the class.
        tag: the tag.
        names: the tag and the aliases.
        declared: the versions.

    Returns:
        Readers by stored name. The one of the newest version is stored under the tag and that version.

    Raises:
        TypeRegistrationError: the declaration has a mistake.
    """
    steps = _steps(full_name(shape.cls), declared)
    renamed = _renamed(shape, declared.renamed or {})
    if version_in(tag):
        reason = f"its tag {tag!r} ends as the names of later versions of {tag.rpartition('@')[0]!r} do"
        raise TypeRegistrationError(full_name(shape.cls), reason)
    readers = dict[str, Registered]()
    for version in range(1, len(steps) + 2):
        after = steps[version - 1 :]
        make = Upcasting(shape, after, renamed) if after or renamed else shape.make
        reader = Registered(tag, shape, version, make, declared)
        readers.update((stored_name(name, version), reader) for name in names)
    return readers


class Upcasting:
    """Creates objects from what an earlier version of their class stored.

    Args:
        shape: the shape of the class.
        steps: the upcasters to apply, in order, with the versions whose objects they take.
        renamed: the present name by earlier name. Applied last: an upcaster uses the names of its own time.
    """

    __slots__ = ("_renamed", "_shape", "_steps")

    def __init__(self, shape: Shape, steps: Collection[tuple[int, Upcast]], renamed: Mapping[str, str]) -> None:
        self._shape = shape
        self._steps = steps
        self._renamed = renamed

    def __call__(self, state: object) -> object:
        """Return the object.

        Args:
            state: the decoded state.

        Raises:
            FailedUpcast: an upcaster raised, or returned no fields.
            Misfit: the result does not fit the class.
        """
        parts = named_parts(state) if self._shape.by_fields else None
        if parts is None:  # a member of an enum, a subclass of list, what a user's function returned
            return self._shape.make(self._as_named_now(self._upcast(state)))
        fields = cast("dict[str, object]", self._upcast({**parts}))  # a copy: an upcaster may change it in place
        new = [] if fields.keys() == parts.keys() else [name for name in fields if name not in parts]
        for old, name in self._renamed.items():
            if old in fields:
                if name in fields:
                    reason = f"has both {old!r} and {name!r}, which is declared as its new name"
                    raise Misfit(name, reason, f"do not declare {old!r} as renamed")
                fields[name] = fields.pop(old)
        if type(state) is dict:
            return self._shape.make(fields)
        model = cast("list[Any]", state)  # a pydantic model
        # A field that an upcaster added counts as set, as if the new class had been called with it.
        given = [self._as_named_now(name) for name in (*model[1], *new)]
        return self._shape.make([fields, given, {}, model[3]])

    def _upcast(self, state: object) -> object:
        for version, step in self._steps:
            try:
                state = step(state)
                if self._shape.by_fields and type(state) is not dict:
                    raise TypeError(f"it returned {type(state).__name__}, and no dict of fields")
            except MemoryError:
                raise
            except Exception as error:
                raise FailedUpcast(version) from error
        return state

    def _as_named_now(self, name: object) -> object:
        return self._renamed.get(name, name) if isinstance(name, str) else name


def _steps(name: str, declared: Declaration) -> tuple[tuple[int, Upcast], ...]:
    """Return the upcasters in order. Raises `TypeRegistrationError` if one is missing."""
    given: Mapping[int, object] = declared.upcast or {}
    version: object = declared.version
    if version is None and given:
        raise TypeRegistrationError(name, "upcast= needs version=, the version that the last upcaster leads to")
    version = 1 if version is None else version
    if type(version) is not int or version < 1:
        raise TypeRegistrationError(name, f"version={version!r} is no version: they are counted from 1")
    missing = [number for number in range(1, version) if number not in given]
    if missing:
        reason = f"it has version {version}, and no upcaster from version {missing[0]}, of which objects may be stored"
        raise TypeRegistrationError(name, f"{reason}: upcast={{{missing[0]}: ...}}")
    if more := [number for number in given if type(number) is not int or not 0 < number < version]:
        raise TypeRegistrationError(name, f"upcast[{more[0]!r}] leads from no version before version {version}")
    for number, step in given.items():
        if not callable(step) or iscoroutinefunction(step):
            reason = f"upcast[{number}] is no function that returns fields, but {step!r}"
            raise TypeRegistrationError(name, reason)
    return tuple((number, cast("Upcast", given[number])) for number in range(1, version))


def _renamed(shape: Shape, renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the present name by earlier name, also of names that were changed more than once."""
    names, found = shape.names(), dict[str, str]()
    for old in renamed:
        name = old
        for _ in renamed:
            name = renamed.get(name, name)
        if old in names:
            raise TypeRegistrationError(full_name(shape.cls), f"{old!r} is declared as renamed, and is still there")
        if name not in names:
            what = f"renamed={{{old!r}: {name!r}}}"
            reason = f"it has no {name!r}" if names else "its objects are stored without names of fields or members"
            raise TypeRegistrationError(full_name(shape.cls), f"{what}: {reason}")
        found[old] = name
    return found
