"""Figures from runs, changes of circuits and letters, as pure functions."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.letters.model import DeadLetter, Replay
from prefect_resilience.operations.reports.figures import Tally, errors_of, letters_of, task_of

START = datetime(2026, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)

SCRIPT = [
    (("a", "COMPLETED", "Completed", 1), "succeeded"),
    (("a", "COMPLETED", "Completed", 3), "succeeded"),
    (("a", "COMPLETED", "Custom", 1), "succeeded"),
    (("a", "COMPLETED", "Fallback", 2), "fallbacks"),
    (("a", "COMPLETED", "Degraded", 1), "fallbacks"),
    (("a", "COMPLETED", "Replayed", 1), "replayed"),
    (("a", "COMPLETED", "Cached", 0), "other"),
    (("a", "COMPLETED", "Skipped", 1), "other"),
    (("b", "FAILED", "Failed", 3), "failed"),
    (("b", "FAILED", "TimedOut", 1), "failed"),
    (("b", "CRASHED", "Crashed", 1), "crashed"),
    (("b", "CANCELLED", "Cancelled", 0), "cancelled"),
]


def test_each_run_is_counted_where_it_belongs():
    tally = Tally()
    for run, _ in SCRIPT:
        tally.add(*run)
    total = tally.total()
    for kind in ("succeeded", "fallbacks", "replayed", "other", "failed", "crashed", "cancelled"):
        assert getattr(total, kind) == sum(expected == kind for _, expected in SCRIPT), kind
    assert total.runs == len(SCRIPT)
    assert total.attempts == sum(run[3] for run, _ in SCRIPT) - 2, "of Replayed and Skipped"
    assert (total.retried, total.recovered) == (3, 1)
    assert (total.degraded, total.timed_out) == (1, 1)
    assert total.attempts_until_success == pytest.approx(5 / 3)
    assert total.retry_rate == 3 / 12
    assert total.failure_rate == 3 / 12


kinds = st.sampled_from([run for run, _ in SCRIPT])


@settings(deadline=None)
@given(st.lists(kinds))
def test_the_parts_make_the_whole(runs):
    tally = Tally()
    for run in runs:
        tally.add(*run)
    total = tally.total()
    parts = ("succeeded", "fallbacks", "replayed", "other", "failed", "crashed", "cancelled")
    assert sum(getattr(total, part) for part in parts) == total.runs == len(runs)
    assert sum(task.runs for task in tally.tasks()) == total.runs


def test_nothing_has_no_rates():
    total = Tally().total()
    assert total.retry_rate is None
    assert total.attempts_until_success is None


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
    made = errors_of(Counter({"429": 3, "503": 5, "TIMEOUT": 3}), 20)
    assert [(one.code, one.attempts, one.rate) for one in made] == [
        ("503", 5, 0.25),
        ("429", 3, 0.15),
        ("TIMEOUT", 3, 0.15),
    ]


def test_letters_of_the_period():
    def letter(created, status, replays=()):
        return DeadLetter(kind="task", name="x", key="x", created_at=created, status=status, replays=replays)

    def replay(at, outcome, message=""):
        return Replay(started_at=at, finished_at=at, outcome=outcome, owner="me", message=message)

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


@pytest.mark.parametrize(
    ("outcome", "message", "counted"),
    [
        ("replayed", "Completed", "succeeded"),
        ("replayed", "the replay that was cut off had ended: Completed", "succeeded"),
        ("replayed", "Fallback", "succeeded"),
        ("replayed", "Replayed", "not_made"),
        ("replayed", "Cached", "not_made"),
        ("replayed", "a run of its deployment was created: quick-fox", "succeeded"),
        ("failed", "503", "failed"),
        ("in_doubt", "it was cut off", "in_doubt"),
    ],
)
def test_a_replay_counts_as_what_it_came_to(outcome, message, counted):
    one = Replay(started_at=START, finished_at=START, outcome=outcome, owner="me", message=message)
    letter = DeadLetter(kind="task", name="x", key="x", created_at=START - DAY, replays=(one,))
    made = letters_of([letter], START, START + DAY)
    told = {name: value for name, value in made.model_dump().items() if value}
    assert told == {f"replays_{counted}": 1}


def test_what_was_refused_is_no_attempt():
    tally = Tally()
    tally.add("a", "FAILED", "Failed", 1)
    tally.add("a", "COMPLETED", "Completed", 3, "id-1")
    assert tally.retried_successes == ["id-1"]
    tally.refuse("a", 2, of_successes=1)
    tally.refuse("a run has a name of its own", 1)
    (task,) = tally.tasks()
    assert (task.attempts, task.refused, task.retried, task.attempts_until_success) == (2, 2, 1, 2.0)
    assert (tally.total().attempts, tally.total().refused) == (1, 3)
    tally.refuse("a", 9)
    assert tally.tasks()[0].attempts == 0, "of a run that goes on"
