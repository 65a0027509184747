"""The page of examples/background_service in a headless Chromium: `nox -s browser`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import WebDriverWait, chromium
from tests.helpers.background_service import HANGS, BackgroundService

SECTIONS = [f"drafting: {name}" for name in ("What it is", "What it costs", "What to do")]
FIRST = ["collect: done", *SECTIONS, "draft: done", "asks"]

WATCH = """
    window.errors = []
    addEventListener("error", event => errors.push(event.message))
    addEventListener("unhandledrejection", event => errors.push(String(event.reason)))
"""


class Page:
    """The page as its user sees it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds."""
        return WebDriverWait(self.driver, 20, poll_frequency=0.01).until(lambda _: condition())

    def find(self, css: str) -> Any:
        self.until(lambda: self.driver.find_elements("css selector", css))
        return self.driver.find_element("css selector", css)

    def start(self, topic: str) -> None:
        self.find("#topic").send_keys(topic + "\n")
        self.until(lambda: self.text("#title") == topic)

    def answer(self, text: str) -> None:
        self.find("#questions input").send_keys(text + "\n")

    def choose(self, status: str) -> None:
        """Choose the status of the threads in the list."""
        self.find(f"#status option[value={status}]").click()

    def text(self, css: str) -> str:
        return self.run(f"return document.querySelector('{css}').textContent")

    def until_run_is(self, status: str) -> None:
        self.until(lambda: self.text("#run") == status)

    @property
    def events(self) -> list[str]:
        return self.run("return [...document.querySelectorAll('#events > li')].map(item => item.textContent)")

    @property
    def list(self) -> list[list[str]]:
        """Return the topic and the status of each thread of the list."""
        script = "a => [...a.children].map(each => each.textContent)"
        return self.run(f"return [...document.querySelectorAll('#threads a')].map({script})")

    @property
    def complaints(self) -> list[Any]:
        return [*self.run("return errors"), *self.driver.get_log("browser")]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """Open a new browser."""
    with chromium(tmp_path / "browser") as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        yield Page(driver)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "service"
    folder.mkdir()
    return folder


def test_the_inbox(folder: Path, page: Page) -> None:
    """A run shows its events, asks, and is answered; the inbox has the threads that wait, also after a reload."""
    with BackgroundService(folder) as service:
        page.driver.get(service.url)
        page.start("kettles")
        page.until(lambda: page.events == FIRST)
        page.until_run_is("interrupted")
        page.choose("interrupted")
        page.until(lambda: page.list == [["kettles", "interrupted"]])
        page.choose("idle")
        page.until(lambda: page.list == [])
        page.driver.refresh()
        page.until(lambda: page.events == FIRST)
        page.answer("Name a price.")
        page.until(lambda: page.events == ["review: done", *SECTIONS, "draft: done", "asks"])
        page.until(lambda: "(Name a price.)" in page.text("#text"))
        page.answer("yes")
        page.until(lambda: page.events == ["review: done", "publish: done"])
        page.until_run_is("success")
        page.choose("idle")
        page.until(lambda: page.list == [["kettles", "idle"]])
        assert page.complaints == []
        assert service.complaints == []


def test_a_run_is_cancelled(folder: Path, page: Page) -> None:
    with BackgroundService(folder, REPORT_PAUSE=HANGS) as service:
        page.driver.get(service.url)
        page.start("kettles")
        page.until(lambda: page.events == FIRST[:2])
        page.until_run_is("running")
        page.find("#cancel").click()
        page.until_run_is("cancelled")
        page.until(lambda: not page.find("#cancel").is_displayed())
        assert page.events == FIRST[:2]
        assert page.complaints == []


def test_the_process_is_killed(folder: Path, page: Page) -> None:
    """P16: the service is killed in the middle of a run and started again. The open page shows the run's end, each event
    once, and without those of the superstep that was cut off."""
    with BackgroundService(folder, REPORT_PAUSE=HANGS) as service:
        port = service.port
        page.driver.get(service.url)
        page.start("kettles")
        page.until(lambda: page.events == FIRST[:2])
        service.process.kill()
        service.process.wait(20)
        page.until(lambda: "does not answer" in page.text("#notice"))
    with BackgroundService(folder, port=port) as service:
        page.until_run_is("interrupted")
        page.until(lambda: page.events == FIRST)
        page.until(lambda: page.text("#notice") == "")
        page.answer("yes")
        page.until_run_is("success")
        (run, first) = service.http.get("/runs", params={"thread_id": page.run("return location.hash.slice(1)")}).json()
        assert (run["attempt"], first["attempt"]) == (1, 2)


def test_what_it_looks_like(folder: Path, page: Page) -> None:
    """Nothing overflows, on a phone either. PREGEL_SCREENSHOT_INBOX sets the path of a screenshot."""
    with BackgroundService(folder) as service:
        service.start("a topic with a long name, so long that it does not fit into the list of reports at the left")
        page.driver.get(service.url)
        page.start("kettles")
        page.until(lambda: page.events == FIRST)
        page.find("#questions input")
        for width in (360, 1100):
            size = {"width": width, "height": 760, "deviceScaleFactor": 1, "mobile": False}
            page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            page.until(lambda width=width: page.run("return innerWidth") == width)
            assert page.run("return document.documentElement.scrollWidth") == width
        if "PREGEL_SCREENSHOT_INBOX" in os.environ:
            Path(os.environ["PREGEL_SCREENSHOT_INBOX"]).write_bytes(page.driver.get_screenshot_as_png())
        assert page.complaints == []
