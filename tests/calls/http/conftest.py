"""A scripted server, and a client with a resilient transport, sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from prefect_resilience.guards.circuits.registry import forget_circuits
from tests.calls.http.server import Server
from tests.calls.http.webs import RequestsWeb, Web


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Server]:
    """A second server."""
    made = Server()
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_web(way: str) -> Iterator[Callable[..., Any]]:
    """Makes a client whose transport has these options; `client={...}` are the client's own."""
    made: list[Any] = []
    with asyncio.Runner() as runner:

        def make(client: dict[str, Any] | None = None, **options: Any) -> Any:
            own = RequestsWeb(**options) if way == "requests" else None
            made.append(own or Web(way == "async", runner, client or {}, **options))
            return made[-1]

        yield make
        for web in made:
            web.close()


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of this test alone: circuits and effects of others are not in it."""
    forget_circuits()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"memory://{uuid4().hex}")
