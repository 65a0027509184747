"""What the requests of one application share while it runs: its graphs with their open saver, and its shutdown."""

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
"""Under which a service is found in the state of a request, and of its application."""

GraphT = TypeVar("GraphT", bound=Graph[Any, Any])


class Service:
    """An application's graphs, while it runs.

    Attributes:
        control: give it to runs of your own (`astream(..., control=service.control)`), so that they stop at their next
            barrier when the application shuts down.
        draining: set when it does.
        grace: seconds that runs have to get there; then they are cancelled.
    """

    def __init__(
        self, graphs: Iterable[Graph[Any, Any]] = (), saver: BaseCheckpointSaver | None = None, *, grace: float = 30.0
    ) -> None:
        self.control = RunControl()
        self.draining = anyio.Event()
        self.grace = check_grace(grace)
        self._bound = {
            id(graph): (graph, graph if saver is None else graph.with_checkpointer(saver)) for graph in graphs
        }

    def graph(self, graph: GraphT) -> GraphT:
        """The graph with the saver that the application has opened for it; the graph itself if it has not."""
        found = self._bound.get(id(graph))
        return graph if found is None else cast("GraphT", found[1])

    @property
    def graphs(self) -> list[Graph[Any, Any]]:
        """All of them, with their saver."""
        return [bound for _, bound in self._bound.values()]

    def drain(self, reason: str = "shutdown") -> None:
        """Let all runs stop at their next barrier, and take no new ones. On the event loop."""
        self.control.request_drain(reason)
        self.draining.set()


def check_grace(grace: object) -> float:
    """Return the time that runs have to reach a barrier, in seconds. Raises `ConfigError`."""
    try:
        return read_seconds("grace", grace, zero=True, endless=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error


def find_service(connection: HTTPConnection) -> Service | None:
    """The service that a request belongs to, if its application runs with `graph_lifespan`."""
    state: Mapping[str, Any] = connection.scope.get("state") or {}
    found = state.get(STATE_KEY)
    if found is None:
        app = connection.scope.get("app")
        found = getattr(getattr(app, "state", None), STATE_KEY, None)
    return found if isinstance(found, Service) else None


def service_of(connection: HTTPConnection) -> Service:
    """The service that a request belongs to.

    Raises:
        ConfigError: its application runs without `graph_lifespan`.
    """
    found = find_service(connection)
    if found is None:
        raise ConfigError("the application runs without graph_lifespan(...): give it as lifespan=")
    return found
