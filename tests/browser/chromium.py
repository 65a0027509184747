"""A headless Chromium. Modules that import this are skipped where it is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HOW = "needs selenium, chromium and chromedriver: nox -s browser"
CHROMIUM, DRIVER = (shutil.which(name) or "" for name in ("chromium", "chromedriver"))

if "PREGEL_BROWSER" in os.environ:
    assert CHROMIUM, HOW
    assert DRIVER, HOW
elif not (CHROMIUM and DRIVER):
    pytest.skip(HOW, allow_module_level=True)
else:
    pytest.importorskip("selenium", reason=HOW)

from selenium import webdriver  # noqa: E402  # only where it is installed
from selenium.webdriver.chrome.service import Service  # noqa: E402  # only where it is installed
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402  # only where it is installed

__all__ = ["HOW", "WebDriverWait", "chromium"]

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1100,760 --hide-scrollbars"
)


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Run a new browser.

    Args:
        profile: the folder of its data.

    Yields:
        Its driver, of selenium.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
