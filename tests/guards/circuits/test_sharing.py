"""How a fleet shares the work of counting: the pure rules, and what they come to for any size."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.guards.circuits import machine, sharing
from prefect_resilience.guards.circuits.machine import CircuitDocument
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.sharing import COUNTED, FEW, LONGEST_TURN, MEMORY, MERGES, Turn

NOW = 1_000_000.0
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
