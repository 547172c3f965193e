"""The site in Debian's Chromium: wide and narrow, light and dark. Its screenshots are there to be looked at.

`make docs-pictures` builds the site and runs this. SITE_PICTURES names the folder for the screenshots.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT
from tests.ui.conftest import CHROMIUM, PATIENCE, QUIET

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PAGES = {"start": "index.html", "concept": "concepts/circuits.html", "reference": "reference/circuits.html"}
WIDTHS = {1400: 900, 390: 844}
SCHEMES = {"light": "default", "dark": "slate"}
STILL = "--force-prefers-reduced-motion"
"""Pictures in a page follow the browser's own preference, and not that of a context."""

Visit = Callable[..., Any]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log line for each."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    if CHROMIUM is None:
        pytest.fail("there is no Chromium here: on Debian, apt-get install chromium")
    if importlib.util.find_spec("mkdocs") is None:
        pytest.fail("mkdocs is missing: run `make docs-pictures`, which installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the screenshots."""
    named = os.environ.get("SITE_PICTURES")
    folder = Path(named) if named else tmp_path_factory.mktemp("pictures")
    print(f"screenshots: {folder}")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, STILL])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    """Open a page of the site. Afterwards: every request went to this site, and was answered."""
    contexts: list[Any] = []
    strange: list[str] = []

    def check(response: Any) -> None:
        known = response.url.startswith(f"{address}/")
        # Only a site of several versions has this list of them
        if not known or (response.status >= 400 and not response.url.endswith("/versions.json")):
            strange.append(f"{response.status} {response.url}")

    def open_page(path: str, width: int = 1400, scheme: str = "light") -> Any:
        size = {"width": width, "height": WIDTHS[width]}
        context = browser.new_context(viewport=size, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda one: urlsplit(one.url).hostname == "127.0.0.1" or strange.append(one.url))
        page.on("response", check)
        page.goto(f"{address}/{path}", wait_until="networkidle")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert strange == []


def scheme_of(page: Any) -> str:
    return page.locator("body").get_attribute("data-md-color-scheme")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_screen(name: str, width: int, scheme: str, visit: Visit, pictures: Path) -> None:
    page = visit(PAGES[name], width, scheme)
    assert scheme_of(page) == SCHEMES[scheme]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("scrollTo(100, 0)")
    assert page.evaluate("scrollX") == 0
    unseen = "[...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)"
    assert page.evaluate(unseen) == []
    page.evaluate("scrollTo(0, 0)")
    file = pictures / f"{name}-{width}-{scheme}.png"
    page.screenshot(path=str(file), full_page=True, animations="disabled")


def test_every_link_of_the_site_leads_to_a_file(site: Path) -> None:
    """Also those of the theme, which mkdocs does not check."""
    missing: set[str] = set()
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link) and not (page.parent / unquote(link)).exists():
                missing.add(f"{page.relative_to(site)}: {link}")
    assert missing == set()
