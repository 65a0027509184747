"""The service: a page, the conversations of its user, and the graph.

    POST /api/chats                  {"title"} -> {"id"}: a new conversation
    GET  /api/chats                  the user's conversations, newest first
    GET  /api/chats/{chat}           the stored messages and open questions, and the event id after which to read on
    POST /api/chats/{chat}/run       {"input": {"text"}}, or {"command": {"resume": {question: true or false}}}
    GET  /api/chats/{chat}/run       with Last-Event-ID: the events since, and those of a run that continues

uvicorn examples.chat_service.app:app --timeout-graceful-shutdown 30
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse
from starlette.routing import Route

from checkpoint_savers import SqliteSaver
from pregel_async.serve import Limits, event_id, graph_endpoint, graph_lifespan, service_of

from .chats import open_chats
from .graph import graph

DB = os.environ.get("CHAT_DB", "chat.db")
GRACE = float(os.environ.get("CHAT_GRACE", "20"))
"""Seconds that an answer has to finish when the service is stopped. An answer that is cut off is given again later."""

PAGE = Path(__file__).with_name("page.html")
POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Any]]:
    serving = graph_lifespan(graph, saver=SqliteSaver.from_conn_string(DB), pick_up=True, grace=GRACE)
    async with serving(app) as state, open_chats(DB) as chats:
        yield {**state, "chats": chats}


def user_of(request: Request) -> str:
    """Return the user of a request: the random name that the page gave to the browser.

    Replace this with your login.
    """
    user = request.cookies.get("user")
    if not user:
        raise HTTPException(401, "open the page first: it says who you are")
    return user


async def thread_of(request: Request) -> str:
    """Return the thread of a request: the conversation in its path, if that belongs to the user."""
    chat: str = request.path_params["chat"]
    if not await request.state.chats.belongs(chat, user_of(request)):
        raise HTTPException(404, "you have no such conversation")
    return chat


run = graph_endpoint(
    graph,
    thread=thread_of,
    accept=("input", "resume"),
    stream_mode="messages",
    on_disconnect="continue",  # the run must survive a reload of the page
    limits=Limits(body=64 * 1024, run=600),
)

app = FastAPI(title="Chat", lifespan=lifespan, routes=[Route("/api/chats/{chat}/run", run)])

User = Annotated[str, Depends(user_of)]
Thread = Annotated[str, Depends(thread_of)]


@app.get("/")
def page(request: Request) -> HTMLResponse:
    response = HTMLResponse(PAGE.read_text("utf-8"), headers={"content-security-policy": POLICY})
    if "user" not in request.cookies:
        # The name is all that protects the conversations: it must not be guessable.
        name = secrets.token_urlsafe(32)
        secure = request.url.scheme == "https"
        response.set_cookie("user", name, max_age=365 * 86400, httponly=True, samesite="lax", secure=secure)
    return response


@app.get("/api/chats")
async def chats(user: User, request: Request) -> list[dict[str, Any]]:
    return await request.state.chats.of(user)  # type: ignore[no-any-return]  # a state holds whatever it is given


@app.post("/api/chats")
async def new_chat(user: User, title: Annotated[str, Body(embed=True)], request: Request) -> dict[str, str]:
    return {"id": await request.state.chats.add(user, title[:60])}


@app.get("/api/chats/{chat}")
async def chat(thread: Thread, request: Request) -> dict[str, Any]:
    state = await service_of(request).graph(graph).aget_state(thread)
    return {
        "messages": state.values.get("messages", []),
        "questions": [{"id": question.id, **question.value} for question in state.interrupts],
        "after": event_id(state),
    }
