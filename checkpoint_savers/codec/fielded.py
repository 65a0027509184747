"""Shapes of classes with named fields: dataclasses, msgspec Structs, named tuples, pydantic models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any, Final, cast

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import force_setattr

from .annotations import has, model_fields
from .reading import Damaged
from .shape import Default, ExtraAttributes, Shape, constant, filled, mapping, named_parts, present
from .writing import Refused, ValueWriter

OMIT_DEFAULT: Final = "checkpoint_savers.omit_default"
"""The key in the metadata of a dataclass field that is not stored while it has its default."""


class FieldShape(Shape):
    """A class with named fields. What another kind of class stored is accepted, if it has the fields."""

    __slots__ = ("_names",)

    by_fields = True
    _names: Mapping[str, Default | None]

    def names(self) -> Collection[str]:
        return self._names


class DataclassShape(FieldShape):
    """A dataclass whose only built-in base is object."""

    __slots__ = ("_omitted", "_optional")

    def __init__(self, cls: type) -> None:
        fields = dataclasses.fields(cls)
        super().__init__(cls, ExtraAttributes.of(cls, [field.name for field in fields]))
        self._names = {field.name: _dataclass_default(field) for field in fields}
        # A field that __init__ does not accept, and that has no default, may legitimately be unset.
        self._optional = {field.name for field in fields if not field.init and self._names[field.name] is None}
        # A field that a later version of the class has added: without a value of its own, the bytes stay as they were.
        self._omitted = {field.name: field.default for field in fields if field.metadata.get(OMIT_DEFAULT)}

    def take(self, value: object, writer: ValueWriter, enclosing: set[int]) -> object:
        names: Collection[str] = self._names
        if self._optional:
            names = [name for name in names if name not in self._optional or hasattr(value, name)]
        if self._omitted:
            names = [name for name in names if name not in self._omitted or getattr(value, name) != self._omitted[name]]
        return writer.fields(present(value, names), enclosing)

    def make(self, state: object) -> object:
        names: Mapping[str, Default | None] = self._names
        if self._optional:
            stored = named_parts(state) or {}
            names = {name: default for name, default in names.items() if name in stored or name not in self._optional}
        value = object.__new__(self.cls)
        for name, part in filled(self.cls, names, state).items():
            object.__setattr__(value, name, part)  # not setattr: the class may be frozen
        return value


def _dataclass_default(field: dataclasses.Field[Any]) -> Default | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None if field.default is dataclasses.MISSING else constant(field.default)


class StructShape(FieldShape):
    """A msgspec Struct."""

    __slots__ = ("_make",)

    def __init__(self, cls: type[Struct], make: Callable[..., Struct]) -> None:
        names, defaults = cls.__struct_fields__, cls.__struct_defaults__
        super().__init__(cls, ExtraAttributes.of(cls, names))
        self._make = make
        required = len(names) - len(defaults)
        self._names = dict.fromkeys(names[:required]) | {
            name: _struct_default(default) for name, default in zip(names[required:], defaults, strict=True)
        }

    def take(self, value: object, writer: ValueWriter, enclosing: set[int]) -> object:
        return writer.fields(present(value, self._names), enclosing)

    def make(self, state: object) -> object:
        return self._make(**filled(self.cls, self._names, state))


class _Example(Struct):
    field: object = msgspec.field(default_factory=object)


_FACTORY: Final = type(cast("object", _Example.__struct_defaults__[0]))  # msgspec gives it no public name


def _struct_default(default: Any) -> Default | None:
    if default is NODEFAULT:
        return None
    factory: Default | None = getattr(default, "factory", None) if isinstance(default, _FACTORY) else None
    return factory or constant(default)


def _maker(cls: type[Struct]) -> Callable[..., Struct]:
    """Return a function that creates objects of a Struct class without running its `__post_init__`."""
    # Only the constructor can create a Struct. It assigns the fields (msgspec validates when decoding, not here) and
    # calls `__post_init__`. So a subclass with an empty `__post_init__` creates the object, whose class is then set to
    # the real one: both have the same memory layout.
    if not has(cls, "__post_init__"):
        return cls
    meta: type = type(cls)
    body = {"__post_init__": _nothing, "__module__": __name__}
    quiet = cast("Callable[..., Struct]", meta(cls.__name__, (cls,), body))

    def make(**fields: object) -> Struct:
        value = quiet(**fields)
        force_setattr(value, "__class__", cls)
        return value

    return make


def struct_shape(cls: type[Struct]) -> StructShape | None:
    """Return the shape of a Struct class; None if there is none.

    There is none for Struct itself, and for classes whose objects cannot be created without running their
    code.

    Args:
        cls: the class.
    """
    if cls is Struct:
        return None
    try:
        make = _maker(cls)
    except Exception:  # an __init_subclass__ that wants arguments, or refuses
        return None
    return StructShape(cls, make)


def _nothing(self: object) -> None:
    """Do nothing, in the place of `__post_init__`."""


class NamedTupleShape(FieldShape):
    """A named tuple, of typing or of collections."""

    __slots__ = ()

    def __init__(self, cls: Any) -> None:
        super().__init__(cls, ExtraAttributes.of(cls, ()))
        defaults: Mapping[str, object] = cls._field_defaults
        self._names = {name: constant(defaults[name]) if name in defaults else None for name in cls._fields}

    def take(self, value: tuple[object, ...], writer: ValueWriter, enclosing: set[int]) -> object:
        return writer.fields(dict(zip(self._names, tuple[object, ...].__iter__(value), strict=True)), enclosing)

    def make(self, state: object) -> object:
        fields = filled(self.cls, self._names, state)
        made: object = tuple[object, ...].__new__(self.cls, [fields[name] for name in self._names])
        return made


class ModelShape(FieldShape):
    """A pydantic v2 model, recognised by its attributes: this package does not depend on pydantic."""

    __slots__ = ("_is_root", "_keeps_extra", "_private")

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self._names = {name: _model_default(field) for name, field in model_fields(cls).items()}
        private: Mapping[str, Any] = self.cls.__private_attributes__
        self._private = {name: _private_default(attribute) for name, attribute in private.items()}
        self._is_root: bool = self.cls.__pydantic_root_model__  # a root model has no slots for extra and private values
        self._keeps_extra: bool = self.cls.model_config.get("extra") == "allow"

    def take(self, value: Any, writer: ValueWriter, enclosing: set[int]) -> object:
        parts = cast("dict[str, object]", value.__dict__)  # cached properties are in there too, and are not taken
        if missing := self._names.keys() - parts.keys():
            raise Refused("this field is not set", f".{min(missing)}")
        return [
            writer.fields({name: parts[name] for name in self._names}, enclosing),
            sorted(value.__pydantic_fields_set__),
            writer.fields(value.__pydantic_extra__ or {}, enclosing),
            writer.fields(value.__pydantic_private__ or {}, enclosing),
        ]

    def make(self, state: object) -> object:
        if type(state) is dict:  # stored by a class of another kind: each field was given
            state = [state, list(cast("dict[str, object]", state)), {}, {}]
        fields, given, extra, private = cast("list[object]", state)
        stored = {**mapping(extra), **mapping(fields)}  # an extra value of that time may be a field now, or vice versa
        value = self.cls.__new__(self.cls)
        put = object.__setattr__
        put(value, "__dict__", {**filled(self.cls, self._names, stored)})
        more = {name: part for name, part in stored.items() if name not in self._names} if self._keeps_extra else {}
        if not self._is_root:
            put(value, "__pydantic_extra__", more if self._keeps_extra else None)
        put(value, "__pydantic_fields_set__", {name for name in _names(given) if name in self._names or name in more})
        hidden = {name: part for name, part in mapping(private).items() if name in self._private}
        hidden |= {n: default() for n, default in self._private.items() if n not in hidden and default is not None}
        if self._private or not self._is_root:
            put(value, "__pydantic_private__", hidden if self._private else None)
        return value


def _names(given: object) -> list[str]:
    if type(given) is not list:
        raise Damaged("a model without the names of the fields that it was given")
    return cast("list[str]", given)


def _model_default(field: Any) -> Default | None:
    if field.is_required() or _needs_other_fields(field):
        return None
    return lambda: field.get_default(call_default_factory=True)


def _private_default(attribute: Any) -> Default | None:
    # Not its own get_default, whose arguments differ between versions of pydantic.
    if attribute.default_factory is not None:
        return None if _needs_other_fields(attribute) else attribute.default_factory
    if type(attribute.default).__name__ == "PydanticUndefinedType":
        return None
    return lambda: deepcopy(attribute.default)


def _needs_other_fields(field: Any) -> bool:
    """Return True if the default is computed from other fields during validation, which does not run here."""
    return bool(getattr(field, "default_factory_takes_validated_data", False))
