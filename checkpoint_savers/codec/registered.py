"""Types that a codec knows by registration, each under a tag that code has chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from enum import EnumType, Flag
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from . import codes
from .annotations import has
from .fielded import DataclassShape, ModelShape, NamedTupleShape, struct_shape
from .reading import Changed, Damaged, Misfit
from .shape import HEAP_TYPE, ExtraAttributes, Shape, mapping
from .writing import Refused, ValueWriter, enter, ext, pack

DECLARED: Final = "__stored_type__"
"""The attribute of a class that `stored_type` sets: its `Declaration`."""

Upcast: TypeAlias = Callable[[Any], Any]
"""Turns the fields of one version of a class into those of the next."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What code declares about the stored form of a class; see `Codec.with_types`. None declares nothing."""

    tag: str | None = None
    version: int | None = None
    upcast: Mapping[int, Upcast] | None = None
    renamed: Mapping[str, str] | None = None
    aliases: tuple[str, ...] = ()

    def over(self, earlier: Declaration) -> Declaration:
        """Return this declaration, completed by an earlier one.

        Args:
            earlier: the earlier one.
        """
        if self.version is not None or self.upcast is not None:
            version, upcast = self.version, self.upcast
        else:
            version, upcast = earlier.version, earlier.upcast
        return Declaration(
            tag=self.tag or earlier.tag,
            version=version,
            upcast=upcast,
            renamed=earlier.renamed if self.renamed is None else self.renamed,
            aliases=self.aliases + earlier.aliases,
        )

    @property
    def changes_stored(self) -> bool:
        """Whether stored objects have to be changed before the class accepts them, or have another name."""
        return bool(self.version is not None or self.upcast or self.renamed)


UNDECLARED: Final = Declaration()


class Registered:
    """A class under a tag.

    Args:
        tag: see below.
        shape: see below.
        version: see below.
        make: creates objects; None for the shape's `make`.
        declared: see below.

    Attributes:
        tag: the stored name, without a version. The class may be renamed, the tag may not.
        shape: takes its objects apart and creates them.
        version: the version of the stored objects.
        declared: the declared versions of the class.
    """

    __slots__ = ("_head", "_long_head", "_make", "declared", "shape", "tag", "version")

    def __init__(
        self,
        tag: str,
        shape: Shape,
        version: int = 1,
        make: Callable[[object], object] | None = None,
        declared: Declaration = UNDECLARED,
    ) -> None:
        self.tag: Final = tag
        self.shape: Final = shape
        self.version: Final = version
        self.declared: Final = declared
        self._make = make or shape.make
        name = pack(stored_name(tag, version))
        self._head = b"\x92" + name  # an array of two: name and state
        self._long_head = b"\x93" + name  # an array of three: name, state and extra attributes

    def write(self, value: object, writer: ValueWriter, enclosing: set[int]) -> msgspec.msgpack.Ext:
        """Return the extension for an object.

        Args:
            value: the object.
            writer: prepares its parts.
            enclosing: ids of the enclosing containers.

        Raises:
            Refused: a part cannot be stored.
        """
        shape = self.shape
        enter(value, enclosing)
        state = shape.take(value, writer, enclosing)
        rest = None if shape.rest is None else shape.rest.take(value, writer, enclosing)
        enclosing.discard(id(value))
        payload = self._head + pack(state) if rest is None else self._long_head + pack(state) + pack(rest)
        return ext(codes.REGISTERED, payload)

    def make(self, state: object, rest: object) -> object:
        """Create the object from its decoded parts.

        Args:
            state: what `Shape.take` returned, decoded.
            rest: its extra attributes, decoded; None for none.

        Raises:
            Changed: the class does not accept the parts.
        """
        # The decoded parts are intact: frames are checked before, and damage in the parts shows before the object is
        # created. So any exception of the class here is about the class, and no backup would help.
        more = None if rest is None or self.shape.rest is None else mapping(rest)
        try:
            value = self._make(state)
            if more is not None and self.shape.rest is not None:
                self.shape.rest.give(value, more)
        except (MemoryError, RecursionError):
            raise  # these say nothing about the class
        except Exception as error:
            newest = self.declared.version or 1
            raise Changed(self.tag, self.version, newest, full_name(self.shape.cls)) from error
        return value


def stored_name(tag: str, version: int) -> str:
    """Return the name under which objects of one version are stored.

    Args:
        tag: the tag of the class.
        version: the version.
    """
    return tag if version == 1 else f"{tag}@{version}"


def version_in(name: str) -> int:
    """Return the version in a stored name; 0 if it has none.

    Args:
        name: the stored name.
    """
    digits = name.rpartition("@")[2] if "@" in name else ""
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 0


def shape_of(cls: type[object], *, explicitly: bool) -> Shape | None:
    """Return the shape of a class; None if its objects cannot be taken apart.

    Args:
        cls: the class.
        explicitly: True if the class itself was registered, False if an annotation names it. Subclasses of built-in
            types count only if they were registered.
    """
    native = next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE)
    if isinstance(cls, EnumType):
        return _enum_shape(cls)
    if issubclass(cls, Struct):
        return struct_shape(cls)
    if has(cls, "__pydantic_fields_set__"):
        return ModelShape(cls)
    if has(cls, "__dataclass_fields__"):
        return DataclassShape(cls) if native is object else None
    if native is tuple and has(cls, "_fields") and has(cls, "_field_defaults"):
        return NamedTupleShape(cls)
    if explicitly and native in _NATIVE and cls is not native and not issubclass(cls, defaultdict):
        return _NativeShape(cls, native)
    return None


