"""The state that an application's requests share: its graphs with their open saver, and its shutdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import anyio
from starlette.requests import HTTPConnection

from checkpoint_savers.abc import BaseCheckpointSaver
from checkpoint_savers.durations import read_seconds

from .._api.compiled import Graph
from ..errors import ConfigError
from ..runtime import RunControl

STATE_KEY = "pregel_async"
"""The key of the service in the state of requests (`scope["state"]`) and of the application (`app.state`)."""

GraphT = TypeVar("GraphT", bound=Graph[Any, Any])


class Service:
    """The graphs of a running application, with their open saver.

    `graph_lifespan` makes one and stores it in the application's state; `service_of` returns the service of a request.

    Attributes:
        control: the drain switch of all runs. Pass it to runs of your own (`astream(..., control=service.control)`), so
            that they stop at their next barrier when the application shuts down.
        draining: an event that is set when the application shuts down.
        grace: seconds that runs have to reach their next barrier after that. Then they are cancelled.

    Args:
        graphs: the graphs that the application serves.
        saver: an open saver to store their threads with; None leaves each graph the saver that it was compiled with.
        grace: seconds, 0 or more.

    Raises:
        ConfigError: `grace` is not a number of seconds, 0 or more.
    """

    def __init__(
        self, graphs: Iterable[Graph[Any, Any]] = (), saver: BaseCheckpointSaver | None = None, *, grace: float = 30.0
    ) -> None:
        self.control = RunControl()
        self.draining = anyio.Event()
        self.grace = check_grace(grace)
        # By identity: the keys are the very graphs that endpoints were made with. Each value holds its graph, so that
        # no other object can get the same id.
        self._bound = {
            id(graph): (graph, graph if saver is None else graph.with_checkpointer(saver)) for graph in graphs
        }

    def graph(self, graph: GraphT) -> GraphT:
        """Return a graph with the saver that the application opened for it.

        Args:
            graph: a compiled graph, usually one of those that the service was made with.

        Returns:
            The graph with the application's saver; the same graph if the service was made without a saver or without
            this graph.
        """
        found = self._bound.get(id(graph))
        return graph if found is None else cast("GraphT", found[1])

    @property
    def graphs(self) -> list[Graph[Any, Any]]:
        """The graphs that the service was made with, each with its saver."""
        return [bound for _, bound in self._bound.values()]

    def drain(self, reason: str = "shutdown") -> None:
        """Stop all runs at their next barrier, and refuse new requests. Call it on the application's event loop.

        Runs that are stopped can be resumed. The call does not wait for them.

        Args:
            reason: what `GraphDrained.reason` says in the runs that stop. The first call's reason counts.
        """
        self.control.request_drain(reason)
        self.draining.set()


def check_grace(grace: object) -> float:
    """Return a grace period in seconds, as a float.

    Args:
        grace: seconds that runs have to reach a barrier at shutdown, 0 or more; infinity is allowed.

    Returns:
        The number of seconds.

    Raises:
        ConfigError: `grace` is not a number of seconds, 0 or more.
    """
    try:
        return read_seconds("grace", grace, zero=True, endless=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def find_service(connection: HTTPConnection) -> Service | None:
    """Return the service of the application that received a request.

    Args:
        connection: the request.

    Returns:
        The service, or None if the application runs without `graph_lifespan`.
    """
    state: Mapping[str, Any] = connection.scope.get("state") or {}
    found = state.get(STATE_KEY)
    if found is None:
        # A lifespan of the user's own may not pass on the state that `graph_lifespan` yields, and servers need not
        # support lifespan state. `graph_lifespan` has set the attribute of `app.state` as well.
        app = connection.scope.get("app")
        found = getattr(getattr(app, "state", None), STATE_KEY, None)
    return found if isinstance(found, Service) else None


def service_of(connection: HTTPConnection) -> Service:
    """Return the service of the application that received a request.

    Args:
        connection: the request.

    Returns:
        The service that `graph_lifespan` made.

    Raises:
        ConfigError: the application runs without `graph_lifespan`.
    """
    found = find_service(connection)
    if found is None:
        raise ConfigError("the application runs without graph_lifespan(...): give it as lifespan=")
    return found
