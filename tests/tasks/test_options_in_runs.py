"""What single options of a task do in real runs: fallbacks, limits, deadlines, and retried streams."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import httpx
import pytest
from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.client.orchestration import get_client

from prefect_resilience import (
    AdaptiveLimit,
    AttemptTimeout,
    Backoff,
    Bulkhead,
    CircuitBreaker,
    ConfigurationError,
    ErrorContext,
    Fallback,
    Hedge,
    RateLimit,
    ResilientTask,
    Retry,
    Timeout,
    resilient_task,
)
from prefect_resilience.guards.limits.line import in_line
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


class Counter:
    """How many calls are under way, and how many there were at most."""

    def __init__(self):
        self.now = self.most = 0
        self.lock = threading.Lock()

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self.lock:
            self.now -= 1


@pytest.mark.smoke
def test_a_bulkhead_bounds_mapped_tasks():
    counter = Counter()

    @resilient_task(retry=None, limits=Bulkhead(2))
    def work(x):
        with counter:
            time.sleep(0.02)
        return x

    @flow
    def scenario():
        return work.map(range(8)).result()

    assert scenario() == list(range(8))
    assert counter.most == 2


def test_templates_and_several_limits(mode):
    def work(provider):
        return provider

    made = mode.task(work, limits=[Bulkhead(1, name="b:{provider}"), RateLimit(100, name="r:{provider}")])
    assert mode.value(made, "first") == "first"


def test_a_hedge_of_a_sync_task_and_an_adaptive_limit_around_both_calls():
    calls, finish = [], threading.Event()
    limit = AdaptiveLimit(2)

    @resilient_task(retry=None, timeout=20, limits=limit, hedge=Hedge(after=0.05))
    def slow_at_first():
        calls.append(1)
        if len(calls) == 1:
            finish.wait(30)
        return len(calls)

    @flow
    def scenario():
        return slow_at_first()

    assert scenario() == 2
    assert limit.current == 2
    assert in_line(f"adaptive:{limit._key()}") == 1  # the call that lost still runs
    finish.set()
    deadline = time.monotonic() + 10
    while in_line(f"adaptive:{limit._key()}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


AT_ONCE = Retry(attempts=2, backoff=Backoff.none())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.smoke
@pytest.mark.requirement("003.16")
def test_a_timeout_is_retried_by_default(mode, seen):
    calls = []

    async def aslow():
        calls.append(1)
        await asyncio.sleep(10 if len(calls) == 1 else 0)
        return len(calls)

    def slow():
        calls.append(1)
        attempt = len(calls)
        time.sleep(10 if attempt == 1 else 0)
        return attempt

    made = resilient_task(timeout=0.3, retry=AT_ONCE)(aslow if mode.isasync else slow)
    state = mode.state(made)
    assert state.result() == 2
    names = [state.name for state in seen.states(state.state_details.task_run_id)]
    assert names[-1] == "Completed"
    assert "Retrying" in names


def test_the_deadline_is_for_each_attempt_not_for_the_fallback(mode):
    def slow():
        time.sleep(0.5)

    def instead():
        time.sleep(0.6)
        return "instead"

    async def aslow():
        await asyncio.sleep(0.5)

    made = resilient_task(timeout=0.1, retry=None, fallback=instead)(aslow if mode.isasync else slow)
    assert mode.value(made) == "instead"


@pytest.mark.timeout(120)
def test_in_process_mode_the_child_is_gone(tmp_path, mode, warm_children):
    file = tmp_path / "pid"

    def stuck(path):
        with open(path, "w") as out:
            out.write(str(os.getpid()))
        time.sleep(60)

    async def astuck(path):
        stuck(path)

    # The deadline counts from the call, also while a busy machine imports Prefect in the child.
    made = resilient_task(timeout=Timeout(20, mode="process"), retry=None)(astuck if mode.isasync else stuck)
    with pytest.raises(AttemptTimeout):
        mode.value(made, str(file))
    pid = int(file.read_text())
    assert pid != os.getpid()
    assert not alive(pid)


def test_an_operation_names_a_time_of_the_settings(monkeypatch):
    assert resilient_task(timeout="llm-call")(lambda: None).guard.timeout == Timeout(60)
    monkeypatch.setenv("PREFECT_RESILIENCE_TIMEOUTS", '{"llm-call": 5, "scan": 7}')
    assert resilient_task(timeout="llm-call")(lambda: None).guard.timeout == Timeout(5)
    assert resilient_task(timeout="scan")(lambda: None).guard.timeout == Timeout(7)
    with pytest.raises(ConfigurationError, match="llm-call"):
        resilient_task(timeout="llm-cal")(lambda: None)


def breaking(calls):
    def body():
        calls.append(1)
        yield "a"
        raise ValueError("bad")

    return body


def test_prefects_own_retries_restart_it_as_in_prefect(mode):
    chunks, error = mode.read(mode.stream(breaking([]), retries=1))
    assert chunks == ["a", "a"]
    assert isinstance(error, ValueError)
    wrapped = ResilientTask.wrap(task(retries=1)(mode.stream(breaking([])).guard.fn))
    assert mode.read(wrapped)[0] == ["a", "a"]
    assert mode.read(wrapped.with_options(name="other"))[0] == ["a", "a"]


def test_a_stream_that_prefects_own_timeout_cut_off_is_not_restarted(mode):
    if mode.isasync:

        @resilient_task(timeout_seconds=0.2)
        async def slow():
            yield 1
            await asyncio.sleep(60)
    else:

        @resilient_task(timeout_seconds=0.2)
        def slow():
            yield 1
            for _ in range(600):  # in a thread, a timeout takes effect between two statements
                time.sleep(0.1)

    chunks, error = mode.read(slow)
    assert chunks == [1]
    assert isinstance(error, TimeoutError)


def test_a_fallback_streams_in_its_place(mode):
    def body():
        raise ConnectionResetError("cut")
        yield

    def instead():
        yield from [7, 8]

    assert mode.read(mode.stream(body, retry=None, fallback=instead)) == ([7, 8], None)
    assert mode.read(mode.stream(body, retry=None, fallback=lambda: 9)) == ([9], None)
