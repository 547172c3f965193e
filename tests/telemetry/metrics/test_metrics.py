"""What a scripted run did is what Prometheus scrapes; names are bounded, and no secret is among them."""

from __future__ import annotations

from uuid import uuid4

import pytest
from prefect import flow

from prefect_resilience import (
    CircuitBreaker,
    Fallback,
    PlanFailed,
    Retry,
    action,
    batch,
    dead_letters,
    resilient_task,
    run_plan,
)
from prefect_resilience.telemetry import metrics
from prefect_resilience.telemetry.metrics import label_of

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
QUICK = Retry(attempts=3, backoff={"kind": "none"})


pytestmark = pytest.mark.api


def scripted(*script):
    """A function that raises or returns what the script says, in its order."""
    lines = iter(script)

    def work():
        line = next(lines)
        if isinstance(line, Exception):
            raise line
        return line

    return work


def run(task, times=1):
    """The task that many times in a flow; its states."""
    states = []

    @flow
    def scenario():
        states.extend(task(return_state=True) for _ in range(times))

    scenario()
    return states


@pytest.mark.smoke
@pytest.mark.requirement("002.26")
def test_attempts_retries_recoveries_and_failures_are_those_of_the_script(scrape):
    work = scripted(
        1, ConnectionError(), 2, ConnectionError(), ConnectionError(), 3, ValueError(), TimeoutError(), 4
    )
    run(resilient_task(retry=QUICK, name="scripted")(work), times=5)
    after = scrape()

    def more(name, **labels):
        return after.sum(name, **{"task": "scripted", **labels})

    assert more("attempts_total", outcome="success") == 4
    assert more("attempts_total", outcome="failure") == 5
    assert more("attempts_total", outcome="failure", category="network") == 3
    assert more("attempts_total", outcome="failure", category="unexpected") == 1
    assert more("attempts_total", outcome="failure", category="timeout") == 1
    assert more("retries_total") == 4
    assert more("recoveries_total") == 3
    assert more("recoveries_total", category="network") == 2
    assert more("failures_total") == 1
    assert more("failures_total", category="unexpected") == 1
    assert more("recovery_duration_seconds_count") == 3
    assert 0 < more("recovery_duration_seconds_sum") < 60


def test_fallbacks_and_refusals(scrape):
    name = f"metered-{uuid4().hex[:6]}"
    circuit = CircuitBreaker(name, failure_threshold=2, open_for=60)

    def work():
        raise ConnectionError

    run(
        resilient_task(
            retry=None, circuit=circuit, fallback=[Fallback.value(0, degraded=True)], name="guarded"
        )(work),
        times=5,
    )
    after = scrape()
    assert after.sum("fallbacks_total", task="guarded", degraded="true") == 5
    assert after.sum("refusals_total", task="guarded", by="circuit") == 3
    assert after.sum("attempts_total", task="guarded") == 2
    assert after.sum("circuit_opens_total", circuit=name) == 1
    assert after.sum("circuit_transitions_total", circuit=name, **{"from": "closed", "to": "open"}) == 1
    circuit.reset()
    assert scrape().sum("circuit_transitions_total", circuit=name, to="closed") == 1


@pytest.mark.requirement("002.29")
def test_effects_and_dead_letters(scrape):
    @resilient_task(effect="external", name="charge")
    def charge():
        return 1

    with batch(uuid4().hex):
        run(charge)
        run(charge)

    fails = iter([True, False])

    @resilient_task(retry=None, dead_letter=True, name="lost")
    def lost():
        if next(fails):
            raise ConnectionError

    run(lost)
    after = scrape()
    assert after.sum("effects_replayed_total", task="charge") == 1
    assert after.sum("attempts_total", task="charge") == 1
    assert after.sum("dead_letters_created_total", task="lost", category="network") == 1
    assert len(dead_letters.list()) == 1


@pytest.mark.requirement("002.10", "002.26")
def test_nodes_of_plans_are_counted_by_their_action(scrape):
    work = scripted(ConnectionError(), 1, ValueError("odd"))

    @action("measured_action")
    def act():
        return work()

    tasks = [
        {"id": "first", "type": "measured_action", "retry_policy": {"max_attempts": 2, "backoff": "none"}},
        {"id": "second", "type": "measured_action", "depends_on": ["first"]},
    ]
    with pytest.raises(PlanFailed) as caught:
        run_plan({"tasks": tasks})
    after = scrape()
    assert after.sum("retries_total", action="measured_action", task="first") == 1
    assert after.sum("recoveries_total", action="measured_action") == 1
    assert after.sum("attempts_total", action="measured_action", outcome="success") == 1
    assert after.sum("failures_total", action="measured_action", category="unexpected") == 1
    error = caught.value.result.nodes["second"].error
    assert (error.node_id, error.action_id) == ("second", "measured_action")


def test_no_secret_is_a_label(scrape):
    circuit = CircuitBreaker("llm:{key}", failure_threshold=1)

    @resilient_task(retry=None, circuit=circuit, name=f"call {SECRET}")
    def work(key):
        raise ConnectionError(SECRET)

    @flow
    def scenario():
        work(SECRET, return_state=True)

    scenario()
    after = scrape()
    assert after.sum("failures_total", task="call ***") == 1
    assert SECRET not in after.text


def test_names_are_bounded():
    kind = uuid4().hex
    assert [label_of(kind, f"c{n}", most=3) for n in range(5)] == ["c0", "c1", "c2", "other", "other"]
    assert label_of(kind, "c1") == "c1"
    assert label_of(kind, None) == "other"
    assert len(label_of(kind, "x" * 10_000)) == 120


def test_an_instrument_that_breaks_fails_nothing(monkeypatch):
    def broken(*_):
        raise RuntimeError("the exporter is away")

    monkeypatch.setattr(metrics, "_count", broken)
    (state,) = run(resilient_task(retry=QUICK, name="unmoved")(scripted(ConnectionError(), 1)))
    assert state.is_completed()
    assert state.result() == 1
    metrics.observe("run.failed", {"node_id": "x"})
    metrics.attempt_succeeded("y")
