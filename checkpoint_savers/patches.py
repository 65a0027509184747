"""Incremental values: an encoded list or dict in parts, so that what it shares with an earlier value is stored once.

    value = as_incremental(data)        an encoded list or dict that is large enough; else the bytes
    patch = diff(now, before)           turns `before` into `now`; None if it would save less than a quarter
    now == apply_patch(before, patch)   lazy: the bytes are joined when they are requested

Values are compared by their bytes, part by part: no reducer is called. A list's parts are its elements, a dict's are
its entries; entries that are lists or dicts themselves are compared in the same way. Tuples, sets and objects are
stored as a whole.

A thread of n appended messages has a chain of n patches, so nothing here recurses along a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard, cast, final

import msgspec

from .codec import Codec
from .codec.collisions import is_plain_key
from .codec.containers import array_header
from .errors import CorruptCheckpointError

MIN_INCREMENTAL: Final = 256
"""Bytes from which a list or dict becomes incremental."""

DEPTH: Final = 8
"""Number of levels of nested dicts that are compared by entry."""

ANCHOR: Final = 8
"""Number of patches between two decoded values that are retained. Decoding a neighbour starts from the nearest one."""

SPAN: Final = 8
"""Approximate size of a reference to a span, in bytes. A span that is not larger is copied instead."""


class ListPatch(msgspec.Struct, array_like=True, tag="l", frozen=True):
    """Turns one list into another.

    Attributes:
        pieces: from the first element to the last: (start, stop) means these elements of the earlier list, bytes
            for the elements of an encoded list.
    """

    pieces: tuple[tuple[int, int] | bytes, ...]


class DictPatch(msgspec.Struct, array_like=True, tag="d", frozen=True):
    """Turns one dict into another: entries are removed, then some are patched in place, then others are set.

    Attributes:
        gone: an encoded list of removed keys.
        grown: encoded key and patch, of entries that are lists or dicts.
        put: an encoded list: key, value, key, value. New keys are appended.
    """

    gone: bytes
    grown: tuple[tuple[bytes, ListPatch | DictPatch], ...]
    put: bytes


Patch: TypeAlias = ListPatch | DictPatch

_EMPTY: Final = array_header(0)
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


_NOTHING: Final[tuple[Any, Any]] = (None, None)


@final
class IncrementalValue:
    """An encoded list or dict: as bytes, in parts, or as a patch of another value. Immutable, apart from caches.

    Attributes:
        is_list: True for a list, False for a dict.
    """

    __slots__ = ("_before", "_data", "_decoded_patch", "_decoded_value", "_parts", "_patch", "_size", "is_list")

    def __init__(
        self, is_list: bool, data: bytes | None, before: IncrementalValue | None = None, patch: Patch | None = None
    ) -> None:
        self.is_list = is_list
        self._data = data
        self._before = before
        self._patch = patch
        self._parts: list[bytes] | dict[bytes, bytes] | None = None
        self._size = -1 if data is None else len(data)
        self._decoded_patch = self._decoded_value = _NOTHING  # (codec, decoded patch); (codec, decoded value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IncrementalValue):
            return self is other or self.data == other.data
        return self.data == other if isinstance(other, bytes) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equality reads the bytes, which may be large

    @property
    def size(self) -> int:
        """Size of the value's bytes, without the exact size of its header."""
        if self._size < 0:
            # A list that was only appended to is by far the most frequent: adding up its patches needs no join.
            more, at = 0, self
            while at._size < 0 and at._before is not None and _appends(at._patch):
                more += len(cast("bytes", at._patch.pieces[1]))
                at = at._before
            if at._size < 0:
                parts = at.parts
                at._size = 5 + sum(map(len, parts if isinstance(parts, list) else (*parts, *parts.values())))
            self._size = at._size + more
        return self._size

    @property
    def data(self) -> bytes:
        """The bytes of the value, as `Codec.encode` returns them."""
        if self._data is not None:
            return self._data
        parts = self.parts
        return join_list(parts) if isinstance(parts, list) else join_map(parts)

    @property
    def parts(self) -> list[bytes] | dict[bytes, bytes]:
        """The elements, or values by key; encoded, in order. Do not change them."""
        if self._parts is None:
            patches, start = self._path()
            parts = start._parts
            if parts is None:
                assert start._data is not None
                parts = split(start._data) if start.is_list else split_map(start._data)
                if start is not self:
                    start._parts = parts
            for each in reversed(patches):
                assert each._patch is not None
                parts = apply_encoded(each._patch, parts)
            self._parts = parts
            # Release the earlier value: a long thread would otherwise keep each of its versions in memory.
            self._before = self._patch = None
            self._decoded_patch = _NOTHING
        return self._parts

    def _path(self) -> tuple[list[IncrementalValue], IncrementalValue]:
        """Return the patches to apply, the last first, and the value that they start from."""
        patches: list[IncrementalValue] = []
        at = self
        while at._parts is None and at._before is not None:
            patches.append(at)
            at = at._before
        return patches, at

    def decode(self, codec: Codec, *, channel: str) -> Any:
        """Return the decoded value. It shares objects with other decoded values: do not change it in place.

        Args:
            codec: decodes the parts.
            channel: the value's channel, for errors.

        Raises:
            CorruptCheckpointError: a part is damaged, or does not fit the value that it extends.
            UnknownTypeError: a part's type is not registered.
        """
        patches: list[IncrementalValue] = []
        at = self
        while at._before is not None and at._decoded_value[0] is not codec:
            patches.append(at)
            at = at._before
        if at._decoded_value[0] is not codec:
            value: Any = codec.decode(at.data, channel=channel)
            at._decoded_value = codec, value
        made = at._decoded_value[1].copy()
        left = len(patches)
        while left:
            left -= 1
            each = patches[left]
            if each._decoded_patch[0] is not codec:
                assert each._patch is not None
                each._decoded_patch = codec, _decode_patch(each._patch, codec, channel)
            try:
                made = _apply_decoded(each._decoded_patch[1], made)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise CorruptCheckpointError(f"channel {channel!r}", "a part does not fit what it extends") from error
            # States of a listing are decoded newest first, and each would decode the chain again from its start.
            # Anchors bound this to ANCHOR patches; retaining every version would take quadratic memory.
            if left and not left % ANCHOR:
                each._decoded_value = codec, made.copy()
        return made


