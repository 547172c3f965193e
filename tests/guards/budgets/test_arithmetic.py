"""The arithmetic of error budgets: the workbook's table, laws of counting, one alarm for one burn."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.guards.budgets import model
from prefect_resilience.guards.budgets.model import (
    BUCKETS,
    MONTH,
    count_runs,
    fitting,
    judge,
    rules_of,
    status_of,
)

HOUR, DAY = 3_600.0, 86_400.0
START = 1_700_000_000.0


def document(objective=0.99, window=7 * DAY, minimum=10):
    return model.new(objective, window, minimum)


def test_thirty_days_give_the_tables_of_the_workbook():
    # Chapter 5 of "The Site Reliability Workbook", table 5-8
    assert [(rule.long, rule.short, rule.rate) for rule in rules_of(30 * DAY)] == [
        (1 * HOUR, 5 * 60, 14.4),
        (6 * HOUR, 30 * 60, 6),
        (3 * DAY, 6 * HOUR, 1),
    ]


def test_what_remains_is_the_share_of_the_failures_that_were_allowed():
    after = count_runs(document(objective=0.9), good=95, bad=5, now=START)
    seen = status_of("x", after, START)
    assert seen.remaining == pytest.approx(0.5)
    assert seen.runs == 100
    assert status_of("x", count_runs(after, 0, 10, START), START).remaining < 0


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0, 20 * DAY)), min_size=1, max_size=30
    ),
    st.sampled_from([HOUR, 7 * DAY, 30 * DAY]),
)
def test_every_span_holds_what_ended_in_it_to_within_a_bucket(runs, window):
    """A run is in the sum when it is younger than the span less one bucket, and not when it is older."""
    runs = sorted(runs, key=lambda run: run[2])
    held = document(window=window)
    for good, bad, at in runs:
        held = count_runs(held, good, bad, START + at)
    now = START + runs[-1][2]
    for span in model.spans_of(window):
        inside = [run for run in runs if now - (START + run[2]) <= span * (1 - 1 / BUCKETS) - 1e-3]
        perhaps = [run for run in runs if now - (START + run[2]) <= span + 1e-3]
        good, bad = model.totals(held, span, now)
        assert sum(run[0] for run in inside) <= good <= sum(run[0] for run in perhaps)
        assert sum(run[1] for run in inside) <= bad <= sum(run[1] for run in perhaps)
        ring = next(ring for ring in held["rings"] if ring["seconds"] == span)
        assert len(ring["buckets"]) <= BUCKETS


@pytest.mark.requirement("002.32")
def test_a_fast_burn_needs_both_of_its_windows():
    held = count_runs(document(window=MONTH), 80, 20, START)
    assert judge(held, START)["burning_since"] == START
    # The long window is bad still, the short one is not: it is over, and worth no alarm any more.
    later = START + 600
    mended = count_runs(count_runs(document(window=MONTH), 80, 20, START), 10, 0, later)
    fast = rules_of(MONTH)[0]
    assert model.burn_rate(*model.totals(mended, fast.long, later), 0.99) > fast.rate
    assert model.burn_rate(*model.totals(mended, fast.short, later), 0.99) == 0


def test_what_hovers_at_a_rate_is_one_burn():
    """After good weeks and bad days: between half of a rate and the whole of it nothing ends or begins."""
    held = document(0.99, MONTH)
    for day in range(20):
        held = count_runs(held, 2_000, 0, START + day * DAY)
    now = START + 20 * DAY
    for _ in range(12):
        now += 6 * HOUR
        held = judge(count_runs(held, 492, 8, now), now)
    since = held["burning_since"]
    assert since is not None
    for step in range(8):
        now += 6 * HOUR
        bad = 6 if step % 2 else 3
        held = judge(count_runs(held, 500 - bad, bad, now), now)
        assert held["burning_since"] == since, step


def test_a_burn_ends_and_the_next_one_is_a_new_one():
    held = judge(count_runs(document(0.5, HOUR), 0, 100, START), START)
    assert held["burning_since"] == START
    assert held["why"].startswith("it burns")
    quiet = START + 2 * HOUR
    held = judge(count_runs(held, 100, 0, quiet), quiet)
    assert (held["burning_since"], held["why"]) == (None, None)
    again = quiet + 2 * HOUR
    held = judge(count_runs(held, 0, 100, again), again)
    assert held["burning_since"] == again


def test_a_budget_that_is_used_up_burns_until_a_tenth_is_back():
    """So slowly that no rule but the last holds, and none of its short windows."""
    window = MONTH
    held = document(0.99, window)
    for day in range(25):
        held = count_runs(held, 989, 11, START + day * DAY)
    now = START + 24 * DAY + 7 * HOUR
    used = judge(held, now)
    assert used["why"] == "it is used up: 275 of 25000 runs failed"
    barely = judge(count_runs(used, 1200, 0, now), now)
    assert status_of("x", barely, now).remaining == pytest.approx(-0.05, abs=0.01)
    back = judge(count_runs(barely, 2800, 0, now), now)
    assert 0 < status_of("x", back, now).remaining < 0.1
    assert back["burning_since"] is not None
    assert judge(count_runs(back, 2600, 0, now), now)["burning_since"] is None


def test_another_policy_keeps_what_it_can():
    held = count_runs(document(0.99, 7 * DAY), 90, 10, START)
    stricter = fitting(held, 0.999, 7 * DAY, 5)
    assert status_of("x", stricter, START).runs == 100
    assert stricter["objective"] == 0.999
    assert status_of("x", fitting(held, 0.99, HOUR, 5), START).runs == 0
    assert fitting(None, 0.99, HOUR, 5) == model.new(0.99, HOUR, 5)
