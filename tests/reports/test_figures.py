"""Figures from runs, changes of circuits and letters, as pure functions."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.circuits.model import CircuitSnapshot
from prefect_resilience.dead_letters.model import DeadLetter, Replay
from prefect_resilience.reports.figures import (
    Run,
    StateChange,
    Tally,
    circuits_of,
    errors_of,
    letters_of,
    open_for,
    spread_of,
    task_of,
)

START = datetime(2026, 11, 20, tzinfo=timezone.utc)
DAY = timedelta(days=1)

SCRIPT = [
    (Run("a", "COMPLETED", "Completed", 1, 1.0), "succeeded"),
    (Run("a", "COMPLETED", "Completed", 3, 9.0), "succeeded"),
    (Run("a", "COMPLETED", "Custom", 1, 1.0), "succeeded"),
    (Run("a", "COMPLETED", "Fallback", 2, 1.0), "fallbacks"),
    (Run("a", "COMPLETED", "Degraded", 1, 1.0), "fallbacks"),
    (Run("a", "COMPLETED", "Replayed", 1, 1.0), "replayed"),
    (Run("a", "COMPLETED", "Cached", 0, 0.0), "other"),
    (Run("a", "COMPLETED", "Skipped", 1, 0.0), "other"),
    (Run("b", "FAILED", "Failed", 3, 1.0), "failed"),
    (Run("b", "FAILED", "TimedOut", 1, 1.0), "failed"),
    (Run("b", "CRASHED", "Crashed", 1, None), "crashed"),
    (Run("b", "CANCELLED", "Cancelled", 0, None), "cancelled"),
]


def test_each_run_is_counted_where_it_belongs():
    tally = Tally()
    for run, _ in SCRIPT:
        tally.add(run)
    total = tally.total()
    for kind in ("succeeded", "fallbacks", "replayed", "other", "failed", "crashed", "cancelled"):
        assert getattr(total, kind) == sum(expected == kind for _, expected in SCRIPT), kind
    assert total.runs == len(SCRIPT)
    assert total.attempts == sum(run.attempts for run, _ in SCRIPT)
    assert (total.retried, total.recovered) == (3, 1)
    assert (total.degraded, total.timed_out) == (1, 1)
    assert total.attempts_until_success == pytest.approx(5 / 3)
    assert total.recovery_rate == pytest.approx(1 / 3)
    assert total.retry_rate == 3 / 12
    assert total.failure_rate == 3 / 12
    assert tally.recoveries == [9.0]


kinds = st.sampled_from([run for run, _ in SCRIPT])


@settings(deadline=None)
@given(st.lists(kinds))
def test_the_parts_make_the_whole(runs):
    tally = Tally()
    for run in runs:
        tally.add(run)
    total = tally.total()
    parts = ("succeeded", "fallbacks", "replayed", "other", "failed", "crashed", "cancelled")
    assert sum(getattr(total, part) for part in parts) == total.runs == len(runs)
    assert sum(task.runs for task in tally.tasks()) == total.runs


def test_plain_runs_count_like_those_that_were_read():
    read, counted = Tally(), Tally()
    for _ in range(7):
        read.add(Run("a", "COMPLETED", "Completed", 1, 2.0))
    counted.add_plain("a", 7)
    assert counted.tasks()[0] == read.tasks()[0]


def test_nothing_has_no_rates():
    total = Tally().total()
    assert total.retry_rate is None
    assert total.attempts_until_success is None
    assert spread_of([]) is None


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_a_spread_lies_within_its_values(seconds):
    spread = spread_of(seconds)
    assert spread is not None
    assert min(seconds) <= spread.median <= spread.p95 <= spread.longest == max(seconds)
    assert spread.median in seconds
    assert spread.count == len(seconds)


@pytest.mark.parametrize(
    ("name", "key", "dynamic", "task"),
    [
        ("ask-3f2", "ask-1a2b3c4d", "3f2a91c0-0000", "ask"),
        ("send invoice-0", "send_invoice-1a2b3c4d", "0", "send invoice"),
        ("ask", "ask_model-1a2b3c4d", "ask_model-1a2b3c4d-99887766", "ask"),
        ("order 17", "charge-1a2b3c4d", "3f2a91c0-0000", "charge"),
        ("order-3f3", "Shop.charge-1a2b3c4d", "3f2a91c0-0000", "Shop.charge"),
        ("x", "no digest", "3f2", "no digest"),
        ("a-b-3f2", "ask-1a2b3c4d", "3f2a91c0-0000", "a-b"),
    ],
)
def test_a_run_is_its_task_s(name, key, dynamic, task):
    assert task_of(name, key, dynamic) == task


def test_errors_the_most_frequent_first():
    made = errors_of({"429": 3, "503": 5, "TIMEOUT": 3}, 20)
    assert [(one.code, one.attempts, one.rate) for one in made] == [
        ("503", 5, 0.25),
        ("429", 3, 0.15),
        ("TIMEOUT", 3, 0.15),
    ]


# -- circuits


def change(at, before, after, name="c"):
    return StateChange(name, at, before, after)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ([], 0),
        ([change(10, "closed", "open"), change(40, "open", "half_open")], 30),
        ([change(10, "closed", "open")], 90),
        ([change(30, "open", "half_open"), change(35, "half_open", "closed")], 30),
        (
            [change(30, "open", "half_open"), change(35, "half_open", "open"), change(95, "open", "closed")],
            90,
        ),
        ([change(50, "closed", "forced_open"), change(60, "forced_open", "open")], 50),
        ([change(-5, "closed", "open"), change(105, "open", "closed")], 100),
    ],
)
def test_the_time_that_a_circuit_was_open(changes, seconds):
    assert open_for(changes, None, 0, 100) == seconds


def test_a_circuit_without_changes_is_as_it_was():
    opened = CircuitSnapshot(name="c", state="open", opened_at=40.0)
    assert open_for([], opened, 0, 100) == 60
    assert open_for([], opened.model_copy(update={"opened_at": -40.0}), 0, 100) == 100
    assert open_for([], opened.model_copy(update={"opened_at": 140.0}), 0, 100) == 0
    assert open_for([], CircuitSnapshot(name="c", state="half_open", opened_at=4.0), 0, 100) == 0


def test_circuits_that_did_something():
    changes = [
        change(10, "closed", "open", "a"),
        change(20, "open", "half_open", "a"),
        change(25, "half_open", "open", "a"),
        change(5, "closed", "open", "b"),
        change(7, "open", "closed", "b"),
        change(90, "closed", "open", "by hand"),
        change(91, "open", "forced_open", "by hand"),
    ]
    now = [CircuitSnapshot(name="quiet"), CircuitSnapshot(name="off", state="disabled")]
    made = circuits_of(changes, now, 0, 100)
    assert [(one.name, one.openings, one.seconds_open, one.state) for one in made] == [
        ("a", 2, 85.0, None),
        ("by hand", 1, 10.0, None),
        ("b", 1, 2.0, None),
        ("off", 0, 0.0, "disabled"),
    ]


def test_letters_of_the_period():
    def letter(created, status, replays=()):
        return DeadLetter(kind="task", name="x", key="x", created_at=created, status=status, replays=replays)

    def replay(at, outcome):
        return Replay(started_at=at, finished_at=at, outcome=outcome, owner="me")

    made = letters_of(
        [
            letter(START, "waiting"),
            letter(START + DAY, "waiting"),
            letter(START - DAY, "replayed", (replay(START + DAY / 2, "replayed"),)),
            letter(
                START + DAY / 2,
                "in_doubt",
                (replay(START + DAY / 2, "failed"), replay(START + DAY, "failed")),
            ),
        ],
        START,
        START + DAY,
    )
    assert (made.created, made.waiting, made.in_doubt, made.replayed) == (2, 1, 1, 0)
    assert (made.replays_succeeded, made.replays_failed) == (1, 1)
