"""`Codec`: values to bytes and back. Of bytes it makes a fixed set of kinds, and the types given to it in code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Any, Final, TypeVar

from ..errors import (
    CorruptCheckpointError,
    StoredTypeChangedError,
    TypeRegistrationError,
    UnknownTypeError,
    UnstorableValueError,
    annotate,
)
from . import canonical, containers, scalars
from .annotations import classes, fields, is_typed_dict
from .canonical import CanonicalWriter, DigestWriter, is_canonical
from .collisions import FEW, check_maps
from .plain_scalars import plain_maker
from .reading import Changed, Loader, Misfit, ObjectReader, UnknownTag
from .registered import CustomShape, Registered, explain, full_name, shape_of
from .runtime_types import RUNTIME_READERS, TolerantTags
from .shape import Shape
from .writing import SCALARS, NodeValueWriter, Refused, ValueWriter, is_plain, pack

T = TypeVar("T")

_READERS: Final = {**scalars.READERS, **containers.READERS}
_QUICK: Final = {**scalars.WRITERS, **containers.WRITERS}
_CAREFUL: Final = {**_QUICK, **scalars.CAREFUL}
_LOOKED_AT: Final = SCALARS - scalars.CAREFUL.keys()
_CANONICAL: Final = canonical.WRITERS
_CAREFUL_CANONICAL: Final = {**_CANONICAL, **scalars.CAREFUL}


class Codec:
    """Encodes values, and decodes them equal in value and exact type.

    A codec is immutable: the methods that add types return another one. Any number of threads may use one.

    Without registration: None, bool, int of any size, float, complex, str, bytes, bytearray, Decimal, Fraction, list,
    tuple, dict (with any storable keys, in order), set, frozenset, deque, OrderedDict, Counter, range, slice, date,
    time, datetime, timedelta, timezone, ZoneInfo, UUID, paths, IP addresses and networks, msgspec.UNSET.

    By registration: enums and flags, named tuples, dataclasses, msgspec Structs, pydantic models, subclasses of
    int, float, str, bytes, list, tuple, dict, set and frozenset, and any class at all with two functions. A subclass
    of a registered class is another type.

    A subclass of int, float, str or bytes that is no Enum and has neither a `__dict__` nor slots holds nothing of its
    own: unless it is registered, the plain value is stored.

    An object of a class of the runtime's (`Send`, `Interrupt`, ...), which graphs register by themselves, is read as a
    `StoredObject` by a codec that does not have the class.

    An object that a value holds twice comes back as two.

    Sets and dicts that Python takes quadratic time to make, as many of their members have the same hash, are refused:
    when they are encoded, and in bytes. See `collisions.py`.

    Attributes:
        kept_scalars: such subclasses of plain scalars that are registered, whose objects are stored as what they are.
    """

    __slots__ = (
        "_canonical",
        "_careful",
        "_careful_canonical",
        "_careful_held",
        "_digest",
        "_held",
        "_kinds",
        "_loader",
        "_quick",
        "_tags",
        "kept_scalars",
    )

    def __init__(self) -> None:
        self._become({}, {})

    def _become(self, kinds: dict[type, Registered], tags: dict[str, Registered]) -> None:
        writers = {cls: kind.write for cls, kind in kinds.items()}
        self._kinds = kinds
        self._tags = tags
        self.kept_scalars = frozenset(cls for cls in kinds if plain_maker(cls) is not None)
        self._quick = ValueWriter(_QUICK | writers, SCALARS, explain)
        self._careful = ValueWriter(_CAREFUL | writers, _LOOKED_AT, explain)
        self._held = NodeValueWriter(_QUICK | writers, SCALARS, explain)
        self._careful_held = NodeValueWriter(_CAREFUL | writers, _LOOKED_AT, explain)
        self._digest: tuple[DigestWriter, DigestWriter] | None = None  # made for the first digest
        self._canonical = CanonicalWriter(_CANONICAL | writers, canonical.SAFE, explain)
        self._careful_canonical = CanonicalWriter(
            _CAREFUL_CANONICAL | writers, canonical.SAFE - scalars.CAREFUL.keys(), explain
        )
        self._loader = Loader(_READERS, {**RUNTIME_READERS, **tags})

    def with_types(self, *types: type, tag: str | None = None, aliases: Iterable[str] = ()) -> Codec:
        """A codec that knows these types too, and those that the annotations of their fields name.

        A type that is registered already stays as it is, unless a tag is given: then it is written under that tag, and
        read under all that it ever had.

        Args:
            tag: the name to store, for a single type. The default is `module.qualname`, as the class is found now (a
                class of the main script counts to the module that the script would be imported as). With a tag of its
                own a class may be moved and renamed later.
            aliases: further names to read it under, for a single type.

        Raises:
            TypeRegistrationError: a tag stands for another type, or the type is of no kind that can be registered.
        """
        if len(types) != 1 and (tag is not None or aliases):
            names = ", ".join(cls.__name__ for cls in types)
            raise TypeRegistrationError(names, "a tag and aliases are given to one type at a time")
        draft = _Draft(self._kinds, self._tags)
        for cls in types:
            if self._needs_nothing(cls):
                if tag is not None:
                    raise TypeRegistrationError(full_name(cls), "it is stored without registration, and has no tag")
                continue
            if tag is not None or aliases or cls not in draft.kinds:
                known = draft.kinds.get(cls)
                shape = known.shape if known else shape_of(cls, explicitly=True)
                if shape is None:
                    raise TypeRegistrationError(full_name(cls), explain(cls))
                draft.add(shape, tag or (known.tag if known else default_tag(cls)), aliases)
        return self._with_hints(draft, [hint for cls in types for hint in fields(cls)])

    def with_type(
        self,
        cls: type[T],
        *,
        encode: Callable[[T], object],
        decode: Callable[[Any], T],
        tag: str | None = None,
        aliases: Iterable[str] = (),
    ) -> Codec:
        """A codec that stores objects of one class by two functions.

        Args:
            encode: makes of an object something else that can be stored.
            decode: makes the object of that again; exactly of this class. Whatever it raises means that the class has
                changed since.
            tag, aliases: as in `with_types`.

        Raises:
            TypeRegistrationError: a tag stands for another type, or the type needs no registration.
        """
        if self._needs_nothing(cls):
            raise TypeRegistrationError(full_name(cls), "it is stored without registration")
        draft = _Draft(self._kinds, self._tags)
        known = draft.kinds.get(cls)
        draft.add(CustomShape(cls, encode, decode), tag or (known.tag if known else default_tag(cls)), aliases)
        return self._next(draft)

    def with_annotations(self, *hints: object) -> Codec:
        """A codec that knows all types that these annotations name, at any depth, and that can be registered.

        Everything else in them is passed over: what needs no registration, what does not resolve, and classes of no
        known kind, whose objects are refused when they are written. Types that are registered already stay as they
        are; the same codec is returned if there is nothing new.

        Raises:
            TypeRegistrationError: two different types would get the same tag.
        """
        return self._with_hints(_Draft(self._kinds, self._tags), hints)

    def _with_hints(self, draft: _Draft, hints: Iterable[object]) -> Codec:
        for cls in classes(hints):
            if cls in draft.kinds or self._needs_nothing(cls):
                continue
            shape = shape_of(cls, explicitly=False)
            if shape is not None:
                draft.add(shape, default_tag(cls), ())
        return self._next(draft)

    def _next(self, draft: _Draft) -> Codec:
        if not draft.changed:
            return self
        codec = Codec()
        codec._become(draft.kinds, draft.tags)
        return codec

    def _needs_nothing(self, cls: type) -> bool:
        return cls in _QUICK or is_typed_dict(cls)

    def knows(self, cls: type) -> bool:
        """Whether objects of exactly this type can be stored (if what they hold can)."""
        return cls in _QUICK or cls in self._kinds

    def encode(self, value: object, *, channel: str) -> bytes:
        """The bytes of a value. Values of equal types, parts and order of dict keys give equal bytes.

        Raises:
            UnstorableValueError: the value, or something in it, cannot be stored.
        """
        if type(value) in SCALARS:
            try:
                return pack(value)
            except (OverflowError, ValueError):
                pass  # MessagePack has no room for it
        return _packed(value, is_plain, self._quick, self._careful, channel)

    def encode_held(self, value: object, *, channel: str) -> bytes:
        """As `encode`, of a value that a node may hold.

        A node is given objects in the place of plain lists and dicts. Before its results get to `encode`, the runtime
        has made plain ones of these; what a node hands to somebody else (a store) may have them at any depth. They are
        encoded as what a copy of them is.

        Raises:
            UnstorableValueError: the value, or something in it, cannot be stored.
        """
        return _packed(value, is_plain, self._held, self._careful_held, channel)

    def canonical(self, value: object, *, channel: str) -> bytes:
        """What a value is known by: bytes that are equal exactly for equal values of equal types, in every process.

        The order of dict keys, of sets and of an object's attributes does not count. See `canonical.py` for what else
        counts as equal. They cannot be decoded, and are no part of the stored format: another version of this package
        may make others.

        Raises:
            UnstorableValueError: the value, or something in it, cannot be stored.
        """
        return _packed(value, is_canonical, self._canonical, self._careful_canonical, channel)

    def digestible(self, value: object, *, channel: str) -> bytes:
        """As `canonical`, of values of any kind: what cannot be stored counts by the name of its type, at any depth.

        Values that can be stored give the bytes that `canonical` gives.
        """
        if self._digest is None:
            writers = {cls: kind.write for cls, kind in self._kinds.items()}
            self._digest = (
                DigestWriter(_CANONICAL | writers, canonical.SAFE, default_tag),
                DigestWriter(_CAREFUL_CANONICAL | writers, canonical.SAFE - scalars.CAREFUL.keys(), default_tag),
            )
        return _packed(value, is_canonical, *self._digest, channel)

    def decode(self, data: bytes | memoryview, *, channel: str) -> object:
        """The value of bytes that `encode` returned.

        Raises:
            CorruptCheckpointError: the bytes are damaged.
            StoredTypeChangedError: the class of a stored object has changed, and does not take what is stored.
            UnknownTypeError: an object of a type is stored that this codec does not know (a CorruptCheckpointError).
        """
        return self._decoded(self._loader, data, channel)

    def decode_stored(self, data: bytes | memoryview, *, channel: str) -> object:
        """As `decode`, but each object that no class can be made of is read as a `StoredObject`: its type is not
        registered, or its class does not take what is stored of it. For showing what is stored; not to run with.

        Raises:
            CorruptCheckpointError: the bytes are damaged.
        """
        tags: dict[str, ObjectReader] = {**RUNTIME_READERS, **self._tags}
        return self._decoded(Loader(_READERS, TolerantTags(tags)), data, channel)

    def _decoded(self, loader: Loader, data: bytes | memoryview, channel: str) -> object:
        try:
            if len(data) > FEW:
                check_maps(data if isinstance(data, bytes) else bytes(data))
            return loader.any(data)
        except Changed as changed:
            raise _changed_error(f"channel {channel!r}", changed) from changed.__cause__
        except UnknownTag as unknown:
            raise UnknownTypeError(f"channel {channel!r}", unknown.tag) from None
        except MemoryError:
            raise  # it says nothing about the bytes: no kind takes more memory than in proportion to them
        except RecursionError as error:
            reason = "it is nested deeper than what is written (or read with next to nothing of Python's stack left)"
            raise CorruptCheckpointError(f"channel {channel!r}", reason) from error
        except Exception as error:
            # Damage shows as what the type's own constructor raises: everything there is.
            reason = f"its bytes make no value ({type(error).__name__}: {error})"
            raise CorruptCheckpointError(f"channel {channel!r}", reason) from error

    def __repr__(self) -> str:
        return f"<Codec with {', '.join(self._tags) or 'no registered types'}>"


def _changed_error(where: str, changed: Changed) -> StoredTypeChangedError:
    tag, name, why = changed.tag, changed.type_name, changed.__cause__
    short = name.rpartition(".")[2]
    own = f"say how to make objects of what is stored, Codec().with_type({short}, tag={tag!r}, encode=..., decode=...)"
    if isinstance(why, Misfit):
        return StoredTypeChangedError(where, tag, name, why.name, why.reason, f"{why.advice}, or {own}.")
    reason = f"does not fit {name} ({type(why).__name__}: {why})"
    return StoredTypeChangedError(where, tag, name, None, reason, f"{own}.")


def _packed(
    value: object, is_ready: Callable[[object], bool], quick: ValueWriter, careful: ValueWriter, channel: str
) -> bytes:
    try:
        try:
            return pack(value if is_ready(value) else quick.prepare(value, set()))
        except (OverflowError, ValueError):
            # An int, str or bytes that MessagePack has no room for. It is rare: looking for it takes a second pass, so
            # that all others take none.
            return pack(careful.prepare(value, set()))
    except Refused as refused:
        raise UnstorableValueError(channel, refused.path, refused.reason) from refused.__cause__
    except RecursionError as error:
        raise UnstorableValueError(channel, "", "too little of Python's stack is left to look into it") from error
    except Exception as error:  # from a function given to with_type, or a property
        annotate(error, f"While storing a value of channel {channel!r}.")
        raise


class _Draft:
    """The registrations of the next codec."""

    def __init__(self, kinds: dict[type, Registered], tags: dict[str, Registered]) -> None:
        self.kinds = kinds.copy()
        self.tags = tags.copy()
        self.changed = False

    def add(self, shape: Shape, tag: str, aliases: Iterable[str]) -> None:
        kind = Registered(tag, shape)
        for name in (tag, *aliases):
            other = self.tags.get(name)
            if other is not None and other.shape.cls is not shape.cls:
                raise TypeRegistrationError(
                    full_name(shape.cls),
                    f"the tag {name!r} stands for another class already, {full_name(other.shape.cls)}. "
                    "Give one of them a tag of its own: Codec().with_types(TheClass, tag=...)",
                )
            self.tags[name] = kind
        self.kinds[shape.cls] = kind
        self.changed = True


def default_tag(cls: type) -> str:
    """`module.qualname`. A script's classes have the tag that they would have if it were imported."""
    module = cls.__module__
    if module in ("__main__", "__mp_main__"):  # the second is the first, in a process that multiprocessing has started
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        file: str | None = getattr(main, "__file__", None)
        module = spec.name if spec else PurePath(file).stem if file and file[0] != "<" else module
    return f"{module}.{cls.__qualname__}"