EncodedValue: TypeAlias = bytes | IncrementalValue
"""An encoded value."""


def as_incremental(data: bytes) -> EncodedValue:
    """Return an encoded value as an incremental one, if it is a list or dict and large enough; else the bytes.

    Args:
        data: the encoded value.
    """
    if len(data) < MIN_INCREMENTAL:
        return data
    first = data[0]
    if 0x90 <= first <= 0x9F or first in (0xDC, 0xDD):
        return IncrementalValue(True, data)
    if is_map(data):
        return IncrementalValue(False, data)
    return data


def apply_patch(before: EncodedValue | None, patch: Patch) -> IncrementalValue:
    """Return the value that a patch makes of an earlier one. Nothing is joined before it is requested.

    Args:
        before: the earlier value.
        patch: the patch.

    Raises:
        ValueError: the value is missing, or the patch is for the other kind (list or dict).
    """
    is_list = isinstance(patch, ListPatch)
    if not isinstance(before, IncrementalValue) or before.is_list is not is_list:
        raise ValueError("a patch extends what is not there")
    return IncrementalValue(is_list, None, before, patch)


def extended(before: IncrementalValue, length: int, more: bytes) -> IncrementalValue:
    """Return a list with further elements appended.

    Args:
        before: the list.
        length: its number of elements.
        more: an encoded list of the further elements.
    """
    value = IncrementalValue(True, None, before, ListPatch(((0, length), more)))
    if before._size >= 0:
        value._size = before._size + len(more)  # as `size` would find by walking back
    return value


