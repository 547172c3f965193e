"""Bulkheads, rate limits and hedges around tasks, in their place in the order."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from prefect import flow

from prefect_resilience import (
    Backoff,
    Bulkhead,
    BulkheadFullError,
    CircuitBreaker,
    ConfigurationError,
    Hedge,
    RateLimit,
    Retry,
    resilient_task,
)

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


def test_a_full_bulkhead_is_retried_and_says_nothing_about_the_service():
    inside, leave = threading.Event(), threading.Event()
    circuit = CircuitBreaker("full", failure_threshold=1)
    limit = Bulkhead(1, max_wait=0.01)

    @resilient_task(retry=Retry(attempts=2, backoff=Backoff.none()), limits=limit, circuit=circuit)
    def work(wait):
        if wait:
            inside.set()
            leave.wait(30)
        return "done"

    @flow
    def scenario():
        first = work.submit(True)
        inside.wait(30)
        refused = work(False, return_state=True)
        leave.set()
        return refused, first.result()

    refused, done = scenario()
    assert done == "done"
    assert refused.is_failed()
    with pytest.raises(BulkheadFullError):
        refused.result()
    assert circuit.state == "closed"


def test_templates_and_several_limits(mode):
    def work(provider):
        return provider

    made = mode.task(work, limits=[Bulkhead(1, name="b:{provider}"), RateLimit(100, name="r:{provider}")])
    assert mode.value(made, "first") == "first"
    with pytest.raises(ConfigurationError, match="did you mean 'provider'"):
        mode.task(work, limits=Bulkhead(1, name="b:{provder}"))
    with pytest.raises(ConfigurationError, match="Bulkhead"):
        mode.task(work, limits=3)


def test_a_hedge_asks_again_beside_a_slow_answer():
    calls = []

    @resilient_task(retry=None, timeout=20, hedge=Hedge(after=0.05))
    async def slow_at_first():
        calls.append(1)
        if len(calls) == 1:
            await asyncio.sleep(30)
        return len(calls)

    @flow
    async def scenario():
        return await slow_at_first()

    assert asyncio.run(scenario()) == 2
    with pytest.raises(ConfigurationError, match="write Hedge"):
        resilient_task(hedge=3)(lambda: None)
