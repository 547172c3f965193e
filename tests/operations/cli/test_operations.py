"""`set_circuit` and `reset_circuits` as real flow runs against a real Prefect API."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.flows import load_flow_from_entrypoint, load_flow_from_flow_run
from prefect.types.entrypoint import EntrypointType

from prefect_resilience import CircuitSnapshot, get_circuits
from prefect_resilience.base.edge.current_settings import circuit_store_url
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.registry import set_default_store
from prefect_resilience.operations import reset_circuits, set_circuit

pytestmark = pytest.mark.api


@pytest.fixture(autouse=True)
def default_store(circuits: str) -> Iterator[None]:
    """The worker of these flows is configured with the fleet's store."""
    set_default_store(circuit_store_url)
    yield
    set_default_store(circuit_store_url)


def elsewhere(name: str) -> str:
    """What a call of this circuit meets in a process that is no relative of this one."""
    code = f"""
from prefect_resilience import CircuitBreaker
try:
    print(CircuitBreaker({name!r}, failure_threshold=3, open_for=300).call(str, "through"))
except Exception as error:
    print(error)
"""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_a_run_opens_a_circuit_for_other_processes(circuits: str) -> None:
    until = datetime.now(UTC) + timedelta(minutes=10)
    state = set_circuit("llm:secondary", "open", "the provider | said\nso", until, return_state=True)
    after = CircuitSnapshot.model_validate(state.result())
    assert (after.state, after.reason) == ("forced_open", "the provider | said so")
    assert after.retry_at == pytest.approx(until.timestamp())
    assert "the provider | said so" in elsewhere("llm:secondary")

    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
    assert run.name == "open: llm:secondary"


def test_the_other_actions(circuits: str) -> None:
    assert set_circuit("orders", "disable")["state"] == "disabled"
    assert set_circuit("orders", "close")["reason"] == "closed by flow run 'close: orders'"
    assert set_circuit("llm:primary", "reset", "it is morning")["state"] == "closed"


@pytest.mark.smoke
def test_reset_circuits(circuits: str) -> None:
    assert len(reset_circuits("morning")) == 4
    assert {circuit.state for circuit in get_circuits(circuits)} == {"closed"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "ordrs", "action": "open"}, "did you mean 'orders'"),
        ({"name": "orders", "action": "close", "until": "2999-01-01T00:00:00Z"}, "is only for action='open'"),
        ({"name": "orders", "action": "open", "until": "2020-01-01T00:00:00"}, "is in the past"),
    ],
)
def test_a_mistake_fails_the_run_and_changes_nothing(
    circuits: str, arguments: dict[str, Any], says: str
) -> None:
    before = get_circuits(circuits)
    state = set_circuit(**arguments, return_state=True)
    assert state.is_failed()
    assert says in state.message
    with pytest.raises(ConfigurationError):
        state.result()
    assert [(c.name, c.state, c.reason) for c in get_circuits(circuits)] == [
        (c.name, c.state, c.reason) for c in before
    ]


def test_a_deployment_runs_it_as_a_module(circuits: str) -> None:
    deployment = set_circuit.to_deployment("by-hand", entrypoint_type=EntrypointType.MODULE_PATH)
    assert deployment.entrypoint == "prefect_resilience.operations.flows.set_circuit"
    deployment_id = deployment.apply()
    with get_client(sync_client=True) as client:
        parameters = {"name": "orders", "action": "close", "reason": "it is over"}
        run = client.create_flow_run_from_deployment(deployment_id, parameters=parameters)
    # What a worker's process does with the run.
    run_flow(asyncio.run(load_flow_from_flow_run(run)), flow_run=run)
    closed = next(circuit for circuit in get_circuits(circuits) if circuit.name == "orders")
    assert (closed.state, closed.reason) == ("closed", "it is over")


@pytest.mark.parametrize("name", ["set_circuit", "reset_circuits"])
@pytest.mark.parametrize("form", ["prefect_resilience.operations:{}", "prefect_resilience.operations.{}"])
def test_a_deployment_finds_the_flow_in_the_wheel(name: str, form: str) -> None:
    found = load_flow_from_entrypoint(form.format(name), use_placeholder_flow=False)
    assert isinstance(found, Flow)
    assert found.name == name.replace("_", "-")


def test_the_form_in_the_ui_offers_what_may_be_chosen() -> None:
    form = set_circuit.parameters
    assert form.required == ["name", "action"]
    assert form.properties["action"]["enum"] == ["open", "close", "disable", "reset"]
    assert "llm:primary" in form.properties["name"]["description"]
    (moment, _) = form.properties["until"]["anyOf"]
    assert moment["format"] == "date-time"