def data_of(value: EncodedValue) -> bytes:
    """Return the bytes of a value.

    Args:
        value: the encoded value.
    """
    return value if isinstance(value, bytes) else value.data


def size_of(value: EncodedValue) -> int:
    """Return the size of a value, in bytes.

    Args:
        value: the encoded value.
    """
    if isinstance(value, bytes):
        return len(value)
    return value._size if value._size >= 0 else value.size


def decode(value: EncodedValue, codec: Codec, *, channel: str) -> Any:
    """Return the decoded value. A list or dict may share objects with others; see `IncrementalValue.decode`.

    Args:
        value: the encoded value.
        codec: decodes it.
        channel: the value's channel, for errors.

    Raises:
        CorruptCheckpointError: the bytes are damaged.
        UnknownTypeError: a type is not registered.
    """
    return codec.decode(value, channel=channel) if isinstance(value, bytes) else value.decode(codec, channel=channel)


def diff(now: EncodedValue, before: EncodedValue | None, depth: int = DEPTH) -> Patch | None:
    """Return the patch that turns `before` into `now`; None if it would save less than about a quarter of `now`.

    Args:
        now: the later value.
        before: the earlier value; None if the channel was empty.
        depth: number of levels of nested dicts to compare by entry.
    """
    if (
        not isinstance(now, IncrementalValue)
        or not isinstance(before, IncrementalValue)
        or now.is_list is not before.is_list
    ):
        return None
    patch = now._patch if now._before is before else None
    if patch is None:
        one, other = now.parts, before.parts
        if isinstance(one, list):
            patch = _diff_lists(one, cast("list[bytes]", other))
        else:
            patch = _diff_dicts(one, cast("dict[bytes, bytes]", other), depth)
    return patch if size_of_patch(patch) <= size_of(now) * 3 // 4 else None


def _diff_lists(now: list[bytes], before: list[bytes]) -> ListPatch:
    same = len(before)
    if now[:same] != before:  # one comparison in C; a list that only grew needs nothing else
        same = next((at for at, (one, other) in enumerate(zip(now, before, strict=False)) if one != other), len(now))
        same = min(same, len(now), len(before))
    pieces: list[tuple[int, int] | list[bytes]] = [(0, same)] if same else []
    # First position of each remaining element: a window that drops its oldest messages, or a summary in the place of
    # some, still shares long spans. Looking for the longest common subsequence would take quadratic time.
    positions: dict[bytes, int] = {}
    for at in range(len(before) - 1, same - 1, -1):
        positions[before[at]] = at
    span: tuple[int, int] | None = None
    for part in now[same:]:
        if span is not None and span[1] < len(before) and before[span[1]] == part:
            span = span[0], span[1] + 1
            continue
        if span is not None:
            _put_span(pieces, span, before)
            span = None
        found = positions.get(part)
        if found is not None:
            span = found, found + 1
        else:
            _put(pieces, [part])
    if span is not None:
        _put_span(pieces, span, before)
    return ListPatch(tuple([each if isinstance(each, tuple) else join_list(each) for each in pieces]))


def _put(pieces: list[tuple[int, int] | list[bytes]], parts: list[bytes]) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, list):
        last += parts
    else:
        pieces.append(parts)


def _put_span(pieces: list[tuple[int, int] | list[bytes]], span: tuple[int, int], before: list[bytes]) -> None:
    parts = before[span[0] : span[1]]
    if sum(map(len, parts)) > SPAN:
        pieces.append(span)
    else:
        _put(pieces, parts)


