"""The curve of a circuit, gathered from window documents as they are read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.guards.circuits import window
from prefect_resilience.operations.dashboard.rows import SLOT, SLOTS, Spark

NOW = 1_000_000.0
"""The beginning of a slot, and of a bucket of a window of 60 s."""


def after(document, size, outcomes, at):
    return window.record(document, size, outcomes, at)


def test_the_first_reading_shows_the_whole_window():
    document = after(None, 60.0, [("s", 8), ("f", 2)], NOW + 2)
    document = after(document, 60.0, [("s", 5)], NOW + 12)
    series = Spark().series(document, NOW + 16)
    assert series["calls"][-3:] == [10, 0, 5]
    assert series["failed"][-3:] == [2, 0, 0]
    assert len(series["calls"]) == SLOTS
    assert sum(series["calls"]) == 15


def test_a_slot_is_shown_once_it_is_over_and_workers_had_time_to_merge():
    document = after(None, 60.0, [("s", 3)], NOW + 2)
    assert Spark().series(document, NOW + SLOT) == {}
    assert Spark().series(document, NOW + SLOT + 1)["calls"][-1] == 3


def test_what_is_read_again_counts_once_and_what_left_the_window_stays():
    spark, document = Spark(), None
    for second in range(0, 120, 2):
        document = after(document, 60.0, [("s", 1), ("F", 1)], NOW + second)
        spark.series(document, NOW + second)
        spark.series(document, NOW + second + 1)
    series = spark.series(document, NOW + 121)
    assert sum(series["calls"]) == 120
    assert sum(series["failed"]) == 60
    assert sum(1 for calls in series["calls"] if calls) == 24
    assert window.totals(document, NOW + 121).calls < 120


def test_slots_are_forgotten_when_they_are_too_old():
    spark = Spark()
    document = after(None, 60.0, [("s", 4)], NOW)
    assert sum(spark.series(document, NOW + 10)["calls"]) == 4
    assert spark.series(document, NOW + SLOT * SLOTS + 6) == {}
    assert spark.slots == {}


def test_a_reset_in_between_is_no_negative_number_of_calls():
    spark = Spark()
    spark.series(after(None, 60.0, [("s", 9)], NOW), NOW + 1)
    series = spark.series(after(None, 60.0, [("s", 2)], NOW + 1), NOW + 7)
    assert series["calls"][-1] == 11
    assert spark.series(None, NOW + 7) == series
    assert spark.seen == {}


def test_wide_buckets_are_spread_and_narrow_ones_are_added_up():
    wide = after(None, 600.0, [("s", 100)], NOW + 1)  # buckets of 50 s
    first = int((NOW + 1) // 50) * 50
    series = Spark().series(wide, first + 51)
    assert series["calls"][-10:] == [10] * 10
    assert series["calls"][-11] == 0
    narrow = None
    for tenth in range(50):
        narrow = after(narrow, 12.0, [("s", 1)], NOW + tenth / 10)  # buckets of 1 s
    assert Spark().series(narrow, NOW + 6)["calls"][-2:] == [0, 50]


def test_another_window_begins_anew():
    spark = Spark()
    spark.series(after(None, 60.0, [("s", 3)], NOW), NOW + 1)
    series = spark.series(after(None, 120.0, [("s", 4)], NOW), NOW + 11)
    assert sum(series["calls"]) == 7


def test_a_window_of_calls_shows_its_last_calls():
    document = after(None, 100, [("s", 60), ("f", 1), ("F", 1), ("s", 2)], NOW)
    series = Spark().series(document, NOW)
    assert series["calls"] == [1] * SLOTS
    assert series["failed"][-4:] == [1, 1, 0, 0]
    assert Spark().series(after(None, 100, [("s", 2)], NOW), NOW) == {"calls": [1, 1]}


@given(
    st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50), st.integers(0, 50)), max_size=30),
    st.sampled_from([1.0, 12.0, 60.0, 100.0, 600.0]),
)
def test_no_call_is_lost_or_counted_twice(steps, size):
    """Read as often as it is written, every call of the last minutes stands in some slot."""
    spark, document, now, calls = Spark(), None, NOW, 0
    for pause, good, bad in steps:
        now += pause / 10
        document = after(document, size, [("s", good), ("f", bad)], now)
        spark.series(document, now)
        calls += good + bad
    assert abs(sum(c for c, _ in spark.slots.values()) - calls) < 1e-6
    assert all(0 <= failed <= called + 1e-9 for called, failed in spark.slots.values())
