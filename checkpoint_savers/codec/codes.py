"""The MessagePack extension codes of all types that MessagePack does not have. Part of the stored format.

A code is assigned once: it is never changed, and never reused when a type is removed. Codes below zero belong to
MessagePack itself.
"""

from __future__ import annotations

from typing import Final

REGISTERED: Final = 0

# Of scalars.py: values that hold no others.
BIG_INT: Final = 1
SURROGATES: Final = 2
BYTEARRAY: Final = 3
COMPLEX: Final = 4
DECIMAL: Final = 5
FRACTION: Final = 6
RANGE: Final = 7
UUID: Final = 8
DATE: Final = 9
DATETIME: Final = 10
TIME: Final = 11
TIMEDELTA: Final = 12
TIMEZONE: Final = 13
ZONE: Final = 14
PATH: Final = 15
IP: Final = 16
UNSET: Final = 17

# Of containers.py.
TUPLE: Final = 32
SET: Final = 33
FROZENSET: Final = 34
DICT: Final = 35
DEQUE: Final = 36
ORDERED_DICT: Final = 37
COUNTER: Final = 38
SLICE: Final = 39
