"""How an adaptive limit finds its number: simulated services, each with the number it should end at."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.guards.limits.adaptive import Vegas

BOUNDS = (20, 1, 200)
START = 1_000_003.0


class Service:
    """So many calls at a time, each of so many seconds; further ones wait, or are refused. With all places in
    use, the latency is what Little's law says."""

    def __init__(self, capacity, seconds=0.1, delay=0.0, refuses=False):
        self.capacity, self.seconds, self.delay, self.refuses = capacity, seconds, delay, refuses

    def latency(self, calls):
        return max(self.delay + self.seconds, self.seconds * calls / self.capacity)


class Callers:
    """A limit in use by at most `demand` callers. `noise`: how much the latency of a call varies."""

    def __init__(self, bounds=BOUNDS, demand=math.inf, noise=0.0):
        self.demand, self.noise, self.random = demand, noise, random.Random(1)
        self.vegas, self.now, self.numbers = Vegas(*bounds), START, [bounds[0]]

    def call(self, service, seconds):
        until = self.now + seconds
        while self.now < until:
            calls = min(self.vegas.number, self.demand)
            refused = max(0, calls - service.capacity) if service.refuses else 0
            latency = service.seconds if service.refuses else service.latency(calls)
            self.now += latency / (calls - refused)
            self.end(latency * self.random.lognormvariate(-(self.noise**2) / 2, self.noise), calls)
            for _ in range(refused):
                self.end(0.005, calls, dropped=True)
        return self

    def end(self, latency, in_flight, dropped=False):
        changed = self.vegas.count(latency, in_flight, dropped, self.now)
        assert changed == (self.vegas.number != self.numbers[-1])
        self.numbers.append(self.vegas.number)

    def usual(self, seconds=20):
        """The number that held for most of the last calls."""
        last = sorted(self.numbers[-200 * seconds :])
        return last[len(last) // 2]


SERVICES = {
    "40 places": ([Service(40)], 40, 48),
    "6 places, fewer than at first": ([Service(6)], 7, 11),
    "100 places": ([Service(100)], 100, 112),
    "more than the most": ([Service(400)], 200, 200),
    "the capacity halves": ([Service(40), Service(20)], 20, 27),
    "the capacity doubles": ([Service(40), Service(80)], 80, 90),
    "servers become slower": ([Service(40), Service(40, 0.2)], 40, 50),
    "the way becomes longer": ([Service(40), Service(40, delay=0.1)], 80, 92),
    "it refuses what is too much": ([Service(40, refuses=True)], 32, 42),
    "it refuses, and halves": ([Service(40, refuses=True), Service(20, refuses=True)], 15, 21),
}


@pytest.mark.parametrize(("services", "least", "most"), SERVICES.values(), ids=SERVICES)
def test_it_finds_the_number_of_each_service(services, least, most):
    callers = Callers(noise=0.3)
    for service in services:
        callers.call(service, 120 * max(1.0, service.seconds))
    assert least <= callers.usual() <= most


def test_it_does_not_drift_while_calls_wait_all_the_time():
    """Limits that compare latency with its own average do: Gradient2 is at 200 after 20 minutes."""
    callers = Callers(noise=0.3).call(Service(10), 1200)
    assert 10 <= callers.usual() <= 15
    assert max(callers.numbers[-20_000:]) <= 20


def test_a_few_failures_change_nothing():
    callers = Callers()
    for call in range(2000):
        callers.now += 0.01
        callers.end(0.1, 5, dropped=call % 50 == 49)
    assert set(callers.numbers) == {20}


@pytest.mark.parametrize(
    ("bounds", "service", "most"),
    [
        ((5, 3, 8), Service(40), 8),
        ((20, 15, 30), Service(4), 20),
        ((20, 15, 30), Service(4, refuses=True), 15),
        ((1, 1, 1), Service(1), 1),
    ],
)
def test_the_limit_stays_within_its_bounds(bounds, service, most):
    callers = Callers(bounds).call(service, 120)
    assert bounds[1] <= min(callers.numbers)
    assert max(callers.numbers) <= bounds[2]
    assert callers.usual() <= most


def test_a_coarse_clock_may_show_no_latency():
    callers = Callers()
    for _ in range(200):
        callers.now += 0.1
        callers.end(0.0, 20)
    assert callers.vegas.number > 20


limits = st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 200)).map(
    lambda t: (t[0] + t[1], t[0], t[0] + t[1] + t[2])
)
calls = st.tuples(
    st.floats(0, 100, allow_subnormal=False), st.integers(1, 300), st.sampled_from([False, False, True])
)


@settings(max_examples=200, deadline=None)
@given(limits, st.lists(st.tuples(calls, st.integers(1, 60), st.floats(0, 30)), max_size=40))
def test_whatever_happens_the_limit_is_a_number_within_its_bounds(bounds, happenings):
    vegas, now = Vegas(*bounds), START
    for call, times, seconds in happenings:
        for _ in range(times):
            now += seconds / times
            before = vegas.number
            assert vegas.count(*call, now) == (vegas.number != before)
            assert bounds[1] <= vegas.limit <= bounds[2]
            assert bounds[1] <= vegas.number <= bounds[2]
            assert vegas.base > 0
