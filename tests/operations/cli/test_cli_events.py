"""What is done at a terminal sends events like what is done in a run, if a Prefect API is configured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience import CircuitBreaker, resilient_task
from prefect_resilience.durable.batches.edge.recovery import who
from prefect_resilience.effects import Effect, batch
from prefect_resilience.guards.circuits.registry import flush_all, forget_circuits

NOWHERE = "http://127.0.0.1:9/api"


@pytest.fixture
def circuit(url: str) -> Iterator[str]:
    """A circuit that nobody else has, which has been called."""
    name = f"told-{uuid4().hex[:8]}"
    breaker = CircuitBreaker(name, store=url)
    breaker.call(str)
    flush_all()
    forget_circuits()
    yield name
    forget_circuits()


@resilient_task(effect=Effect(key="{name}"), retry=None)
def call(name: str) -> None:
    raise TimeoutError("nobody answers")


@flow
def calling(name: str) -> None:
    call(name, return_state=True)


def of(seen: Any, happening: str, name: str) -> Any:
    """The event about a thing of this name, once it is there."""
    about = lambda event: event["resource"]["prefect.resource.name"] == name  # noqa: E731
    (event,) = seen.events(f"prefect-resilience.{happening}", about)
    return event


@pytest.mark.api
def test_a_circuit_that_is_set_by_hand(circuit: str, cli: Any, seen: Any) -> None:
    assert cli("circuits", "open", circuit, "--reason", "they said so", "--until", "10m").code == 0
    opened = of(seen, "circuit.forced", circuit)
    assert opened["resource"]["prefect.resource.id"] == f"prefect-resilience.circuit.{circuit}"
    payload = opened["payload"]
    assert payload["before"] == "closed"
    assert payload["after"] == "forced_open"
    assert payload["reason"] == "they said so"
    assert payload["by"] == who()
    assert payload["retry_at"] == pytest.approx(payload["at"] + 600, abs=60)
    assert cli("circuits", "reset", circuit).code == 0
    assert of(seen, "circuit.closed", circuit)["payload"]["before"] == "forced_open"


@pytest.mark.api
def test_what_is_done_to_a_batch(cli: Any, seen: Any, environment: None) -> None:
    name = f"calls-{uuid4().hex[:8]}"
    with batch(name):
        run = calling(name, return_state=True).state_details.flow_run_id
    assert cli("batches", "recover", name).code == 1
    told = of(seen, "batch.recovered", name)
    assert (told["payload"]["action"], told["payload"]["by"]) == ("told", who())
    assert {one["prefect.resource.id"] for one in told["related"]} == {f"prefect.flow-run.{run}"}
    # Whoever typed it was told: nobody has to be alerted.
    assert "prefect-resilience.action" not in told["resource"]
    assert cli("batches", "settle", name, name, "done", "--reason", "she told me").code == 0
    settled = of(seen, "effect.settled", name)["payload"]
    assert (settled["answer"], settled["batch_id"], settled["reason"]) == ("done", name, "she told me")
    assert cli("batches", "reopen", name, "--yes").code == 0
    assert of(seen, "batch.reopened", name)["payload"]["effects"] == 1


def test_without_an_api_nothing_is_said(circuit: str, cli: Any) -> None:
    done = cli("circuits", "open", circuit, "--reason", "they said so")
    assert (done.code, done.err) == (0, "")


@pytest.mark.api
def test_an_api_that_is_away_changes_nothing(circuit: str, cli: Any) -> None:
    with temporary_settings({PREFECT_API_URL: NOWHERE}):
        done = cli("circuits", "open", circuit, "--reason", "they said so")
    assert done.code == 0
    assert "1 circuit opened" in done.out
    assert done.err.startswith("Done, but the event was not sent: the Prefect API did not accept it (")
    assert cli("circuits", "show", circuit, "--json").json["state"] == "forced_open"