def _enum_shape(cls: Any) -> Shape | None:
    if not cls.__members__:
        return None
    return _FlagShape(cls) if issubclass(cls, Flag) else _EnumShape(cls)


class CustomShape(Shape):
    """A class with two functions of the user."""

    __slots__ = ("_decode", "_encode")

    def __init__(self, cls: type, encode: Callable[[Any], object], decode: Callable[[Any], object]) -> None:
        super().__init__(cls)
        self._encode = encode
        self._decode = decode

    def take(self, value: object, writer: ValueWriter, enclosing: set[int]) -> object:
        state = self._encode(value)
        try:
            return writer.prepare(state, enclosing)
        except Refused as refused:
            refused.parts.append("<encoded>")
            raise

    def make(self, state: object) -> object:
        value = self._decode(state)
        if type(value) is not self.cls:
            raise Damaged(f"the decode function of {self.cls.__qualname__} made a {type(value).__qualname__}")
        return value


class _EnumShape(Shape):
    """Stored by name: a member's value may change, and need not be storable."""

    __slots__ = ("_members",)

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self._members: dict[Any, object] = dict(self.cls.__members__)

    def names(self) -> Collection[str]:
        return self._members

    def take(self, value: Any, writer: ValueWriter, enclosing: set[int]) -> object:
        return value._name_

    def make(self, state: object) -> object:
        if state not in self._members:
            reason = f"is member {state!r}, which {self.cls.__qualname__} does not have now"
            raise Misfit(str(state), reason, f"declare its new name, renamed={{{state!r}: ...}}")
        return self._members[state]


class _FlagShape(Shape):
    """Stored by value: a combination of flags has no name of its own."""

    __slots__ = ("_bits",)

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        # Damaged bytes must not take long: a flag class with boundary KEEP examines unknown bits in quadratic time.
        self._bits = max(1024, *(member._value_.bit_length() for member in self.cls.__members__.values()))

    def take(self, value: Any, writer: ValueWriter, enclosing: set[int]) -> object:
        bits: int = value._value_
        if bits.bit_length() > self._bits:
            raise Refused(f"a flag of more than {self._bits} bits")
        return writer.prepare(bits, enclosing)

    def make(self, state: object) -> object:
        if type(state) is not int or state < 0 or state.bit_length() > self._bits:
            raise Damaged("a flag that was not written here")
        made: Any = self.cls(state)
        # A class with boundary CONFORM, the default before Python 3.11.4, leaves out bits that it does not have.
        if type(made) is self.cls and made._value_ != state:
            raise ValueError(f"{state!r} is not a valid {self.cls.__qualname__}")
        return made


class _NativeShape(Shape):
    """A subclass of a built-in type: its plain value, and its attributes."""

    __slots__ = ("_bare", "_native", "_wear")

    def __init__(self, cls: type, native: type) -> None:
        super().__init__(cls, ExtraAttributes.of(cls, ()))
        self._native = native
        self._bare, self._wear = _NATIVE[native]

    def take(self, value: object, writer: ValueWriter, enclosing: set[int]) -> object:
        return writer.prepare(self._bare(value), enclosing)

    def make(self, state: object) -> object:
        if type(state) is not self._native:
            raise Damaged(f"a {self.cls.__qualname__} that is no {self._native.__name__}")
        return self._wear(self.cls, state)


def _bare(native: Any) -> Callable[[Any], object]:
    return lambda value: native(native.__iter__(value))


def _bare_dict(value: Any) -> object:
    return dict(dict[object, object].items(value))


def _new(native: Any) -> Callable[[Any, Any], object]:
    return lambda cls, value: native.__new__(cls, value)


def _new_filled(native: Any, fill: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    def make(cls: Any, value: object) -> object:
        new = native.__new__(cls)
        fill(new, value)
        return new

    return make


_NATIVE: Final[dict[type, tuple[Callable[[Any], object], Callable[[Any, Any], object]]]] = {
    # From an object of a subclass to the plain value, and back. Both use the built-in type's own methods, so that no
    # override of the subclass runs, not even its __new__ and __init__.
    int: (int.__pos__, _new(int)),
    float: (float.__pos__, _new(float)),
    str: (str.__str__, _new(str)),
    bytes: (lambda value: bytes(memoryview(value)), _new(bytes)),
    tuple: (_bare(tuple), _new(tuple)),
    frozenset: (_bare(frozenset), _new(frozenset)),
    list: (_bare(list), _new_filled(list, list[object].extend)),
    dict: (_bare_dict, _new_filled(dict, dict[object, object].update)),
    set: (_bare(set), _new_filled(set, set[object].update)),
}


def explain(cls: type[object]) -> str:
    """Return why values of an unregistered type cannot be stored, and what to do about it.

    Args:
        cls: the type.
    """
    name = full_name(cls)
    if issubclass(cls, BaseException):
        return f"{name} is an exception, which is no value: store its text"
    if cls.__module__ == "builtins":  # functions, classes, generators, bare objects: no registration helps
        what = f"a value of type {cls.__name__} cannot be stored"
        return f"{what}: leave it out. A state may keep it in an UntrackedValue channel, which is not stored"
    if shape_of(cls, explicitly=True) is not None:
        return f"{name} is not registered. Register it: Codec().with_types({cls.__name__}, tag=...)"
    return (
        f"{name} cannot be stored as it is. Say how: Codec().with_type({cls.__name__}, encode=..., decode=...), "
        "or leave it out. A state may keep it in an UntrackedValue channel, which is not stored"
    )


def full_name(cls: type) -> str:
    """Return a class's name, qualified by its module.

    Args:
        cls: the class.
    """
    return f"{cls.__module__}.{cls.__qualname__}"
