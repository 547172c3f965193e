"""Deadlines of real runs: threads, coroutines, child processes."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from prefect_resilience import (
    AttemptTimeout,
    Backoff,
    ConfigurationError,
    Retry,
    Timeout,
    resilient_task,
)

pytestmark = pytest.mark.api


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

    # The deadline counts from the call, also while a busy machine starts the first child.
    made = resilient_task(timeout=Timeout(8, mode="process"), retry=None)(astuck if mode.isasync else stuck)
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
