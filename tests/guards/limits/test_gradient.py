"""How an adaptive limit finds its number: steps on a service that is a formula."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.guards.limits import gradient
from prefect_resilience.guards.limits.gradient import (
    CallWindow,
    Finding,
    LimitBounds,
    places,
)
from prefect_resilience.guards.limits.knee import Fit, Level, fitted

BOUNDS = LimitBounds(20, 1, 200)
START = 1_000_003.0


class Service:
    """So many calls at a time, each of so many seconds; further ones wait, or are dropped. Nothing is random:
    with all places in use, the latency is exactly what Little's law says."""

    def __init__(self, capacity, seconds=0.1, delay=0.0, refuses=False):
        self.capacity, self.seconds, self.delay, self.refuses = capacity, seconds, delay, refuses

    def latency(self, calls):
        return self.delay + self.seconds * max(1.0, calls / self.capacity)


class Running:
    """A limit in use: `demand` callers at most. `noise`: how much the latency of a call varies."""

    def __init__(self, bounds=BOUNDS, demand=math.inf, noise=0.0):
        self.demand, self.noise, self.random = demand, noise, random.Random(1)
        self.finding, self.now = Finding(bounds), START
        self.limits = []

    @property
    def state(self):
        return self.finding.state

    def runs(self, service, seconds):
        until = self.now + seconds
        while self.now < until:
            allowed = places(self.state)
            calls = min(allowed, self.demand)
            refused = max(0, calls - service.capacity) if service.refuses else 0
            latency = service.seconds if service.refuses else service.latency(calls)
            self.now += latency / (calls - refused)
            varied = latency * self.random.lognormvariate(-(self.noise**2) / 2, self.noise)
            self.takes(varied, calls >= allowed)
            for _ in range(refused):
                self.takes(0.005, True, True)
        return self

    def takes(self, latency, full=True, dropped=False):
        self.finding.ended(latency, full, dropped, self.now)
        self.limits.append(self.state.limit)

    @property
    def number(self):
        return round(self.state.center)


@pytest.mark.parametrize("noise", [0.0, 0.4])
@pytest.mark.parametrize("capacity", [6, 40, 100])
def test_it_finds_the_capacity_from_below_and_from_above(capacity, noise):
    limit = Running(noise=noise).runs(Service(capacity), 60)
    assert 0.7 * capacity - 0.5 <= limit.number <= 1.3 * capacity + 1


def test_it_follows_a_capacity_that_halves_twice_and_returns():
    limit = Running(noise=0.3).runs(Service(40), 30)
    assert 17 <= limit.runs(Service(20), 20).number <= 25
    assert 8 <= limit.runs(Service(10), 20).number <= 13
    assert 36 <= limit.runs(Service(40), 30).number <= 48


def test_it_grows_to_use_twice_the_capacity():
    limit = Running(noise=0.3).runs(Service(40), 30)
    assert 72 <= limit.runs(Service(80), 20).number <= 96


def test_a_service_that_is_slower_without_waiting_calls_keeps_its_places():
    """A lower limit shows that fewer calls are not faster: it grows again."""
    limit = Running().runs(Service(40), 30)
    at = len(limit.limits)
    limit.runs(Service(100, 0.1, delay=0.1), 60)
    assert min(limit.limits[at:]) < 40
    assert limit.number >= 40
    assert limit.state.base == pytest.approx(0.2, rel=0.2)


def test_a_limit_that_is_not_used_up_stays_where_it_is():
    limit = Running(demand=8).runs(Service(40), 60)
    assert set(limit.limits) == {20.0}
    assert limit.state.base == pytest.approx(0.1)
    limit.runs(Service(40, 0.3), 60)
    assert set(limit.limits) == {20.0}
    assert limit.state.base == pytest.approx(0.3, rel=0.01)


def test_refusals_find_the_number_too():
    limit = Running().runs(Service(40, refuses=True), 60)
    tail = sorted(limit.limits[-8000:])
    assert tail[-1] <= 48
    assert 33 <= tail[400] <= tail[4000] <= 42
    assert limit.state.base == pytest.approx(0.1)
    assert min(limit.runs(Service(20, refuses=True), 20).limits[-2000:]) <= 22
    assert max(limit.runs(Service(40, refuses=True), 20).limits[-2000:]) >= 38


def test_a_few_refusals_change_nothing():
    limit = Running().runs(Service(1000), 5)
    limit.finding.become(limit.state)
    limit.now, before = limit.state.begins, limit.state.limit
    for _ in range(29):
        limit.takes(0.005, dropped=True)
    assert limit.state.limit == before
    for _ in range(1):
        limit.takes(0.1, dropped=True)
    assert limit.state.limit == pytest.approx(0.7 * before, abs=1)
    assert limit.state.ceiling == limit.state.limit


def test_a_limit_never_grows_past_a_refusal_at_once():
    limit = Running().runs(Service(40, refuses=True), 30)
    at = len(limit.limits)
    limit.runs(Service(40, refuses=True), 30)
    steps = zip(limit.limits[at:], limit.limits[at + 1 :], strict=False)
    assert max(after / before for before, after in steps) <= 1.13


def test_the_limit_stays_within_its_bounds():
    high = Running(LimitBounds(5, 3, 8)).runs(Service(40), 30)
    assert (high.number, max(high.limits)) == (8, 8)
    low = Running(LimitBounds(20, 15, 30)).runs(Service(4), 60)
    assert (low.number, min(low.limits)) == (15, 15)
    refused = Running(LimitBounds(20, 15, 30)).runs(Service(4, refuses=True), 10)
    assert min(refused.limits) == 15


