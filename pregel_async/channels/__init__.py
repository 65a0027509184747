"""Channels: named values, and how the writes of one superstep are folded into each."""

from __future__ import annotations

from .abc import MISSING, BaseChannel, Missing
from .any_value import AnyValue
from .barrier import NamedBarrierValue, NamedBarrierValueAfterFinish
from .delta import DeltaChannel
from .ephemeral import EphemeralValue
from .last_value import LastValue, LastValueAfterFinish
from .reduced import BinaryOperatorAggregate
from .topic import Topic
from .untracked import UntrackedValue

__all__ = [
    "MISSING",
    "AnyValue",
    "BaseChannel",
    "BinaryOperatorAggregate",
    "DeltaChannel",
    "EphemeralValue",
    "LastValue",
    "LastValueAfterFinish",
    "Missing",
    "NamedBarrierValue",
    "NamedBarrierValueAfterFinish",
    "Topic",
    "UntrackedValue",
]
