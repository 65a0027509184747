"""A cache of results, as a graph uses it: what a node made of an input is used again for an equal one.

What is cached are the node's own writes. Its edges are taken and its conditional edges are asked each time, since they
look at the state. Of several tasks that want the same result at the same time, in any run of the process, one computes
it. A failure is not cached, nor what an error handler gave, nor a command for a graph around.
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
    """The results of a graph's nodes, in a cache.

    Args:
        cache: may be shared with other graphs and runs.
        codec: knows the graph's types.
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
        """What becomes of a task whose node has a cache policy.

        Args:
            value: gives the node's input.
            compute: runs the task; if the node's own writes are cached, only the rest of it.
            context: the call's. It counts where the node asks for it, and no `key_func` says what counts.
        """
        try:
            key = self._key(task.node, policy, value(), context)
        except Exception as error:  # what the input is made of, what key_func makes of it, or what cannot be a key
            annotate(error, f"while looking for a cached result of node {task.node.name!r}, superstep {task.step}")
            return Failed(error)
        cached: list[Unfinished] = []
        computed: list[Settled] = []

        async def compute_once() -> bytes | None:
            for found in (await self.cache.aget([key])).values():
                cached.extend(self._decode_writes(found))
                if cached:
                    return found
            outcome = await compute(NEW)
            computed.append(outcome)
            if not isinstance(outcome, Finished) or outcome.leaves:
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
        """Forget what these nodes made."""
        await self.cache.aclear([namespace_of(node) for node in nodes])

    def _key(self, node: Node, policy: CachePolicy, value: Any, context: Any) -> FullKey:
        try:
            identity = value
            if policy.key_func is not None:
                identity = node.keyed(policy.key_func, value)
            elif context is not None and any(what == "runtime" for _, what in node.injects):
                identity = [value, context]  # what it makes may be one user's
            bytes_ = self._codec.canonical(identity, channel=f"the input of node {node.name!r}")
        except UnstorableValueError as error:
            error.add_note("give its CachePolicy a key_func, which returns what identifies the input")
            raise
        return namespace_of(node), blake2b(self._fingerprint_of(node) + bytes_, digest_size=20).hexdigest()

    def _fingerprint_of(self, node: Node) -> bytes:
        """What tells the node's function from others of its name: as it is when its first result is looked for."""
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
        """The writes, as what is recorded of a task; nothing when they were made by code that is no more."""
        try:
            writes = [(name, self._codec.decode(value, channel=name)) for name, value in _decode(data)]
        except (CorruptCheckpointError, StoredTypeChangedError, msgspec.MsgspecError):
            return []  # a cache is not data: it is computed again
        return [Unfinished(writes)]


def namespace_of(node: Node) -> Namespace:
    """Where a node's results are cached: by its function and its name, so that graphs that share both share them."""
    call = node.call
    module, name = getattr(call, "__module__", None), getattr(call, "__qualname__", type(call).__qualname__)
    return ("pregel_async", f"{module or type(call).__module__}.{name}", node.name)
