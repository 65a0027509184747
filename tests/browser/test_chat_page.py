"""The page of examples/chat_service in a headless Chromium: `nox -s browser`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.chat_service.model import SCRIPT
from tests.browser.chromium import HOW, WebDriverWait, chromium
from tests.helpers.chat_service import HANGS, ChatService, breaking_off, chat_service, provider

WATCH = """
    window.seen = []  // all that the last message has been
    window.errors = []
    addEventListener("error", event => errors.push(event.message))
    addEventListener("unhandledrejection", event => errors.push(String(event.reason)))
    new MutationObserver(() => {
        const text = [...document.querySelectorAll("#log > .assistant")].at(-1)?.textContent
        if (text !== undefined && text !== seen.at(-1)) seen.push(text)
    }).observe(document, {childList: true, subtree: true, characterData: true})
"""

WHOLE = [("user", "And on a reload?"), ("assistant", SCRIPT["reload"])]
EMAIL = "Write an email to ada@example.org"
DRAFT = ("assistant", "I have written this email. It goes out when you say so.")
SENT = [("tool", "Sent to ada@example.org: News of your graph"), ("assistant", "Done, it is on its way.")]


class Page:
    """The page as its user sees it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def run(self, script: str, *args: object) -> Any:
        return self.driver.execute_script(script, *args)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds."""
        return WebDriverWait(self.driver, 20, poll_frequency=0.01).until(lambda _: condition())

    def find(self, css: str) -> Any:
        return self.driver.find_element("css selector", css)

    def say(self, text: str) -> None:
        self.until(lambda: not self.run("return document.querySelector('#send').disabled"))
        self.find("#text").send_keys(text + "\n")

    def click(self, name: str) -> None:
        self.until(lambda: self.driver.find_elements("xpath", f"//button[.='{name}']"))
        self.driver.find_element("xpath", f"//button[.='{name}']").click()

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Return the visible messages."""
        script = "return [...document.querySelectorAll('#log > :not([hidden])')].map(m => [m.className, m.textContent])"
        return [(role, text) for role, text in self.run(script)]

    def until_shown(self, *messages: tuple[str, str]) -> None:
        """Wait until exactly these messages are shown, and no more are expected."""
        self.until(lambda: self.messages == [*messages] and not self.busy)

    @property
    def busy(self) -> bool:
        return self.run("return document.querySelector('#send').disabled")

    @property
    def last(self) -> str:
        """Return the text of the model's last message so far."""
        said = [text for role, text in self.messages if role == "assistant"]
        return said[-1] if said else ""

    @property
    def seen(self) -> list[str]:
        """Return all texts of the last message since the page was loaded."""
        return self.run("return seen")

    @property
    def titles(self) -> list[str]:
        return self.run("return [...document.querySelectorAll('nav li')].map(item => item.textContent)")

    @property
    def complaints(self) -> list[Any]:
        return [*self.run("return errors"), *self.driver.get_log("browser")]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """Open the page in a new browser."""
    with chromium(tmp_path / "browser") as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        yield Page(driver)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatService]:
    with chat_service(tmp_path_factory.mktemp("chat"), CHAT_PAUSE="0.01") as service:
        yield service
        assert service.complaints == []


def test_tokens_show_one_by_one(service: ChatService, page: Page) -> None:
    """The page shows tokens one by one; the answer is there once, and still after a reload."""
    page.driver.get(service.url)
    page.say("And on a reload?")
    page.until_shown(*WHOLE)
    assert all(SCRIPT["reload"].startswith(text) for text in page.seen)
    assert len(page.seen) > 20
    page.driver.refresh()
    page.until_shown(*WHOLE)
    assert page.titles == ["And on a reload?"]
    assert page.complaints == []


@pytest.mark.parametrize("count", [1, 30])
def test_a_reload_in_mid_answer(service: ChatService, page: Page, count: int) -> None:
    """A reload shows the earlier words and then the others, none twice and none out of order."""
    page.driver.get(service.url)
    page.say("And on a reload?")
    page.until(lambda: len(page.last.split()) >= count)
    before = page.last
    page.driver.refresh()
    page.until_shown(*WHOLE)
    assert len(before) < len(SCRIPT["reload"])
    assert all(SCRIPT["reload"].startswith(text) for text in page.seen)
    assert page.seen == sorted(page.seen, key=len)
    assert page.complaints == []


@pytest.mark.parametrize("button", ["Allow", "Refuse"])
def test_a_tool_asks(service: ChatService, page: Page, button: str) -> None:
    """A tool's question is shown once, after a reload too."""
    page.driver.get(service.url)
    page.say(EMAIL)
    page.until_shown(("user", EMAIL), DRAFT)
    page.driver.refresh()
    page.until(lambda: page.driver.find_elements("css selector", ".question"))
    assert "ada@example.org" in page.find(".question").text
    page.click(button)
    refused = [("tool", "Not done: the user refused."), ("assistant", "All right, I have not sent it.")]
    page.until_shown(("user", EMAIL), DRAFT, *(SENT if button == "Allow" else refused))
    assert page.driver.find_elements("css selector", ".question") == []
    assert page.complaints == []


