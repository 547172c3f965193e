"""What `Retry.decide` says to the letter, and what its options mean when they are left out."""

from __future__ import annotations

import pytest

from prefect_resilience.errors.info import ErrorInfo
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.retries.backoff import Backoff
from prefect_resilience.retries.policy import Retry, Verdict, error_name

ERROR = ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503")


@pytest.mark.parametrize(
    ("attempts", "why"), [(1, "one attempt only"), (2, "all 2 attempts used"), (3, "all 3 attempts used")]
)
def test_the_last_attempt(attempts: int, why: str) -> None:
    assert Retry(attempts=attempts).decide(ERROR, attempts) == Verdict(False, 0.0, why)


def test_an_attempt_to_come() -> None:
    policy = Retry(attempts=3, backoff=Backoff.constant(initial=2, jitter=0))
    assert policy.decide(ERROR, 1) == Verdict(True, 2.0, "503 may pass: attempt 2 of 3")


def test_what_is_left_out_is_the_beginning_and_the_middle() -> None:
    policy = Retry(attempts=3, max_elapsed=2.5, backoff=Backoff.constant(initial=2, jitter=0.5))
    assert policy.decide(ERROR, 1) == policy.decide(ERROR, 1, elapsed=0.0, random=0.5)
    assert policy.decide(ERROR, 1).delay == 2.0
    assert policy.delay(0) == Backoff.constant(initial=2, jitter=0.5).delay(0, random=0.5)


def test_the_previous_delay_counts() -> None:
    backoff = Backoff.decorrelated(initial=1, maximum=100)
    policy = Retry(attempts=9, backoff=backoff)
    for previous in (None, 1.0, 20.0):
        expected = backoff.delay(1, random=0.9, previous=previous)
        assert policy.delay(1, random=0.9, previous=previous) == expected
        assert policy.decide(ERROR, 2, random=0.9, previous_delay=previous).delay == expected


def test_the_closest_word_is_meant_and_only_a_close_one() -> None:
    with pytest.raises(ValueError, match="did you mean 'rate_limit'"):
        error_name("rate_limits")
    # further away it is a code that somebody uses
    assert error_name("time_over") == "time_over"
    assert error_name("server") == "server"


def test_flat_options_beside_a_backoff_are_all_named() -> None:
    with pytest.raises(ValueError, match="beside it: write them inside") as caught:
        Retry.model_validate({"backoff": Backoff.none(), "initial_delay_ms": 1, "max_delay_ms": 2})
    assert "a backoff and initial_delay_ms, max_delay_ms beside it" in str(caught.value)
