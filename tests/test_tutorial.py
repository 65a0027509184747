"""The tutorial of docs/: each step is a whole program, which its page includes, and which does what its page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.code_blocks import INCLUDE, ROOT, run
from tests.helpers.stream_reader import events_of

PAGES = sorted(path for path in (ROOT / "docs" / "tutorial").glob("*.md") if path.name != "index.md")
STEPS = [ROOT / "examples" / "tutorial" / f"step_{number}.py" for number in range(1, 7)]
ASK = {"input": {"messages": ["Where is order 17?"]}}
ANSWER = "About your order: a kettle, number 17, sent on Monday."


def printed(page: Path) -> list[str]:
    """Return what a page says that its program prints, once for each run of it."""
    return re.findall(r"^```text\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_each_page_includes_its_step() -> None:
    assert [INCLUDE.findall(page.read_text("utf-8")) for page in PAGES] == [
        [step.relative_to(ROOT).as_posix()] for step in STEPS
    ]


@pytest.mark.parametrize(("page", "step"), list(zip(PAGES[:-1], STEPS[:-1], strict=True)), ids=lambda path: path.stem)
def test_a_step_prints_what_its_page_says(page: Path, step: Path, tmp_path: Path) -> None:
    """A program that the page runs twice says something else the second time."""
    expected = printed(page)
    assert expected
    assert [run(tmp_path, str(step)) for _ in expected] == expected


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """Run the last step, and return its process and a client for the user ada."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "PORT": "0"}  # a free one
    command = [sys.executable, "-W", "error", str(STEPS[-1])]
    with subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                found = re.search(r"running on (http://\S+)", line)
                if found is not None:
                    break
            else:
                raise AssertionError("".join(said))
            with httpx.Client(base_url=found[1], timeout=30, cookies={"user": "ada"}) as client:
                yield process, client
        finally:
            process.kill()


def said_in(client: httpx.Client, method: str, until: str = "", **options: Any) -> str:
    """Return the model's newest text in a stream of events, at its end or as soon as it begins with `until`."""
    text = ""
    with client.stream(method, "/chat", **options) as response:
        for event in events_of(response):
            for message in json.loads(event.data) if event.event.startswith("messages/p") else ():
                text = message["content"]
                if until and text.startswith(until):
                    return text
    return text


def test_the_service_survives_a_kill_and_waits_for_an_answer(tmp_path: Path) -> None:
    """The last page: a process that is killed in the middle of an answer gives all of it when it is back, and a tool that
    asks runs when it is allowed."""
    with served(tmp_path) as (process, client):
        assert said_in(client, "POST", "About your", json=ASK).startswith("About your")
        process.kill()
        process.wait(60)
    with served(tmp_path) as (_, client):
        deadline = time.monotonic() + 60
        while said_in(client, "GET") != ANSWER:  # until `pick_up` has found the thread
            assert time.monotonic() < deadline
        broken = {"input": {"messages": ["The kettle of order 17 is broken."]}}
        assert said_in(client, "POST", json=broken) == ""
        (question,) = client.get("/chat/state").json()["questions"]
        assert question["value"] == {"tool": "refund", "order": "17"}
        allowed = {"command": {"resume": {question["id"]: True}}}
        assert said_in(client, "POST", json=allowed) == "About your order: we pay you 40 euros."
        assert httpx.post(client.base_url.join("/chat"), json=ASK).status_code == 403  # without a user
