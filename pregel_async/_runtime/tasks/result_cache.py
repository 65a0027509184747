"""The cache of node results: a node with a cache policy reuses its result for an equal input.

The cache stores the node's own writes. Edges and routers are evaluated each time, because they read the state. If
several tasks need the same result at the same time, in any run of the process, one of them computes it. Failures,
results of error handlers and commands for outer graphs are not cached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from checkpoint_savers.codec import Codec
from checkpoint_savers.errors import CorruptCheckpointError, StoredTypeChangedError, UnstorableValueError, annotate

from ..._core.program import Node, Write
from ..._core.task import NEW, Failed, Finished, Settled, Task, Unfinished
from ...policies import CachePolicy
from .fingerprints import function_fingerprint

if TYPE_CHECKING:
    from checkpoint_savers.caches.abc import BaseCache, FullKey, Namespace

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class NodeResultCache:
    """The cached results of a graph's nodes.

    Args:
        cache: stores the results. It may be shared with other graphs and runs.
        codec: encodes and decodes the graph's types.
    """

    def __init__(self, cache: BaseCache, codec: Codec) -> None:
        self.cache = cache
        self._codec = codec

    async def get_or_compute(
        self,
        task: Task,
        policy: CachePolicy,
        value: Callable[[], Any],
        compute: Callable[[Unfinished], Awaitable[Settled]],
        *,
        context: Any,
    ) -> Settled:
        """Return the outcome of a task whose node has a cache policy.

        Args:
            task: the task.
            policy: the cache policy of its node.
            value: returns the node's input.
            compute: runs the task; given cached writes, only its routers.
            context: the context of the call. It is part of the key if the node receives it and has no `key_func`.
        """
        try:
            key = self._key(task.node, policy, value(), context)
        except Exception as error:  # of a channel, of the user's key_func, or of a value that cannot be a key
            annotate(error, f"while looking for a cached result of node {task.node.name!r}, superstep {task.step}")
            return Failed(error)
        cached: list[Unfinished] = []
        computed: list[Settled] = []

        # The lookup is part of the flight: between a lookup before it and its start, another flight might store the
        # result, and it would be computed twice.
        async def compute_once() -> bytes | None:
            for found in (await self.cache.aget([key])).values():
                cached.extend(self._decode_writes(found))
                if cached:
                    return found
            outcome = await compute(NEW)
            computed.append(outcome)
            # None is not shared: one of the tasks that wait for this result computes it next.
            if not isinstance(outcome, Finished) or outcome.ends_graph:
                return None
            try:
                made = self._encode_writes(outcome.writes[: outcome.own])
            except UnstorableValueError as error:
                where = f"written by node {task.node.name!r}, superstep {task.step}, which has a cache policy"
                error.add_note(where)
                computed.append(Failed(error))
                return None
            await self.cache.aset({key: (made, policy.ttl_seconds)})
            return made

        shared, _ = await self.cache.flights.share(key, compute_once)
        if computed:
            return computed[-1]
        cached = cached or self._decode_writes(shared or b"")
        outcome = await compute(cached[0] if cached else NEW)
        return structs.replace(outcome, cached=bool(cached)) if isinstance(outcome, Finished) else outcome

    async def clear(self, nodes: Iterable[Node]) -> None:
        """Delete the cached results of these nodes."""
        await self.cache.aclear([namespace_of(node) for node in nodes])

    def _key(self, node: Node, policy: CachePolicy, value: Any, context: Any) -> FullKey:
        try:
            identity = value
            if policy.key_func is not None:
                identity = node.cache_key(policy.key_func, value)
            elif context is not None and any(what == "runtime" for _, what in node.injects):
                identity = [value, context]  # the result may depend on the user in the context
            bytes_ = self._codec.canonical(identity, channel=f"the input of node {node.name!r}")
        except UnstorableValueError as error:
            error.add_note("give its CachePolicy a key_func, which returns what identifies the input")
            raise
        return namespace_of(node), blake2b(self._fingerprint_of(node) + bytes_, digest_size=20).hexdigest()

    def _fingerprint_of(self, node: Node) -> bytes:
        """Return the fingerprint of the node's function, computed at its first lookup."""
        # Kept on the frozen node: a fingerprint costs more than most lookups.
        if not node.function_fingerprint:
            structs.force_setattr(
                node,
                "function_fingerprint",
                function_fingerprint(node.call, partial(self._codec.canonical, channel="")),
            )
        return node.function_fingerprint

    def _encode_writes(self, writes: list[Write]) -> bytes:
        return _encode([(name, self._codec.encode(value, channel=name)) for name, value in writes])

    def _decode_writes(self, data: bytes) -> list[Unfinished]:
        """Return the writes as a task's record, or nothing if they cannot be decoded any more."""
        try:
            writes = [(name, self._codec.decode(value, channel=name)) for name, value in _decode(data)]
        except (CorruptCheckpointError, StoredTypeChangedError, msgspec.MsgspecError):
            # Types may have changed since. A cache is no store of record: the result is computed again.
            return []
        return [Unfinished(writes)]


def namespace_of(node: Node) -> Namespace:
    """Return the cache namespace of a node: graphs whose nodes have the same function and name share results."""
    call = node.call
    module, name = getattr(call, "__module__", None), getattr(call, "__qualname__", type(call).__qualname__)
    return ("pregel_async", f"{module or type(call).__module__}.{name}", node.name)
