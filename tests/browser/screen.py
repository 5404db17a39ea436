"""The few words that the browser tests are told in."""

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, expect

from vram import Estimate, Scenario, estimate
from vram.units import amount

ROOT = Path(__file__).parents[2]
PAGES = {
    **{"Model": "/", "Precision": "/precision", "Activations": "/activations", "Parallelism": "/parallelism"},
    "Evidence": "/evidence",
}
READY = "[data-testid=stApp][data-test-script-state=notRunning][data-test-connection-state=CONNECTED]"


@contextmanager
def serving(log: Path, folder: Path = ROOT) -> Iterator[str]:
    """Start the app of a folder on a free port, yield its address, stop it; fail if it logged an error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    streamlit = Path(sys.executable).with_name("streamlit")
    flags = [f"--server.port={port}", "--server.address=127.0.0.1", "--server.headless=true"]
    with log.open("w") as out:
        server = subprocess.Popen([streamlit, "run", "app.py", *flags], cwd=folder, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
                    if answer.read() == b"ok":
                        break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)
    assert "Traceback" not in log.read_text(), log.read_text()


def idle(page: Page) -> None:
    """Wait until the app has run, and has drawn what it has to show."""
    page.wait_for_selector(READY)
    page.wait_for_selector("[data-testid=stSkeleton]", state="detached")
    page.wait_for_function(
        "() => { const all = [...document.querySelectorAll('.plot')];"
        " return all.length && all.every((plot) => plot.querySelector('.main-svg')); }"
    )


def visit(page: Page, where: str = "/", link: str = "") -> None:
    """Open a link on a page."""
    page.goto(f"{where}?{link}" if link else where)
    idle(page)


def go(page: Page, name: str) -> None:
    """Click on the link to another page."""
    page.get_by_role("link", name=name, exact=True).click()
    page.wait_for_url(lambda url: urlsplit(url).path == PAGES[name], wait_until="commit")
    expect(page.get_by_role("heading", level=2).first).to_contain_text(f"{name}:")
    idle(page)


def strip(page: Page) -> Locator:
    """The result strip."""
    return page.locator(".st-key-strip")


def memory(page: Page) -> Locator:
    """The strip's chart."""
    return strip(page).locator(".plot")


def slider(page: Page, name: str) -> Locator:
    """A slider by its label."""
    return page.get_by_role("group", name=name, exact=True).get_by_role("slider")


def query(page: Page) -> str:
    """The query string in the address bar."""
    return urlsplit(page.url).query


def shows(page: Page, link: str) -> Estimate:
    """Wait until address, bar and total say what the formulas say of a link."""
    wanted = Scenario.from_link(link)
    found = estimate(wanted)
    unit = wanted.view.unit
    page.wait_for_url(lambda url: Scenario.parse_link(urlsplit(url).query)[0] == wanted, wait_until="commit")
    total, capacity = amount(found.device_bytes, unit), amount(found.capacity_bytes, unit)
    expect(strip(page)).to_contain_text(f"{total} / {capacity}")
    expect(strip(page)).to_contain_text(found.verdict.capitalize())
    expect(memory(page)).to_have_attribute("aria-label", re.compile(re.escape(f"{total} of {capacity}")))
    return found
