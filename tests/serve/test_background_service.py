"""examples/background_service: runs that are accepted, followed, cancelled and answered, and that outlive its process."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from checkpoint_savers import SqliteSaver
from pregel_async.service import RunService, Worker
from tests.helpers.background_service import HANGS, BackgroundService

from .browser import Browser, Event, browsing

SECTIONS = ["What it is", "What it costs", "What to do"]
DRAFTING = [("custom", f"drafting: {section}") for section in SECTIONS]


def seen(events: list[Any]) -> list[tuple[str, Any]]:
    """Return what events show: the names of updated nodes, and the words of custom events."""
    found: list[tuple[str, Any]] = []
    for event in events:
        name, data = (event.name, event.data) if isinstance(event, Event) else (event.event, event.json())
        if name == "updates":
            found += [(name, node) for node in data["data"]]
        elif name == "custom":
            found.append((name, data["data"]))
    return found


FIRST = [("updates", "collect"), *DRAFTING, ("updates", "draft"), ("updates", "__interrupt__")]


# In process


@pytest.fixture
async def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    monkeypatch.setattr("examples.background_service.app.DB", str(tmp_path / "reports.db"))
    monkeypatch.setattr("examples.background_service.app.GRACE", 0.0)
    monkeypatch.setattr("examples.background_service.graph.PAUSE", 0.0)
    from examples.background_service.app import app

    async with browsing(app) as browser:
        yield browser


async def events_of(browser: Browser, run: dict[str, Any], **options: Any) -> list[Event]:
    return await browser.open(f"/runs/{run['run_id']}/events", **options).all()


async def started(browser: Browser, **body: Any) -> dict[str, Any]:
    done = await browser.ask("/runs", json={"topic": "kettles", **body})
    assert done.status == 202, done.content
    return done.json


def question_of(thread: dict[str, Any]) -> str:
    ((question,),) = thread["interrupts"].values()
    return question["id"]


@pytest.mark.anyio
async def test_from_the_start_to_the_answer(browser: Browser) -> None:
    """A run is accepted, followed, asks, and is answered; the inbox shows the thread while it waits."""
    run = await started(browser)
    assert seen(await events_of(browser, run)) == FIRST
    assert (await browser.ask(f"/runs/{run['run_id']}")).json["status"] == "interrupted"
    (thread,) = (await browser.ask("/threads?status=interrupted")).json["threads"]
    assert thread["metadata"] == {"topic": "kettles"}
    question = question_of(thread)
    path = f"/threads/{run['thread_id']}/answer"
    changed = await browser.ask(path, json={"question": question, "answer": "Name a price."})
    assert changed.status == 202
    assert seen(await events_of(browser, changed.json))[0] == ("updates", "review")
    (thread,) = (await browser.ask("/threads?status=interrupted")).json["threads"]
    assert "(Name a price.)" in thread["values"]["text"]
    late = await browser.ask(path, json={"question": question, "answer": "yes"})
    assert (late.status, late.json["detail"]) == (409, "this question is not open")
    done = await browser.ask(path, json={"question": question_of(thread), "answer": "yes"})
    assert seen(await events_of(browser, done.json)) == [("updates", "review"), ("updates", "publish")]
    assert (await browser.ask(f"/runs/{done.json['run_id']}")).json["output"]["published"] is True
    assert (await browser.ask("/threads?status=interrupted")).json == {"threads": [], "next": None}
    runs = (await browser.ask(f"/runs?thread_id={run['thread_id']}")).json
    assert [each["status"] for each in runs] == ["success", "interrupted", "interrupted"]


@pytest.mark.anyio
async def test_reading_on_from_an_event(browser: Browser) -> None:
    """A reader that reconnects with the id of its last event gets the others, each once."""
    run = await started(browser)
    events = await events_of(browser, run)
    for at, event in enumerate(events):
        if event.id is not None:
            assert seen(events[: at + 1]) + seen(await events_of(browser, run, last=event.id)) == FIRST


@pytest.mark.anyio
async def test_a_run_is_cancelled(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply comes when the run has ended, and its followers see the end."""
    monkeypatch.setattr("examples.background_service.graph.PAUSE", 3600)
    run = await started(browser)
    reader = browser.open(f"/runs/{run['run_id']}/events")
    await reader.next("custom")
    assert (await browser.ask(f"/runs?thread_id={run['thread_id']}")).json[0]["status"] == "running"
    refused = await browser.ask("/runs", json={"topic": "x", "thread_id": run["thread_id"], "multitask": "reject"})
    assert refused.status == 409
    cancelled = await browser.ask(f"/runs/{run['run_id']}/cancel", method="POST")
    assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
    assert (await reader.all())[-1].data["status"] == "cancelled"
    again = await browser.ask(f"/runs/{run['run_id']}/cancel", method="POST")
    assert again.status == 409


