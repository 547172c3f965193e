"""compose.yaml: its structure, and its services as they stand, started from this machine's binaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from httpx import HTTPStatusError
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from prefect_resilience import get_circuits
from tests.deployments import compose


def test_it_is_a_compose_file_whose_parts_fit_together():
    read = compose.read()
    services = read["services"]
    for service in services.values():
        for name, needs in service.get("depends_on", {}).items():
            healthy = needs["condition"] != "service_healthy" or "healthcheck" in services[name]
            assert healthy, f"{name} never says that it is healthy"
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(read["volumes"])
        assert {one["source"] for one in service.get("configs", [])} <= set(read["configs"])
        if "build" in service:
            assert (
                compose.FILE.parent / service["build"]["context"] / service["build"]["dockerfile"]
            ).is_file()
    pools = [services[f"worker-{side}"]["command"][-1] for side in ("east", "west")]
    assert pools == ["east", "west"]


def test_its_settings_can_be_changed_from_outside():
    services = compose.read(POSTGRES_PASSWORD="of-my-own", PREFECT_RESILIENCE_WEBHOOK="http://x/")["services"]
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "of-my-own"
    assert ":of-my-own@" in services["server"]["environment"]["PREFECT_SERVER_DATABASE_CONNECTION_URL"]
    assert ":of-my-own@" in services["worker-east"]["environment"]["PREFECT_RESILIENCE_STORE_URL"]
    assert services["install"]["environment"]["WEBHOOK"] == "http://x/"


def test_the_metrics_beside_it_fit_to_it():
    fleet, read = compose.read()["services"], compose.read(compose.METRICS)
    for service in read["services"].values():
        assert set(service.get("depends_on", {})) <= read["services"].keys()
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(read["volumes"])
        assert {one["source"] for one in service.get("configs", [])} <= set(read["configs"])
    # Every worker pushes, to where Prometheus listens.
    workers = {name for name in fleet if name.startswith("worker-")}
    assert {
        name for name, one in read["services"].items() if "OTEL_SERVICE_NAME" in one.get("environment", {})
    } == (workers)
    assert "--web.enable-otlp-receiver" in read["services"]["prometheus"]["command"]
    for config in read["configs"].values():
        if "file" in config:
            assert (compose.METRICS.parent / config["file"]).is_file()
        else:
            assert yaml.safe_load(config["content"])


PROGRAM = """
from prefect import flow

from prefect_resilience import CircuitBreaker, CircuitOpenError, resilient_task


@resilient_task(retry=None, circuit=CircuitBreaker("shared", failure_threshold=2, open_for=600))
def call():
    raise TimeoutError("no answer")


@flow
def side():
    met = []
    for _ in range(2):
        try:
            call()
        except CircuitOpenError:
            met.append("refused")
        except TimeoutError:
            met.append("failed")
    return met
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[compose.Fleet]:
    started = compose.Fleet(tmp_path)
    try:
        started.start()
        with temporary_settings({PREFECT_API_URL: started.api, PREFECT_HOME: tmp_path / "home"}):
            yield started
    finally:
        started.end()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_workers_on_separate_pools_share_one_circuit(fleet: compose.Fleet, tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    source: Any = flow.from_source(str(tmp_path), "program.py:side")
    with get_client(sync_client=True) as client:
        for pool in ("east", "west"):
            compose.wait_for(lambda pool=pool: workers(client, pool))

        def runs_on(pool: str) -> list[str]:
            deployed = source.deploy(
                name=pool, work_pool_name=pool, print_next_steps=False, ignore_warnings=True
            )
            run = client.create_flow_run_from_deployment(deployed)
            ended = compose.wait_for(lambda: final(client.read_flow_run(run.id).state))
            assert ended.is_completed(), ended
            return ended.result()

        # The east finds out that the service is down, and the west does not call it any more.
        assert runs_on("east") == ["failed", "failed"]
        assert runs_on("west") == ["refused", "refused"]
        told = fleet.environment("worker-west")
        (circuit,) = get_circuits(told["PREFECT_RESILIENCE_CIRCUIT_STORE_URL"])
        assert (circuit.name, circuit.state) == ("shared", "open")
        # Its event has come through Redis, once, and Prefect's own database is PostgreSQL.
        body = {"filter": {"event": {"name": ["prefect-resilience.circuit.opened"]}}}
        (event,) = compose.wait_for(
            lambda: client.request("POST", "/events/filter", json=body).json()["events"]
        )
        assert event["resource"]["prefect.resource.name"] == "shared"
    url = fleet.environment("server")["PREFECT_SERVER_DATABASE_CONNECTION_URL"].replace("+asyncpg", "")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM flow_run").fetchone() == (2,)
    assert fleet.redis.client().keys("*events*")


def workers(client: SyncPrefectClient, pool: str) -> list[Any]:
    """Those of a pool, which its first worker makes."""
    try:
        return client.read_workers_for_work_pool(pool)
    except HTTPStatusError as error:
        if error.response.status_code != 404:
            raise
        return []


def final(state: Any) -> Any:
    return state if state is not None and state.is_final() else None
