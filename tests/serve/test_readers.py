"""Readers that are slow, that stop reading, and that leave; and the effect on the run."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver
from pregel_async import StreamWriter
from pregel_async.serve import Limits, graph_endpoint
from pregel_async.serve.readers import ReaderRegistry
from tests.serve.browser import browsing
from tests.serve.graphs import Gate, Log, chain, gated, logs

pytestmark = pytest.mark.anyio

BODY = {"input": {"log": []}, "stream_mode": ["custom", "updates"]}
DOCUMENT = {"accept": "application/json"}


def serve(graph: Any, **more: Any) -> Any:
    return graph_endpoint(graph, thread=lambda request: "t", **more)


def chatty(count: int, gate: Gate | None = None, wrote: list[int] | None = None) -> Any:
    """A node that writes so many chunks of a kilobyte each, and then waits at the gate."""

    async def write(state: Log, writer: StreamWriter) -> dict[str, list[str]]:
        for number in range(count):
            await writer({"number": number, "text": "x" * 1000})
            if wrote is not None:
                wrote.append(number)
        if gate is not None:
            await gate("written")
        return {"log": ["written"]}

    return chain(("write", write), ("last", logs("last")))


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
async def test_a_reader_that_leaves_cancels_the_run(accept: str) -> None:
    """This is the default: when the request is over, every task of the run has cleaned up, and the thread can be
    continued."""
    gate = Gate()
    graph = gated(gate).compile(InMemorySaver())
    async with browsing(serve(graph)) as browser:
        exchange = browser.open(json=BODY, headers={"accept": accept})
        await gate.reached.wait()
        exchange.leave()
        await exchange.over.wait()
        assert (gate.cancelled.is_set(), exchange.error) == (True, None)
        assert (await graph.aget_state("t")).next == ("held",)
        gate.opened.set()
        done = await browser.ask(json={"input": None}, headers=DOCUMENT)
        assert done.json["output"] == {"log": ["first", "held", "last"]}


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("said_by", ["service", "request"])
async def test_a_run_that_continues_without_its_reader(accept: str, said_by: str) -> None:
    """With `on_disconnect="continue"` the request is over when the run is."""
    gate = Gate()
    graph = gated(gate).compile(InMemorySaver())
    body = BODY if said_by == "service" else {**BODY, "on_disconnect": "continue"}
    async with browsing(serve(graph, on_disconnect="continue" if said_by == "service" else "cancel")) as browser:
        exchange = browser.open(json=body, headers={"accept": accept})
        await gate.reached.wait()
        exchange.leave()
        await anyio.wait_all_tasks_blocked()
        assert not exchange.over.is_set()
        gate.opened.set()
        await exchange.over.wait()
        assert (gate.passed, exchange.error) == (["held"], None)
        assert (await graph.aget_state("t")).values == {"log": ["first", "held", "last"]}


async def test_the_run_does_not_wait_for_a_reader_that_has_left() -> None:
    """However many chunks the run writes after that; and a reader that reconnects gets all of them."""
    async with browsing(serve(chatty(2000).compile(InMemorySaver()), on_disconnect="continue")) as browser:
        exchange = browser.open(json=BODY)
        seen = [await exchange.next() for _ in range(5)]
        exchange.leave()
        await exchange.over.wait()
        again = await browser.ask(last=seen[-1].id)
        custom = [event.data["number"] for event in [*seen, *again.events] if event.name == "custom"]
        assert custom == list(range(2000))


async def test_a_slow_reader_slows_the_run() -> None:
    """The number of waiting chunks is bounded, however long the reader takes; then it has all of them."""
    wrote: list[int] = []
    async with browsing(
        serve(chatty(1000, wrote=wrote).compile(InMemorySaver()), limits=Limits(write=None))
    ) as browser:
        exchange = browser.open(json=BODY)
        await exchange.next("custom")
        exchange.stall()
        await anyio.wait_all_tasks_blocked()
        held = len(wrote)
        assert held < 100
        await anyio.wait_all_tasks_blocked()
        assert len(wrote) == held
        exchange.resume()
        await exchange.over.wait()
        assert len([event for event in exchange.events if event.name == "custom"]) == 1000
        assert exchange.events[-1].data["status"] == "success"


@pytest.mark.parametrize("policy", ["cancel", "continue"])
async def test_a_reader_that_accepts_no_data_counts_as_gone(policy: Any) -> None:
    """After `Limits.write`, although its connection is open, the run is cancelled, or no longer waits for the
    reader."""
    graph = chatty(1000).compile(InMemorySaver())
    async with browsing(serve(graph, limits=Limits(write=0.05), on_disconnect=policy)) as browser:
        exchange = browser.open(json=BODY)
        seen = [await exchange.next() for _ in range(5)]
        exchange.stall()
        await exchange.over.wait()
        assert exchange.error is None
        assert (await graph.aget_state("t")).next == (("write",) if policy == "cancel" else ())
        again = await browser.ask(last=seen[-1].id)
        numbers = [event.data["number"] for event in again.events if event.name == "custom"]
        assert numbers == list(range(1000)) if policy == "cancel" else [*range(numbers[0], 1000)]


async def test_a_reader_that_stops_at_the_end() -> None:
    """Sending the last message, which ends the response, and sending a heartbeat have the same limit."""
    for heartbeat in (0.0, 0.01):
        gate = Gate()
        limits = Limits(write=0.05, heartbeat=heartbeat)
        async with browsing(serve(gated(gate).compile(InMemorySaver()), limits=limits)) as browser:
            exchange = browser.open(json=BODY)
            await gate.reached.wait()
            await exchange.next("metadata")
            exchange.stall()
            if heartbeat == 0:
                gate.opened.set()
            await exchange.over.wait()
            assert gate.cancelled.is_set() == (heartbeat > 0)


async def test_heartbeats() -> None:
    """Comments at regular intervals keep the connection open while the run is silent; a comment is no event."""
    gate = Gate()
    async with browsing(serve(gated(gate).compile(InMemorySaver()), limits=Limits(heartbeat=0.01))) as browser:
        exchange = browser.open(json=BODY)
        await gate.reached.wait()
        while exchange.content.count(b": heartbeat\n\n") < 3:
            await exchange.news()
        gate.opened.set()
        await exchange.over.wait()
        assert [event.name for event in exchange.events if event.name != ":"] == [
            *("metadata", "updates", "custom", "custom", "updates", "updates", "end")
        ]


async def test_a_status_is_sent_before_a_proxy_times_out() -> None:
    """A run that waits long for its thread has sent status 200, and if it is refused then, that is an event."""
    gate = Gate()
    async with browsing(serve(gated(gate).compile(InMemorySaver()), limits=Limits(heartbeat=0.02))) as browser:
        first = browser.open(json=BODY)
        await gate.reached.wait()
        queued = browser.open(json={"command": {"resume": "yes"}, "multitask_strategy": "enqueue"})
        while not queued.content:
            await queued.news()
        assert queued.status == 200
        gate.opened.set()
        await first.over.wait()
        received = [event for event in await queued.all()]
        assert [event.name for event in received] == ["metadata", "error", "end"]
        assert received[1].data["error"] == "InvalidResumeError"


async def test_headers() -> None:
    """The headers of a stream prevent caching, and buffering by proxies."""
    async with browsing(serve(gated(Gate()).compile(InMemorySaver()))) as browser:
        exchange = browser.open(json=BODY)
        await exchange.next()
        assert exchange.headers["content-type"].startswith("text/event-stream")
        assert (exchange.headers["cache-control"], exchange.headers["x-accel-buffering"]) == ("no-store", "no")


async def test_a_client_that_left_before_the_run_began_is_not_counted() -> None:
    """docs/serving.md: "cancels the run when its reader has closed the connection". A request that waited for its
    thread (`enqueue`), and whose client had left, was counted as a reader when its run began: when the reader before
    it was gone, its run continued without any reader."""
    readers = ReaderRegistry()
    reader, gone = readers.new_registration("t"), readers.new_registration("t")
    reader.register()
    gone.unregister()
    assert gone.has_others
    gone.register()
    reader.unregister()
    with anyio.fail_after(30):
        await gone.wait_until_unread()
