"""What a run needs of the callbacks of langchain-core. `pregel_async.langchain.tracing` implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from ..persistence.unstored import Persistence

AttemptT = TypeVar("AttemptT", contravariant=True)
T = TypeVar("T")


class TracedRouter(Protocol):
    """One call of a router, which has been reported as started."""

    async def end(self, answer: Any) -> None:
        """Report what the router returned."""
        ...

    async def fail(self, error: BaseException) -> None:
        """Report what the router raised."""
        ...


class Tracer(Protocol[AttemptT]):
    """Shows one graph's run to callbacks: the attempts at its nodes, and the calls of their routers.

    A type parameter replaces `AttemptContext`, whose module imports this one.
    """

    @property
    def has_handlers(self) -> bool:
        """True if a handler receives the run. If not, attempts use `ambient` instead of `attempt`."""
        ...

    def ambient(self, attempt: AttemptT) -> AbstractContextManager[None]:
        """Set the config that runnables inherit from an attempt, for the body.

        Args:
            attempt: the attempt.
        """
        ...

    def attach(self, persistence: Persistence, ns: str) -> None:
        """Take the storage and the namespace of the graph's run, before it begins."""
        ...

    def callbacks(self) -> Any:
        """Return the `callbacks` for the config of the running code, under which its calls are nested."""
        ...

    async def attempt(self, attempt: AttemptT, value: Any, work: Callable[[], Awaitable[T]]) -> T:
        """Run an attempt, and report its start and its end.

        Args:
            attempt: the attempt.
            value: the node's input, for the callbacks only.
            work: the node and its routers. They must copy the context before they run the node's code.

        Returns:
            What `work` returns.
        """
        ...

    def returned(self, attempt: AttemptT, result: Any) -> None:
        """Take what the node returned: the end of the attempt reports it."""
        ...

    async def router(self, attempt: AttemptT, name: str, view: Any) -> TracedRouter:
        """Report the start of a router.

        Args:
            attempt: the attempt at the router's node.
            name: the router's name.
            view: the state that the router gets.
        """
        ...
