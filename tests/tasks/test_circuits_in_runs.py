"""Circuits around tasks: templates, events, and stores that fail."""

from __future__ import annotations

import logging
import os
import sqlite3

import pytest
from prefect import flow

from prefect_resilience import CircuitBreaker, CircuitOpenError, error_context, get_circuits, resilient_task

pytestmark = pytest.mark.api


def test_a_template_makes_a_circuit_for_each_value(mode, service, get):
    service.says(503)

    def ask(provider):
        return get("/" + provider)

    made = mode.task(ask, retry=None, circuit=CircuitBreaker("llm:{provider}", failure_threshold=2))
    for _ in range(4):
        assert mode.state(made, "first").is_failed()
    assert mode.state(made, "second").is_failed()
    assert service.paths == ["/first", "/first", "/second"]
    states = {circuit.name: circuit.state for circuit in get_circuits()}
    assert states == {"llm:first": "open", "llm:second": "closed"}


@pytest.mark.smoke
def test_an_open_circuit_is_an_error_that_says_when(mode, service, get):
    service.says(503)
    made = mode.task(get, retry=None, circuit=CircuitBreaker("says-when", failure_threshold=1, open_for=60))
    mode.state(made)
    with pytest.raises(CircuitOpenError, match="says-when") as caught:
        mode.value(made)
    assert 50 < caught.value.retry_in <= 60
    assert "503" in caught.value.last_error
    context = error_context(caught.value)
    assert (context.category, context.circuit, context.retryable) == ("circuit_open", "says-when", False)


def test_events_tell_of_its_changes(mode, service, get, seen):
    service.says(503, 200)
    name = f"events-{mode.name}"
    made = mode.task(
        get, retry=None, circuit=CircuitBreaker(name, failure_threshold=1, open_for=0.01, success_threshold=1)
    )
    assert mode.state(made).is_failed()
    until_open = seen.events(
        "prefect-resilience.circuit.opened", lambda event: event["resource"]["prefect.resource.name"] == name
    )
    assert until_open[0]["resource"]["prefect.resource.id"] == f"prefect-resilience.circuit.{name}"
    assert {related["prefect.resource.role"] for related in until_open[0]["related"]} >= {
        "flow-run",
        "task-run",
    }
    assert mode.state(made).is_completed()
    assert seen.events(
        "prefect-resilience.circuit.closed", lambda event: event["resource"]["prefect.resource.name"] == name
    )


def intact(path):
    return None


def deleted(path):
    os.remove(path)


def locked(path):
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def corrupt_from_the_start(path):
    path.write_bytes(b"this is no database" * 1000)


def a_folder_from_the_start(path):
    path.mkdir()


@pytest.mark.parametrize("spoil", [intact, deleted, locked, corrupt_from_the_start, a_folder_from_the_start])
def test_a_store_that_fails_does_not_break_a_task(service, get, tmp_path, caplog, spoil):
    path = tmp_path / "circuits.db"
    circuit = CircuitBreaker(
        f"outage-{spoil.__name__}",
        failure_threshold=3,
        open_for=60,
        sync_interval=1e-9,
        store=f"sqlite:///{path}",
    )
    made = resilient_task(retry=None, circuit=circuit)(get)

    @flow
    def scenario():
        return [made(return_state=True).name for _ in range(5)]

    if not spoil.__name__.endswith("_from_the_start"):
        assert scenario() == ["Completed"] * 5
    held = spoil(path)
    with caplog.at_level(logging.WARNING):
        assert scenario() == ["Completed"] * 5
        before = len(service.calls)
        service.says(503)
        assert scenario() == ["Failed"] * 5
    assert 3 <= len(service.calls) - before <= 4, "it opens by what this process knows"
    warnings = [record for record in caplog.records if "is unavailable" in record.getMessage()]
    assert len(warnings) == (0 if spoil in (intact, deleted) else 1)
    if held is not None:
        held.close()
