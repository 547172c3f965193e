"""What `Retry.decide` says to the letter, and what its options mean when they are left out."""

from __future__ import annotations

import pytest

from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry, Verdict, error_name

ERROR = ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503")


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


def test_a_server_that_asks_for_the_cap_gets_it_and_for_more_does_not() -> None:
    policy = Retry(attempts=3, backoff=Backoff.constant(initial=2, jitter=0), retry_after_cap=60)

    def asked(seconds: float) -> Verdict:
        return policy.decide(ErrorInfo.of(ErrorCategory.RATE_LIMIT, "429", retry_after=seconds), 1)

    assert asked(60) == Verdict(True, 60, "429 is retryable: attempt 2 of 3", asked_for=60)
    assert asked(1) == Verdict(True, 2, "429 is retryable: attempt 2 of 3")
    why = "the server asks to wait 61 s, more than retry_after_cap=60 s"
    assert asked(61) == Verdict(False, 0.0, why)


def test_a_category_without_a_time_of_its_own_has_that_of_the_whole() -> None:
    own = Retry(attempts=9, backoff=Backoff.constant(initial=4, jitter=0))
    policy = Retry(max_elapsed=10, by_category={"unavailable": own})
    assert not policy.decide(ERROR, 1, elapsed=7).retry
    assert policy.decide(ERROR, 1, elapsed=5).retry


def test_an_error_goes_by_all_of_its_names() -> None:
    known = ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503", exception_type="some.library.errors.Away")
    for name in ("unavailable", "transient", "503", "some.library.errors.Away", "Away"):
        assert Retry(retry_on=[name]).decide(known, 1).retry, name
    for name in ("library.errors.Away", "errors.Away", "some", "504"):
        assert not Retry(retry_on=[name]).decide(known, 1).retry, name


@pytest.mark.parametrize(
    ("theirs", "ours", "value"),
    [
        ("max_attempts", "attempts", 3),
        ("max_retries", "attempts", 3),
        ("retryable_errors", "retry_on", ["503"]),
    ],
)
def test_two_words_for_one_thing_are_both_named(theirs: str, ours: str, value: object) -> None:
    with pytest.raises(ValueError, match="which mean the same: write one of them") as caught:
        Retry.model_validate({theirs: value, ours: value})
    assert f"Retry has both {ours!r} and {theirs!r}" in str(caught.value)