def _diff_dicts(now: dict[bytes, bytes], before: dict[bytes, bytes], depth: int) -> DictPatch:
    expected = iter([key for key in before if key in now])
    stays: set[bytes] = set()
    for key in now:
        if key not in before or next(expected, None) != key:
            break  # all keys from the first new or moved one on are put again: dicts keep their order
        stays.add(key)
    gone = [key for key in before if key not in stays]
    grown: list[tuple[bytes, Patch]] = []
    put: list[bytes] = []
    for key, value in now.items():
        if key not in stays:
            put += (key, value)
        elif before[key] != value:
            inner = diff(as_incremental(value), as_incremental(before[key]), depth - 1) if depth else None
            if inner is None:
                put += (key, value)
            else:
                grown.append((key, inner))
    return DictPatch(join_list(gone), tuple(grown), join_list(put))


def size_of_patch(patch: Patch) -> int:
    """Return about how many bytes a patch takes.

    Args:
        patch: the patch.
    """
    if isinstance(patch, ListPatch):
        size = 0
        for piece in patch.pieces:
            size += len(piece) if isinstance(piece, bytes) else SPAN
        return size
    return len(patch.gone) + len(patch.put) + sum([len(key) + size_of_patch(inner) for key, inner in patch.grown])


def _appends(patch: Patch | None) -> TypeGuard[ListPatch]:
    """Return True if a patch retains the whole list and appends to it, as far as its form shows."""
    if type(patch) is not ListPatch or len(patch.pieces) != 2:
        return False
    kept, new = patch.pieces
    return type(kept) is tuple and kept[0] == 0 and type(new) is bytes


def literal_of(patch: Patch) -> bytes | None:
    """Return the encoded list with which a patch ends, its new last elements; None if it ends otherwise.

    Args:
        patch: the patch.
    """
    last = patch.pieces[-1] if isinstance(patch, ListPatch) and patch.pieces else None
    return last if isinstance(last, bytes) else None


def apply_encoded(patch: Patch, parts: list[bytes] | dict[bytes, bytes]) -> list[bytes] | dict[bytes, bytes]:
    """Return the parts that a patch makes of others.

    Args:
        patch: the patch.
        parts: the elements of a list, or values by key, encoded.

    Raises:
        CorruptCheckpointError: the patch does not fit the parts.
    """
    try:
        if isinstance(patch, ListPatch):
            return _apply_list(patch, cast("list[bytes]", parts))
        made = dict(cast("dict[bytes, bytes]", parts))
        for key in split(patch.gone):
            del made[key]
        for key, inner in patch.grown:
            is_list = isinstance(inner, ListPatch)
            old = split(made[key]) if is_list else split_map(made[key])
            new = apply_encoded(inner, old)
            made[key] = join_list(new) if isinstance(new, list) else join_map(new)
        flat = split(patch.put)
        made.update(zip(flat[::2], flat[1::2], strict=True))
        return made
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptCheckpointError("a value in parts", f"a part does not fit what it extends ({error})") from error


def _apply_list(patch: ListPatch, parts: list[bytes]) -> list[bytes]:
    made: list[bytes] = []
    for piece in patch.pieces:
        if isinstance(piece, bytes):
            made += split(piece)
        else:
            made += _span_of(parts, piece)
    return made


def _span_of(elements: list[Any], span: tuple[int, int]) -> list[Any]:
    start, stop = span
    if not 0 <= start <= stop <= len(elements):
        raise IndexError(f"elements {start} to {stop} of {len(elements)}")
    return elements[start:stop]


def _decode_patch(patch: Patch, codec: Codec, channel: str) -> Any:
    """Return a patch with decoded values in the place of bytes."""
    if isinstance(patch, ListPatch):
        return [_decode_list(piece, codec, channel) if type(piece) is bytes else piece for piece in patch.pieces]
    flat = _decode_list(patch.put, codec, channel)
    if len(flat) % 2:
        raise CorruptCheckpointError(f"channel {channel!r}", "a part has a key and no value")
    grown = [(codec.decode(key, channel=channel), _decode_patch(inner, codec, channel)) for key, inner in patch.grown]
    if not all(map(is_plain_key, (*flat[::2], *(key for key, _ in grown)))):
        raise CorruptCheckpointError(f"channel {channel!r}", "a part has a key that is written in another way")
    return _decode_list(patch.gone, codec, channel), grown, list(zip(flat[::2], flat[1::2], strict=True))


