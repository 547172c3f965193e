"""Policies that change while tasks run: on a real API, in every way in which it can answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience import Retry, resilient_task
from prefect_resilience.tasks.edge import live_policy as live
from prefect_resilience.tasks.edge.live_policy import FRESH, PATIENCE, LivePolicy
from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy
from tests.prefect_runs import Mode

pytestmark = pytest.mark.api

ONCE = Retry(attempts=2, backoff={"kind": "none"})


def lines_in(log: list[logging.LogRecord]) -> list[str]:
    """What task runs log of policy blocks."""
    return [line for record in log if "policy block" in (line := record.getMessage())]


@pytest.fixture
def plain() -> Mode:
    """Plain functions, where both kinds go the same way."""
    return Mode("sync")


@pytest.fixture
def name() -> str:
    return f"policy-{uuid4().hex[:8]}"


class Failing:
    """A task's body that counts its calls and fails."""

    def __init__(self, mode: Any, **options: Any) -> None:
        self.calls = 0

        def body() -> str:
            self.calls += 1
            raise TimeoutError("no answer")

        self.mode = mode
        self.task = mode.task(body, **options)

    def run(self) -> int:
        """How many calls one run makes."""
        before = self.calls
        with pytest.raises(TimeoutError):
            self.mode.value(self.task)
        return self.calls - before


def expire(policy: LivePolicy) -> None:
    """As if the server had been asked long ago."""
    policy.asked_at -= FRESH


def policy_of(task: Any) -> LivePolicy:
    return live.policy_of(task.guard)


@pytest.mark.smoke
def test_the_block_overrides_what_the_code_says(mode: Any, name: str, run_log: Any):
    ResiliencePolicy(retry={"attempts": 4, "backoff": {"kind": "none"}}).save(name)
    assert Failing(mode, retry=ONCE, policy=name).run() == 4
    assert lines_in(run_log) == []


def test_a_change_reaches_runs_that_begin_later(plain: Any, name: str):
    # One attempt each: what is known when it begins decides.
    ResiliencePolicy(retry={"attempts": 1}).save(name)
    failing = Failing(plain, retry=ONCE, policy=name)
    assert failing.run() == 1
    ResiliencePolicy(retry={"attempts": 4, "backoff": {"kind": "none"}}).save(name, overwrite=True)
    # What is young is not asked for again: no task pays for that.
    assert failing.run() == 1
    expire(policy_of(failing.task))
    assert failing.run() == 4


def test_a_change_is_in_force_within_thirty_seconds():
    """What is older than FRESH is never used unasked, and the answer is waited for."""
    assert FRESH + PATIENCE < 30


@pytest.mark.parametrize(
    "broken", [None, {"retry": {"atempts": 3}}, {"fallback": ["nobody"]}, {"timeout": "soon"}]
)
def test_missing_or_broken_it_is_the_codes_own_policy_and_one_warning(
    plain: Any, name: str, run_log: Any, broken: dict[str, Any] | None
):
    if broken is not None:
        write(name, broken)
    failing = Failing(plain, retry=ONCE, policy=name)
    assert [failing.run(), failing.run()] == [2, 2]
    expire(policy_of(failing.task))
    assert failing.run() == 2
    (line,) = lines_in(run_log)
    assert repr(name) in line
    # Mended, it is used; broken again, that is told again.
    write(name, {"retry": {"attempts": 3, "backoff": {"kind": "none"}}})
    expire(policy_of(failing.task))
    assert failing.run() == 3
    write(name, {"retry": {"attempts": 1000}})
    expire(policy_of(failing.task))
    assert failing.run() == 2
    assert len(lines_in(run_log)) == 2


def write(name: str, data: dict[str, Any]) -> None:
    """Save a block as the UI does, whatever it says."""
    ResiliencePolicy.register_type_and_schema()
    with get_client(sync_client=True) as client:
        block = ResiliencePolicy(timeout=1)
        block.save(name, overwrite=True)
        document = client.read_block_document_by_name(name, "resilience-policy")
        body = {"data": data, "block_schema_id": str(document.block_schema_id), "merge_existing_data": False}
        client.request("PATCH", "/block_documents/{id}", path_params={"id": document.id}, json=body)


def test_its_secrets_stay_out_of_the_log(plain: Any, name: str, run_log: Any):
    write(name, {"circuit": {"open_for": "Bearer sk-ant-REDACTED"}})
    Failing(plain, retry=ONCE, policy=name).run()
    (line,) = lines_in(run_log)
    assert "abcdefghijk" not in line


def test_while_the_api_is_away_what_it_said_last_holds(plain: Any, name: str, run_log: Any, until: Any):
    ResiliencePolicy(retry={"attempts": 3, "backoff": {"kind": "none"}}).save(name)
    failing = Failing(plain, retry=ONCE, policy=name)
    assert failing.run() == 3
    policy = policy_of(failing.task)
    expire(policy)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        policy.refresh(time.monotonic())
    until(lambda: policy.answered is None, 60)
    assert policy.latest.policy is not None
    assert failing.run() == 3
    assert lines_in(run_log) == []


def test_its_fallback_answers_and_its_timeout_holds(mode: Any, name: str, until: Any):
    ResiliencePolicy(timeout=0.3, retry={"attempts": 1}, fallback=["instead"]).save(name)

    def slow(drug: str) -> str:
        time.sleep(5)
        return drug

    async def aslow(drug: str) -> str:
        await asyncio.sleep(5)
        return drug

    task = resilient_task(policy=name, fallback=[unused, instead])(aslow if mode.isasync else slow)
    assert mode.value(task, "aspirin") == "instead of aspirin"


def instead(drug: str) -> str:
    return f"instead of {drug}"


def unused(drug: str) -> str:
    raise AssertionError(drug)


def test_generators_follow_it(mode: Any, name: str):
    ResiliencePolicy(retry={"attempts": 3, "backoff": {"kind": "none"}}).save(name)
    calls: list[int] = []

    def numbers() -> Iterator[int]:
        calls.append(1)
        if len(calls) < 3:
            raise TimeoutError
        yield 1

    assert mode.read(mode.stream(numbers, policy=name, retry=None)) == ([1], None)
    assert len(calls) == 3
