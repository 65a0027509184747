"""Namespaces and keys: which there are, their bytes in a database, and patterns of them.

A namespace's bytes are its labels in UTF-8, each with a zero after it. No label has a zero in it, so all namespaces
inside one begin with its bytes, and lie in one range; and they sort as tuples of texts do, label by label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from ..errors import InvalidKeyError, InvalidNamespaceError
from .ops import MatchCondition, Namespace

LONGEST: Final = 2048
"""Bytes that namespace and key may have together. The index of a database has to take them in."""

ANY: Final = "*"
"""The label of a pattern that stands for any label."""

_RESERVED: Final = "langgraph"

_END: Final = b"\xff"
"""What nothing in UTF-8 begins with, and all of it stands before."""


def checked_address(namespace: object, key: object) -> tuple[bytes, bytes]:
    """The bytes of an item's namespace and key.

    Raises:
        InvalidNamespaceError, InvalidKeyError
        TypeError: the key is no text.
    """
    labels = checked_labels(namespace)
    if not labels:
        raise InvalidNamespaceError(namespace, "it has no label; an item's has one at least")
    if labels[0] == _RESERVED:
        raise InvalidNamespaceError(namespace, f"its first label is {_RESERVED!r}, which is reserved")
    if not isinstance(key, str):
        raise TypeError(f"an item's key is a text, not {key!r}")
    if "\0" in key:
        raise InvalidKeyError(key, "it has a NUL in it")
    space = pack(labels)
    try:
        name = key.encode()
    except UnicodeEncodeError:
        raise InvalidKeyError(key, "it has half of a surrogate pair in it, which is no character") from None
    if len(space) + len(name) > LONGEST:
        raise InvalidKeyError(key, f"with its namespace it takes {len(space) + len(name)} bytes; {LONGEST} are allowed")
    return space, name


def checked_labels(namespace: object) -> Namespace:
    """The labels of what may be a namespace, a part of one, or a pattern; there may be none.

    Raises:
        InvalidNamespaceError
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
    return cast("Namespace", namespace)


def pack(namespace: Namespace) -> bytes:
    """The bytes of a namespace."""
    return b"".join(label.encode() + b"\0" for label in namespace)


def unpack(data: bytes) -> Namespace:
    """The namespace of bytes. Raises ValueError where they are no namespace's."""
    *labels, rest = data.split(b"\0")
    if rest or not labels or b"" in labels:
        raise ValueError("they do not end as those of a namespace do, or have an empty label")
    return tuple(label.decode() for label in labels)


def span(prefix: Namespace) -> tuple[bytes, bytes]:
    """The range of a namespace and of all inside it: from the first on, and before the second."""
    start = pack(prefix)
    return start, start + _END


def pattern(
    conditions: Sequence[MatchCondition], max_depth: int | None
) -> tuple[bytes, bytes, Callable[[bytes], bytes | None]]:
    """The range in which all matches lie, and what tells of a namespace there what to show of it, or None.

    Args:
        conditions: all of which are to match.
        max_depth: show so many labels at most.
    """
    paths = [(one.match_type, [label.encode() for label in checked_labels(one.path)]) for one in conditions]
    for kind, _ in paths:
        if kind not in ("prefix", "suffix"):
            raise ValueError(f"a condition's match_type is 'prefix' or 'suffix', not {kind!r}")
    heads = [path for kind, path in paths if kind == "prefix"]
    tails = [path for kind, path in paths if kind == "suffix"]
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
    return path[: path.index(ANY.encode())] if ANY.encode() in path else path


def _like(labels: list[bytes], path: list[bytes]) -> bool:
    return all(wanted in (label, b"*") for label, wanted in zip(labels, path, strict=False))


def _joined(labels: list[bytes]) -> bytes:
    return b"".join(label + b"\0" for label in labels)
