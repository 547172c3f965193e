"""The application on a store that real breakers have filled, asked over HTTP without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette

from prefect_resilience import CircuitBreaker
from prefect_resilience.guards.circuits.registry import flush_all, forget_circuits
from prefect_resilience.operations.dashboard import Gate, make_app
from tests.operations.cli.conftest import call

HOST = "127.0.0.1:4280"
HEADERS = {"Origin": f"http://{HOST}", "X-Resilience-Token": "right"}
PATIENCE = 60.0


@dataclass
class Page:
    """What a browser knows that asks for the rows again and again."""

    browser: httpx.AsyncClient
    version: int = 0
    parts: dict[str, dict[str, Any]] = field(default_factory=dict[str, Any])

    def row(self, part: str, name: str) -> dict[str, Any]:
        return self.parts.get(part, {}).get(name, {})

    async def until(self, condition: Callable[[Page], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition(self):
                await asyncio.sleep(0.02)
                message = (await self.browser.get("/state", params={"since": self.version})).json()
                self.version = message["version"]
                for part, rows in message["set"].items():
                    merged = {**({} if message["all"] else self.parts.get(part, {})), **rows}
                    self.parts[part] = {name: row for name, row in merged.items() if row is not None}


@asynccontextmanager
async def browsing(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=HEADERS) as client,
    ):
        yield client


@pytest.fixture
def page(browser: httpx.AsyncClient) -> Page:
    return Page(browser)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = f"sqlite:///{tmp_path}/fleet.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", made)
    return made


@pytest.fixture
def app(url: str) -> Starlette:
    return make_app(Gate("right"), url, url, "the store of the tests")


@pytest_asyncio.fixture
async def browser(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with browsing(app) as client:
        yield client


@pytest.fixture
def circuits(url: str) -> None:
    """One that is well, one that opened, one that is open by hand."""
    forget_circuits()
    call(CircuitBreaker("llm:secondary", store=url), "ssssssf")
    call(CircuitBreaker("llm:primary", failure_threshold=3, open_for=300, store=url), "ssssfff")
    CircuitBreaker("orders", store=url).force_open("maintenance")
    flush_all()
    forget_circuits()
