"""How a fleet shares the work of counting: the pure rules, and what they come to for any size."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.guards.circuits import machine, sharing
from prefect_resilience.guards.circuits.machine import CircuitDocument
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.turns import FailureBudget, Turn, begun, turn_of

NOW = 1_000_000.0
draws = st.floats(0, 1, exclude_max=True)
shares = st.floats(1e-7, 1)


def busy(processes: float, seconds: float, merges: float = sharing.MERGES) -> CircuitDocument:
    """The document after so many seconds in which a fleet of this size merged `merges` times a second."""
    document, now = machine.new(), NOW
    weight = processes / sharing.SLOT / merges
    for _ in range(round(seconds * merges)):
        now += 1 / merges
        document = sharing.joined(document, weight, now)
    return document


@pytest.mark.parametrize("processes", [1, 3, 5])
def test_a_small_fleet_counts_everything(processes: int) -> None:
    merges = processes / sharing.SLOT
    document = busy(processes, 60, merges)
    assert sharing.share_of(document, NOW + 60) == 1


@pytest.mark.parametrize("processes", [64, 10_000, 1_000_000])
def test_a_large_fleet_merges_as_often_as_a_small_one(processes: int) -> None:
    share = sharing.share_of(busy(processes, 60), NOW + 60)
    assert share * processes / sharing.SLOT == pytest.approx(sharing.MERGES, rel=0.05)
    assert sharing.fleet_of(share) == pytest.approx(processes, rel=0.05)


def test_a_burst_of_a_few_processes_is_counted_whole() -> None:
    document = machine.new()
    for number in range(60):
        document = sharing.joined(document, 1.0, NOW + number / 1000)
    assert sharing.share_of(document, NOW + 0.06) == 1


def test_a_fleet_that_shrank_counts_more_again() -> None:
    document = busy(1_000_000, 60)
    shares = [sharing.share_of(document, NOW + 60 + later) for later in (0, 10, 30, 60, 90)]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_fleet_is_as_large_after_an_opening_as_before() -> None:
    document = busy(1000, 60)
    before = sharing.share_of(document, NOW + 60)
    opened = {**document, "state": "open", "share": before}
    assert sharing.share_of(opened, NOW + 600) == before
    closed = sharing.resumed({**opened, "state": "closed"}, NOW + 600)
    assert sharing.share_of(closed, NOW + 600) == pytest.approx(before, rel=0.1)


def test_a_fleet_that_starts_at_once_finds_its_share() -> None:
    """Every process merges when it is first its turn; the document says how many of them to believe."""
    chance = random.Random(1)
    document, merges = machine.new(), list[float]()
    for number in range(20_000):
        now = NOW + number * sharing.SLOT / 20_000
        share = sharing.share_of(document, now)
        if chance.random() < share:
            document = sharing.joined(document, 1 / share, now)
            merges.append(now)
    assert len(merges) < 1_000
    assert sharing.share_of(document, NOW + sharing.SLOT) < 0.01


@given(share=shares, draw=draws)
def test_nobody_waits_longer_than_promised(share: float, draw: float) -> None:
    assert sharing.LOOK_AFTER <= sharing.looks_in(share, draw) <= sharing.LOOK_WITHIN
    assert 0 <= sharing.asks_in(share, draw) < 25
    assert 0.5 <= sharing.polls_in(share, 0.5) <= sharing.LOOK_WITHIN
    assert sharing.turns_until(share, draw) >= 0


@pytest.mark.parametrize("processes", [100, 10_000, 1_000_000])
def test_few_ask_for_a_probe_at_first(processes: int) -> None:
    chance = random.Random(2)
    share = sharing.MERGES * sharing.SLOT / processes
    waits = [sharing.asks_in(share, chance.random()) for _ in range(processes)]
    assert sum(wait < 1 for wait in waits) <= 2 * sharing.ASKS
    assert min(waits) < 1


@given(share=shares, seed=st.integers(0, 1000))
def test_a_turn_lasts_a_slot_and_begins_later(share: float, seed: int) -> None:
    random.seed(seed)
    turn = turn_of(share, 100.0, 0.5)
    assert turn.begins >= 100
    assert turn.ends - turn.begins == pytest.approx(0.5)
    assert turn.counts == (share == 1)


def test_a_turn_in_which_nobody_called_is_drawn_again() -> None:
    random.seed(3)
    turn = Turn(0.01, 10.0, 10.5, counts=False)
    assert begun(turn, 10.2).counts
    late = [begun(turn, 99.0) for _ in range(2000)]
    assert sum(one.counts for one in late) == pytest.approx(20, abs=15)
    assert all(one.begins >= 99 for one in late)


def test_a_few_failures_are_merged_at_once() -> None:
    budget, alone = FailureBudget(), Turn(1.0, 0.0, 1.0, counts=True)
    assert [budget.take(alone, 100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    taken = sum(budget.take(alone, 100 + number / 100) for number in range(1000))
    assert taken == pytest.approx(20, abs=1)
    crowd = FailureBudget()
    assert [crowd.take(Turn(0.1, 0.0, 1.0, counts=True), 100.0) for _ in range(3)] == [True, False, False]


def announced(before: CircuitDocument, **changes: Any) -> bool:
    return sharing.announced(before, {**before, **changes}, NOW)[1]


def test_what_is_told() -> None:
    quiet = {**machine.new(), "published_at": NOW - 1}
    assert not announced(quiet)
    assert not announced(quiet, failures_in_row=1)
    assert announced(quiet, generation=2)
    assert announced(quiet, leases={"p": [NOW, NOW + 60]})
    silent = {**quiet, "published_at": NOW - sharing.REPEAT}
    assert announced(silent, failures_in_row=1)
    # Reading a circuit writes nothing, except in a large fleet without news for long.
    assert not announced(silent)
    assert announced({**silent, "state": "open", "share": 0.1})
    # Told by a clock that was set back since
    assert announced({**quiet, "published_at": NOW + 100}, failures_in_row=1)


def test_the_share_is_told_when_it_clearly_changed() -> None:
    before = {**machine.new(), "published_at": NOW - 0.1}
    crowd = {"sum": 2 * sharing.MERGES * sharing.MEMORY, "at": NOW}
    after, is_published = sharing.announced(before, {**before, "demand": crowd}, NOW)
    assert is_published
    assert after["share"] == 0.5
    crowd = {**crowd, "sum": crowd["sum"] * 1.2}
    again, is_published = sharing.announced(after, {**after, "demand": crowd}, NOW)
    assert not is_published
    assert again["share"] == 0.5


@pytest.mark.parametrize("processes", [40, 400, 4000])
def test_the_windows_rate_has_no_bias(processes: int) -> None:
    """A minute of a fleet with 5 % failures, by the real machine and turns: within 2 points of the truth."""
    random.seed(processes)
    chance = random.Random(processes)
    policy = CircuitPolicy(failure_threshold=1000)
    document, calls_each = machine.new(), 5
    document["demand"] = {"sum": processes / sharing.SLOT * sharing.MEMORY, "at": NOW}
    merges = 0
    turns = [turn_of(sharing.share_of(document, NOW), 0.0, 0.5) for _ in range(processes)]
    for tick in range(240):
        at = tick * sharing.SLOT / 2
        for number, turn in enumerate(turns):
            if turn.ends > at:
                continue
            runs = tuple[Any, ...](("f" if chance.random() < 0.05 else "s", 1) for _ in range(calls_each))
            document, _ = machine.step(document, machine.Record(1, runs), NOW + at, policy)
            document = sharing.joined(document, 1 / turn.share, NOW + at)
            turns[number] = turn_of(sharing.share_of(document, NOW + at), at, 0.5)
            merges += 1
    assert document["state"] == "closed"
    window = document["window"]
    assert window["failures"] / window["calls"] == pytest.approx(0.05, abs=0.02)
    assert merges / 60 == pytest.approx(sharing.MERGES, rel=0.25)
