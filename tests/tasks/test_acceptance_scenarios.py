"""The acceptance scenarios of an orchestrator of agents, one test each: given, when, then."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import pytest
from prefect import flow

from prefect_resilience import (
    AgentChain,
    Backoff,
    CircuitBreaker,
    CircuitPolicy,
    Fallback,
    Notice,
    Retry,
    agent,
    error_context,
    resilient_task,
)
from tests.prefect_runs import until

pytestmark = pytest.mark.api


@pytest.mark.smoke
@pytest.mark.requirement("003.26")
def test_a_transient_error_is_retried(mode: Any, service: Any, get: Any, run_log: Any) -> None:
    """Given a call of a provider, when it answers 503, then it is tried up to 3 times, each retry waits
    exponentially longer, and the UI shows "Retrying (2/3)"."""
    service.says(503)
    assert (Retry().attempts, Backoff.exponential().kind) == (3, Retry().backoff.kind)
    made = mode.task(get, retry=Retry(backoff=Backoff.exponential(0.2, jitter=0)))
    assert mode.state(made).is_failed()
    assert len(service.calls) == 3
    first, second = (after - before for before, after in pairwise(service.calls))
    assert 0.2 <= first < second
    assert second >= 0.4
    said = [record.getMessage() for record in run_log]
    assert any(line.startswith("Retrying (2/3) in ") for line in said), said


@pytest.mark.requirement("003.14", "003.27")
def test_a_circuit_opens(mode: Any, service: Any, get: Any) -> None:
    """Given 5 errors in a row, when another call is made, then the circuit is open, the call fails at once,
    and the fallback answers."""
    assert CircuitPolicy().failure_threshold == 5
    service.says(503)
    circuit = CircuitBreaker("acceptance-opens")

    def other_provider() -> str:
        return "from the other provider"

    failing = mode.task(get, retry=None, circuit=circuit)
    for _ in range(5):
        assert mode.state(failing).is_failed()
    assert circuit.state == "open"
    guarded = mode.task(get, retry=None, circuit=circuit, fallback=Fallback(other_provider))
    assert mode.value(guarded) == "from the other provider"
    assert error_context(mode.state(failing)).category == "circuit_open"
    assert len(service.calls) == 5, "the provider was not called again"


@pytest.mark.smoke
@pytest.mark.requirement("003.28")
def test_a_circuit_recovers(mode: Any, service: Any, get: Any) -> None:
    """Given an open circuit, when its time has passed, then it is half-open, the next call is a probe, and
    after its success it is closed."""
    assert CircuitPolicy().open_for == 30
    service.says(503, 200)
    circuit = CircuitBreaker("acceptance-recovers", failure_threshold=1, success_threshold=1, open_for=1)
    made = mode.task(get, retry=None, circuit=circuit)
    assert mode.state(made).is_failed()
    assert circuit.state == "open"
    until(lambda: circuit.state == "half_open")
    assert mode.state(made).is_completed()
    assert circuit.state == "closed"
    assert len(service.calls) == 2


@pytest.mark.requirement("003.29")
def test_a_simpler_agent_takes_over() -> None:
    """Given an agent that fails, when its retries are used up, then the simpler one is asked, and when that
    fails too, the user is notified."""
    asked: list[str] = []
    notices: list[Notice] = []

    @agent("acceptance-builder", retry=Retry(attempts=2, backoff=Backoff.none()))
    def builder(task: str) -> str:
        asked.append("builder")
        raise ConnectionError("the agent is away")

    @agent("acceptance-simple", retry=None)
    def simple(task: str) -> str:
        asked.append("simple")
        if task == "hard":
            raise ConnectionError("this one too")
        return f"{task}, simply"

    chain = AgentChain("acceptance-builder", ["acceptance-simple"], notify=notices.append)

    @flow
    def building(task: str) -> Any:
        return chain(task)

    assert building("easy").value == "easy, simply"
    assert asked == ["builder", "builder", "simple"]
    assert not notices
    with pytest.raises(Exception, match=r"away|too"):
        building("hard")
    assert len(notices) == 1


@pytest.mark.requirement("003.16", "003.30")
def test_a_tool_that_takes_too_long_is_cancelled(mode: Any) -> None:
    """Given a tool call that runs, when it exceeds its time, then it is cancelled with a timeout, which is
    classified as retryable."""
    ended = threading.Event()

    def tool() -> None:
        ended.wait(60)

    async def async_tool() -> None:
        await asyncio.sleep(60)

    made = resilient_task(timeout=0.5, retry=None)(async_tool if mode.isasync else tool)
    try:
        context = error_context(mode.state(made))
    finally:
        ended.set()
    assert (context.category, context.retryable) == ("timeout", True)
