"""Handlers of `on` and the totals of `get_metrics`, outside of any run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefect_resilience import (
    AgentChain,
    CircuitBreaker,
    ConfigurationError,
    Fallback,
    ResilienceEvent,
    ResilienceMetrics,
    Retry,
    get_metrics,
    on,
    resilient_task,
)
from prefect_resilience.telemetry.metrics import ProcessTotals
from prefect_resilience.telemetry.payloads import EVENTS

QUICK = Retry(attempts=3, backoff={"kind": "none"}, budget=None)
PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.fixture
def heard():
    """What a handler of everything was told, in its order."""
    told: list[ResilienceEvent] = []
    stop = on("*", told.append)
    yield told
    stop()


def failing(times: int):
    left = iter([True] * times + [False] * 100)

    def work(question: str) -> str:
        if next(left):
            raise ConnectionError(f"{question}: password=hunter22 refused")
        return question.upper()

    return work


def asked(name: str, work, **options):
    """The value that an agent alone gives, outside of any run."""
    task = resilient_task(work, name=name, **{"retry": QUICK, **options})
    return AgentChain(name, agents={name: task}).call("why").value


def difference(before: ResilienceMetrics, name: str) -> int:
    return getattr(get_metrics(), name) - getattr(before, name)


@pytest.mark.requirement("002.24", "003.17")
def test_a_retry_and_its_recovery_are_told_in_their_order(heard):
    before = get_metrics()
    assert asked("listened", failing(2)) == "WHY"
    assert [each.event for each in heard] == [
        *("attempt.failed", "retry.scheduled") * 2,
        "run.recovered",
    ]
    assert {(each.kind, each.name) for each in heard if each.event != "attempt.failed"} == {
        ("task", "listened")
    }
    last = heard[-1].payload
    assert (last["attempts"], last["error"]["category"], last["waited"]) == (3, "network", 0)
    assert "hunter22" not in repr(heard)
    assert difference(before, "total_attempts") == 3
    assert difference(before, "successful_retries") == 1
    assert difference(before, "failed_retries") == 1
    assert get_metrics().avg_recovery_time >= 0


@pytest.mark.requirement("002.12", "002.25")
def test_a_failure_says_how_long_it_took(heard):
    before = get_metrics()
    with pytest.raises(ConnectionError):
        asked("lost", failing(10))
    payload = heard[-1].payload
    assert (heard[-1].event, payload["exhausted"], payload["attempt"]) == ("run.failed", True, 3)
    assert payload["after"] >= payload["waited"] == 0
    assert difference(before, "failures") == 1
    assert difference(before, "failed_retries") == 2


@pytest.mark.requirement("003.17", "003.19")
def test_a_fallback_and_a_circuit_are_told(heard):
    before = get_metrics()
    circuit = CircuitBreaker("listened-to", failure_threshold=1, store="memory://")
    answer = asked("guarded", failing(10), circuit=circuit, fallback=[Fallback.value("none")])
    assert answer == "none"
    events = [each.event for each in heard]
    assert events.count("circuit.opened") == 1
    assert {"attempt.refused", "fallback.used", "run.degraded"} <= {*events}
    assert difference(before, "circuit_opens") == 1
    assert difference(before, "fallbacks_used") == 1
    assert difference(before, "rejected_calls") == 1
    assert difference(before, "total_attempts") == 1


@pytest.mark.requirement("003.17")
def test_a_handler_hears_what_it_asked_for_until_it_is_ended():
    told: list[str] = []
    stop = on("retry", lambda event: told.append(event.event))
    asked("once", failing(1))
    stop()
    stop()
    asked("again", failing(1))
    assert told == ["retry.scheduled"]


def test_a_handler_that_fails_does_not_concern_the_call(heard, caplog):
    def broken(event: ResilienceEvent) -> None:
        raise RuntimeError("token=abcdefghijklmnop")

    stop = on("run.recovered", broken)
    try:
        assert asked("unmoved", failing(1)) == "WHY"
    finally:
        stop()
    (said,) = [one.getMessage() for one in caplog.records if "handler" in one.getMessage()]
    assert "run.recovered" in said
    assert "abcdefghijklmnop" not in said
    assert heard[-1].event == "run.recovered"


def test_a_coroutine_function_is_refused():
    async def handler(event: ResilienceEvent) -> None: ...

    with pytest.raises(ConfigurationError, match="plain function"):
        on("retry", handler)


def test_every_event_is_on_the_operators_page():
    table = PAGE.read_text().partition("| event | when |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z-]+\.[a-z-]+)`", table))
    # The one that is sent after a run has ended, for an automation.
    assert {*EVENTS} == named - {"batch.recoverable"}


@pytest.mark.requirement("003.19")
def test_without_a_recovery_there_is_no_average():
    totals = ProcessTotals()
    totals.add("total_attempts")
    assert totals.read() == ResilienceMetrics(total_attempts=1)
    totals.count_recovery(2.0)
    totals.count_recovery(4.0)
    assert totals.read().avg_recovery_time == 3.0
