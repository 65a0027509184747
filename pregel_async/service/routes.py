"""Routes: which workers take a queued thread. They are names of graphs, with `Versions` also `graph@version`."""

from __future__ import annotations

from typing import Any

from checkpoint_savers.deltas import read_record
from checkpoint_savers.errors import StorageError

from .._api.compiled import Graph
from .._runtime.persistence.mismatches import version_in
from ..errors import GraphVersionError
from ..versions import Versions


def routes_of(name: str, graph: Graph[Any, Any]) -> tuple[str, ...]:
    """Return the routes of threads that a worker with this graph can run.

    Args:
        name: the graph's name in the service.
        graph: the graph.
    """
    versions = graph.versions if isinstance(graph, Versions) else ()
    return (name, *(f"{name}@{version}" for version in versions))


async def route_of(name: str, graph: Graph[Any, Any], thread_id: str) -> str:
    """Return the route of a thread: `graph@version` if the version that stored it is to continue it, else `graph`.

    Of a new thread, and of one that moves to a greater version, nothing is stored that a worker without that version
    would refuse: with the plain name, it waits for no deployment.

    Args:
        name: the graph's name in the service.
        graph: the graph, bound to the service's saver.
        thread_id: the thread.

    Raises:
        StorageError: storage failed.
    """
    if not isinstance(graph, Versions):
        return name
    try:
        version, head = await graph._versions.choose(graph._definition, thread_id)
    except GraphVersionError as error:
        return f"{name}@{error.stored}"
    except StorageError:
        raise
    except Exception:
        return name  # what cannot be read fails the run
    if head is None:
        return name
    stored = version_in(head.rows[-1].metadata, [read_record(each, thread_id) for each in head.records])
    return f"{name}@{version}" if stored == version else name


def refuses(route: str, graph: Graph[Any, Any]) -> bool:
    """Return True if a graph that is no `Versions` refuses threads of a route, because its version is smaller.

    Args:
        route: the route.
        graph: the graph of its name.
    """
    version = route.rpartition("@")[2]
    return not isinstance(graph, Versions) and int(version) > max(1, graph._definition.program.version)
