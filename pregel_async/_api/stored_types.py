"""Extend a saver's codec by the types that a graph stores: the runtime's own, and those of the graph's annotations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
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
    """Return the saver's codec, extended by the graph's types; None without a saver."""
    if not isinstance(saver, BaseCheckpointSaver):
        return None
    return with_runtime_types(saver.codec, hints)


def with_runtime_types(codec: Codec, hints: Sequence[Any]) -> Codec:
    """Extend a codec by the runtime's own types and by the types that a graph's annotations name."""
    return with_hints(_with_own_types(codec), hints)


# A program compiles many graphs with few codecs, which never change. Without this, it is most of the time of `compile`.
@lru_cache(maxsize=64)
def _with_own_types(codec: Codec) -> Codec:
    """Extend a codec by the runtime's own types."""
    from checkpoint_savers.stores.ops import Item, SearchItem  # imported here: few programs use long-term memory

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
    return codec.with_type(
        RecordedFailureError,
        encode=lambda error: [error.type, error.message],
        decode=lambda state: RecordedFailureError(*state),
        tag="pregel_async.RecordedFailureError",
    )


def with_hints(codec: Codec, hints: Sequence[Any]) -> Codec:
    """Extend a codec by the types that annotations name, and by all message classes of langchain if they name one."""
    codec = codec.with_annotations(*hints)
    # If langchain-core is not imported, no annotation can name its classes: do not load the plugin.
    if "langchain_core.messages" in sys.modules:
        langchain = plugin("message types")
        if langchain.names_messages(*hints):
            codec = langchain.with_messages(codec)
    return codec


def _recorded(error: Exception) -> RecordedFailureError:
    """Return the storable form of an exception, for handlers that write their `NodeError` to the state."""
    return error if isinstance(error, RecordedFailureError) else RecordedFailureError(*described(error))
