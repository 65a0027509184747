"""The types that a graph stores besides those that its saver's codec knows: the runtime's, and those it names."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.codec import Codec
from checkpoint_savers.records import Shared

from .._core.untracked import NotStored
from .._runtime.observing.error_text import described
from ..errors import NodeError, RecordedFailureError
from ..policies import TimeoutPolicy
from ..types import Command, Interrupt, Overwrite, Send
from .plugins import plugin


def codec_of(saver: BaseCheckpointSaver | bool | None, hints: Sequence[Any]) -> Codec | None:
    """What a graph's values are stored with: its saver's codec, which knows its types besides; None without a saver."""
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    return with_runtime_types(saver.codec, hints)


def with_runtime_types(codec: Codec, hints: Sequence[Any]) -> Codec:
    """The codec, and the types of the runtime's own, and those that a graph's annotations name."""
    from checkpoint_savers.stores.ops import Item, SearchItem  # of long-term memory, which few programs use

    for kind in (Send, Command, Interrupt, Overwrite, TimeoutPolicy, NotStored):
        codec = codec.with_types(kind, tag=f"pregel_async.{kind.__name__}")
    for item in (Item, SearchItem, Shared):
        codec = codec.with_types(item, tag=f"checkpoint_savers.{item.__name__}")
    codec = codec.with_type(
        NodeError,
        encode=lambda failure: [failure.node, failure.task_id, _recorded(failure.error)],
        decode=lambda state: NodeError(*state),
        tag="pregel_async.NodeError",
    )
    codec = codec.with_type(
        RecordedFailureError,
        encode=lambda error: [error.type, error.message],
        decode=lambda state: RecordedFailureError(*state),
        tag="pregel_async.RecordedFailureError",
    )
    return with_hints(codec, hints)


def with_hints(codec: Codec, hints: Sequence[Any]) -> Codec:
    """The codec, and the types that annotations name; langchain's message classes, where they name one of them."""
    codec = codec.with_annotations(*hints)
    if "langchain_core.messages" in sys.modules:  # else no annotation names its classes
        langchain = plugin("message types")
        if langchain.names_messages(*hints):
            codec = langchain.with_messages(codec)
    return codec


def _recorded(error: Exception) -> RecordedFailureError:
    """What can be stored of an exception: a handler may write the failure that it got."""
    return error if isinstance(error, RecordedFailureError) else RecordedFailureError(*described(error))
