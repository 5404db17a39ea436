"""A server as the README starts it, and a Chromium that listens for errors."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, expect
from screen import serving

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PROBES = re.compile(r"/(precision|activations|parallelism|evidence|nonsense)/_stcore/(health|host-config)$")
"""Streamlit looks for its server below the page's own address first, and finds a 404 there."""

expect.set_options(timeout=15_000)


@pytest.fixture(scope="session")
def server_log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="session")
def base_url(server_log) -> Iterator[str]:
    with serving(server_log) as address:
        yield address


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args) -> dict:
    if not CHROMIUM:
        pytest.fail("These tests need Chromium or Google Chrome: install the package chromium, or run sh tests/run.")
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": arguments}


@pytest.fixture
def new_context(new_context, server_log) -> Iterator[Callable[..., BrowserContext]]:
    """Contexts that hear every error in the browser and every request; none may be bad when the test ends."""
    heard: list[str] = []

    def console(message) -> None:
        if message.type == "error" and not PROBES.search(message.location["url"]):
            heard.append(f"console: {message.text} ({message.location['url']})")

    def request(sent) -> None:
        where = urlsplit(sent.url)
        if where.scheme not in ("data", "blob") and where.hostname != "127.0.0.1":
            heard.append(f"request to {sent.url}")

    def make(**settings) -> BrowserContext:
        context = new_context(**settings)
        context.on("console", console)
        context.on("weberror", lambda error: heard.append(f"page error: {error.error.stack}"))
        context.on("request", request)
        return context

    logged = len(server_log.read_text()) if server_log.exists() else 0
    yield make
    assert not heard
    assert not server_log.exists() or "Traceback" not in server_log.read_text()[logged:]