def test_several_conversations(service: ChatService, page: Page) -> None:
    """One conversation continues while another is shown; switching back shows all of it."""
    page.driver.get(service.url)
    page.say("And on a reload?")
    page.until(lambda: page.last)
    page.click("New conversation")
    page.until(lambda: page.messages == [])
    page.say("hello")
    page.until_shown(("user", "hello"), ("assistant", SCRIPT["hello"]))
    assert page.titles == ["hello", "And on a reload?"]
    page.driver.back()
    page.driver.back()
    page.until_shown(*WHOLE)
    page.find("nav li a").click()
    page.until_shown(("user", "hello"), ("assistant", SCRIPT["hello"]))
    assert page.complaints == []


def test_two_tabs(service: ChatService, page: Page) -> None:
    """A message or permission in one tab appears in the other."""
    page.driver.get(service.url)
    page.say(EMAIL)
    page.until_shown(("user", EMAIL), DRAFT)
    first, here = page.driver.current_window_handle, page.driver.current_url
    page.driver.switch_to.new_window("tab")
    page.driver.get(here)
    page.until_shown(("user", EMAIL), DRAFT)
    page.click("Allow")
    page.until_shown(("user", EMAIL), DRAFT, *SENT)
    page.driver.switch_to.window(first)
    page.until_shown(("user", EMAIL), DRAFT, *SENT)
    assert page.driver.find_elements("css selector", ".question") == []


def test_the_service_is_killed_under_the_page(tmp_path: Path, page: Page) -> None:
    """The page waits, and shows the answer without a reload when the service is back."""
    folder = tmp_path / "service"
    folder.mkdir()
    with chat_service(folder, CHAT_PAUSE=HANGS) as service:
        port = service.url.rpartition(":")[2]
        page.driver.get(service.url)
        page.say("And on a reload?")
        page.until(lambda: page.last == "Try ")
        service.process.kill()
        page.until(lambda: "Trying again" in page.find("#notice").text)
        assert page.last == "Try "
    with chat_service(folder, CHAT_PAUSE="0.01", port=port):
        page.until_shown(*WHOLE)
        assert page.find("#notice").text == ""
        assert page.run("return errors") == []


def test_an_answer_that_breaks_off(tmp_path: Path, page: Page) -> None:
    """The page reports the failure, after a reload too, and retries on request."""
    pytest.importorskip("openai", reason=HOW)
    folder = tmp_path / "service"
    folder.mkdir()
    with (
        provider(breaking_off()) as (url, _),
        chat_service(folder, OPENAI_API_KEY="key", OPENAI_BASE_URL=url) as service,
    ):
        page.driver.get(service.url)
        page.say("Say it")
        page.until(lambda: "has failed" in page.find("#notice").text)
        assert page.messages == [("user", "Say it")]
        page.driver.refresh()
        page.until(lambda: "has failed" in page.find("#notice").text)
        assert page.messages == [("user", "Say it")]
        page.click("Try again")
        page.until_shown(("user", "Say it"), ("assistant", "One two."))
        assert page.find("#notice").text == ""
        assert page.complaints == []


def test_what_it_looks_like(service: ChatService, page: Page) -> None:
    """Nothing overflows, on a phone either. PREGEL_SCREENSHOT sets the path of the screenshot for README."""
    page.driver.get(service.url)
    for text in ("What do you do on a reload?", "hello"):
        page.say(text)
        page.until(lambda: not page.busy and page.last)
        page.click("New conversation")
        page.until(lambda: page.messages == [])
    page.say("What is a superstep?")
    page.until(lambda: page.last == SCRIPT["superstep"] and not page.busy)
    page.say("Send that to ada@example.org, please")
    page.until(lambda: page.driver.find_elements("css selector", ".question"))
    page.run("document.activeElement.blur()")
    for width in (360, 1100):
        size = {"width": width, "height": 760, "deviceScaleFactor": 1, "mobile": False}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.until(lambda: page.run("return innerWidth") == width)
        assert page.run("return document.documentElement.scrollWidth") == width
        page.run("document.querySelector('#scroll').scrollTop = 1e6")
        picture = page.driver.get_screenshot_as_png()
        for name in page.driver.find_elements("css selector", "#text, #send, .question button"):
            assert page.run("return arguments[0].scrollWidth <= arguments[0].clientWidth + 1", name)
    if "PREGEL_SCREENSHOT" in os.environ:
        Path(os.environ["PREGEL_SCREENSHOT"]).write_bytes(picture)
    assert page.complaints == []
