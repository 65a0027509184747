"""A page that is reloaded, over sockets: an endpoint with default settings serves a node that is a graph of eight
supersteps, each of which streams two words. Whatever reloads there are, the reader gets all words, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from httpx_sse import ServerSentEvent

from tests.helpers.stream_reader import is_void
from tests.serve.test_live import LiveService, events, running_service

WORDS = [f"{word} " for word in range(16)]
MODES = ["messages", "messages-tuple", "custom"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with running_service(tmp_path_factory.mktemp("words")) as live:
        yield live


class Page:
    """A reader that follows docs/serving.md: it reconnects with the id of the last event, and drops void events."""

    def __init__(self, live: LiveService, mode: str, user: str, *, waits: int = 0) -> None:
        self.seen: list[ServerSentEvent] = []
        self._live = live
        self._user = user
        self._body = {"input": {"log": [], "size": waits}, "stream_mode": mode, "stream_subgraphs": True}

    def read(self, most: int = 10**6, *, until: str = "") -> bool:
        """Read so many events of the run, or to a word, or to its end, and close the connection.

        Returns:
            True at the end of the run. (The run may be cancelled because its last reader has left. If this reader
            reconnects before that is done, it gets the status "cancelled", and reconnects again.)
        """
        how: Any = {"last": self.seen[-1].id} if self.seen else {"json": self._body}
        with events(self._live, "/talking", user=self._user, **how) as stream:
            for event in stream:
                if event.event == "end":
                    status = json.loads(event.data)["status"]
                    assert status in ("success", "cancelled")
                    return bool(status == "success")
                self.seen.append(event)
                most -= event.event != "metadata"
                if most == 0 or until in self.words:
                    return False
        raise AssertionError("the stream has no end")

    def read_on(self) -> None:
        while not self.read():
            pass

    @property
    def kept(self) -> list[ServerSentEvent]:
        kept: list[ServerSentEvent] = []
        for event in self.seen:
            if event.event == "superstep_restarted":
                void = json.loads(event.data)
                kept = [each for each in kept if not is_void(each.id, void)]
            else:
                kept.append(event)
        return kept

    @property
    def words(self) -> list[str]:
        """The words, in whichever stream mode."""
        found: list[str] = []
        sums: dict[str, str] = {}
        for event in self.kept:
            name, data = event.event.partition("|")[0], json.loads(event.data)
            if name == "custom":
                found.append(f"{data} ")
            elif name == "messages":
                found.append(data[0]["content"])
            elif name in ("messages/partial", "messages/complete"):
                sums[data[0]["id"]] = data[0]["content"]
        for text in sums.values():
            found += [f"{word} " for word in text.split()]
        return found


@pytest.mark.parametrize("mode", MODES)
def test_a_reload_in_the_sixth_superstep(live: LiveService, mode: str) -> None:
    """Words 0 to 9 are recorded and not sent again; word 10 is void and is sent again."""
    page = Page(live, mode, f"sixth {mode}", waits=1 + MODES.index(mode))
    before = len(live.ran)
    page.read(until="10 ")
    page.read_on()
    assert page.words == WORDS
    assert [name for name in live.ran[before:] if "waits" not in name] == [f"step {at}" for at in range(8)]


@pytest.mark.parametrize("mode", MODES)
def test_a_reload_after_each_event(live: LiveService, mode: str) -> None:
    whole = Page(live, mode, f"whole {mode}")
    whole.read_on()
    assert whole.words == WORDS
    for at in range(1, len(whole.seen)):
        page = Page(live, mode, f"{mode} {at}")
        page.read(at)
        page.read_on()
        assert page.words == WORDS


@pytest.mark.parametrize("mode", MODES)
def test_consecutive_reloads(live: LiveService, mode: str) -> None:
    page = Page(live, mode, f"all {mode}")
    number = 0
    while not page.read(1 + number // 4):
        number += 1
    assert page.words == WORDS
