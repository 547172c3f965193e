"""Deadlines of flows and tasks, in threads and in other processes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prefect import flow
from prefect.task_runners import ProcessPoolTaskRunner

from benchmarks.deadlines import IN_RUNS, ON_POOLS, measure
from prefect_resilience import DeadlineExceeded, deadline, resilient_flow, resilient_task
from prefect_resilience.tasks.edge.live_policy import with_policy
from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy

# The alarm of pytest-timeout would keep a deadline from interrupting the main thread.
pytestmark = [pytest.mark.api, pytest.mark.timeout(120, method="thread")]

LATE = 15.0


SLOW = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("nesting", "seconds"),
    [(name.__name__, 1.0) for name in IN_RUNS]
    + [pytest.param(name.__name__, 3.0, marks=SLOW) for name in ON_POOLS],
)
def test_a_run_ends_and_nothing_is_begun_after_its_deadline(
    nesting: str, seconds: float, tmp_path: Any
) -> None:
    outcome = measure(nesting, seconds, str(tmp_path))
    assert outcome.begun_after == []
    assert outcome.late < LATE


@resilient_task(retry=None)
def seconds_left() -> float:
    with deadline("1h") as limit:
        return limit.remaining()


def test_a_task_in_another_process_gets_what_is_left() -> None:
    @flow(task_runner=ProcessPoolTaskRunner(max_workers=1))
    def scenario() -> tuple[float, float]:
        with deadline(300):
            bounded = seconds_left.submit()
        return bounded.result(), seconds_left.submit().result()

    bounded, free = scenario()
    assert 100 < bounded < 300 < free


def test_the_state_says_so_and_neither_prefect_nor_a_guard_retries(seen: Any) -> None:
    begun: list[int] = []

    @resilient_flow(deadline=0.5, retries=3, retry_delay_seconds=1, summary=False)
    def bill() -> None:
        begun.append(1)
        time.sleep(30)

    state = bill(return_state=True)
    assert (state.name, begun) == ("TimedOut", [1])
    assert "passed the deadline of 0.5 s set at flow bill" in state.message
    (event,) = seen.events("prefect-resilience.deadline.exceeded", lambda event: "bill" in str(event))
    assert event["payload"]["seconds"] == 0.5


def test_automatic_retries_share_it_and_a_new_run_has_its_own() -> None:
    lefts: list[float] = []

    @resilient_flow(deadline="1h", retries=1, summary=False)
    def flaky() -> None:
        lefts.append(seconds_left())
        if len(lefts) == 1:
            time.sleep(0.5)
            raise ConnectionError("refused")

    flaky()
    assert lefts[1] < lefts[0] - 0.5
    flaky()
    assert lefts[2] > lefts[1]


def test_an_earlier_deadline_around_a_flow_counts_also_for_a_generator() -> None:
    @resilient_flow(deadline="1h", summary=False)
    def numbers() -> Any:
        yield seconds_left()

    with deadline(100):
        assert next(iter(numbers())) <= 100
    with deadline(0.01):
        time.sleep(0.1)
        with pytest.raises(DeadlineExceeded):
            list(numbers())


def test_a_block_sets_it() -> None:
    guard = seconds_left.guard
    assert with_policy(guard, ResiliencePolicy(deadline=5)).deadline == 5
    own = seconds_left.with_options(deadline="1m").guard
    assert with_policy(own, ResiliencePolicy(timeout=1)).deadline == 60