@pytest.mark.anyio
async def test_requests_that_are_refused(browser: Browser) -> None:
    for path in ("/runs/none", "/runs/none/events"):
        assert (await browser.ask(path)).status == 404
    assert (await browser.ask("/runs/none/cancel", method="POST")).status == 404
    assert (await browser.ask("/threads/none/answer", json={"question": "q", "answer": "a"})).status == 404
    assert (await browser.ask("/runs", json={"topic": ""})).status == 422
    key = {"idempotency-key": "k"}
    first = await browser.ask("/runs", json={"topic": "kettles"}, headers=key)
    assert (await browser.ask("/runs", json={"topic": "kettles"}, headers=key)).json["run_id"] == first.json["run_id"]
    assert (await browser.ask("/runs", json={"topic": "pans"}, headers=key)).status == 409
    page = await browser.ask("/")
    assert page.headers["content-security-policy"].startswith("default-src 'none'; connect-src 'self';")


@pytest.mark.anyio
async def test_a_full_queue_and_a_drain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-pressure is a 429 with `Retry-After`, and a drain a 503."""
    from examples.background_service.app import app, graph

    monkeypatch.setattr("examples.background_service.graph.PAUSE", 3600)
    saver = SqliteSaver.from_conn_string(tmp_path / "reports.db")
    async with RunService({"report": graph}, saver, work=Worker(grace=0), max_pending=0) as service:
        async with browsing(app, lambda _: lifespan(service)) as browser:
            full = await browser.ask("/runs", json={"topic": "kettles"})
            assert (full.status, full.headers["retry-after"]) == (429, "1")
            service.drain()
            assert (await browser.ask("/runs", json={"topic": "kettles"})).status == 503


class lifespan:  # noqa: N801  # a function's part
    def __init__(self, service: RunService) -> None:
        self._service = service

    async def __aenter__(self) -> dict[str, Any]:
        return {"service": self._service}

    async def __aexit__(self, *_: object) -> None:
        await anyio.lowlevel.checkpoint()


# Over a socket


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundService]:
    with BackgroundService(tmp_path_factory.mktemp("reports")) as service:
        yield service
        assert service.complaints == []


def test_over_a_socket(service: BackgroundService) -> None:
    run = service.start("kettles")
    assert seen(service.rest(run["run_id"])) == FIRST
    (thread,) = service.http.get("/threads", params={"thread_id": run["thread_id"]}).json()["threads"]
    body = {"question": question_of(thread), "answer": "yes"}
    done = service.http.post(f"/threads/{run['thread_id']}/answer", json=body)
    assert seen(service.rest(done.json()["run_id"])) == [("updates", "review"), ("updates", "publish")]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_outlives_its_process(tmp_path: Path, end: signal.Signals) -> None:
    """P16: the process ends in the middle of a run. The next one executes what is left, and a reader that comes back
    gets the events that it has not read."""
    with BackgroundService(tmp_path, REPORT_PAUSE=HANGS, REPORT_GRACE="0") as service:
        run = service.start("kettles")
        later = service.start("pans", thread_id=run["thread_id"])
        with service.follow(run["run_id"]) as events:
            before = [next(events), next(events), next(events)]
            service.process.send_signal(end)
            assert service.process.wait(60) in (-end, 0)
    assert seen(before) == FIRST[:2]
    with BackgroundService(tmp_path) as service:
        rest = service.rest(run["run_id"], before[-1].id)
        assert [event.event for event in rest].count("superstep_restarted") == 1
        assert seen(rest) == FIRST[1:]  # the section that was begun is begun again
        shown = service.http.get(f"/runs/{run['run_id']}").json()
        assert (shown["status"], shown["attempt"]) == ("interrupted", 2)
        assert service.rest(later["run_id"])[-1].json()["status"] == "interrupted"
