"""The call of a graph as a run stores it: input, config, context and options, as one frame."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, cast

import msgspec

from checkpoint_savers.codec import Codec
from checkpoint_savers.codec.frame import seal, unseal
from checkpoint_savers.errors import CorruptCheckpointError

from .._api.compiled import Graph
from ..errors import ConfigError
from ..types import Durability, RunnableConfig, StreamMode

_UNSTORABLE = frozenset(("callbacks",))
"""Keys of a config that have objects of the calling process."""


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker passes to a graph.

    Attributes:
        input: the input, or a `Command`.
        config: the config, without the thread and the run's id.
        context: the context; None for none.
        interrupt_before, interrupt_after: names of nodes; None for those of `compile`.
        durability: when supersteps are stored; None for the default.
        stream_mode: the stream modes whose parts are stored; empty for none.
        subgraphs: parts of subgraphs are stored, too.
    """

    input: Any = None
    config: RunnableConfig = {}
    context: Any = None
    interrupt_before: tuple[str, ...] | None = None
    interrupt_after: tuple[str, ...] | None = None
    durability: Durability | None = None
    stream_mode: tuple[StreamMode, ...] = ()
    subgraphs: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options for `astream`, without the context."""
        return {
            "interrupt_before": self.interrupt_before,
            "interrupt_after": self.interrupt_after,
            "durability": self.durability,
            "stream_mode": self.stream_mode or "values",
            "subgraphs": self.subgraphs,
            "keep_events": bool(self.stream_mode),
            "version": "v2",
        }


def codec_of(graph: Graph[Any, Any]) -> Codec:
    """Return the codec that stores the calls of a graph: with the types of its state, and of its context.

    Args:
        graph: the graph, with a checkpointer.
    """
    schema = graph._definition.context_schema
    codec = graph.events_codec()
    return codec if schema is None else codec.with_annotations(schema)


def storable_config(config: Mapping[str, Any]) -> RunnableConfig:
    """Return a config as a run can store it.

    Args:
        config: the config.

    Raises:
        ConfigError: it has callbacks, which are objects of this process.
    """
    for key in _UNSTORABLE:
        if config.get(key):
            raise ConfigError(
                f"a config's {key!r} belong to this process, and a worker may be elsewhere: leave them out"
            )
    return cast("RunnableConfig", dict(config))


def write_call(call: StoredCall, codec: Codec) -> bytes:
    """Encode a call.

    Args:
        call: the call.
        codec: of its graph; see `codec_of`.

    Returns:
        A frame.

    Raises:
        UnstorableValueError: a value cannot be stored; it names the field.
    """
    fields = {name: codec.encode(value, channel=name) for name, value in _fields(call).items()}
    return seal(msgspec.msgpack.encode(fields))


def digest_of(options: Mapping[str, Any], call: StoredCall, codec: Codec) -> bytes:
    """Return a digest of a request: equal for equal requests in all processes.

    Args:
        options: what was asked for besides the call: the graph, the thread, and the options of the run.
        call: the call.
        codec: of its graph.
    """
    digest = blake2b(digest_size=16)
    for name, value in {**_fields(call), "options": options}.items():
        digest.update(msgspec.msgpack.encode([name, codec.digestible(value, channel=name)]))
    return digest.digest()


def read_call(frame: bytes, codec: Codec, where: str) -> StoredCall:
    """Decode a call.

    Args:
        frame: the frame.
        codec: of its graph.
        where: what is read, for the error.

    Raises:
        CorruptCheckpointError: the frame is damaged, or has options of a later version.
        StoredTypeChangedError: a stored object does not fit its class as it is now.
    """
    fields = msgspec.msgpack.decode(unseal(frame, where), type=dict[str, bytes])
    later = sorted(fields.keys() - set(StoredCall.__struct_fields__))
    if later:
        raise CorruptCheckpointError(where, f"a later version accepted it, with {', '.join(later)}", "Run that version")
    return StoredCall(**{name: cast("Any", codec.decode(data, channel=name)) for name, data in fields.items()})


def _fields(call: StoredCall) -> dict[str, Any]:
    """Return the fields that differ from their defaults, so that a field that is added later changes no digest."""
    defaults = StoredCall()
    named = {name: getattr(call, name) for name in call.__struct_fields__}
    return {name: value for name, value in named.items() if value is not getattr(defaults, name) and value != ()}
