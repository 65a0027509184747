"""What the checks of stores share: the fixtures, a clock, and short ways to put and to read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest

from ...stores.abc import BaseStore
from ...stores.ops import Item
from ...stores.port import Batch, Done
from ..caches.conformance import Clock

OpenStore = Callable[..., AbstractAsyncContextManager[BaseStore]]

SPACE = ("memories", "ann")

T = TypeVar("T")


class StoreSuite:
    """The fixtures of all checks."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """A function that opens a new store, as an async context manager. It takes the settings that every store has,
        by name: `codec`, `ttl` and `clock`."""
        raise NotImplementedError("override the fixture open_store")

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def store(self, open_store: OpenStore, clock: Clock) -> AsyncIterator[BaseStore]:
        async with open_store(clock=clock) as store:
            yield store


class BatchRecorder:
    """Sees what goes to a store's backend, from when it is made on.

    Attributes:
        batches: in the order in which they were handed over.
    """

    def __init__(self, store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self._transact = store.transact
        monkeypatch.setattr(store, "transact", self._see)

    def _see(self, batch: Batch, done: Done) -> None:
        self.batches.append(batch)
        self._transact(batch, done)


async def put(store: BaseStore, *keys: str, space: tuple[str, ...] = SPACE, ttl: float | None = None) -> None:
    """Put an item under each key; its value says which it is."""
    for key in keys:
        await store.aput(space, key, {"key": key}, ttl=ttl)


async def there(store: BaseStore, *keys: str, space: tuple[str, ...] = SPACE) -> list[str]:
    """Those of the keys under which there is an item. Reading does not refresh them."""
    found = [await store.aget(space, key, refresh_ttl=False) for key in keys]
    return [item.key for item in found if item is not None]


async def value(store: BaseStore, key: str, space: tuple[str, ...] = SPACE) -> Any:
    """What is stored under a key; None if nothing is."""
    item = await store.aget(space, key, refresh_ttl=False)
    return None if item is None else item.value


async def keys(store: BaseStore, prefix: tuple[str, ...] = (), **asked: Any) -> list[str]:
    """The keys of what a search finds, in its order."""
    everything: dict[str, Any] = {"limit": 10_000, "refresh_ttl": False}
    return [item.key for item in await store.asearch(prefix, **{**everything, **asked})]


async def while_changing(verb: Callable[[], Awaitable[T]], change: Callable[[], object]) -> T:
    """What a verb gives, when what it was given is changed as soon as it has been called."""
    called, answers = anyio.Event(), list[T]()

    async def ask() -> None:
        called.set()
        answers.append(await verb())

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await called.wait()
        change()
    return answers[0]


async def turns(number: int = 3) -> None:
    """Let others run."""
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


def facts(item: Item | None) -> tuple[Any, ...]:
    """All that an item says but its value."""
    assert item is not None
    return (item.namespace, item.key, item.created_at.timestamp(), item.updated_at.timestamp())
