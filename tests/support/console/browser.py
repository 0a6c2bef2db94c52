"""A real Chromium without a window, for the tests of the console.

`chromium` and `chromedriver` of the PATH are used, or those that the set-up put into the environment
(browser_setup.py).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import (
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from tests.support.waiting import wait_until

OWN = Path(sys.prefix) / "browser"
"""Where the set-up puts a browser if the machine has none."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-background-networking", "--no-first-run", "--force-color-profile=srgb", "--hide-scrollbars",
)  # fmt: skip
WIDE, PHONE = (1280, 860), (390, 844)


def find_browser() -> tuple[Path, Path] | None:
    """The browser and its driver."""
    browser = next((found for name in NAMES if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser and driver:
        return Path(browser), Path(driver)
    own = OWN / "chromium", OWN / "chromedriver"
    return own if all(path.exists() for path in own) else None


class Browser:
    """A tab, and what a user does in it. Everything waits until it can be done."""

    def __init__(self) -> None:
        found = find_browser()
        assert found is not None, "there is no Chromium: `make browser` installs one, or says what is needed"
        options = webdriver.ChromeOptions()
        options.binary_location = str(found[0])
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.folder = Path(tempfile.mkdtemp(prefix="browser-"))
        """Everything that the browser and its driver leave behind; Chromium removes some of it, and only at times."""
        service = webdriver.ChromeService(str(found[1]), env={**os.environ, "TMPDIR": str(self.folder)})
        self.driver = webdriver.Chrome(options=options, service=service)
        self.resize(*WIDE)

    def resize(self, width: int, height: int) -> None:
        """The size of the page itself, also below the least width of a window."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def theme(self, name: str) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]}
        )

    def open(self, address: str) -> None:
        self.driver.get(address)

    def forget(self) -> None:
        """No cookies, nothing stored: a browser as new."""
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        if self.driver.current_url.startswith("http"):
            self.script("localStorage.clear(); sessionStorage.clear()")
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.resize(*WIDE)
        self.theme("light")

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)

    def text(self, selector: str = "body") -> str:
        try:
            return self.driver.find_element(By.CSS_SELECTOR, selector).text
        except (NoSuchElementException, StaleElementReferenceException):
            return ""
        except WebDriverException as error:  # the page is being loaded again
            if "navigat" not in str(error):
                raise
            return ""

    def sees(self, words: str, selector: str = "body", seconds: float = 60) -> None:
        """Wait until the words are on the page."""
        try:
            wait_until(lambda: words in self.text(selector), seconds)
        except AssertionError:
            raise AssertionError(f"{words!r} is not in {selector}: {self.text(selector)!r}") from None

    def sees_no(self, words: str, selector: str = "body") -> None:
        wait_until(lambda: words not in self.text(selector), 60)

    def find(self, selector: str) -> WebElement:
        self.until(lambda: self.driver.find_elements(By.CSS_SELECTOR, selector))
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The texts of all such elements, in one look."""
        found: list[str] = self.script(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText.trim())", selector
        )
        return found

    def until(self, condition: Callable[[], object]) -> None:
        wait_until(condition, 60)

    def _steadily(self, step: Callable[[], object]) -> None:
        """A page that lives may replace an element between finding and using it."""

        def attempt() -> bool:
            try:
                step()
            except (StaleElementReferenceException, NoSuchElementException, ElementNotInteractableException):
                return False
            return True

        wait_until(attempt, 60)

    def click(self, selector: str, words: str = "") -> None:
        """Click the first such element, or the one with these words."""

        def step() -> None:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            chosen = [each for each in found if not words or words in each.text]
            if not chosen:
                raise NoSuchElementException(f"{selector} {words}")
            chosen[0].click()

        self._steadily(step)

    def fill(self, selector: str, text: str) -> None:
        def step() -> None:
            box = self.driver.find_element(By.CSS_SELECTOR, selector)
            box.clear()
            box.send_keys(text)

        self._steadily(step)

    def press(self, keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(keys)

    def complaints(self) -> list[str]:
        """What the browser logged as errors, without the answers that a test provoked."""
        found = [row["message"] for row in self.driver.get_log("browser") if row["level"] == "SEVERE"]
        return [text for text in found if "Failed to load resource" not in text and "ERR_CONNECTION" not in text]

    def picture(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(path))

    def close_other_windows(self) -> None:
        """Close what a page or a test has opened, and go back to the first."""
        first, *others = self.driver.window_handles
        for window in others:
            self.driver.switch_to.window(window)
            self.driver.close()
        self.driver.switch_to.window(first)

    def close(self) -> None:
        self.driver.quit()

        def removed() -> bool:
            """Processes of the browser that are just ending may still make files."""
            shutil.rmtree(self.folder, ignore_errors=True)
            return not self.folder.exists()

        wait_until(removed, 60)
