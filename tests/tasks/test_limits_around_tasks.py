"""Bulkheads, rate limits and hedges around tasks, in their place in the order."""

from __future__ import annotations

import threading
import time

import pytest
from prefect import flow

from prefect_resilience import (
    AdaptiveLimit,
    Bulkhead,
    Hedge,
    RateLimit,
    resilient_task,
)
from prefect_resilience.guards.limits.line import in_line

pytestmark = pytest.mark.api


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
