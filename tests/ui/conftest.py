"""A real Prefect server with both of its UIs, a day's work on it, and Debian's Chromium to look with."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 60_000.0
"""Milliseconds that a page may take: two cores draw it, and serve it, and run other tests."""

PLAIN = 15_000
"""Bytes that a canvas without anything on it does not take as a PNG."""


FLEET_SECONDS = 90.0
WATCH = """
    window.seen = {headlines: []};
    addEventListener("DOMContentLoaded", () => new MutationObserver(() =>
        seen.headlines.push([document.getElementById("headline").textContent, Date.now()])
    ).observe(document.getElementById("headline"), {childList: true, characterData: true, subtree: true}));
"""
"""A page notes its headlines with their times."""


@dataclass
class Place:
    """The server, and the ids of what `day.py` did on it."""

    url: str
    environment: dict[str, str]
    ids: dict[str, Any]

    def artifact(self, run: str, beginning: str) -> str:
        """The id of the artifact of a run whose key begins so."""
        return next(found for key, found in self.ids["artifacts"][run].items() if key.startswith(beginning))

    def v1(self, path: str) -> str:
        return f"{self.url}{path}"

    def v2(self, path: str) -> str:
        return f"{self.url}/v2{path}"


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if CHROMIUM is None:
        pytest.fail("there is no Chromium here: on Debian, apt-get install chromium")
    home = tmp_path_factory.mktemp("ui")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "COV_"))},
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_UI_API_URL": f"{url}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", str(port)]
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        until_it_answers(f"{url}/api/health", server)
        done = subprocess.run(
            [sys.executable, "-m", "tests.ui.day"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield Place(url, environment, json.loads(done.stdout.splitlines()[-1]))
    finally:
        server.terminate()
        server.wait(30)


def until_it_answers(url: str, server: subprocess.Popen[Any]) -> None:
    transport = httpx.HTTPTransport(retries=0)
    with httpx.Client(transport=transport, timeout=5) as client:
        for _ in range(1_800):
            assert server.poll() is None, "the server ended"
            try:
                if client.get(url).is_success:
                    return
            except httpx.HTTPError:
                pass
            try:
                server.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError(f"{url} does not answer")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def look(place: Place, browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page and wait until a text stands on it."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme="dark")
    context.set_default_timeout(PATIENCE)
    pages: list[Any] = []

    def open_page(address: str, *texts: str | re.Pattern[str]) -> Any:
        page = context.new_page()
        pages.append(page)
        page.goto(address)
        for text in texts:
            page.get_by_text(text).first.wait_for()
        return page

    yield open_page
    for number, page in enumerate(pages):
        page.screenshot(path=str(tmp_path / f"page-{number}.png"))
    context.close()


@pytest.fixture
def picture() -> Callable[..., None]:
    """Keep what a page shows in docs/, where PICTURES=1 asks for it (`make browser`)."""

    def keep(page: Any, name: str, height: int = 900) -> None:
        if os.environ.get("PICTURES"):
            page.set_viewport_size({"width": 1400, "height": height})
            # Drawn to its end, without what still fades in.
            page.screenshot(path=str(ROOT / "docs" / "ui" / f"{name}.png"), animations="disabled")

    return keep


def drawn(page: Any) -> None:
    """Wait until the graph of a run stands in its canvas, which is of one colour before that."""
    canvas = page.locator("canvas").first
    canvas.wait_for()
    before = b""
    for _ in range(120):
        now = canvas.screenshot(animations="disabled")
        if len(now) > PLAIN and now == before:
            return
        before = now
        page.wait_for_timeout(500)
    raise AssertionError("the graph of the run was not drawn")


# -- dashboards


@dataclass
class Dashboard:
    """A dashboard in a process of its own, and the store that it shows."""

    url: str
    store: str
    process: subprocess.Popen[str]
    environment: dict[str, str]


def start_dashboard(folder: Path, environment: dict[str, str], *words: str) -> Dashboard:
    store = f"sqlite:///{folder}/fleet.db"
    environment = {**environment, "PREFECT_RESILIENCE_STORE_URL": store, "SENT": str(folder / "sent")}
    process = python(environment, "prefect_resilience", "dashboard", "--port", "0", "--json", *words)
    assert process.stdout is not None
    return Dashboard(json.loads(process.stdout.readline())["url"], store, process, environment)


def python(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.terminate()
        process.communicate(timeout=60)


@pytest.fixture(scope="session")
def fleet(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The fleet of `fleet.py` on a Prefect server; its calls go on for a while."""
    made = start_dashboard(tmp_path_factory.mktemp("fleet"), place.environment)
    without = {name: value for name, value in made.environment.items() if name != "SENT"}
    work = python(without, "tests.ui.fleet", str(FLEET_SECONDS))
    assert work.stdout is not None
    assert work.stdout.readline() == "ready\n"
    yield made
    end(made.process, work)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    contexts: list[Any] = []

    def open_page(address: str, width: int = 1400, scheme: str = "light") -> Any:
        made = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(made)
        made.set_default_timeout(PATIENCE)
        page = made.new_page()
        page.add_init_script(WATCH)
        page.goto(address)
        page.locator(".card").first.wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
