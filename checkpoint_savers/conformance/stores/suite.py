"""The base class of all suites for stores: fixtures, a clock, and short ways to put and read items."""

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
"""Opens a store; its arguments are those of the store's constructor."""

SPACE = ("memories", "ann")

T = TypeVar("T")


class StoreSuite:
    """The base class of all suites for stores."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def open_store(self) -> OpenStore:
        """Return a function that opens a new store, as an async context manager. Override it.

        The function must accept the settings that every store has, by name: `codec`, `ttl` and `clock`.
        """
        raise NotImplementedError("override the fixture open_store")

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def store(self, open_store: OpenStore, clock: Clock) -> AsyncIterator[BaseStore]:
        async with open_store(clock=clock) as store:
            yield store


class BatchRecorder:
    """Record the batches that go to a store's backend.

    Args:
        store: the store; its `transact` is replaced.
        monkeypatch: pytest's fixture, which restores the method after the test.

    Attributes:
        batches: the batches so far, in the order in which the backend got them.
    """

    def __init__(self, store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self._transact = store.transact
        monkeypatch.setattr(store, "transact", self._see)

    def _see(self, batch: Batch, done: Done) -> None:
        self.batches.append(batch)
        self._transact(batch, done)


async def put(store: BaseStore, *keys: str, space: tuple[str, ...] = SPACE, ttl: float | None = None) -> None:
    """Put an item under each key. The value contains the key.

    Args:
        store: the store.
        keys: the keys.
        space: the namespace.
        ttl: the lifetime, in minutes; None for no expiry.
    """
    for key in keys:
        await store.aput(space, key, {"key": key}, ttl=ttl)


async def there(store: BaseStore, *keys: str, space: tuple[str, ...] = SPACE) -> list[str]:
    """Return those of the keys that have an item, without refreshing the items' lifetimes.

    Args:
        store: the store.
        keys: the keys.
        space: the namespace.
    """
    found = [await store.aget(space, key, refresh_ttl=False) for key in keys]
    return [item.key for item in found if item is not None]


async def value(store: BaseStore, key: str, space: tuple[str, ...] = SPACE) -> Any:
    """Return the value that is stored under a key; None without an item."""
    item = await store.aget(space, key, refresh_ttl=False)
    return None if item is None else item.value


async def keys(store: BaseStore, prefix: tuple[str, ...] = (), **asked: Any) -> list[str]:
    """Return the keys of the items that a search finds, in the order of the search.

    Args:
        store: the store.
        prefix: the namespace prefix to search in.
        asked: further options of the search.
    """
    everything: dict[str, Any] = {"limit": 10_000, "refresh_ttl": False}
    return [item.key for item in await store.asearch(prefix, **{**everything, **asked})]


async def while_changing(verb: Callable[[], Awaitable[T]], change: Callable[[], object]) -> T:
    """Call a verb, and change its arguments while the call waits.

    Args:
        verb: calls the verb.
        change: changes the objects that were passed to it.

    Returns:
        The verb's result.
    """
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
    """Let other tasks run.

    Args:
        number: the number of turns of the event loop.
    """
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


def facts(item: Item | None) -> tuple[Any, ...]:
    """Return namespace, key, time of creation and time of the last put of an item; times in unix seconds."""
    assert item is not None
    return (item.namespace, item.key, item.created_at.timestamp(), item.updated_at.timestamp())
