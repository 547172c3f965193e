"""Retries of a real task against a real service, as the Prefect API shows them."""

from __future__ import annotations

import pytest
from prefect import flow

from prefect_resilience import Backoff, ConfigurationError, Retry, error_context
from tests.contexts import context_of

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.exponential(0.05, jitter=0))


def names(states):
    return [state.name for state in states]


@pytest.mark.smoke
def test_two_503s_then_200_is_three_attempts_that_the_api_shows(mode, service, get, seen):
    service.says(503, 503, 200)
    policy = Retry(attempts=4, backoff=Backoff.schedule([0.3, 0.6]))
    state = mode.state(mode.task(get, retry=policy))
    assert state.is_completed()
    assert len(service.calls) == 3
    states = seen.states(state.state_details.task_run_id)
    assert names(states) == [
        "Pending",
        "Running",
        "AwaitingRetry",
        "Retrying",
        "AwaitingRetry",
        "Retrying",
        "Completed",
    ]
    for waiting, delay in zip((states[2], states[4]), (0.3, 0.6), strict=True):
        planned = (waiting.state_details.scheduled_time - waiting.timestamp).total_seconds()
        assert planned == pytest.approx(delay, abs=0.05)
    assert service.calls[1] - service.calls[0] >= 0.3
    assert service.calls[2] - service.calls[1] >= 0.6


def test_a_429_is_not_tried_again_before_the_server_wants_it(mode, service, get, reply):
    service.says(reply(429, {"retry-after-ms": "700"}), 200)
    assert mode.state(mode.task(get, retry=QUICK)).is_completed()
    assert len(service.calls) == 2
    assert service.calls[1] - service.calls[0] >= 0.7


def test_the_error_is_the_functions_own_with_a_note_and_the_history(mode, service, get):
    import httpx

    service.says(503)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        mode.value(mode.task(get, retry=QUICK))
    assert any("gave up after 3 attempts" in note for note in caught.value.__notes__)
    context = context_of(caught.value)
    assert [record.attempt for record in context.history] == [1, 2, 3]
    assert [record.delay for record in context.history] == [0.05, 0.1, None]
    assert all(record.error.code == "503" for record in context.history)
    assert context.task_run_id
    assert context.flow_run_id


def test_events_tell_of_the_retry_and_the_recovery(mode, service, get, seen):
    service.says(503, 200)
    state = mode.state(mode.task(get, retry=QUICK))
    task_run_id = str(state.state_details.task_run_id)

    def ours(event):
        return event["payload"].get("task_run_id") == task_run_id

    [scheduled] = seen.events("prefect-resilience.retry.scheduled", ours)
    assert scheduled["payload"]["code"] == "503"
    assert scheduled["payload"]["delay"] == 0.05
    roles = {related["prefect.resource.role"] for related in scheduled["related"]}
    assert {"flow-run", "task-run"} <= roles
    [recovered] = seen.events("prefect-resilience.run.recovered", ours)
    assert recovered["payload"]["attempts"] == 2


# What Prefect's own options mean stays as it is.


def test_retry_and_retries_together_are_refused():
    from prefect_resilience import resilient_task

    for name, value in {"retries": 2, "retry_delay_seconds": 3, "retry_jitter_factor": 0.5}.items():
        with pytest.raises(ConfigurationError, match=f"both retry= and {name}={value}"):
            resilient_task(retry=QUICK, **{name: value})(lambda: None)
    delayed = resilient_task(retry_delay_seconds=[1, 7])(lambda: None)
    assert delayed.guard.retry == Retry(backoff=Backoff.schedule([1, 7]))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_users_condition_is_asked_where_the_policy_would_retry(mode, service, get, kind):
    asked = []

    def condition(task, task_run, state):
        asked.append((task.name, str(state.data)))
        return len(asked) < 2

    async def acondition(task, task_run, state):
        return condition(task, task_run, state)

    service.says(503)
    made = mode.task(get, retry=QUICK, retry_condition_fn=condition if kind == "sync" else acondition)
    assert mode.state(made).is_failed()
    assert len(service.calls) == 2
    assert asked[0][0] == "get"
    assert "503" in asked[0][1]


def test_a_condition_that_fails_means_no(mode, service, get):
    service.says(503)

    def condition(task, task_run, state):
        raise RuntimeError("broken condition")

    assert mode.state(mode.task(get, retry=QUICK, retry_condition_fn=condition)).is_failed()
    assert len(service.calls) == 1


def test_hooks_and_tags_are_the_users(mode, service, get):
    heard = []
    service.says(503, 200)
    made = mode.task(
        get,
        retry=QUICK,
        tags=["llm"],
        on_running=[lambda task, run, state: heard.append(state.name)],
        on_completion=[lambda task, run, state: heard.append(state.name)],
    )
    assert mode.state(made).is_completed()
    assert heard == ["Running", "Retrying", "Completed"]
    assert made.tags == {"llm"}
    service.calls.clear()
    service.says(400)
    failing = mode.task(get, retry=QUICK, on_failure=[lambda task, run, state: heard.append("failed")])
    mode.state(failing)
    assert heard[-1] == "failed"


@pytest.mark.parametrize("variable", ["RESILIENCE_ENABLED", "PREFECT_RESILIENCE_ENABLED"])
@pytest.mark.parametrize("when", ["at decoration", "later"])
def test_switched_off_it_is_plain_prefect(mode, service, get, monkeypatch, variable, when):
    service.says(503)
    if when == "at decoration":
        monkeypatch.setenv(variable, "false")
    options = {"retry": QUICK, "fallback": lambda: "instead", "timeout": 5}
    made = mode.task(get, **options)
    plain = mode.task(get, retries=1, retry_delay_seconds=0)
    monkeypatch.setenv(variable, "false")
    assert mode.state(made).is_failed()
    assert len(service.calls) == 1
    assert mode.state(plain).is_failed()
    assert len(service.calls) == 3


def test_the_context_is_found_on_errors_states_and_futures(service, get):
    from prefect_resilience import resilient_task

    service.says(404)
    made = resilient_task(get)

    @flow
    def scenario():
        future = made.submit()
        future.wait()
        return context_of(future), context_of(future.state), error_context(made.submit("/ok?"))

    found = scenario(return_state=True).result()
    assert [context.code for context in found[:2]] == ["404", "404"]
    assert found[0] == found[1]