def _decode_list(data: bytes, codec: Codec, channel: str) -> list[Any]:
    made = codec.decode(data, channel=channel)
    if type(made) is not list:
        raise CorruptCheckpointError(f"channel {channel!r}", "a part is no list")
    return made


def _apply_decoded(patch: Any, made: Any) -> Any:
    """Return a list or dict with a decoded patch applied. Changes it in place where possible."""
    if type(patch) is list:
        if len(patch) == 2 and patch[0] == (0, len(made)) and type(patch[1]) is list:
            made += patch[1]
            return made
        result: list[Any] = []
        for piece in patch:
            result += _span_of(made, piece) if type(piece) is tuple else piece
        return result
    gone, grown, put = patch
    for key in gone:
        del made[key]
    for key, inner in grown:
        made[key] = _apply_decoded(inner, made[key].copy())  # an earlier value holds the original
    made.update(put)
    return made


def split(data: bytes) -> list[bytes]:
    """Return the elements of an encoded list.

    Args:
        data: the encoded list.

    Raises:
        CorruptCheckpointError: the bytes are no list.
    """
    try:
        return [bytes(raw) for raw in _raws(data)]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CorruptCheckpointError("a value in parts", f"its bytes are no list ({error})") from error


def split_map(data: bytes) -> dict[bytes, bytes]:
    """Return the entries of an encoded dict.

    Args:
        data: the encoded dict.

    Raises:
        CorruptCheckpointError: the bytes are no dict.
    """
    first = data[0] if data else 0
    if 0x80 <= first <= 0x8F:
        count, start = first & 0x0F, 1
    elif first in (0xDE, 0xDF):
        start = 3 if first == 0xDE else 5
        count = int.from_bytes(data[1:start], "big")
    else:
        raise CorruptCheckpointError("a value in parts", "its bytes are no dict")
    flat = split(array_header(2 * count) + data[start:])
    return dict(zip(flat[::2], flat[1::2], strict=True))


def join_list(parts: Sequence[bytes]) -> bytes:
    """Return the encoded list of these elements.

    Args:
        parts: the encoded elements.
    """
    return b"".join((array_header(len(parts)), *parts)) if parts else _EMPTY  # `+` would copy them again


def join_map(parts: dict[bytes, bytes]) -> bytes:
    """Return the encoded dict of these entries.

    Args:
        parts: encoded values by encoded key.
    """
    return b"".join((map_header(len(parts)), *_flat(parts.items())))


def body(data: bytes) -> bytes:
    """Return an encoded list without its header.

    Args:
        data: the encoded list.
    """
    first = data[0]
    return data[1 if first <= 0x9F else 3 if first == 0xDC else 5 :]


def length_of(data: bytes) -> int:
    """Return the number of elements of an encoded list; 0 for any other value.

    Args:
        data: the encoded value.
    """
    first = data[0] if data else 0
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    return int.from_bytes(data[1 : 3 if first == 0xDC else 5], "big") if first in (0xDC, 0xDD) else 0


def is_map(data: bytes) -> bool:
    """Return True if the bytes are a dict with plain keys.

    Args:
        data: the encoded value.
    """
    first = data[0] if data else 0
    return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)


def map_header(length: int) -> bytes:
    """Return the header of an encoded dict.

    Args:
        length: its number of entries.
    """
    if length < 16:
        return bytes((0x80 | length,))
    if length < 2**16:
        return b"\xde" + length.to_bytes(2, "big")
    return b"\xdf" + length.to_bytes(4, "big")


def _flat(entries: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    return [each for entry in entries for each in entry]
