"""Real processes that share one SQLite file, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker

pytestmark = pytest.mark.slow

Start = Callable[..., Any]

FAIL_ONCE = """
breaker = CircuitBreaker("service", store=url)
say(attempt(breaker, fail))
"""

CALL = """
made = []
breaker = CircuitBreaker("service", store=url)
say((attempt(breaker, lambda: made.append(1)), made))
"""

THREE_CALLS = """
breaker = CircuitBreaker(
    "window", failure_threshold=1000, minimum_calls=60, failure_rate=50 / 60, window="10m", store=url
)
say("ready")
hear()
say([attempt(breaker, fail if number >= 3 - fails else lambda: None) for number in range(3)])
"""


@pytest.mark.requirement("003.22")
def test_failures_of_many_processes_open_it_and_a_fresh_one_is_refused(start: Start, url: str) -> None:
    for _ in range(5):
        worker = start(FAIL_ONCE, url=url)
        assert worker.hear() == "failed"
        worker.end()
    worker = start(CALL, url=url)
    assert worker.hear() == ("refused", [])
    snapshot = CircuitBreaker("service", store=url).snapshot()
    assert (snapshot.state, snapshot.consecutive_failures) == ("open", 5)


def test_a_window_is_the_fleets_not_a_process_own(start: Start, url: str) -> None:
    """20 processes with 3 calls each, none of which would trip alone: 50 of the 60 failed."""
    workers = [start(THREE_CALLS, url=url, fails=3 if number < 15 else 1) for number in range(20)]
    for worker in workers:
        assert worker.hear() == "ready"
    for worker in workers:
        worker.say("go")
        assert len(worker.hear()) == 3
        worker.end()
    breaker = CircuitBreaker(
        "window", failure_threshold=1000, minimum_calls=60, failure_rate=50 / 60, window="10m", store=url
    )
    snapshot = breaker.snapshot()
    assert snapshot.state == "open"
    assert "50 of 60 calls failed" in (snapshot.reason or "")


def test_a_transition_is_told_by_one_process(start: Start, url: str) -> None:
    code = """
from prefect_resilience.guards.circuits.listeners import transition_listeners
heard = []
transition_listeners.add(heard.append)
breaker = CircuitBreaker("service", store=url, sync_interval=1e-9)
say(attempt(breaker, fail))
hear()
say(attempt(breaker, fail))
say([t.after for t in heard])
"""
    fleet = [start(code, url=url) for _ in range(5)]
    for worker in fleet:
        assert worker.hear() == "failed"
    for worker in fleet:
        worker.say("go on")
        assert worker.hear() == "refused"
    assert sorted(worker.hear() for worker in fleet) == [[], [], [], [], ["open"]]


def test_a_forked_child_counts_for_itself(start: Start, url: str) -> None:
    code = """
import os
breaker = CircuitBreaker("service", store=url, sync_interval=60, window=100)
for _ in range(10):
    breaker.call(int)
child = os.fork()
if child == 0:
    for _ in range(3):
        breaker.call(int)
    breaker.snapshot()
    os._exit(0)
os.waitpid(child, 0)
say(breaker.snapshot().window_calls)
"""
    assert start(code, url=url).hear() == 13