def test_nothing_is_decided_before_there_are_enough_calls():
    """The warm-up: 30 calls, and half a second."""
    limit = Running()
    for _ in range(29):
        limit.now += 0.1
        limit.takes(0.1)
    assert limit.state.base == 0
    assert set(limit.limits) == {20.0}
    limit.takes(0.1)
    assert limit.state.base == pytest.approx(0.1)
    assert limit.state.limit == 30
    begins, ends = limit.state.begins, limit.state.ends
    assert begins == pytest.approx(limit.now + 1.2 * 0.1)
    assert ends == pytest.approx(begins + 0.5)
    limit.now = (begins + ends) / 2
    for _ in range(60):
        limit.takes(0.1)
    assert limit.state.limit == 30


def test_calls_that_began_before_a_change_do_not_count():
    limit = Running()
    limit.finding.become(limit.state._replace(begins=START + 5))
    limit.takes(9.0)
    assert limit.finding.calls == 0
    limit.now = START + 5
    limit.takes(9.0)
    assert limit.finding.calls == 1


def test_a_sudden_latency_is_a_reason_not_to_wait():
    limit = Running().runs(Service(40), 30)
    limit.finding.become(limit.state)
    limit.now, before = limit.state.begins, limit.state.limit
    for _ in range(60):
        limit.takes(0.4)
        if limit.state.limit < before:
            break
    assert limit.now < limit.state.ends
    assert limit.state.limit <= 0.65 * before


def test_more_calls_are_taken_while_their_latency_is_vague():
    limit = Running()
    limit.now += 9.0
    for number in range(60):
        limit.takes(0.01 if number % 2 else 1.0)
    assert limit.state.base == 0
    for number in range(60):
        limit.takes(0.01 if number % 2 else 1.0)
    assert limit.state.base > 0


def test_the_smallest_limit_stays_and_its_base_follows():
    limit = Running(LimitBounds(1, 1, 1)).runs(Service(1), 40)
    limit.runs(Service(1, 0.4), 200)
    assert set(limit.limits) == {1.0}
    assert limit.state.base == pytest.approx(0.4, rel=0.05)


def levels(*measured):
    return [Level(math.log(limit), math.log(latency), 100.0) for limit, latency in measured]


def test_the_knee_is_where_calls_begin_to_wait():
    fit = fitted(levels((10, 0.1), (20, 0.1), (30, 0.15), (40, 0.2)))
    assert math.exp(fit.knee) == pytest.approx(20)
    assert math.exp(fit.base) == pytest.approx(0.1)
    fit = fitted(levels((10, 0.1), (30, 0.12), (40, 0.16)))
    assert math.exp(fit.knee) == pytest.approx(25)
    assert fitted(levels((10, 0.1), (40, 0.1))) == Fit(math.log(0.1), math.inf)
    assert math.exp(fitted(levels((10, 0.1), (40, 0.4))).knee) == pytest.approx(10)
    assert fitted(levels((10, 0.1), (40, 0.5))).knee < math.inf
    assert fitted(levels((10, 0.1))).knee == math.inf


def test_a_better_explanation_must_be_better_by_the_bias():
    measured = levels((10, 0.1), (20, 0.101))
    assert fitted(measured).knee < math.inf
    assert fitted(measured, -1.0).knee == math.inf
    assert fitted(levels((10, 0.1), (20, 0.2)), -1.0).knee < math.inf


def test_new_options_apply_at_once():
    state = gradient.new(BOUNDS)._replace(limit=120.0, center=120.0)
    assert gradient.within(state, LimitBounds(20, 1, 50)).limit == 50
    assert gradient.within(state, LimitBounds(150, 130, 200)).center == 130


samples = st.tuples(
    st.floats(0, 100, allow_subnormal=False), st.booleans(), st.sampled_from([False, False, False, True])
)
bounds = st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 200)).map(
    lambda t: LimitBounds(t[0] + t[1], t[0], t[0] + t[1] + t[2])
)


@settings(max_examples=200, deadline=None)
@given(bounds, st.lists(st.tuples(samples, st.integers(1, 60), st.floats(0, 30)), max_size=40))
def test_whatever_happens_the_limit_is_a_number_within_its_bounds(limits, happenings):
    finding, now = Finding(limits), START
    for sample, times, passed in happenings:
        for _ in range(times):
            now += passed / times
            finding.ended(*sample, now)
            state = finding.state
            assert limits.minimum <= state.limit <= limits.maximum
            assert limits.minimum <= places(state) <= limits.maximum
            assert limits.minimum <= state.center <= limits.maximum
            assert math.isfinite(state.base)
            assert state.base >= 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=300))
def test_a_limit_that_was_never_full_never_changes(latencies):
    finding, now = Finding(BOUNDS), START
    for latency in latencies * 5:
        now += latency
        finding.ended(latency, False, False, now)
        assert finding.state.limit == 20


def test_a_window_knows_its_error_and_its_use():
    window = CallWindow(100, 10.0, 1.25, 69, 0)
    assert (window.latency, window.error) == (pytest.approx(0.1), pytest.approx(0.05))
    assert not window.used
    assert window._replace(full=70).used
