"""Graphs in a web service. Importing `pregel_async` does not import it; it needs the extra `serve`.

endpoint     `graph_endpoint`, one route for a graph
request      what a request asks for, and whose thread it has
response     `sse_response`: a run as server-sent events; and as one document
reading      a stream that is read for a client that may leave
audience     who reads along with a run
wire         parts of a stream as events, and their ids
gathering    messages that grow
plain        values as JSON
failures     failures as a client is told them
limits       how much a service takes on
lifespan     `graph_lifespan`: open the saver, drain, pick up
service      what the requests of an application share
signals      hearing of a shutdown when it begins
pick_up      running on with what was cut off
known        what is known of a run that somebody comes back to
"""

try:
    from .endpoint import GraphEndpoint, graph_endpoint
    from .lifespan import graph_lifespan
    from .limits import Limits
    from .response import event_id, last_event_id, sse_response
    from .service import Service, service_of
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("starlette", "sse_starlette"):
        raise
    raise ImportError(
        f"pregel_async.serve needs {error.name}, which is not installed: pip install 'pregel-async[serve]'",
        name=error.name,
    ) from error

__all__ = [
    "GraphEndpoint",
    "Limits",
    "Service",
    "event_id",
    "graph_endpoint",
    "graph_lifespan",
    "last_event_id",
    "service_of",
    "sse_response",
]
