"""A browser for tests of the dashboard: Debian's, driven by Playwright."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.compat.installed import AXE, find_browser
from tests.patience import PATIENCE

DESKTOP = {"width": 1320, "height": 900}
PHONE = {"width": 390, "height": 844}

_BETWEEN_CHECKS = 30  # milliseconds


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start the browser without windows."""
    from playwright.sync_api import sync_playwright

    program, libraries = find_browser()
    # In a container without user namespaces the sandbox does not start. The only pages are the node's own.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=arguments,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """A page of the browser, and all that it must not do.

    Attributes:
        page: Playwright's page.
        requests: the URLs that it has asked for.
        complaints: errors on its console, violations of its Content-Security-Policy among them, and exceptions.
    """

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def wait_for(self, script: str, argument: Any = None) -> Any:
        """Wait until a function of JavaScript returns something true, and return it.

        Playwright's own wait evaluates texts, which the page's Content-Security-Policy forbids.
        """
        deadline = time.monotonic() + PATIENCE
        while not (found := self.page.evaluate(script, argument)):
            assert time.monotonic() < deadline, f"false for {PATIENCE:g} s: {script}; {self.complaints}"
            self.page.wait_for_timeout(_BETWEEN_CHECKS)
        return found


@contextmanager
def open_page(
    browser: Any, url: str, *, dark: bool = False, phone: bool = False, **options: Any
) -> Iterator[WatchedPage]:
    """Open the dashboard of a node and wait for its first document.

    Args:
        browser: the browser.
        url: the address of the dashboard.
        dark: the user prefers dark pages.
        phone: the size of a phone.
        options: of Playwright's contexts, such as http_credentials.
    """
    context = browser.new_context(
        viewport=PHONE if phone else DESKTOP,
        color_scheme="dark" if dark else "light",
        device_scale_factor=2 if phone else 1,
        locale="en-GB",
        timezone_id="UTC",
        **options,
    )
    try:
        watched = WatchedPage(context.new_page())
        watched.page.goto(url)
        watched.wait_for("() => document.body.dataset.at")
        yield watched
    finally:
        context.close()


def expect_accessible(shown: WatchedPage) -> None:
    """Check a page with axe, its width, and its console."""
    # The page forbids scripts of others; Playwright's own world of scripts is not the page's.
    shown.page.evaluate(AXE.read_text())
    found = shown.page.evaluate("() => axe.run(document, {rules: {'target-size': {enabled: true}}})")
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found["violations"]] == []
    assert shown.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert shown.complaints == []
