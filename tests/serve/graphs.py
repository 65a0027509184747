"""Graphs for the tests of this folder, and gates that hold their nodes."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import anyio

from pregel_async import START, StateGraph, StreamWriter, interrupt


class Gate:
    """Blocks each caller until it is opened; records that a caller has arrived, was cancelled, or has passed."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.reached = anyio.Event()
        self.cancelled = anyio.Event()
        self.passed: list[str] = []

    async def __call__(self, name: str = "") -> None:
        self.reached.set()
        try:
            await self.opened.wait()
        except BaseException:
            self.cancelled.set()
            raise
        self.passed.append(name)


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def logs(name: str) -> Any:
    async def node(state: Log) -> dict[str, list[str]]:
        return {"log": [name]}

    return node


def chain(*nodes: tuple[str, Any]) -> StateGraph[Any]:
    builder = StateGraph(Log)
    before = START
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder


def gated(gate: Gate, ran: list[str] | None = None) -> StateGraph[Any]:
    """`first`; then `held`, which writes to the stream before and after it waits at the gate; then `last`."""

    async def first(state: Log) -> dict[str, list[str]]:
        if ran is not None:
            ran.append("first")
        return {"log": ["first"]}

    async def held(state: Log, writer: StreamWriter) -> dict[str, list[str]]:
        if ran is not None:
            ran.append("held")
        await writer("before")
        await gate("held")
        await writer("behind")
        return {"log": ["held"]}

    return chain(("first", first), ("held", held), ("last", logs("last")))


def asking() -> StateGraph[Any]:
    def ask(state: Log) -> dict[str, list[str]]:
        return {"log": [interrupt("go on?")]}

    return chain(("first", logs("first")), ("ask", ask))


CHUNK = {"role": "assistant", "type": "AIMessageChunk"}


def talking(gate: Gate | None = None) -> StateGraph[Any]:
    """Two nodes send a message each, in chunks; the first waits at the gate in the middle."""

    async def hello(state: Log, writer: StreamWriter) -> dict[str, list[str]]:
        for word in ("He", "ll", "o"):
            await writer.message({**CHUNK, "content": word, "id": "hello"})
            if gate is not None and word == "ll":
                await gate("hello")
        await writer("custom")
        return {"log": ["hello"]}

    async def bye(state: Log, writer: StreamWriter) -> dict[str, list[str]]:
        for word in ("Go", "od", "bye"):
            ends = {"finish_reason": "stop"} if word == "bye" else {}
            await writer.message({**CHUNK, "content": word, "id": "bye", **ends})
        return {"log": ["bye"]}

    return chain(("hello", hello), ("bye", bye))
