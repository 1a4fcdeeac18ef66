"""Headless Chromium for tests of pages: one browser for a module, a fresh profile for each visit, no network."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of Playwright's, run on the Chromium of this machine; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install vri[dev]")
    chosen = os.environ.get("CHROMIUM")
    program = next(filter(None, map(shutil.which, [chosen] if chosen else NAMES)), None)
    if program is None:
        pytest.skip("Chromium is not there: apt-get install chromium, or give its path in the variable CHROMIUM")
    with playwright.sync_playwright() as driver:
        # Root, as in most containers, has no sandbox; the pages opened are our own.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Any, path: Path, width: int = 1280, height: int = 900, **options: Any) -> Iterator[Any]:
    """A page open on a file; fails if a script raised, something was refused, or another file was asked for."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    complaints: list[str] = []
    own = path.resolve().as_uri()

    def watch(page: Any) -> None:
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("request", lambda request: complaints.extend(_foreign(request.url, own)))

    context.on("page", watch)
    try:
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto(own)
        yield page
        if complaints:
            raise AssertionError("\n".join(complaints))
    finally:
        context.close()


def until(page: Any, condition: str) -> None:
    """Wait until a JavaScript expression holds; Playwright's own way needs eval, which a strict page forbids."""
    end = time.monotonic() + 10
    while not page.evaluate(condition):
        if time.monotonic() > end:
            raise AssertionError(f"still not so after 10 s: {condition}")
        page.wait_for_timeout(20)


def _foreign(url: str, own: str) -> list[str]:
    inside = url.split("#")[0] == own or url.startswith(("data:", f"blob:{own.split('/')[0]}"))
    return [] if inside else [f"request: {url[:200]}"]
