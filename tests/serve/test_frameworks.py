"""The ten-line example in each framework; and the error if the extra is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from checkpoint_savers import InMemorySaver
from pregel_async.serve import graph_endpoint, graph_lifespan
from tests.serve.graphs import asking


def user_of(request: Request) -> str | None:
    return request.headers.get("user")


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
@pytest.mark.parametrize("how", ["route", "mount"])
def test_ten_lines(framework: Any, how: str) -> None:
    """A question and its answer over HTTP."""
    graph = asking().compile(name="ask")
    endpoint = graph_endpoint(graph, thread=user_of)
    routes = [Route("/ask/", endpoint)] if how == "route" else []
    app = framework(routes=routes, lifespan=graph_lifespan(graph, saver=InMemorySaver))
    if how == "mount":
        app.mount("/ask", endpoint)
    with TestClient(app, headers={"user": "ada"}) as client:
        answer = client.post("/ask/", json={"input": {"log": []}}).text
        assert answer.startswith("id: ")
        assert '"status":"interrupted"' in answer
        answered = client.post("/ask/", json={"command": {"resume": "yes"}}, headers={"accept": "application/json"})
        assert answered.json()["output"] == {"log": ["first", "yes"]}
        assert client.put("/ask/").status_code == 405


@pytest.mark.parametrize("missing", ["starlette", "sse_starlette"])
def test_the_extra_is_missing(missing: str) -> None:
    """The error says what to install."""
    code = f"import sys; sys.modules[{missing!r}] = None\nimport pregel_async.serve"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'pregel-async[serve]'" in ran.stderr.splitlines()[-1]
