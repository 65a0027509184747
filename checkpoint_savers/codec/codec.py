"""`Codec`: values to bytes and back. It creates only a fixed set of types, and those that were registered in code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final, TypeVar

from ..errors import (
    CorruptCheckpointError,
    StoredTypeChangedError,
    TypeRegistrationError,
    TypeVersionError,
    UnknownTypeError,
    UnstorableValueError,
    UpcastError,
    annotate,
)
from . import canonical, containers, scalars
from .annotations import classes, fields, is_typed_dict
from .canonical import CanonicalWriter, DigestWriter, is_canonical
from .collisions import FEW, check_maps
from .plain_scalars import plain_maker
from .reading import Changed, FailedUpcast, Loader, Misfit, ObjectReader, UnknownTag
from .registered import (
    DECLARED,
    UNDECLARED,
    CustomShape,
    Declaration,
    Registered,
    Upcast,
    explain,
    full_name,
    shape_of,
    stored_name,
    version_in,
)
from .runtime_types import RUNTIME_READERS, PlainTags, TolerantTags
from .shape import Shape
from .writing import SCALARS, NodeValueWriter, Refused, ValueWriter, all_plain, is_plain, pack

T = TypeVar("T")

_READERS: Final = {**scalars.READERS, **containers.READERS}
_QUICK: Final = {**scalars.WRITERS, **containers.WRITERS}
_CAREFUL: Final = {**_QUICK, **scalars.CAREFUL}
_PLAIN_LOADER: Final = Loader(_READERS, PlainTags())
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

    An unregistered subclass of int, float, str or bytes that is no Enum and has neither a `__dict__` nor slots is
    stored as the plain value, since it holds nothing else.

    The runtime's classes (`Send`, `Interrupt`, ...) are registered by graphs. A codec without them reads their objects
    as `StoredObject`s.

    An object that a value holds twice is decoded as two objects.

    Sets and dicts that Python would take quadratic time to create, since many of their members have the same hash, are
    refused, by encoding and by decoding. See `collisions.py`.

    Attributes:
        kept_scalars: registered subclasses of plain scalars, whose objects are decoded as objects of the subclass.
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
        self._digest: tuple[DigestWriter, DigestWriter] | None = None  # created by the first digest
        self._canonical = CanonicalWriter(_CANONICAL | writers, canonical.SAFE, explain)
        self._careful_canonical = CanonicalWriter(
            _CAREFUL_CANONICAL | writers, canonical.SAFE - scalars.CAREFUL.keys(), explain
        )
        self._loader = Loader(_READERS, {**RUNTIME_READERS, **tags})

    def with_types(
        self,
        *types: type,
        tag: str | None = None,
        aliases: Iterable[str] = (),
        version: int | None = None,
        upcast: Mapping[int, Upcast] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Codec:
        """Return a codec that also knows these types, and those that the annotations of their fields name.

        A type that is registered already remains unchanged, unless something else than the type is given: then it is
        written under the new tag and version, and read under all tags that it ever had.

        A class may change: fields with defaults may be added, fields may be removed, and a dataclass, named tuple,
        msgspec Struct or pydantic model may become another of these kinds. Other changes are declared, here for a
        single type, or at the class with `stored_type`. Objects that are stored already are changed when they are read.

            codec.with_types(Item, tag="Item", renamed={"cents": "price"})
            codec.with_types(Item, tag="Item", version=2, upcast={1: lambda fields: {**fields, "vat": 19}})

        Args:
            types: the classes.
            tag: the name to store, for a single type. The default is `module.qualname`, as the class is found now (a
                class of the main script belongs to the module that the script would be imported as). With an explicit
                tag a class may be moved and renamed later.
            aliases: further names under which to read it, for a single type.
            version: the version of the class, from 1. Objects are stored under `tag@version`, those of version 1 under
                the tag. Code with an earlier version refuses to read them (`TypeVersionError`).
            upcast: by version, the function that turns the fields of that version into those of the next: a dict into
                a dict. It has every version before the present one. Values are decoded, and nested objects are in
                their newest form. Of an object that is not stored by fields, a function gets and returns the stored
                value: the name of an enum's member, the plain list of a subclass of list, what `encode` of `with_type`
                returned. Upcasters have to be pure: they run each time that an object is read.
            renamed: the present name by earlier name, of fields or of members of an enum. Applied after upcasters.

        Returns:
            The new codec; the same one if there is nothing new.

        Raises:
            TypeRegistrationError: another type has the tag, the type is of no kind that can be registered, a version
                has no upcaster, or a new name is no name of the class.
        """
        declared = Declaration(tag=tag, version=version, upcast=upcast, renamed=renamed, aliases=tuple(aliases))
        if len(types) != 1 and declared != UNDECLARED:
            names = ", ".join(cls.__name__ for cls in types)
            raise TypeRegistrationError(names, "a tag, aliases, and versions are given to one type at a time")
        draft = _Draft(self._kinds, self._tags)
        for cls in types:
            if self._needs_nothing(cls):
                if declared != UNDECLARED:
                    raise TypeRegistrationError(full_name(cls), "it is stored without registration, and has no tag")
                continue
            if declared != UNDECLARED or cls not in draft.kinds:
                known = draft.kinds.get(cls)
                shape = known.shape if known else shape_of(cls, explicitly=True)
                if shape is None:
                    raise TypeRegistrationError(full_name(cls), explain(cls))
                draft.declare(shape, declared)
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
        """Return a codec that stores objects of one class by two functions.

        Args:
            cls: the class.
            encode: turns an object into a storable value.
            decode: turns that value into an object of exactly this class. Any exception that it raises means that the
                class has changed since.
            tag: the name to store; see `with_types`.
            aliases: further names under which to read it.

        Returns:
            The new codec.

        Raises:
            TypeRegistrationError: another type has the tag, or the type needs no registration.
        """
        if self._needs_nothing(cls):
            raise TypeRegistrationError(full_name(cls), "it is stored without registration")
        draft = _Draft(self._kinds, self._tags)
        known = draft.kinds.get(cls)
        shape = CustomShape(cls, encode, decode)
        tag = tag or (known.tag if known else default_tag(cls))
        draft.add(shape, dict.fromkeys((tag, *aliases), Registered(tag, shape)), tag)
        return self._next(draft)

    def with_annotations(self, *hints: object) -> Codec:
        """Return a codec that knows all types that these annotations name, at any depth, and that can be registered.

        Everything else in them is ignored: types that need no registration, names that do not resolve, and classes of
        no known kind, whose objects are refused when they are written. Types that are registered already remain
        unchanged.

        Args:
            hints: the annotations.

        Returns:
            The new codec; the same one if there is nothing new.

        Raises:
            TypeRegistrationError: two different types would get the same tag.
        """
        return self._with_hints(_Draft(self._kinds, self._tags), hints)

    def _with_hints(self, draft: _Draft, hints: Iterable[object]) -> Codec:
        for cls in classes(hints):
            if cls in draft.kinds or self._needs_nothing(cls):
                continue
            shape = shape_of(cls, explicitly=DECLARED in vars(cls))
            if shape is not None:
                draft.declare(shape, UNDECLARED)
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
        """Return True if objects of exactly this type can be stored, provided that their parts can.

        Args:
            cls: the type.
        """
        return cls in _QUICK or cls in self._kinds

    def encode(self, value: object, *, channel: str) -> bytes:
        """Encode a value. Values with equal types, parts and order of dict keys give equal bytes.

        Args:
            value: the value.
            channel: the value's channel, for errors.

        Returns:
            The bytes.

        Raises:
            UnstorableValueError: the value, or a part of it, cannot be stored.
        """
        kind = type(value)
        if kind in SCALARS or kind is dict or kind is list:
            try:
                if kind in SCALARS or all_plain(value):
                    return pack(value)
            except (OverflowError, ValueError, RecursionError):
                pass  # too large for MessagePack: `_packed` handles it, and raises what is to be raised
        return _packed(value, _is_not_plain, self._quick, self._careful, channel)

    def encode_held(self, value: object, *, channel: str) -> bytes:
        """Encode a value that a node may hold, as `encode` does otherwise.

        A node gets the runtime's own container objects in the place of plain lists and dicts. The runtime replaces them
        before it encodes a node's results; a value that a node passes on directly, to a store for example, may still
        contain them, at any depth. They are encoded as the plain container that copying them gives.

        Args:
            value: the value.
            channel: the value's channel, for errors.

        Returns:
            The bytes.

        Raises:
            UnstorableValueError: the value, or a part of it, cannot be stored.
        """
        return _packed(value, is_plain, self._held, self._careful_held, channel)

    def canonical(self, value: object, *, channel: str) -> bytes:
        """Return bytes that identify a value: equal exactly for equal values of equal types, in every process.

        The order of dict keys, of sets and of an object's attributes does not count; `canonical.py` defines what else
        is equal. The bytes cannot be decoded, and are not part of the stored format: another version of this package
        may produce others.

        Args:
            value: the value.
            channel: the value's channel, for errors.

        Raises:
            UnstorableValueError: the value, or a part of it, cannot be stored.
        """
        return _packed(value, is_canonical, self._canonical, self._careful_canonical, channel)

    def digestible(self, value: object, *, channel: str) -> bytes:
        """Return bytes as `canonical` does, of values of any kind: an unstorable part counts by the name of its type.

        Storable values give the bytes that `canonical` gives.

        Args:
            value: the value.
            channel: the value's channel, for errors.
        """
        if self._digest is None:
            writers = {cls: kind.write for cls, kind in self._kinds.items()}
            self._digest = (
                DigestWriter(_CANONICAL | writers, canonical.SAFE, default_tag),
                DigestWriter(_CAREFUL_CANONICAL | writers, canonical.SAFE - scalars.CAREFUL.keys(), default_tag),
            )
        return _packed(value, is_canonical, *self._digest, channel)

    def decode(self, data: bytes | memoryview, *, channel: str) -> object:
        """Decode bytes that `encode` returned.

        Args:
            data: the bytes.
            channel: the value's channel, for errors.

        Returns:
            The value.

        Raises:
            CorruptCheckpointError: the bytes are damaged.
            StoredTypeChangedError: a stored object does not fit its class as it is now. An `UpcastError` if an
                upcaster failed, a `TypeVersionError` if code with a later version stored the object.
            UnknownTypeError: a stored object's type is not registered (a CorruptCheckpointError).
        """
        return self._decoded(self._loader, data, channel)

    def decode_stored(self, data: bytes | memoryview, *, channel: str) -> object:
        """Decode bytes for display: an object that its class cannot restore is read as a `StoredObject`.

        Its type is not registered, or the class does not accept what is stored. Do not run a graph with the result.

        Args:
            data: the bytes.
            channel: the value's channel, for errors.

        Returns:
            The value.

        Raises:
            CorruptCheckpointError: the bytes are damaged.
        """
        tags: dict[str, ObjectReader] = {**RUNTIME_READERS, **self._tags}
        return self._decoded(Loader(_READERS, TolerantTags(tags)), data, channel)

    def decode_plain(self, data: bytes | memoryview, *, channel: str) -> object:
        """Decode bytes without classes: every object of a registered type is read as a `StoredObject`, as it is stored.

        No code of a class runs, and the codec's registrations make no difference. Types that need no registration
        are decoded as usual.

        Args:
            data: the bytes.
            channel: the value's channel, for errors.

        Returns:
            The value.

        Raises:
            CorruptCheckpointError: the bytes are damaged.
        """
        return self._decoded(_PLAIN_LOADER, data, channel)

    def runtime_object(self, tag: str, fields: dict[str, object]) -> object:
        """Return an object of a class of the runtime, or a `StoredObject` if the codec does not have the class.

        Args:
            tag: the tag of the class, such as `"pregel_async.Interrupt"`.
            fields: the object's fields.
        """
        return self._tags.get(tag, RUNTIME_READERS[tag]).make(fields, None)

    def _decoded(self, loader: Loader, data: bytes | memoryview, channel: str) -> object:
        try:
            if len(data) > FEW:
                check_maps(data if isinstance(data, bytes) else bytes(data))
            return loader.any(data)
        except Changed as changed:
            why = changed.__cause__
            cause = why.__cause__ if isinstance(why, FailedUpcast) else why
            raise _changed_error(f"channel {channel!r}", changed) from cause
        except UnknownTag as unknown:
            raise self._unknown(f"channel {channel!r}", unknown.tag) from None
        except MemoryError:
            raise  # says nothing about the bytes: each type takes memory in proportion to its bytes only
        except RecursionError as error:
            reason = "it is nested deeper than what is written (or read with next to nothing of Python's stack left)"
            raise CorruptCheckpointError(f"channel {channel!r}", reason) from error
        except Exception as error:
            # Damaged bytes make a type's constructor raise any kind of exception.
            reason = f"its bytes make no value ({type(error).__name__}: {error})"
            raise CorruptCheckpointError(f"channel {channel!r}", reason) from error

    def _unknown(self, where: str, name: str) -> UnknownTypeError | TypeVersionError:
        """Return the error for a stored name that is not registered: of a later version of a class, or of no class."""
        found = version_in(name)
        known = self._tags.get(name.rpartition("@")[0]) if found else None
        if known is None:
            return UnknownTypeError(where, name)
        return TypeVersionError(where, known.tag, full_name(known.shape.cls), found, known.declared.version or 1)

    def __repr__(self) -> str:
        return f"<Codec with {', '.join(self._tags) or 'no registered types'}>"


DEFAULT_CODEC: Final = Codec()
"""The codec of savers and stores that get none. One object for all, so that graphs extend it once, and not each time
that they are compiled with a new saver."""


def _changed_error(where: str, changed: Changed) -> StoredTypeChangedError:
    tag, version, newest, name = changed.tag, changed.version, changed.newest, changed.type_name
    why = changed.__cause__
    if isinstance(why, FailedUpcast):
        return UpcastError(where, tag, name, version, why.version, why.__cause__)
    if version < newest:
        own = f"return from upcast[{newest - 1}] what the class accepts"
    else:
        given = f"{version}: ..." if version == 1 else f"..., {version}: ..."
        short = name.rpartition(".")[2]
        own = f"Codec().with_types({short}, tag={tag!r}, version={version + 1}, upcast={{{given}}})"
    if isinstance(why, Misfit):
        return StoredTypeChangedError(where, tag, name, why.name, why.reason, f"{why.advice}, or {own}.", version)
    reason = f"does not fit {name} ({type(why).__name__}: {why})"
    return StoredTypeChangedError(where, tag, name, None, reason, f"convert it: {own}.", version)


def _packed(
    value: object, is_ready: Callable[[object], bool], quick: ValueWriter, careful: ValueWriter, channel: str
) -> bytes:
    try:
        try:
            return pack(value if is_ready(value) else quick.prepare(value, set()))
        except (OverflowError, ValueError):
            # An int, str or bytes is too large for MessagePack. That is rare: only then a second pass looks for it, so
            # that all other values take one pass.
            return pack(careful.prepare(value, set()))
    except Refused as refused:
        raise UnstorableValueError(channel, refused.path, refused.reason) from refused.__cause__
    except RecursionError as error:
        raise UnstorableValueError(channel, "", "too little of Python's stack is left to look into it") from error
    except Exception as error:  # from a user's encode function, or a property
        annotate(error, f"While storing a value of channel {channel!r}.")
        raise


def _is_not_plain(value: object) -> bool:
    """Return False, for a value that was examined already."""
    return False


class _Draft:
    """The registrations of the next codec."""

    def __init__(self, kinds: dict[type, Registered], tags: dict[str, Registered]) -> None:
        self.kinds = kinds.copy()
        self.tags = tags.copy()
        self.changed = False

    def declare(self, shape: Shape, declared: Declaration) -> None:
        """Register a class, as this call, earlier calls and the class itself declare."""
        known = self.kinds.get(shape.cls)
        declared = declared.over(known.declared if known else vars(shape.cls).get(DECLARED, UNDECLARED))
        tag = declared.tag or (known.tag if known else default_tag(shape.cls))
        names = [tag, *declared.aliases]
        if not declared.changes_stored:
            self.add(shape, dict.fromkeys(names, Registered(tag, shape, declared=declared)), tag)
            return
        from .versions import readers_of  # imported here: most classes never change

        names += [name for name, kind in self.tags.items() if kind.shape is shape and kind.version == 1]
        self.add(shape, readers_of(shape, tag, names, declared), stored_name(tag, declared.version or 1))

    def add(self, shape: Shape, readers: Mapping[str, Registered], written: str) -> None:
        """Register a class under the names of its readers. Objects are written under one of them."""
        for name, kind in readers.items():
            other = self.tags.get(name)
            if other is not None and other.shape.cls is not shape.cls:
                raise TypeRegistrationError(
                    full_name(shape.cls),
                    f"the tag {name!r} is the tag of another class already, {full_name(other.shape.cls)}. "
                    "Give one of them a tag of its own: Codec().with_types(TheClass, tag=...)",
                )
            self.tags[name] = kind
        self.kinds[shape.cls] = readers[written]
        self.changed = True


def default_tag(cls: type) -> str:
    """Return `module.qualname` of a class. A script's classes get the tag that they would have if it were imported.

    Args:
        cls: the class.
    """
    module = cls.__module__
    if module in ("__main__", "__mp_main__"):  # the second is the first, in a process that multiprocessing has started
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        file: str | None = getattr(main, "__file__", None)
        module = spec.name if spec else PurePath(file).stem if file and file[0] != "<" else module
    return f"{module}.{cls.__qualname__}"
