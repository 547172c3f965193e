"""How an adaptive limit finds its number: pure steps on a service that is a formula."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.guards.limits import gradient
from prefect_resilience.guards.limits.gradient import (
    CallWindow,
    Level,
    LimitBounds,
    Sample,
    new,
    places,
    step,
)

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
    """A limit in use: `demand` callers at most."""

    def __init__(self, bounds=BOUNDS, demand=math.inf):
        self.bounds, self.demand = bounds, demand
        self.state, self.now = new(bounds), START
        self.limits = []

    def runs(self, service, seconds):
        until = self.now + seconds
        while self.now < until:
            allowed = places(self.state.limit)
            calls = min(allowed, self.demand)
            dropped = service.refuses and calls > service.capacity
            latency = service.seconds if service.refuses else service.latency(calls)
            self.now += latency / calls
            self.takes(Sample(latency, calls >= allowed))
            if dropped:
                self.takes(Sample(0.001, True, True))
        return self

    def takes(self, sample):
        self.state = step(self.state, sample, self.now, self.bounds)
        self.limits.append(self.state.limit)

    @property
    def number(self):
        """The number outside of an experiment."""
        return places((self.state.trial or self.state).limit)


def test_it_finds_the_capacity_from_below_and_from_above():
    assert 40 <= Running().runs(Service(40), 30).number <= 48
    assert 6 <= Running().runs(Service(6), 60).number <= 9
    assert 100 <= Running().runs(Service(100), 30).number <= 110


def test_it_follows_a_capacity_that_halves_and_returns():
    limit = Running().runs(Service(40), 30)
    assert 20 <= limit.runs(Service(20), 20).number <= 25
    assert 40 <= limit.runs(Service(40), 20).number <= 48


def test_a_service_that_is_slower_without_waiting_calls_keeps_its_places():
    """An experiment shows that fewer calls are not faster: the cut for the higher latency is taken back."""
    limit = Running().runs(Service(40), 31)
    before = limit.number
    at = len(limit.limits)
    limit.runs(Service(100, 0.1, delay=0.1), 30)
    assert min(limit.limits[at:]) < 0.8 * before
    assert limit.number >= before
    assert limit.state.base == pytest.approx(0.2, rel=0.1)


def test_a_limit_that_is_not_used_up_stays_where_it_is():
    limit = Running(demand=8).runs(Service(40), 60)
    assert limit.number == 20
    assert limit.state.base == pytest.approx(0.1)
    limit.runs(Service(40, 0.3), 60)
    assert limit.number == 20
    assert limit.state.base == pytest.approx(0.3, rel=0.01)


def test_refusals_find_the_number_too():
    limit = Running().runs(Service(40, refuses=True), 60)
    tail = sorted(limit.limits[-4000:])
    assert tail[-1] <= 46
    assert 37 <= tail[400] <= tail[2000] <= 42


def test_the_limit_stays_within_its_bounds():
    assert Running(LimitBounds(5, 3, 8)).runs(Service(40), 30).number == 8
    assert min(Running(LimitBounds(20, 15, 30)).runs(Service(4), 60).limits) == 15


def test_nothing_is_decided_before_there_are_enough_calls():
    limit = Running()
    for _ in range(39):
        limit.now += 0.01
        limit.takes(Sample(0.1, True))
    assert limit.state.base == 0
    assert set(limit.limits) == {20.0}
    limit.takes(Sample(0.1, True))
    assert limit.state.base == pytest.approx(0.1)
    assert limit.state.limit == 20


def test_one_refusal_alone_changes_nothing():
    limit = Running().runs(Service(1000), 5)
    before = limit.state.limit
    limit.takes(Sample(0.001, True, True))
    assert limit.state.limit == before
    limit.state = limit.state._replace(window=CallWindow(dropped=8))
    limit.takes(Sample(0.001, True, True))
    assert limit.state.limit == pytest.approx(before * 0.95)
    assert limit.state.ceiling == before


def test_calls_that_began_before_a_reduction_do_not_count():
    state = new(BOUNDS)._replace(begins=START + 5)
    assert step(state, Sample(9.0, True, True), START + 4.9, BOUNDS) is state


def test_a_second_cut_needs_a_latency_that_rises_further():
    state = new(BOUNDS)._replace(limit=40.0, base=0.1, recent=0.2, cut=Level(80.0, 0.2), probes=math.inf)
    slow = state._replace(window=CallWindow(100, 19.0, 3.61, 100))
    assert step(slow, Sample(0.19, True), START, BOUNDS).limit == 40
    slower = state._replace(window=CallWindow(100, 40.0, 16.0, 100))
    cut = step(slower, Sample(0.4, True), START, BOUNDS)
    assert cut.limit == 20
    assert cut.cut.limit == 80


def test_without_an_experiment_the_limit_declines_only_a_little():
    state = new(BOUNDS)._replace(limit=40.0, base=0.1, recent=0.12, proven=39.0, probes=math.inf)
    for _ in range(10):
        window = CallWindow(100, 12.0, 1.44, 100)
        state = step(state._replace(window=window), Sample(0.12, True), START, BOUNDS)
    assert state.limit == 39


def test_an_experiment_that_is_disturbed_concludes_nothing():
    trial = new(BOUNDS)._replace(limit=26.0, base=0.1, trial=Level(40.0, 0.12))
    rising = trial._replace(window=CallWindow(100, 30.0, 9.0, 100))
    unused = trial._replace(window=CallWindow(100, 8.0, 0.64, 0))
    for state in (rising, unused):
        after = step(state, Sample(0.1, False), START, BOUNDS)
        assert (after.limit, after.base, after.trial) == (40.0, 0.1, None)


def test_an_experiment_waits_for_an_exact_latency():
    trial = new(BOUNDS)._replace(limit=26.0, base=0.1, trial=Level(40.0, 0.12))
    vague = trial._replace(window=CallWindow(100, 10.0, 30.0, 100))
    assert step(vague, Sample(0.1, True), START, BOUNDS).trial == trial.trial
    long = trial._replace(window=CallWindow(416, 41.6, 90.0, 416))
    assert step(long, Sample(0.1, True), START, BOUNDS).trial is None


def test_the_smallest_limit_makes_no_experiment_and_its_base_follows():
    bounds = LimitBounds(1, 1, 1)
    limit = Running(bounds).runs(Service(1), 40)
    assert limit.state.trial is None
    assert limit.state.probes > limit.now
    limit.runs(Service(1, 0.4), 200)
    assert set(limit.limits) == {1.0}
    assert limit.state.base == pytest.approx(0.4, rel=0.05)


def test_the_processes_of_a_fleet_experiment_at_the_same_time():
    """Even if they began at different times, and their services differ a little."""
    starts = []
    for began, seconds in ((0.0, 0.1), (3.3, 0.11), (8.1, 0.09)):
        limit = Running()
        limit.now += began
        state = limit.state
        while limit.now < START + 60:
            limit.runs(Service(40, seconds), 0.001)
            if state.trial is None and limit.state.trial is not None:
                starts.append(limit.now)
            state = limit.state
    late = [at for at in starts if at % 2.5 > 0.1]
    assert starts
    assert not late


def test_slots_are_longer_for_slow_calls():
    assert gradient._slot(1003.0, 0.1) == 1010
    assert gradient._slot(1003.0, 1.0) == 1020
    assert gradient._slot(1003.0, 10.0) % 160 == 0
    assert gradient._slot(1003.0, 0.1, 4) == 1005


def test_new_options_apply_at_once():
    state = new(BOUNDS)._replace(limit=120.0)
    assert gradient.within(state, LimitBounds(20, 1, 50)).limit == 50
    assert gradient.within(state, LimitBounds(150, 130, 200)).limit == 130


samples = st.tuples(
    st.floats(0, 100, allow_subnormal=False), st.booleans(), st.sampled_from([False, False, False, True])
)
bounds = st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 200)).map(
    lambda t: LimitBounds(t[0] + t[1], t[0], t[0] + t[1] + t[2])
)


@settings(max_examples=200, deadline=None)
@given(bounds, st.lists(st.tuples(samples, st.integers(1, 60), st.floats(0, 30)), max_size=40))
def test_whatever_happens_the_limit_is_a_number_within_its_bounds(limits, happenings):
    state, now = new(limits), START
    for sample, times, passed in happenings:
        for _ in range(times):
            now += passed / times
            state = step(state, Sample(*sample), now, limits)
            assert limits.minimum <= state.limit <= limits.maximum
            assert limits.minimum <= places(state.limit) <= limits.maximum
            assert math.isfinite(state.base)
            assert state.base >= 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=300))
def test_a_limit_that_was_never_full_never_changes(latencies):
    state, now = new(BOUNDS), START
    for latency in latencies * 5:
        now += latency
        state = step(state, Sample(latency, False), now, BOUNDS)
        assert state.limit == 20
