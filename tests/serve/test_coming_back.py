"""Readers who lose their connection and come back: nothing lost, nothing twice."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from checkpoint_savers import InMemorySaver, SqliteSaver
from pregel_async import StreamWriter
from pregel_async.serve import event_id, graph_endpoint
from tests.helpers.stream_reader import is_void
from tests.serve.browser import Event, browsing
from tests.serve.served import CHUNK, Gate, chain, gated, talking

pytestmark = pytest.mark.anyio

MODES = ["messages", "updates", "custom", "values"]


def of_the_run(events: list[Event]) -> list[Event]:
    return [event for event in events if event.name not in ("metadata", "end")]


def without_what_is_void(events: list[Event]) -> list[Event]:
    """What a client keeps: as the docs tell it."""
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
async def test_after_every_event_of_a_run_that_has_ended(modes: list[str]) -> None:
    """Coming back from any place gives exactly the rest, and ids increase all the way."""
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
            assert of_the_run(again.events) == of_the_run(whole[at + 1 :])
            assert again.events[-1] == whole[-1]
            assert [event.id for event in of_the_run(again.events)] == [
                event.id for event in of_the_run(whole[at + 1 :])
            ]


async def test_after_every_event_of_a_graph_inside() -> None:
    """A reader that has read half of what one part makes has read all before it: a message that was complete before the
    next one began is not complete once more."""
    given = {**body("t", ["messages"]), "stream_subgraphs": True}
    async with browsing(serve(chain(("outside", talking().compile())).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=given)).events
        assert [event.name.partition("|")[0] for event in whole].count("messages/complete") == 2
        for at, event in enumerate(whole[:-1]):
            again = await browser.ask("/?thread_id=t", last=event.id)
            assert of_the_run(again.events) == of_the_run(whole[at + 1 :])


async def test_to_a_run_that_goes_on(modes: list[str] = MODES) -> None:
    """In the same process: every event once, in the midst of a message too, whichever was the last one read."""
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
            assert [*of_the_run(seen), *of_the_run(second.events)] == of_the_run(whole)
            assert second.events[-1].data["status"] == "success"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_to_a_run_that_was_cut_off(elsewhere: bool, tmp_path: Any) -> None:
    """It is resumed. `superstep_restarted` says what was read in vain; the rest, put together, is the whole."""
    modes = MODES[:-1]  # a run that is resumed tells its values once more
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
                events = [*of_the_run(seen), *of_the_run(second.events)]
                restarted = [event for event in events if event.name == "superstep_restarted"]
                assert [event.data["step"] for event in restarted] == [1]
                assert without_what_is_void(events) == of_the_run(whole)
                assert second.events[0].data == {**seen[0].data, "attempt": 1}
                third = await browser.ask("/?thread_id=t", last=seen[-1].id)
                assert third.events[0].data["attempt"] == 2
                assert without_what_is_void([*of_the_run(seen), *of_the_run(third.events)]) == of_the_run(whole)


async def test_a_message_that_is_complete_is_not_void_with_what_comes_next() -> None:
    """Three messages that never say that they have ended are complete with their superstep. Who comes back, from any
    place, to a run that was cut off in the superstep after it, has each of them complete once, and the next anew.
    """

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
                events = [*of_the_run(seen), *of_the_run(second.events)]
                assert without_what_is_void(events) == of_the_run(whole)
                assert [event.id for event in events] == sorted({event.id or "" for event in events})


async def test_a_post_that_is_sent_again_comes_back_too() -> None:
    """Libraries that post again after a lost connection do not run the graph again."""
    ran: list[str] = []
    gate = Gate()
    gate.opened.set()
    async with browsing(serve(gated(gate, ran).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        again = await browser.ask(json=body("t", ["updates"]), last=whole[1].id)
        assert of_the_run(again.events) == of_the_run(whole[2:])
        assert ran == ["first", "held"]


async def test_the_old_connection_dies_late() -> None:
    """A reader comes back before the service has noticed that it had gone: the run is not cancelled under it, and is
    when the last reader has left."""
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


async def test_nothing_to_come_back_to() -> None:
    """404; 400 for what is no id; 410 for one of another thread."""
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


async def test_a_failure_is_told_once(caplog: Any) -> None:
    """Who comes back after it hears how the run has ended; who comes back before it hears why."""

    async def fails(state: Any) -> None:
        raise ValueError("the password is swordfish")

    from tests.serve.served import chain, logs

    async with browsing(serve(chain(("a", logs("a")), ("fails", fails)).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        assert [event.name for event in whole] == ["metadata", "updates", "error", "end"]
        assert whole[2].data["error"] == "ValueError"
        assert whole[3].data["status"] == "error"
        for at in range(3):
            again = await browser.ask("/?thread_id=t", last=whole[at].id)
            assert of_the_run(again.events) == of_the_run(whole[at + 1 :])
            assert again.events[-1] == whole[-1]
        assert "swordfish" not in "".join(str(each.content) for each in browser.exchanges)


@pytest.mark.parametrize("name", ["ConfigError", "GraphDrained", "GraphRecursionError"])
async def test_a_failure_with_the_name_of_ours(name: str, caplog: Any) -> None:
    """Whose class it is decides what readers are told, live and later: one of the service's own that is only called like
    one of ours is named, and its words stay in the log.
    """
    theirs = type(name, (Exception,), {"__module__": "shop.errors"})

    async def fails(state: Any) -> None:
        raise theirs("the password is swordfish")

    async with browsing(serve(chain(("fails", fails)).compile(InMemorySaver()))) as browser:
        live = await browser.ask(json=body("t", ["updates"]))
        for done in (live, await browser.ask("/?thread_id=t")):
            (error,) = [event.data for event in done.events if event.name == "error"]
            assert error["error"] == name
            assert b"swordfish" not in done.content


async def test_a_failure_that_is_ours_is_told_in_its_words_later_too() -> None:
    """Who comes back hears what a client can act on: that the run has reached its limit."""
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        asks = body("t", ["updates"])
        live = await browser.ask(json={**asks, "config": {**asks["config"], "recursion_limit": 1}})
        later = await browser.ask("/?thread_id=t")
        for done in (live, later):
            (error,) = [event.data for event in done.events if event.name == "error"]
            assert error["error"] == "GraphRecursionError"
            assert "raise recursion_limit" in error["message"]


async def test_a_failure_that_is_all_there_is(caplog: Any) -> None:
    """Why a run has failed is told to who comes back, also where nothing came before it: `error` was left out then."""

    async def fails(state: Any) -> None:
        raise ValueError("the password is swordfish")

    async with browsing(serve(chain(("fails", fails)).compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", ["updates"]))).events
        assert [event.name for event in whole] == ["metadata", "error", "end"]
        for last in (None, whole[0].id):
            again = await browser.ask("/?thread_id=t", last=last)
            assert of_the_run(again.events) == of_the_run(whole)


async def test_from_the_beginning() -> None:
    """Without an id: all that is kept of the thread."""
    async with browsing(serve(talking().compile(InMemorySaver()))) as browser:
        whole = (await browser.ask(json=body("t", MODES))).events
        assert of_the_run((await browser.ask("/?thread_id=t")).events) == of_the_run(whole)


async def test_what_is_void_is_told_once_whoever_has_run_on() -> None:
    """By another reader's coming back, or by a new request, live or done: one `superstep_restarted`, before all else."""
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
                told = [await second.next() for _ in range(3)]
                assert [event.name for event in told] == ["metadata", "superstep_restarted", "custom"]
                gate.opened.set()
                await second.over.wait()
            else:
                gate.opened.set()
                await other.over.wait()
                second = await browser.ask("/?thread_id=t", last=seen[1].id)
            assert [event.name for event in second.events] == [
                *("metadata", "superstep_restarted", "custom", "custom", "end")
            ]
            assert [event.data for event in without_what_is_void([*of_the_run(seen), *of_the_run(second.events)])] == [
                *("before", "behind")
            ]


async def test_from_a_state() -> None:
    """Who has a thread's state and nothing else reads on behind it: what is being said too, and from its beginning."""
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
        assert of_the_run(await second.all()) == of_the_run(whole)
        ended = await graph.aget_state("t")
        assert ended.values == {"log": ["hello", "bye"]}
        third = await browser.ask("/?thread_id=t", last=event_id(ended))
        assert [event.name for event in third.events] == ["metadata", "end"]


@pytest.mark.parametrize("modes", [["messages"], ["messages-tuple"]], ids=",".join)
async def test_across_a_failure_that_was_tried_again(modes: list[str]) -> None:
    """The failure is told where it was: what was said before it is not added to what is said after it."""
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
        for after, missed in ((None, of_the_run(first)), (first[-3].id, [first[-2]]), (first[-2].id, [])):
            again = await browser.ask("/?thread_id=t", last=after)
            assert of_the_run(again.events) == [*missed, *of_the_run(second)]
            assert "swordfish" not in again.content.decode()
        assert [event.name for event in first[-2:]] == ["error", "end"]
