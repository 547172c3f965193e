"""Faults on purpose: around tasks and circuits, sync and async, by chance that can be repeated."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    CircuitOpenError,
    ConfigurationError,
    Fallback,
    Retry,
    classify,
)
from prefect_resilience.guards import faults
from prefect_resilience.testing import InjectedFault, Reply, ScriptedService, inject, no_wait

pytestmark = pytest.mark.api

SLOW = Retry(attempts=3, backoff=Backoff.constant(initial=3600))


def answer() -> str:
    return "the real one"


@pytest.mark.smoke
@pytest.mark.requirement("004.21")
def test_a_fault_is_raised_retried_and_gone(mode: Any) -> None:
    task = mode.task(answer, retry=SLOW)
    with no_wait(), inject(task, fault=503, times=2) as injected:
        assert mode.value(task) == "the real one"
    assert (injected.calls, injected.done) == (3, 2)
    assert faults.active == []


@pytest.mark.parametrize(
    ("fault", "category"),
    [
        (429, "rate_limit"),
        (ConnectionResetError, "network"),
        (httpx.ReadTimeout("slow"), "timeout"),
        (lambda: InjectedFault(500), "server_error"),
    ],
)
def test_a_fault_is_what_it_is_called(mode: Any, fault: Any, category: str) -> None:
    task = mode.task(answer, retry=None)
    with inject(task, fault=fault), pytest.raises(Exception, match=r"\S") as caught:
        mode.value(task)
    assert classify(caught.value).category == category


def test_an_outcome_stands_for_the_answer(mode: Any) -> None:
    task = mode.task(answer)
    with inject(task, outcome="another"):
        assert mode.value(task) == "another"
    with inject(task, outcome=None):
        assert mode.value(task) is None


def test_latency_counts_towards_the_timeout(mode: Any) -> None:
    task = mode.task(answer, retry=None, timeout=0.2, fallback=Fallback.value("late"))
    with inject(task, latency=30):
        assert mode.value(task) == "late"


def test_a_circuit_is_reached_by_its_name(mode: Any) -> None:
    circuit = CircuitBreaker("llm:{provider}", failure_threshold=2)

    def ask(provider: str) -> str:
        return provider

    task = mode.task(ask, circuit=circuit, retry=None)
    with inject("llm:a", fault=503):
        for _ in range(2):
            with pytest.raises(InjectedFault):
                mode.value(task, "a")
        assert mode.value(task, "b") == "b"
        with pytest.raises(CircuitOpenError):
            mode.value(task, "a")
    with inject(circuit, fault=ConnectionError), pytest.raises(ConnectionError):
        mode.value(task, "b")


def test_a_circuit_alone() -> None:
    circuit = CircuitBreaker("alone", failure_threshold=1)
    with inject(circuit, latency=0.01, fault=503):
        with pytest.raises(InjectedFault):
            circuit.call(answer)
        with pytest.raises(CircuitOpenError):
            asyncio.run(circuit.acall(asyncio.sleep, 0))
    other = CircuitBreaker("other")
    with inject(other, outcome=7):
        assert asyncio.run(other.acall(asyncio.sleep, 0)) == 7
        assert other.call(answer) == 7


@given(rate=st.floats(0, 1), seed=st.integers())
def test_the_same_seed_draws_the_same(rate: float, seed: int) -> None:
    def drawn() -> list[bool]:
        injected = faults.Injected(faults.Injection(latency=1.0, rate=rate, seed=seed))
        return [injected.draw() is not None for _ in range(50)]

    assert drawn() == drawn()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "does nothing: write latency=, fault= or outcome="),
        ({"fault": 200}, "a status from 400 to 599"),
        ({"fault": 503, "outcome": 1}, "fault= or outcome=, not both"),
        ({"latency": -1}, "latency"),
        ({"fault": 503, "rate": 1.5}, "rate"),
        ({"fault": 503, "times": 0}, "times"),
        ({"target": 7, "fault": 503}, "pass a resilient task"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught, inject(**options):
        pass
    assert words in str(caught.value)


@pytest.mark.smoke
def test_nobody_waits_and_everything_is_shown(mode: Any, seen: Any, until: Any) -> None:
    task = mode.task(answer, retry=SLOW)
    began = time.monotonic()
    with no_wait(), inject(task, fault=503, times=2):
        state = mode.state(task)
    assert time.monotonic() - began < 60
    assert state.name == "Completed"

    def names() -> Counter[str]:
        return Counter(one.name for one in seen.states(state.state_details.task_run_id))

    # The API may know the last state before an earlier one.
    until(lambda: (names()["AwaitingRetry"], names()["Retrying"]) == (2, 2))


def test_a_service_that_answers_by_a_script() -> None:
    with ScriptedService(503, Reply(429, {"Retry-After": "2"}), lambda: Reply(body={"a": 1})) as service:
        service.on("/other", Reply(drop=True), Reply(half=True, body="x" * 100))
        got = [httpx.get(f"{service.url}/first?q=1") for _ in range(4)]
        assert [answer.status_code for answer in got] == [503, 429, 200, 200]
        assert got[1].headers["Retry-After"] == "2"
        assert got[3].json() == {"a": 1}
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.post(f"{service.url}/other", json={"b": 2})
        assert [request.path for request in service.requests][-2:] == ["/other", "/other"]
        assert service.requests[-1].body == b'{"b":2}'
        with pytest.raises(ConfigurationError):
            service.says()
        with pytest.raises(ConfigurationError):
            service.says(42)
