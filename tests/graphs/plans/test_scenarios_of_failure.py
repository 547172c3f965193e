"""What a plan does when its steps fail: real runs against a real HTTP service, checked through the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
import pytest

from prefect_resilience import ErrorContext, quorum, register_secret
from tests.graphs.plans.ran import Ran, ran

pytestmark = pytest.mark.api

QUICK = {"backoff": "exponential", "initial_delay_ms": 20, "max_delay_ms": 80, "jitter_fraction": 0}
NOTIFY = {"id": "notify", "type": "note", "input": {"text": "{{state._last_error.code}}"}}
PUBLISH = {"id": "publish", "type": "note", "input": {"text": "{{call.output}}"}}
ON_ERROR = [
    {"to": "publish", "priority": 1, "condition": {"type": "not_exists", "path": "state._last_error"}},
    {"to": "notify", "priority": 2, "condition": {"type": "exists", "path": "state._last_error"}},
]


class Steps:
    """The actions of these plans: `call` asks the service, `note` keeps what it was told."""

    def __init__(self, service: Any) -> None:
        self.service = service
        self.notes: list[tuple[str, Any]] = []

    def call(self, path: str = "/", seconds: float = 5.0) -> str:
        response = httpx.get(self.service.url + path, timeout=seconds)
        response.raise_for_status()
        return response.text

    def note(self, error: ErrorContext | None, text: str = "") -> str:
        self.notes.append((text, error))
        return text

    def stream(self) -> str:
        with httpx.stream("GET", self.service.url, timeout=5.0) as response:
            return "".join(response.iter_text())

    def broken(self, error: ErrorContext | None) -> None:
        raise ValueError(f"the handler of {error.code if error else None} is broken")

    def named(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in ("call", "note", "stream", "broken")}


@pytest.fixture
def steps(service: Any) -> Steps:
    return Steps(service)


def run(steps: Steps, *nodes: dict[str, Any]) -> Ran:
    return ran({"tasks": list(nodes)}, actions=steps.named())


def call(**options: Any) -> dict[str, Any]:
    return {"id": "call", "type": "call", **options}


@pytest.mark.requirement("002.13")
def test_a_flaky_call_is_retried_until_it_succeeds(steps: Steps, service: Any, seen: Any) -> None:
    service.says(503, 503, 200)
    done = run(steps, call(retry_policy={"max_attempts": 3, **QUICK}, transitions=ON_ERROR), PUBLISH, NOTIFY)
    assert done.state.is_completed()
    assert done.statuses() == {"call": "succeeded", "publish": "succeeded", "notify": "skipped"}
    assert done.result.nodes["call"].attempts == 3 == len(service.calls)
    first, second = (b - a for a, b in zip(service.calls, service.calls[1:], strict=False))
    assert first >= 0.02
    assert second >= 0.04
    assert steps.notes == [("{}", None)]
    assert done.states("call").count("AwaitingRetry") == 2
    assert done.states("call")[-1] == "Completed"
    assert done.states("notify")[-1] == "Skipped"


@pytest.mark.requirement("002.14")
def test_retries_that_are_used_up_leave_the_error_behind(steps: Steps, service: Any, seen: Any) -> None:
    service.says(503)
    done = run(steps, call(retry_policy={"max_attempts": 3, **QUICK}))
    assert done.state.is_failed()
    assert len(service.calls) == 3
    assert "'call'" in (done.state.message or "")
    error = done.failure
    assert error.node_id == "call"
    assert error.cause is not None
    assert (error.cause.code, error.cause.category, error.cause.attempt) == ("503", "unavailable", 3)
    assert done.states("call")[-1] == "Failed"
    events = seen.events(
        "prefect-resilience.run.failed",
        lambda e: e["payload"].get("node_id") == "call" and str(done.flow_run_id) in str(e["related"]),
    )
    assert events[0]["payload"]["code"] == "503"


@pytest.mark.requirement("002.15")
def test_a_failure_takes_the_way_of_failures(steps: Steps, service: Any, seen: Any) -> None:
    service.says(429)
    done = run(steps, call(retry_policy={"max_attempts": 2, **QUICK}, transitions=ON_ERROR), PUBLISH, NOTIFY)
    assert done.state.is_completed()
    assert done.statuses() == {"call": "handled", "publish": "skipped", "notify": "succeeded"}
    assert len(service.calls) == 2
    [(text, error)] = steps.notes
    assert text == "429"
    assert (error.node_id, error.attempt, error.retryable) == ("call", 2, True)
    runs = done.task_runs()
    assert {name: run.state_name for name, run in runs.items()} == {
        "call": "Failed",
        "publish": "Skipped",
        "notify": "Completed",
    }
    branched = seen.events(
        "prefect-resilience.plan.branched", lambda e: str(done.flow_run_id) in str(e["related"])
    )
    assert branched[0]["payload"]["to"] == ["notify"]


def assert_ours(steps: Steps) -> None:
    """It was the node's deadline that ended it, not the client's own of five seconds."""
    [(code, error)] = steps.notes
    assert code == "TIMEOUT"
    assert "took longer than 0.3 s" in error.message


@pytest.mark.requirement("002.04", "002.16")
def test_a_slow_call_is_ended_at_its_deadline(steps: Steps, service: Any, reply: Any) -> None:
    service.says(reply(delay=10.0))
    done = run(
        steps,
        call(
            execution={"timeout_ms": 300, "retry_policy": {"max_attempts": 2, **QUICK}}, on_failure=["notify"]
        ),
        NOTIFY,
    )
    assert done.statuses() == {"call": "handled", "notify": "succeeded"}
    assert len(service.calls) == 2
    assert_ours(steps)
    assert done.states("call")[-1] == "TimedOut"


@pytest.mark.requirement("002.08", "002.17")
def test_a_bad_request_is_not_tried_again(steps: Steps, service: Any) -> None:
    service.says(400)
    done = run(steps, call(retry_policy={"max_attempts": 5, **QUICK}, on_failure=["notify"]), NOTIFY)
    assert len(service.calls) == 1
    [(text, error)] = steps.notes
    assert text == "400"
    assert not error.retryable
    assert done.statuses() == {"call": "handled", "notify": "succeeded"}


@pytest.mark.requirement("002.18")
def test_each_branch_of_a_fan_out_has_retries_of_its_own(steps: Steps, service: Any) -> None:
    tries: dict[str, int] = {}

    def flaky(path: str) -> str:
        tries[path] = tries.get(path, 0) + 1
        if path == "/b" and tries[path] < 3:
            raise ConnectionError("cut")
        return path

    policy = {"max_attempts": 3, **QUICK}
    node = {"id": "each", "type": "flaky", "input": {"path": "{{item}}"}, "map": {"over": ["/a", "/b", "/c"]}}
    done = ran({"tasks": [{**node, "retry_policy": policy}]}, actions={"flaky": flaky})
    assert done.result.nodes["each"].output == ["/a", "/b", "/c"]
    assert tries == {"/a": 1, "/b": 3, "/c": 1}


@pytest.mark.requirement("002.19")
def test_a_slow_stream_is_ended_at_its_deadline(steps: Steps, service: Any, reply: Any) -> None:
    service.says(reply(delay=10.0))
    done = run(steps, {"id": "call", "type": "stream", "timeout_ms": 300, "on_failure": "notify"}, NOTIFY)
    assert_ours(steps)
    assert done.state.is_completed()


@pytest.mark.requirement("002.20")
def test_an_error_in_the_handler_ends_there(steps: Steps, service: Any) -> None:
    service.says(503)
    handler = {"id": "handler", "type": "broken", "handles_error": "call"}
    done = run(steps, call(), handler)
    assert done.statuses() == {"call": "handled", "handler": "failed"}
    assert done.state.is_failed()
    assert len(service.calls) == 1
    assert "'handler'" in (done.state.message or "")
    assert done.failure.cause is not None
    assert "the handler of 503 is broken" in done.failure.cause.message


@pytest.mark.requirement("002.21")
def test_a_retry_waits_as_long_as_the_server_asks(steps: Steps, service: Any, reply: Any, seen: Any) -> None:
    service.says(reply(429, headers={"Retry-After": "1"}), 200)
    done = run(steps, call(retry_policy={"max_attempts": 2, **QUICK}))
    assert done.state.is_completed()
    assert service.calls[1] - service.calls[0] >= 1.0
    # On a busy machine the second call is late anyway: what counts is the delay that was planned.
    assert planned_delay(seen, done.result.nodes["call"].task_run_id) >= 0.95


def planned_delay(seen: Any, task_run_id: str | None) -> float:
    """Seconds of the first delay before a retry, as the API has it."""
    assert task_run_id is not None
    waiting = next(state for state in seen.states(UUID(task_run_id)) if state.name == "AwaitingRetry")
    return (waiting.state_details.scheduled_time - waiting.timestamp).total_seconds()


@pytest.mark.requirement("001.06", "002.22")
def test_what_succeeded_beside_a_failure_is_kept(steps: Steps, service: Any) -> None:
    service.says(400)
    left = {"id": "left", "type": "note", "input": {"text": "left"}}
    after = {"id": "after", "type": "note", "input": {"text": "{{left.output}}!"}, "depends_on": ["left"]}
    lost = {"id": "lost", "type": "note", "depends_on": ["call"]}
    done = run(steps, call(), left, after, lost)
    assert done.state.is_failed()
    assert done.statuses() == {"call": "failed", "left": "succeeded", "after": "succeeded", "lost": "skipped"}
    assert done.failure.details["partial_results"] == {"left": "left", "after": "left!"}
    assert done.failure.details["failed_step"] == "call"


@pytest.mark.requirement("002.09")
def test_a_lost_store_is_invisible_to_the_plan(
    steps: Steps, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", "redis://127.0.0.1:1/0")
    done = run(steps, call(circuit="a-service"))
    assert done.state.is_completed()


@pytest.mark.requirement("002.23")
def test_no_secret_stands_in_what_a_failed_plan_says(steps: Steps, service: Any) -> None:
    register_secret("s3cr3t-of-the-plan")
    service.says(400)
    done = run(steps, call(input={"path": "/?api_key=s3cr3t-of-the-plan"}))
    assert done.state.is_failed()
    assert "s3cr3t" not in done.failure.model_dump_json()
    assert "s3cr3t" not in (done.state.message or "")
    assert all("s3cr3t" not in str(run.state.message) for run in done.task_runs().values() if run.state)


@pytest.mark.requirement("000.25")
def test_handlers_of_an_error_vote_on_it(steps: Steps, service: Any, seen: Any) -> None:
    """In a plan, the handler is an action that asks several functions."""
    service.says(503)

    def decide(error: ErrorContext) -> str:
        return quorum(by_code, by_code_too, steps.broken, need=2)(error=error)

    handler = {"id": "decide", "type": "decide", "handles_error": ["call"]}
    done = ran({"tasks": [call(), handler]}, actions={**steps.named(), "decide": decide})
    assert done.statuses() == {"call": "handled", "decide": "succeeded"}
    assert done.result.outputs["decide"] == "503"
    voters = {name.partition("-")[0] for name in done.task_runs()}
    assert voters >= {"by_code", "by_code_too", "broken"}


def by_code(error: ErrorContext) -> str:
    return error.code


def by_code_too(error: ErrorContext) -> str:
    return error.code
