"""Serve graphs over HTTP. Importing `pregel_async` does not import this package, which needs the extra `serve`.

endpoint           `graph_endpoint`: one route for one graph
request            what a request asks for, and which thread it may use
response           `sse_response`: a run as server-sent events, or as one JSON document
thread_response    `thread_response`: the log of a service's thread as server-sent events
run_reader         reads a run's stream, whether or not the client stays connected
readers            counts the readers of each thread's run
event_encoder      encodes parts of a stream as server-sent events, and parses event ids
message_assembler  adds up the chunks of each message
json_encoder       encodes any value as JSON
failures           maps exceptions to HTTP statuses and messages that clients may see
limits             `Limits`: body size, concurrent requests, timeouts
lifespan           `graph_lifespan`: opens the saver, resumes runs that were cut off, drains at shutdown
service            `Service`: the state that an application's requests share
signals            starts the drain when the shutdown signal arrives
pick_up            resumes runs that were cut off
run_metadata       what an endpoint stores with a run, and reads to resume it
"""

try:
    from .endpoint import GraphEndpoint, graph_endpoint
    from .lifespan import graph_lifespan
    from .limits import Limits
    from .response import event_id, last_event_id, sse_response
    from .service import Service, service_of
    from .thread_response import thread_response
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
    "thread_response",
]
