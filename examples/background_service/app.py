"""The service: accepts runs, shows them, and is their worker, too.

    GET  /                           the page
    POST /runs                       {"topic", "thread_id"?, "multitask"?} -> 202 and the run. Header Idempotency-Key
    GET  /runs?thread_id=            the runs of a thread, the newest first
    GET  /runs/{run_id}              the run, with its output once it has ended
    GET  /runs/{run_id}/events       server-sent events until the run has ended; with Last-Event-ID: those since
    POST /runs/{run_id}/cancel       ends the run, and answers when its tasks have ended
    GET  /threads?status=&after=     a page of threads: with status=interrupted, those that wait for an answer
    POST /threads/{thread_id}/answer {"question", "answer"} -> 202 and the run that continues the thread

There is no login: each client sees all threads. A service with users stores the owner in the thread's metadata
(`config={"metadata": {"owner": ...}}`) and passes `metadata={"owner": ...}` to the searches.

uvicorn examples.background_service.app:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import Body, FastAPI, Header, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from sse_starlette import EventSourceResponse

from checkpoint_savers import SqliteSaver
from checkpoint_savers.errors import ThreadBusyError, ThreadNotFoundError
from pregel_async import Command
from pregel_async.errors import InvalidInputError
from pregel_async.service import (
    IdempotencyConflictError,
    Run,
    RunNotFoundError,
    RunOverError,
    RunService,
    ServiceBusyError,
    ServiceDrainingError,
    Worker,
)

from .graph import graph

DB = os.environ.get("REPORT_DB", "reports.db")
GRACE = float(os.environ.get("REPORT_GRACE", "20"))
"""Seconds that runs have at a shutdown to end their superstep. The next process continues them."""

PAGE = Path(__file__).with_name("page.html")
POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
MODES: tuple[Literal["updates", "custom"], ...] = ("updates", "custom")
"""What `start` stores of a run's events, and `follow` shows."""

Status = Literal["idle", "busy", "interrupted", "error"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Any]]:
    worker = Worker(slots=20, grace=GRACE)
    async with RunService({"report": graph}, lambda: SqliteSaver.from_conn_string(DB), work=worker) as service:
        yield {"service": service}


app = FastAPI(title="Reports", lifespan=lifespan)


def service_of(request: Request) -> RunService:
    return cast("RunService", request.state.service)


@app.get("/")
def page() -> HTMLResponse:
    return HTMLResponse(PAGE.read_text("utf-8"), headers={"content-security-policy": POLICY})


@app.post("/runs", status_code=202)
async def start(
    request: Request,
    topic: Annotated[str, Body(embed=True, min_length=1, max_length=200)],
    thread_id: Annotated[str | None, Body(embed=True, max_length=100)] = None,
    multitask: Annotated[Literal["enqueue", "reject", "interrupt", "rollback"], Body(embed=True)] = "enqueue",
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> dict[str, Any]:
    """Accept a run. A client that got no reply repeats the request with its key, and gets the same run."""
    run = await service_of(request).start(
        "report",
        {"topic": topic},
        {"metadata": {"topic": topic}},  # of the thread, unless it has a topic: the inbox shows it from the start
        thread_id=thread_id,
        multitask=multitask,
        idempotency_key=idempotency_key,
        stream_mode=MODES,
        time_limit=3600,
    )
    return shown(run)


@app.get("/runs")
async def runs_of(request: Request, thread_id: str) -> list[dict[str, Any]]:
    found = await service_of(request).search_runs(thread_id=thread_id)
    return [shown(run) for run in found.items]


@app.get("/runs/{run_id}")
async def show(request: Request, run_id: str) -> dict[str, Any]:
    service = service_of(request)
    run = await service.get_run(run_id)
    if run.is_open:
        return shown(run)
    result = await service.join(run_id)  # returns at once
    return {**shown(result.run), "output": result.values}


@app.get("/runs/{run_id}/events")
async def events(
    request: Request, run_id: str, last_event_id: Annotated[str | None, Header(max_length=500)] = None
) -> Response:
    service = service_of(request)
    await service.get_run(run_id)  # while the status can still be 404

    async def parts() -> AsyncGenerator[dict[str, Any]]:
        # `retry`: a browser whose connection breaks asks again after so many milliseconds.
        yield {"event": "run", "data": encoded(shown(await service.get_run(run_id))), "retry": 500}
        async with service.follow(run_id, after=last_event_id, stream_mode=MODES) as followed:
            async for part in followed:
                seen = {"data": part["data"], "task": part["task"] and part["task"]["id"]}
                yield {"event": part["type"], "data": encoded(seen), "id": part["cursor"]}
        yield {"event": "end", "data": encoded(shown(await service.get_run(run_id)))}

    return EventSourceResponse(parts(), sep="\n")


@app.post("/runs/{run_id}/cancel")
async def cancel(request: Request, run_id: str) -> dict[str, Any]:
    """Cancel a run, and return it when all its tasks have ended. One that was faster has its own status."""
    return shown(await service_of(request).cancel(run_id, reason="the page", wait=60.0))


@app.get("/threads")
async def threads(
    request: Request, status: Status | None = None, thread_id: str | None = None, after: str | None = None
) -> dict[str, Any]:
    found = await service_of(request).search_threads(
        status=() if status is None else status,
        thread_ids=() if thread_id is None else (thread_id,),
        after=after,
        limit=50,
    )
    return {"threads": msgspec.to_builtins(found.items), "next": found.next}


@app.post("/threads/{thread_id}/answer", status_code=202)
async def answer(
    request: Request,
    thread_id: str,
    question: Annotated[str, Body(embed=True)],
    answer: Annotated[str, Body(embed=True, max_length=2000)],
) -> dict[str, Any]:
    service = service_of(request)
    thread = await service.get_thread(thread_id)
    asked = [each["id"] for several in thread.interrupts.values() for each in several]
    if thread.status != "interrupted" or question not in asked:
        raise HTTPException(409, "this question is not open")
    # The key decides between two editors who answer at the same time.
    run = await service.start(
        "report",
        Command(resume={question: answer}),
        thread_id=thread_id,
        multitask="reject",
        idempotency_key=f"answer to {question}",
        stream_mode=MODES,
    )
    return shown(run)


def shown(run: Run) -> dict[str, Any]:
    """Return a run as JSON values."""
    return cast("dict[str, Any]", msgspec.to_builtins(run))


def encoded(value: Any) -> str:
    """Return an event's data as JSON. Updates may have `Interrupt`s, which are Structs."""
    return msgspec.json.encode(value).decode()


REFUSALS = {
    InvalidInputError: 422,
    RunNotFoundError: 404,
    ThreadNotFoundError: 404,
    IdempotencyConflictError: 409,
    RunOverError: 409,
    ThreadBusyError: 409,
    ServiceBusyError: 429,
    ServiceDrainingError: 503,
    TimeoutError: 504,
}


async def refuse(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in REFUSALS.items() if isinstance(error, kind))
    headers = {"retry-after": f"{error.retry_after:.0f}"} if isinstance(error, ServiceBusyError) else None
    return JSONResponse({"detail": str(error)}, status, headers)


for kind in REFUSALS:
    app.add_exception_handler(kind, refuse)
