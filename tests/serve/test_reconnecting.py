"""Readers that lose their connection and reconnect get every event, and none twice."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from pregel_async import StreamWriter
from pregel_async.serve import event_id, graph_endpoint
from tests.helpers.stream_reader import is_void
from tests.serve.browser import Event, browsing
from tests.serve.graphs import CHUNK, Gate, chain, gated, talking

pytestmark = pytest.mark.anyio

MODES = ["messages", "updates", "custom", "values"]


def without_frame(events: list[Event]) -> list[Event]:
    return [event for event in events if event.name not in ("metadata", "end")]


def without_void(events: list[Event]) -> list[Event]:
    """The events that a client keeps, by the rule of the docs."""
    kept: list[Event] = []
    for event in events:
        if event.name == "superstep_restarted":
            kept = [each for each in kept if not is_void(each.id or "", event.data)]
        else:
            kept.append(event)
    return kept


def serve(graph: Any, **more: Any) -> Any:
    return graph_endpoint(graph, allow_any_thread=True, **more)


def body(thread: str, modes: list[str]) -> dict[str, Any]:
    return {"input": {"log": []}, "stream_mode": modes, "config": {"configurable": {"thread_id": thread}}}


async def undisturbed(modes: list[str]) -> list[Event]:
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        return (await browser.ask(json=body("t", modes))).events


@pytest.mark.parametrize(
    "modes",
    [MODES, ["messages"], ["messages-tuple", "updates"], ["updates"], ["custom"], ["values"]],
    ids=",".join,
)
async def test_after_each_event_of_a_finished_run(modes: list[str]) -> None:
    """After each id, reconnecting gives exactly the rest, and ids increase."""
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", modes))).events
        ids = [event.id for event in whole]
        assert None not in ids
        assert ids == sorted(set(ids), key=str)
        for at, event in enumerate(whole):
            again = await browser.ask("/?thread_id=t", last=event.id)
            if event.name == "end":
                assert again.status == 204
                continue
            assert again.events[0] == whole[0]
            assert without_frame(again.events) == without_frame(whole[at + 1 :])
            assert again.events[-1] == whole[-1]
            assert [event.id for event in without_frame(again.events)] == [
                event.id for event in without_frame(whole[at + 1 :])
            ]


async def test_after_each_event_of_a_subgraph() -> None:
    """A reader that has half of the events of one part has all events before it: a message that was complete before
    the next one began is not sent as complete again."""
    given = {**body("t", ["messages"]), "stream_subgraphs": True}
    async with browsing(serve(chain(("outside", talking().compile())).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=given)).events
        assert [event.name.partition("|")[0] for event in whole].count("messages/complete") == 2
        for at, event in enumerate(whole[:-1]):
            again = await browser.ask("/?thread_id=t", last=event.id)
            assert without_frame(again.events) == without_frame(whole[at + 1 :])


async def test_to_a_run_in_progress(modes: list[str] = MODES) -> None:
    """In the same process, each event arrives once, also in the middle of a message, whichever event was the last
    one read."""
    whole = await undisturbed(modes)
    held = 1 + next(
        at for at, event in enumerate(whole) if event.name == "messages/partial" and event.data[0]["content"] == "Hell"
    )
    for read in range(1, held + 1):
        gate = Gate()
        async with browsing(serve(talking(gate).compile(InMemorySaver()), on_disconnect="continue")) as browser:
            first = browser.open(json=body("t", modes))
            seen = [await first.next() for _ in range(read)]
            await gate.reached.wait()
            first.leave()
            second = browser.open("/?thread_id=t", last=seen[-1].id)
            assert await second.next() == seen[0]
            gate.opened.set()
            await second.over.wait()
            assert [*without_frame(seen), *without_frame(second.events)] == without_frame(whole)
            assert second.events[-1].data["status"] == "success"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_to_an_interrupted_run(elsewhere: bool, tmp_path: Any) -> None:
    """The run is resumed. `superstep_restarted` names the events that became void; the others, put together, are
    those of an uninterrupted run."""
    modes = MODES[:-1]  # a resumed run sends its values once more
    whole = await undisturbed(modes)
    held = 1 + next(
        at for at, event in enumerate(whole) if event.name == "messages/partial" and event.data[0]["content"] == "Hell"
    )
    for read in range(1, held + 1):
        gate = Gate()
        path = str(tmp_path / f"{read}.db")
        async with SqliteSaver.from_conn_string(path) as saver:
            app = serve(talking(gate).compile(saver))
            async with browsing(app) as browser:
                first = browser.open(json=body("t", modes))
                seen = [await first.next() for _ in range(read)]
                await gate.reached.wait()
                first.leave()
                await first.over.wait()
            assert gate.cancelled.is_set()
            gate.opened.set()
            async with browsing(serve(talking(gate).compile(saver)) if elsewhere else app) as browser:
                second = await browser.ask("/?thread_id=t", last=seen[-1].id)
                events = [*without_frame(seen), *without_frame(second.events)]
                restarted = [event for event in events if event.name == "superstep_restarted"]
                assert [event.data["step"] for event in restarted] == [1]
                assert without_void(events) == without_frame(whole)
                assert second.events[0].data == {**seen[0].data, "attempt": 1}
                third = await browser.ask("/?thread_id=t", last=seen[-1].id)
                assert third.events[0].data["attempt"] == 2
                assert without_void([*without_frame(seen), *without_frame(third.events)]) == without_frame(whole)


async def test_a_complete_message_is_not_void_with_the_next_superstep() -> None:
    """Three messages without an end mark are complete with their superstep. A reader that reconnects after any id to
    a run that was interrupted in the next superstep gets each as complete once, and the later message anew."""

    def talks(gate: Gate) -> Any:
        async def first(state: Any, writer: StreamWriter) -> None:
            for word in ("He", "llo"):
                for name in ("a", "b", "c"):
                    await writer.message({**CHUNK, "content": word, "id": name})

        async def last(state: Any, writer: StreamWriter) -> None:
            await writer.message({**CHUNK, "content": "Good", "id": "d"})
            await gate()
            await writer.message({**CHUNK, "content": "bye", "id": "d"})

        return chain(("first", first), ("last", last)).compile(InMemorySaver())

    opened = Gate()
    opened.opened.set()
    async with browsing(serve(talks(opened))) as browser:
        whole = (await browser.ask(json=body("t", ["messages"]))).events
    assert [event.data[0]["content"] for event in whole if event.name == "messages/complete"] == [
        *("Hello", "Hello", "Hello", "Goodbye")
    ]
    for read in range(1, 1 + next(at for at, event in enumerate(whole) if "Good" in str(event.data))):
        gate = Gate()
        async with browsing(serve(talks(gate))) as browser:
            first = browser.open(json=body("t", ["messages"]))
            seen = [await first.next() for _ in range(read + 1)]
            await gate.reached.wait()
            first.leave()
            await first.over.wait()
            gate.opened.set()
            for _ in range(2):
                second = await browser.ask("/?thread_id=t", last=seen[-1].id)
                events = [*without_frame(seen), *without_frame(second.events)]
                assert without_void(events) == without_frame(whole)
                assert [event.id for event in events] == sorted({event.id or "" for event in events})


async def test_a_repeated_post_reconnects() -> None:
    """Client libraries that repeat a POST after a lost connection do not run the graph again."""
    ran: list[str] = []
    gate = Gate()
    gate.opened.set()
    async with browsing(serve(gated(gate, ran).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        again = await browser.ask(json=body("t", ["updates"]), last=whole[1].id)
        assert without_frame(again.events) == without_frame(whole[2:])
        assert ran == ["first", "held"]


async def test_the_old_connection_ends_late() -> None:
    """If a reader reconnects before the service notices that it was gone, the run is not cancelled; it is when its
    last reader has left."""
    gate = Gate()
    async with browsing(serve(gated(gate).compile(InMemorySaver()))) as browser:
        first = browser.open(json=body("t", ["custom"]))
        seen = [await first.next(), await first.next()]
        second = browser.open("/?thread_id=t", last=seen[-1].id)
        await second.next("metadata")
        first.leave()
        await anyio.wait_all_tasks_blocked()
        assert not gate.cancelled.is_set()
        second.leave()
        await first.over.wait()
        assert gate.cancelled.is_set()


async def test_no_run_to_reconnect_to() -> None:
    """404 without a run, 400 for an invalid id, 410 for an id of another thread."""
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        await browser.ask(json=body("u", ["updates"]))
        assert (await browser.ask("/?thread_id=x")).status == 404
        assert (await browser.ask("/?thread_id=t", last="nonsense")).status == 400
        assert (await browser.ask("/?thread_id=t", last="a.b.c.d")).status == 400
        other = await browser.ask("/?thread_id=u", last=whole[1].id)
        assert (other.status, other.json["error"]) == (410, "InvalidCursorError")
    async with browsing(serve(talking().compile())) as browser:
        assert (await browser.ask("/?thread_id=t", last=whole[1].id)).json["error"] == "NotStored"


async def test_a_failure_is_sent_once(caplog: Any) -> None:
    """A reader that reconnects after the failure gets the run's status; one that reconnects before it gets the
    error."""

    async def fails(state: Any) -> None:
        raise ValueError("the password is swordfish")

    from tests.serve.graphs import chain, logs

    async with browsing(serve(chain(("a", logs("a")), ("fails", fails)).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        assert [event.name for event in whole] == ["metadata", "updates", "error", "end"]
        assert whole[2].data["error"] == "ValueError"
        assert whole[3].data["status"] == "error"
        for at in range(3):
            again = await browser.ask("/?thread_id=t", last=whole[at].id)
            assert without_frame(again.events) == without_frame(whole[at + 1 :])
            assert again.events[-1] == whole[-1]
        assert "swordfish" not in "".join(str(each.content) for each in browser.exchanges)


@pytest.mark.parametrize("name", ["ConfigError", "GraphDrained", "GraphRecursionError"])
async def test_a_failure_named_like_one_of_this_package(name: str, caplog: Any) -> None:
    """The class decides what readers get, live and later: an error of the service's own that only has the name of
    one of this package is named, and its message stays in the log."""
    theirs = type(name, (Exception,), {"__module__": "shop.errors"})

    async def fails(state: Any) -> None:
        raise theirs("the password is swordfish")

    async with browsing(serve(chain(("fails", fails)).compile(InMemorySaver()))) as browser:
        live = await browser.ask(json=body("t", ["updates"]))
        for done in (live, await browser.ask("/?thread_id=t")):
            (error,) = [event.data for event in done.events if event.name == "error"]
            assert error["error"] == name
            assert b"swordfish" not in done.content


async def test_an_error_of_this_package_is_sent_with_its_message() -> None:
    """Reconnecting readers, too, get messages that a client can act on: here that the run has reached its limit."""
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        asks = body("t", ["updates"])
        live = await browser.ask(json={**asks, "config": {**asks["config"], "recursion_limit": 1}})
        later = await browser.ask("/?thread_id=t")
        for done in (live, later):
            (error,) = [event.data for event in done.events if event.name == "error"]
            assert error["error"] == "GraphRecursionError"
            assert "raise recursion_limit" in error["message"]


async def test_a_failure_without_events_before_it(caplog: Any) -> None:
    """A reconnecting reader gets the error of a run also if no other event came before it: `error` was left out
    then."""

    async def fails(state: Any) -> None:
        raise ValueError("the password is swordfish")

    async with browsing(serve(chain(("fails", fails)).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        assert [event.name for event in whole] == ["metadata", "error", "end"]
        for last in (None, whole[0].id):
            again = await browser.ask("/?thread_id=t", last=last)
            assert without_frame(again.events) == without_frame(whole)


async def test_without_an_id() -> None:
    """All stored events of the thread are sent."""
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", MODES))).events
        assert without_frame((await browser.ask("/?thread_id=t")).events) == without_frame(whole)


async def test_superstep_restarted_is_sent_once() -> None:
    """If another reader's reconnecting or a new request has resumed the run, in progress or done, there is one
    `superstep_restarted`, before all later events."""
    for by, live in (("reader", True), ("reader", False), ("request", True), ("request", False)):
        gate = Gate()
        async with browsing(serve(gated(gate).compile(InMemorySaver()))) as browser:
            first = browser.open(json=body("t", ["custom"]))
            seen = [await first.next() for _ in range(2)]
            await gate.reached.wait()
            first.leave()
            await first.over.wait()
            gate.reached = anyio.Event()
            again = {**body("t", ["custom"]), "input": None}
            other = browser.open("/?thread_id=t", last=seen[0].id) if by == "reader" else browser.open(json=again)
            await gate.reached.wait()
            await other.next("custom")
            if live:
                second = browser.open("/?thread_id=t", last=seen[1].id)
                received = [await second.next() for _ in range(3)]
                assert [event.name for event in received] == ["metadata", "superstep_restarted", "custom"]
                gate.opened.set()
                await second.over.wait()
            else:
                gate.opened.set()
                await other.over.wait()
                second = await browser.ask("/?thread_id=t", last=seen[1].id)
            assert [event.name for event in second.events] == [
                *("metadata", "superstep_restarted", "custom", "custom", "end")
            ]
            assert [event.data for event in without_void([*without_frame(seen), *without_frame(second.events)])] == [
                *("before", "behind")
            ]


async def test_from_a_state() -> None:
    """A client that has only a thread's state reads the events after it: also the message in progress, from its
    beginning."""
    whole = await undisturbed(["messages-tuple"])
    gate = Gate()
    graph = talking(gate).compile(InMemorySaver())
    nothing = await graph.aget_state("t")
    assert event_id(nothing) is None
    async with browsing(serve(graph, on_disconnect="continue")) as browser:
        first = browser.open(json=body("t", ["messages-tuple"]))
        await gate.reached.wait()
        first.leave()
        midway = await graph.aget_state("t")
        assert midway.values == {"log": []}
        second = browser.open("/?thread_id=t", last=event_id(midway))
        assert [(await second.next("messages")).data[0]["content"] for _ in range(2)] == ["He", "ll"]
        gate.opened.set()
        assert without_frame(await second.all()) == without_frame(whole)
        ended = await graph.aget_state("t")
        assert ended.values == {"log": ["hello", "bye"]}
        third = await browser.ask("/?thread_id=t", last=event_id(ended))
        assert [event.name for event in third.events] == ["metadata", "end"]


@pytest.mark.parametrize("modes", [["messages"], ["messages-tuple"]], ids=",".join)
async def test_across_a_failure_that_was_retried(modes: list[str]) -> None:
    """The failure is sent at its position: a message's chunks before it are not joined with those after it."""
    fails = [True]

    async def speak(state: Any, writer: StreamWriter) -> dict[str, list[str]]:
        for word in ("He", "ll", "o"):
            if word == "o" and fails and fails.pop():
                raise ConnectionError("the password is swordfish")
            await writer.message({"role": "assistant", "content": word, "id": "hello"})
        return {"log": ["hello"]}

    async with browsing(serve(chain(("speak", speak)).compile(InMemorySaver()))) as browser:
        first = (await browser.ask(json=body("t", modes))).events
        second = (await browser.ask(json={**body("t", modes), "input": None})).events
        for after, missed in ((None, without_frame(first)), (first[-3].id, [first[-2]]), (first[-2].id, [])):
            again = await browser.ask("/?thread_id=t", last=after)
            assert without_frame(again.events) == [*missed, *without_frame(second)]
            assert "swordfish" not in again.content.decode()
        assert [event.name for event in first[-2:]] == ["error", "end"]
