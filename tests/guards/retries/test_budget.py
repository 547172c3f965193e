"""The retry budget, with a clock in the test's hand."""

from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.guards.retries.policy import Bucket, RetryBudget, bucket_of


def granted(bucket: Bucket, now: float, asked: int) -> int:
    return sum(bucket.spend(now) for _ in range(asked))


def test_the_minimum_is_granted_without_any_calls():
    bucket = Bucket.full(RetryBudget(), now=0)
    assert granted(bucket, 0, 10) == 3
    assert granted(bucket, 1, 10) == 3


def test_calls_earn_a_fifth_of_a_retry_each():
    bucket = Bucket.full(RetryBudget(minimum_per_second=0), now=0)
    granted(bucket, 0, 1)
    for _ in range(100):
        bucket.earn()
    assert granted(bucket, 0.1, 100) == 20


def test_what_was_earned_long_ago_is_not_saved_up():
    bucket = Bucket.full(RetryBudget(minimum_per_second=0, window=10), now=0)
    for _ in range(10_000):
        bucket.earn()
    assert granted(bucket, 1000, 10_000) <= 21


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50), st.integers(0, 50)), max_size=30))
def test_retries_never_pass_the_ratio_and_the_minimum(steps):
    budget = RetryBudget(ratio=0.2, minimum_per_second=3, window=10)
    bucket, now, calls, retries = Bucket.full(budget, 0), 0.0, 0, 0
    for passed, made, asked in steps:
        now += passed
        calls += made
        for _ in range(made):
            bucket.earn()
        retries += granted(bucket, now, asked)
        assert retries <= 3 + 3 * now + 0.2 * calls + 1e-6


def test_a_clock_that_goes_back_gives_nothing():
    bucket = Bucket.full(RetryBudget(), now=100)
    assert granted(bucket, 100, 10) == 3
    assert granted(bucket, 50, 10) == 0


def test_policies_that_name_the_same_budget_share_a_bucket():
    assert bucket_of(RetryBudget(name="shared"), 0) is bucket_of(RetryBudget(name="shared"), 5)
    assert bucket_of(RetryBudget(name="shared"), 0) is not bucket_of(RetryBudget(name="other"), 0)


def test_a_new_bucket_begins_at_its_first_moment_and_holds_at_least_one_token():
    first = bucket_of(RetryBudget(name="first moment"), 7.0)
    assert (first.at, first.tokens) == (7.0, 3.0)
    slow = Bucket.full(RetryBudget(ratio=0, minimum_per_second=0.05, window=10), now=0)
    assert [granted(slow, now, 5) for now in (0, 10, 30, 300)] == [1, 0, 1, 1]
