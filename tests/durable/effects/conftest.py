"""These tests run against a real Prefect API, and send to a real HTTP service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL

from prefect_resilience.durable.batches.edge import recovery
from prefect_resilience.effects import send_idempotency_key
from tests.durable.effects import saga_parts
from tests.durable.effects.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def post(receiver: Receiver) -> Callable[..., Any]:
    """Send a message as a user's effect does; the receiver's id of it."""
    client = httpx.Client(
        event_hooks={"request": [send_idempotency_key]},
        timeout=20,
        limits=httpx.Limits(max_keepalive_connections=0),
    )

    def post(**options: Any) -> str:
        response = client.post(receiver.url, **options)
        response.raise_for_status()
        return response.json()["id"]

    return post


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that other processes see too; its URL."""
    url = f"sqlite:///{tmp_path}/effects.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    return url


@pytest.fixture
def saga(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of sagas send to this receiver, and nothing was called before."""
    monkeypatch.setenv(saga_parts.RECEIVER, receiver.url)
    saga_parts.calls.clear()
    saga_parts.troubles.clear()


@pytest.fixture
def api() -> str:
    """The address of the Prefect API, for other processes."""
    return str(PREFECT_API_URL.value())


@pytest.fixture
def crashes_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery does not wait for a second report of a crash."""
    monkeypatch.setattr(recovery, "CRASH_SETTLES", 0.0)


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture
def deployed_run(client: SyncPrefectClient) -> Callable[..., FlowRun]:
    """Makes runs of a deployed flow that came to these states."""

    @flow
    def nothing() -> None:
        return None

    deployment_id = nothing.to_deployment(f"d-{uuid4().hex[:8]}").apply()

    def make(*states: Any, **options: Any) -> FlowRun:
        run = client.create_flow_run_from_deployment(deployment_id, **options)
        for state in states:
            client.set_flow_run_state(run.id, state, force=True)
        return run

    return make
