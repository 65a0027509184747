"""Graphs in a web service: a route for Starlette and FastAPI, server-sent events, and a lifespan.

Needs the extra `serve`: `pip install 'pregel-async[serve]'`.
"""

from .endpoint import GraphEndpoint, graph_endpoint
from .lifespan import graph_lifespan
from .limits import Limits
from .response import event_id, last_event_id, sse_response
from .service import Service, service_of

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
