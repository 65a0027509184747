"""Untracked keys in the arguments of sends: what is stored in their place, and how it is filled again.

The value of an untracked key is never stored (a connection, a secret), and a send may carry it to the node:
`Send("work", {**state, "item": item})`. A mark is stored instead of the value. A run that is resumed in another process
finds the mark, and takes the value that its own state has for the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from checkpoint_savers.sharing import parts_of, with_parts

from ..types import Send


class NotStored(msgspec.Struct, frozen=True):
    """Stands for the value of an untracked key in what is stored of a send.

    Attributes:
        key: the key.
    """

    key: str


def storable(send: Send, untracked: frozenset[str]) -> Send:
    """Return what is stored of a send: a mark for each value of an untracked key in its argument.

    Args:
        untracked: the graph's untracked keys.
    """
    found = {name: NotStored(name) for name, value in parts_of(send.arg) if name in untracked and value is not None}
    return msgspec.structs.replace(send, arg=with_parts(send.arg, found)) if found else send


def missing(arg: Any) -> list[str]:
    """Return the keys of a send's argument whose values were not stored, sorted."""
    return sorted(name for name, value in parts_of(arg) if type(value) is NotStored)


def filled(arg: Any, values: Mapping[str, Any]) -> Any:
    """Return a send's argument with the marks replaced, each by the value of its name."""
    return with_parts(arg, values)
