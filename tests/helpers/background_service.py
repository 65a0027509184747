"""Run `examples.background_service` in a process of its own, and talk to it as browsers do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import ServerSentEvent

from tests.helpers.example_server import ExampleServer
from tests.helpers.stream_reader import events_of

HANGS = "3600"
"""A pause in which a run stops at its first section."""


class BackgroundService(ExampleServer):
    """A running service, by default on a free port."""

    def __init__(self, folder: Path, port: str = "0", **env: str) -> None:
        own = {"REPORT_PAUSE": "0", **env}
        super().__init__("examples.background_service", folder, port, "reports.db", {**os.environ, **own})
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def stop(self) -> None:
        self.http.close()
        super().stop()

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    def start(self, topic: str, **body: Any) -> dict[str, Any]:
        """Accept a run, and return it."""
        done = self.http.post("/runs", json={"topic": topic, **body})
        assert done.status_code == 202, done.text
        return done.json()

    @contextmanager
    def follow(self, run_id: str, after: str | None = None) -> Iterator[Iterator[ServerSentEvent]]:
        headers = {} if after is None else {"last-event-id": after}
        with self.http.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield events_of(response)

    def rest(self, run_id: str, after: str | None = None) -> list[ServerSentEvent]:
        """Return the events until the run has ended."""
        with self.follow(run_id, after) as events:
            return list(events)
