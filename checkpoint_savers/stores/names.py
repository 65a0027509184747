"""Namespaces and keys: validation, their bytes in a database, and patterns.

A namespace's bytes are its labels in UTF-8, each followed by a zero byte. No label contains a zero, so all namespaces
inside one begin with its bytes and lie in one range, and bytes sort as tuples of texts do, label by label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from ..errors import InvalidKeyError, InvalidNamespaceError
from .ops import MatchCondition, StoreNamespace

LONGEST: Final = 2048
"""Bytes of namespace and key together, at most: database indexes limit the size of their entries."""

ANY: Final = "*"
"""The label of a pattern that matches any label."""

_RESERVED: Final = "langgraph"

_END: Final = b"\xff"
"""Greater than every byte with which UTF-8 text can begin."""


def checked_address(namespace: object, key: object) -> tuple[bytes, bytes]:
    """Return the bytes of an item's namespace and key.

    Args:
        namespace: what the user passed as namespace.
        key: what the user passed as key.

    Returns:
        The namespace's and the key's bytes.

    Raises:
        InvalidNamespaceError: it is not an item's namespace.
        InvalidKeyError: the key has a NUL or half of a surrogate pair, or is too long.
        TypeError: the key is not a str.
    """
    labels = checked_labels(namespace)
    if not labels:
        raise InvalidNamespaceError(namespace, "it has no label; an item's has one at least")
    # LangGraph reserves this label, too.
    if labels[0] == _RESERVED:
        raise InvalidNamespaceError(namespace, f"its first label is {_RESERVED!r}, which is reserved")
    if not isinstance(key, str):
        raise TypeError(f"an item's key is a text, not {key!r}")
    if "\0" in key:
        raise InvalidKeyError(key, "it has a NUL in it")
    # The limits hold for bytes, not characters: PostgreSQL's index entries are limited in bytes.
    space = pack(labels)
    try:
        name = key.encode()
    except UnicodeEncodeError:
        raise InvalidKeyError(key, "it has half of a surrogate pair in it, which is no character") from None
    if len(space) + len(name) > LONGEST:
        raise InvalidKeyError(key, f"with its namespace it takes {len(space) + len(name)} bytes; {LONGEST} are allowed")
    return space, name


def checked_labels(namespace: object) -> StoreNamespace:
    """Return the labels of a namespace, of a part of one, or of a pattern. There may be none.

    Args:
        namespace: what the user passed.

    Returns:
        The same tuple.

    Raises:
        InvalidNamespaceError: it is not a tuple of valid labels.
    """
    if not isinstance(namespace, tuple):
        raise InvalidNamespaceError(namespace, "a namespace is a tuple of texts, like ('memories', 'ann')")
    for label in cast("tuple[object, ...]", namespace):
        if not isinstance(label, str):
            raise InvalidNamespaceError(namespace, f"its label {label!r} is no text")
        if not label:
            raise InvalidNamespaceError(namespace, "it has an empty label")
        if "." in label:
            raise InvalidNamespaceError(namespace, f"its label {label!r} has a '.' in it")
        if "\0" in label:
            raise InvalidNamespaceError(namespace, f"its label {label!r} has a NUL in it")
        try:
            label.encode()
        except UnicodeEncodeError:
            raise InvalidNamespaceError(
                namespace, f"its label {label!r} has half of a surrogate pair in it, which is no character"
            ) from None
    return cast("StoreNamespace", namespace)


def pack(namespace: StoreNamespace) -> bytes:
    """Return the bytes of a namespace.

    Args:
        namespace: valid labels.

    Returns:
        The labels in UTF-8, each followed by a zero byte.
    """
    return b"".join(label.encode() + b"\0" for label in namespace)


def unpack(data: bytes) -> StoreNamespace:
    """Return the namespace of its bytes.

    Args:
        data: the bytes, as `pack` makes them.

    Returns:
        The labels.

    Raises:
        ValueError: they are not a namespace's bytes.
    """
    *labels, rest = data.split(b"\0")
    if rest or not labels or b"" in labels:
        raise ValueError("they do not end as those of a namespace do, or have an empty label")
    return tuple(label.decode() for label in labels)


def span(prefix: StoreNamespace) -> tuple[bytes, bytes]:
    """Return the range of a namespace and of all namespaces inside it.

    Args:
        prefix: the outer namespace.

    Returns:
        The start of the range (included) and its end (excluded), as bytes.
    """
    start = pack(prefix)
    return start, start + _END


def pattern(
    conditions: Sequence[MatchCondition], max_depth: int | None
) -> tuple[bytes, bytes, Callable[[bytes], bytes | None]]:
    """Compile the conditions of a listing of namespaces.

    Args:
        conditions: all of them have to match.
        max_depth: number of labels to list, at most; None for all.

    Returns:
        The start (included) and end (excluded) of a range that contains all matches, and a function that returns the
        bytes to list for a namespace in it, or None if the namespace does not match.

    Raises:
        InvalidNamespaceError: a path is not a tuple of valid labels.
        ValueError: a `match_type` is neither "prefix" nor "suffix".
    """
    paths = [(one.match_type, [label.encode() for label in checked_labels(one.path)]) for one in conditions]
    for kind, _ in paths:
        if kind not in ("prefix", "suffix"):
            raise ValueError(f"a condition's match_type is 'prefix' or 'suffix', not {kind!r}")
    heads = [path for kind, path in paths if kind == "prefix"]
    tails = [path for kind, path in paths if kind == "suffix"]
    # Only labels before the first "*" narrow the range of bytes that is read; the rest is compared in Python.
    fixed = max((_before_any(head) for head in heads), key=len, default=[])

    def shown(data: bytes) -> bytes | None:
        labels = data.split(b"\0")[:-1]
        if not all(len(head) <= len(labels) and _like(labels, head) for head in heads):
            return None
        if not all(len(tail) <= len(labels) and _like(labels[len(labels) - len(tail) :], tail) for tail in tails):
            return None
        return _joined(labels[:max_depth])

    start = _joined(fixed)
    return start, start + _END, shown


def _before_any(path: list[bytes]) -> list[bytes]:
    """Return the labels before the first "*"."""
    return path[: path.index(ANY.encode())] if ANY.encode() in path else path


def _like(labels: list[bytes], path: list[bytes]) -> bool:
    return all(wanted in (label, b"*") for label, wanted in zip(labels, path, strict=False))


def _joined(labels: list[bytes]) -> bytes:
    return b"".join(label + b"\0" for label in labels)
