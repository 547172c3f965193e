"""Fallbacks: who answers, what the run is called, and what is never cached."""

from __future__ import annotations

import httpx
import pytest
from prefect import flow
from prefect.cache_policies import INPUTS
from prefect.client.orchestration import get_client

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    ErrorContext,
    Fallback,
    Retry,
    resilient_task,
)
from tests.contexts import context_of

pytestmark = pytest.mark.api

TWICE = Retry(attempts=2, backoff=Backoff.none())


@pytest.mark.smoke
def test_a_function_answers_after_the_last_attempt(mode, service):
    service.says(503)
    heard = []

    def ask(question, provider="first"):
        httpx.get(service.url).raise_for_status()

    def small_model(question, error: ErrorContext):
        heard.append(error)
        return f"small: {question}"

    made = mode.task(ask, retry=TWICE, fallback=small_model)
    state = mode.state(made, "why?")
    assert (state.name, state.type.value) == ("Fallback", "COMPLETED")
    assert state.message.startswith("Fallback 'small_model' used after 2 attempts: 503")
    assert state.result() == "small: why?"
    assert len(service.calls) == 2
    assert heard[0].attempt == 2
    assert context_of(state).code == "503"
    assert mode.value(made, "again") == "small: again"


@pytest.mark.smoke
def test_degraded_is_its_own_name_and_event(mode, service, get, seen):
    service.says(503)
    state = mode.state(mode.task(get, retry=TWICE, fallback=Fallback.value({"answer": None})))
    assert state.name == "Degraded"
    assert state.result() == {"answer": None}
    run = str(state.state_details.task_run_id)

    def ours(event):
        return event["payload"].get("task_run_id") == run

    [used] = seen.events("prefect-resilience.fallback.used", ours)
    assert (used["payload"]["to"], used["payload"]["degraded"]) == ("value", True)
    assert seen.events("prefect-resilience.run.degraded", ours)


@pytest.mark.requirement("003.14")
def test_an_open_circuit_goes_to_the_fallback_without_a_call(mode, service, get):
    service.says(503)
    circuit = CircuitBreaker(f"fallback-{mode.name}", failure_threshold=2, open_for=60)
    made = mode.task(get, retry=None, circuit=circuit, fallback=lambda: "instead")
    assert [mode.value(made) for _ in range(5)] == ["instead"] * 5
    assert len(service.calls) == 2
    state = mode.state(made)
    assert "circuit" in state.message
    assert context_of(state).category == "circuit_open"


def test_a_task_as_fallback_is_a_run_of_its_own_with_its_own_policy(service, seen):
    service.says(503, 503, 503, 200)

    @resilient_task(retry=Retry(attempts=3, backoff=Backoff.constant(0.01)))
    def second():
        return httpx.get(service.url).raise_for_status().status_code

    @resilient_task(retry=TWICE, fallback=second)
    def first():
        httpx.get(service.url).raise_for_status()

    @flow
    def both():
        state = first(return_state=True)
        return str(state.state_details.task_run_id), state.name, first.name

    task_run_id, name, _ = both()
    assert name == "Fallback"
    parent = seen.task_run(task_run_id)
    with get_client(sync_client=True) as client:
        answer = client.request(
            "POST", "/task_runs/filter", json={"flow_runs": {"id": {"any_": [str(parent.flow_run_id)]}}}
        )
    children = [run for run in answer.json() if run["task_key"].startswith("second")]
    assert len(children) == 1
    assert len(seen.states(children[0]["id"])) >= 5
    assert {"input_type": "task_run", "id": task_run_id} in children[0]["task_inputs"]["__parents__"]


@pytest.mark.requirement("003.12")
def test_when_chooses_who_is_asked(mode, service, get):
    service.says(429)
    chain = [
        Fallback(lambda: "for timeouts", when="timeout"),
        Fallback(lambda: "never", when=lambda error: error.code == "503"),
        Fallback(lambda: "for limits", when=["rate_limit", "500"]),
    ]
    assert mode.value(mode.task(get, retry=None, fallback=chain)) == "for limits"


def test_a_fallbacks_value_is_never_found_under_the_primarys_cache_key(mode, service, tmp_path):
    calls = []

    def ask(question):
        calls.append(question)
        httpx.get(service.url).raise_for_status()
        return "primary"

    made = mode.task(ask, retry=None, fallback=lambda: "instead", cache_policy=INPUTS)
    key = str(tmp_path)
    service.says(503)
    assert mode.value(made, key) == "instead"
    service.says(200)
    assert mode.value(made, key) == "primary"
    assert mode.value(made, key) == "primary"
    assert calls == [key, key]


def test_last_known_good_answers_by_arguments_and_age(mode, service, tmp_path):
    def price(symbol):
        httpx.get(service.url).raise_for_status()
        return {"symbol": symbol, "price": len(service.calls)}

    made = mode.task(price, retry=None, fallback=Fallback.last_known_good(max_age=3600))
    name = str(tmp_path)
    service.says(200)
    good = mode.value(made, name)
    service.says(503)
    state = mode.state(made, name)
    assert state.name == "Degraded"
    assert state.result() == good
    assert mode.state(made, "another" + name).is_failed()
    aged = made.with_options(fallback=Fallback.last_known_good(max_age=1e-9))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        mode.value(aged, name)
    assert any("s old" in note for note in caught.value.__notes__)


def test_a_handler_is_not_handled_by_itself():
    calls = []

    @resilient_task(retry=None)
    def second(x):
        calls.append("second")
        raise ConnectionError("second")

    @resilient_task(retry=None, fallback=second)
    def first(x):
        calls.append("first")
        raise ConnectionError("first")

    looped = second.with_options(fallback=first)

    @flow
    def round_and_round():
        return looped(1, return_state=True).type.value

    assert round_and_round() == "FAILED"
    assert calls == ["second", "first"]
