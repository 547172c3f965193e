"""An adaptive circuit learns what is usual, and a fleet shares the work of counting."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience import CircuitBreaker
from prefect_resilience.guards.circuits import document as learning
from prefect_resilience.guards.circuits import machine, sharing
from prefect_resilience.guards.circuits.machine import CircuitDocument, Record, new, step
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.sharing import COUNTED, FEW, LONGEST_TURN, MEMORY, MERGES, Turn

NOW = 1_000_000.0


class Service:
    """One process that calls, ten times a second, a service that fails by chance, through a circuit."""

    def __init__(self, seed: int = 1, **policy: Any) -> None:
        self.policy = CircuitPolicy(adaptive=True, **policy)
        self.document = new()
        self.now = NOW
        self.trips: list[int] = []
        self.made = 0
        self._random = random.Random(seed)

    def calls(self, number: int, rate: float, *, stop: bool = False) -> int:
        """How many calls it took until the circuit opened, or all of them; an opening is over at once."""
        for done in range(1, number + 1):
            outcome = "f" if self._random.random() < rate else "s"
            self.made += 1
            self.now += 0.1
            record = Record(self.document["generation"], ((outcome, 1),))
            self.document, changes = step(self.document, record, self.now, self.policy)
            if changes:
                self.trips.append(self.made)
                if stop:
                    return done
                self.close()
        return number

    def close(self) -> None:
        self.document, _ = step(self.document, machine.Force("closed", "go on"), self.now, self.policy)

    @property
    def usual(self) -> float | None:
        return learning.rate(self.document["baseline"])


# -- a service that fails now and then, and then more


@pytest.mark.requirement("003.23")
@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("usual", "risen", "within"), [(0.2, 1.0, 10), (0.2, 0.6, 120), (0.001, 0.1, 250), (0.0, 0.3, 60)]
)
def test_a_rise_opens_it_soon(usual: float, risen: float, within: int) -> None:
    for seed in range(10):
        service = Service(seed, window=100)
        service.calls(3000, usual)
        assert service.calls(1000, risen, stop=True) <= within


@pytest.mark.requirement("003.23")
@pytest.mark.no_cover
@pytest.mark.parametrize("window", [100, 10_000])
def test_a_little_more_than_usual_is_no_rise(window: Any) -> None:
    service = Service(7, window=window)
    service.calls(15_000, 0.2)
    service.trips.clear()
    service.calls(20_000, 0.22)
    assert service.trips == []


def test_an_outage_is_not_learnt() -> None:
    service = Service(3, window="60s")
    service.calls(3000, 0.01)
    before = service.usual
    assert before is not None
    for _ in range(20):
        service.calls(200, 1.0, stop=True)
        service.close()
    assert service.usual == pytest.approx(before, abs=0.003)


# -- the rules, one by one


def test_a_call_weighs_less_by_a_factor_e_after_one_memory_and_never_less_by_a_pause() -> None:
    full = learning.learn(None, 1000, 100, NOW, 60)
    for pause in (60, 1e6):
        later = learning.learn(full, 0, 0, NOW + pause, 60)
        assert later["calls"] == pytest.approx(1000 / math.e)
        assert learning.rate(later) == pytest.approx(0.1)
    assert learning.learn(full, 0, 0, NOW - 50, 60)["calls"] == 1000
    assert learning.learn(None, 0, 0, NOW, 60)["calls"] == 0


@pytest.mark.parametrize(
    ("failures", "calls", "usual", "floor", "rise"),
    [
        (9, 100, 0.001, 0.1, False),  # below the floor
        (10, 100, 0.001, 0.1, True),
        (2200, 10_000, 0.2, 0.1, False),  # certain, but not worth mentioning
        (34, 100, 0.2, 0.1, False),  # worth mentioning, but not certain
        (340, 1000, 0.2, 0.1, True),
        (8, 8, 0.2, 0.1, True),
        (7, 7, 0.2, 0.1, False),
        (1, 10, 0.001, 0.1, False),
    ],
)
def test_what_is_a_rise(failures: int, calls: int, usual: float, floor: float, rise: bool) -> None:
    assert learning.is_rise(failures, calls, usual, floor) is rise


def test_a_false_alarm_is_as_rare_as_is_said() -> None:
    """Against the exact binomial tail: the chance of what is called a rise, for one look."""
    for calls in (10, 30, 100, 300):
        for usual in (0.001, 0.01, 0.1, 0.2, 0.5):
            rises = [k for k in range(calls + 1) if learning.is_rise(k, calls, usual, 0.01)]
            tail = sum(math.comb(calls, k) * usual**k * (1 - usual) ** (calls - k) for k in rises)
            assert tail <= learning.CHANCE * (1 + 1e-9)


# -- by eye and by hand


def test_the_breaker_takes_it_and_the_snapshot_shows_it() -> None:
    options: dict[str, Any] = {"window": 10, "adaptive": True, "failure_rate_floor": 0.2}
    breaker = CircuitBreaker("usual", store="memory://adaptive", sync_interval=1e-9, **options)
    assert (breaker.policy.adaptive, breaker.policy.failure_rate_floor) == (True, 0.2)
    assert breaker.snapshot().usual_failure_rate is None
    for _ in range(60):
        breaker.call(int)
    assert breaker.snapshot().usual_failure_rate == 0.0
    breaker.force_closed()
    assert breaker.snapshot().usual_failure_rate == 0.0
    breaker.reset()
    assert breaker.snapshot().usual_failure_rate is None


# -- laws


draws = st.floats(0, 1, exclude_max=True)
shares = st.floats(1e-7, 1)
fleets = st.floats(0, 1e9)


def busy(processes: float, seconds: float, merges: float = MERGES) -> CircuitDocument:
    """The document after so many seconds in which a fleet of this size merged `merges` times a second."""
    document, now = machine.new(), NOW
    weight = processes / merges
    for _ in range(round(seconds * merges)):
        now += 1 / merges
        document = sharing.add_weight(document, weight, now)
    return document


@pytest.mark.parametrize("processes", [1, 5, 24, 50])
def test_up_to_50_processes_count_every_call_and_merge_no_more_often(processes: int) -> None:
    document = busy(processes, 60, min(MERGES, 2 * processes))
    fleet = sharing.fleet_of(document, NOW + 60)
    assert fleet == pytest.approx(processes, rel=0.1)
    assert sharing.share_of(document, NOW + 60) == 1
    turns = [sharing.turn_of(1.0, fleet, 0.0, 0.5) for _ in range(500)]
    assert all(turn.counts for turn in turns)
    assert processes / (sum(turn.ends for turn in turns) / 500) <= 1.1 * MERGES


@pytest.mark.parametrize("processes", [100, 10_000, 1_000_000])
def test_a_large_fleet_merges_as_often_as_a_small_one(processes: int) -> None:
    document = busy(processes, 60)
    assert sharing.fleet_of(document, NOW + 60) == pytest.approx(processes, rel=0.05)
    share = sharing.share_of(document, NOW + 60)
    assert share * processes / LONGEST_TURN == pytest.approx(MERGES, rel=0.05)


@given(fleet=fleets, draw=draws)
def test_no_process_waits_longer_than_promised(fleet: float, draw: float) -> None:
    assert sharing.LOOK_AFTER <= sharing.looks_in(fleet, draw) <= sharing.LOOK_WITHIN
    assert 0 <= sharing.asks_in(fleet, draw) < 25
    assert sharing.asks_in(min(FEW, fleet), draw) == 0
    assert 0.5 <= sharing.polls_in(fleet, 0.5) <= sharing.LOOK_WITHIN


@pytest.mark.parametrize("processes", [6, 24, 60, 10_000])
def test_the_failures_of_a_fleet_that_fails_often_are_merged_as_often_as_its_turns(processes: int) -> None:
    """Of a larger fleet than COUNTED, only so many processes count."""
    budgets = [sharing.FailureBudget() for _ in range(min(processes, round(COUNTED)))]
    for budget in budgets:
        while budget.take(processes, 100.0):
            pass
    taken = sum(budget.take(processes, 100 + second / 10) for second in range(600) for budget in budgets)
    assert taken / 60 == pytest.approx(MERGES, rel=0.1)


@pytest.mark.parametrize("processes", [50, 400, 4000])
def test_the_windows_rate_has_no_bias(processes: int) -> None:
    """A minute of a fleet with 5 % failures, by the real machine and turns: within 2 points of the truth."""
    random.seed(processes)
    chance = random.Random(processes)
    policy = CircuitPolicy(failure_threshold=1000)
    document = machine.new()
    document["demand"] = {"sum": processes * MEMORY, "at": NOW}

    def next_turn(at: float) -> Turn:
        share, fleet = sharing.share_of(document, NOW + at), sharing.fleet_of(document, NOW + at)
        return sharing.turn_of(share, fleet, at, 0.5)

    merges = 0
    turns = [next_turn(0.0) for _ in range(processes)]
    for tick in range(240):
        at = tick / 4
        for number, turn in enumerate(turns):
            if turn.ends > at:
                continue
            lasts = turn.ends - turn.begins
            runs = tuple[Any, ...](("f" if chance.random() < 0.05 else "s", 1) for _ in range(round(lasts)))
            document, _ = machine.step(document, machine.Record(1, runs), NOW + at, policy)
            document = sharing.add_weight(document, min(MEMORY, lasts) / turn.share, NOW + at)
            turns[number] = next_turn(at)
            merges += 1
    assert document["state"] == "closed"
    window = document["window"]
    assert window["failures"] / window["calls"] == pytest.approx(0.05, abs=0.02)
    assert merges / 60 == pytest.approx(MERGES, rel=0.25)
